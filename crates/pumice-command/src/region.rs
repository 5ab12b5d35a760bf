//! Memory to measure in: populated, in huge pages where the kernel has them, freed on drop.

use std::slice;

use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::sys::mem::{Huge, Memory, Os};
use rustix::io::Errno;

/// A populated range aligned to 2 MiB.
#[derive(Debug)]
pub struct Region {
    at: *mut u8,
    len: usize,
}

impl Region {
    /// Maps and populates `len` bytes, a multiple of 2 MiB.
    pub fn populate(len: usize) -> Result<Region, Errno> {
        let at = Os.reserve(len, BLOCK_SIZE)?.as_ptr();
        let region = Region { at, len };
        // SAFETY: the range was reserved a moment ago for this region alone.
        unsafe {
            Os.commit(at, len)?;
            // A kernel without huge pages refuses; the measurement stands all the same.
            let _ = Os.set_huge(at, len, Huge::Yes);
            Os.populate(at, len)?;
        }
        Ok(region)
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the region owns the range, which is readable and writable since `populate`.
        unsafe { slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Region {
    /// All of it, for good: where an engine may go on writing to it.
    pub fn leak(self) -> &'static mut [u8] {
        let region = std::mem::ManuallyDrop::new(self);
        // SAFETY: the region owned the range, and no longer gives it back.
        unsafe { slice::from_raw_parts_mut(region.at, region.len) }
    }

    /// Takes over a region that [`Region::leak`] gave.
    ///
    /// # Safety
    /// It is all of that, and nobody else uses it, nor will.
    pub unsafe fn retake(bytes: &'static mut [u8]) -> Region {
        Region { at: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the range any more. Empty addresses may be left.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}
