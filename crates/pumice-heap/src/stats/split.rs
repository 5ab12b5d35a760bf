//! The composition of a process's share of the pool.
//!
//! The threads that work on free memory count it and write the result down: the helper threads, ten times a second at
//! most while they have work and once before they sleep. In between, and before there are any, the growth of a share
//! is free and absent, and each request takes off the memory that it got.

use super::CounterSlot;
use pumice_frames::sync::atomic::{AtomicU64, Ordering};

/// Free memory within a share of the pool, by its content; in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeBytes {
    /// There and zero: touching it takes no fault.
    pub zeroed: u64,
    /// There, and dirty.
    pub unzeroed: u64,
    /// Not there: the pages that nobody has touched yet of blocks that are in use in parts.
    pub absent: u64,
}

/// All of a share, in bytes: the four add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSplit {
    /// The bytes in use.
    pub in_use: u64,
    /// The bytes not in use.
    pub free: FreeBytes,
}

impl PoolSplit {
    /// A share of `bytes` with so much free memory. Both are read one after the other, and their writer is not
    /// believed: the excess is left out.
    pub fn of(bytes: u64, free: FreeBytes) -> PoolSplit {
        let mut left = bytes;
        let mut take = |wanted: u64| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let free = FreeBytes {
            zeroed: take(free.zeroed),
            unzeroed: take(free.unzeroed),
            absent: take(free.absent),
        };
        PoolSplit { in_use: left, free }
    }
}

/// In a counter of free bytes: it is not counted any more.
const UNKNOWN: u64 = u64::MAX;

/// As it lies in a slot.
#[derive(Debug)]
#[repr(C)]
pub(super) struct FreeCounters {
    zeroed: AtomicU64,
    unzeroed: AtomicU64,
    absent: AtomicU64,
}

impl FreeCounters {
    /// Relaxed, here and below: statistics. The next count puts right two threads' writes at once.
    pub(super) fn store(&self, free: FreeBytes) {
        self.zeroed.store(free.zeroed, Ordering::Relaxed);
        self.unzeroed.store(free.unzeroed, Ordering::Relaxed);
        self.absent.store(free.absent, Ordering::Relaxed);
    }
}

impl CounterSlot {
    /// Writes a count down.
    pub(crate) fn set_free(&self, free: FreeBytes) {
        self.free.store(free);
    }

    /// Nobody counts any more: there are no helper threads.
    pub(crate) fn forget_free(&self) {
        self.set_free(FreeBytes { zeroed: UNKNOWN, unzeroed: UNKNOWN, absent: UNKNOWN });
    }

    /// The share has become larger by so many bytes, which nobody has touched.
    pub(crate) fn add_absent(&self, bytes: u64) {
        self.change(&self.free.absent, |now| now.saturating_add(bytes).min(UNKNOWN - 1));
    }

    /// A request got these.
    pub(crate) fn take_free(&self, free: FreeBytes) {
        let counters = &self.free;
        for (counter, bytes) in [
            (&counters.zeroed, free.zeroed),
            (&counters.unzeroed, free.unzeroed),
            (&counters.absent, free.absent),
        ] {
            if bytes > 0 {
                self.change(counter, |now| now.saturating_sub(bytes));
            }
        }
    }

    fn change(&self, counter: &AtomicU64, by: impl Fn(u64) -> u64) {
        let changed = |now: u64| (now != UNKNOWN).then(|| by(now));
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    /// The composition of this process's share of the pool; `None` where nobody counts.
    #[doc(hidden)]
    pub fn pool_split(&self) -> Option<PoolSplit> {
        let counters = &self.free;
        let free = FreeBytes {
            zeroed: counters.zeroed.load(Ordering::Relaxed),
            unzeroed: counters.unzeroed.load(Ordering::Relaxed),
            absent: counters.absent.load(Ordering::Relaxed),
        };
        (free.zeroed != UNKNOWN).then(|| PoolSplit::of(self.pool_bytes(), free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Tree;

    #[test]
    fn parts_add_up_whatever_is_written() {
        let free = |zeroed, unzeroed, absent| FreeBytes { zeroed, unzeroed, absent };
        for (bytes, written, expected) in [
            (100, free(10, 20, 30), free(10, 20, 30)),
            (25, free(10, 20, 30), free(10, 15, 0)),
            (0, free(u64::MAX, u64::MAX, u64::MAX), free(0, 0, 0)),
            (u64::MAX, free(1, u64::MAX, 1), free(1, u64::MAX - 1, 0)),
        ] {
            let split = PoolSplit::of(bytes, written);
            assert_eq!(split.free, expected);
            let sum = split.in_use + expected.zeroed + expected.unzeroed + expected.absent;
            assert_eq!(sum, bytes);
        }
    }

    #[test]
    fn what_a_share_grows_by_is_free_until_it_is_taken() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        let slot = tree.attach(std::process::id()).expect("a slot");
        assert!(tree.grow_pool(slot, 100));
        slot.add_absent(100);
        slot.take_free(FreeBytes { absent: 30, ..FreeBytes::default() });
        let split = slot.pool_split().expect("counted");
        assert_eq!((split.in_use, split.free.absent), (30, 70));
        slot.add_absent(u64::MAX);
        assert!(slot.pool_split().is_some(), "too much is not unknown");
    }

    #[test]
    fn what_is_taken_is_no_longer_free() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        let slot = tree.attach(std::process::id()).expect("a slot");
        assert!(tree.grow_pool(slot, 100));
        assert_eq!(slot.pool_split(), Some(PoolSplit::of(100, FreeBytes::default())));
        slot.set_free(FreeBytes { zeroed: 50, unzeroed: 20, absent: 0 });
        slot.take_free(FreeBytes { zeroed: 40, unzeroed: 30, absent: 0 });
        let split = slot.pool_split().expect("counted");
        assert_eq!((split.free.zeroed, split.free.unzeroed, split.in_use), (10, 0, 90));
        slot.forget_free();
        slot.take_free(FreeBytes { zeroed: 1, unzeroed: 1, absent: 1 });
        slot.add_absent(1);
        assert_eq!(slot.pool_split(), None);
        let again = tree.attach(std::process::id()).expect("a slot");
        assert!(again.pool_split().is_some(), "a new owner begins anew");
    }
}
