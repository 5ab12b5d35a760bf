//! Where a file's dirty pages are: a bit for each 2 MiB, and how many there are.
//!
//! The page's word says that it is dirty. This bitmap only says where to look. A thread that makes a clean page
//! dirty marks its granule before the guard ends. A scan takes the mark off first, so that a page that becomes dirty
//! meanwhile is marked again; and it marks again the pages that it found and could not write. So of a page that is
//! dirty, and of which no guard is held, the granule is marked, or somebody who holds the file's *scan* lock is about
//! to write it.

use std::sync::Arc;

use pumice_io::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Pages of a granule.
const GRANULE: usize = 512;
const BITS: usize = u64::BITS as usize;

/// See the module's top. Pages are numbered from the file's start.
#[derive(Debug)]
pub(super) struct DirtyMap {
    /// Marked since the last tick of the clock; before.
    young: Box<[AtomicU64]>,
    old: Box<[AtomicU64]>,
    /// Of this file, and of all files of the cache. Relaxed: numbers that others go by later or sooner.
    pages: AtomicUsize,
    all: Arc<AtomicUsize>,
}

/// Which granules are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those in which a page has been dirty for long.
    Old,
    /// All.
    All,
}

impl DirtyMap {
    pub fn new(pages: usize, all: Arc<AtomicUsize>) -> DirtyMap {
        let words = pages.div_ceil(GRANULE * BITS).max(1);
        let map = || (0..words).map(|_| AtomicU64::new(0)).collect();
        DirtyMap { young: map(), old: map(), pages: AtomicUsize::new(0), all }
    }

    /// Whether its pages are counted there too: each cache has a number of its own.
    pub fn counts_in(&self, all: &Arc<AtomicUsize>) -> bool {
        Arc::ptr_eq(&self.all, all)
    }

    /// Dirty pages.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// A page that was clean is dirty; its guard is still held.
    pub fn add(&self, page: usize) {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        self.mark(page);
    }

    /// As [`DirtyMap::add`], of pages in a row, of which so many have become dirty.
    pub fn add_all(&self, pages: std::ops::Range<usize>, many: usize) {
        self.pages.fetch_add(many, Ordering::Relaxed);
        self.all.fetch_add(many, Ordering::Relaxed);
        (pages.start / GRANULE..pages.end.div_ceil(GRANULE))
            .for_each(|nth| self.mark(nth * GRANULE));
    }

    /// So many pages are clean, or gone.
    pub fn remove(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
        self.all.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Marks the granule of a page that is dirty.
    pub fn mark(&self, page: usize) {
        let granule = page / GRANULE;
        // Release: pairs with the swap in `take`: a thread that takes the mark sees the page's word as it is.
        self.young[granule / BITS].fetch_or(1 << (granule % BITS), Ordering::Release);
    }

    /// Takes the marks of granules that pages of a range lie in, and calls for the range of pages of each.
    pub fn take(
        &self,
        which: Which,
        pages: &std::ops::Range<usize>,
        mut look: impl FnMut(std::ops::Range<usize>),
    ) {
        if pages.is_empty() {
            return;
        }
        let granules = pages.start / GRANULE..(pages.end - 1) / GRANULE + 1;
        for word in granules.start / BITS..granules.end.div_ceil(BITS).min(self.young.len()) {
            let first = word * BITS;
            let from = granules.start.saturating_sub(first);
            let to = (granules.end - first).min(BITS);
            let mask = (u64::MAX >> (BITS - to)) & (u64::MAX << from);
            // Acquire: pairs with `mark`.
            let mut taken = self.old[word].fetch_and(!mask, Ordering::Acquire);
            if which == Which::All {
                taken |= self.young[word].fetch_and(!mask, Ordering::Acquire);
            }
            taken &= mask;
            while taken != 0 {
                let granule = first + taken.trailing_zeros() as usize;
                taken &= taken - 1;
                look(granule * GRANULE..(granule + 1) * GRANULE);
            }
        }
    }

    /// The clock ticks: marks so far are old. By the holder of the scan lock.
    pub fn age(&self) {
        for (young, old) in self.young.iter().zip(&self.old) {
            // Relaxed: most words are empty, and one that is marked just now is old the next time.
            if young.load(Ordering::Relaxed) != 0 {
                // AcqRel: passes on what `mark` released, to the thread that takes it from there.
                old.fetch_or(young.swap(0, Ordering::AcqRel), Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once_and_grow_old() {
        let map = DirtyMap::new(200 * GRANULE, Arc::default());
        for page in [0, 5 * GRANULE + 7, 64 * GRANULE] {
            map.add(page);
        }
        map.add_all(199 * GRANULE..199 * GRANULE + 3, 2);
        assert_eq!(map.pages(), 5);
        let taken = |which, pages: std::ops::Range<usize>| {
            let mut starts = Vec::new();
            map.take(which, &pages, |pages| starts.push(pages.start / GRANULE));
            starts
        };
        assert!(taken(Which::Old, 0..200 * GRANULE).is_empty());
        assert_eq!(taken(Which::All, GRANULE..64 * GRANULE), [5]);
        assert_eq!(taken(Which::All, 64 * GRANULE + 3..64 * GRANULE + 4), [64]);
        map.age();
        map.mark(7 * GRANULE);
        assert_eq!(taken(Which::Old, 0..200 * GRANULE), [0, 199]);
        assert_eq!(taken(Which::All, 0..200 * GRANULE), [7]);
        assert!(taken(Which::All, 0..0).is_empty());
    }
}
