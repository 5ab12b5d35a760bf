//! The heap's hold on the helper threads, and the bells that wake them.

use core::ptr::null_mut;
use core::time::Duration;

use super::assist::{Assist, Progress, Range};
use super::helper::{Helper, Job};
use super::waiting::Waiting;
use super::{assistant, keeper, scrubd, Source};
use crate::config::Setting;
use crate::stats::CounterSlot;
use pumice_frames::addr::Order;
use pumice_frames::clear::{Clearer, Warmth};
use pumice_frames::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use pumice_frames::sync::spin_loop;
use pumice_frames::sys::sched::Affinity;
use pumice_frames::sys::thread;

/// Less is cleared sooner than a helper wakes up.
const WORTH_SHARING: usize = 8 << 20;
/// How long a request spins for the assistant's last piece before it lets others have the
/// processor...
const SPIN: Duration = Duration::from_micros(50);
/// ... and then sleeps at a time.
const NAP: Duration = Duration::from_micros(100);

/// Zeroes free memory in the background. Costs nothing until memory is freed.
#[derive(Debug)]
pub struct Scrubber {
    scrubd: Helper,
    keeper: Helper,
    assistant: Helper,
    assist: Assist,
    waiting: Waiting,
    clearer: Clearer,
    /// The processors that helpers run on.
    home: Affinity,
    /// How many threads of the program keep the helpers from running now.
    withheld: AtomicU32,
    /// Whether no helper may run any more. Relaxed: it orders nothing.
    ended: AtomicBool,
    /// Where this process counts; changed only by a fork's child, which has one thread then.
    slot: AtomicPtr<CounterSlot>,
}

impl Scrubber {
    /// Starts nothing yet. Settings are read from `slot`, and counted there.
    pub fn new(slot: &'static CounterSlot, clearer: Clearer, home: Affinity) -> Scrubber {
        Scrubber {
            scrubd: Helper::new(),
            keeper: Helper::new(),
            assistant: Helper::new(),
            assist: Assist::new(),
            waiting: Waiting::new(),
            clearer,
            home,
            withheld: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            slot: AtomicPtr::new(core::ptr::from_ref(slot).cast_mut()),
        }
    }

    /// To be called after a free that made an unzeroed free area of `order`, once the ledger shows it. Wakes the
    /// helpers that have work now; one load each when they are at it.
    #[inline]
    pub fn freed(&'static self, source: &'static dyn Source, order: Order) {
        if u64::from(order.get()) >= Setting::ScrubStart.get(self.slot()) {
            self.ring(&self.scrubd, scrubd::ENTRY, source);
        }
        if order >= Order::BLOCK {
            self.keep(source);
        }
    }

    /// For a request that found too little: has the helpers return their claims, waits for `patience` at most until
    /// `is_claimed` is false, and does `then` before they claim again.
    pub fn wait_for_claims<R>(
        &self,
        patience: Duration,
        is_claimed: impl Fn() -> bool,
        then: impl FnOnce() -> R,
    ) -> R {
        self.waiting.for_claims(patience, is_claimed, then)
    }

    /// Whether somebody is in [`Scrubber::wait_for_claims`]: a source that works through many
    /// claims ends its pass early then.
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        self.waiting.is_any()
    }

    /// Claims that an engine beside the processor has: it is no use to wait for those.
    pub fn claims_away(&self) -> usize {
        self.waiting.away()
    }

    /// To be called by scrubd whenever that has changed.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn set_claims_away(&self, claims: usize) {
        self.waiting.set_away(claims);
    }

    /// Clears memory of a node that a request waits for; of much, a helper does a part, where there
    /// is a processor for it.
    ///
    /// # Safety
    /// The range is writable, and the caller's alone.
    pub unsafe fn clear(
        &'static self,
        source: &'static dyn Source,
        at: *mut u8,
        len: usize,
        node: usize,
    ) {
        // SAFETY: as the caller promises; and the helper clears nothing that was not posted, and
        // nothing any more once `clear_shared` returns.
        if len < WORTH_SHARING || !unsafe { self.clear_shared(source, at, len, node) } {
            // SAFETY: as the caller promises.
            unsafe { self.clearer.clear(at, len, Warmth::Hot) };
        }
    }

    /// Whether the range was cleared.
    ///
    /// # Safety
    /// As [`Scrubber::clear`].
    unsafe fn clear_shared(
        &'static self,
        source: &'static dyn Source,
        at: *mut u8,
        len: usize,
        node: usize,
    ) -> bool {
        let Some(posted) = self.assist.post(Range { at: at as usize, len, node }) else {
            return false;
        };
        let process = thread::process_id();
        self.ring(&self.assistant, assistant::ENTRY, source);
        let engine = self.clearer.plan().engine(len, Warmth::Hot);
        let mut own = 0;
        while let Some(piece) = self.assist.take_own(&posted) {
            let offset = piece.at - at as usize;
            // SAFETY: the piece is within the range, and ours.
            unsafe { engine.clear(at.add(offset), piece.len) };
            own += 1;
        }
        let until_ns = thread::now_ns() + SPIN.as_nanos() as u64;
        let mut naps = 0;
        loop {
            let finished = self.assist.finished().load(Ordering::Relaxed);
            match self.assist.progress(&posted, own) {
                Progress::Done => break,
                Progress::Waits if thread::now_ns() < until_ns => spin_loop(),
                // A signal handler forked: the child has no helper.
                Progress::Waits if thread::process_id() != process => return false,
                Progress::Waits => {
                    naps += 1;
                    thread::sleep_on(self.assist.finished(), finished, Some(NAP));
                }
                Progress::Lost => return false,
            }
        }
        self.assist.end(&posted, own, naps);
        true
    }

    /// To be called when there is something to populate ahead or to give back later.
    pub fn keep(&'static self, source: &'static dyn Source) {
        self.ring(&self.keeper, keeper::ENTRY, source);
    }

    fn ring(
        &'static self,
        helper: &'static Helper,
        entry: thread::Entry,
        source: &'static dyn Source,
    ) {
        if !helper.ring(entry, || Job { scrubber: self, source }) {
            source.unhelped();
        }
    }

    fn helpers(&self) -> [&Helper; 3] {
        [&self.scrubd, &self.keeper, &self.assistant]
    }

    /// Ends the threads and lets none be started any more. Waits for their end, some milliseconds unless others keep
    /// all processors busy.
    pub fn quiet(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Whether helpers may run.
    pub fn has_helpers(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn stop(&self) -> bool {
        // All three, also if the first ones say no.
        self.helpers().into_iter().filter(|helper| helper.stop()).count() > 0
    }

    /// As [`Scrubber::quiet`], until [`Scrubber::readmit`] has been called as often. Whether there was a thread.
    pub fn withhold(&self) -> bool {
        // SeqCst, here and below: between two threads that withhold and readmit, the last one to go reopens.
        self.withheld.fetch_add(1, Ordering::SeqCst);
        self.stop()
    }

    /// Ends one [`Scrubber::withhold`].
    pub fn readmit(&self) {
        // A child that came to be in between has forgotten its parent's request to withhold them.
        let fewer = |withheld: u32| withheld.checked_sub(1);
        let withheld = self.withheld.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        if withheld == Ok(1) && self.has_helpers() {
            self.helpers().into_iter().for_each(Helper::reopen);
        }
    }

    /// To be called in a fork's child, which counts in `slot` and where none of the threads exists;
    /// the next free starts new ones.
    ///
    /// # Safety
    /// It is such a child, and no other thread of it uses the scrubber or has used it.
    pub unsafe fn after_fork(&self, slot: &'static CounterSlot) {
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        self.waiting.forget();
        self.helpers().into_iter().for_each(Helper::forget_thread);
        // Withheld by a thread that stayed with the parent.
        if self.withheld.swap(0, Ordering::Relaxed) > 0 && self.has_helpers() {
            self.helpers().into_iter().for_each(Helper::reopen);
        }
        self.assist.forget();
    }

    pub(super) fn slot(&self) -> &'static CounterSlot {
        // Relaxed: written before there was a second thread.
        let slot = self.slot.load(Ordering::Relaxed);
        debug_assert_ne!(slot, null_mut());
        // SAFETY: it comes from a 'static reference.
        unsafe { &*slot }
    }

    pub(super) fn home(&self) -> &Affinity {
        &self.home
    }

    pub(super) fn clearer(&self) -> &Clearer {
        &self.clearer
    }

    pub(super) fn scrubd(&self) -> &Helper {
        &self.scrubd
    }

    pub(super) fn assistant(&self) -> &Helper {
        &self.assistant
    }

    pub(super) fn assist(&self) -> &Assist {
        &self.assist
    }

    pub(super) fn keeper(&self) -> &Helper {
        &self.keeper
    }
}
