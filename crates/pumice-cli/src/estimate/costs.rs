//! What this machine takes for a fault, for zeroing, and for a touch of memory that is there.

use std::time::Instant;

use pumice::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice::sys::mem::{Huge, Memory, Os};
use rustix::io::Errno;
use serde::Serialize;

use crate::bench::region::Region;
use crate::bench::statistics::median;

/// Memory of one measurement.
const SMALL_BYTES: usize = 16 << 20;
const HUGE_BYTES: usize = 8 << 20;
const FILL_BYTES: usize = 64 << 20;
/// Measurements before the program runs, and again after it.
const ROUNDS: usize = 3;

/// Several measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

/// The middle of them, and the least and the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// The median.
    pub middle: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Samples {
    /// `None` without any.
    pub fn cost(&self) -> Option<Cost> {
        let low = self.0.iter().copied().reduce(f64::min)?;
        let high = self.0.iter().copied().reduce(f64::max)?;
        Some(Cost { middle: median(&self.0), low, high })
    }
}

/// What was measured of this machine.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Nanoseconds of a zero-fill fault that brings a small page.
    pub small_ns: Samples,
    /// Nanoseconds of one that brings a huge page; none where there are no huge pages.
    pub huge_ns: Samples,
    /// Nanoseconds to touch a page that is there.
    pub touch_ns: Samples,
    /// Bytes a nanosecond (GB/s) that memory is filled with zeros.
    pub fill_gb_s: Samples,
}

impl Costs {
    /// Measures some times more.
    ///
    /// # Errors
    /// As `mmap(2)`: the machine has no memory for it.
    pub fn measure(&mut self) -> Result<(), Errno> {
        let mut filled = Region::populate(FILL_BYTES)?;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            filled.bytes().fill(0);
            std::hint::black_box(filled.bytes().as_ptr());
            self.fill_gb_s.0.push(FILL_BYTES as f64 / started.elapsed().as_nanos() as f64);
            let small = Fresh::new(SMALL_BYTES, Huge::No)?;
            self.small_ns.0.push(small.touch(FRAME_SIZE));
            self.touch_ns.0.push(small.touch(FRAME_SIZE));
            if has_huge_pages() {
                self.huge_ns.0.push(Fresh::new(HUGE_BYTES, Huge::Yes)?.touch(BLOCK_SIZE));
            }
        }
        Ok(())
    }
}

/// Whether the kernel gives huge pages to those who ask.
fn has_huge_pages() -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    std::fs::read_to_string(path).is_ok_and(|text| !text.contains("[never]"))
}

/// Memory that nobody has touched.
struct Fresh {
    at: *mut u8,
    len: usize,
}

impl Fresh {
    fn new(len: usize, huge: Huge) -> Result<Fresh, Errno> {
        let at = Os.reserve(len, BLOCK_SIZE)?.as_ptr();
        let fresh = Fresh { at, len };
        // SAFETY: the range was reserved a moment ago for this value alone.
        unsafe {
            Os.commit(at, len)?;
            // A kernel without huge pages refuses, and has small ones anyway.
            let _ = Os.set_huge(at, len, huge);
        }
        Ok(fresh)
    }

    /// Writes a byte every `step` bytes: nanoseconds for each.
    fn touch(&self, step: usize) -> f64 {
        let started = Instant::now();
        for offset in (0..self.len).step_by(step) {
            // SAFETY: within the range, which is this value's own and writable.
            unsafe { self.at.add(offset).write_volatile(1) };
        }
        started.elapsed().as_nanos() as f64 / (self.len / step) as f64
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: nobody uses the range any more. What may be left is empty addresses.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_measured() {
        let mut costs = Costs::default();
        costs.measure().expect("memory");
        let small = costs.small_ns.cost().expect("measured");
        assert!(small.low > 0.0 && small.low <= small.middle && small.middle <= small.high);
        assert!(costs.fill_gb_s.cost().expect("measured").low > 0.0);
        assert_eq!(Samples::default().cost(), None);
    }
}
