//! Zeros from memory of the demand zone in which pages stayed.
//!
//! To clear all of it would have all of it faulted in, where little may be touched. To drop it has what is touched
//! faulted in again. So the pages that are there are cleared, and the others are given back: they may be in swap.
//!
//! If nobody touches the pages again, that work is in vain each time. So a part of them is dropped now and then, where
//! the request's class is not known to touch enough. Until then, to clear them has cost about as much as to fault them
//! in once: at most twice the cost of the better of the two, whatever the program does (the ski rental problem).

use core::ops::Range;
use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{self, Memory};

use super::classes::scattered;
use super::serve::{CLEARED_PER_CALL, CLEARED_PER_FAULT};
use super::{Heap, PoolZone};

/// Pages are cleared so many times, on average, before they are dropped: about as often as takes the time of a fault.
const CLEARED_BEFORE_DROP: u64 = 16;
/// Frames that could be cleared in the time that it takes to give back pages where there are none.
const CLEARED_PER_GAP: usize = 8;

/// Parts of runs that were cleared or dropped, so far. Relaxed: it orders nothing.
#[derive(Debug)]
pub(super) struct Cleared(AtomicUsize);

impl Cleared {
    pub(super) fn new() -> Cleared {
        Cleared(AtomicUsize::new(0))
    }

    /// Whether it is time to drop one.
    fn is_over(&self) -> bool {
        let parts = self.0.fetch_add(1, Ordering::Relaxed);
        scattered(parts as u64) % CLEARED_BEFORE_DROP == 0
    }
}

impl Heap {
    /// Has a part of a run read as zeros that a request of this many frames was just given. Returns the bytes that it
    /// cleared.
    pub(super) fn clear_retained(
        &'static self,
        zone: &PoolZone,
        at: *mut u8,
        len: usize,
        frames: usize,
    ) -> usize {
        let is_cheaper = self.classes.is_clearing_cheaper(frames);
        let is_over = || !is_cheaper && self.cleared.is_over();
        let piece = |done: usize| {
            let frames = (len - done).min(BLOCK_SIZE) / FRAME_SIZE;
            self.clear_piece(zone, at.wrapping_add(done), frames, is_over)
        };
        (0..len).step_by(BLOCK_SIZE).map(piece).sum()
    }

    /// The same of as many frames as a block has, or fewer.
    fn clear_piece(
        &'static self,
        zone: &PoolZone,
        at: *mut u8,
        frames: usize,
        is_over: impl Fn() -> bool,
    ) -> usize {
        let part = |frames: &Range<usize>| {
            (at.wrapping_add(frames.start * FRAME_SIZE), frames.len() * FRAME_SIZE)
        };
        let clear = |frames: Range<usize>| {
            let (at, len) = part(&frames);
            // SAFETY: it was just given to this request.
            unsafe { self.scrubber.clear(self, at, len, zone.node) };
            len
        };
        let discard = |frames: Range<usize>| {
            let (at, len) = part(&frames);
            // SAFETY: as above.
            unsafe { zone.memory().discard(at, len) }.is_ok()
        };
        let mut seen = [0; BLOCK_FRAMES];
        let Ok(pages) = mem::residence(at, frames * FRAME_SIZE, &mut seen) else {
            return clear(0..frames);
        };
        let is_there = |page: &u8| page & 1 != 0;
        let alike = || pages.chunk_by(|a, b| is_there(a) == is_there(b));
        let there = pages.iter().filter(|page| is_there(page)).count();
        let gaps = alike().filter(|pages| !is_there(&pages[0])).count();
        // The half of them may be touched.
        let faults = there * CLEARED_PER_FAULT / 2;
        let is_dear = there + gaps * CLEARED_PER_GAP > CLEARED_PER_CALL + faults;
        if (is_dear || there > 0 && is_over()) && discard(0..frames) {
            return 0;
        }
        let (mut start, mut cleared) = (0, 0);
        for pages in alike() {
            let frames = start..start + pages.len();
            start = frames.end;
            if is_there(&pages[0]) || !discard(frames.clone()) {
                cleared += clear(frames);
            }
        }
        cleared
    }
}
