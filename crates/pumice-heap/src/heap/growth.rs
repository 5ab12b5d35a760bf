//! Runs that grow: where, and in which pages.
//!
//! A program that fills a vector has it grow when it is full. So a run of the demand zone that is full when it grows
//! goes on in huge pages, as in the ready zone: it is advised, and each time that it grows its new part. It comes in
//! small pages for good from when it is not full. By then some of it may be in huge pages that nobody filled. So
//!
//! - it is full if each of eight places in what it gained last has content. Residence tells nothing of huge pages, or
//!   of memory that was only read;
//! - no more is advised than the run has, and nothing while too much is held that is hardly touched. Advised memory
//!   counts there ([`super::held`]);
//! - huge pages may be dear ([`super::price`]): from then on it comes in small ones as well;
//! - a run on which the program has set attributes stays as it is;
//! - a run that is one mapping stays one, or two where it was not full: under a filter of the program's, one of several
//!   can't be moved, and a process has only so many.
//!
//! In the ready zone, growth counts in the same way. Where it would be too much, and the new size is not known to be
//! touched, the run does not grow there.

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
    /// As all of the ready zone does.
    Ready,
    /// It is full: in huge pages, where they are cheap.
    Full,
    /// Within its last block, which is advised.
    Within,
    /// In small pages.
    Small,
}

impl Heap {
    /// The way in which a run is to grow to so many frames; `None`: not in its zone.
    pub(super) fn way_to_grow(
        &self,
        zone: &PoolZone,
        run: PageRange,
        frames: usize,
    ) -> Option<Way> {
        let added = frames - run.frames;
        let is_long = run.frames >= BLOCK_FRAMES;
        if zone.kind == ZoneKind::Demand && (!is_long || self.is_quiet()) {
            return Some(Way::Small);
        }
        let whole = whole_blocks(run);
        let end = run.start.0 + frames;
        let blocks = (end / BLOCK_FRAMES).saturating_sub(run.end().0.div_ceil(BLOCK_FRAMES));
        let has_grown = |block| zone.ledger().block(block).grown();
        if zone.kind == ZoneKind::Demand && blocks == 0 {
            return Some(if has_grown(whole.end - 1) { Way::Within } else { Way::Small });
        }
        self.look_at_held(added);
        if self.is_too_much_held() {
            self.look_at_own(zone, run);
        }
        let may_hold =
            !self.is_too_much_held() && (added <= run.frames || self.may_hold_unseen(added));
        if zone.kind == ZoneKind::Ready {
            let is_known = self.classes.density(frames) == Density::Dense;
            return (is_known || may_hold).then_some(Way::Ready);
        }
        let was_full = !has_grown(whole.start) || has_grown(whole.end - 1);
        let gained = added.min(run.frames);
        let last = PageRange { start: Pfn(run.end().0 - gained), frames: gained };
        let is_full = || self.written_eighths(zone, last) == PLACES;
        let may_go_on = may_hold && added <= run.frames && was_full && is_alike(zone, run);
        Some(if may_go_on && is_full() { Way::Full } else { Way::Small })
    }

    /// A run has grown in this way, where it stood or not; its first frames hold what they held.
    pub(super) fn has_grown(&self, zone: &PoolZone, run: PageRange, held: usize, way: Way) {
        let end = run.start.0 + held;
        let new = PageRange { start: Pfn(end), frames: run.frames - held };
        let had_grown =
            run.frames >= BLOCK_FRAMES && zone.ledger().block(run.start.block()).grown();
        let first = end.div_ceil(BLOCK_FRAMES);
        match way {
            Way::Ready => self.grow_held(zone, run, held),
            Way::Within => self.advise(zone, new, Huge::Yes),
            Way::Full => {
                self.is_seen(zone, run);
                let turn = self.price.turn(run.end().block() - first);
                if turn == Turn::TryHuge {
                    self.advise(zone, if had_grown { new } else { run }, Huge::Yes);
                    self.grow_held(zone, run, held);
                } else if had_grown {
                    self.advise(zone, new, Huge::No);
                }
                self.try_price(zone, first, turn);
            }
            // A mapping that was moved has its advice wherever it grows.
            Way::Small if had_grown => self.advise(zone, new, Huge::No),
            Way::Small => {}
        }
    }

    /// Advises the kernel, if the program has not just forbidden calls that `malloc` would not make.
    fn advise(&self, zone: &PoolZone, part: PageRange, huge: Huge) {
        if self.is_quiet() {
            return;
        }
        if huge == Huge::Yes {
            zone.marks.prepare();
            let blocks = part.start.block()..part.end().0.div_ceil(BLOCK_FRAMES);
            for block in blocks {
                zone.ledger().update_word(block, |word| match word.state() {
                    BlockState::Whole => Some(advised(word).with_hints(|it| it.with_grown(true))),
                    BlockState::Parts => Some(advised(word)),
                    _ => None,
                });
            }
        }
        // Refused by a kernel without huge pages, and where there is no room for another mapping: it stays as it is.
        // SAFETY: advice on committed memory, which changes no content.
        let _ = unsafe { zone.memory().set_huge(zone.address(part.start), part.bytes(), huge) };
    }
}
