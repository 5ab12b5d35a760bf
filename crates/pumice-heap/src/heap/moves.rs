//! Pages that move from one run to another with the page tables.
//!
//! The kernel unmaps the target before it looks whether it can move (`mremap(2)`, `MREMAP_FIXED`), and if it then
//! fails, nothing says whether it did. Another thread's mapping may lie there by then. So nobody touches the target of
//! a move that failed again: it is *lost*, as its marks said from before the move on. The source is as it was.
//!
//! Of several mappings one is moved at most. (From Linux 6.17 on one call moves several. Where that fails half-way,
//! nothing says which have moved.)
//!
//! A run that grows is moved together with its new length, so that all of it is one mapping: a process may have only so
//! many. Its old place is the kernel's for a moment, until it is mapped again. If another thread's mapping has come
//! there, the old place is lost as well.

use core::ops::Range;

use super::taint::set_settled;
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::is_zero;
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{self, Huge, Memory};

/// A range of more mappings is not moved.
const MOST_MAPPINGS: usize = 8;
/// At least this share of a run is moved, or none of it: the rest is copied.
const LEAST_SHARE: usize = 2;
/// This share of a zone's addresses may be lost in the life of a process. From then on nothing is moved.
const LOST_SHARE: usize = 16;
/// Moves that fail in the life of a process. They fail again and again where no more mappings are allowed.
const MOST_FAILURES: usize = 16;

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The pages are at the target.
    Yes,
    /// Both are as they were.
    No,
    /// The source is as it was. The target is lost: its run stays in use.
    Lost,
}

/// A run that has moved and grown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grown {
    /// The first frame, counted from its start, of the mapping that goes on to its end.
    pub(super) from: usize,
    /// Whether its old place is free memory: zero, and without attributes. Else it is lost, or keeps attributes.
    pub(super) is_place_free: bool,
}

/// The moves so far. Relaxed: numbers that order nothing.
#[derive(Debug)]
pub(super) struct Moves {
    failures: AtomicUsize,
    lost_frames: AtomicUsize,
}

impl Moves {
    pub(super) fn new() -> Moves {
        Moves { failures: AtomicUsize::new(0), lost_frames: AtomicUsize::new(0) }
    }

    fn are_left(&self, zone: &PoolZone) -> bool {
        let most = zone.ledger().capacity() * BLOCK_FRAMES / LOST_SHARE;
        self.failures.load(Ordering::Relaxed) < MOST_FAILURES
            && self.lost_frames.load(Ordering::Relaxed) < most
    }

    fn lose(&self, frames: usize) {
        self.lost_frames.fetch_add(frames, Ordering::Relaxed);
    }

    fn fail(&self, frames: usize) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.lose(frames);
    }
}

impl Heap {
    /// Moves the pages of `len` bytes to the beginning of a run, which nobody has used. Their place stays mapped and
    /// reads as zeros.
    ///
    /// # Safety
    /// The caller owns both. They are committed, and the run reads as zeros.
    pub(super) unsafe fn move_pages(
        &self,
        from: *mut u8,
        len: usize,
        zone: &PoolZone,
        run: PageRange,
    ) -> Moved {
        let (to, frames) = (zone.address(run.start), run.start.0..run.end().0);
        // SAFETY: the caller owns it, and all addresses of a zone are mapped.
        let can_move = || unsafe { mem::is_one_mapping(from, len) };
        if !self.moves.are_left(zone) || !can_move() || !mark_lost(zone, frames.clone()) {
            return Moved::No;
        }
        // SAFETY: the caller owns both, and the first is one mapping.
        if unsafe { zone.memory().relocate(from, to, len) }.is_err() {
            self.moves.fail(frames.len());
            return Moved::Lost;
        }
        unmark_lost(zone, frames);
        Moved::Yes
    }

    /// Moves a run to a longer one, which nobody has used: the largest mapping of it, and the rest by a copy. `Err`
    /// says what became of the longer one where nothing was moved.
    ///
    /// # Safety
    /// The caller owns both, and they are committed.
    pub(super) unsafe fn move_run(
        &self,
        zone: &PoolZone,
        from: PageRange,
        to: PageRange,
    ) -> Result<Grown, Moved> {
        let mut lengths = [0; MOST_MAPPINGS];
        let source = zone.address(from.start);
        // SAFETY: the caller owns it, and all addresses of a zone are mapped.
        let count = unsafe { mem::mappings(source, from.bytes(), &mut lengths) };
        let piece = largest(&lengths[..count.ok_or(Moved::No)?]);
        if piece.len() < from.bytes() / LEAST_SHARE || !self.moves.are_left(zone) {
            return Err(Moved::No);
        }
        let new = to.start.0..to.end().0;
        let moved = frames_at(from.start.0, &piece);
        if !mark_lost(zone, new.clone()) {
            return Err(Moved::No);
        }
        if !mark_lost(zone, moved.clone()) {
            unmark_lost(zone, new);
            return Err(Moved::No);
        }
        let target = zone.address(to.start);
        let at = |base: *mut u8| base.wrapping_add(piece.start);
        // SAFETY: the caller owns both, and the piece is one mapping. Nobody needs the content of the target.
        let outcome = unsafe {
            zone.memory().move_and_grow(
                at(source),
                piece.len(),
                at(target),
                to.bytes() - piece.start,
            )
        };
        if outcome.is_err() {
            unmark_lost(zone, moved);
            self.moves.fail(new.len());
            return Err(Moved::Lost);
        }
        unmark_lost(zone, new);
        let mut is_place_free = self.map_again(zone, moved);
        for rest in [0..piece.start, piece.end..from.bytes()] {
            if rest.is_empty() {
                continue;
            }
            // SAFETY: both are the caller's. The target's pages before the piece are zero, as those of a run that
            // nobody has used, and those behind it are new.
            unsafe { copy_what_is_not_zero(source, target, rest.clone()) };
            let frames = frames_at(from.start.0, &rest);
            is_place_free &= zone.discard_frames(Pfn(frames.start), frames.len())
                && self.settle_taint(zone, frames);
        }
        Ok(Grown { from: piece.start / FRAME_SIZE, is_place_free })
    }

    /// Maps frames of a run that a move has left to the kernel. `false`: they are lost, and their marks stay.
    fn map_again(&self, zone: &PoolZone, frames: Range<usize>) -> bool {
        let (at, len) = (zone.address(Pfn(frames.start)), frames.len() * FRAME_SIZE);
        if mem::map_where_none(at, len).is_err() {
            self.moves.lose(frames.len());
            return false;
        }
        if zone.kind == ZoneKind::Ready {
            // SAFETY: it lies in the zone. A kernel without huge pages refuses it; small ones do.
            let _ = unsafe { zone.memory().set_huge(at, len, Huge::Yes) };
        }
        unmark_lost(zone, frames.clone());
        (frames.start.div_ceil(BLOCK_FRAMES)..frames.end / BLOCK_FRAMES)
            .for_each(|block| set_settled(zone, block));
        true
    }
}

/// The largest of some pieces that follow each other, as a range of bytes.
fn largest(lengths: &[usize]) -> Range<usize> {
    let mut start = 0;
    let pieces = lengths.iter().map(|length| {
        start += length;
        start - length..start
    });
    pieces.max_by_key(Range::len).unwrap_or(0..0)
}

/// The frames of a range of bytes behind a frame.
fn frames_at(first: usize, bytes: &Range<usize>) -> Range<usize> {
    first + bytes.start / FRAME_SIZE..first + bytes.end / FRAME_SIZE
}

/// # Safety
/// The caller owns both, and the second reads as zeros.
unsafe fn copy_what_is_not_zero(from: *const u8, to: *mut u8, bytes: Range<usize>) {
    for start in bytes.step_by(FRAME_SIZE) {
        // SAFETY: it lies in both.
        unsafe {
            if !is_zero(from.add(start), FRAME_SIZE) {
                to.add(start).copy_from_nonoverlapping(from.add(start), FRAME_SIZE);
            }
        }
    }
}

/// Marks the frames of a run as lost, in case they will be. `false` without memory for that.
pub(super) fn mark_lost(zone: &PoolZone, frames: Range<usize>) -> bool {
    let marks = &zone.marks;
    let is_marked = marks.lost.set(frames.clone()) && marks.frames.set(frames.clone());
    if !is_marked {
        marks.lost.clear(frames);
    }
    is_marked
}

/// Takes the marks off frames that were not a mapping's before.
fn unmark_lost(zone: &PoolZone, frames: Range<usize>) {
    zone.marks.lost.clear(frames.clone());
    zone.marks.frames.clear(frames);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_piece_is_known_by_where_it_lies() {
        assert_eq!(largest(&[3, 9, 2]), 3..12);
        assert_eq!(largest(&[5]), 0..5);
        assert_eq!(largest(&[]), 0..0);
    }
}
