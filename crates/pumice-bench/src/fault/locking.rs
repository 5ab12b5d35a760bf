//! The ways to change a page table that are compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use pumice_paging::page_table::{Atomic, Emulated, Entry, TableOps};

use crate::names::named;

named! {
    /// The threads that exclude each other.
    pub enum Locking {
        /// The kernel's own faults, however it locks.
        Kernel = "kernel",
        /// One lock over the whole fault, as before V12's patches.
        Whole = "whole",
        /// A lock over each change of an entry (B2).
        Short = "short",
        /// None.
        Atomic = "atomic",
        /// No faults at all: writes to pages that are there.
        Ready = "ready",
    }
}

impl Locking {
    /// Ours, in the order of the tables.
    pub const OURS: [Locking; 3] = [Locking::Whole, Locking::Short, Locking::Atomic];
}

/// Table operations, and the lock that a fault takes around all of them, if any.
pub trait Scheme: TableOps + Default + Send {
    /// Does `fault` as the scheme would.
    fn around<R>(lock: &Mutex<()>, fault: impl FnOnce() -> R) -> R;
}

impl Scheme for Atomic {
    #[inline]
    fn around<R>(_: &Mutex<()>, fault: impl FnOnce() -> R) -> R {
        fault()
    }
}

impl Scheme for Emulated {
    #[inline]
    fn around<R>(_: &Mutex<()>, fault: impl FnOnce() -> R) -> R {
        fault()
    }
}

/// Loads and stores, for threads that hold one lock over everything.
#[derive(Debug, Default)]
pub struct Plain;

impl Plain {
    #[inline]
    fn change(ptep: &AtomicU64, change: impl FnOnce(Entry) -> Entry) -> Entry {
        // Relaxed: the lock orders everything.
        let old = Entry::from(ptep.load(Ordering::Relaxed));
        ptep.store(change(old).into(), Ordering::Relaxed);
        old
    }
}

// SAFETY: the experiment calls the space only under the lock of `around`, map and unmap included.
unsafe impl TableOps for Plain {
    #[inline]
    fn ptep_cmpxchg(&self, ptep: &AtomicU64, old: Entry, new: Entry) -> Result<(), Entry> {
        let found = Plain::change(ptep, |found| if found == old { new } else { found });
        if found == old {
            Ok(())
        } else {
            Err(found)
        }
    }

    #[inline]
    fn ptep_xchg(&self, ptep: &AtomicU64, new: Entry) -> Entry {
        Plain::change(ptep, |_| new)
    }

    #[inline]
    fn ptep_add(&self, ptep: &AtomicU64, sum: u64) -> Entry {
        Plain::change(ptep, |old| Entry::from(u64::from(old).wrapping_add(sum)))
    }

    #[inline]
    fn ptep_clear_bits(&self, ptep: &AtomicU64, mask: u64) -> Entry {
        Plain::change(ptep, |old| Entry::from(u64::from(old) & !mask))
    }
}

impl Scheme for Plain {
    #[inline]
    fn around<R>(lock: &Mutex<()>, fault: impl FnOnce() -> R) -> R {
        let _locked = lock.lock();
        fault()
    }
}
