//! The atomics everything else uses: `core`'s, loom's under `--cfg loom`, or shuttle's under
//! `--cfg shuttle`.
//!
//! With the feature `std` there are locks to sleep on as well, of the standard library or shuttle.
//!
//! Loom's are neither `const` to make nor valid as zeroed memory, so structures take slices of
//! atomics from whoever owns the storage ([`crate::frame::Ledger`]) and nothing shared sits in a
//! static of this crate, but for the list of heaps that fork handlers need.

#[cfg(not(any(loom, shuttle)))]
pub use core::sync::atomic;

/// Loom's atomics, which explore every interleaving.
#[cfg(loom)]
pub use loom::sync::atomic;

/// Shuttle's atomics, which try random interleavings of whole scenarios.
#[cfg(shuttle)]
pub use shuttle::sync::atomic;

/// Locks that who waits for sleeps on: the standard library's.
#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub use std::thread::{current as current_thread, ThreadId};

/// Shuttle's locks. A wait that has a time limit has none here: what it waits for must come.
#[cfg(all(feature = "std", shuttle))]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(all(feature = "std", shuttle))]
pub use shuttle::thread::{current as current_thread, ThreadId};

/// Whether a thread is in a replacement policy's method, which is called under locks that spaces take.
#[cfg(all(feature = "std", not(loom)))]
pub(crate) mod in_policy {
    use std::cell::Cell;

    thread_local! {
        static IS_CALLING: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls a policy, which does not unwind.
    #[inline]
    pub fn call<R>(work: impl FnOnce() -> R) -> R {
        IS_CALLING.set(true);
        let result = work();
        IS_CALLING.set(false);
        result
    }

    /// # Panics
    /// In a policy's method: the thread may have the lock that it asks for.
    #[inline]
    pub fn refuse() {
        if IS_CALLING.get() {
            refused();
        }
    }

    #[cold]
    fn refused() -> ! {
        panic!("a replacement policy can't use a space, a cache or a zone: it is called under locks that they take");
    }
}

/// Tells the processor, or the scheduler of loom or shuttle, that this is a spin loop.
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    core::hint::spin_loop();
}

/// Where a thread that is put aside for long lets others go far: a model does that here now and then. Random
/// interleavings alone hardly ever do (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
/// finding bugs", ASPLOS 2010).
#[cfg(feature = "std")]
#[inline(always)]
pub(crate) fn pause_in_models() {
    #[cfg(shuttle)]
    {
        use shuttle::rand::{thread_rng, Rng};
        if thread_rng().gen_range(0..8) == 0 {
            (0..thread_rng().gen_range(0..400)).for_each(|_| shuttle::thread::yield_now());
        }
    }
}
