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
//! A tail of few frames has small pages from the start, which costs less than a huge page. Where a run has more of a
//! block, a huge page is faulted in and its rest given back. That costs a third of as many small pages, but the kernel
//! has the memory in its hands only when it is short of it, and splits the huge page.

use super::{Heap, PoolZone, ZoneKind};
use crate::stats::Event;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{Dirt, Run};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{Huge, Memory};
use pumice_frames::sys::thread::BlockedSignals;

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

/// The decision about the next rests. Relaxed: numbers that order nothing.
#[derive(Debug)]
pub(super) struct Rests {
    /// Twice the number of rests that it is good for, and 1 if they are trimmed.
    turns: AtomicUsize,
    /// Rests that were spared after the last trim in vain.
    spared: AtomicUsize,
    /// The requests there had been by then.
    spared_at: AtomicUsize,
}

impl Rests {
    pub(super) fn new() -> Rests {
        let zero = || AtomicUsize::new(0);
        Rests { turns: zero(), spared: zero(), spared_at: zero() }
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
    /// Gives back the rest of the block that a new run ends in, where rests are too much. The content of the part of
    /// the run in that block may go, and its dirt with it.
    #[inline]
    pub(super) fn trim_rest(&self, zone: &PoolZone, run: &mut Run) {
        let end = run.range.end().0 % BLOCK_FRAMES;
        let rest = BLOCK_FRAMES - end;
        let fits_again = run.range.frames <= rest;
        let is_short = end == 0 || rest < LEAST || fits_again;
        if zone.kind == ZoneKind::Ready && !is_short && !self.is_quiet() {
            self.trim(zone, run, end);
        }
    }

    /// As [`Heap::trim_rest`], of a run that ends before frame `end` of its last block.
    fn trim(&self, zone: &PoolZone, run: &mut Run, end: usize) {
        let (ledger, block) = (zone.ledger(), run.range.end().block());
        let word = ledger.block(block);
        let Some(content) = ledger.rest_content(block, end) else { return };
        let is_there = !word.trimmed() || content == Want::Dirty;
        if !is_there || word.tainted() || !self.are_rests_many() {
            return;
        }
        #[cfg(test)]
        super::tests::TRIMS.set(super::tests::TRIMS.get() + 1);
        let first = run.range.start.0.max(block * BLOCK_FRAMES);
        let is_first = first == block * BLOCK_FRAMES;
        let advise = |huge| {
            let at = zone.block_address(block);
            // SAFETY: advice on committed memory changes no content.
            unsafe { zone.memory().set_huge(at, BLOCK_SIZE, huge) }.is_ok()
        };
        // Where the kernel has no room for another mapping, it is not.
        let is_small = is_first && end <= FEW && !word.trimmed() && advise(Huge::No);
        if !is_small && !word.trimmed() {
            // Else the owner's first touch brings all of it back.
            touch(zone, first);
        }
        let (at, len) = (zone.address(run.range.end()), (BLOCK_FRAMES - end) * FRAME_SIZE);
        // A block that was free as a whole meanwhile does not say which of its frames are there.
        if word.trimmed() && self.resident(zone, at, len) != Some(0) {
            self.trimmed_in_vain();
        }
        let done = {
            let _signals = BlockedSignals::block();
            ledger.empty_rest(block, end, || match is_small {
                true => zone.discard(block..block + 1),
                false => zone.discard_frames(run.range.end(), BLOCK_FRAMES - end),
            })
        };
        if is_small {
            // Pages that are faulted in beside this one are small, whatever the advice.
            touch(zone, first);
            advise(Huge::Yes);
        }
        if !done {
            return;
        }
        if is_small {
            run.dirt = Dirt::NONE;
        }
        ledger.update_word(block, |now| Some(now.with_ready(false).with_trimmed(true)));
        if word.ready() {
            let frames = BLOCK_FRAMES - if is_small { 0 } else { end };
            self.slot().add(Event::GivenBackBytes, (frames * FRAME_SIZE) as u64);
        }
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
        if let Some(are_trimmed) = self.rests.next() {
            return are_trimmed;
        }
        let (mut frames, mut blocks, mut counted) = (0, 0, 0);
        for zone in self.zones.all_of(ZoneKind::Ready) {
            let (more_frames, more_blocks) = zone.ledger().count_rests();
            frames += more_frames;
            blocks += more_blocks;
            counted += zone.ledger().grown();
        }
        let least = counted / BLOCKS_COUNTED;
        match (self.footprint.in_use() / SHARE + SPARE).checked_sub(frames) {
            Some(left) => self.rests.decide(false, (left / BLOCK_FRAMES).min(MOST_LEFT).max(least)),
            None => self.rests.decide(true, (blocks / TRIMMED_SHARE).max(least)),
        }
        self.rests.turns.load(Ordering::Relaxed) & 1 > 0
    }
}

/// Has the page of a frame of a new run be there.
fn touch(zone: &PoolZone, frame: usize) {
    // SAFETY: the frame is committed and the caller's, who needs nothing in it; where it is zeroed, it still is.
    unsafe { zone.address(Pfn(frame)).write_volatile(0) };
}
