//! A page of a file whose entry was looked up ahead.

use super::error::Result;
use super::view::{PageRef, View};
use pumice_paging::page_table::Atomic;
use pumice_paging::space::region::Words;
use pumice_paging::space::Frames;

/// A page's entry, looked up once for the prefetch and for the read: see [`View::entry`].
pub struct PageEntry<'v, 't, 'c> {
    view: &'v View<'t, 'c>,
    entry: pumice_paging::space::PageEntry<'v, 't, Frames<'c>, Atomic>,
}

impl<'t, 'c> View<'t, 'c> {
    /// Looks a page's entry up, for readers that know their next pages. With some eight pages at
    /// a time: [`PageEntry::fetch_entry`] for all, then [`PageEntry::fetch`] for all, and then the reads, so that no
    /// line is waited for by itself. Reclaim does not count a fetch as a use of the page.
    #[inline(always)]
    pub fn entry(&self, page: usize) -> PageEntry<'_, 't, 'c> {
        PageEntry { view: self, entry: self.region.entry(page) }
    }
}

impl<'v, 'c> PageEntry<'v, '_, 'c> {
    /// Fetches the entry's line, ahead of [`PageEntry::read_optimistic`].
    #[inline(always)]
    pub fn fetch_entry(&self) {
        self.entry.fetch_entry();
    }

    /// Fetches the entry's line ahead of [`PageEntry::read`], which writes it.
    #[inline(always)]
    pub fn fetch_entry_to_guard(&self) {
        self.entry.fetch_entry_to_guard();
    }

    /// Fetches the line at an offset of the page, if the page is in memory.
    #[inline(always)]
    pub fn fetch(&self, offset: usize) {
        self.entry.fetch(offset);
    }

    /// As [`View::read`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn read(&self) -> Result<PageRef<'v, 'c>> {
        self.view.read_or(self.entry.page(), || self.entry.read_at_once())
    }

    /// As [`View::read_optimistic`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn read_optimistic<R>(&self, mut read: impl FnMut(Words<'_>) -> R) -> Result<R> {
        let is_there = self.entry.page() < self.view.pages();
        match is_there.then(|| self.entry.read_optimistic_at_once(&mut read)).flatten() {
            Some(result) => Ok(result),
            None => self.view.read_copied(self.entry.page(), read),
        }
    }
}

impl std::fmt::Debug for PageEntry<'_, '_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageEntry({} of {:?})", self.entry.page(), self.view)
    }
}
