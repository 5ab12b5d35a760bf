//! Reclaim of a zone: the pages of all spaces on it, and what is known of each frame.
//!
//! Faulting threads say what came in, in batches, and wait when no frame is left. One thread,
//! [`ZoneReclaim::kswapd`], takes pages out. It begins when more pages are in memory than [`Limits::low`], works down
//! to [`Limits::high`], and at any time when somebody waits.
//!
//! What is known of a frame may be out of date: nobody says that a page was unmapped. So a page that is to go is
//! looked up by its number, and where it is in another frame, or in none, nothing but the record goes. What a thread
//! tells late may so hide a page that has the frame by then; `kswapd` meets that page when it walks the tables.
//!
//! One lock, never held over I/O, over a walk, or while anybody waits for another lock but a backing's own.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Duration;

use crate::addr::Pfn;
use crate::backing::Came;
use crate::io::Engines;
use crate::page_table::pager::{LruPage, SpaceId};
use crate::page_table::Rights;
use crate::sync::{current_thread, Condvar, Mutex, MutexGuard, ThreadId};

use super::policy::{Arrival, Policy, Shadow};
use super::spaces::Members;

/// Longest that a thread waits for frames before it looks again; who frees them wakes it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Pages in memory, of those there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Above this, pages are taken out (frames are under the low watermark).
    pub low: usize,
    /// Down to this (up to the high watermark).
    pub high: usize,
}

impl Limits {
    /// For a zone of `frames` frames: a 16th of them stay free for tables and threads' lists, half as many again
    /// are made free at a time.
    pub const fn of(frames: usize) -> Limits {
        Limits { low: frames - frames / 16, high: frames - frames * 3 / 32 }
    }
}

/// What happened so far, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// `pswpout`: written out.
    pub pswpout: u64,
    /// Requests that they were written by.
    pub writes: u64,
    /// `pswpin`: read in.
    pub pswpin: u64,
    /// Of these, such as nobody had asked for yet.
    pub read_ahead: u64,
    /// Taken out without being written: the copy elsewhere was good.
    pub clean: u64,
    /// Met again by a fault while they were written.
    pub rescued: u64,
    /// Not written or not read, for an error.
    pub errors: u64,
    /// `allocstall`: times a thread waited for a frame.
    pub allocstall: u64,
}

/// Whose page a frame has: which member of the zone's spaces, and the page's number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(u64);

impl Owner {
    const PAGE_BITS: u32 = 40;

    pub fn new(member: usize, page: usize) -> Owner {
        debug_assert!(page < 1 << Self::PAGE_BITS);
        Owner((member as u64 + 1) << Self::PAGE_BITS | page as u64)
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Its place among the spaces; it is somebody's.
    pub fn member(self) -> usize {
        (self.0 >> Self::PAGE_BITS) as usize - 1
    }

    pub fn page(self) -> usize {
        (self.0 & ((1 << Self::PAGE_BITS) - 1)) as usize
    }
}

/// The copy of a page that was a member's.
pub(super) type Copy = (usize, u32);

/// What is known of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub owner: Owner,
    /// What its backing calls the copy of the page as it came, 0 for none.
    pub copy: u32,
    /// It came back from its backing; the policy has not been told.
    pub came: Option<Arrival>,
    /// Its accessed bit, when it is seen first, says no more than that it came to be used, or was read ahead of that.
    pub is_new: bool,
}

impl Frame {
    fn copy(&self) -> Option<Copy> {
        (self.copy != 0).then(|| (self.owner.member(), self.copy))
    }
}

#[derive(Debug)]
pub(super) struct State<P> {
    pub policy: P,
    pub frames: Vec<Frame>,
    pub members: Members,
    pub limits: Limits,
    pub counts: Counts,
    /// Between low and high.
    is_balancing: bool,
    /// Threads that wait for frames.
    waiting: usize,
    /// Grows when frames become free.
    freed: u64,
    /// Times threads began to wait, and up to which of them it is said that there will be no frames.
    pub asked: u64,
    refused: u64,
    /// There was no more to try, and nobody has asked since.
    pub is_stuck: bool,
    pub is_stopped: bool,
    /// It waits to be woken.
    pub is_kswapd_asleep: bool,
    /// Who frees frames, and can't wait for that.
    pub kswapd: Option<ThreadId>,
}

impl<P: Policy> State<P> {
    /// Whether pages are to be taken out, beside those that leave already.
    pub fn is_short(&mut self, leaving: usize) -> bool {
        let pages = self.policy.len();
        self.is_balancing =
            pages > self.limits.low || (self.is_balancing && pages > self.limits.high);
        self.is_balancing || self.waiting > leaving
    }

    /// A page of a member's is in a frame. Returns the copy of another page, which was there before and was
    /// unmapped.
    pub fn add(&mut self, member: usize, page: LruPage) -> Option<Copy> {
        let LruPage { page, frame: Pfn(number) } = page;
        let owner = Owner::new(member, page);
        let frame = self.frames.get_mut(number)?;
        let came = frame.came.take().filter(|_| frame.owner == owner);
        let old = *frame;
        let copy = if came.is_some() { old.copy } else { 0 };
        *frame = Frame { owner, copy, came: None, is_new: true };
        if self.policy.contains(number as u32) {
            self.policy.forget(number as u32);
        }
        self.policy.add(number as u32, came.unwrap_or(Arrival::Fresh));
        old.copy().filter(|_| old.copy != copy)
    }

    /// Whether it is known that a page is in a frame.
    pub fn knows(&self, member: usize, page: LruPage) -> bool {
        let LruPage { page, frame: Pfn(number) } = page;
        let owner = Owner::new(member, page);
        let is_its = self.frames.get(number).is_some_and(|frame| frame.owner == owner);
        is_its && self.policy.contains(number as u32)
    }

    /// Whether so few pages are known that others may be in memory too.
    pub fn has_lost_pages(&self) -> bool {
        self.policy.len() < self.limits.high / 2
    }

    /// A page that was chosen stays. If the frame has become another page's meanwhile, the policy knows that already.
    /// Returns a copy that nobody knows of any more.
    pub fn stays(&mut self, owner: Owner, number: u32, copy: u32, shadow: Shadow) -> Option<Copy> {
        let lost = (copy != 0).then(|| (owner.member(), copy));
        if self.policy.contains(number) || !self.members.is_open(owner.member()) {
            return lost;
        }
        let frame = &mut self.frames[number as usize];
        self.policy.put_back(number, shadow);
        if !frame.owner.is_none() {
            return lost;
        }
        (frame.owner, frame.copy, frame.is_new) = (owner, copy, false);
        None
    }

    /// Forgets what is known of a member's pages, in frames from `first` on, `most` of them at most. Where to go on
    /// from; `None` at the end.
    pub fn forget_pages(
        &mut self,
        member: usize,
        first: usize,
        most: usize,
        copies: &mut Vec<u32>,
    ) -> Option<usize> {
        let end = (first + most).min(self.frames.len());
        for number in first..end {
            let frame = &mut self.frames[number];
            if frame.owner.is_none() || frame.owner.member() != member {
                continue;
            }
            copies.extend(frame.copy().map(|(_, copy)| copy));
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
    pub(super) state: Mutex<State<P>>,
    /// For `kswapd`.
    pub(super) wake: Condvar,
    frames_freed: Condvar,
    /// A reclaimer has let go of a space.
    pub(super) let_go: Condvar,
    engines: Mutex<Engines>,
    /// Errors in reading, which are counted without the lock. Relaxed: a number.
    read_errors: AtomicU64,
}

impl<P: Policy> ZoneReclaim<P> {
    /// With a policy for the `frames` frames of a zone.
    pub fn new(policy: P, frames: usize, limits: Limits) -> ZoneReclaim<P> {
        let state = State {
            policy,
            frames: vec![Frame::default(); frames],
            members: Members::default(),
            limits,
            counts: Counts::default(),
            is_balancing: false,
            waiting: 0,
            freed: 0,
            asked: 0,
            refused: 0,
            is_stuck: false,
            is_stopped: false,
            is_kswapd_asleep: false,
            kswapd: None,
        };
        ZoneReclaim {
            state: Mutex::new(state),
            wake: Condvar::new(),
            frames_freed: Condvar::new(),
            let_go: Condvar::new(),
            engines: Mutex::new(Engines::default()),
            read_errors: AtomicU64::new(0),
        }
    }

    /// What reclaim that begins from now on writes with.
    pub fn set_engines(&self, engines: &Engines) {
        *self.engines.lock().unwrap_or_else(PoisonError::into_inner) = engines.clone();
    }

    pub(super) fn engines(&self) -> Engines {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.state().counts;
        counts.errors += self.read_errors.load(Ordering::Relaxed);
        counts
    }

    /// Ends [`ZoneReclaim::kswapd`], and has those who wait for frames fail.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.wake.notify_all();
        self.frames_freed.notify_all();
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<P>> {
        // Nothing panics while it holds the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait that frames are free.
    pub(super) fn tell(&self, state: &mut State<P>, freed: usize) {
        state.freed += freed as u64;
        state.is_stuck = false;
        // No more than will find one.
        if freed >= state.waiting {
            self.frames_freed.notify_all();
        } else {
            (0..freed).for_each(|_| self.frames_freed.notify_one());
        }
    }

    /// Tells those who had asked when what failed now was begun that there will be no frames; for the others it is
    /// tried again.
    pub(super) fn refuse(&self, state: &mut State<P>, asked: u64) {
        state.refused = state.refused.max(asked);
        state.is_stuck = asked == state.asked;
        self.frames_freed.notify_all();
    }

    pub(super) fn note_read_error(&self) {
        self.read_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages of a space came in. Returns copies of pages that were in those frames before.
    pub(super) fn lru_add(&self, space: SpaceId, pages: &[LruPage]) {
        let mut state = self.state();
        let Some(member) = state.members.find(space) else { return };
        for &page in pages {
            if let Some((member, copy)) = state.add(member, page) {
                state.members.release(member, copy);
            }
        }
        if state.is_kswapd_asleep && state.is_short(0) {
            self.wake.notify_one();
        }
    }

    /// A page of a space came back from its backing. Returns whether what that says of a copy is kept.
    pub(super) fn came_in(&self, space: SpaceId, page: LruPage, came: Came, used: Rights) -> bool {
        let arrival = match (used.is_empty(), came.note) {
            (true, _) => Arrival::ReadAhead,
            (false, Some(note)) => Arrival::Refault(Shadow::from_bits(note)),
            (false, None) => Arrival::Fresh,
        };
        let mut state = self.state();
        state.counts.pswpin += 1;
        state.counts.read_ahead += u64::from(used.is_empty());
        let Some(member) = state.members.find(space) else { return false };
        let Some(frame) = state.frames.get_mut(page.frame.0) else { return false };
        let owner = Owner::new(member, page.page);
        let new = Frame { owner, copy: came.copy, came: Some(arrival), is_new: true };
        let old = std::mem::replace(frame, new);
        if let Some((member, copy)) = old.copy() {
            state.members.release(member, copy);
        }
        true
    }

    /// Waits until frames may be free. `false`: there will be none.
    pub(super) fn wait_for_frames(&self) -> bool {
        let mut state = self.state();
        if state.is_stopped || state.kswapd == Some(current_thread().id()) {
            return false;
        }
        state.counts.allocstall += 1;
        let before = state.freed;
        state.waiting += 1;
        state.asked += 1;
        let turn = state.asked;
        state.is_stuck = false;
        if state.is_kswapd_asleep {
            self.wake.notify_one();
        }
        while state.freed == before && state.refused < turn && !state.is_stopped {
            let waited = self.frames_freed.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        state.freed != before
    }
}

impl<P> std::fmt::Debug for ZoneReclaim<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZoneReclaim").finish_non_exhaustive()
    }
}
