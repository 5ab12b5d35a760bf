//! Guards for reading of pages in a row.
//!
//! The first page is had as by [`Region::read`]: it is waited for, and read if it is not in memory. The rest are pages
//! of its table that can be had at once. So nothing is waited for while a page is held, and two threads that have
//! ranges don't wait for each other. Each page is latched in its own word, and let go there.

use core::fmt;
use core::ops::{Index, Range};

use super::region::{Page, ReadGuard, Region};
use super::task::Task;
use super::Result;
use crate::page_table::entry::CROWDED;
use crate::page_table::tables::Table;
use crate::page_table::{FrameSource, TableOps};

/// Pages in a row that others may read too, and that stay in place: see [`Region::read_range`].
///
/// By a page's number it is the page; a number that is not of [`ReadRange::pages`] panics, as a slice does.
///
/// ```
/// # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
/// # use pumice::space::{MemMap, VmSpace};
/// # let zone = Zone::new(4 << 20, 1, Huge::No)?;
/// # let map = MemMap::new(&zone, Clearer::detect())?;
/// # let space = VmSpace::new(map.frames(), Atomic)?;
/// # let task = space.enter()?;
/// let at = task.map(100 * FRAME_SIZE, Rights::READ_WRITE)?;
/// task.write_at(at, &[7; 100 * FRAME_SIZE])?;
/// let region = task.region(at)?;
/// let (mut page, mut sum) = (0, 0);
/// while page < 100 {
///     let range = region.read_range(page..100)?; // one page at least
///     sum += range.iter().map(|page| u64::from(page[9])).sum::<u64>();
///     page = range.pages().end;
/// }
/// assert_eq!(sum, 700);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadRange<'r, F: FrameSource, T: TableOps> {
    first: ReadGuard<'r, F, T>,
    /// In its region, the first among them.
    pages: Range<usize>,
    /// The table of the rest, and the first page's number in the space.
    rest: Option<Table<F>>,
    number: usize,
}

impl<'t, F: FrameSource, T: TableOps> Region<'t, F, T> {
    /// Guards of pages in a row, for reading, up to the first that is not in memory or that somebody writes to, and 512
    /// at most. The first page is had in any case, as by [`Region::read`]; the range may have that alone.
    ///
    /// # Errors
    /// As [`Region::read`], for the first page.
    pub fn read_range(&self, pages: Range<usize>) -> Result<ReadRange<'_, F, T>> {
        let first = self.read(pages.start)?;
        Ok(self.range_from(first, pages))
    }

    /// As [`Region::read_range`], from a page on that there is a guard of.
    ///
    /// # Panics
    /// If another task has the guard: its space's frames may be others.
    #[doc(hidden)]
    pub fn range_from<'r>(
        &'r self,
        first: ReadGuard<'r, F, T>,
        pages: Range<usize>,
    ) -> ReadRange<'r, F, T> {
        assert!(core::ptr::eq(first.task, self.task()), "a guard of another task's");
        let start = pages.start;
        let mut range = ReadRange { first, pages: start..start + 1, rest: None, number: 0 };
        let end = pages.end.min(self.pages());
        let Some(walked) = self.look(start).filter(|_| end > start + 1) else { return range };
        (range.rest, range.number) = (Some(walked.leaf), walked.page);
        let in_table = F::ENTRIES - walked.page % F::ENTRIES;
        let ops = &range.first.task.space.tables.ops;
        for page in start + 1..end.min(start + in_table) {
            let ptep = walked.leaf.entry(walked.page + (page - start));
            let entry = ops.ptep_get(ptep);
            let is_free = entry.can_read() && entry.latch() < CROWDED;
            if !is_free || ops.ptep_cmpxchg(ptep, entry, entry.held_for_reading()).is_err() {
                break;
            }
            range.pages.end = page + 1;
        }
        range
    }
}

impl<F: FrameSource, T: TableOps> ReadRange<'_, F, T> {
    /// The numbers of its pages.
    pub fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// The pages, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Page> {
        self.pages().map(|page| self.get(page).expect("one of them"))
    }

    fn get(&self, page: usize) -> Option<&Page> {
        let nth = page.checked_sub(self.pages.start).filter(|_| page < self.pages.end)?;
        if nth == 0 {
            return Some(&self.first);
        }
        let tables = &self.task().space.tables;
        // While it is latched, a page's word has its frame, also when it is doomed.
        let frame = tables.ops.ptep_get(self.rest?.entry(self.number + nth)).frame();
        // SAFETY: a frame, which stays this page's and is not written while it is latched.
        Some(unsafe { tables.source.bytes(frame).cast().as_ref() })
    }

    fn task(&self) -> &Task<'_, F, T> {
        self.first.task
    }
}

impl<F: FrameSource, T: TableOps> Index<usize> for ReadRange<'_, F, T> {
    type Output = Page;

    fn index(&self, page: usize) -> &Page {
        match self.get(page) {
            Some(bytes) => bytes,
            None => panic!("page {page} is none of {:?}", self.pages),
        }
    }
}

impl<F: FrameSource, T: TableOps> Drop for ReadRange<'_, F, T> {
    fn drop(&mut self) {
        let Some(leaf) = self.rest else { return };
        for nth in 1..self.pages.len() {
            self.task().end_read(leaf.entry(self.number + nth));
        }
    }
}

impl<F: FrameSource, T: TableOps> fmt::Debug for ReadRange<'_, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRange({:?})", self.pages)
    }
}
