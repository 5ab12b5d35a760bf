//! Runs that grow: where, and in which pages.
//!
//! A program that fills a vector has it grow when it is full. So a run of the demand zone that is full when it grows
//! goes on in huge pages, as in the ready zone: it is advised, and each time that it grows its new part. Where it is
//! not full, its new part comes in small pages, and some of it may be in huge pages that nobody filled. So
//!
//! - it is full if each of eight places in its later half has content, and in its end of the length that it gains now.
//!   Where its end is not advised, all of it is about to be, and the places lie all over it. Residence tells nothing of
//!   huge pages, or of memory that was only read;
//! - no more is advised than the run has, and nothing while too much is held that is hardly touched. The new part
//!   counts there ([`super::held`]);
//! - huge pages may be dear ([`super::price`]): then it comes in small ones as well;
//! - a run on which the program has set attributes gets no advice;
//! - a run that is one mapping stays one, or two where it was not full: under a filter of the program's, one of several
//!   can't be moved, and a process has only so many.
//!
//! In the ready zone, growth counts in the same way. Where it would be too much, and the new size is not known to be
//! touched, the new part comes in small pages, and all that it gains later: one mapping more, however often it grows.

use super::classes::Density;
use super::held::PLACES;
use super::hints::WithHints;
use super::mapping::advised;
use super::price::Turn;
use super::relocate::is_alike;
use super::serve::whole_blocks;
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES};
use pumice_frames::frame::BlockState;
use pumice_frames::sys::mem::{Huge, Memory};

/// The way in which a run is about to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In huge pages: in the ready zone as all is there, in the demand zone where they are cheap.
    Huge,
    /// In the demand zone, within its last block, which is advised.
    Within,
    /// In small pages.
    Small,
}

impl Heap {
    /// The way in which a run is to grow to so many frames, in its zone.
    pub(super) fn way_to_grow(&self, zone: &PoolZone, run: PageRange, frames: usize) -> Way {
        let added = frames - run.frames;
        let is_long = run.frames >= BLOCK_FRAMES;
        if zone.kind == ZoneKind::Demand && (!is_long || self.is_quiet()) {
            return Way::Small;
        }
        let whole = whole_blocks(run);
        let has_grown = |block| zone.ledger().block(block).grown();
        let end_of_last = run.end().0.next_multiple_of(BLOCK_FRAMES);
        let is_end_tainted = is_end_tainted(zone, run.end());
        if zone.kind == ZoneKind::Demand && run.start.0 + frames <= end_of_last {
            let is_advised =
                has_grown(whole.end - 1) && is_end_tainted && is_alike(zone, end_of(run));
            return if is_advised { Way::Within } else { Way::Small };
        }
        self.look_at_held(added);
        if self.is_too_much_held() {
            self.look_at_own(zone, run);
        }
        let may_hold =
            !self.is_too_much_held() && (added <= run.frames || self.may_hold_unseen(added));
        if zone.kind == ZoneKind::Ready {
            let is_small = is_end_tainted || !whole.is_empty() && has_grown(whole.end - 1);
            let is_known = self.classes.density(frames) == Density::Dense;
            let is_huge = !is_small && (is_known || may_hold);
            // Without calls there is no advice.
            return if is_huge || self.is_quiet() { Way::Huge } else { Way::Small };
        }
        let may_go_on = may_hold && added <= run.frames && is_alike(zone, run);
        let later = if has_grown(whole.end - 1) { run.frames / 2 } else { run.frames };
        let is_full = |frames: usize| {
            let last = PageRange { start: Pfn(run.end().0 - frames), frames };
            self.written_eighths(zone, last) == Some(PLACES)
        };
        if may_go_on && is_full(added) && (later <= added || is_full(later)) {
            Way::Huge
        } else {
            Way::Small
        }
    }

    /// A run has grown in this way, where it stood or not; its first frames hold what they held.
    pub(super) fn has_grown(&self, zone: &PoolZone, run: PageRange, held: usize, way: Way) {
        let end = run.start.0 + held;
        let new = PageRange { start: Pfn(end), frames: run.frames - held };
        let whole = whole_blocks(PageRange { start: run.start, frames: held });
        let is_end_advised = !whole.is_empty() && zone.ledger().block(whole.end - 1).grown();
        match (zone.kind, way) {
            (ZoneKind::Ready, Way::Huge | Way::Within) => self.grow_held(zone, run, held),
            (ZoneKind::Ready, Way::Small) => {
                // The block that the old end lies in stays as it is, unless its part is small already.
                let next = end.next_multiple_of(BLOCK_FRAMES).min(run.end().0);
                let start = if is_end_tainted(zone, Pfn(end)) { end } else { next };
                let small = PageRange { start: Pfn(start), frames: run.end().0 - start };
                if is_alike_behind(zone, run, small) {
                    self.advise(zone, small, Huge::No);
                }
            }
            (ZoneKind::Demand, Way::Within) => self.advise(zone, new, Huge::Yes),
            (ZoneKind::Demand, Way::Huge) => {
                self.is_seen(zone, run);
                let first = end.div_ceil(BLOCK_FRAMES);
                let blocks = run.end().block().saturating_sub(first);
                // Less than a block has no price.
                let turn = (blocks > 0).then(|| self.price.turn(blocks));
                if turn.is_none_or(|turn| turn == Turn::TryHuge) {
                    self.advise(zone, if is_end_advised { new } else { run }, Huge::Yes);
                    self.grow_held(zone, run, held);
                } else {
                    self.go_on_in_small(zone, run, new);
                }
                if let Some(turn) = turn {
                    self.try_price(zone, first, turn);
                }
            }
            (ZoneKind::Demand, Way::Small) => self.go_on_in_small(zone, run, new),
        }
    }

    /// A run of the demand zone has grown, in small pages: without advice it does, but a mapping that was moved has
    /// grown with its advice.
    fn go_on_in_small(&self, zone: &PoolZone, run: PageRange, new: PageRange) {
        let word = |block| zone.ledger().block(block);
        // The mapping that grew is that of the end.
        let is_advised = whole_blocks(run).next_back().is_some_and(|block| word(block).grown());
        let last = run.end().0.div_ceil(BLOCK_FRAMES) - 1;
        if word(last).tainted() && is_advised && is_alike_behind(zone, run, new) {
            self.advise(zone, new, Huge::No);
        }
    }

    /// Advises the kernel, if the program has not just forbidden calls that `malloc` would not make. The blocks are
    /// tainted from then on, and *grown* where the advice is another one than their zone's.
    fn advise(&self, zone: &PoolZone, part: PageRange, huge: Huge) {
        if self.is_quiet() || part.frames == 0 {
            return;
        }
        zone.marks.prepare();
        let is_other = zone.kind.huge() != huge;
        for block in part.start.block()..part.end().0.div_ceil(BLOCK_FRAMES) {
            zone.ledger().update_word(block, |word| match word.state() {
                BlockState::Whole if is_other => {
                    Some(advised(word).with_hints(|it| it.with_grown(true)))
                }
                BlockState::Whole | BlockState::Parts => Some(advised(word)),
                _ => None,
            });
        }
        // Refused by a kernel without huge pages, and where there is no room for another mapping: it stays as it is.
        // SAFETY: advice on committed memory, which changes no content.
        let _ = unsafe { zone.memory().set_huge(zone.address(part.start), part.bytes(), huge) };
    }
}

/// Whether a run ends within a block that is tainted. A block in parts has no hint of its own that it has grown.
fn is_end_tainted(zone: &PoolZone, end: Pfn) -> bool {
    end.0 % BLOCK_FRAMES > 0 && zone.ledger().block(end.block()).tainted()
}

/// The part of a run in the block that it ends in.
fn end_of(run: PageRange) -> PageRange {
    let end = run.end().0;
    let start = run.start.0.max((end - 1) / BLOCK_FRAMES * BLOCK_FRAMES);
    PageRange { start: Pfn(start), frames: end - start }
}

/// Whether a new part of a run may be advised. All of the run was looked at when it came into its last block: a step
/// within that costs the same however long the run is.
fn is_alike_behind(zone: &PoolZone, run: PageRange, new: PageRange) -> bool {
    let end = end_of(run);
    is_alike(zone, if new.start > end.start { end } else { run })
}
