//! The part of freed memory that stays here, and the end of a heap before its process ends.
//!
//! | kept | since | memory that is freed |
//! |---|---|---|
//! | pages | the start | is recycled: see the top of [`super`] |
//! | little | no helper can give pages back | gives its pages to the kernel at once, but for those that it refuses to take; its addresses are used again |
//! | addresses | somebody else may hold the pages ([`Heap::stop_recycling`]) | the same, and where the kernel refuses, for locked memory, a new mapping takes their place |
//! | nothing | [`Heap::retire`] | is unmapped, as its owner would expect of memory from the kernel |
//! | all | [`Heap::retire`] where no system call is allowed | stays where it is |
//!
//! A heap only moves down the table. A forked child begins at its parent's row.
//!
//! # A heap that is retired
//! It serves nothing any more. Free memory is unmapped, reserved addresses included, and memory in use is unmapped
//! when it is freed. The kernel may then put others' mappings at these addresses, so they must not seem to be the
//! heap's. In the ledger they are *absent* blocks, or frames that stay allocated for ever and are marked as mappings,
//! which are nobody's allocation. All calls on mappings are the kernel's alone from then on.

use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;

use super::mapping::{has_holes, has_lost};
use super::serve::whole_blocks;
use super::{Heap, PoolZone};
use pumice_frames::addr::{PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sync::atomic::{fence, AtomicU32, Ordering};
use pumice_frames::sys::{mem, thread};

const PAGES: u32 = 0;
const LITTLE: u32 = 1;
const ADDRESSES: u32 = 2;
const NOTHING: u32 = 3;
const ALL: u32 = 4;

/// How often, and how many times, a retiring heap looks whether other threads' requests are over: a second at least.
const PAUSE: Duration = Duration::from_micros(50);
const LOOKS: u32 = 20_000;

/// See the module's top. Relaxed: it is set before the call that makes the difference, and a thread that frees
/// what the call concerned has been told of it by the program's own means.
#[derive(Debug)]
pub(super) struct Stays(AtomicU32);

impl Stays {
    pub(super) fn new() -> Stays {
        Stays(AtomicU32::new(PAGES))
    }

    #[inline]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the caller was the first to go so far.
    fn go_to(&self, stage: u32) -> bool {
        self.0.fetch_max(stage, Ordering::Relaxed) < stage
    }
}

/// Which system calls may be made when memory is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those that the C library's `free` makes.
    OfFree,
    /// None.
    None,
}

impl Heap {
    /// From now on memory that is freed goes back to the kernel: pages of it may still be held, by a pipe, a socket
    /// or a device, and no call tells which.
    pub fn stop_recycling(&self) {
        self.stays.go_to(ADDRESSES);
    }

    /// Whether memory that is freed is used again.
    #[inline]
    pub fn is_recycling(&self) -> bool {
        self.stays.get() == PAGES
    }

    /// Whether somebody else may hold pages that are freed.
    pub(super) fn may_be_held(&self) -> bool {
        self.stays.get() >= ADDRESSES
    }

    /// As [`Heap::stop_recycling`], where no helper gives free memory back: it goes now, but for pages that the kernel
    /// refuses to take.
    pub(super) fn keep_nothing_free(&self) {
        self.stays.go_to(LITTLE);
        self.drop_all_free();
    }

    /// Gives back all that is free, which is only addresses then.
    pub(super) fn drop_all_free(&self) {
        for zone in self.zones.all() {
            zone.ledger().join_all();
            self.drop_free_blocks(zone, 0, |_| true);
            zone.set_ready_blocks(0);
        }
    }

    /// Whether [`Heap::retire`] was called.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.stays.get() >= NOTHING
    }

    /// Whether memory that is freed may be unmapped.
    pub fn may_unmap(&self) -> bool {
        self.stays.get() != ALL
    }

    /// As [`Heap::retire`] where no call is allowed, of a heap that is retired already.
    pub fn keep_what_is_freed(&self) {
        self.stays.go_to(ALL);
    }

    /// Ends the heap: see the module's top. The caller asks it for nothing any more; requests that other threads are in
    /// the middle of end well. Called where every system call is still allowed.
    ///
    /// Where another thread is at it, this returns when that is done: the caller's next step counts mapped memory.
    pub fn retire(&'static self, calls: Calls) {
        // A handler of the program's might ask for the same.
        let _all_signals = thread::BlockedSignals::block();
        let _turn = self.retiring.lock();
        self.quiet.store(true, Ordering::Relaxed);
        self.end_helpers();
        let is_first = !self.is_retired();
        if is_first {
            self.zones.all().for_each(cut);
            self.end_samples_in_ready();
        }
        let is_ready = self.zones.all().all(|zone| zone.marks.make());
        // Without memory for the marks nothing can be given up: it stays, as where no call is allowed.
        let stage = if calls == Calls::OfFree && is_ready { NOTHING } else { ALL };
        if !self.stays.go_to(stage) || !is_ready {
            return;
        }
        // Either the steps below meet the memory that a thread is freeing, or that thread meets the stage: see
        // `retired_meanwhile`.
        fence(Ordering::SeqCst);
        let mut looks = LOOKS;
        self.wait_while(&mut looks, |zone| is_first && zone.is_growing());
        // Twice: other threads may have been in the middle of requests the first time.
        for _ in 0..2 {
            let away = self.scrubber.claims_away();
            self.wait_while(&mut looks, |zone| zone.ledger().has_more_claims_than(away));
            for zone in self.zones.all() {
                self.unmap_what_is_free(zone);
            }
        }
    }

    /// Waits for threads that are making a zone larger, or have claimed a block of which they want a part: the memory
    /// that they do not use is unmapped with the rest. On a busy machine they may not come to run for long, and one
    /// that a program has stopped does not run at all: after `looks` in all their memory stays until they free it.
    fn wait_while(&self, looks: &mut u32, is_busy: impl Fn(&PoolZone) -> bool) {
        while *looks > 0 && self.zones.all().any(&is_busy) {
            *looks -= 1;
            thread::sleep(PAUSE);
        }
    }

    /// To be called when memory has been put back into a zone: the heap may have retired since the caller looked.
    #[inline]
    pub(super) fn retired_meanwhile(&self, zone: &PoolZone) {
        // Either this sees the stage, or the retiring thread sees the memory that was put back.
        fence(Ordering::SeqCst);
        if self.stays.get() == NOTHING {
            self.unmap_late(zone);
        }
    }

    /// Excluded from the thread that retires: that thread relies on absent memory being unmapped.
    #[cold]
    fn unmap_late(&self, zone: &PoolZone) {
        let _all_signals = thread::BlockedSignals::block();
        let _turn = self.retiring.lock();
        self.unmap_what_is_free(zone);
    }

    fn unmap_what_is_free(&self, zone: &PoolZone) {
        let grown = zone.ledger().grown();
        unmap_free(zone, 0..grown);
        zone.take_out_removed(|block| unmap_blocks(zone, block..block + 1));
        self.unmap_holes(zone, grown);
        zone.end_hiding();
    }

    /// Memory that programs have unmapped in part.
    fn unmap_holes(&self, zone: &PoolZone, grown: usize) {
        let _locked = self.lock_holes();
        let holes = &zone.marks.holes;
        for block in 0..grown {
            let end = (block + 1) * BLOCK_FRAMES;
            let mut next = block * BLOCK_FRAMES;
            if !holes.any(next..end) {
                continue;
            }
            while let Some(start) = (next..end).find(|&frame| holes.get(frame)) {
                next = (start..end).find(|&frame| !holes.get(frame)).unwrap_or(end);
                holes.clear(start..next);
                give_up(zone, start..next);
            }
        }
    }

    /// Frees a run of a heap that is retired.
    #[cold]
    pub(super) fn free_retired(&self, zone: &PoolZone, run: PageRange) {
        if !self.may_unmap() {
            return;
        }
        zone.uncharge(whole_blocks(run).len());
        give_up(zone, run.start.0..run.end().0);
    }

    /// Shortens a run of a heap that is retired. Like a free, it makes no call but the one that unmaps.
    #[cold]
    pub(super) fn shrink_retired(&self, zone: &PoolZone, run: PageRange, frames: usize) {
        if self.stays.get() == NOTHING && frames < run.frames && !has_lost(zone, run) {
            let ledger = zone.ledger();
            ledger.truncate_run(run, frames, |_, word| word.with_zeroed(false));
            let cut = run.start.0 + frames;
            unmap_free(zone, cut / BLOCK_FRAMES..run.end().0.div_ceil(BLOCK_FRAMES));
        }
    }

    /// Moves an allocation of a heap that is retired to where the kernel has room for `len` bytes, whole frames: the
    /// mapping is the caller's, and no longer an allocation. `None`: it is as before, as is one of several mappings.
    /// Attributes that the program has set on all of it stay.
    ///
    /// # Safety
    /// The caller owns the allocation, and after `Some` uses it at its new address only.
    pub unsafe fn outgrow(&self, at: *mut u8, len: usize) -> Option<NonNull<u8>> {
        let (zone, run) = self.run_at(at).ok()?;
        let frames = run.start.0..run.end().0;
        let is_whole = !has_holes(zone, run) && !has_lost(zone, run);
        // Marked first, as in `give_up`: its addresses may be another's as soon as it has moved.
        if self.stays.get() != NOTHING || !is_whole || !zone.marks.set_frames(frames.clone()) {
            return None;
        }
        // SAFETY: as the caller promises.
        let moved = unsafe { mem::resize(at, run.bytes(), len) };
        match moved {
            Ok(_) => zone.uncharge(whole_blocks(run).len()),
            Err(_) => zone.marks.clear_frames(frames),
        }
        moved.ok()
    }

    /// Whether an address is that of memory that the heap has handed out, or could.
    #[inline]
    pub fn has(&self, at: *const u8) -> bool {
        self.zone_of(at).is_some_and(|zone| {
            let frame = (at as usize - zone.addresses().start) / FRAME_SIZE;
            // In this order: blocks that were never part of the zone have no marks.
            !zone.ledger().is_absent(frame / BLOCK_FRAMES) && !zone.marks.is_mapping(frame)
        })
    }
}

/// Unmaps the addresses that were never part of a zone, and the tables about them.
fn cut(zone: &PoolZone) {
    let unused = zone.ledger().end_growth();
    // The thread that ends growth cuts.
    if unused.is_empty() {
        return;
    }
    let kept = unused.start;
    // A limit on addresses may leave no room for the marks before the unused addresses are gone.
    unmap_blocks(zone, unused);
    // SAFETY: nobody has memory of these blocks, so nobody asks about them but by `Heap::has`, which first asks
    // whether they are absent.
    unsafe {
        zone.cut_tables();
        if zone.marks.make() {
            zone.marks.cut(kept);
        }
    }
}

/// Unmaps the free blocks among these, and free frames in those that are in parts.
fn unmap_free(zone: &PoolZone, blocks: Range<usize>) {
    let ledger = zone.ledger();
    let mut start = blocks.start;
    for block in blocks.clone() {
        ledger.join(block);
        if ledger.take_out(block).is_none() {
            unmap_blocks(zone, start..block);
            start = block + 1;
            ledger.take_rest(block, |frames| give_up(zone, frames));
        }
    }
    unmap_blocks(zone, start..blocks.end);
}

/// Unmaps frames that nobody else can get any more. First they are marked: as soon as they are unmapped, an
/// allocation of another's may be there.
fn give_up(zone: &PoolZone, frames: Range<usize>) {
    if zone.marks.set_frames(frames.clone()) {
        unmap(zone, frames);
    }
}

fn unmap_blocks(zone: &PoolZone, blocks: Range<usize>) {
    if !blocks.is_empty() {
        unmap(zone, blocks.start * BLOCK_FRAMES..blocks.end * BLOCK_SIZE / FRAME_SIZE);
    }
}

fn unmap(zone: &PoolZone, frames: Range<usize>) {
    let at = NonNull::new(zone.address(Pfn(frames.start)));
    if let Some(at) = at {
        // SAFETY: the ledger gives these frames to nobody any more, and their last owner has let them go. Memory that
        // the kernel refuses to unmap stays where it is.
        let _ = unsafe { mem::unmap(at, frames.len() * FRAME_SIZE) };
    }
}
