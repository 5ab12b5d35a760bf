//! The costs on this machine of a fault and of giving the page back, for zeroing, for a touch of memory that is
//! there, and for finding out where it is.

use std::time::Instant;

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sys::mem::{Huge, Memory, Os};
use pumice_frames::sys::thread::cpu_time_ns;
use rustix::io::Errno;
use serde::Serialize;

use crate::region::Region;
use crate::statistics::median;

/// Memory of one measurement.
const SMALL_BYTES: usize = 16 << 20;
const HUGE_BYTES: usize = 8 << 20;
const FILL_BYTES: usize = 64 << 20;
/// Far more than translations are kept for in small pages, and less than in huge ones.
const CHASE_BYTES: usize = 32 << 20;
const CHASE_STEPS: usize = 50_000;
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

/// The costs that were measured on this machine.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Nanoseconds of a zero-fill fault that brings a small page, and of giving that back.
    pub small_ns: Samples,
    /// Nanoseconds of one that brings a huge page; none where there are no huge pages.
    pub huge_ns: Samples,
    /// The same for a program that then writes all of the page, less the time by which that takes longer in memory that
    /// is there already: a page that the kernel zeroed a moment ago is still in the cache.
    pub small_written_ns: Samples,
    /// As `small_written_ns`, of huge pages.
    pub huge_written_ns: Samples,
    /// Nanoseconds from one line of memory to the next, which it names, at random, in small pages...
    pub small_step_ns: Samples,
    /// ... and in huge ones.
    pub huge_step_ns: Samples,
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
            let fault_ns = small.touch(FRAME_SIZE);
            self.touch_ns.0.push(small.touch(FRAME_SIZE));
            self.small_ns.0.push(fault_ns + small.give_back(FRAME_SIZE));
            let small = Fresh::new(SMALL_BYTES, Huge::No)?;
            self.small_written_ns.0.push(small.write_twice(FRAME_SIZE));
            if has_huge_pages() {
                let huge = Fresh::new(HUGE_BYTES, Huge::Yes)?;
                let fault_ns = huge.touch(BLOCK_SIZE);
                self.huge_ns.0.push(fault_ns + huge.give_back(BLOCK_SIZE));
                let huge = Fresh::new(HUGE_BYTES, Huge::Yes)?;
                self.huge_written_ns.0.push(huge.write_twice(BLOCK_SIZE));
            }
        }
        Ok(())
    }

    /// Measures the time for address translation that huge pages save.
    ///
    /// # Errors
    /// As [`Costs::measure`].
    pub fn measure_translation(&mut self) -> Result<(), Errno> {
        if !has_huge_pages() {
            return Ok(());
        }
        let small = Chase::new(Huge::No)?;
        let huge = Chase::new(Huge::Yes)?;
        for _ in 0..ROUNDS {
            self.small_step_ns.0.push(small.run());
            self.huge_step_ns.0.push(huge.run());
        }
        Ok(())
    }
}

/// Touches so much fresh memory, in huge pages where there are some, and gives it back: a virtual machine's host has
/// brought it then.
///
/// # Errors
/// As [`Costs::measure`].
pub fn bring(bytes: usize) -> Result<(), Errno> {
    Fresh::new(bytes, Huge::Yes)?.touch(FRAME_SIZE);
    Ok(())
}

/// Processor time of a first touch of so much fresh memory in small pages: nanoseconds a page. The time that a virtual
/// machine's host takes to bring memory counts, that of other programs does not.
///
/// # Errors
/// As [`Costs::measure`].
pub fn first_touch_ns(bytes: usize) -> Result<f64, Errno> {
    let fresh = Fresh::new(bytes, Huge::No)?;
    let before_ns = cpu_time_ns();
    fresh.touch(FRAME_SIZE);
    Ok((cpu_time_ns() - before_ns) as f64 / (bytes / FRAME_SIZE) as f64)
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

impl Fresh {
    /// Writes all of it, once fresh and once more, and gives it back: how much longer the first time and the
    /// giving back took than the second, in nanoseconds for each of `step` bytes; not less than nothing.
    fn write_twice(self, step: usize) -> f64 {
        const LINE: usize = 64;
        let [fresh_ns, again_ns] =
            [self.touch(LINE), self.touch(LINE)].map(|line_ns| line_ns * (step / LINE) as f64);
        (fresh_ns + self.give_back(step) - again_ns).max(0.0)
    }

    /// Gives its pages back: nanoseconds for each of `step` bytes.
    fn give_back(self, step: usize) -> f64 {
        let len = self.len;
        let started = Instant::now();
        drop(self);
        started.elapsed().as_nanos() as f64 / (len / step) as f64
    }
}

/// Lines of memory each of which names the next one: one round through a line of every page, in an order that
/// nothing can foresee.
struct Chase(Fresh);

impl Chase {
    fn new(huge: Huge) -> Result<Chase, Errno> {
        const PAGES: usize = CHASE_BYTES / FRAME_SIZE;
        let memory = Fresh::new(CHASE_BYTES, huge)?;
        let mut order: Vec<usize> = (0..PAGES).collect();
        let mut random = 88_172_645_463_325_252_u64;
        for end in (1..PAGES).rev() {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            order.swap(end, (random % (end as u64 + 1)) as usize);
        }
        // Not the same line of each page: those share a set of the cache.
        let offset = |page: usize| page * FRAME_SIZE + page * 64 % FRAME_SIZE;
        for (index, &page) in order.iter().enumerate() {
            let next = offset(order[(index + 1) % PAGES]);
            // SAFETY: within the range, which is this value's own, and aligned.
            unsafe { memory.at.add(offset(page)).cast::<usize>().write_volatile(next) };
        }
        Ok(Chase(memory))
    }

    /// Nanoseconds a step.
    fn run(&self) -> f64 {
        let mut offset = 0;
        let started = Instant::now();
        for _ in 0..CHASE_STEPS {
            // SAFETY: offsets of the range are all that was written there, and the first line of page 0 is
            // one of them.
            offset = unsafe { self.0.at.add(offset).cast::<usize>().read_volatile() };
        }
        std::hint::black_box(offset);
        started.elapsed().as_nanos() as f64 / CHASE_STEPS as f64
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: nobody uses the range any more. Empty addresses may be left.
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
        costs.measure_translation().expect("memory");
        let step = costs.small_step_ns.cost();
        assert!(step.is_none_or(|step| step.low > 0.0) && step.is_some() == has_huge_pages());
        assert_eq!(Samples::default().cost(), None);
        assert_eq!(bring(HUGE_BYTES), Ok(()));
        assert!(first_touch_ns(SMALL_BYTES).expect("memory") > 0.0);
    }
}
