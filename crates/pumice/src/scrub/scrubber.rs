//! What the heap holds: both helper threads, and what wakes them.

use core::ptr::null_mut;
use core::time::Duration;

use super::helper::{Helper, Job};
use super::waiting::Waiting;
use super::{keeper, scrubd, Source};
use crate::addr::Order;
use crate::clear::Clearer;
use crate::config::Setting;
use crate::stats::Slot;
use crate::sync::atomic::{AtomicPtr, Ordering};

/// Zeroes free memory in the background. Costs nothing until memory is freed.
#[derive(Debug)]
pub struct Scrubber {
    scrubd: Helper,
    keeper: Helper,
    waiting: Waiting,
    clearer: Clearer,
    /// Where this process counts; changed only by a fork's child, which has one thread then.
    slot: AtomicPtr<Slot>,
}

impl Scrubber {
    /// Starts nothing yet. Settings are read from `slot`, and counted there.
    pub fn new(slot: &'static Slot, clearer: Clearer) -> Scrubber {
        Scrubber {
            scrubd: Helper::new(),
            keeper: Helper::new(),
            waiting: Waiting::new(),
            clearer,
            slot: AtomicPtr::new(core::ptr::from_ref(slot).cast_mut()),
        }
    }

    /// To be called after a free that made an unzeroed free area of `order`, once the ledger shows
    /// it. Wakes who has work now; one load each when they are at it.
    #[inline]
    pub fn freed(&'static self, source: &'static dyn Source, order: Order) {
        if u64::from(order.get()) >= Setting::ScrubStart.get(self.slot()) {
            self.scrubd.ring(scrubd::ENTRY, || Job { scrubber: self, source });
        }
        if order >= Order::BLOCK {
            self.keep(source);
        }
    }

    /// For a request that found too little: has the helpers return what they have claimed, waits
    /// for `patience` at most until `is_claimed` is false, and does `then` before they claim again.
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

    /// To be called when there is something to populate ahead or to give back later.
    pub fn keep(&'static self, source: &'static dyn Source) {
        self.keeper.ring(keeper::ENTRY, || Job { scrubber: self, source });
    }

    /// Ends both threads and lets none be started: a seccomp filter may come into force. Waits for
    /// their end, a few milliseconds at most unless others keep all processors busy.
    pub fn quiet(&self) {
        self.scrubd.stop();
        self.keeper.stop();
    }

    /// To be called in a fork's child, which counts in `slot` and where neither thread exists;
    /// the next free starts new ones.
    pub fn after_fork(&self, slot: &'static Slot) {
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        self.waiting.forget();
        self.scrubd.forget_thread();
        self.keeper.forget_thread();
    }

    pub(super) fn slot(&self) -> &'static Slot {
        // Relaxed: written before there was a second thread.
        let slot = self.slot.load(Ordering::Relaxed);
        debug_assert_ne!(slot, null_mut());
        // SAFETY: it comes from a 'static reference.
        unsafe { &*slot }
    }

    pub(super) fn clearer(&self) -> &Clearer {
        &self.clearer
    }

    pub(super) fn scrubd(&self) -> &Helper {
        &self.scrubd
    }

    pub(super) fn keeper(&self) -> &Helper {
        &self.keeper
    }
}
