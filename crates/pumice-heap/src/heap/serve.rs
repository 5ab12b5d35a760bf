//! How requests are served and what happens to memory that is freed.

use core::ptr::NonNull;

use super::classes::Density;
use super::{blocks_and_tail, is_free, Content, Heap, Kind, PoolZone, GROW_MAX, GROW_MIN};
use crate::scrub::{FOR_POPULATING, FOR_SCRUBBING};
use crate::stats::{Event, FreeBytes};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::is_zero;
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::zone::ZONE_ALIGN;
use pumice_frames::frame::{BlockState, BlockWord, Native, Run};
use pumice_frames::sync::atomic::Ordering;
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::{Huge, Memory};

/// Dense requests of this many blocks and more are looked at again by one of their blocks;
/// smaller ones go through the demand zone once for that.
const SAMPLE_BLOCKS: usize = 4;

/// What a run just got keeps of what was in its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Pages: all in the ready zone; in the demand zone, what was retained.
    Pages,
    /// Nothing: it begins as the kernel would begin it.
    Nothing,
}

impl Keeps {
    /// In either zone, where nothing else is said.
    pub(super) fn of(is_ready_zone: bool) -> Keeps {
        if is_ready_zone {
            Keeps::Pages
        } else {
            Keeps::Nothing
        }
    }
}

impl Heap {
    /// Serves a run of `frames`, aligned to `align` frames.
    pub(super) fn serve(
        &'static self,
        frames: usize,
        align: usize,
        content: Content,
    ) -> Option<NonNull<u8>> {
        let (blocks, _) = blocks_and_tail(frames);
        if align > ZONE_ALIGN / FRAME_SIZE || (blocks == 0 && align > BLOCK_FRAMES) {
            return None;
        }
        let node = self.zones.here();
        let density = match content {
            Content::Any => self.classes.density_if_written(frames),
            Content::Zero => self.classes.density(frames),
        };
        self.classes.note_content(frames, content);
        let is_sample = self.classes.is_sample(frames, density);
        let from_ready = match density {
            Density::Dense => !is_sample || blocks >= SAMPLE_BLOCKS,
            // Runs within a block are looked at when they come from the demand zone only.
            Density::Likely => !(is_sample && blocks < SAMPLE_BLOCKS),
            Density::Unknown => self.has_ready_for(node, frames),
            Density::Sparse => false,
        };
        let takes_retained =
            density == Density::Sparse && content == Content::Any && !is_sample && !from_ready;
        let keeps = if takes_retained { Keeps::Pages } else { Keeps::of(from_ready) };
        let kind = if from_ready { Kind::Ready } else { Kind::Demand };
        let get = |zone| Some((zone, self.get(zone, frames, align, content, keeps)?));
        let (zone, run) = self.zones.by_distance(node, kind).find_map(get)?;
        self.take_retained(zone, whole_blocks(run.range));
        self.settle(zone, &run, keeps);
        let can_look = !from_ready || (density != Density::Unknown && blocks >= SAMPLE_BLOCKS);
        if is_sample && blocks > 0 && can_look {
            self.begin_sample(zone, &run);
        }
        self.count_hit(zone, &run);
        if content == Content::Zero {
            if from_ready && blocks > 0 {
                // Relaxed: an amount that orders nothing.
                self.zeros_asked.fetch_add(blocks, Ordering::Relaxed);
            }
            // SAFETY: the run was just given to this request.
            let clear = |at, len| unsafe { self.scrubber.clear(self, at, len, zone.node) };
            let cleared = zone.clear_run(&run, clear);
            if cleared > 0 {
                self.slot().add(Event::HotClearedBytes, cleared as u64);
            }
            if self.verify {
                self.verify_zero(zone, run.range);
            }
        }
        NonNull::new(zone.address(run.range.start))
    }

    /// Gets a run of the zone: what suits best of what is there, else what is new.
    fn get(
        &self,
        zone: &PoolZone,
        frames: usize,
        align: usize,
        content: Content,
        keeps: Keeps,
    ) -> Option<Run> {
        let want = if content == Content::Zero { Want::Zeroed } else { Want::Dirty };
        let (blocks, tail) = blocks_and_tail(frames);
        let ledger = &zone.ledger();
        if blocks == 0 {
            let get = || ledger.get_run(cpu::current(), frames, align, want);
            return get().or_else(|| self.grow(zone, 1).then(get).flatten());
        }
        let align = align.div_ceil(BLOCK_FRAMES);
        if zone.is_refused(blocks) {
            return None;
        }
        let changes = ledger.changes();
        let get = |fits: &dyn Fn(BlockWord) -> bool| ledger.get_blocks(blocks, tail, align, fits);
        let there = |word: BlockWord| word.ready() && !ledger.is_stale(word);
        let suits = |word: BlockWord| there(word) && word.zeroed() == (want == Want::Zeroed);
        let any = |_| true;
        if self.is_ready_zone(zone) {
            let get_ready = || get(&suits).or_else(|| get(&there));
            let get_best = || get_ready().or_else(|| get(&any));
            let is_claimed = || ledger.has_more_claims_than(self.scrubber.claims_away());
            let patience = if self.ahead.left() > 0 { FOR_POPULATING } else { FOR_SCRUBBING };
            let wait = || self.scrubber.wait_for_claims(patience, is_claimed, get_best);
            if let Some(run) = get_ready().or_else(|| is_claimed().then(wait)?) {
                return Some(run);
            }
        } else if keeps == Keeps::Nothing && self.retained.is_any() {
            if let Some(run) = get(&BlockWord::is_pristine) {
                return Some(run);
            }
        }
        let found = get(&any).or_else(|| ledger.join_all().then(|| get(&any)).flatten());
        let found = found.or_else(|| {
            self.grow(zone, blocks + align - 1 + usize::from(tail > 0)).then(|| get(&any))?
        });
        let is_final = || !ledger.has_more_claims_than(self.scrubber.claims_away());
        if found.is_none() && align == 1 && is_final() {
            zone.refuse(blocks, changes);
        }
        found
    }

    pub(super) fn is_ready_zone(&self, zone: &PoolZone) -> bool {
        zone.kind == Kind::Ready
    }

    /// Makes `blocks` more blocks of a zone usable, and some to spare.
    pub(super) fn grow(&self, zone: &PoolZone, blocks: usize) -> bool {
        if zone.room() == 0 || !zone.ledger().may_have(blocks) {
            return false;
        }
        let spare = (zone.ledger().grown() * BLOCK_SIZE / 2).clamp(GROW_MIN, GROW_MAX) / BLOCK_SIZE;
        zone.grow(blocks.max(spare)).or_else(|_| zone.grow(blocks)).is_ok()
    }

    /// Refreshes what is stale in a run just got, and what it is not to keep.
    pub(super) fn settle(&self, zone: &PoolZone, run: &Run, keeps: Keeps) {
        let ledger = &zone.ledger();
        let whole = whole_blocks(run.range);
        let needs = |block: &usize| {
            let word = ledger.block(*block);
            let is_fresh = word.zeroed() && !word.ready();
            ledger.is_stale(word) || !(keeps == Keeps::Pages || is_fresh)
        };
        let mut next = whole.start;
        while let Some(start) = (next..whole.end).find(needs) {
            let end = (start..whole.end).find(|block| !needs(block)).unwrap_or(whole.end);
            let tainted = (start..end).any(|block| ledger.block(block).tainted());
            let done = if tainted { zone.reset(start..end) } else { zone.discard(start..end) };
            for block in start..end {
                let word = ledger.block(block);
                let fresh = word.with_zeroed(true).with_ready(false).with_tainted(false);
                // Where the kernel refused (locked memory), it is dirty, whatever it was.
                let kept = word.with_zeroed(false).with_epoch(ledger.epoch());
                zone.set_owned(block, if done { fresh } else { kept });
            }
            next = end;
        }
    }

    /// Arranges to see how much of a run is touched: all of it in the demand zone, one block of
    /// it in the ready zone.
    fn begin_sample(&self, zone: &PoolZone, run: &Run) {
        let whole = whole_blocks(run.range);
        let first = zone.ledger().block(whole.start);
        if !self.is_ready_zone(zone) {
            self.promotions.add_unknown();
            zone.set_owned(whole.start, first.with_sampled(true));
            return;
        }
        // Any block will do that is not always the same one.
        let pick = whole.start + (self.slot().get(Event::Requests) as usize * 7 + 3) % whole.len();
        let at = zone.block_address(pick);
        // SAFETY: the block is part of the run this request was given.
        let is_small = unsafe { zone.memory().set_huge(at, BLOCK_SIZE, Huge::No) }.is_ok();
        if is_small && zone.discard(pick..pick + 1) {
            let word = zone.ledger().block(pick);
            zone.set_owned(pick, word.with_zeroed(true).with_ready(false).with_sampled(true));
        }
    }

    fn count_hit(&self, zone: &PoolZone, run: &Run) {
        let (mut ready, mut zeroed) = (0, 0);
        let whole = whole_blocks(run.range);
        for block in whole.clone() {
            let word = zone.ledger().block(block);
            ready += usize::from(word.ready());
            zeroed += usize::from(word.ready() && word.zeroed());
        }
        if zeroed > 0 {
            zone.add_ready_blocks(zeroed.wrapping_neg());
        }
        if self.is_ready_zone(zone) {
            self.footprint.add(run.range.frames);
            // The request's owner faults them in.
            if zone.node == self.ahead.node() {
                self.ahead.done(whole.len() - ready);
            }
            self.make_room(zone.node);
        }
        let (mut ready, mut zeroed) = (ready * BLOCK_FRAMES, zeroed * BLOCK_FRAMES);
        let tail = run.range.frames - whole.len() * BLOCK_FRAMES;
        if tail > 0 && zone.ledger().block(whole.end).ready() {
            let dirty: usize = run.dirt.ranges::<Native>().map(|range| range.len()).sum();
            ready += tail;
            zeroed += tail - dirty;
        }
        let event = if 2 * ready > run.range.frames { Event::Hits } else { Event::Misses };
        self.slot().add(event, 1);
        if ready > 0 {
            self.slot().add(Event::Ozfod, zeroed as u64);
        }
        self.take_free(zeroed, ready - zeroed, run.range.frames - ready);
    }

    /// Writes down which frames, of all that are free, a run was made of.
    pub(super) fn take_free(&self, zeroed: usize, unzeroed: usize, absent: usize) {
        let bytes = |frames: usize| (frames * FRAME_SIZE) as u64;
        self.slot().take_free(FreeBytes {
            zeroed: bytes(zeroed),
            unzeroed: bytes(unzeroed),
            absent: bytes(absent),
        });
    }

    /// `PUMICE_VERIFY`: panics if memory said to be zero is not.
    fn verify_zero(&self, zone: &PoolZone, range: PageRange) {
        let at = zone.address(range.start);
        // SAFETY: the run was just given to this request, and is committed.
        let zero = unsafe { is_zero(at, range.bytes()) };
        assert!(zero, "memory at {at:p}, {} bytes, should be zero and is not", range.bytes());
        // Looking has mapped pages of zeros, which nobody touched.
        for block in whole_blocks(range) {
            if !zone.ledger().block(block).ready() {
                zone.discard(block..block + 1);
            }
        }
    }

    /// Puts back the end of a run: all of it if `frames` is its length.
    pub(super) fn release(&'static self, zone: &PoolZone, range: PageRange, frames: usize) {
        let kept = range.frames - frames;
        let (is_ready_zone, is_recycled) = (self.is_ready_zone(zone), self.is_recycling());
        if is_ready_zone {
            self.before_free(frames);
            self.footprint.subtract(frames);
        }
        // Part of this block stays its owner's.
        let cut = (kept % BLOCK_FRAMES > 0).then_some(range.start.block() + kept / BLOCK_FRAMES);
        let (mut freed_ready, mut promoted) = (0, 0);
        if kept == 0 {
            // Before attributes are taken off: that takes the pages, too.
            self.look_back(zone, range);
            if !is_ready_zone {
                if !whole_blocks(range).is_empty()
                    && zone.ledger().block(range.start.block()).sampled()
                {
                    self.promotions.subtract_unknown();
                }
                promoted = if is_recycled { self.promote(zone, range) } else { 0 };
                freed_ready += promoted;
            }
        }
        if !self.settle_taint(zone, range.start.0 + kept..range.end().0) {
            // The kernel has no room for another mapping. Nobody may get memory with an attribute
            // that somebody else set, so these addresses stay where they are.
            return;
        }
        let is_gone = !is_recycled && self.give_back_all(zone, range, kept);
        if !is_ready_zone && !is_gone {
            self.give_back_blocks(zone, range, kept, promoted);
        }
        let condition = |block: usize, word: BlockWord| {
            let now = match is_ready_zone && !is_gone {
                true if cut == Some(block) && word.ready() => word,
                true if cut == Some(block) => {
                    word.with_ready(true).with_epoch(zone.ledger().epoch())
                }
                true => self.condition_in_ready(zone, range, block, word),
                false if is_gone && cut != Some(block) => word.with_zeroed(true).with_ready(false),
                false => word,
            };
            freed_ready += usize::from(now.ready() && !now.zeroed());
            now
        };
        if kept == 0 {
            zone.ledger().put_range(range, condition);
        } else {
            zone.ledger().truncate_run(range, kept, condition);
        }
        self.retired_meanwhile(zone);
        if is_ready_zone {
            self.after_free(zone.node);
        }
        if is_gone {
            return;
        }
        let given_back = if is_ready_zone { 0 } else { blocks_and_tail(frames).0 - promoted };
        self.notice_freed(frames - given_back * BLOCK_FRAMES, freed_ready);
    }

    /// Gives all pages of a run's end back to the kernel: somebody else may hold them. `false` if it
    /// refused.
    fn give_back_all(&self, zone: &PoolZone, range: PageRange, kept: usize) -> bool {
        let (start, frames) = (Pfn(range.start.0 + kept), range.frames - kept);
        let done = match self.discard {
            Some(discard) => discard(zone.address(start), frames * FRAME_SIZE),
            None => zone.discard_frames(start, frames),
        };
        if done {
            let bytes = (range.frames - kept) * FRAME_SIZE;
            self.slot().add(Event::GivenBackBytes, bytes as u64);
        }
        done
    }

    /// In the demand zone: learns how much of a run was touched.
    fn look_back(&self, zone: &PoolZone, range: PageRange) {
        if self.is_ready_zone(zone) {
            return;
        }
        let whole = whole_blocks(range);
        let is_sample = if whole.is_empty() {
            self.classes.density(range.frames) != Density::Sparse
                || self.classes.is_sample(range.frames, Density::Sparse)
        } else {
            zone.ledger().block(whole.start).sampled()
        };
        if is_sample {
            if let Some(touched) = self.resident(zone, zone.address(range.start), range.bytes()) {
                self.classes.learn(range.frames, touched, range.frames);
            }
        }
    }

    /// In the demand zone: gives whole blocks of a run's end back to the kernel, but for the first
    /// `gone`, which hold nothing any more.
    fn give_back_blocks(&self, zone: &PoolZone, range: PageRange, kept: usize, gone: usize) {
        if kept == 0 && gone == 0 && self.retain(zone, range) {
            return;
        }
        let whole = whole_blocks(range);
        let from = whole.start + kept.div_ceil(BLOCK_FRAMES).max(gone);
        if from < whole.end {
            let done = zone.discard(from..whole.end);
            if done {
                self.slot().add(Event::GivenBackBytes, ((whole.end - from) * BLOCK_SIZE) as u64);
            }
            for block in from..whole.end {
                let word = zone.ledger().block(block);
                zone.set_owned(block, word.with_zeroed(done).with_ready(false));
            }
        }
        if kept % BLOCK_FRAMES != 0 && kept / BLOCK_FRAMES < whole.len() {
            let cut = whole.start + kept / BLOCK_FRAMES;
            zone.set_owned(cut, zone.ledger().block(cut).with_zeroed(false));
        }
        // What lies in a block with others stays where it is, and resident, for as long as one of
        // them is in use: much, where requests of its size have gone to the ready zone since.
        let is_gone = || self.classes.density(range.frames) == Density::Dense;
        if !whole.is_empty() || is_gone() {
            let start = (range.start.0 + kept).max(whole.end * BLOCK_FRAMES);
            if start < range.end().0 {
                zone.discard_frames(Pfn(start), range.end().0 - start);
            }
        }
    }

    /// What a block of the ready zone is when it is freed.
    fn condition_in_ready(
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
        if word.sampled() {
            // SAFETY: the block is committed memory of the zone.
            let _ = unsafe { zone.memory().set_huge(at, BLOCK_SIZE, Huge::Yes) };
            if let Some(touched) = touched {
                self.classes.learn(range.frames, touched, BLOCK_FRAMES);
            }
            // Its pages are small ones.
            let given_back = zone.discard(block..block + 1);
            return word.with_zeroed(given_back).with_ready(false).with_sampled(false);
        }
        // What is not resident may be in swap, so the kernel is not believed but made to drop it: nothing
        // that it says of residence tells of content.
        match touched {
            Some(0) if zone.discard(block..block + 1) => word.with_zeroed(true),
            _ => used,
        }
    }

    /// Frames that are resident in committed memory of the zone. Not known under a seccomp filter:
    /// `malloc` has no need of `mincore`, so the filter may not have it either.
    pub(super) fn resident(&self, zone: &PoolZone, at: *mut u8, len: usize) -> Option<usize> {
        // Relaxed: the thread that installs the filter has set it before.
        if self.quiet.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: as the caller says, the range is committed.
        unsafe { zone.memory().resident(at, len) }.ok()
    }

    /// Lengthens a run where it stands.
    pub(super) fn extend(&self, zone: &PoolZone, range: PageRange, frames: usize) -> bool {
        let added = frames - range.frames;
        let end_block = range.end().0.div_ceil(BLOCK_FRAMES);
        if end_block == zone.ledger().grown() {
            self.grow(zone, added.div_ceil(BLOCK_FRAMES));
        }
        let Some(run) = zone.ledger().extend_run(range, frames) else { return false };
        // Mostly: what follows a run in use is seldom ready. The next count puts it right.
        self.take_free(0, 0, added);
        if self.is_ready_zone(zone) {
            self.footprint.add(added);
        }
        if zone.ledger().block(range.start.block()).state() == BlockState::Whole {
            let whole = Run { range: PageRange { start: range.start, frames }, dirt: run.dirt };
            // Not the block that the old end lies in: it holds the caller's data.
            self.settle_from(zone, &whole, range.frames.div_ceil(BLOCK_FRAMES));
        }
        true
    }

    fn settle_from(&self, zone: &PoolZone, run: &Run, skip_blocks: usize) {
        let whole = whole_blocks(run.range);
        let start = whole.start + skip_blocks;
        if start < whole.end {
            let added = PageRange {
                start: Pfn::of_block(start),
                frames: (whole.end - start) * BLOCK_FRAMES,
            };
            self.take_retained(zone, start..whole.end);
            let keeps = Keeps::of(self.is_ready_zone(zone));
            self.settle(zone, &Run { range: added, dirt: run.dirt }, keeps);
        }
    }

    /// Shortens a run.
    pub(super) fn truncate(&'static self, zone: &PoolZone, range: PageRange, frames: usize) {
        self.release(zone, range, range.frames - frames);
    }

    /// Claims, gives back and frees again every free block that is not pristine and that
    /// `wanted` says; the blocks it gave back.
    pub(super) fn drop_free_blocks(
        &self,
        zone: &PoolZone,
        wanted: impl Fn(BlockWord) -> bool,
    ) -> usize {
        self.drop_free_blocks_from(zone, 0, wanted)
    }

    /// The same, from a block on.
    pub(super) fn drop_free_blocks_from(
        &self,
        zone: &PoolZone,
        from: usize,
        wanted: impl Fn(BlockWord) -> bool,
    ) -> usize {
        let ledger = &zone.ledger();
        let claim = |block: usize| {
            ledger.claim_block(block, |word| !word.is_pristine() && wanted(word)).is_some()
        };
        let grown = ledger.grown();
        let (mut block, mut dropped) = (from, 0);
        while block < grown {
            if !(is_free(ledger.block(block)) && claim(block)) {
                block += 1;
                continue;
            }
            // As many as follow each other, in one call; not so many that much is absent.
            let mut end = block + 1;
            while end < grown && end - block < DROP_BLOCKS && claim(end) {
                end += 1;
            }
            let tainted = (block..end).any(|block| ledger.block(block).tainted());
            self.take_retained(zone, block..end);
            let done = if tainted { zone.reset(block..end) } else { zone.discard(block..end) };
            for block in block..end {
                let word = ledger.block(block);
                let fresh = BlockWord::FRESH.with_hidden(word.hidden());
                ledger.release_block(block, if done { fresh } else { word.with_age(0) });
            }
            dropped += if done { end - block } else { 0 };
            block = end;
        }
        self.slot().add(Event::GivenBackBytes, (dropped * BLOCK_SIZE) as u64);
        dropped
    }
}

/// Blocks given back in one call.
const DROP_BLOCKS: usize = 64;

/// The whole blocks of a run that may have a tail; none of a run within a block.
pub(super) fn whole_blocks(range: PageRange) -> core::ops::Range<usize> {
    let start = range.start.block();
    start..start + range.frames / BLOCK_FRAMES
}
