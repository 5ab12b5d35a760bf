//! A page's entry, looked up once for all that is done with it.
//!
//! A reader that knows its next pages some accesses ahead does three things with each: it fetches
//! the line of the page's word, then that of the bytes, then it reads. Each of them by the page's number goes
//! down the tables again; by its entry only the first does.

use core::fmt;
use core::ptr::NonNull;

use super::fault::Walked;
use super::region::{Page, ReadGuard, Region, Words};
use super::Result;
use crate::page_table::{FrameSource, TableOps};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::prefetch::{prefetch_read, prefetch_write};
use pumice_io::sync::atomic::AtomicU64;

/// Where the word of a page is, of a region that is held. Nothing keeps the page as it is: each operation finds it as
/// it is then. See [`Region::entry`].
pub struct PageEntry<'r, 't, F: FrameSource, T: TableOps> {
    region: &'r Region<'t, F, T>,
    page: usize,
    /// None for a page of a huge page, or that was never touched.
    ptep: Option<&'r AtomicU64>,
}

impl<'t, F: FrameSource, T: TableOps> Region<'t, F, T> {
    /// Looks a page's entry up. Of a page that has none yet, or that is not in the region, there is nothing to
    /// fetch; it is read as by its number.
    #[inline(always)]
    pub fn entry(&self, page: usize) -> PageEntry<'_, 't, F, T> {
        PageEntry { region: self, page, ptep: self.look(page).map(|Walked { ptep, .. }| ptep) }
    }
}

impl<'r, F: FrameSource, T: TableOps> PageEntry<'r, '_, F, T> {
    /// The page's number in its region.
    #[doc(hidden)]
    #[inline(always)]
    pub fn page(&self) -> usize {
        self.page
    }

    /// Fetches the line of the page's word ahead of [`PageEntry::read_optimistic`]: the first of two steps, a
    /// while before [`PageEntry::fetch`].
    #[inline(always)]
    pub fn fetch_entry(&self) {
        if let Some(ptep) = self.ptep {
            prefetch_read(core::ptr::from_ref(ptep).cast());
        }
    }

    /// The same ahead of a guard, which writes the word.
    #[inline(always)]
    pub fn fetch_entry_to_guard(&self) {
        if let Some(ptep) = self.ptep {
            prefetch_write(core::ptr::from_ref(ptep).cast());
        }
    }

    /// Fetches the line at an offset of the page ahead of its reader, if the page is in memory. Waiting
    /// for one line at a time leaves most of memory's bandwidth unused.
    #[inline(always)]
    pub fn fetch(&self, offset: usize) {
        let at = match self.ptep {
            Some(ptep) => self.region.translate_entry(ptep),
            None => self.region.translate(self.page),
        };
        if let Some(at) = at {
            prefetch_read(at.as_ptr().wrapping_add(offset % FRAME_SIZE));
        }
    }

    /// As [`Region::read`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn read(&self) -> Result<ReadGuard<'r, F, T>> {
        match self.read_at_once() {
            Some(guard) => Ok(guard),
            None => self.region.read(self.page),
        }
    }

    /// As [`Region::read_at_once`].
    #[doc(hidden)]
    #[inline(always)]
    pub fn read_at_once(&self) -> Option<ReadGuard<'r, F, T>> {
        self.region.read_entry_at_once(self.ptep?)
    }

    /// As [`Region::read_optimistic`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn read_optimistic<R>(&self, mut read: impl FnMut(Words<'_>) -> R) -> Result<R> {
        match self.read_optimistic_at_once(&mut read) {
            Some(result) => Ok(result),
            None => self.region.read_copied(self.page, read),
        }
    }

    /// As [`Region::read_optimistic_at_once`].
    #[doc(hidden)]
    #[inline(always)]
    pub fn read_optimistic_at_once<R>(&self, read: impl FnMut(Words<'_>) -> R) -> Option<R> {
        self.region.read_entry_optimistic(self.ptep?, read)
    }
}

impl<F: FrameSource, T: TableOps> Region<'_, F, T> {
    /// [`Region::read_optimistic`] of a page that is not there, or written to again and again.
    #[cold]
    #[inline(never)]
    pub(super) fn read_copied<R>(
        &self,
        page: usize,
        read: impl FnOnce(Words<'_>) -> R,
    ) -> Result<R> {
        Ok(self.read(page)?.read_copy(read))
    }
}

impl<F: FrameSource, T: TableOps> ReadGuard<'_, F, T> {
    /// Reads a copy of the page's words, when the guard is gone: the reader may want to write to the page, or cut it
    /// off.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    pub fn read_copy<R>(self, read: impl FnOnce(Words<'_>) -> R) -> R {
        /// Aligned as words are.
        #[repr(align(8))]
        struct Copied(Page);
        let copy = Copied(*self);
        drop(self);
        let at = NonNull::from(&copy.0).cast();
        read(Words::of(&at))
    }
}

impl<F: FrameSource, T: TableOps> fmt::Debug for PageEntry<'_, '_, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageEntry({} of {:?})", self.page, self.region)
    }
}
