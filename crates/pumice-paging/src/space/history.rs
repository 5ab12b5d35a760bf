//! The records that a task keeps from one fault to the next.
//!
//! The task has it, and one thread uses it. `fault` notes where a walk ended, `ahead` and `swap_in` how sequences went,
//! and `swap_out` which pages came in.

use crate::page_table::pager::LruPage;
use crate::page_table::tables::Table;
use crate::page_table::Entry;
use pumice_frames::addr::Pfn;

/// The table of pages that a thread's last walk by address ended in. It can be used again without
/// walking for as long as its VMA is held: it is the granule's table until nobody holds that, and its words say which
/// pages are unmapped meanwhile.
#[derive(Debug)]
pub(super) struct LastWalk<F> {
    pub granule: usize,
    pub leaf: Option<Table<F>>,
    /// The word that named it, for the rights of untouched pages.
    pub rights: Entry,
}

impl<F> LastWalk<F> {
    pub const NONE: LastWalk<F> = LastWalk { granule: 0, leaf: None, rights: Entry::new() };
}

impl<F> Clone for LastWalk<F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for LastWalk<F> {}

/// A thread's last faults: the next page of a sequence, and how many pages were populated at once last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prefault {
    pub next: usize,
    pub batch: usize,
}

/// How a thread's pages have come back: which would be the next of a sequence, and how many were asked for last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SwapAhead {
    pub next: usize,
    pub window: usize,
}

/// Pages in a batch: with 15, as in Linux, a fault costs a fifth more.
pub const BATCH_PAGES: usize = 64;

/// Pages that came in by one thread, and that the pager has not been told of.
#[derive(Debug)]
pub(super) struct Batch {
    pages: [LruPage; BATCH_PAGES],
    len: usize,
    /// It is full with so many.
    most: usize,
}

impl Batch {
    /// An empty one, which is full with `most` pages, and with [`BATCH_PAGES`] in any case.
    pub fn of(most: usize) -> Batch {
        let none = LruPage { page: 0, frame: Pfn(0) };
        Batch { pages: [none; BATCH_PAGES], len: 0, most: most.clamp(1, BATCH_PAGES) }
    }

    /// Adds a page. Whether the batch is full.
    #[inline(always)]
    pub fn add(&mut self, page: LruPage) -> bool {
        self.pages[self.len % BATCH_PAGES] = page;
        self.len += 1;
        self.len >= self.most
    }

    /// A copy of the pages and how many they are; none is left.
    #[inline(always)]
    pub fn take(&mut self) -> ([LruPage; BATCH_PAGES], usize) {
        (self.pages, core::mem::take(&mut self.len).min(BATCH_PAGES))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_with_as_many_as_it_was_made_for() {
        for (asked, most) in [(0, 1), (1, 1), (7, 7), (usize::MAX, BATCH_PAGES)] {
            let mut batch = Batch::of(asked);
            let page = |page| LruPage { page, frame: Pfn(page) };
            let full = (1..=BATCH_PAGES).find(|&nth| batch.add(page(nth)));
            assert_eq!(full, Some(most), "{asked}");
            assert_eq!(batch.take().1, most);
            assert_eq!(batch.take().1, 0);
        }
    }
}
