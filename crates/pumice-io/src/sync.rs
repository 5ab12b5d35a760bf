//! The atomics of `pumice-frames`, and locks to sleep on: the standard library's, or shuttle's under `--cfg shuttle`.

pub use pumice_frames::sync::{atomic, spin_loop};

#[cfg(not(loom))]
pub use locks::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, shuttle)))]
pub use std::thread::{current as current_thread, ThreadId};

#[cfg(shuttle)]
pub use shuttle::thread::{current as current_thread, ThreadId};

/// Locks that are not poisoned. Either nothing panics while it holds one, or its data is right after a panic.
#[cfg(not(loom))]
mod locks {
    #[cfg(shuttle)]
    use shuttle::sync;
    #[cfg(not(shuttle))]
    use std::sync;
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    pub use sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A lock for one thread at a time.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Around a value.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Takes the lock if no other thread has it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        /// The value, which no other thread can have.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A lock for many readers or one writer.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// Waits for writers.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for readers and writers.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }

        /// The value, which no other thread can have.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A condition that threads wait for under a [`Mutex`].
    #[derive(Debug, Default)]
    pub struct Condvar(sync::Condvar);

    impl Condvar {
        /// That no thread waits for.
        pub fn new() -> Condvar {
            Condvar::default()
        }

        /// Waits to be woken.
        pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        /// As [`Condvar::wait`], for so long at most, and whether it took that long. Shuttle has no time limit: the
        /// wake-up must come.
        pub fn wait_timeout<'m, T>(
            &self,
            guard: MutexGuard<'m, T>,
            most: Duration,
        ) -> (MutexGuard<'m, T>, bool) {
            let waited = self.0.wait_timeout(guard, most);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            (guard, timeout.timed_out())
        }

        /// Wakes one thread.
        #[inline]
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all threads.
        #[inline]
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Whether a thread is in a replacement policy's method, which is called under locks that spaces take, or makes an
/// engine in a way of the program's, for which pages may be claimed.
#[cfg(not(loom))]
pub mod in_policy {
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

    /// Whether the thread is in a policy's method. A call in the middle of a fault, with pages claimed, does without
    /// the lock then: a panic would leave them claimed for ever.
    #[inline]
    pub fn is_calling() -> bool {
        IS_CALLING.get()
    }

    /// # Panics
    /// In a policy's method: the thread may have the lock that it asks for, or may be the one that it would wait for.
    #[inline]
    pub fn refuse() {
        if is_calling() {
            refused();
        }
    }

    #[cold]
    fn refused() -> ! {
        panic!(
            "a replacement policy, or code that makes an engine, can't use a space, a cache or a zone: it is called \
             under locks that they take"
        );
    }
}

/// The result of code that is somebody else's; `None`: it panicked, by which its work failed. The panic's own message
/// is the program's panic hook's to show.
#[cfg(not(loom))]
pub fn contain<R>(work: impl FnOnce() -> R) -> Option<R> {
    if cfg!(shuttle) {
        // It ends threads by unwinding them.
        return Some(work());
    }
    // Half-done work of somebody else's is theirs. Dropping what a panic says may panic again.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(std::mem::forget).ok()
}

/// Where a thread that is put aside for long lets others go far: a model does that here now and then. Random
/// interleavings alone hardly ever do (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
/// finding bugs", ASPLOS 2010).
#[inline(always)]
pub fn pause_in_models() {
    #[cfg(shuttle)]
    {
        use shuttle::rand::{thread_rng, Rng};
        if thread_rng().gen_range(0..8) == 0 {
            (0..thread_rng().gen_range(0..400)).for_each(|_| shuttle::thread::yield_now());
        }
    }
}
