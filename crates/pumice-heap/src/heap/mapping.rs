//! The heap's memory as mappings: the effects of `munmap` and its relations on a piece of it.
//!
//! A mapping is a run like any other, so mapping and unmapping one whole cost what `malloc` and `free` do. A part that
//! a program unmaps stays the run's until all of the run is unmapped: its pages go back to the kernel, its frames are
//! marked as *holes*, and nobody else gets them. So a piece can be mapped again where it was, and no address is ever
//! free that lies between two in use.
//!
//! Attributes that anyone sets on a piece (protection, locks, advice) *taint* its blocks: when the
//! run is freed, one fresh mapping over them takes everything off ([`super::taint`]).
//!
//! Holes change under a lock, with signals blocked: a handler may unmap, too. Nothing else takes
//! it, so programs that only map and unmap whole never see it.

use core::ops::Range;
use core::ptr::NonNull;

use super::hints::{Hints, WithHints};
use super::serve::{whole_blocks, Keeps};
use super::{Content, Heap, PoolZone};
use crate::scrub::FOR_SCRUBBING;
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::{BlockState, BlockWord};
use pumice_frames::sync::atomic::Ordering;
use pumice_frames::sys::lock::SleepGuard;
use pumice_frames::sys::mem::Huge;
use pumice_frames::sys::{mem, thread};

/// The kind of a part of a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// None of the heap's addresses.
    Outside,
    /// Memory in use.
    Mapped,
    /// The heap's, and unmapped as far as the program knows.
    Hole,
}

/// The effect of a system call on a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets an attribute that must not outlive the mapping.
    Taints,
    /// Locks it: such an attribute, which the kernel miscounts where pages are moved and their place stays mapped.
    Locks,
    /// Asks for huge pages: an attribute, too, but one that the ready zone's memory has.
    AsksForHuge,
    /// Gives pages back.
    Drops,
}

/// How often memory that helpers are found at work on is asked for again.
const ATTEMPTS: usize = 100;

/// Whether a part of a run is the kernel's again.
pub(super) fn has_lost(zone: &PoolZone, run: PageRange) -> bool {
    zone.marks.lost.any(run.start.0..run.end().0)
}

/// Whether a program has unmapped a part of a run.
pub(super) fn has_holes(zone: &PoolZone, run: PageRange) -> bool {
    zone.marks.holes.any(run.start.0..run.end().0)
}

/// Held while holes change; signals are blocked meanwhile. The lock goes first.
pub(super) struct Locked<'h> {
    _lock: SleepGuard<'h>,
    _signals: thread::BlockedSignals,
}

impl Heap {
    pub(super) fn lock_holes(&self) -> Locked<'_> {
        let signals = thread::BlockedSignals::block();
        Locked { _lock: self.holes_lock.lock(), _signals: signals }
    }

    /// Frames leave their run: free memory has no mark.
    pub(super) fn end_holes(&self, zone: &PoolZone, frames: PageRange) {
        if has_holes(zone, frames) {
            let _locked = self.lock_holes();
            zone.marks.holes.clear(frames.start.0..frames.end().0);
        }
    }

    /// Maps `len` bytes of zeros. `None`: the kernel is to do it.
    pub fn map(&'static self, len: usize) -> Option<NonNull<u8>> {
        let at = self.allocate(len, FRAME_SIZE, Content::Zero)?;
        let (zone, run) = self.run_at(at.as_ptr()).ok()?;
        if !zone.marks.set(run) {
            self.release(zone, run, run.frames);
            return None;
        }
        Some(at)
    }

    /// Whether any of these addresses is the heap's.
    pub fn overlaps(&self, at: *const u8, len: usize) -> bool {
        let (start, end) = (at as usize, (at as usize).saturating_add(len.max(1)));
        let own = self.zones.addresses();
        start < own.end && own.start < end
    }

    /// Calls `visit` for each part of a range of whole pages, in order, until it says no. No part
    /// lies in two zones.
    pub fn parts(&self, at: usize, len: usize, mut visit: impl FnMut(Range<usize>, Part) -> bool) {
        let end = at.saturating_add(len);
        let mut next = at;
        while next < end {
            let (part, mut until) = self.part_at(next, end);
            while until < end && !self.zones.is_border(until) {
                match self.part_at(until, end) {
                    (same, further) if same == part => until = further,
                    _ => break,
                }
            }
            if !visit(next..until, part) {
                return;
            }
            next = until;
        }
    }

    /// The kind of part at an address, and how far it is certainly the same.
    fn part_at(&self, at: usize, end: usize) -> (Part, usize) {
        let Some(zone) = self.zone_of(at as *const u8) else {
            let own = self.zones.addresses().start;
            return (Part::Outside, if at < own { end.min(own) } else { end });
        };
        let offset = at - zone.addresses().start;
        let (block, frame) = (offset / BLOCK_SIZE, offset / FRAME_SIZE);
        let whole = block * BLOCK_SIZE + BLOCK_SIZE - offset;
        let own_end = end.min(zone.addresses().end);
        let step = |part, len: usize| (part, own_end.min(at + len));
        if block >= zone.ledger().grown() {
            return step(Part::Hole, own_end - at);
        }
        if zone.marks.lost.any(frame..(block + 1) * BLOCK_FRAMES) {
            let is_lost = zone.marks.lost.get(frame);
            let rest = if is_lost { Part::Outside } else { Part::Mapped };
            let is_hole = !is_lost && !self.is_in_use(zone, frame);
            return step(if is_hole { Part::Hole } else { rest }, FRAME_SIZE);
        }
        match zone.ledger().block(block).state() {
            BlockState::Whole | BlockState::Parts
                if zone.marks.holes.all(frame..(block + 1) * BLOCK_FRAMES) =>
            {
                step(Part::Hole, whole)
            }
            BlockState::Whole => {
                let block_frames = PageRange { start: Pfn(frame), frames: whole / FRAME_SIZE };
                match has_holes(zone, block_frames) {
                    false => step(Part::Mapped, whole),
                    true if zone.marks.holes.get(frame) => step(Part::Hole, FRAME_SIZE),
                    true => step(Part::Mapped, FRAME_SIZE),
                }
            }
            BlockState::Parts => {
                let mapped = zone.ledger().is_allocated(Pfn(frame)) && !zone.marks.holes.get(frame);
                step(if mapped { Part::Mapped } else { Part::Hole }, FRAME_SIZE)
            }
            _ => step(Part::Hole, whole),
        }
    }

    /// Whether a frame is a mapping's or an allocation's, and no hole.
    fn is_in_use(&self, zone: &PoolZone, frame: usize) -> bool {
        match zone.ledger().block(frame / BLOCK_FRAMES).state() {
            BlockState::Whole => !zone.marks.holes.get(frame),
            BlockState::Parts => {
                zone.ledger().is_allocated(Pfn(frame)) && !zone.marks.holes.get(frame)
            }
            _ => false,
        }
    }

    /// Gives a range of whole pages, holes and free memory, back to the kernel for good, addresses and all: it is no
    /// part of the heap any more. As far as it can be had.
    ///
    /// # Safety
    /// Nobody uses it.
    pub unsafe fn surrender(&'static self, at: usize, len: usize) {
        self.parts(at, len, |part, kind| {
            if kind == Part::Hole {
                self.forsake(part.start, part.len());
                let is_lost = self.part_at(part.start, part.end).0 == Part::Outside;
                if let Some(at) = NonNull::new(part.start as *mut u8).filter(|_| is_lost) {
                    // SAFETY: it is nobody's, and stays so. Pages that the kernel refuses to unmap stay mapped.
                    let _ = unsafe { mem::unmap(at, part.len()) };
                }
            }
            true
        });
    }

    /// Removes a range of whole pages from the heap, with any content: somebody else's mapping, or one
    /// that can't be taken back. Calls on it are the kernel's alone from then on.
    pub fn forsake(&'static self, at: usize, len: usize) {
        self.parts(at, len, |part, kind| {
            let is_had = kind != Part::Hole || self.occupy_hole(part.clone()) == part.end;
            if let Some(zone) = self.zone_of(part.start as *const u8).filter(|_| is_had) {
                let first = (part.start - zone.addresses().start) / FRAME_SIZE;
                let frames = first..first + part.len() / FRAME_SIZE;
                if zone.marks.lost.set(frames.clone()) {
                    zone.marks.frames.set(frames);
                }
            }
            true
        });
    }

    /// Notes that a range in use has been sealed: it stays its owner's for good, and calls on it are the kernel's
    /// alone.
    pub fn note_sealed(&self, at: usize, len: usize) {
        self.parts(at, len, |part, kind| {
            if let (Part::Mapped, Some(zone)) = (kind, self.zone_of(part.start as *const u8)) {
                let first = (part.start - zone.addresses().start) / FRAME_SIZE;
                // Without memory for the marks the kernel refuses the call.
                zone.marks.lost.set(first..first + part.len() / FRAME_SIZE);
            }
            true
        });
    }

    /// Whether any memory of the heap's was ever locked.
    pub fn has_locked(&self) -> bool {
        self.has_locked.load(Ordering::Relaxed)
    }

    /// Whether the program has ever advised the kernel to use huge pages for memory of the heap's.
    pub fn has_asked_for_huge(&self) -> bool {
        self.has_asked_for_huge.load(Ordering::Relaxed)
    }

    /// Unmaps the part of a range of whole pages that is the heap's.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn unmap(&'static self, at: usize, len: usize) {
        let end = at + len;
        for zone in self.zones.all() {
            let own = zone.addresses();
            let (start, end) = (at.max(own.start), end.min(own.end));
            if start < end {
                let frames = (start - own.start) / FRAME_SIZE..(end - own.start) / FRAME_SIZE;
                self.unmap_frames(zone, frames);
            }
        }
        self.settle_owed();
    }

    fn unmap_frames(&'static self, zone: &PoolZone, frames: Range<usize>) {
        let first = Pfn(frames.start);
        if let Some(run) = zone.ledger().run_at(first) {
            let is_run = || {
                zone.ledger().block(first.0 / BLOCK_FRAMES).state() == BlockState::Whole
                    || zone.ledger().is_allocated(first)
            };
            let is_plain = !has_holes(zone, run) && !has_lost(zone, run);
            if run.end().0 == frames.end && is_plain && is_run() {
                zone.marks.clear(run);
                self.release(zone, run, run.frames);
                return;
            }
        }
        let _locked = self.lock_holes();
        let mut next = frames.start;
        while next < frames.end {
            let Some(run) = zone.ledger().run_around(Pfn(next)) else {
                let in_parts =
                    zone.ledger().block(next / BLOCK_FRAMES).state() == BlockState::Parts;
                let step = if in_parts { 1 } else { BLOCK_FRAMES };
                next =
                    if in_parts { next + 1 } else { (next + step) / BLOCK_FRAMES * BLOCK_FRAMES };
                continue;
            };
            let gone = next..frames.end.min(run.end().0);
            next = gone.end;
            self.unmap_piece(zone, run, gone);
        }
    }

    /// Makes holes in a run, and frees it when it is nothing else. The caller holds the lock.
    fn unmap_piece(&'static self, zone: &PoolZone, run: PageRange, gone: Range<usize>) {
        let whole_run = gone.start <= run.start.0 && gone.end >= run.end().0;
        // Without memory for the holes the piece stays mapped, which is all that can be done.
        if !whole_run && !zone.marks.holes.set(gone.clone()) {
            return;
        }
        // A run of which a part is the kernel's again never comes back.
        let is_lost = has_lost(zone, run);
        if is_lost && whole_run && !zone.marks.holes.set(gone.clone()) {
            return;
        }
        if !is_lost && (whole_run || zone.marks.holes.all(run.start.0..run.end().0)) {
            let marks = &zone.marks;
            // Here, under the lock: `release` would take it.
            if has_holes(zone, run) {
                marks.holes.clear(run.start.0..run.end().0);
            }
            marks.clear(run);
            self.release(zone, run, run.frames);
            return;
        }
        let blocks = whole_blocks(run);
        let mut next = gone.start;
        while next < gone.end {
            let block = next / BLOCK_FRAMES;
            let end = gone.end.min((block + 1) * BLOCK_FRAMES);
            let block_frames = block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES;
            if blocks.contains(&block) && zone.marks.holes.all(block_frames) {
                self.drop_block(zone, block);
            } else {
                self.empty_piece(zone, next..end);
            }
            next = end;
        }
    }

    /// Empties frames of one block that have become holes. Attributes set on them, and mappings put there, go.
    fn empty_piece(&self, zone: &PoolZone, frames: Range<usize>) {
        let (start, len) = (Pfn(frames.start), frames.len());
        let tainted = zone.ledger().block(frames.start / BLOCK_FRAMES).tainted();
        let is_fresh =
            tainted && (zone.reset_frames(start, len) || self.map_anew(zone, frames.clone()));
        // Where the kernel has no room for another mapping, at least the pages go.
        if !is_fresh
            && !zone.marks.lost.any(frames)
            && (tainted || zone.kind.keeps() == Keeps::Nothing || !self.is_recycling())
        {
            zone.discard_frames(start, len);
        }
    }

    /// Gives the pages of a block of an allocation back; its owner needs nothing in it.
    fn drop_block(&self, zone: &PoolZone, block: usize) {
        let word = zone.ledger().block(block);
        let frames = || block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES;
        if zone.empty(block..block + 1) || word.tainted() && self.map_anew(zone, frames()) {
            let word = word.emptied().with_tainted(false);
            zone.set_owned(block, word.with_hints(|it| it.with_sampled(false)));
        }
    }

    /// As [`Heap::unmap`], of a range of which parts may have become somebody else's: they stay.
    ///
    /// # Safety
    /// As [`Heap::unmap`].
    pub unsafe fn unmap_own(&'static self, at: usize, len: usize) {
        self.parts(at, len, |part, kind| {
            if kind != Part::Outside {
                // SAFETY: as the caller promises.
                unsafe { self.unmap(part.start, part.len()) };
            }
            true
        });
    }

    /// Notes the effect that a call is about to have on a piece of memory in use.
    pub fn note(&self, at: usize, len: usize, effect: Effect) {
        let Some(zone) = self.zone_of(at as *const u8) else { return };
        if effect == Effect::Locks {
            // Relaxed: the thread that moves the memory has been told of it.
            self.has_locked.store(true, Ordering::Relaxed);
        }
        if effect == Effect::AsksForHuge {
            self.note_huge(at, len);
            // Relaxed: as above.
            self.has_asked_for_huge.store(true, Ordering::Relaxed);
            if zone.kind.huge() == Huge::Yes {
                // That changes nothing.
                return;
            }
        }
        if effect != Effect::Drops {
            zone.marks.prepare();
        }
        let offset = at - zone.addresses().start;
        let blocks = match effect {
            Effect::Taints | Effect::Locks | Effect::AsksForHuge => {
                offset / BLOCK_SIZE..(offset + len).div_ceil(BLOCK_SIZE)
            }
            Effect::Drops => offset.div_ceil(BLOCK_SIZE)..(offset + len) / BLOCK_SIZE,
        };
        for block in blocks {
            zone.ledger().update_word(block, |word| match (effect, word.state()) {
                (Effect::Taints | Effect::Locks, BlockState::Whole | BlockState::Parts) => {
                    let grown = word.grown();
                    let hints =
                        |it: Hints| it.with_advised(false).with_moved(false).with_grown(grown);
                    Some(word.with_tainted(true).with_hints(hints))
                }
                (Effect::AsksForHuge, BlockState::Whole | BlockState::Parts) => Some(advised(word)),
                (Effect::Drops, BlockState::Whole) => Some(word.with_ready(false)),
                _ => None,
            });
        }
    }

    /// Whether any of this memory in use may have attributes of its own.
    pub fn is_tainted(&self, at: usize, len: usize) -> bool {
        let Some(zone) = self.zone_of(at as *const u8) else { return true };
        let offset = at - zone.addresses().start;
        let end = (offset + len).div_ceil(BLOCK_SIZE);
        end > zone.ledger().grown()
            || (offset / BLOCK_SIZE..end).any(|block| zone.ledger().block(block).tainted())
    }

    /// Makes a range of whole pages the caller's, which is about to map something there (`MAP_FIXED`): holes, free
    /// memory, and memory in use already. `taints`: it is to be something else than the heap's own memory.
    ///
    /// # Errors
    /// A part of it can't be had. All below that address is the caller's.
    pub fn occupy(&'static self, at: usize, len: usize, taints: bool) -> Result<(), usize> {
        let mut done = Ok(());
        self.parts(at, len, |part, kind| {
            let end = if kind == Part::Hole { self.occupy_hole(part.clone()) } else { part.end };
            if end < part.end {
                done = Err(end);
            } else if taints && kind != Part::Outside {
                self.note(part.start, part.len(), Effect::Taints);
            }
            done.is_ok()
        });
        done
    }

    /// As [`Heap::occupy`], where nothing may be in use yet: of two threads that ask for the same place, one gets it.
    pub fn occupy_holes(&'static self, at: usize, len: usize, taints: bool) -> bool {
        let (mut taken, mut all) = (at, true);
        self.parts(at, len, |part, kind| {
            all = kind == Part::Hole;
            if all {
                taken = self.occupy_hole(part.clone());
                all = taken == part.end;
            }
            all
        });
        if !all {
            // SAFETY: taken a moment ago.
            unsafe { self.unmap(at, taken - at) };
        } else if taints {
            self.note(at, len, Effect::Taints);
        }
        all
    }

    /// Whether a range lies in one of the heap's zones altogether, and all of it is the heap's.
    pub fn contains(&self, at: usize, len: usize) -> bool {
        self.zone_of(at as *const u8).is_some_and(|zone| {
            let first = (at - zone.addresses().start) / FRAME_SIZE;
            // Blocks that were never part of the zone have no marks.
            let end = (first + len.div_ceil(FRAME_SIZE)).min(zone.ledger().grown() * BLOCK_FRAMES);
            zone.addresses().end - at >= len && !zone.marks.lost.any(first.min(end)..end)
        })
    }

    /// Whether a part of a range of the heap's addresses is the heap's no more.
    pub fn has_lost(&self, at: usize, len: usize) -> bool {
        let mut found = false;
        self.parts(at, len, |part, kind| {
            found |= kind == Part::Outside && self.owns(part.start as *const u8);
            !found
        });
        found
    }

    /// Replaces a range in use by memory as fresh as the heap's free memory. `false` if the kernel
    /// refused.
    ///
    /// # Safety
    /// Nobody uses what is in memory there.
    pub unsafe fn renew(&self, at: usize, len: usize) -> bool {
        let mut done = true;
        self.parts(at, len, |part, kind| {
            if let (Part::Mapped, Some(zone)) = (kind, self.zone_of(part.start as *const u8)) {
                self.note(part.start, part.len(), Effect::Drops);
                let frame = (part.start - zone.addresses().start) / FRAME_SIZE;
                done = zone.reset_frames(Pfn(frame), part.len() / FRAME_SIZE);
            }
            done
        });
        done
    }

    /// How far it could be had.
    fn occupy_hole(&self, part: Range<usize>) -> usize {
        let _locked = self.lock_holes();
        let Some(zone) = self.zone_of(part.start as *const u8) else { return part.start };
        let marks = &zone.marks;
        let base = zone.addresses().start;
        let frames = (part.start - base) / FRAME_SIZE..(part.end - base) / FRAME_SIZE;
        let (mut next, mut attempts) = (frames.start, 0);
        while next < frames.end {
            let block = next / BLOCK_FRAMES;
            let end = frames.end.min((block + 1) * BLOCK_FRAMES);
            if block >= zone.ledger().grown() || attempts == ATTEMPTS {
                break;
            }
            self.wait_for_helpers(zone, Pfn(next), end - next);
            let until = self.occupy_in_block(zone, next..end);
            marks.holes.clear(next..until);
            // A helper may have claimed some, or joined the block, since it was waited for.
            attempts += usize::from(until < end);
            next = until;
        }
        base + next * FRAME_SIZE
    }

    /// Makes frames of one block the caller's, as far as they can be had: the first that can't.
    fn occupy_in_block(&self, zone: &PoolZone, frames: Range<usize>) -> usize {
        let marks = &zone.marks;
        let block = frames.start / BLOCK_FRAMES;
        if zone.ledger().block(block).state() == BlockState::Free {
            // All of the block, of which the rest are holes.
            if zone.ledger().occupy_block(block).is_none() {
                return frames.start;
            }
            let block_frames = block * BLOCK_FRAMES..(block + 1) * BLOCK_FRAMES;
            let is_part = block_frames.len() > frames.len();
            let is_marked =
                marks.blocks.set(block..block + 1) && (!is_part || marks.holes.set(block_frames));
            return if is_marked { frames.end } else { frames.start };
        }
        let is_had = |frame: &usize| {
            let occupied =
                || zone.ledger().occupy_frame(Pfn(*frame)) && marks.frames.set(*frame..frame + 1);
            marks.holes.get(*frame) || occupied()
        };
        frames.clone().find(|frame| !is_had(frame)).unwrap_or(frames.end)
    }

    /// Lets the helpers finish their work on frames of one block, and not for ever: on a busy machine they may not
    /// come to run for long.
    fn wait_for_helpers(&self, zone: &PoolZone, start: Pfn, frames: usize) {
        const LOOKS: usize = 2000;
        let ledger = &zone.ledger();
        let is_claimed = || match ledger.block(start.0 / BLOCK_FRAMES).state() {
            BlockState::Claimed => true,
            BlockState::Parts => {
                (start.0..start.0 + frames).any(|frame| ledger.is_claimed(Pfn(frame)))
            }
            _ => false,
        };
        for _ in 0..LOOKS {
            if !is_claimed() {
                return;
            }
            self.scrubber.wait_for_claims(FOR_SCRUBBING, is_claimed, || ());
            // Not a yield: a helper may be of a lower scheduling class than the caller.
            thread::sleep(FOR_SCRUBBING);
        }
    }

    /// In a fork's child: the lock's holder stayed with the parent.
    pub(super) fn forget_holes_lock(&self) {
        self.holes_lock.forget();
    }
}

/// The word of a block in use for which the kernel is about to be advised to use huge pages.
pub(super) fn advised(word: BlockWord) -> BlockWord {
    let has_no_other = !word.tainted() || word.hints().advised();
    let is_alike = has_no_other || word.hints().moved();
    let grown = word.grown();
    let hints = |it: Hints| it.with_advised(has_no_other).with_moved(is_alike).with_grown(grown);
    word.with_tainted(true).with_hints(hints)
}
