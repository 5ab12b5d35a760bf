//! `realloc` of runs that can't grow where they stand: pages of large ones are moved, not copied.
//!
//! The kernel moves page-table entries ([`super::moves`]): a quarter of a millisecond for a gigabyte, and nothing is
//! faulted in again. The run is a mapping of its own from then on, so all blocks that this mapping reaches into are
//! *tainted*: before others get them, one fresh mapping takes its place. Their hints say that a move did it. A run on
//! which the program has set attributes is copied: its attributes stay as the program set them.
//!
//! Shorter runs are copied if they are dense, where memory is ready for the copy: that costs less than two calls, and
//! leaves no mapping behind. Else all of the copy would be faulted in, and the run's gain with it. A copy of pages that
//! were never touched would have both runs resident, so pages of a *sparse* run of a block and more are moved, too,
//! unless its new size is known to be touched: ready memory suits it better. Where pages are not moved, only those that
//! hold something are copied, to memory that reads as zeros. The kernel's word on residence decides about the way
//! alone: a page that is not resident may be in swap.

use core::ops::Range;
use core::ptr::NonNull;

use super::classes::Density;
use super::growth::Way;
use super::hints::{Hints, WithHints};
use super::mapping::{has_holes, has_lost};
use super::moves::{Moved, Place};
use super::serve::whole_blocks;
use super::{blocks_and_tail, Content, Heap, PoolZone, ZoneKind};
use crate::stats::Event;
use pumice_frames::addr::{frames_for, PageRange, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::is_zero;
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{BlockWord, Run};
use pumice_frames::sys::mem::{self, Memory, Os};

/// Shorter runs are copied if they are dense, and memory is ready.
const LEAST_BLOCKS: usize = 4;
/// A run is sparse if this share of it is absent, and more.
const ABSENT_SHARE: usize = 8;
/// A copy of so small a share of a block costs less than to fault a block in...
const SMALL_SHARE: usize = 4;
/// ... and of a run within a block, less than to fault the run in.
const WITHIN_SHARE: usize = 2;
/// Pages about whose residence the kernel is asked at a time.
const ASKED_PAGES: usize = 512;
/// So many pages that are not resident are mapped by one call before they are looked at.
const MANY_ABSENT: usize = 16;

impl Heap {
    /// Moves an allocation to where it has room for `size` bytes: its new address. `None`: it is
    /// as before; allocate, copy and free.
    ///
    /// # Safety
    /// The caller owns the allocation, and after `Some` uses it at its new address only.
    pub unsafe fn relocate(&'static self, at: *mut u8, size: usize) -> Option<NonNull<u8>> {
        let (zone, range) = self.run_at(at).ok()?;
        let frames = frames_for(size);
        let density = self.classes.density(frames);
        let is_worth_it = || {
            let blocks = whole_blocks(range).len();
            // Each move costs up to two mappings, of which a process has few: none for less than a block.
            let is_sparse = || density != Density::Dense && self.is_sparse_run(zone, range);
            let ready = self.zones.local(zone.node, ZoneKind::Ready);
            let is_none_there = || ready.ledger().held_blocks() < frames / BLOCK_FRAMES;
            blocks >= LEAST_BLOCKS || blocks > 0 && (is_none_there() || is_sparse())
        };
        let may_move = size <= isize::MAX as usize && self.is_recycling() && is_alike(zone, range);
        if frames <= range.frames || !may_move || !is_worth_it() {
            return None;
        }
        let run = self.get_pristine(zone, frames)?;
        self.settle(zone, &run, zone.kind.keeps());
        let way = self.way_to_grow(zone, range, frames);
        let blocks = whole_blocks(range).zip(whole_blocks(run.range));
        // Kept there from before the move, which may make the old blocks new.
        let keep_grown = |is_kept: bool| {
            for (old, new) in blocks.clone() {
                let grown = is_kept && zone.ledger().block(old).grown();
                let word = zone.ledger().block(new);
                zone.set_owned(new, word.with_hints(|it| it.with_grown(grown)));
            }
        };
        keep_grown(true);
        // SAFETY: both are whole runs, the caller's and one just got; the new one holds nothing.
        let place = match unsafe { self.move_run(zone, range, run.range) } {
            Ok(place) => place,
            Err(Moved::Lost) => return None,
            Err(Moved::Yes | Moved::No) => {
                keep_grown(false);
                zone.ledger().put_range(run.range, |_, word| word.emptied());
                return None;
            }
        };
        if zone.kind == ZoneKind::Demand {
            self.end_use(zone, whole_blocks(range));
        }
        let whole = whole_blocks(run.range);
        let moved = range.frames.div_ceil(BLOCK_FRAMES).min(whole.len());
        if way != Way::Small {
            self.price_new(zone, whole.start + moved..whole.end);
        }
        self.hand_over(zone, range, run.range, place);
        self.move_held(zone, range, run.range);
        self.has_grown(zone, run.range, range.frames, way);
        self.add_in_use(zone, frames - range.frames);
        self.make_room_in(zone);
        self.slot().add(Event::ReallocMoved, 1);
        NonNull::new(zone.address(run.range.start))
    }

    /// Moves an allocation that is to shrink to a small part of its blocks to a place of that size, by a
    /// copy: its new address. Its old place is ready for the next request of that size, which finds no room in the rest
    /// of a run that stands where it stood. A program that reads into large buffers and cuts them would fault in memory
    /// each time. `None`: it is as before, as is one on which the program has set attributes, and one of a demand zone,
    /// whose rest goes to the kernel where rests are too much ([`super::rests`]); shrink it where it stands.
    ///
    /// # Safety
    /// The caller owns the allocation, and after `Some` uses it at its new address only.
    pub unsafe fn shrink_elsewhere(
        &'static self,
        at: *mut u8,
        size: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let (zone, range) = self.run_at(at).ok()?;
        let most = match range.frames {
            BLOCK_FRAMES.. => BLOCK_FRAMES / SMALL_SHARE,
            within => within / WITHIN_SHARE,
        };
        let is_small = frames_for(size) <= most && size > 0;
        let is_worth_it = zone.kind == ZoneKind::Ready && is_small;
        if !is_worth_it || !self.is_recycling() || !is_alike(zone, range) {
            return None;
        }
        let new = self.allocate(size, align, Content::Any)?;
        // SAFETY: both are allocations of that size and more, and the caller gives the first one up.
        unsafe {
            new.as_ptr().copy_from_nonoverlapping(at, size);
            let _ = self.free(at);
        }
        self.slot().add(Event::ReallocMoved, 1);
        Some(new)
    }

    /// Whether much of an allocation was never touched, or that may be and it is to be seen. `false` where that is not
    /// known.
    pub fn is_sparse(&self, at: *const u8) -> bool {
        self.run_at(at).is_ok_and(|(zone, range)| match zone.kind {
            // So long a run is copied where it was a guess, and would have grown beyond what may be one.
            ZoneKind::Ready => {
                range.frames >= LEAST_BLOCKS * BLOCK_FRAMES
                    && self.classes.density(range.frames) != Density::Dense
            }
            ZoneKind::Demand => self.is_sparse_run(zone, range),
        })
    }

    pub(super) fn is_sparse_run(&self, zone: &PoolZone, range: PageRange) -> bool {
        if zone.kind == ZoneKind::Ready {
            // Requests that touch little are not served from there.
            return false;
        }
        let resident = self.resident(zone, zone.address(range.start), range.bytes());
        let most = range.frames - range.frames.div_ceil(ABSENT_SHARE);
        resident.is_some_and(|resident| resident <= most)
    }

    /// Copies the first `len` bytes of a sparse allocation, without a page where it holds nothing.
    ///
    /// # Safety
    /// The caller owns both. The new place has so many bytes, which read as zeros, and is about to take the
    /// allocation's place.
    pub unsafe fn copy_sparse(&self, at: *const u8, to: *mut u8, len: usize) {
        let mut seen = [0; ASKED_PAGES];
        for start in (0..len).step_by(ASKED_PAGES * FRAME_SIZE) {
            let piece = start..len.min(start + ASKED_PAGES * FRAME_SIZE);
            // SAFETY: it lies in the allocation.
            unsafe {
                let from = at.add(start);
                let pages = mem::residence(from, piece.len(), &mut seen).unwrap_or(&[]);
                if pages.iter().filter(|&&page| page & 1 == 0).count() >= MANY_ABSENT {
                    // To look at them would be a fault for each. Where the kernel can't, it is.
                    let _ = mem::populate_read(from, piece.len());
                }
                copy_pages(at, to, piece, pages);
            }
        }
    }

    /// Gets blocks that hold nothing.
    pub(super) fn get_pristine(&self, zone: &PoolZone, frames: usize) -> Option<Run> {
        let (blocks, tail) = blocks_and_tail(frames);
        let ledger = zone.ledger();
        let get = || ledger.get_blocks(blocks, tail, 1, BlockWord::is_pristine);
        let run = get()
            .or_else(|| ledger.join_all().then(get)?)
            .or_else(|| self.grow(zone, blocks + 1).then(get)?)?;
        self.take_free(0, 0, frames);
        Some(run)
    }

    /// Updates the block words: the pages of `from` are those of `to` now, whose words say already which are advised.
    fn hand_over(&self, zone: &PoolZone, from: PageRange, to: PageRange, place: Place) {
        let (old, new) = (whole_blocks(from), whole_blocks(to));
        for (index, block) in new.clone().enumerate() {
            let was_ready = index < old.len() && zone.ledger().block(old.start + index).ready();
            let word = zone.ledger().block(block).with_zeroed(false).with_tainted(true);
            let hints = |it: Hints| {
                let grown = index < old.len() && it.offered();
                it.with_advised(false).with_moved(true).with_grown(grown)
            };
            zone.set_owned(block, word.with_hints(hints).with_ready(was_ready));
        }
        if to.frames % BLOCK_FRAMES > 0 {
            // The tail ends in a block in parts, which is others' as well.
            zone.ledger().update_word(new.end, |word| {
                let is_alike = !word.tainted() || word.hints().moved();
                let hints =
                    |it: Hints| it.with_advised(false).with_moved(is_alike).with_grown(false);
                Some(word.with_tainted(true).with_hints(hints))
            });
        }
        for block in old {
            let word = zone.ledger().block(block);
            self.end_sample(zone, word);
            let word = word.emptied().with_hints(|it| it.with_sampled(false).with_grown(false));
            zone.set_owned(block, word.with_tainted(word.tainted() && place != Place::Free));
        }
        match place {
            Place::Free => {
                zone.ledger().put_range_and_rest(from, |_, word| word, Want::Zeroed);
                self.join_tail(zone, from);
            }
            // The kernel would not take attributes off: nobody else may get these addresses yet.
            Place::Kept => self.owe(zone, from),
            Place::Lost => {}
        }
    }
}

/// Whether all of a run is there, and no attribute is set on a part of it, as far as its blocks say: a mapping that
/// grows has its attributes everywhere.
pub(super) fn is_alike(zone: &PoolZone, range: PageRange) -> bool {
    if has_holes(zone, range) || has_lost(zone, range) {
        return false;
    }
    let blocks = range.start.block()..range.end().0.div_ceil(BLOCK_FRAMES);
    blocks.map(|block| zone.ledger().block(block)).all(|word| {
        let hints = word.hints();
        !word.tainted() || hints.moved() || hints.advised()
    })
}

/// Copies the pages of a piece that are not zero. The kernel is to have no page of zeros mapped where there was none:
/// memory that is freed tells by its pages how much of it was touched. `resident`: its answer for each page before, if
/// there was one.
///
/// # Safety
/// As [`Heap::copy_sparse`].
unsafe fn copy_pages(at: *const u8, to: *mut u8, piece: Range<usize>, resident: &[u8]) {
    let mut absent = piece.start..piece.start;
    let discard = |absent: &Range<usize>| {
        if !absent.is_empty() {
            // SAFETY: it is the caller's, and holds zeros. Where the kernel refuses, they are counted.
            let _ = unsafe { Os.discard(at.add(absent.start).cast_mut(), absent.len()) };
        }
    };
    for (nth, start) in piece.clone().step_by(FRAME_SIZE).enumerate() {
        let page = start..piece.end.min(start + FRAME_SIZE);
        // SAFETY: it lies in both.
        unsafe {
            if !is_zero(at.add(start), page.len()) {
                to.add(start).copy_from_nonoverlapping(at.add(start), page.len());
                continue;
            }
        }
        if resident.get(nth).is_none_or(|byte| byte & 1 != 0) {
            continue;
        }
        if absent.end < start {
            discard(&absent);
            absent.start = start;
        }
        absent.end = start + FRAME_SIZE;
    }
    discard(&absent);
}
