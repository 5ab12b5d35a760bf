//! The atomics of `pumice-frames`, and locks to sleep on: the standard library's, or shuttle's under `--cfg shuttle`.

pub use pumice_frames::sync::{atomic, spin_loop};

/// Locks that who waits for sleeps on: the standard library's.
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, shuttle)))]
pub use std::thread::{current as current_thread, ThreadId};

/// Shuttle's locks. A wait that has a time limit has none here: what it waits for must come.
#[cfg(shuttle)]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(shuttle)]
pub use shuttle::thread::{current as current_thread, ThreadId};

/// Whether a thread is in a replacement policy's method, which is called under locks that spaces take, or makes an
/// engine in a way of the program's, for which pages may be claimed.
#[cfg(not(loom))]
pub(crate) mod in_policy {
    use std::cell::Cell;

    thread_local! {
        static IS_CALLING: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls a policy, which does not unwind. It may be in another one, which makes a zone's reclaim.
    #[inline]
    pub fn call<R>(work: impl FnOnce() -> R) -> R {
        let before = IS_CALLING.replace(true);
        let result = work();
        IS_CALLING.set(before);
        result
    }

    /// Whether the thread is in a policy's method. What a fault asks in its middle, with pages claimed, does without
    /// the lock then: a panic would leave them claimed for ever.
    #[inline]
    pub fn is_calling() -> bool {
        IS_CALLING.get()
    }

    /// # Panics
    /// In a policy's method: the thread may have the lock that it asks for, or what it would wait for.
    #[inline]
    pub fn refuse() {
        if is_calling() {
            refused();
        }
    }

    #[cold]
    fn refused() -> ! {
        panic!(
            "a replacement policy, or who makes an engine, can't use a space, a cache or a zone: it is called under \
             locks that they take"
        );
    }
}

/// Where a thread that is put aside for long lets others go far: a model does that here now and then. Random
/// interleavings alone hardly ever do (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
/// finding bugs", ASPLOS 2010).
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
