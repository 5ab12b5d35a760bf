//! The rests of blocks: free memory beside a run in the same block, which no other such run can use.
//!
//! A run of whole blocks begins with a block, so its tail has a block in which no other such run can begin; and a run
//! of a little over half a block fits into a block once. The ready zone's memory comes in huge pages, so all of such a
//! block is resident: requests of a little over 1 or 2 MiB would have twice their memory. So where rests that are there
//! are more than a share of the memory in use, those of new runs are *trimmed*: their pages go back, and the block goes
//! on in small pages ([`pumice_frames::frame::BlockWord::trimmed`]). Other requests may use a rest. Their first touch
//! costs small page faults then, as it would without the heap.
//!
//! The next run of the same size finds the block as it is, and makes no call. A run of whole blocks has a trimmed block
//! emptied, so that it gets a huge page again.
//!
//! A run within a block of a demand zone that shrinks leaves such a rest, too: the next run of its first size has no
//! room there. Where those rests are too much, it goes as it would without the heap.
//!
//! A tail of few frames has small pages from the start, which costs less than a huge page. Where a run has more of a
//! block, a huge page is faulted in and its rest given back. That costs a third of as many small pages, but the kernel
//! has the memory in its hands only when it is short of it, and splits the huge page.

use super::serve::RunEnd;
use super::{Heap, PoolZone, ZoneKind};
use crate::stats::Event;
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{BlockState, BlockWord, Dirt, Run};
use pumice_frames::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use pumice_frames::sys::mem::{Huge, Memory};
use pumice_frames::sys::thread::{self, BlockedSignals};

/// Rests that are there may be this share of the memory in use...
const SHARE: usize = 16;
/// ... and this many frames.
const SPARE: usize = (8 << 20) / FRAME_SIZE;
/// Shorter rests stay.
const LEAST: usize = 32;
/// So few frames cost less in small pages than a huge page does.
const FEW: usize = 64;
/// Rests that stay between two counts, at most.
const MOST_LEFT: usize = 32;
/// This share of the blocks that have one is trimmed between two counts. To trim one takes 10 to 100 us.
const TRIMMED_SHARE: usize = 16;
/// A count takes about 10 ns for each block: there is none before one rest for so many blocks.
const BLOCKS_COUNTED: usize = 256;
/// Rests that stay after a trim in vain: at least so many...
const LEAST_SPARED: usize = 8;
/// ... and at most so many, twice as many each time it happens again...
const MOST_SPARED: usize = 64;
/// ... within so many requests.
const AGAIN: usize = 64;
/// In each such span of time, as many frames go back when they are freed as rests may have...
const SPAN_NS: u64 = 1 << 27;
/// ... and all, where rests have this share of the memory in use and [`SPARE`].
const FAR_SHARE: usize = 2;

/// The decision about the next rests. Relaxed: numbers that order nothing.
#[derive(Debug)]
pub(super) struct Rests {
    /// Twice the number of rests that it is good for, and 1 if they are trimmed.
    turns: AtomicUsize,
    /// Rests that were spared after the last trim in vain.
    spared: AtomicUsize,
    /// The requests there had been by then.
    spared_at: AtomicUsize,
    /// Frames that went back when they were freed, in this span of time, and which that is.
    given_back: AtomicUsize,
    span: AtomicUsize,
    /// Whether there are far more than there may be.
    are_far_too_many: AtomicBool,
}

impl Rests {
    pub(super) fn new() -> Rests {
        let zero = || AtomicUsize::new(0);
        let (turns, spared, spared_at) = (zero(), zero(), zero());
        let are_far_too_many = AtomicBool::new(false);
        Rests { turns, spared, spared_at, given_back: zero(), span: zero(), are_far_too_many }
    }

    /// Whether `frames` more go back, of which `most` may at this time. A program that replaces one by one, at random,
    /// what it has of many sizes leaves rests beside each, whatever goes back, and faults in again all that does.
    fn may_give_back(&self, frames: usize, most: usize) -> bool {
        let span = (thread::now_ns() / SPAN_NS) as usize;
        if self.span.swap(span, Ordering::Relaxed) != span {
            self.given_back.store(0, Ordering::Relaxed);
        }
        let may = self.given_back.load(Ordering::Relaxed) < most
            || self.are_far_too_many.load(Ordering::Relaxed);
        if may {
            self.given_back.fetch_add(frames, Ordering::Relaxed);
        }
        may
    }

    /// Spares `least` rests and more: a trim was in vain, the `request`th request finds.
    fn spare(&self, least: usize, request: usize) {
        let before = self.spared_at.swap(request, Ordering::Relaxed);
        let is_again = request.wrapping_sub(before) < AGAIN;
        let more = if is_again { 2 * self.spared.load(Ordering::Relaxed) } else { 0 };
        let spared = more.max(least).clamp(LEAST_SPARED, MOST_SPARED);
        self.spared.store(spared, Ordering::Relaxed);
        self.decide(false, spared);
    }

    /// Whether the next rest is trimmed, as long as that is decided.
    fn next(&self) -> Option<bool> {
        let less = |turns: usize| turns.checked_sub(2);
        let turns = self.turns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(turns & 1 > 0)
    }

    fn decide(&self, are_trimmed: bool, turns: usize) {
        self.turns.store(2 * turns + usize::from(are_trimmed), Ordering::Relaxed);
    }
}

impl Heap {
    /// Gives back the rest of the block that a new run, aligned to `align` frames, ends in, where rests are too much.
    /// The content of the part of the run in that block may go, and its dirt with it.
    #[inline]
    pub(super) fn trim_rest(&self, zone: &PoolZone, run: &mut Run, align: usize) {
        if has_rest(zone, run.range, align) && self.trim(zone, run.range, run.range.start) {
            run.dirt = Dirt::NONE;
        }
    }

    /// As [`Heap::trim_rest`], of a run whose length has changed. Its content stays up to the frame `new`.
    pub(super) fn trim_rest_of_resized(&self, zone: &PoolZone, range: PageRange, new: Pfn) {
        if has_rest(zone, range, 1) {
            self.trim(zone, range, new);
        }
    }

    /// Gives back the rest of the block that a run ends in, whose frames from `new` on hold nothing. Whether its part
    /// in that block is zero now.
    fn trim(&self, zone: &PoolZone, range: PageRange, new: Pfn) -> bool {
        let (ledger, block) = (zone.ledger(), range.end().block());
        let end = range.end().0 % BLOCK_FRAMES;
        let word = ledger.block(block);
        let Some(content) = ledger.rest_content(block, end) else { return false };
        let is_there = !word.trimmed() || content == Want::Dirty;
        if !is_there || word.tainted() || self.is_quiet() || !self.are_rests_many() {
            return false;
        }
        #[cfg(test)]
        super::tests::TRIMS.set(super::tests::TRIMS.get() + 1);
        let first = range.start.0.max(block * BLOCK_FRAMES);
        let is_new = first >= new.0;
        let is_first = is_new && first == block * BLOCK_FRAMES;
        let advise = |huge| {
            let at = zone.block_address(block);
            // SAFETY: advice on committed memory changes no content.
            unsafe { zone.memory().set_huge(at, BLOCK_SIZE, huge) }.is_ok()
        };
        // Where the kernel has no room for another mapping, it is not.
        let is_small = is_first && end <= FEW && !word.trimmed() && advise(Huge::No);
        if is_new && !is_small && !word.trimmed() {
            // Else the owner's first touch brings all of it back.
            zone.touch(Pfn(first));
        }
        let (at, len) = (zone.address(range.end()), (BLOCK_FRAMES - end) * FRAME_SIZE);
        // A block that was free as a whole meanwhile does not say which of its frames are there.
        if word.trimmed() && self.resident(zone, at, len) != Some(0) {
            self.trimmed_in_vain();
        }
        let done = {
            let _signals = BlockedSignals::block();
            ledger.empty_rest(block, end, || match is_small {
                true => zone.discard(block..block + 1),
                false => zone.discard_frames(range.end(), BLOCK_FRAMES - end),
            })
        };
        if is_small {
            // Pages that are faulted in beside this one are small, in spite of the advice.
            zone.touch(Pfn(first));
            advise(Huge::Yes);
        }
        self.retired_meanwhile(zone);
        if !done {
            return false;
        }
        ledger.update_word(block, |now| Some(now.with_ready(false).with_trimmed(true)));
        if word.ready() {
            let frames = BLOCK_FRAMES - if is_small { 0 } else { end };
            self.slot().add(Event::GivenBackBytes, (frames * FRAME_SIZE) as u64);
        }
        is_small
    }

    /// Gives back the pages of a run within a trimmed block that is about to be freed, where rests are too much: it
    /// would be one again.
    pub(super) fn give_back_in_trimmed(&self, zone: &PoolZone, end: RunEnd) -> bool {
        let RunEnd { range, kept, .. } = end;
        let is_within = kept == 0 && range.start.block() == Pfn(range.end().0 - 1).block();
        let is_trimmed = || {
            let word = zone.ledger().block(range.start.block());
            word.state() == BlockState::Parts && word.trimmed()
        };
        is_within
            && range.frames >= LEAST
            && is_trimmed()
            && !self.is_quiet()
            && self.are_rests_many()
            && self.rests.may_give_back(range.frames, self.most_rests(SHARE))
            && zone.discard_frames(range.start, range.frames)
    }

    /// Memory that a trim gave back has been faulted in since. Where that happens again and again, trimming costs more
    /// than to fault in all memory anew would. So the next rests stay.
    #[cold]
    pub(super) fn trimmed_in_vain(&self) {
        let least = self.footprint.in_use() / BLOCK_FRAMES / SHARE;
        self.rests.spare(least, self.slot().get(Event::Requests) as usize);
    }

    /// Whether the rests that are there are more than they may be.
    fn are_rests_many(&self) -> bool {
        self.are_many(&self.rests, ZoneKind::Ready)
    }

    /// The same for those in demand zones.
    pub(super) fn are_rests_in_demand_many(&self) -> bool {
        !self.is_quiet() && self.are_many(&self.rests_in_demand, ZoneKind::Demand)
    }

    /// Frames that rests may have: a share of the memory in use, and a little.
    fn most_rests(&self, share: usize) -> usize {
        self.footprint.in_use() / share + SPARE
    }

    fn are_many(&self, rests: &Rests, kind: ZoneKind) -> bool {
        if let Some(are_trimmed) = rests.next() {
            return are_trimmed;
        }
        let are_zeros_absent = |word: BlockWord| kind == ZoneKind::Demand || word.trimmed();
        let (mut frames, mut blocks, mut counted) = (0, 0, 0);
        for zone in self.zones.all_of(kind) {
            let (more_frames, more_blocks) = zone.ledger().count_rests(are_zeros_absent);
            frames += more_frames;
            blocks += more_blocks;
            counted += zone.ledger().grown();
        }
        let least = counted / BLOCKS_COUNTED;
        let are_far_too_many = frames > self.most_rests(FAR_SHARE);
        rests.are_far_too_many.store(are_far_too_many, Ordering::Relaxed);
        match self.most_rests(SHARE).checked_sub(frames) {
            Some(left) => rests.decide(false, (left / BLOCK_FRAMES).min(MOST_LEFT).max(least)),
            None => rests.decide(true, (blocks / TRIMMED_SHARE).max(least)),
        }
        rests.turns.load(Ordering::Relaxed) & 1 > 0
    }
}

/// Whether a run leaves a rest that no other run of its length and alignment fits into.
fn has_rest(zone: &PoolZone, range: PageRange, align: usize) -> bool {
    let end = range.end().0 % BLOCK_FRAMES;
    let fits_again = end.next_multiple_of(align) + range.frames <= BLOCK_FRAMES;
    zone.kind == ZoneKind::Ready && end > 0 && BLOCK_FRAMES - end >= LEAST && !fits_again
}
