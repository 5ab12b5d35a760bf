//! How entries are changed: V12's functions, atomic or emulated.
//!
//! The names are those of Lameter's page fault scalability patches. Loads are plain atomic loads for
//! every implementation: an entry is an aligned word that is written whole.

use crossbeam_utils::CachePadded;

use super::entry::Entry;
use pumice_frames::sys::lock::SpinLock;
use pumice_frames::sys::pair::Pairs;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Operations on entries that others change at the same time. A program chooses [`Atomic`] or [`Emulated`]; the
/// operations themselves are for the space, the inside.
///
/// # Safety
/// Each operation happens at an instant with respect to all others on the same entry. A change
/// releases what its thread did before, and a thread that sees a change, in a load or a failed
/// comparison, has acquired that.
pub unsafe trait TableOps: Sync {
    /// The entry now.
    #[doc(hidden)]
    #[inline]
    fn ptep_get(&self, ptep: &AtomicU64) -> Entry {
        // Acquire: pairs with the change that installed the frame or the table it names, so that
        // they are seen zeroed, or as their last writer left them.
        Entry::from(ptep.load(Ordering::Acquire))
    }

    /// Replaces `old` by `new`. Fails with the entry that is there instead.
    ///
    /// # Errors
    /// The entry is not `old`. Returns the entry.
    #[doc(hidden)]
    fn ptep_cmpxchg(&self, ptep: &AtomicU64, old: Entry, new: Entry) -> Result<(), Entry>;

    /// Replaces the entry, and returns the old one.
    #[doc(hidden)]
    fn ptep_xchg(&self, ptep: &AtomicU64, new: Entry) -> Entry;

    /// Adds to the word, wrapping, and returns it as it was: how a guard lets go.
    #[doc(hidden)]
    fn ptep_add(&self, ptep: &AtomicU64, sum: u64) -> Entry;

    /// Clears the bits of `mask`; the entry as it was.
    #[doc(hidden)]
    fn ptep_clear_bits(&self, ptep: &AtomicU64, mask: u64) -> Entry;

    /// The operation that changes two adjacent entries at once, if there is one: it may be used beside the
    /// other operations.
    #[doc(hidden)]
    #[inline]
    fn pairs(&self) -> Option<Pairs> {
        None
    }

    /// Takes the entry and leaves an empty one.
    #[doc(hidden)]
    #[inline]
    fn ptep_get_and_clear(&self, ptep: &AtomicU64) -> Entry {
        self.ptep_xchg(ptep, Entry::new())
    }

    /// Whether the page was accessed since this was last asked.
    #[doc(hidden)]
    #[inline]
    fn ptep_test_and_clear_young(&self, ptep: &AtomicU64) -> bool {
        let young = Entry::new().with_accessed(true);
        // Most are not, and a load is cheaper.
        self.ptep_get(ptep).accessed() && self.ptep_clear_bits(ptep, young.into()).accessed()
    }

    /// Installs a table of pages if there is none. `false`: somebody else was first, and the caller
    /// gives its table back.
    #[doc(hidden)]
    #[inline]
    fn pmd_test_and_populate(&self, pmdp: &AtomicU64, old: Entry, table: Entry) -> bool {
        self.ptep_cmpxchg(pmdp, old, table).is_ok()
    }

    /// The same one level up.
    #[doc(hidden)]
    #[inline]
    fn pgd_test_and_populate(&self, pgdp: &AtomicU64, table: Entry) -> bool {
        self.ptep_cmpxchg(pgdp, Entry::new(), table).is_ok()
    }
}

/// The processor's own atomic operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Atomic;

// SAFETY: each is one atomic operation, release and, where it returns a value, acquire.
unsafe impl TableOps for Atomic {
    #[inline]
    fn ptep_cmpxchg(&self, ptep: &AtomicU64, old: Entry, new: Entry) -> Result<(), Entry> {
        debug_assert!(old.may_become(new), "{old:?} to {new:?}");
        // AcqRel: releases the frame's content to threads that see the entry; acquires the writes of the latch's last
        // holder. Acquire on failure: the caller goes on with the entry that it found.
        ptep.compare_exchange(old.into(), new.into(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Entry::from)
    }

    #[inline]
    fn pairs(&self) -> Option<Pairs> {
        Pairs::detect()
    }

    #[inline]
    fn ptep_xchg(&self, ptep: &AtomicU64, new: Entry) -> Entry {
        // AcqRel: as for ptep_cmpxchg.
        Entry::from(ptep.swap(new.into(), Ordering::AcqRel))
    }

    #[inline]
    fn ptep_add(&self, ptep: &AtomicU64, sum: u64) -> Entry {
        // AcqRel: releases what the guard's holder did; the last one acquires what all others did.
        Entry::from(ptep.fetch_add(sum, Ordering::AcqRel))
    }

    #[inline]
    fn ptep_clear_bits(&self, ptep: &AtomicU64, mask: u64) -> Entry {
        // AcqRel: a thread that clears *dirty* sees the writes.
        Entry::from(ptep.fetch_and(!mask, Ordering::AcqRel))
    }
}

/// For targets without such operations: loads and stores under a lock, held for one change (B2).
#[derive(Debug, Default)]
pub struct Emulated {
    /// In cache lines of its own: every walk reads its neighbours.
    page_table_lock: CachePadded<SpinLock<()>>,
}

impl Emulated {
    #[inline]
    fn change(&self, ptep: &AtomicU64, change: impl FnOnce(Entry) -> Option<Entry>) -> Entry {
        let _locked = self.page_table_lock.lock();
        // Relaxed: only holders of the lock write.
        let old = Entry::from(ptep.load(Ordering::Relaxed));
        if let Some(new) = change(old) {
            // Release: pairs with the load in ptep_get, which takes no lock.
            ptep.store(new.into(), Ordering::Release);
        }
        old
    }
}

// SAFETY: changes exclude each other by the lock, and readers see a word before or after one.
unsafe impl TableOps for Emulated {
    #[inline]
    fn ptep_cmpxchg(&self, ptep: &AtomicU64, old: Entry, new: Entry) -> Result<(), Entry> {
        debug_assert!(old.may_become(new), "{old:?} to {new:?}");
        let found = self.change(ptep, |found| (found == old).then_some(new));
        if found == old {
            Ok(())
        } else {
            Err(found)
        }
    }

    #[inline]
    fn ptep_xchg(&self, ptep: &AtomicU64, new: Entry) -> Entry {
        self.change(ptep, |_| Some(new))
    }

    #[inline]
    fn ptep_add(&self, ptep: &AtomicU64, sum: u64) -> Entry {
        self.change(ptep, |old| Some(Entry::from(u64::from(old).wrapping_add(sum))))
    }

    #[inline]
    fn ptep_clear_bits(&self, ptep: &AtomicU64, mask: u64) -> Entry {
        self.change(ptep, |old| Some(Entry::from(u64::from(old) & !mask)))
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::page_table::{Rights, State};

    /// Two threads that each change a word once, as the table of transitions has it, from one of these
    /// states: one of both orders must come out, and nothing else.
    #[test]
    fn loom_pairs_of_transitions() {
        type Step = fn(Entry) -> Entry;
        let steps: [Step; 6] = [
            |entry| entry.with_state(State::Present),
            |entry| if entry.state() == State::Present { entry.held_for_reading() } else { entry },
            |entry| entry.with_rights(Rights::READ),
            |entry| if entry.latch() == 0 { entry.gone() } else { entry.with_state(State::Doomed) },
            |entry| {
                let free = entry.latch() == 0 && entry.state() == State::Present;
                if free {
                    entry.with_state(State::InTransit)
                } else {
                    entry
                }
            },
            |entry| if entry.state() == State::Present { entry.with_cow(true) } else { entry },
        ];
        for one in 0..steps.len() {
            for two in one..steps.len() {
                let (one, two) = (steps[one], steps[two]);
                loom::model(move || {
                    let start =
                        Entry::new().with_state(State::Present).with_rights(Rights::READ_WRITE);
                    let shared = Arc::new((Atomic, AtomicU64::new(start.into())));
                    let apply = |shared: &(Atomic, AtomicU64), step: Step| {
                        let mut entry = shared.0.ptep_get(&shared.1);
                        while step(entry) != entry && entry.may_become(step(entry)) {
                            match shared.0.ptep_cmpxchg(&shared.1, entry, step(entry)) {
                                Ok(()) => break,
                                Err(found) => entry = found,
                            }
                        }
                    };
                    let other = Arc::clone(&shared);
                    let thread = thread::spawn(move || apply(&other, two));
                    apply(&shared, one);
                    thread.join().expect("no panic");
                    let end = shared.0.ptep_get(&shared.1);
                    let alone = |entry: Entry, step: Step| {
                        let next = step(entry);
                        if entry.may_become(next) {
                            next
                        } else {
                            entry
                        }
                    };
                    let orders = [alone(alone(start, one), two), alone(alone(start, two), one)];
                    assert!(orders.contains(&end), "{end:?} from {start:?}, not one of {orders:?}");
                });
            }
        }
    }
}
