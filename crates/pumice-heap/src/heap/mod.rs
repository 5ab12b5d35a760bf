//! Runs of frames for `malloc`-sized requests.
//!
//! A heap has two [`Zone`]s for each memory node ([`zones`]); a request is served from those of the
//! node that it is made on:
//!
//! - *demand* ([`demand`]): blocks that nobody populates and that carry no advice. Requests of a size of which nothing
//!   is known, or of which little is touched, live there as they would with the kernel, and whole blocks go back to it
//!   when they are freed. The pages that were resident then teach [`classes`].
//! - *ready* ([`ready`]): blocks with huge pages that stay when they are freed. scrubd zeroes them ([`source`]);
//!   blocks that it did not get to are cleared hot when zeros are asked for.
//!
//! # Conditions of a block on its way round the ready zone
//! ```text
//!   pristine --get--> in use, faults --put: touched--> dirty, ready --scrub--> zeroed, ready
//!      ^                    |                            |    ^                  |      |
//!      +--- untouched ------+                           get  put                get  offer
//!      +------------------------- decay, or a fork since --+--------------------+------+
//! ```
//!
//! A request waits for another thread only for a moment ([`crate::scrub`]). A request that can't be served at once goes
//! to the next allocator.

mod ahead;
mod bits;
mod classes;
mod cleared;
mod demand;
mod footprint;
mod growth;
mod held;
mod hints;
mod mapping;
mod marks;
mod moves;
mod pins;
mod pool;
mod price;
mod promote;
mod ready;
mod relocate;
mod report;
mod rests;
mod retain;
mod retire;
mod room;
mod serve;
mod source;
mod taint;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod zones;

use core::ptr::NonNull;
use core::time::Duration;

use ahead::Ahead;
use classes::Classes;
use demand::Lessons;
use footprint::Footprint;
use held::Held;
use moves::Moves;
use pins::Pins;
use price::Price;
use promote::Promotions;
use rests::Rests;
use retain::Retained;
use retire::Stays;
use taint::Owed;
use zones::{PoolZone, ZoneKind, Zones};

pub use mapping::{Effect, Part};
pub use pins::is_held_by_other;
pub use retire::Calls;
pub use room::with_room;

use crate::scrub::Scrubber;
use crate::stats::{CounterSlot, Event, Tree};
use pumice_frames::addr::{frames_for, PageRange, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::error::{Error, Result};
use pumice_frames::frame::BlockWord;
#[cfg(doc)]
use pumice_frames::frame::Zone;
use pumice_frames::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use pumice_frames::sys::lock::SleepLock;
use pumice_frames::sys::sched::Affinity;
use pumice_frames::sys::thread;
use pumice_frames::sys::topology::Topology;

pub use pumice_frames::clear::Content;

/// A way to give pages back that others can watch.
#[derive(Clone, Copy, Debug)]
pub struct Discard(unsafe fn(*mut u8, usize) -> bool);

impl Discard {
    /// `give_back` is called with the address of a range and its length: it is mapped in whole pages, and nobody uses
    /// the content.
    ///
    /// # Safety
    /// If `give_back` returns `true`, the whole range reads as zeros until somebody writes to it. If it returns
    /// `false`, parts of it may. It changes nothing else.
    pub const unsafe fn new(give_back: unsafe fn(*mut u8, usize) -> bool) -> Discard {
        Discard(give_back)
    }
}

/// The parameters of a heap's start.
#[derive(Debug)]
pub struct HeapConfig {
    /// The tree whose pool this heap's memory counts for.
    pub tree: &'static Tree,
    /// Where this process counts.
    pub slot: &'static CounterSlot,
    /// Whether to check that memory said to be zero is.
    pub verify: bool,
    /// The engines.
    pub clearer: Clearer,
    /// Whether a helper thread may be started.
    pub threads: bool,
    /// The memory nodes that have zones of their own.
    pub topology: Topology,
    /// The processors that helper threads run on.
    pub home: Affinity,
    /// Gives pages of an allocation back that others may hold, as `MADV_DONTNEED` does, where somebody watches for
    /// that; `None`: nobody does.
    pub discard: Option<Discard>,
}

/// Zones grow by at least this much, and by at most [`GROW_MAX`] more than was asked for.
const GROW_MIN: usize = 32 << 20;
/// See [`GROW_MIN`].
const GROW_MAX: usize = 1 << 30;
/// Rights that change twice within this time change again and again.
const AGAIN: Duration = Duration::from_millis(100);

/// See the module's top. A heap that has served a request must stay where it is for the rest of
/// the process: helper threads know its address.
#[derive(Debug)]
pub struct Heap {
    zones: Zones,
    classes: Classes,
    lessons: Lessons,
    verify: bool,
    ahead: Ahead,
    footprint: Footprint,
    promotions: Promotions,
    held: Held,
    moves: Moves,
    retained: Retained,
    rests: Rests,
    rests_in_demand: Rests,
    price: Price,
    /// Blocks of zeros asked of ready zones; every pass of decay forgets a part.
    zeros_asked: AtomicUsize,
    /// Frames ever freed.
    freed_frames: AtomicUsize,
    scrubber: Scrubber,
    /// See [`mapping`].
    holes_lock: SleepLock,
    /// See [`HeapConfig::discard`].
    discard: Option<Discard>,
    /// Runs that are freed later.
    owed: Owed,
    /// Whether memory was ever locked.
    has_locked: AtomicBool,
    /// Whether the program has ever advised the kernel to use huge pages for some of it.
    has_asked_for_huge: AtomicBool,
    /// The part of freed memory that stays here.
    stays: Stays,
    /// Held by the thread that retires the heap.
    retiring: SleepLock,
    /// The keeper's findings about others that may hold pages.
    pins: Pins,
    /// When helpers were last readmitted of which there was one.
    readmitted_ns: AtomicU64,
    /// Whether a seccomp filter is in force: see [`Heap::go_quiet`].
    quiet: AtomicBool,
}

impl Heap {
    /// Reserves the zones. Nothing is populated and no thread started before the first request.
    ///
    /// # Errors
    /// [`Error::Os`] if there is no address space for it.
    pub fn new(config: HeapConfig) -> Result<Heap> {
        let HeapConfig { tree, slot, verify, clearer, threads, topology, home, discard } = config;
        let zones = Zones::new(topology, tree, slot)?;
        let scrubber = Scrubber::new(slot, clearer, home);
        if !threads {
            scrubber.quiet();
        }
        zones.all().for_each(|zone| zone.begin_hiding());
        Ok(Heap {
            zones,
            classes: Classes::new(),
            lessons: Lessons::new(),
            verify,
            ahead: Ahead::new(),
            footprint: Footprint::new(),
            promotions: Promotions::new(),
            held: Held::new(),
            moves: Moves::new(),
            retained: Retained::new(),
            rests: Rests::new(),
            rests_in_demand: Rests::new(),
            price: Price::new(),
            zeros_asked: AtomicUsize::new(0),
            freed_frames: AtomicUsize::new(0),
            scrubber,
            holes_lock: SleepLock::new(),
            discard,
            owed: Owed::new(),
            has_locked: AtomicBool::new(false),
            has_asked_for_huge: AtomicBool::new(false),
            stays: Stays::new(),
            retiring: SleepLock::new(),
            pins: Pins::new(),
            readmitted_ns: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
        })
    }

    /// Allocates `size` bytes aligned to `align`. `None`: ask the next allocator (also for a size
    /// of 0, an alignment that is no power of two, above 1 GiB, or above 2 MiB for less than that).
    pub fn allocate(
        &'static self,
        size: usize,
        align: usize,
        content: Content,
    ) -> Option<NonNull<u8>> {
        let frames = frames_for(size);
        if frames == 0 || size > isize::MAX as usize || !align.is_power_of_two() {
            return None;
        }
        self.settle_ahead();
        let served = self.serve(frames, align.div_ceil(FRAME_SIZE), content);
        let slot = self.slot();
        let Some(at) = served else {
            slot.add(Event::PassedOn, 1);
            return None;
        };
        slot.add(Event::Requests, 1);
        slot.add(Event::RequestBytes, size as u64);
        slot.add(Event::Zfod, frames as u64);
        Some(at)
    }

    /// Whether the address lies in one of the heap's zones.
    #[inline]
    pub fn owns(&self, at: *const u8) -> bool {
        self.zones.has(at as usize)
    }

    #[inline]
    fn zone_of(&self, at: *const u8) -> Option<&PoolZone> {
        self.zones.of(at as usize)
    }

    /// The zone and the run of an allocation that starts at `at`.
    fn run_at(&self, at: *const u8) -> Result<(&PoolZone, PageRange)> {
        let zone = self.zone_of(at).ok_or(Error::NotAllocated)?;
        let pfn = zone.pfn(at).ok_or(Error::NotAllocated)?;
        let range = zone.ledger().run_at(pfn).ok_or(Error::NotAllocated)?;
        Ok((zone, range))
    }

    /// Bytes usable at `at`; 0 if it is not the start of an allocation.
    pub fn usable_size(&self, at: *const u8) -> usize {
        self.run_at(at).map_or(0, |(_, range)| range.bytes())
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] if `at` is not the start of one: a double free, or no pointer of
    /// this heap.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn free(&'static self, at: *mut u8) -> Result<()> {
        let (zone, range) = self.run_at(at)?;
        match self.is_retired() {
            true => self.free_retired(zone, range),
            false => self.release(zone, range, range.frames),
        }
        self.settle_owed();
        Ok(())
    }

    /// Grows or shrinks an allocation where it stands. `false`: it is as before; relocate it, or
    /// allocate, copy and free.
    ///
    /// # Safety
    /// The caller owns the allocation; the memory beyond the new size is gone.
    pub unsafe fn resize_in_place(&'static self, at: *mut u8, size: usize) -> bool {
        let Ok((zone, range)) = self.run_at(at) else { return false };
        if size > isize::MAX as usize {
            return false;
        }
        let frames = room::frames_left(range.frames, frames_for(size).max(1));
        if self.is_retired() {
            if frames <= range.frames {
                self.shrink_retired(zone, range, frames);
            }
            return frames <= range.frames;
        }
        if frames > range.frames && !self.extend(zone, range, frames) {
            return false;
        }
        if frames < range.frames {
            self.truncate(zone, range, frames);
        }
        if frames != range.frames {
            let now = PageRange { start: range.start, frames };
            self.trim_rest_of_resized(zone, now, range.end());
        }
        self.slot().add(Event::ReallocInPlace, 1);
        true
    }

    /// To be called in the parent just before a `fork`: pages that are populated now will be shared with the child,
    /// and writing it then costs more than a fault.
    pub fn before_fork(&self) {
        self.zones.all().for_each(|zone| zone.ledger().advance_epoch());
    }

    /// To be called in a forked child before it uses the heap: from now on it counts in `slot`,
    /// and drops every free block that it shares with its parent.
    ///
    /// # Safety
    /// It is such a child, and no other thread of it uses the heap or has used it.
    pub unsafe fn after_fork_in_child(&self, slot: &'static CounterSlot) {
        if self.slot().pool_split().is_none() {
            // No helper will be started here either.
            slot.forget_free();
        }
        // SAFETY: as the caller promises.
        unsafe { self.scrubber.after_fork(slot) };
        self.forget_holes_lock();
        self.retiring.forget();
        self.ahead.after_fork();
        // Relaxed: the child has one thread yet that may use the heap.
        self.freed_frames.store(0, Ordering::Relaxed);
        self.footprint.after_fork();
        self.retained.forget();
        self.pins.forget();
        for zone in self.zones.all() {
            // First: memory that goes now is in the parent's share, and stays there.
            zone.budget().adopt(slot);
            // SAFETY: as the caller promises.
            unsafe { zone.adopt() };
            self.drop_free_blocks(zone, 0, |_| true);
            zone.set_ready_blocks(0);
        }
    }

    /// To be called in a forked child that can't count anywhere, instead of [`Heap::after_fork_in_child`]: the heap
    /// retires.
    ///
    /// # Safety
    /// As of that.
    pub unsafe fn after_fork_alone(&'static self) {
        // SAFETY: as the caller promises.
        unsafe { self.scrubber.after_fork(self.slot()) };
        self.forget_holes_lock();
        self.retiring.forget();
        for zone in self.zones.all() {
            // All of it is in the parent's share.
            zone.budget().adopt(self.slot());
            // SAFETY: as the caller promises.
            unsafe { zone.adopt() };
        }
        self.retire(Calls::OfFree);
    }

    /// From now on no system calls but those `malloc` makes: a seccomp filter is in force. Free memory goes before
    /// that, and memory that is freed from then on goes at once: no helper would give it back.
    pub fn go_quiet(&self) {
        self.scrubber.quiet();
        self.keep_nothing_free();
        self.quiet.store(true, Ordering::Relaxed);
        self.slot().forget_free();
        self.zones.all().for_each(|zone| zone.end_hiding());
    }

    /// Whether no system calls are to be made but those of `malloc`.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Ends the helper threads, and starts none any more. Requests do the helpers' work, or it is not done.
    pub fn end_helpers(&self) {
        self.scrubber.quiet();
        self.slot().forget_free();
    }

    /// Ends the helper threads, and starts none until [`Heap::readmit_helpers`] has been called as often: the caller is
    /// about to change its rights, or to do what only a process with one thread may. Whether there was a thread.
    pub fn withhold_helpers(&self) -> bool {
        self.scrubber.withhold()
    }

    /// Ends one [`Heap::withhold_helpers`]. `had_any`: its result.
    ///
    /// Free memory goes on decaying: a helper is started again at once. Where rights change again and again each time
    /// would cost a thread, so then free memory goes now, and a helper comes with the next free.
    pub fn readmit_helpers(&'static self, had_any: bool) {
        self.scrubber.readmit();
        if !had_any || self.is_retired() {
            return;
        }
        let now_ns = thread::now_ns();
        // Relaxed: a hint.
        let before_ns = self.readmitted_ns.swap(now_ns, Ordering::Relaxed);
        let is_again = now_ns.saturating_sub(before_ns) < AGAIN.as_nanos() as u64;
        if is_again && self.ahead.keep() == 0 && self.ahead.left() == 0 {
            self.drop_all_free();
        } else {
            self.scrubber.keep(self);
        }
    }

    /// No helper may run any more, in a process that goes on: all free memory goes, and so does memory that is freed
    /// from now on.
    pub fn go_on_alone(&self) {
        if self.scrubber.has_helpers() || self.is_recycling() {
            self.end_helpers();
            self.keep_nothing_free();
        }
    }

    /// Blocks that are ready and zeroed, and those still to be populated ahead: when the second
    /// is 0, the pool is as full as it gets.
    pub fn ready_blocks(&self) -> (usize, usize) {
        let count = self.zones.all_of(ZoneKind::Ready).map(count_ready).sum();
        (count, self.ahead.left())
    }

    fn tree(&self) -> &'static Tree {
        self.zones.tree()
    }

    fn slot(&self) -> &'static CounterSlot {
        self.zones.slot()
    }
}

/// Blocks of a zone that are ready, zeroed and free.
fn count_ready(zone: &PoolZone) -> usize {
    let ready = |block: &usize| {
        let word = zone.ledger().block(*block);
        is_free(word) && word.ready() && word.zeroed()
    };
    (0..zone.ledger().grown()).filter(ready).count()
}

/// Whether a block is free as a whole.
fn is_free(word: BlockWord) -> bool {
    word.state() == pumice_frames::frame::BlockState::Free
}

/// Whole blocks and the frames after them of a run of `frames`.
fn blocks_and_tail(frames: usize) -> (usize, usize) {
    (frames / BLOCK_FRAMES, frames % BLOCK_FRAMES)
}
