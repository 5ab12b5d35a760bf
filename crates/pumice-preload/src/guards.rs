//! Guards (`MADV_GUARD_INSTALL`, since Linux 6.13): pages that fault on any touch. They are in the page tables
//! alone, and move with them. So a copy asks the kernel about each page first, and guards the new place where the old
//! one is guarded.

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sync::atomic::{AtomicBool, Ordering};
use pumice_frames::sys::raw;
use pumice_heap::heap::{Effect, Heap};
use rustix::io::Errno;

use linux_raw_sys::general as linux;

use crate::parts::{each_part, AtHole};
use crate::state;

/// Pages about which the kernel is asked at a time.
const ASKED_PAGES: usize = 512;

/// Whether the program has ever asked for a guard. Relaxed, as below: the thread that copies has been told of it.
static WERE_ASKED_FOR: AtomicBool = AtomicBool::new(false);
/// Whether it has when the heap had retired, which takes no notes: any allocation may have one.
static MAY_BE_ANYWHERE: AtomicBool = AtomicBool::new(false);

/// The program asks for one.
pub(crate) fn note() {
    WERE_ASKED_FOR.store(true, Ordering::Relaxed);
    if state::published().is_some_and(Heap::is_retired) {
        MAY_BE_ANYWHERE.store(true, Ordering::Relaxed);
    }
}

/// Whether any memory of the program's may have one.
pub(crate) fn may_be_any() -> bool {
    WERE_ASKED_FOR.load(Ordering::Relaxed)
}

/// Whether an allocation of the heap's may have one.
pub(crate) fn may_be_in(heap: &Heap, at: usize, len: usize) -> bool {
    let is_noted = || WERE_ASKED_FOR.load(Ordering::Relaxed) && heap.is_tainted(at, len);
    MAY_BE_ANYWHERE.load(Ordering::Relaxed) || is_noted()
}

/// Copies an allocation of the heap's that may have guards.
///
/// # Safety
/// As [`Heap::copy_sparse`].
pub(crate) unsafe fn copy(heap: &Heap, at: usize, to: usize, len: usize) {
    let copy = |piece: usize, len: usize| {
        // SAFETY: the piece lies in both, and can be read.
        unsafe { heap.copy_sparse((at + piece) as *const u8, (to + piece) as *mut u8, len) };
    };
    for piece in (0..len).step_by(ASKED_PAGES * FRAME_SIZE) {
        let end = len.min(piece + ASKED_PAGES * FRAME_SIZE);
        if !has_any(at + piece, end - piece) {
            copy(piece, end - piece);
            continue;
        }
        for page in (piece..end).step_by(FRAME_SIZE) {
            if !carry(at + page, to + page) {
                copy(page, FRAME_SIZE.min(end - page));
            }
        }
    }
}

/// Whether a page is guarded. Then the place where it is to be copied to is, too: a place that is not a page can't be.
pub(crate) fn carry(page: usize, to: usize) -> bool {
    let is_guarded = WERE_ASKED_FOR.load(Ordering::Relaxed) && has_any(page, FRAME_SIZE);
    if is_guarded {
        let args = [to, FRAME_SIZE, linux::MADV_GUARD_INSTALL as usize, 0, 0, 0];
        // SAFETY: the new place is the caller's, and holds nothing.
        let _ = unsafe { each_part(linux::__NR_madvise, args, Some(Effect::Taints), AtHole::GoOn) };
    }
    is_guarded
}

/// Whether there is a guard in a range, by a fault that the kernel takes upon itself.
fn has_any(at: usize, len: usize) -> bool {
    let args = [at, len, linux::MADV_POPULATE_READ as usize, 0, 0, 0];
    // SAFETY: it reads.
    unsafe { raw::syscall(linux::__NR_madvise, args) == Err(Errno::FAULT) }
}
