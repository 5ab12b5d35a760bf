//! `/proc/self/pagemap`: the pages of the process that hold something (Documentation/admin-guide/mm/pagemap.rst).
//!
//! `mincore` does not tell a page that was never written from one in swap; this does.

use core::array;
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};

use super::file;
use crate::addr::FRAME_SIZE;

/// The page is in memory (bit 63) or swapped out (bit 62), which a page that is about to be moved seems to be as well.
const HOLDS_SOMETHING: u64 = 0b11 << 62;
/// Pages of which the kernel is asked at a time.
const ASKED: usize = 64;

/// The file, open.
#[derive(Debug)]
pub struct Pagemap(OwnedFd);

impl Pagemap {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's: there may be no `/proc`, or no room for a descriptor.
    pub fn open() -> Result<Pagemap, Errno> {
        file::open_read(c"/proc/self/pagemap").map(Pagemap)
    }

    /// Tells of each page of a range whether it holds nothing: it was never written, or was discarded. That is so for
    /// private anonymous memory alone.
    ///
    /// # Errors
    /// The kernel's, after some of them. Then nothing is known of the others.
    pub fn empty_pages(
        &self,
        at: *const u8,
        len: usize,
        mut tell: impl FnMut(usize, bool),
    ) -> Result<(), Errno> {
        let (first, pages) = (at as usize / FRAME_SIZE, len.div_ceil(FRAME_SIZE));
        let mut bytes = [0u8; ASKED * size_of::<u64>()];
        for start in (0..pages).step_by(ASKED) {
            let wanted = &mut bytes[..(pages - start).min(ASKED) * size_of::<u64>()];
            let offset = (first + start) * size_of::<u64>();
            // It is read whole, in one call: no signal comes between its pages.
            if io::pread(&self.0, &mut *wanted, offset as u64)? != wanted.len() {
                return Err(Errno::IO);
            }
            for (nth, entry) in wanted.chunks_exact(size_of::<u64>()).enumerate() {
                let entry = u64::from_ne_bytes(array::from_fn(|byte| entry[byte]));
                tell(start + nth, entry & HOLDS_SOMETHING == 0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem::{Memory, Os};

    #[test]
    fn pages_that_were_written_hold_something_until_they_are_discarded() {
        let pages = 3 * ASKED / 2;
        let at = crate::sys::mem::map_table(pages * FRAME_SIZE).expect("memory").as_ptr();
        let empty = || {
            let mut empty = vec![false; pages];
            let map = Pagemap::open().expect("there is /proc");
            map.empty_pages(at, pages * FRAME_SIZE, |nth, is| empty[nth] = is).expect("told");
            empty
        };
        assert!(empty().iter().all(|&is| is));
        for nth in (0..pages).step_by(7) {
            // SAFETY: it lies in the mapping.
            unsafe { at.add(nth * FRAME_SIZE).write(1) };
        }
        assert!(empty().iter().enumerate().all(|(nth, &is)| is == (nth % 7 != 0)));
        // SAFETY: the test's own.
        unsafe { Os.discard(at, pages * FRAME_SIZE).expect("discarded") };
        assert!(empty().iter().all(|&is| is));
    }
}
