//! Pages that move from one run to another with the page tables.
//!
//! The kernel unmaps the target before it looks whether it can move (`mremap(2)`, `MREMAP_FIXED`), and if it then
//! fails, nothing says whether it did. Another thread's mapping may lie there by then. So nobody touches the target of
//! a move that failed again: it is *lost*, as its marks said from before the move on. The source is as it was.
//!
//! Several mappings are moved one by one. (From Linux 6.17 on one call moves several. Where that fails half-way,
//! nothing says which have moved.) Those that have moved when one fails are copied back: their places were left mapped.
//! The last one is moved together with the run's new length, so that they do not become more and more: a process may
//! have only so many. Its old place is the kernel's for a moment, until it is mapped again. If another thread's mapping
//! has come there, the old place is lost as well. A small part at the end, by which the run has grown in place, is
//! copied into the mapping before it.
//!
//! A mapping has its attributes wherever it grows, so a run on which the program has set some is not moved.

use core::ops::Range;

use super::taint::set_settled;
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::is_zero;
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{self, Huge, Memory};

/// A range of more mappings is not moved.
const MOST_MAPPINGS: usize = 32;
/// Mappings at the end of a run that are no more than this share of it are copied.
const COPIED_SHARE: usize = 16;
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

/// The old place of a run that has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Zero, and without attributes.
    Free,
    /// It is still mapped as it was.
    Kept,
    /// Some of it is the kernel's.
    Lost,
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

    /// Moves a run to a longer one, which nobody has used. `Err` says what became of the longer one where nothing was
    /// moved.
    ///
    /// # Safety
    /// The caller owns both, and they are committed.
    pub(super) unsafe fn move_run(
        &self,
        zone: &PoolZone,
        from: PageRange,
        to: PageRange,
    ) -> Result<Place, Moved> {
        let mut lengths = [0; MOST_MAPPINGS];
        let (source, target) = (zone.address(from.start), zone.address(to.start));
        // SAFETY: the caller owns it, and all addresses of a zone are mapped.
        let count = unsafe { mem::mappings(source, from.bytes(), &mut lengths) };
        let pieces = without_small_end(&lengths[..count.ok_or(Moved::No)?]);
        let moved: usize = pieces.iter().sum();
        let (Some(&last), true) = (pieces.last(), self.moves.are_left(zone)) else {
            return Err(Moved::No);
        };
        let new = to.start.0..to.end().0;
        let gap = frames_at(from.start, moved - last..moved);
        if !mark_lost(zone, new.clone()) {
            return Err(Moved::No);
        }
        if !mark_lost(zone, gap.clone()) {
            unmark_lost(zone, new);
            return Err(Moved::No);
        }
        let mut done = 0;
        for length in pieces {
            let (at, to_at) = (source.wrapping_add(done), target.wrapping_add(done));
            // SAFETY: the caller owns both, and the piece is one mapping. Nobody needs the content of the target.
            let outcome = unsafe {
                match done + length == moved {
                    true => zone.memory().move_and_grow(at, *length, to_at, to.bytes() - done),
                    false => zone.memory().relocate(at, to_at, *length),
                }
            };
            if outcome.is_err() {
                unmark_lost(zone, gap);
                self.moves.fail(new.len());
                // SAFETY: so much has moved, and has left its place mapped.
                unsafe { bring_back(zone, source, target, done) };
                return Err(Moved::Lost);
            }
            done += length;
        }
        unmark_lost(zone, new);
        let is_mapped = self.map_again(zone, gap);
        // SAFETY: both are the caller's. The target is new there.
        unsafe { copy_what_is_not_zero(source, target, moved..from.bytes()) };
        let rest = frames_at(from.start, moved..from.bytes());
        let is_empty = rest.is_empty() || zone.discard_frames(Pfn(rest.start), rest.len());
        let first = from.start.0;
        Ok(match is_mapped {
            false => Place::Lost,
            // Mappings that pages have left do not become one with those beside them.
            true if is_empty
                && self.reset_all(zone, first..first + (moved - last) / FRAME_SIZE) =>
            {
                match self.settle_taint(zone, rest) {
                    true => Place::Free,
                    false => Place::Kept,
                }
            }
            true => Place::Kept,
        })
    }

    /// Puts one fresh mapping in the place of several that pages have left.
    fn reset_all(&self, zone: &PoolZone, frames: Range<usize>) -> bool {
        let done = frames.is_empty() || zone.reset_frames(Pfn(frames.start), frames.len());
        if done {
            settle_blocks(zone, frames);
        }
        done
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
        settle_blocks(zone, frames);
        true
    }
}

/// Frames of a run that are freshly mapped: the whole blocks among them have no attribute.
fn settle_blocks(zone: &PoolZone, frames: Range<usize>) {
    let blocks = frames.start.div_ceil(BLOCK_FRAMES)..frames.end / BLOCK_FRAMES;
    blocks.for_each(|block| set_settled(zone, block));
}

/// Copies the moved pages back to where they were.
///
/// # Safety
/// The caller owns both.
#[cold]
unsafe fn bring_back(zone: &PoolZone, from: *mut u8, to: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: as the caller promises. Where the kernel refuses to drop them, the pages stay for nothing.
        unsafe {
            from.copy_from_nonoverlapping(to, len);
            let _ = zone.memory().discard(to, len);
        }
    }
}

/// Pieces that follow each other, but for those at the end that are small beside all of them.
fn without_small_end(lengths: &[usize]) -> &[usize] {
    let all: usize = lengths.iter().sum();
    let mut small = 0;
    let is_small = |length: &&usize| {
        small += **length;
        small <= all / COPIED_SHARE
    };
    let copied = lengths.iter().rev().take_while(is_small).count();
    &lengths[..lengths.len() - copied]
}

/// The frames of a range of bytes behind a frame.
fn frames_at(first: Pfn, bytes: Range<usize>) -> Range<usize> {
    first.0 + bytes.start / FRAME_SIZE..first.0 + bytes.end / FRAME_SIZE
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
    fn a_small_end_is_copied() {
        assert_eq!(without_small_end(&[100, 5, 1]), [100]);
        assert_eq!(without_small_end(&[100, 7]), [100, 7]);
        assert_eq!(without_small_end(&[100, 7, 2]), [100, 7]);
        assert_eq!(without_small_end(&[5]), [5]);
    }
}
