//! Locks for short sections that are on no path that many threads take: one that spins, then yields, and one whose
//! waiters sleep, so that a holder of a lower scheduling class comes to run.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::spin_loop;

/// Looks before a waiter lets others run: about a microsecond.
const SPINS: u32 = 32;

/// Waits for another thread, a little longer each time.
#[derive(Debug, Default)]
pub struct Backoff {
    waits: u32,
}

impl Backoff {
    /// Spins at first, then lets others run: with more threads than processors the one that is
    /// waited for may have none.
    pub fn wait(&mut self) {
        self.waits = self.waits.saturating_add(1);
        if cfg!(any(loom, shuttle)) || self.waits < SPINS {
            spin_loop();
        } else {
            super::thread::yield_now();
        }
    }

    /// How often it has waited.
    pub fn waits(&self) -> u32 {
        self.waits
    }
}

/// A value behind a lock.
#[derive(Debug, Default)]
pub struct SpinLock<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Unlocked.
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { is_locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. A thread that holds it must not ask again.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let mut backoff = Backoff::default();
        // Acquire: pairs with the store on drop.
        while self.is_locked.swap(true, Ordering::Acquire) {
            backoff.wait();
            // Relaxed: the swap acquires. A thread that only looks leaves the cache line to the holder.
            while self.is_locked.load(Ordering::Relaxed) {
                backoff.wait();
            }
        }
        SpinGuard { lock: self, value: PhantomData }
    }

    /// The value of a lock that nobody else has.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// The value, until this is dropped. Threads can share it if they can share the value, which is more than
/// the lock asks:
///
/// ```compile_fail,E0277
/// use core::cell::Cell;
/// use pumice_frames::sys::lock::SpinLock;
///
/// fn share<T: Sync>(_: &T) {}
/// share(&SpinLock::new(Cell::new(0)).lock());
/// ```
#[derive(Debug)]
pub struct SpinGuard<'l, T> {
    lock: &'l SpinLock<T>,
    value: PhantomData<&'l mut T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the swap of the next holder.
        if cfg!(loom) {
            // Loom takes a store to be before any number of exchanges that come later.
            self.lock.is_locked.swap(false, Ordering::Release);
        } else {
            self.lock.is_locked.store(false, Ordering::Release);
        }
    }
}

/// A lock whose waiters sleep. A waiter under `SCHED_FIFO` that only yields would keep the holder, of a lower
/// priority on the same processor, from ever letting go.
#[derive(Debug, Default)]
pub struct SleepLock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep on it.
const AWAITED: u32 = 2;

impl SleepLock {
    /// Unlocked.
    pub fn new() -> SleepLock {
        SleepLock(AtomicU32::new(FREE))
    }

    /// Waits for the lock. A thread that holds it must not ask again.
    pub fn lock(&self) -> SleepGuard<'_> {
        // Acquire, here and below: pairs with the Release on drop.
        let free = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
                super::thread::sleep_on(&self.0, AWAITED, None);
            }
        }
        SleepGuard(self)
    }

    /// In a fork's child, where the holder does not exist: nobody holds it.
    pub fn forget(&self) {
        // Relaxed: the child has one thread.
        self.0.store(FREE, Ordering::Relaxed);
    }
}

/// The lock is held until this is dropped.
#[derive(Debug)]
pub struct SleepGuard<'l>(&'l SleepLock);

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next holder.
        if self.0 .0.swap(FREE, Ordering::Release) == AWAITED {
            super::thread::wake_one(&self.0 .0);
        }
    }
}
