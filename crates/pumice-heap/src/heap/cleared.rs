//! Zeros from memory of the demand zone in which pages stayed.
//!
//! To clear all of it would have all of it faulted in, where little may be touched. To drop it has what is touched
//! faulted in again. Where requests of the size touch much on average, the pages that are there are cleared, and the
//! others are given back: they may be in swap. Pages that lie here and there would take a call for each gap between
//! them. Then all of it goes by one call, as it does where requests touch little.

use core::ops::Range;
use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sys::mem::{self, Memory};

use super::serve::CLEARED_PER_CALL;
use super::{Heap, PoolZone};

/// There is a gap for so many pages that are there at most.
const THERE_PER_GAP: usize = 4;

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
        let is_cheap = self.classes.is_clearing_cheaper(frames);
        let (mut done, mut cleared) = (0, 0);
        while is_cheap && done < len {
            let piece = (len - done).min(BLOCK_SIZE);
            match self.clear_piece(zone, at.wrapping_add(done), piece / FRAME_SIZE) {
                Some(bytes) => cleared += bytes,
                None => break,
            }
            done += piece;
        }
        let (rest, len) = (at.wrapping_add(done), len - done);
        // SAFETY: it was just given to this request.
        let drop = || unsafe { zone.memory().discard(rest, len) }.is_ok();
        if len > 0 && !(len / FRAME_SIZE > CLEARED_PER_CALL && drop()) {
            // SAFETY: as above.
            unsafe { self.scrubber.clear(self, rest, len, zone.node) };
            cleared += len;
        }
        cleared
    }

    /// The same of as many frames as a block has, or fewer. `None`: its pages lie here and there, or it is not known
    /// where.
    fn clear_piece(&'static self, zone: &PoolZone, at: *mut u8, frames: usize) -> Option<usize> {
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
        let pages = mem::residence(at, frames * FRAME_SIZE, &mut seen).ok()?;
        let is_there = |page: &u8| page & 1 != 0;
        let alike = || pages.chunk_by(|a, b| is_there(a) == is_there(b));
        let there = pages.iter().filter(|page| is_there(page)).count();
        let gaps = alike().filter(|pages| !is_there(&pages[0])).count();
        if there < gaps * THERE_PER_GAP {
            return None;
        }
        let (mut start, mut cleared) = (0, 0);
        for pages in alike() {
            let frames = start..start + pages.len();
            start = frames.end;
            if is_there(&pages[0]) || !discard(frames.clone()) {
                cleared += clear(frames);
            }
        }
        Some(cleared)
    }
}
