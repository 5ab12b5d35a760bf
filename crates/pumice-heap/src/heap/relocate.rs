//! `realloc` of large runs that can't grow where they stand: pages are moved, not copied.
//!
//! The kernel moves page-table entries (`mremap(2)`): a quarter of a millisecond for a gigabyte, and nothing is
//! faulted in again. The old addresses stay mapped and read as zeros (`MREMAP_DONTUNMAP`); no address of a zone is
//! ever really unmapped. The pages that moved are a mapping of their own from then on, with the attributes that were
//! set on them, so all blocks that this mapping reaches into are *tainted*: before others get them, one fresh mapping
//! takes the attributes off. The same goes for the old place, where the kernel leaves a mapping with the same
//! attributes.

use core::ptr::NonNull;

use super::hints::WithHints;
use super::mapping::has_lost;
use super::serve::whole_blocks;
use super::{blocks_and_tail, Heap, PoolZone, ZoneKind};
use crate::stats::Event;
use pumice_frames::addr::{frames_for, PageRange, Pfn, BLOCK_FRAMES};
use pumice_frames::frame::{BlockWord, Run};
use pumice_frames::sys::mem::Memory;

/// Shorter runs are copied: that costs less than two calls, and leaves no mapping behind.
const LEAST_BLOCKS: usize = 4;

impl Heap {
    /// Moves an allocation to where it has room for `size` bytes: its new address. `None`: it is
    /// as before; allocate, copy and free.
    ///
    /// # Safety
    /// The caller owns the allocation, and after `Some` uses it at its new address only.
    pub unsafe fn relocate(&'static self, at: *mut u8, size: usize) -> Option<NonNull<u8>> {
        let (zone, range) = self.run_at(at).ok()?;
        let frames = frames_for(size);
        let worth_it = whole_blocks(range).len() >= LEAST_BLOCKS && frames > range.frames;
        let may_be_locked =
            self.has_locked() && self.is_tainted(zone.address(range.start) as usize, range.bytes());
        if size > isize::MAX as usize || !worth_it || !self.is_recycling() || may_be_locked {
            return None;
        }
        let run = self.get_pristine(zone, frames)?;
        self.settle(zone, &run, zone.kind.keeps());
        let tail = run.range.frames % BLOCK_FRAMES;
        let dirty_tail = !run.dirt.is_clean() && range.frames > run.range.frames - tail;
        if dirty_tail && !zone.discard_frames(Pfn(run.range.end().0 - tail), tail) {
            zone.ledger().put_range(run.range, |_, word| word);
            return None;
        }
        let to = zone.address(run.range.start);
        // SAFETY: both are whole runs, the caller's and one just got; the new one holds nothing.
        if unsafe { zone.memory().relocate(at, to, range.bytes()) }.is_err() {
            zone.ledger().put_range(run.range, |_, word| word.emptied());
            return None;
        }
        if zone.kind == ZoneKind::Demand {
            self.end_use(zone, whole_blocks(range));
        }
        self.hand_over(zone, range, run.range);
        self.add_in_use(zone, frames - range.frames);
        self.make_room_in(zone);
        self.slot().add(Event::ReallocMoved, 1);
        NonNull::new(to)
    }

    /// Gets blocks that hold nothing.
    pub(super) fn get_pristine(&self, zone: &PoolZone, frames: usize) -> Option<Run> {
        let (blocks, tail) = blocks_and_tail(frames);
        let get = || zone.ledger().get_blocks(blocks, tail, 1, BlockWord::is_pristine);
        let run = get().or_else(|| self.grow(zone, blocks + 1).then(get)?)?;
        self.take_free(0, 0, frames);
        Some(run)
    }

    /// Updates the block words: the pages of `from` are those of `to` now.
    fn hand_over(&self, zone: &PoolZone, from: PageRange, to: PageRange) {
        let (old, new) = (whole_blocks(from), whole_blocks(to));
        let reached = from.frames.div_ceil(BLOCK_FRAMES);
        for index in 0..reached {
            let block = new.start + index;
            if index >= new.len() {
                // The tail ends in a block in parts, which is others' as well.
                zone.ledger().update_word(block, |word| Some(word.with_tainted(true)));
                continue;
            }
            let was_ready = index < old.len() && zone.ledger().block(old.start + index).ready();
            let word = zone.ledger().block(block).with_zeroed(false);
            let word = word.with_tainted(true).with_hints(|it| it.with_advised(false));
            zone.set_owned(block, word.with_ready(was_ready));
        }
        let is_settled =
            self.settle_taint(zone, from.start.0..from.end().0) || self.map_run_anew(zone, from);
        for block in old {
            let word = zone.ledger().block(block);
            self.end_sample(zone, word);
            zone.set_owned(block, word.emptied().with_hints(|it| it.with_sampled(false)));
        }
        // Without room for another mapping these addresses stay where they are: nobody else may get them yet.
        if is_settled {
            zone.ledger().put_range(from, |_, word| word);
        } else if !has_lost(zone, from) {
            self.owe(zone, from);
        }
    }
}
