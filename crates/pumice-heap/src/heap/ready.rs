//! Memory that stays: the steps that the heap takes in the ready zones only.
//!
//! Blocks of a ready zone carry advice to use huge pages, and keep their pages when they are freed. scrubd zeroes them
//! ([`super::source`]). All ready zones together have a limit ([`super::footprint`]).

use super::hints::WithHints;
use super::price::{fault_in_small, TOUCHED_AHEAD};
use super::retain::Rest;
use super::serve::{whole_blocks, Pages, RunEnd};
use super::{Content, Heap, PoolZone, ZoneKind};
use crate::scrub::{FOR_POPULATING, FOR_SCRUBBING};
use crate::stats::Event;
use pumice_frames::addr::{PageRange, BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{BlockState, BlockWord, Run};
use pumice_frames::sys::mem::{Huge, Memory};

impl Heap {
    /// The blocks that suit a request best: resident ones. Waits a moment for blocks that helpers work on.
    pub(super) fn get_ready(
        &self,
        zone: &PoolZone,
        content: Content,
        get: impl Fn(&dyn Fn(BlockWord) -> bool) -> Option<Run>,
    ) -> Option<Run> {
        let ledger = zone.ledger();
        let there = |word: BlockWord| word.ready() && !ledger.is_stale(word);
        let suits = |word: BlockWord| there(word) && word.zeroed() == (content == Content::Zero);
        let get_ready = || get(&suits).or_else(|| get(&there));
        let get_best = || get_ready().or_else(|| get(&|_| true));
        let is_claimed = || ledger.has_more_claims_than(self.scrubber.claims_away());
        let patience = if self.ahead.left() > 0 { FOR_POPULATING } else { FOR_SCRUBBING };
        let wait = || self.scrubber.wait_for_claims(patience, is_claimed, get_best);
        get_ready().or_else(|| is_claimed().then(wait)?)
    }

    /// Gets a run of resident blocks of any content. A request of which nothing is known may touch
    /// little: it gets memory that is resident in any case, and no other.
    pub(super) fn get_there(
        &self,
        node: usize,
        blocks: usize,
        tail: usize,
        align: usize,
    ) -> Option<(&PoolZone, Run)> {
        let zone = self.zones.local(node, ZoneKind::Ready);
        let ledger = zone.ledger();
        let there = |word: BlockWord| word.ready() && !ledger.is_stale(word);
        let get = || ledger.get_blocks(blocks, tail, align, there);
        let run = (ledger.held_blocks() >= blocks).then(get)??;
        Some((zone, run))
    }

    /// Arranges to see how much of a run is touched, by one block of it.
    pub(super) fn begin_sample_in_ready(&self, zone: &PoolZone, run: &Run) {
        let whole = whole_blocks(run.range);
        // Any block will do that is not always the same one.
        let pick = whole.start + (self.slot().get(Event::Requests) as usize * 7 + 3) % whole.len();
        // A mapping that had a page before it was split is one again when the advice is as it was: `retire`.
        let is_small =
            fault_in_small(zone, pick..pick + 1, TOUCHED_AHEAD) && set_huge(zone, pick, Huge::No);
        if is_small && !zone.discard(pick..pick + 1) {
            set_huge(zone, pick, Huge::Yes);
        } else if is_small {
            let word = zone.ledger().block(pick);
            zone.set_owned(pick, word.emptied().with_hints(|it| it.with_sampled(true)));
        }
    }

    /// Has the runs that are to be looked at in one mapping again, since nobody looks any more.
    pub(super) fn end_samples_in_ready(&self) {
        for zone in self.zones.all_of(ZoneKind::Ready) {
            let is_sampled = |block: &usize| {
                let word = zone.ledger().block(*block);
                word.state() == BlockState::Whole && word.hints().sampled()
            };
            for block in (0..zone.ledger().grown()).filter(is_sampled) {
                set_huge(zone, block, Huge::Yes);
                zone.ledger().update_word(block, |word| {
                    let is_whole = word.state() == BlockState::Whole;
                    is_whole.then(|| word.with_hints(|it| it.with_sampled(false)))
                });
            }
        }
    }

    /// A run has got so many frames more: they count as in use, where that is counted.
    pub(super) fn add_in_use(&self, zone: &PoolZone, frames: usize) {
        if zone.kind == ZoneKind::Ready {
            self.footprint.add(frames);
        }
    }

    /// A run of `frames` is handed out, of which so many blocks have no pages yet.
    pub(super) fn hand_out_ready(&self, zone: &PoolZone, frames: usize, absent_blocks: usize) {
        self.footprint.add(frames);
        // The request's owner faults them in.
        if zone.node == self.ahead.node() {
            self.ahead.done(absent_blocks);
        }
        self.make_room(zone.node);
    }

    /// Puts back the end of a run.
    pub(super) fn release_ready(&'static self, zone: &PoolZone, end: RunEnd) {
        self.before_free(end.frames());
        let pages = self.take_off(zone, end);
        if pages.is_some() || end.kept == 0 {
            self.footprint.subtract(end.frames());
        }
        // A run that keeps a part is as long as it was.
        let Some(mut pages) = pages else { return };
        if pages == Pages::There && self.give_back_in_trimmed(zone, end) {
            pages = Pages::Gone;
        }
        let whole = whole_blocks(end.range);
        let not_looked_at = match pages {
            Pages::Gone => whole.start + end.kept / BLOCK_FRAMES..whole.end,
            Pages::There => end.cut().filter(|cut| *cut < whole.end).map_or(0..0, |it| it..it + 1),
        };
        for block in not_looked_at {
            let word = zone.ledger().block(block);
            if word.hints().sampled() {
                set_huge(zone, block, Huge::Yes);
                zone.set_owned(block, word.with_hints(|it| it.with_sampled(false)));
            }
        }
        let freed_ready =
            self.put_end(zone, end, pages, Rest::of(Want::Dirty), |block, word| match end.cut() {
                Some(cut) if cut == block && word.ready() => word,
                Some(cut) if cut == block => {
                    word.with_ready(true).with_epoch(zone.ledger().epoch())
                }
                _ => self.condition_of_freed(zone, end.range, block, word),
            });
        self.after_free(zone.node);
        if pages == Pages::There {
            self.notice_freed(end.frames(), freed_ready);
        }
    }

    /// The condition of a block that is freed and whose pages are there.
    fn condition_of_freed(
        &self,
        zone: &PoolZone,
        range: PageRange,
        block: usize,
        word: BlockWord,
    ) -> BlockWord {
        let used = word.with_zeroed(false).with_ready(true).with_epoch(zone.ledger().epoch());
        if word.ready() {
            // A fork since it was got has made its pages shared.
            return used.with_epoch(word.epoch());
        }
        let at = zone.block_address(block);
        let touched = self.resident(zone, at, BLOCK_SIZE);
        if word.hints().sampled() {
            set_huge(zone, block, Huge::Yes);
            if let Some(touched) = touched {
                self.classes.learn(range.frames, touched, BLOCK_FRAMES);
                self.classes.learn_of_blocks(range.frames, touched, 1);
            }
            // Its pages are small ones.
            let given_back = zone.discard(block..block + 1);
            return word
                .with_zeroed(given_back)
                .with_ready(false)
                .with_hints(|it| it.with_sampled(false));
        }
        // Pages that are not resident may be in swap, so the kernel is not believed but made to drop them: its word on
        // residence tells nothing of content.
        match touched {
            Some(0..=TOUCHED_AHEAD) if zone.discard(block..block + 1) => word.with_zeroed(true),
            _ => used,
        }
    }
}

/// Advises the kernel about a block in use. `false`: it has no room for another mapping, or no huge pages.
fn set_huge(zone: &PoolZone, block: usize, huge: Huge) -> bool {
    // SAFETY: advice on committed memory, which changes no content.
    unsafe { zone.memory().set_huge(zone.block_address(block), BLOCK_SIZE, huge) }.is_ok()
}
