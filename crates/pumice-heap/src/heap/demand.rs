//! Memory that the heap treats as the kernel would: the steps that it takes in the demand zones only.
//!
//! Blocks of a demand zone have no pages when they are handed out, but for those that were [retained](super::retain),
//! and carry no advice. A run that is freed teaches [`super::classes`] how much of it was touched; its pages move to
//! the ready zone ([`super::promote`]), are retained, or go back to the kernel.

use core::array;

use super::classes::{scattered, Density};
use super::held::PLACES;
use super::hints::WithHints;
use super::retain::Rest;
use super::serve::{whole_blocks, Keeps, Pages, RunEnd, SAMPLE_BLOCKS};
use super::{Heap, PoolZone, ZoneKind};
use crate::stats::Event;
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{BlockWord, Dirt, Run};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};

/// Addresses of runs, each where its hash says, until another takes the place. Relaxed: hints, and a run that is
/// forgotten teaches nothing.
#[derive(Debug)]
struct Runs([AtomicUsize; 64]);

impl Runs {
    fn new() -> Runs {
        Runs(array::from_fn(|_| AtomicUsize::new(0)))
    }

    fn of(&self, at: *const u8) -> &AtomicUsize {
        &self.0[scattered((at as usize / FRAME_SIZE) as u64) as usize % self.0.len()]
    }

    fn put(&self, at: *const u8, mark: usize) {
        self.of(at).store(at as usize | mark, Ordering::Relaxed);
    }

    /// Whether a run is there with this mark, which it is no more.
    fn take(&self, at: *const u8, mark: usize) -> bool {
        let entry = self.of(at);
        let is_there = entry.load(Ordering::Relaxed) == at as usize | mark;
        if is_there {
            entry.store(0, Ordering::Relaxed);
        }
        is_there
    }
}

/// Runs that were handed out last and teach something later.
#[derive(Debug)]
pub(super) struct Lessons {
    /// Runs for classes without a sample, which have not grown. One that has grown and leaves its place for that is
    /// [marked](LEAVES) there, until it is freed.
    growing: Runs,
    /// Runs within a block that are looked at when they are freed.
    samples: Runs,
}

const STAYS: usize = 0;
const LEAVES: usize = 1;

impl Lessons {
    pub(super) fn new() -> Lessons {
        Lessons { growing: Runs::new(), samples: Runs::new() }
    }

    pub(super) fn may_grow(&self, at: *const u8) {
        self.growing.put(at, STAYS);
    }
}

impl Heap {
    /// The blocks that suit a request best, if not any will do.
    pub(super) fn get_demand(
        &self,
        keeps: Keeps,
        get: impl Fn(&dyn Fn(BlockWord) -> bool) -> Option<Run>,
    ) -> Option<Run> {
        if !self.retained.is_any() {
            return None;
        }
        match keeps {
            Keeps::Pages => get(&|word| !word.is_pristine()),
            Keeps::Nothing => get(&BlockWord::is_pristine),
        }
    }

    /// Arranges to see how much of a run is touched: all of it is looked at when it is freed. Its whole blocks have no
    /// pages; its part of a block with others may have some that others touched.
    pub(super) fn begin_sample_in_demand(&self, zone: &PoolZone, run: &mut Run) {
        let tail = run.range.frames % BLOCK_FRAMES;
        let is_clean =
            run.dirt.is_clean() || zone.discard_frames(Pfn(run.range.end().0 - tail), tail);
        if is_clean {
            run.dirt = Dirt::NONE;
        }
        if run.range.frames >= BLOCK_FRAMES {
            let first = run.range.start.block();
            self.promotions.add_unknown();
            zone.set_owned(
                first,
                zone.ledger().block(first).with_hints(|it| it.with_sampled(true)),
            );
        } else if is_clean {
            self.lessons.samples.put(zone.address(run.range.start), STAYS);
        }
    }

    /// A block of a run is not its owner's any more: if that was to be seen how much of it is touched, it is known.
    pub(super) fn end_sample(&self, zone: &PoolZone, word: BlockWord) {
        if zone.kind == ZoneKind::Demand && word.hints().sampled() {
            self.promotions.subtract_unknown();
        }
    }

    /// Puts back the end of a run.
    pub(super) fn release_demand(&'static self, zone: &PoolZone, end: RunEnd) {
        let mut promoted = 0;
        let whole = whole_blocks(end.range);
        let freed = whole.start + (end.kept / BLOCK_FRAMES).min(whole.len())..whole.end;
        self.end_use(zone, freed.clone());
        if end.kept == 0 {
            // Before attributes are taken off: that takes the pages, too.
            self.look_back(zone, end.range);
            if !whole.is_empty() {
                self.end_sample(zone, zone.ledger().block(whole.start));
            }
            promoted = if end.is_recycled { self.promote(zone, end.range) } else { 0 };
        }
        // Taking attributes off takes the pages, too.
        let has_rest = end.range.frames % BLOCK_FRAMES > 0;
        let is_rest_reset = has_rest && zone.ledger().block(whole.end).tainted();
        let Some(pages) = self.take_off(zone, end) else {
            self.expect_nothing(zone, freed);
            return;
        };
        let (given_back, rest) = match pages {
            Pages::There => self.give_back_pages(zone, end, promoted, is_rest_reset),
            Pages::Gone => (0, Rest::of(Want::Zeroed)),
        };
        // Nobody knows where the pages of a whole block end.
        let unknown = |_, word: BlockWord| word.with_own(0);
        let freed_ready = promoted + self.put_end(zone, end, pages, rest, unknown);
        self.drop_top(zone, end.range);
        if pages == Pages::There {
            self.notice_freed(end.frames() - given_back * BLOCK_FRAMES, freed_ready);
        }
    }

    /// Learns how much of a run was touched.
    fn look_back(&self, zone: &PoolZone, range: PageRange) {
        let whole = whole_blocks(range);
        let density = self.classes.density(range.frames);
        let start = zone.address(range.start);
        if density == Density::Unknown && self.lessons.growing.take(start, LEAVES) {
            // All runs of a class that are freed may be such, and those that stay be touched little.
            return;
        }
        let is_sample = if whole.is_empty() {
            self.lessons.samples.take(start, STAYS)
        } else {
            zone.ledger().block(whole.start).hints().sampled()
        };
        // A run that grew was not handed out to be looked at.
        if is_sample || density == Density::Unknown {
            if !whole.is_empty() && zone.ledger().block(whole.start).grown() {
                // Advice has made more resident than was touched.
                let Some(eighths) = self.written_eighths(zone, range) else { return };
                self.classes.learn(range.frames, eighths, PLACES);
                let in_blocks = eighths * BLOCK_FRAMES / PLACES;
                return self.classes.learn_of_blocks(range.frames, in_blocks, 1);
            }
            let (body, tail) = (whole.len() * BLOCK_SIZE, range.frames % BLOCK_FRAMES * FRAME_SIZE);
            let resident = |from: usize, len| match len {
                0 => Some(0),
                _ => self.resident(zone, start.wrapping_add(from), len),
            };
            let touched = resident(0, body).zip(resident(body, tail));
            if let Some((in_blocks, in_tail)) = touched {
                self.classes.learn(range.frames, in_blocks + in_tail, range.frames);
                if !whole.is_empty() {
                    self.classes.learn_of_blocks(range.frames, in_blocks, whole.len());
                    self.expect(zone, whole, in_blocks);
                }
            }
        }
    }

    /// A run is about to grow. A program that fills a vector asks for its first size each time, and never frees a run
    /// of that size.
    pub(super) fn look_at_growing(&self, zone: &PoolZone, range: PageRange) {
        if self.lessons.growing.take(zone.address(range.start), STAYS) {
            match zone.kind {
                // All of it is resident in any case.
                ZoneKind::Ready => self.classes.note_again(range.frames),
                ZoneKind::Demand => {
                    let start = zone.address(range.start);
                    if let Some(touched) = self.resident(zone, start, range.bytes()) {
                        self.classes.note_growth(range.frames, touched);
                    }
                }
            }
        }
    }

    /// Whether a request without zeros, of whose class nothing is known but that its runs grow when they are full, is
    /// to have memory that is there in any case.
    pub(super) fn has_for_growing(&self, node: usize, frames: usize) -> bool {
        self.holds(node, frames) && self.classes.is_growing(frames)
    }

    /// Whether free memory of a node's ready zone comes to so many frames.
    pub(super) fn holds(&self, node: usize, frames: usize) -> bool {
        frames <= self.zones.local(node, ZoneKind::Ready).ledger().held_blocks() * BLOCK_FRAMES
    }

    /// Whether a short run goes on better in the ready zone, by a copy: there is memory for its new size, which is
    /// known to be touched. A run of a size that is known is here to be looked at, which is done. Where it grew, it
    /// would come on top of the ready zone's memory for it.
    pub(super) fn goes_on_elsewhere(&self, zone: &PoolZone, run: PageRange, frames: usize) -> bool {
        let is_better = zone.kind == ZoneKind::Demand
            && run.frames < SAMPLE_BLOCKS * BLOCK_FRAMES
            && self.classes.density(frames) == Density::Dense
            && self.holds(zone.node, frames)
            && !self.is_sparse_run(zone, run);
        if is_better {
            self.lessons.growing.put(zone.address(run.start), LEAVES);
        }
        is_better
    }

    /// Gives the pages of a run's end back to the kernel, but for the first `gone` blocks, which hold nothing any more,
    /// and those that are retained. Returns how many blocks went back, and the content of the frames beside whole
    /// blocks; `is_rest_reset`: they hold nothing any more.
    fn give_back_pages(
        &self,
        zone: &PoolZone,
        end: RunEnd,
        gone: usize,
        is_rest_reset: bool,
    ) -> (usize, Rest) {
        let RunEnd { range, kept, .. } = end;
        let whole = whole_blocks(range);
        let from = whole.start + kept.div_ceil(BLOCK_FRAMES).max(gone);
        let is_retained = kept == 0 && gone == 0 && self.retain(zone, range);
        let mut given_back = 0;
        if !is_retained && from < whole.end {
            let done = zone.discard(from..whole.end);
            given_back = if done { whole.end - from } else { 0 };
            self.slot().add(Event::GivenBackBytes, (given_back * BLOCK_SIZE) as u64);
            for block in from..whole.end {
                let word = zone.ledger().block(block);
                zone.set_owned(block, word.emptied().with_zeroed(done));
            }
        }
        if kept % BLOCK_FRAMES != 0 && kept / BLOCK_FRAMES < whole.len() {
            let cut = whole.start + kept / BLOCK_FRAMES;
            zone.set_owned(cut, zone.ledger().block(cut).with_zeroed(false));
            let start = range.start.0 + kept;
            zone.discard_frames(Pfn(start), (cut + 1) * BLOCK_FRAMES - start);
        }
        // A run in a block with others stays where it is, and resident, for as long as one of them is in use. That is
        // much, where requests of its size have gone to the ready zone since.
        let start = (range.start.0 + kept).max(whole.end * BLOCK_FRAMES);
        let is_rest = start < range.end().0;
        let expected = if is_retained && is_rest { self.retain_tail(zone, range) } else { None };
        let stays = is_rest
            && (whole.is_empty() || expected.is_some())
            && self.classes.density(range.frames) != Density::Dense
            && (kept == 0 || !self.are_rests_in_demand_many());
        let is_empty = is_rest_reset
            || !stays && is_rest && zone.discard_frames(Pfn(start), range.end().0 - start);
        if is_empty {
            if let Some(touched) = expected {
                self.forget_tail(touched);
            }
            return (given_back, Rest::of(Want::Zeroed));
        }
        (given_back, Rest { content: Want::Dirty, expected })
    }
}
