//! A thread's record in a space, which others only read: its resident pages and its holds.
//!
//! One record of 128 bytes, two cache lines that nobody else writes (SPEC B3: no locks and no shared
//! cache lines in counting; a reader adds the list up). Counts, which change with each fault, are in the first. The
//! places that are held, which threads that unmap look at, are in the second. A thread that leaves frees its record and
//! leaves its counts in it, for the next that takes it to go on from.

use super::records::Records;
use crate::page_table::FrameSource;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// The kinds of pages that are counted, as the kernel's `MM_FILEPAGES`, `MM_ANONPAGES`, `MM_SWAPENTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Counter {
    /// Pages of files.
    File = 0,
    /// Anonymous pages. The zero page is none.
    Anon = 1,
    /// Pages in swap.
    Swap = 2,
}

/// Words of a record.
pub(super) const RECORD_WORDS: usize = 16;
/// Regions that a thread can hold at a time; one more is for addresses.
///
/// One in loom's models, which would go through the loads of all of them in every order.
pub const MAX_HELD: usize = if cfg!(loom) { 1 } else { 7 };

/// How often others' code that runs in the middle of an access may come back to the same task.
pub(super) const MAX_LEVEL: usize = if cfg!(loom) { 1 } else { 4 };

const OWNED: usize = 0;
const COUNTS: usize = 1;
/// The second cache line. Before it are the words for accesses in the middle of another one, which are rare.
const HOLDS: usize = 8;

/// The meaning of a record's word: a hold on addresses or on a region.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hold {
    /// For addresses, by an access in the middle of so many others.
    Addresses(usize),
    /// By the region with this number.
    Region(u8),
}

pub(super) type TaskRecords<F> = Records<F, RECORD_WORDS>;

/// A thread's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskRecord<'s>(&'s [AtomicU64; RECORD_WORDS]);

impl<'s> TaskRecord<'s> {
    /// Takes a record that no thread has.
    pub fn take<F: FrameSource>(records: &'s TaskRecords<F>) -> Option<TaskRecord<'s>> {
        for index in 0..TaskRecords::<F>::CAPACITY {
            // Without frames this ends: a look at all records goes no further than the first chunk that is missing.
            let words = records.get_or_add(index)?;
            // Acquire: the counts go on from where the thread before left them.
            let taken = words[OWNED].compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Some(TaskRecord(words));
            }
        }
        None
    }

    /// Leaves it to another thread. Nothing is held any more.
    pub fn leave(self) {
        for hold in &self.0[HOLDS - MAX_LEVEL..=HOLDS + MAX_HELD] {
            // Release: as in `hold`.
            hold.store(0, Ordering::Release);
        }
        // Release: pairs with `take`.
        self.0[OWNED].store(0, Ordering::Release);
    }

    /// Adds to a count of the calling thread's own record.
    #[inline]
    pub fn count(self, counter: Counter, pages: i64) {
        let count = &self.0[COUNTS + counter as usize];
        // Relaxed, and no locked operation: one thread writes it, and readers want the number only.
        let sum = count.load(Ordering::Relaxed).wrapping_add(pages as u64);
        count.store(sum, Ordering::Relaxed);
    }

    /// Says that the thread holds this VMA (none with 0), in one of its places.
    #[inline]
    pub fn hold(self, place: Hold, vma: u64) {
        let index = match place {
            Hold::Addresses(level) => HOLDS - level,
            Hold::Region(number) => HOLDS + 1 + usize::from(number),
        };
        // Release: work in the tables of the VMA held before is done. Pairs with `any_holds`.
        self.0[index].store(vma, Ordering::Release);
    }

    /// Whether any of these records says that its thread holds this VMA.
    pub fn any_holds<F: FrameSource>(records: &TaskRecords<F>, vma: u64) -> bool {
        records.iter().any(|words| {
            // Acquire: pairs with `hold`.
            let holds = |word: &AtomicU64| word.load(Ordering::Acquire) == vma;
            words[HOLDS - MAX_LEVEL..=HOLDS + MAX_HELD].iter().any(holds)
        })
    }
}

/// Pages of a kind, of all threads there are and were. A thread may have given up more than it took.
pub(super) fn sum<F: FrameSource>(records: &TaskRecords<F>, counter: Counter) -> usize {
    // Relaxed: exact when nobody counts; else what was counted is seen sooner or later.
    let one = |words: &[AtomicU64; RECORD_WORDS]| {
        words[COUNTS + counter as usize].load(Ordering::Relaxed) as i64
    };
    let all: i64 = records.iter().map(one).sum();
    all.max(0) as usize
}
