//! The engine that zeroes for scrubd, where it is not the processor itself: opened when there is work for it,
//! given back when there has been none for a while.
//!
//! A dedicated work queue of an accelerator is one program's at a time, for as long as its file is open or its
//! portal mapped. So scrubd has one while it zeroes and a moment longer, and none once it has ended.

use core::time::Duration;

use super::flight::Flight;
use super::helper::Descriptors;
use pumice_accel::dsa::{Dsa, Hardware};
use pumice_frames::clear::{Engine, EngineKind, Kernel, Lost, Piece};

/// An engine that was not used for so long is given back; one that was not available is tried again after as long.
/// Opening one takes a millisecond at most.
const QUIET: Duration = Duration::from_secs(1);

/// An engine beside the processor, opened by the thread that uses it.
pub(super) enum Opened {
    Kernel(Kernel),
    Dsa(Dsa<Hardware>),
}

impl Opened {
    /// Opens an engine of this kind. `None` where there is none, or it would take a descriptor from the
    /// program: the processor does it.
    pub(super) fn open(kind: EngineKind, descriptors: Descriptors) -> Option<Opened> {
        match kind {
            EngineKind::Dsa if descriptors == Descriptors::Own => {
                Dsa::open().map_or(None, |dsa| Some(Opened::Dsa(dsa)))
            }
            // A GPU needs threads that libc knows of.
            EngineKind::Cpu | EngineKind::Dsa | EngineKind::Cuda => None,
            // SAFETY: scrubd claims a heap's memory only: private anonymous memory.
            EngineKind::Kernel => Some(Opened::Kernel(unsafe { Kernel::new() })),
        }
    }

    fn engine(&self) -> &dyn Engine {
        match self {
            Opened::Kernel(kernel) => kernel,
            Opened::Dsa(dsa) => dsa,
        }
    }
}

// SAFETY: the engine's own.
unsafe impl Engine for Opened {
    fn name(&self) -> &'static str {
        self.engine().name()
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: as the caller promises, here and below.
        unsafe { self.engine().submit(pieces) }
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: see above.
        unsafe { self.engine().poll(pieces) }
    }

    unsafe fn cancel(&self, pieces: &mut [Piece]) {
        // SAFETY: see above.
        unsafe { self.engine().cancel(pieces) }
    }
}

/// An engine that is there while it is used.
pub(super) struct Lent<E: Engine, F> {
    open: F,
    flight: Option<Flight<E>>,
    /// When it was used last, or could not be had.
    asked_ns: u64,
    next: Next,
}

/// When an engine that is not there is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// When it is asked for.
    Now,
    /// After a while: it was not available.
    Later,
    /// It failed.
    Never,
}

impl<E: Engine, F: FnMut() -> Option<E>> Lent<E, F> {
    /// Opens nothing yet.
    pub(super) fn new(open: F) -> Lent<E, F> {
        Lent { open, flight: None, asked_ns: 0, next: Next::Now }
    }

    /// The pieces in flight of an engine, which is opened if it is not open. `None` where there is none.
    pub(super) fn flight(&mut self, now_ns: u64) -> Option<&mut Flight<E>> {
        let quiet_ns = now_ns.saturating_sub(self.asked_ns);
        let is_due = match self.next {
            Next::Now => true,
            Next::Later => quiet_ns >= QUIET.as_nanos() as u64,
            Next::Never => false,
        };
        if self.flight.is_none() && is_due {
            self.flight = (self.open)().map(Flight::new);
            self.next = if self.flight.is_some() { Next::Now } else { Next::Later };
            self.asked_ns = now_ns;
        }
        if self.flight.is_some() {
            self.asked_ns = now_ns;
        }
        self.flight.as_mut()
    }

    /// How long until it is to be given back; `None` where there is nothing to give back.
    pub(super) fn left(&self, now_ns: u64) -> Option<Duration> {
        let quiet = Duration::from_nanos(now_ns.saturating_sub(self.asked_ns));
        let flight = self.flight.as_ref().filter(|flight| flight.is_empty());
        flight.map(|_| QUIET.saturating_sub(quiet))
    }

    /// Gives it back if nobody has used it for a while.
    pub(super) fn give_back_if_unused(&mut self, now_ns: u64) {
        if self.left(now_ns) == Some(Duration::ZERO) {
            self.give_back();
        }
    }

    /// Gives it back, unless it has memory still: late answers are wanted. The queue of one that failed stays open,
    /// since closing a queue waits for the pieces in it.
    pub(super) fn give_back(&mut self) {
        let Some(flight) = self.flight.take_if(|flight| flight.is_empty()) else { return };
        if flight.is_lost() {
            self.next = Next::Never;
            core::mem::forget(flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::scrub::Claim;
    use pumice_accel::dsa::soft::{Fate, Manner, SoftDevice};
    use pumice_accel::dsa::{Descriptor, Handover, Portal};
    use pumice_frames::addr::BLOCK_SIZE;
    use pumice_frames::sys::mem;

    /// A dedicated queue of a device in software: its program's for as long as this is there.
    struct WorkQueue<'d> {
        device: &'d SoftDevice,
        programs: &'d AtomicUsize,
    }

    impl<'d> WorkQueue<'d> {
        fn open(device: &'d SoftDevice, programs: &'d AtomicUsize) -> Option<Dsa<WorkQueue<'d>>> {
            if programs.fetch_add(1, Ordering::Relaxed) > 0 {
                programs.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
            Dsa::on(WorkQueue { device, programs }).ok()
        }
    }

    // SAFETY: the device's own.
    unsafe impl Portal for WorkQueue<'_> {
        unsafe fn hand_over(&self, descriptor: &Descriptor) -> Handover {
            // SAFETY: as the caller promises.
            let handed = unsafe { self.device.hand_over(descriptor) };
            self.device.work();
            handed
        }

        fn entries(&self) -> Option<u32> {
            self.device.entries()
        }

        fn most_in_batch(&self) -> usize {
            self.device.most_in_batch()
        }

        fn most_bytes(&self) -> u32 {
            self.device.most_bytes()
        }
    }

    impl Drop for WorkQueue<'_> {
        fn drop(&mut self) {
            self.programs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    const SECOND: u64 = 1_000_000_000;

    fn device(fate: Fate) -> SoftDevice {
        SoftDevice::new(Manner { fates: vec![fate], ..Manner::default() })
    }

    /// Launches a block; how many came back.
    fn zero_one<E: Engine>(flight: &mut Flight<E>) -> usize {
        // For good: a device that never answers has it.
        let at = mem::map_table(BLOCK_SIZE).expect("memory").as_ptr();
        let mut claim = Some(Claim { at, len: BLOCK_SIZE, node: 0, token: 0 });
        flight.launch(|| claim.take());
        let mut back = 0;
        flight.collect(|_| (), |_, _| back += 1);
        back
    }

    #[test]
    fn a_queue_is_given_back_when_it_is_quiet_and_had_again() {
        let (soft, programs) = (device(Fate::Done), AtomicUsize::new(0));
        let device = &soft;
        let mut lent = Lent::new(|| WorkQueue::open(device, &programs));
        let held = || programs.load(Ordering::Relaxed);
        assert_eq!((held(), lent.left(0)), (0, None), "nothing is opened before there is work");
        for at_ns in [SECOND, SECOND + SECOND / 2, 2 * SECOND] {
            assert_eq!(zero_one(lent.flight(at_ns).expect("a queue")), 1);
            lent.give_back_if_unused(at_ns + SECOND / 2);
            assert_eq!((held(), lent.left(at_ns)), (1, Some(QUIET)));
        }
        let left = lent.left(2 * SECOND + SECOND / 2);
        assert_eq!(left, Some(QUIET / 2));
        lent.give_back_if_unused(3 * SECOND);
        assert_eq!((held(), lent.left(3 * SECOND)), (0, None));
        assert_eq!(zero_one(lent.flight(3 * SECOND).expect("it is had again")), 1);
        lent.give_back();
        assert_eq!(held(), 0, "and at the end of the thread");
    }

    #[test]
    fn a_queue_that_another_program_has_is_asked_for_now_and_then() {
        let (soft, programs) = (device(Fate::Done), AtomicUsize::new(1));
        let device = &soft;
        let asked = AtomicUsize::new(0);
        let mut lent = Lent::new(|| {
            asked.fetch_add(1, Ordering::Relaxed);
            WorkQueue::open(device, &programs)
        });
        for at_ns in [0, 1, SECOND - 1, SECOND, SECOND + 1] {
            assert!(lent.flight(at_ns).is_none());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        programs.store(0, Ordering::Relaxed);
        assert!(lent.flight(SECOND + SECOND / 2).is_none());
        assert!(lent.flight(2 * SECOND).is_some());
    }

    #[test]
    fn a_queue_that_has_memory_is_not_given_back() {
        let soft: &SoftDevice = Box::leak(Box::new(device(Fate::Lost)));
        let programs: &AtomicUsize = Box::leak(Box::default());
        let mut lent = Lent::new(|| WorkQueue::open(soft, programs));
        assert_eq!(zero_one(lent.flight(0).expect("a queue")), 0);
        lent.give_back_if_unused(10 * SECOND);
        lent.give_back();
        assert_eq!((lent.left(10 * SECOND), programs.load(Ordering::Relaxed)), (None, 1));
        assert_eq!(lent.flight(0).expect("for a late answer").claims(), 1);
    }

    #[test]
    fn one_that_failed_is_not_opened_again() {
        let soft: &SoftDevice = Box::leak(Box::new(device(Fate::Done)));
        let broken = Manner { broken_after: 0, ..Manner::default() };
        let broken: &SoftDevice = Box::leak(Box::new(SoftDevice::new(broken)));
        let programs: &AtomicUsize = Box::leak(Box::default());
        let mut devices = [broken, soft].into_iter();
        let mut lent = Lent::new(|| WorkQueue::open(devices.next()?, programs));
        assert_eq!(zero_one(lent.flight(0).expect("a queue")), 1, "undone, but back");
        lent.give_back_if_unused(2 * SECOND);
        assert!(lent.flight(9 * SECOND).is_none());
    }
}
