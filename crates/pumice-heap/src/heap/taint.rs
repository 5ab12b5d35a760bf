//! Attributes that programs set on memory, and the mappings they cost, go when the memory is freed.
//!
//! No free frame has an attribute. One fresh mapping takes them all off (`MAP_FIXED`), at once and without a gap. The
//! kernel refuses that to a process with more mappings than it may have (`vm.max_map_count`), although the process
//! would have fewer of them afterwards. There `munmap` works, which a program would call without the heap: for a moment
//! the addresses are the kernel's. If another thread's mapping lands there, they are the heap's no more.
//!
//! The kernel refuses `munmap`, too, where it would have to split one mapping in three. Then the memory is *owed*: its
//! run stays in use, all of it is holes, and a later free tries again.

use core::ops::Range;
use core::ptr::NonNull;

use super::hints::WithHints;
use super::moves::mark_lost;
use super::retain::Rest;
use super::serve::{whole_blocks, RunEnd};
use super::{Heap, PoolZone};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::BlockState;
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{self, Huge, Memory};

/// Runs that are owed of which one call frees no more.
const MOST_SETTLED: usize = 16;

/// The number of runs that are owed. Relaxed: a hint.
#[derive(Debug)]
pub(super) struct Owed(AtomicUsize);

impl Owed {
    pub(super) fn new() -> Owed {
        Owed(AtomicUsize::new(0))
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Heap {
    /// Takes every attribute off frames of a run that are about to be freed: no free frame is
    /// tainted. `false` if the kernel refused.
    pub(super) fn settle_taint(&self, zone: &PoolZone, frames: Range<usize>) -> bool {
        let mut next = frames.start;
        while next < frames.end {
            let block = next / BLOCK_FRAMES;
            let end = frames.end.min((block + 1) * BLOCK_FRAMES);
            let word = zone.ledger().block(block);
            let is_whole = word.state() == BlockState::Whole && end - next == BLOCK_FRAMES;
            if !word.tainted() {
                next = end;
                continue;
            }
            if !is_whole {
                if !zone.reset_frames(Pfn(next), end - next) {
                    return false;
                }
                next = end;
                continue;
            }
            let is_alike = |block: &usize| {
                let word = zone.ledger().block(*block);
                word.state() == BlockState::Whole && word.tainted()
            };
            let blocks = block..frames.end / BLOCK_FRAMES;
            let until = blocks.clone().find(|block| !is_alike(block)).unwrap_or(blocks.end);
            if !zone.reset(block..until) {
                return false;
            }
            (block..until).for_each(|block| set_settled(zone, block));
            next = until * BLOCK_FRAMES;
        }
        true
    }

    /// Takes frames that their owner is about to free out of the address space, and maps them anew. `false`: the
    /// kernel refused the one or the other. Where it refused the other, they are lost, which their marks say.
    pub(super) fn map_anew(&self, zone: &PoolZone, frames: Range<usize>) -> bool {
        let (at, len) = (zone.address(Pfn(frames.start)), frames.len() * FRAME_SIZE);
        let marks = &zone.marks;
        if marks.lost.any(frames.clone()) {
            return false;
        }
        let was_marked = marks.frames.get(frames.start);
        // First: as soon as they are unmapped, an allocation of another's may be there.
        let is_marked = mark_lost(zone, frames.clone());
        let unmark = || {
            marks.lost.clear(frames.clone());
            if !was_marked {
                marks.frames.clear(frames.clone());
            }
        };
        // SAFETY: their owner needs nothing in them.
        let unmap = |at| unsafe { mem::unmap(at, len) }.is_ok();
        if !is_marked || !NonNull::new(at).is_some_and(unmap) {
            unmark();
            return false;
        }
        if mem::map_where_none(at, len).is_err() {
            return false;
        }
        if zone.kind.huge() == Huge::Yes {
            // SAFETY: it lies in the zone. A kernel without huge pages refuses it; small ones do.
            let _ = unsafe { zone.memory().set_huge(at, len, Huge::Yes) };
        }
        unmark();
        true
    }

    /// As [`Heap::map_anew`], for a whole run.
    pub(super) fn map_run_anew(&self, zone: &PoolZone, run: PageRange) -> bool {
        let done = self.map_anew(zone, run.start.0..run.end().0);
        if done {
            whole_blocks(run).for_each(|block| set_settled(zone, block));
        }
        done
    }

    /// Has a later free settle a run. Without memory to note it, the run stays where it is for good.
    pub(super) fn owe(&self, zone: &PoolZone, run: PageRange) {
        let marks = &zone.marks;
        let first = run.start.0;
        // In this order: holes that are noted are all there, unless somebody has mapped some of them again.
        if marks.holes.set(first..run.end().0) && marks.owed.set(first..first + 1) {
            self.owed.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Frees runs that are owed, as far as the kernel lets it.
    #[inline]
    pub(super) fn settle_owed(&'static self) {
        if self.owed.count() > 0 && !self.is_retired() {
            self.settle_some();
        }
    }

    #[cold]
    fn settle_some(&'static self) {
        // Nobody maps a hole again meanwhile.
        let _locked = self.lock_holes();
        let mut left = MOST_SETTLED;
        for zone in self.zones.all() {
            for block in 0..zone.ledger().grown() {
                let mut frames = block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES;
                if !zone.marks.owed.any(frames.clone()) {
                    continue;
                }
                while let Some(first) = frames.find(|&frame| zone.marks.owed.take(frame)) {
                    self.owed.0.fetch_sub(1, Ordering::Relaxed);
                    left -= 1;
                    if !self.settle_run(zone, Pfn(first)) || left == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// Frees a run that was owed. `false`: it is owed again. The caller holds the lock of the holes.
    fn settle_run(&'static self, zone: &PoolZone, first: Pfn) -> bool {
        let Some(range) = zone.ledger().run_at(first) else { return true };
        let holes = &zone.marks.holes;
        let frames = || range.start.0..range.end().0;
        if !holes.all(frames()) {
            // Somebody has mapped some of it again, and unmaps it some day.
            return true;
        }
        let end = RunEnd { range, kept: 0, is_recycled: false };
        let Some(pages) = self.take_off(zone, end) else { return false };
        holes.clear(frames());
        self.put_end(zone, end, pages, Rest::of(Want::Dirty), |_, word| word.with_zeroed(false));
        true
    }
}

/// A whole block of a run has no attribute and no page any more.
pub(super) fn set_settled(zone: &PoolZone, block: usize) {
    let word = zone.ledger().block(block).emptied().with_tainted(false);
    zone.set_owned(block, word.with_hints(|it| it.with_sampled(false).with_grown(false)));
}
