//! The kernel's own way: hand the pages back and have zeroed ones populated in their place.
//!
//! The baseline that every other engine is held against, and the last resort: it needs no processor
//! feature and no device. A batch is two calls where the kernel takes a vector of ranges for the
//! calling process itself (`process_madvise`, Linux 6.14), and two calls a range where it does not.
//! Each call takes the lock of the address space, and zeroing is done on the caller's time.
//!
//! The parts of a piece in frames that are not all its own, at its start and end, are cleared by plain stores.

use rustix::io::Errno;
use rustix::mm::{madvise, Advice};

use super::cut::Cut;
use super::engine::{Engine, Lost, Piece, PieceState};
use crate::addr::FRAME_SIZE;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::mem::{advise_ranges, Range};

/// Ranges in one call.
const BATCH: usize = 64;

/// See the module's top.
#[derive(Debug)]
pub struct Kernel {
    /// Whether the kernel has been seen to refuse vectors. Relaxed: it spares a call.
    is_one_by_one: AtomicBool,
}

impl Kernel {
    /// The kernel that this program runs on.
    ///
    /// # Safety
    /// All memory that it is given is private and anonymous: pages of a file would come back with the file's content.
    pub unsafe fn new() -> Kernel {
        Kernel { is_one_by_one: AtomicBool::new(false) }
    }

    /// The same without vectors.
    ///
    /// # Safety
    /// As [`Kernel::new`].
    pub unsafe fn one_by_one() -> Kernel {
        Kernel { is_one_by_one: AtomicBool::new(true) }
    }

    /// Gives advice on all ranges; how many it was taken for, from the first on.
    ///
    /// # Safety
    /// The ranges are whole frames of the caller's, whose content may go.
    unsafe fn advise(&self, ranges: &[Range], advice: Advice) -> usize {
        let mut done = 0;
        if ranges.len() > 1 && !self.is_one_by_one.load(Ordering::Relaxed) {
            // SAFETY: as the caller promises.
            done = unsafe { advise_ranges(ranges, advice) }.unwrap_or(0);
        }
        while let Some(range) = ranges.get(done) {
            // SAFETY: as the caller promises.
            let advised = unsafe { madvise(range.at.cast(), range.len, advice) };
            if advised.is_err_and(|errno| errno != Errno::INTR) {
                break;
            }
            if done == 0 && ranges.len() > 1 && advised.is_ok() {
                // This call took a range that the vector's call refused.
                self.is_one_by_one.store(true, Ordering::Relaxed);
            }
            done += usize::from(advised.is_ok());
        }
        done
    }

    /// # Safety
    /// As [`Engine::submit`], for at most [`BATCH`] pieces that wait.
    unsafe fn clear_batch(&self, pieces: &mut [Piece]) {
        let mut ranges = [Range::EMPTY; BATCH];
        let mut count = 0;
        for piece in pieces.iter().filter(|piece| piece.state() == PieceState::Waiting) {
            let (at, len) = piece.remaining();
            let cut = Cut::new(at, len, FRAME_SIZE);
            if cut.body > 0 {
                ranges[count] = Range { at: at.wrapping_add(cut.head), len: cut.body };
                count += 1;
            }
        }
        let mut from = 0;
        // One that is refused (locked memory is) keeps the others behind it from nothing.
        let mut is_done = [false; BATCH];
        while from < count {
            // SAFETY: whole frames within the pieces, which are the caller's.
            let done = unsafe { self.advise(&ranges[from..count], Advice::LinuxDontNeed) };
            // They read as zeros already, but callers that are told so count on their being there, too.
            // SAFETY: as above.
            let there =
                unsafe { self.advise(&ranges[from..from + done], Advice::LinuxPopulateWrite) };
            is_done[from..from + there].fill(true);
            from += done + 1;
        }
        let mut is_done = is_done.into_iter();
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
            let (at, len) = piece.remaining();
            let cut = Cut::new(at, len, FRAME_SIZE);
            piece.take(0);
            // SAFETY: the ends lie within the piece; and private anonymous memory that was handed
            // back reads as zeros (madvise(2)).
            unsafe {
                at.write_bytes(0, cut.head);
                if cut.body > 0 && is_done.next() != Some(true) {
                    piece.settle_faulted(cut.head);
                    continue;
                }
                at.add(cut.head + cut.body).write_bytes(0, cut.tail);
                piece.settle_zeroed();
            }
        }
    }
}

// SAFETY: pieces are settled as zeroed once the kernel took their frames, and their ends were
// cleared; nothing goes on after.
unsafe impl Engine for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        for batch in pieces.chunks_mut(BATCH) {
            // SAFETY: as the caller promises.
            unsafe { self.clear_batch(batch) };
        }
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> Result<(), Lost> {
        Ok(())
    }
}
