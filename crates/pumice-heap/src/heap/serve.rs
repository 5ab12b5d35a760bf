//! How requests are served, and how freed memory is put back.

use core::ptr::NonNull;

use super::classes::Density;
use super::growth::Way;
use super::held::MOST_GUESSED;
use super::hints::WithHints;
use super::mapping::has_lost;
use super::retain::Rest;
use super::{
    blocks_and_tail, is_free, Content, Discard, Heap, PoolZone, ZoneKind, GROW_MAX, GROW_MIN,
};
use crate::stats::{Event, FreeBytes};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::is_zero;
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::zone::ZONE_ALIGN;
use pumice_frames::frame::{BlockState, BlockWord, Native, Run};
use pumice_frames::sync::atomic::Ordering;
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::Memory;
use pumice_frames::sys::thread::BlockedSignals;

/// Dense requests of this many blocks and more are looked at again by one of their blocks;
/// smaller ones go through the demand zone once for that.
pub(super) const SAMPLE_BLOCKS: usize = 2;

/// Frames that could be cleared in the time that it takes to give pages back...
pub(super) const CLEARED_PER_CALL: usize = 20;
/// ... and in the time of a page fault.
pub(super) const CLEARED_PER_FAULT: usize = 22;

/// The part of its blocks' content that a new run keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Pages: all in the ready zone; in the demand zone, those that were retained.
    Pages,
    /// Nothing: it begins as the kernel would begin it.
    Nothing,
}

/// The end of a run that is freed.
#[derive(Clone, Copy)]
pub(super) struct RunEnd {
    /// The whole run.
    pub(super) range: PageRange,
    /// Frames at its start that stay their owner's.
    pub(super) kept: usize,
    /// Whether freed memory may be used again: never where a part is the kernel's for good.
    pub(super) is_recycled: bool,
}

impl RunEnd {
    /// Frames that are freed.
    pub(super) fn frames(self) -> usize {
        self.range.frames - self.kept
    }

    /// Which they are.
    fn freed(self) -> PageRange {
        PageRange { start: Pfn(self.range.start.0 + self.kept), frames: self.frames() }
    }

    /// The block that keeps a part: that part stays its owner's.
    pub(super) fn cut(self) -> Option<usize> {
        let is_inside = self.kept % BLOCK_FRAMES > 0;
        is_inside.then_some(self.range.start.block() + self.kept / BLOCK_FRAMES)
    }
}

/// Pages that are about to be freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    /// They are there.
    There,
    /// They went back to the kernel.
    Gone,
}

impl Heap {
    /// Serves a run of `frames`, aligned to `align` frames.
    pub(super) fn serve(
        &'static self,
        frames: usize,
        align: usize,
        content: Content,
    ) -> Option<NonNull<u8>> {
        let (blocks, tail) = blocks_and_tail(frames);
        if align > ZONE_ALIGN / FRAME_SIZE || (blocks == 0 && align > BLOCK_FRAMES) {
            return None;
        }
        let node = self.zones.here();
        self.look_at_held(frames);
        let may_guess = !self.is_too_much_held();
        let density = match may_guess && frames <= MOST_GUESSED {
            true => self.classes.density_for(frames, content),
            false => self.classes.density(frames),
        };
        self.classes.note_content(frames, content);
        let is_sample = self.classes.is_sample(frames, density);
        let is_long = blocks >= SAMPLE_BLOCKS;
        let is_unknown = density == Density::Unknown;
        let may_be_written = is_unknown && may_guess && content == Content::Any;
        let is_growing = may_be_written && self.has_for_growing(node, frames);
        let is_there = is_growing || is_unknown && self.has_ready_for(node, frames);
        // With fewer blocks it would not be looked at.
        let there = match may_be_written && is_long && !is_there {
            true => self.get_there(node, blocks, tail, align.div_ceil(BLOCK_FRAMES)),
            false => None,
        };
        let from_ready = match density {
            // Runs within a block are looked at when they come from the demand zone only.
            Density::Dense | Density::Likely => !is_sample || is_long,
            Density::Unknown => {
                let is_guess =
                    may_be_written && is_long && !self.is_quiet() && self.may_hold_unseen(frames);
                is_there || there.is_some() || is_guess
            }
            Density::Sparse => false,
        };
        // To look at memory that is there would cost it.
        let is_new = !is_unknown || !is_there && there.is_none();
        let can_look = !from_ready || is_new && is_long;
        let kind = if from_ready { ZoneKind::Ready } else { ZoneKind::Demand };
        let takes_retained = density == Density::Sparse
            && self.classes.may_have_retained(frames, content)
            && !is_sample
            && !from_ready
            && self.may_reuse_retained(frames);
        let keeps = if takes_retained { Keeps::Pages } else { kind.keeps() };
        let get = |zone| Some((zone, self.get(zone, frames, align, content, keeps)?));
        let (zone, mut run) = there.or_else(|| self.zones.by_distance(node, kind).find_map(get))?;
        self.take_retained(zone, whole_blocks(run.range));
        self.settle(zone, &run, keeps);
        self.trim_rest(zone, &mut run, align);
        if zone.kind == ZoneKind::Demand && density == Density::Sparse {
            self.expect_more(zone, run.range);
        }
        match zone.kind {
            ZoneKind::Ready if is_sample && blocks > 0 && can_look => {
                self.begin_sample_in_ready(zone, &run);
            }
            ZoneKind::Demand if is_sample => self.begin_sample_in_demand(zone, &mut run),
            _ => {}
        }
        if is_unknown && content == Content::Any {
            self.lessons.may_grow(zone.address(run.range.start));
        }
        self.count_hit(zone, &run);
        self.price_new(zone, whole_blocks(run.range));
        if content == Content::Zero {
            if from_ready && blocks > 0 {
                // Relaxed: an amount that orders nothing.
                self.zeros_asked.fetch_add(blocks, Ordering::Relaxed);
            }
            self.make_zero(zone, &run, frames, density);
        }
        self.hand_out_held(zone, &run, content);
        NonNull::new(zone.address(run.range.start))
    }

    /// Has a run that was just given to a request of `frames` read as zeros.
    fn make_zero(&'static self, zone: &PoolZone, run: &Run, frames: usize, density: Density) {
        let may_be_sparse = matches!(density, Density::Sparse | Density::Unknown);
        let may_drop = zone.kind == ZoneKind::Demand && may_be_sparse && !self.is_quiet();
        let mut cleared = 0;
        zone.clear_run(run, |at, len| {
            if may_drop {
                cleared += self.clear_retained(zone, at, len, frames);
                return;
            }
            cleared += len;
            // SAFETY: the run was just given to this request.
            unsafe { self.scrubber.clear(self, at, len, zone.node) };
        });
        if cleared > 0 {
            self.slot().add(Event::HotClearedBytes, cleared as u64);
        }
        if self.verify {
            self.verify_zero(zone, run.range);
        }
    }

    /// Gets a run of the zone: the blocks that suit best of those that are there, else new ones.
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
            return get().or_else(|| self.get_in_new_block(zone, get));
        }
        let align = align.div_ceil(BLOCK_FRAMES);
        if zone.is_refused(blocks) {
            return None;
        }
        let changes = ledger.changes();
        let get = |fits: &dyn Fn(BlockWord) -> bool| ledger.get_blocks(blocks, tail, align, fits);
        let any = |_| true;
        let best = match zone.kind {
            ZoneKind::Ready => self.get_ready(zone, content, get),
            ZoneKind::Demand => self.get_demand(keeps, get),
        };
        if best.is_some() {
            return best;
        }
        // A trimmed block would have to be emptied first. There is none in a demand zone.
        let is_whole = |word: BlockWord| !word.trimmed();
        let found = match zone.kind {
            ZoneKind::Ready => get(&is_whole).or_else(|| get(&any)),
            ZoneKind::Demand => get(&any),
        };
        let found = found.or_else(|| ledger.join_all().then(|| get(&any)).flatten());
        let found = found.or_else(|| {
            self.grow(zone, blocks + align - 1 + usize::from(tail > 0)).then(|| get(&any))?
        });
        let is_final = || !ledger.has_more_claims_than(self.scrubber.claims_away());
        if found.is_none() && align == 1 && is_final() {
            zone.refuse(blocks, changes);
        }
        found
    }

    /// Gets a run within a block of a zone in which there was none. The kernel is not asked again for a block that it
    /// refused until something has been freed.
    #[cold]
    fn get_in_new_block(&self, zone: &PoolZone, get: impl Fn() -> Option<Run>) -> Option<Run> {
        let changes = zone.ledger().changes();
        if zone.is_refused(1) {
            return None;
        }
        // Memory that came free before `changes` was read is found now, or it would be refused.
        if let Some(run) = get() {
            return Some(run);
        }
        if !self.grow(zone, 1) {
            zone.refuse(1, changes);
            return None;
        }
        get()
    }

    /// Makes `blocks` more blocks of a zone usable, and some to spare.
    pub(super) fn grow(&self, zone: &PoolZone, blocks: usize) -> bool {
        if zone.room() == 0 || !zone.ledger().may_have(blocks) {
            return false;
        }
        let spare = (zone.ledger().grown() * BLOCK_SIZE / 2).clamp(GROW_MIN, GROW_MAX) / BLOCK_SIZE;
        zone.grow(blocks.max(spare)).or_else(|_| zone.grow(blocks)).is_ok()
    }

    /// Refreshes the blocks of a new run that are stale, and those that it is not to keep.
    pub(super) fn settle(&self, zone: &PoolZone, run: &Run, keeps: Keeps) {
        let ledger = &zone.ledger();
        let whole = whole_blocks(run.range);
        let needs = |block: &usize| {
            let word = ledger.block(*block);
            let is_fresh = word.zeroed() && !word.ready();
            // Pages that stayed in a demand zone are shared with a child since.
            let is_shared = word.expected() > 0 && word.epoch() != ledger.epoch();
            let is_unfit = ledger.is_stale(word) || word.trimmed() || is_shared;
            is_unfit || !(keeps == Keeps::Pages || is_fresh)
        };
        let (mut next, mut is_any_trimmed) = (whole.start, false);
        while let Some(start) = (next..whole.end).find(needs) {
            let end = (start..whole.end).find(|block| !needs(block)).unwrap_or(whole.end);
            let done = zone.empty(start..end);
            for block in start..end {
                let word = ledger.block(block);
                is_any_trimmed |= word.trimmed();
                let fresh = word.emptied().with_tainted(false);
                // Where the kernel refused (locked memory), it is dirty.
                let kept = word.with_zeroed(false).with_trimmed(false).with_epoch(ledger.epoch());
                zone.set_owned(block, if done { fresh } else { kept });
            }
            next = end;
        }
        if is_any_trimmed {
            self.trimmed_in_vain();
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
        if zone.kind == ZoneKind::Ready {
            self.hand_out_ready(zone, run.range.frames, whole.len() - ready);
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
        let rest = range.frames % BLOCK_FRAMES;
        if rest > 0 && zone.kind == ZoneKind::Demand {
            zone.discard_frames(Pfn(range.end().0 - rest), rest);
        }
    }

    /// Puts back the end of a run: all of it if `frames` is its length.
    pub(super) fn release(&'static self, zone: &PoolZone, range: PageRange, frames: usize) {
        let kept = range.frames - frames;
        let freed = PageRange { start: Pfn(range.start.0 + kept), frames };
        match kept {
            0 => self.end_held(zone, range),
            _ => self.cut_held(zone, range, kept),
        }
        self.end_holes(zone, freed);
        let is_recycled = self.is_recycling() && !has_lost(zone, freed);
        let end = RunEnd { range, kept, is_recycled };
        match zone.kind {
            ZoneKind::Ready => self.release_ready(zone, end),
            ZoneKind::Demand => self.release_demand(zone, end),
        }
    }

    /// Takes attributes off the end of a run that is about to be freed, and gives its pages back if they may not be
    /// used again. `None`: the kernel has no room for another mapping. Nobody may get memory with an attribute that
    /// somebody else set, or that somebody may hold. So the addresses stay where they are, without pages if that can
    /// be, until a later free. Of a run that keeps a part they go with that part.
    pub(super) fn take_off(&self, zone: &PoolZone, end: RunEnd) -> Option<Pages> {
        let freed = end.freed();
        if !end.is_recycled && has_lost(zone, freed) {
            self.give_back_around_lost(zone, freed);
            return None;
        }
        let is_plain = self.settle_taint(zone, freed.start.0..freed.end().0);
        if is_plain && end.is_recycled {
            return Some(Pages::There);
        }
        if !is_plain && end.kept == 0 {
            if self.map_run_anew(zone, end.range) {
                return Some(Pages::Gone);
            }
            if has_lost(zone, end.range) {
                return None;
            }
        }
        let mut is_gone = self.give_back_all(zone, end);
        if !is_gone && self.may_be_held() {
            // Locked memory.
            is_gone = zone.reset_frames(freed.start, freed.frames);
        }
        match (is_plain, is_gone) {
            (true, true) => Some(Pages::Gone),
            (true, false) if !self.may_be_held() => Some(Pages::There),
            _ => {
                if end.kept == 0 {
                    self.owe(zone, end.range);
                }
                None
            }
        }
    }

    /// Gives back as many as possible of frames of which some are the kernel's for good.
    #[cold]
    fn give_back_around_lost(&self, zone: &PoolZone, frames: PageRange) {
        let (mut next, end) = (frames.start.0, frames.end().0);
        let is_lost = |frame: &usize| zone.marks.lost.get(*frame);
        while let Some(start) = (next..end).find(|frame| !is_lost(frame)) {
            next = (start..end).find(is_lost).unwrap_or(end);
            if !self.is_quiet() {
                zone.discard_frames(Pfn(start), next - start);
            }
        }
    }

    /// Frees the end of a run; the blocks that are ready and dirty now. `condition`: the new word of a block whose
    /// pages are there. `rest`: the content of frames in a block in parts, if all of the run is freed.
    pub(super) fn put_end(
        &'static self,
        zone: &PoolZone,
        end: RunEnd,
        pages: Pages,
        rest: Rest,
        condition: impl Fn(usize, BlockWord) -> BlockWord,
    ) -> usize {
        let mut freed_ready = 0;
        let condition = |block: usize, word: BlockWord| {
            let now = match pages {
                Pages::There => condition(block, word),
                Pages::Gone if end.cut() == Some(block) => word,
                Pages::Gone => word.emptied(),
            };
            freed_ready += usize::from(now.ready() && !now.zeroed());
            now
        };
        let rest = if pages == Pages::Gone { Rest::of(Want::Zeroed) } else { rest };
        match end.kept {
            0 => zone.ledger().put_range_and_rest(end.range, condition, rest.content),
            kept => zone.ledger().truncate_run(end.range, kept, condition),
        }
        match rest.expected {
            Some(touched) => self.expect_in_tail(zone, end.range, touched),
            None => self.join_tail(zone, end.range),
        }
        self.retired_meanwhile(zone);
        freed_ready
    }

    /// After a run was freed: has the block that its tail was in be free as a whole, if nobody else has a part of it.
    /// Requests of this size look for whole blocks. A block that was trimmed for one suits the next as it is.
    pub(super) fn join_tail(&self, zone: &PoolZone, range: PageRange) {
        let (blocks, tail) = blocks_and_tail(range.frames);
        let last = range.end().block();
        if blocks > 0 && tail > 0 && !zone.ledger().block(last).trimmed() {
            zone.ledger().join(last);
        }
    }

    /// Gives all pages of a run's end back to the kernel: somebody else may hold them. `false` if it refused.
    fn give_back_all(&self, zone: &PoolZone, end: RunEnd) -> bool {
        let PageRange { start, frames } = end.freed();
        let done = match self.discard {
            // SAFETY: the run is at its end, its frames are still claimed, and none is lost: they are mapped.
            Some(Discard(discard)) => unsafe { discard(zone.address(start), frames * FRAME_SIZE) },
            None => zone.discard_frames(start, frames),
        };
        if done {
            self.slot().add(Event::GivenBackBytes, (frames * FRAME_SIZE) as u64);
        }
        done
    }

    /// Frames that are resident in committed memory of the zone. Not known under a seccomp filter:
    /// `malloc` has no need of `mincore`, so the filter may not have it either.
    pub(super) fn resident(&self, zone: &PoolZone, at: *mut u8, len: usize) -> Option<usize> {
        // Relaxed: the thread that installs the filter has set it before.
        if self.quiet.load(Ordering::Relaxed) {
            return None;
        }
        #[cfg(test)]
        super::tests::LOOKS.set(super::tests::LOOKS.get() + 1);
        // SAFETY: as the caller says, the range is committed.
        unsafe { zone.memory().resident(at, len) }.ok()
    }

    /// Lengthens a run where it stands.
    pub(super) fn extend(&self, zone: &PoolZone, range: PageRange, frames: usize) -> bool {
        let added = frames - range.frames;
        self.look_at_growing(zone, range);
        if self.goes_on_elsewhere(zone, range, frames) {
            return false;
        }
        let end_block = range.end().0.div_ceil(BLOCK_FRAMES);
        if end_block == zone.ledger().grown() {
            self.grow(zone, added.div_ceil(BLOCK_FRAMES));
        }
        let Some(run) = zone.ledger().extend_run(range, frames) else { return false };
        // Mostly: the memory after a run in use is seldom ready. The next count puts it right.
        self.take_free(0, 0, added);
        self.add_in_use(zone, added);
        if zone.ledger().block(range.start.block()).state() == BlockState::Whole {
            let whole = Run { range: PageRange { start: range.start, frames }, dirt: run.dirt };
            // Not the block that the old end lies in: it holds the caller's data.
            self.settle_from(zone, &whole, range.frames.div_ceil(BLOCK_FRAMES));
        }
        self.make_room_in(zone);
        let way = self.way_to_grow(zone, range, frames);
        let now = PageRange { start: range.start, frames };
        if way != Way::Small {
            self.price_new(zone, end_block.min(whole_blocks(now).end)..whole_blocks(now).end);
        }
        self.has_grown(zone, now, range.frames, way);
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
            self.settle(zone, &Run { range: added, dirt: run.dirt }, zone.kind.keeps());
        }
    }

    /// Shortens a run.
    pub(super) fn truncate(&'static self, zone: &PoolZone, range: PageRange, frames: usize) {
        self.release(zone, range, range.frames - frames);
    }

    /// Claims, gives back and frees again every free block, from one on, that is not pristine and that `wanted` says;
    /// the blocks it gave back.
    pub(super) fn drop_free_blocks(
        &self,
        zone: &PoolZone,
        from: usize,
        wanted: impl Fn(BlockWord) -> bool,
    ) -> usize {
        let ledger = &zone.ledger();
        // A signal handler may fork, and the child frees what threads of its parent have claimed: this one goes on
        // there, and would empty memory that has an owner by then. So signals are blocked; where no call may be made
        // for that, nothing is claimed that a child frees.
        let is_quiet = self.is_quiet();
        let claim_as = |block: usize, wanted: &dyn Fn(BlockWord) -> bool| match is_quiet {
            true => ledger.take_block(block, wanted).is_some(),
            false => ledger.claim_block(block, wanted).is_some(),
        };
        let claim = |block: usize| claim_as(block, &|word| !word.is_pristine() && wanted(word));
        let grown = ledger.grown();
        let (mut block, mut dropped) = (from, 0);
        while block < grown {
            let word = ledger.block(block);
            if !is_free(word) || word.is_pristine() || !wanted(word) {
                block += 1;
                continue;
            }
            let _blocked = (!is_quiet).then(BlockedSignals::block);
            if !claim_as(block, &|now| now == word) {
                block += 1;
                continue;
            }
            // As many as follow each other, in one call; not so many that much is absent.
            let mut end = block + 1;
            while end < grown && end - block < DROP_BLOCKS && claim(end) {
                end += 1;
            }
            self.take_retained(zone, block..end);
            let done = zone.empty(block..end);
            for block in block..end {
                let word = ledger.block(block);
                let fresh = BlockWord::FRESH.with_hidden(word.hidden());
                ledger.release_block(
                    block,
                    if done { fresh } else { word.with_hints(|it| it.with_age(0)) },
                );
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
