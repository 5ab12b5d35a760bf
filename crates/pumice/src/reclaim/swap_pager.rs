//! Reclaim of the pages of a space: what faults tell it and ask of it.
//!
//! Faulting threads say what came in ([`Pager::lru_add`], in batches), have pages read ([`Pager::swap_in`]), and
//! wait when no frame is left ([`Pager::wait_for_frames`]). One thread, [`SwapPager::kswapd`], takes pages out. It
//! begins when more pages are in memory than [`Limits::low`], works down to [`Limits::high`], and at any time when
//! somebody waits.
//!
//! What is known of a frame may be out of date: nobody says that a page was unmapped. So a page that is to go is
//! looked up by its number, and where it is in another frame, or in none, nothing but the record goes. What a thread
//! tells late may so hide a page that has the frame by then; `kswapd` meets that page when it walks the tables.
//!
//! One lock, never held over I/O, over a walk, or while anybody waits for another lock but the slot map's.

use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use rustix::io::Errno;

use crate::addr::{Pfn, FRAME_SIZE};
use crate::io::engine::Piece;
use crate::io::{engine, Bytes, Engine, Plain, Queue};
use crate::page_table::pager::{Evicted, Incoming, LruPage, Pager, ReadFailed, SpaceId};
use crate::page_table::Rights;
use crate::space::swap_in::READ_AHEAD;
use crate::swap::{Slot, Swap, SwapError};

use super::policy::{Arrival, Policy, Shadow};

/// An engine of any kind.
pub type AnyEngine = Box<dyn Engine + Send>;
/// Makes engines, for so many requests at a time.
type MakeEngine = Box<dyn Fn(u32) -> AnyEngine + Send + Sync>;

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
    /// `pswpout`: written to swap.
    pub pswpout: u64,
    /// Requests that they were written by.
    pub writes: u64,
    /// `pswpin`: read from it.
    pub pswpin: u64,
    /// Of these, such as nobody had asked for yet.
    pub read_ahead: u64,
    /// Taken out without being written: the copy in swap was good.
    pub clean: u64,
    /// Met again by a fault while they were written.
    pub rescued: u64,
    /// Not written or not read, for an error.
    pub errors: u64,
    /// `allocstall`: times a thread waited for a frame.
    pub allocstall: u64,
}

/// What is known of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    /// The page, by its number and one.
    pub owner: usize,
    /// The slot with a copy of the page as it came, 0 for none.
    pub copy: u32,
    /// It came from swap; the policy has not been told.
    pub came: Option<Arrival>,
    /// Its accessed bit says no more than that it came.
    pub is_new: bool,
}

#[derive(Debug)]
pub(super) struct State<P> {
    pub policy: P,
    pub frames: Vec<Frame>,
    limits: Limits,
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
    pub last_error: Option<SwapError>,
}

impl<P: Policy> State<P> {
    /// Whether pages are to be taken out, beside those that leave already.
    pub fn is_short(&mut self, leaving: usize) -> bool {
        let pages = self.policy.len();
        self.is_balancing =
            pages > self.limits.low || (self.is_balancing && pages > self.limits.high);
        self.is_balancing || self.waiting > leaving
    }

    /// A page is in a frame. Returns the slot of a copy of another page, which was there before and was unmapped.
    pub fn add(&mut self, LruPage { page, frame: Pfn(number) }: LruPage) -> Option<Slot> {
        let frame = self.frames.get_mut(number)?;
        let came = frame.came.take().filter(|_| frame.owner == page + 1);
        let old = *frame;
        let copy = if came.is_some() { old.copy } else { 0 };
        let is_new = came != Some(Arrival::ReadAhead);
        *frame = Frame { owner: page + 1, copy, came: None, is_new };
        if self.policy.contains(number as u32) {
            self.policy.forget(number as u32);
        }
        self.policy.add(number as u32, came.unwrap_or(Arrival::Fresh));
        (old.copy != copy).then_some(Slot(old.copy))
    }

    /// Whether it is known that a page is in a frame.
    pub fn knows(&self, LruPage { page, frame: Pfn(number) }: LruPage) -> bool {
        let is_its = self.frames.get(number).is_some_and(|frame| frame.owner == page + 1);
        is_its && self.policy.contains(number as u32)
    }

    /// Whether so few pages are known that others may be in memory too.
    pub fn has_lost_pages(&self) -> bool {
        self.policy.len() < self.limits.high / 2
    }

    /// Keeps an error for who asks, and counts it.
    pub fn note_error(&mut self, error: SwapError) {
        self.counts.errors += 1;
        self.last_error = Some(error);
    }
}

/// See the module's top.
pub struct SwapPager<P> {
    pub(super) swap: Swap,
    pub(super) state: Mutex<State<P>>,
    pub(super) wake: Condvar,
    frames_freed: Condvar,
    pub(super) make_engine: MakeEngine,
    /// Queues that nobody reads with at the moment: for one page, and for many.
    readers: Mutex<Vec<Queue<AnyEngine>>>,
    ahead_readers: Mutex<Vec<Queue<AnyEngine>>>,
}

impl<P: Policy> SwapPager<P> {
    /// With a policy for the `frames` frames of a zone.
    pub fn new(swap: Swap, policy: P, frames: usize, limits: Limits) -> SwapPager<P> {
        let make_engine = |depth| match depth {
            // One call either way, and the ring's is dearer.
            1 => Box::new(Plain::new()) as AnyEngine,
            _ => engine::best(depth),
        };
        let state = State {
            policy,
            frames: vec![Frame::default(); frames],
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
            last_error: None,
        };
        SwapPager {
            swap,
            state: Mutex::new(state),
            wake: Condvar::new(),
            frames_freed: Condvar::new(),
            make_engine: Box::new(make_engine),
            readers: Mutex::new(Vec::new()),
            ahead_readers: Mutex::new(Vec::new()),
        }
    }

    /// With engines of one's own, made for so many requests at a time.
    #[must_use]
    pub fn with_engines(
        mut self,
        make: impl Fn(u32) -> AnyEngine + Send + Sync + 'static,
    ) -> SwapPager<P> {
        self.make_engine = Box::new(make);
        self
    }

    /// The swap area.
    pub fn swap(&self) -> &Swap {
        &self.swap
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// The last error of the device, or that swap is full; once.
    pub fn take_error(&self) -> Option<SwapError> {
        self.state().last_error.take()
    }

    /// Ends [`SwapPager::kswapd`], and has those who wait for frames fail.
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

    fn read(&self, slot: Slot, into: &mut [u8; FRAME_SIZE]) -> Result<(), SwapError> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = readers.pop();
        drop(readers);
        let mut reader = reader.unwrap_or_else(|| Queue::new((self.make_engine)(1), 1));
        let at = NonNull::from(&mut *into).cast();
        // SAFETY: the bytes are borrowed until the queue is empty, or dropped.
        unsafe { self.swap.read(&mut reader, slot, Bytes::Run { at, len: FRAME_SIZE }, 0) }?;
        let mut went = Ok(());
        reader
            .drain(|_, result| went = result)
            .and(went)
            .map_err(|errno| SwapError::Read { slot, errno })?;
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        self.swap.check(slot, into)
    }
}

impl<P: Policy> SwapPager<P> {
    /// Reads pages, those in slots beside each other by one request.
    ///
    /// # Safety
    /// The frames are this call's.
    unsafe fn read_all(&self, pages: &mut [Incoming]) -> Result<(), Errno> {
        // Before the queue, which is dropped first.
        let pieces: Vec<Piece> = pages.iter().map(|page| Piece::frame(page.into.cast())).collect();
        let readers = || self.ahead_readers.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = readers().pop();
        let depth = READ_AHEAD as u32;
        let mut reader =
            reader.unwrap_or_else(|| Queue::new((self.make_engine)(depth), READ_AHEAD));
        let slots: Vec<Slot> = pages.iter().map(|page| slot_of(page.from)).collect();
        pages.iter_mut().for_each(|page| page.result = Err(ReadFailed));
        let mut runs = Vec::with_capacity(pages.len());
        let mut first = 0;
        for run in slots.chunk_by(|one, next| one.0 + 1 == next.0) {
            let list = NonNull::from(&pieces[first..]).cast();
            let bytes = Bytes::Frames { pieces: list, count: run.len() };
            // SAFETY: the caller's promise, and the list stays until the queue is empty, or dropped.
            if unsafe { self.swap.read(&mut reader, run[0], bytes, runs.len() as u64) }.is_err() {
                break;
            }
            runs.push(first..first + run.len());
            first += run.len();
        }
        reader.drain(|run, went| {
            if went.is_ok() {
                pages[runs[run as usize].clone()].iter_mut().for_each(|page| page.result = Ok(()));
            }
        })?;
        readers().push(reader);
        for (page, slot) in pages.iter_mut().zip(slots).filter(|(page, _)| page.result.is_ok()) {
            // SAFETY: the caller's promise.
            let bytes = unsafe { page.into.as_mut() };
            page.result = self.swap.check(slot, bytes).map_err(|_| ReadFailed);
        }
        Ok(())
    }
}

fn slot_of(evicted: Evicted) -> Slot {
    match evicted {
        Evicted::Swapped(slot) | Evicted::Shadow(slot) => Slot(slot),
    }
}

// SAFETY: it knows of no task: its lists and its swap are all it uses.
unsafe impl<P: Policy + Send> Pager for SwapPager<P> {
    fn lru_add(&self, _space: SpaceId, pages: &[LruPage]) {
        let mut state = self.state();
        for &page in pages {
            if let Some(copy) = state.add(page) {
                self.swap.put(copy);
            }
        }
        if state.is_kswapd_asleep && state.is_short(0) {
            self.wake.notify_one();
        }
    }

    fn swap_in(
        &self,
        _space: SpaceId,
        _page: usize,
        from: Evicted,
        into: &mut [u8; FRAME_SIZE],
    ) -> Result<(), ReadFailed> {
        self.read(slot_of(from), into).map_err(|error| {
            self.state().note_error(error);
            ReadFailed
        })
    }

    unsafe fn swap_in_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        // SAFETY: the caller's promise.
        if unsafe { self.read_all(pages) }.is_err() {
            // The queue is gone, and with it all that it had to do.
            pages.iter_mut().for_each(|page| page.result = Err(ReadFailed));
        }
        if let Some(first) = pages.first_mut().filter(|first| first.result.is_err()) {
            // By itself: it may have failed for another's sake, and somebody is to be told why.
            // SAFETY: as above.
            let into = unsafe { first.into.as_mut() };
            first.result = self.swap_in(space, first.page, first.from, into);
        }
    }

    fn swapped_in(&self, _space: SpaceId, page: LruPage, from: Evicted, used: Rights) {
        let slot = slot_of(from);
        let came = Some(match used.is_empty() {
            true => Arrival::ReadAhead,
            false => Arrival::Refault(Shadow::from_bits(self.swap.note(slot))),
        });
        let keeps = !used.contains(Rights::WRITE) && !self.swap.is_scarce();
        let mut state = self.state();
        state.counts.pswpin += 1;
        state.counts.read_ahead += u64::from(used.is_empty());
        let mut given_up = (!keeps).then_some(slot);
        if let Some(frame) = state.frames.get_mut(page.frame.0) {
            let copy = if keeps { slot.0 } else { 0 };
            let old =
                std::mem::replace(frame, Frame { owner: page.page + 1, copy, came, is_new: true });
            if old.copy != 0 {
                self.swap.put(Slot(old.copy));
            }
        } else {
            given_up = Some(slot);
        }
        drop(state);
        if let Some(slot) = given_up {
            self.swap.put(slot);
        }
    }

    fn free(&self, _space: SpaceId, from: Evicted) {
        self.swap.put(slot_of(from));
    }

    fn wait_for_frames(&self) -> bool {
        let mut state = self.state();
        if state.is_stopped || state.kswapd == Some(std::thread::current().id()) {
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

impl<P> std::fmt::Debug for SwapPager<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwapPager").field("swap", &self.swap).finish_non_exhaustive()
    }
}
