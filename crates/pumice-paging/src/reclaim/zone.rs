//! Reclaim of a zone: the pages of all spaces on it, and a record of each frame.
//!
//! Faulting threads report new pages in batches. One thread, [`ZoneReclaim::kswapd`], evicts pages between the low and
//! the high watermark of free frames. Below min, the allocating thread does direct reclaim (`direct`).
//!
//! How much is free is counted now and then, and estimated in between: a count looks at all the ledger.
//!
//! ```text
//!   frames are asked for     - n     before they are taken
//!     not admitted           + n
//!     admitted, not found    + n     Reclaim::give_back
//!     taken                  nothing
//!   reclaim has freed some   + n
//!   counted                  := what is free in the ledger, also with threads between being admitted and taking
//! ```
//! So a count may be too high by the requests that come meanwhile, until the next count. Frames that are given back
//! after such a count do not raise it beyond the count.
//!
//! The record of a frame may be out of date: an unmapped page is not reported. So a page that is to go is
//! looked up by its number, and where it is in another frame, or in none, nothing but the record goes. So a late
//! report may hide a page that has the frame by then; `kswapd` meets that page when it walks the tables.
//!
//! One lock, never held over I/O, over a walk, or while anybody waits for another lock but a backing's own.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicU8, AtomicUsize, Ordering};

use crate::page_table::pager::LruPage;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES};
use pumice_frames::frame::{Pressure, Watermarks};
use pumice_io::sync::{in_policy, Condvar, Mutex, MutexGuard, ThreadId};
use pumice_io::Engines;

use super::contained_policy::ContainedPolicy;
use super::counts::Counts;
use super::kswapd_state::Kswapd;
use super::members::{CachedSlot, Members, Owner};
use super::policy::{Arrival, Policy, Shadow};
use super::requests::Requests;
use super::settings::Settings;
use super::shrinker::Shrinkers;
use super::writes::Writes;

/// Pages that the policy is told of by one call.
const ADDED_AT_ONCE: usize = 32;
/// Accessed bits looked at for each page that goes: so that all are looked at some times while the memory turns over
/// once.
pub(super) const SCANNED_PER_PAGE: usize = 4;
/// Frames that are free where nobody knows.
const UNKNOWN: isize = isize::MAX / 2;

/// The zone's knowledge of a frame: 16 bytes, and as many are the policy's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub owner: Owner,
    /// The slot that the page keeps since it came, 0 for none.
    pub slot: u32,
    /// [`Frame::came`] and [`Frame::is_new`].
    event: u32,
}

const _: () = assert!(size_of::<Frame>() + size_of::<super::list::Page>() <= 32);

impl Frame {
    /// A shadow, below these bits.
    const FRESH: u32 = 1 << Shadow::BITS;
    const REFAULT: u32 = 2 << Shadow::BITS;
    const READ_AHEAD: u32 = 3 << Shadow::BITS;
    const IS_NEW: u32 = 4 << Shadow::BITS;

    /// A page is in it, of which the policy is not told yet if it came back from its backing.
    pub fn of(owner: Owner, slot: u32, came: Option<Arrival>) -> Frame {
        let came = match came {
            None => 0,
            Some(Arrival::Fresh) => Self::FRESH,
            Some(Arrival::Refault(shadow)) => Self::REFAULT | shadow.to_bits(),
            Some(Arrival::ReadAhead) => Self::READ_AHEAD,
        };
        Frame { owner, slot, event: came | Self::IS_NEW }
    }

    /// It came back from its backing; the policy has not been told.
    fn came(&self) -> Option<Arrival> {
        match self.event & Self::READ_AHEAD {
            0 => None,
            Self::FRESH => Some(Arrival::Fresh),
            Self::REFAULT => Some(Arrival::Refault(Shadow::from_bits(self.event))),
            _ => Some(Arrival::ReadAhead),
        }
    }

    /// Its accessed bit, when it is seen first, says no more than that it came to be used, or was read ahead of that.
    pub fn is_new(&self) -> bool {
        self.event & Self::IS_NEW != 0
    }

    /// Its accessed bit was seen.
    pub fn note_seen(&mut self) {
        self.event &= !Self::IS_NEW;
    }

    pub fn slot(&self) -> Option<CachedSlot> {
        (self.slot != 0).then(|| (self.owner.member(), self.slot))
    }
}

#[derive(Debug)]
pub(super) struct State<P> {
    pub policy: ContainedPolicy<P>,
    /// By the frames' numbers in the zone: the policy's pages.
    pub frames: Vec<Frame>,
    first: usize,
    pub members: Members,
    /// Whether a page may be in the swap cache: it was told of such since all were looked at.
    pub may_have_slots: bool,
    pub shrinkers: Shrinkers,
    pub settings: Settings,
    pub counts: Counts,
    /// Between low and high.
    is_balancing: bool,
    pub requests: Requests,
    /// Pages that are being written.
    pub leaving: usize,
    /// Writes that have failed since one went.
    pub failures: usize,
    pub is_stopped: bool,
    pub kswapd: Kswapd,
    /// Threads that reclaim, which can't wait for that.
    pub reclaimers: Vec<ThreadId>,
    /// Where the scan of accessed bits goes on.
    pub hand: usize,
    /// Where the walk over page tables for pages to unmap goes on: which space, which page.
    pub swap_out_from: (usize, usize),
    /// Where the look for pages that nobody told of goes on: which space, which page; and batches since.
    pub sweep_from: (usize, usize),
    pub since_sweep: usize,
}

impl<P: Policy> State<P> {
    /// Whether more pages are to be evicted than leave already, with so many frames free.
    pub fn is_short(&mut self, free: usize) -> bool {
        let Watermarks { low, high, .. } = self.settings.watermarks;
        let most = self.settings.most_pages;
        let (free, pages) = (free.saturating_add(self.leaving), self.policy.len());
        let is_low = free < low || pages > most;
        let is_high = free >= high && pages <= most - most / 16;
        self.is_balancing = is_low || (self.is_balancing && !is_high);
        self.is_balancing || self.requests.waiting() > self.leaving
    }

    /// A frame's number in the zone.
    pub fn number(&self, frame: Pfn) -> Option<usize> {
        let number = frame.0.checked_sub(self.first)?;
        (number < self.frames.len()).then_some(number)
    }

    /// Pages of a member's are in frames. Slots of other pages, which were there before and were unmapped, are given
    /// up: now, for only as long as the frame says whose it was is that a member still.
    pub fn add_all(&mut self, member: usize, pages: &[LruPage]) {
        let mut arrivals = [(0, 0, Arrival::Fresh); ADDED_AT_ONCE];
        for pages in pages.chunks(ADDED_AT_ONCE) {
            let mut len = 0;
            for &page in pages {
                let Some(arrival) = self.note_arrival(member, page) else { continue };
                arrivals[len] = arrival;
                len += 1;
            }
            self.policy.add_all(&arrivals[..len]);
        }
    }

    /// Records the owner of a frame, and the event for the policy.
    fn note_arrival(&mut self, member: usize, page: LruPage) -> Option<(u32, u64, Arrival)> {
        let number = self.number(page.frame)?;
        let owner = Owner::new(member, page.page);
        let frame = &mut self.frames[number];
        let old = *frame;
        let came = old.came().filter(|_| old.owner == owner);
        let slot = if came.is_some() { old.slot } else { 0 };
        *frame = Frame::of(owner, slot, None);
        if let Some((member, old)) = old.slot().filter(|_| old.slot != slot) {
            self.members.release(member, old);
        }
        Some((number as u32, owner.name(), came.unwrap_or(Arrival::Fresh)))
    }

    /// A page that the policy knows was not there when it was looked at: it is nobody's any more, nor is the slot that
    /// is returned. Unless it came back a moment ago, and the thread that brought it is about to say so.
    pub fn forget_gone(&mut self, number: u32) -> Option<CachedSlot> {
        let frame = &mut self.frames[number as usize];
        if frame.came().is_some() {
            return None;
        }
        self.policy.forget(number);
        std::mem::take(frame).slot()
    }

    /// Whether a thread reclaims at the moment.
    pub fn is_reclaiming(&self, thread: ThreadId) -> bool {
        self.reclaimers.contains(&thread)
    }

    /// Whether it is known that a page is in a frame.
    pub fn knows(&mut self, member: usize, page: LruPage) -> bool {
        let owner = Owner::new(member, page.page);
        let number = self.number(page.frame).filter(|&number| self.frames[number].owner == owner);
        number.is_some_and(|number| self.policy.contains(number as u32))
    }

    /// Whether so few pages are known that others may be in memory too.
    pub fn has_lost_pages(&mut self, free: usize) -> bool {
        let in_use = self.frames.len().saturating_sub(free).min(self.settings.most_pages);
        self.policy.len() < in_use / 2
    }

    /// A page that was chosen stays. If the frame has become another page's meanwhile, the policy knows that already.
    /// Returns a slot that nobody knows of any more.
    pub fn stays(
        &mut self,
        owner: Owner,
        number: u32,
        slot: u32,
        shadow: Shadow,
    ) -> Option<CachedSlot> {
        let lost = (slot != 0).then(|| (owner.member(), slot));
        if self.policy.contains(number) || !self.members.is_open(owner.member()) {
            return lost;
        }
        let frame = &mut self.frames[number as usize];
        self.policy.put_back(number, shadow);
        if !frame.owner.is_none() {
            return lost;
        }
        *frame = Frame::of(owner, slot, None);
        frame.note_seen();
        self.may_have_slots |= slot != 0;
        None
    }

    /// Forgets the records of a member's pages, in frames from `first` on, `most` of them at most. Where to go on
    /// from; `None` at the end.
    pub fn forget_pages(
        &mut self,
        member: usize,
        first: usize,
        most: usize,
        slots: &mut Vec<u32>,
    ) -> Option<usize> {
        let end = (first + most).min(self.frames.len());
        for number in first..end {
            let frame = &mut self.frames[number];
            if frame.owner.is_none() || frame.owner.member() != member {
                continue;
            }
            slots.extend(frame.slot().map(|(_, slot)| slot));
            *frame = Frame::default();
            if self.policy.contains(number as u32) {
                self.policy.forget(number as u32);
            }
        }
        (end < self.frames.len()).then_some(end)
    }
}

/// See the module's top.
pub struct ZoneReclaim<P> {
    /// Numbers of its frames, in spaces over several zones.
    numbers: Range<usize>,
    pub(super) state: Mutex<State<P>>,
    /// Frames that are free, as was counted last, without those that were taken since: too few rather than too many.
    /// Very many if nobody knows. Relaxed: an estimate, counted anew when it sinks too low.
    free: AtomicIsize,
    /// The last count, and frames freed since: no more can be free by what is given back. Relaxed: as above.
    most: AtomicIsize,
    /// Frames taken and freed since it was counted. Relaxed: as above.
    changed: AtomicUsize,
    /// Requests that passed the zone over since it was counted. Relaxed: as above.
    passed_over: AtomicUsize,
    /// The watermarks, of the settings. Relaxed: settings.
    min: AtomicUsize,
    low: AtomicUsize,
    high: AtomicUsize,
    /// [`Kswapd::is_asleep`], as `kswapd` fell asleep. Relaxed: a hint; the thread that wakes it looks under the lock.
    pub(super) is_kswapd_asleep: AtomicBool,
    /// [`Pressure`] without the lock. Relaxed: a hint, checked again under the lock.
    pressure: AtomicU8,
    /// For `kswapd`.
    pub(super) wake: Condvar,
    pub(super) frames_freed: Condvar,
    /// A reclaimer has let go of a space, or of a shrinker.
    pub(super) let_go: Condvar,
    engines: Mutex<Engines>,
    /// Writers of direct reclaim that are idle.
    pub(super) idle_writes: Mutex<Vec<Writes>>,
    /// Errors in reading, which are counted without the lock. Relaxed: a number.
    read_errors: AtomicU64,
}

impl<P: Policy> ZoneReclaim<P> {
    /// With a policy for the `frames` frames of a zone.
    pub fn new(policy: P, frames: usize, settings: Settings) -> ZoneReclaim<P> {
        let mut policy = ContainedPolicy::new(policy, frames);
        let settings = settings.checked();
        policy.tune(settings.policy);
        let state = State {
            policy,
            frames: vec![Frame::default(); frames],
            first: 0,
            members: Members::default(),
            may_have_slots: false,
            shrinkers: Shrinkers::default(),
            settings,
            counts: Counts::default(),
            is_balancing: false,
            requests: Requests::default(),
            leaving: 0,
            failures: 0,
            is_stopped: false,
            kswapd: Kswapd::default(),
            reclaimers: Vec::new(),
            hand: 0,
            swap_out_from: (0, 0),
            sweep_from: (0, 0),
            since_sweep: 0,
        };
        ZoneReclaim {
            numbers: 0..frames,
            state: Mutex::new(state),
            free: AtomicIsize::new(UNKNOWN),
            most: AtomicIsize::new(UNKNOWN),
            changed: AtomicUsize::new(0),
            passed_over: AtomicUsize::new(0),
            min: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            is_kswapd_asleep: AtomicBool::new(false),
            pressure: AtomicU8::new(Pressure::None as u8),
            wake: Condvar::new(),
            frames_freed: Condvar::new(),
            let_go: Condvar::new(),
            engines: Mutex::new(Engines::default()),
            idle_writes: Mutex::new(Vec::new()),
            read_errors: AtomicU64::new(0),
        }
    }

    /// With frames from this number on, as spaces over several zones have them: the first that is a multiple of 512 and
    /// that none of the zones before it has. A space on one zone numbers its frames from 0: it has no such reclaim.
    #[must_use]
    pub fn starting_at(mut self, first: Pfn) -> ZoneReclaim<P> {
        let frames = self.numbers.len();
        self.numbers = first.0..first.0 + frames;
        self.state.get_mut().first = first.0;
        self
    }

    /// Whether a frame is of this zone.
    pub(super) fn has(&self, frame: Pfn) -> bool {
        self.numbers.contains(&frame.0)
    }

    /// How many frames it has.
    pub(super) fn frames(&self) -> usize {
        self.numbers.len()
    }

    /// The frame that has a number in the zone.
    pub(super) fn frame(&self, number: u32) -> Pfn {
        Pfn(self.numbers.start + number as usize)
    }

    /// The settings.
    pub fn settings(&self) -> Settings {
        self.state().settings
    }

    /// Changes the settings.
    #[doc(hidden)]
    pub fn set_settings(&self, settings: Settings) {
        let settings = settings.checked();
        let mut state = self.state();
        state.settings = settings;
        state.policy.tune(settings.policy);
        self.count_free(&mut state);
        drop(state);
        self.wake.notify_all();
    }

    /// Frames that are free, about.
    pub(super) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed).max(0) as usize
    }

    /// Counts the free frames. Nobody tells reclaim of frames whose pages were unmapped. Where no thread was to get a
    /// frame, as far as was known, and there are some, all requests look again. That is not so twice, unless frames
    /// were taken in between.
    pub(super) fn count_free(&self, state: &mut State<P>) {
        let was_min = self.pressure_now() == Pressure::Min;
        let free = state.members.free_frames();
        let free = free.and_then(|free| isize::try_from(free).ok()).unwrap_or(UNKNOWN);
        let Watermarks { min, low, high } = state.settings.watermarks;
        self.min.store(min, Ordering::Relaxed);
        self.low.store(low, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
        self.most.store(free, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
        self.changed.store(0, Ordering::Relaxed);
        self.passed_over.store(0, Ordering::Relaxed);
        let is_min = self.set_pressure() == Pressure::Min;
        if was_min && !is_min {
            state.requests.note_freed(1);
            if state.requests.waiting() > 0 {
                self.frames_freed.notify_all();
            }
        }
    }

    /// Frames are about to be taken: whether so many are free that nothing else is to be asked.
    pub(super) fn takes(&self, frames: usize) -> bool {
        let before = self.free.fetch_sub(frames as isize, Ordering::Relaxed);
        before - frames as isize >= self.low.load(Ordering::Relaxed) as isize
    }

    /// They are not taken after all. A count meanwhile found them where they are.
    pub(super) fn gives_back(&self, frames: usize) {
        let most = self.most.load(Ordering::Relaxed);
        let back = |free: isize| Some((free + frames as isize).min(most));
        let _ = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    /// How short memory is by frames that are about to be taken, [`ZoneReclaim::takes`] having said so.
    pub(super) fn count_taken(&self, frames: usize) -> Pressure {
        if self.is_out_of_date(frames) && !in_policy::is_calling() {
            self.count_free(&mut self.state());
            // They are still there.
            self.free.fetch_sub(frames as isize, Ordering::Relaxed);
        }
        self.set_pressure()
    }

    /// So many more requests have passed the zone over. Of a zone that has as many blocks, a count costs each of them
    /// no more than a look at one block. The request does not wait for the lock: the count stays, and the next request
    /// that passes over tries again.
    pub(super) fn count_passed_over(&self, requests: usize) {
        let passed_over = self.passed_over.fetch_add(requests, Ordering::Relaxed) + requests;
        if passed_over < self.frames() / BLOCK_FRAMES {
            return;
        }
        if let Some(mut state) = self.state.try_lock() {
            self.count_free(&mut state);
        }
    }

    /// So many frames were freed.
    fn count_freed(&self, state: &mut State<P>, frames: usize) {
        self.most.fetch_add(frames as isize, Ordering::Relaxed);
        self.free.fetch_add(frames as isize, Ordering::Relaxed);
        if self.is_out_of_date(frames) {
            self.count_free(state);
        }
        self.set_pressure();
    }

    /// Whether so much has changed that what is known of free frames may be wrong by a quarter of the way from min to
    /// low; or in a large zone by a 64th of it, so that a count, which looks at all of it, costs each frame as much as
    /// in a small one, but not by more than the half of the way from low to high. A reclaimer counts before it begins.
    fn is_out_of_date(&self, frames: usize) -> bool {
        let changed = self.changed.fetch_add(frames, Ordering::Relaxed) + frames;
        let level = |mark: &AtomicUsize| mark.load(Ordering::Relaxed);
        let (min, low, high) = (level(&self.min), level(&self.low), level(&self.high));
        let in_large = (self.frames() / 64).min(high.saturating_sub(low) / 2);
        changed > (low.saturating_sub(min) / 4).max(in_large)
    }

    pub(super) fn set_pressure(&self) -> Pressure {
        let level = |mark: &AtomicUsize| mark.load(Ordering::Relaxed);
        let (min, low, high) = (level(&self.min), level(&self.low), level(&self.high));
        let pressure = Watermarks { min, low, high }.pressure(self.free());
        if self.pressure.load(Ordering::Relaxed) != pressure as u8 {
            self.pressure.store(pressure as u8, Ordering::Relaxed);
        }
        pressure
    }

    pub(super) fn pressure_now(&self) -> Pressure {
        match self.pressure.load(Ordering::Relaxed) {
            0 => Pressure::None,
            1 => Pressure::High,
            2 => Pressure::Low,
            _ => Pressure::Min,
        }
    }

    /// Sets the engines of reclaim that begins from now on.
    pub fn set_engines(&self, engines: &Engines) {
        let mut own = self.engines.lock();
        let old = std::mem::replace(&mut *own, engines.clone());
        drop(own);
        // Its drop may run others' code, so no lock is held.
        drop(old);
    }

    pub(super) fn engines(&self) -> Engines {
        self.engines.lock().clone()
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.state().counts;
        counts.errors += self.read_errors.load(Ordering::Relaxed);
        counts
    }

    /// Ends [`ZoneReclaim::kswapd`]. Threads that wait for frames get an error.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
        self.frames_freed.notify_all();
    }

    /// # Panics
    /// In a policy's method, which is called under this lock.
    pub(super) fn state(&self) -> MutexGuard<'_, State<P>> {
        in_policy::refuse();
        self.state.lock()
    }

    /// Tells those who wait that frames are free.
    pub(super) fn tell(&self, state: &mut State<P>, freed: usize) {
        state.requests.note_freed(freed);
        state.kswapd.start_over();
        self.count_freed(state, freed);
        // No more than will find one. Where nobody waits, which is nearly always, the kernel is not asked.
        match state.requests.waiting() {
            0 => {}
            waiting if freed >= waiting => self.frames_freed.notify_all(),
            _ => (0..freed).for_each(|_| self.frames_freed.notify_one()),
        }
    }

    /// Tells the threads that had asked before the failed series began that there will be no frames; for the others it
    /// is tried again.
    pub(super) fn refuse(&self, state: &mut State<P>, asked: u64) {
        self.count_free(state);
        if state.requests.refuse_up_to(asked) {
            state.kswapd.get_stuck();
        } else {
            state.kswapd.get_unstuck();
        }
        state.kswapd.note_futile();
        self.frames_freed.notify_all();
    }

    pub(super) fn note_read_error(&self) {
        self.read_errors.fetch_add(1, Ordering::Relaxed);
    }
}

impl<P> std::fmt::Debug for ZoneReclaim<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZoneReclaim").finish_non_exhaustive()
    }
}
