//! A file as a thread sees it: its pages, by guards and without.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::checksum::Checksum;
use super::error::{CacheError, Result};
use super::fill::Why;
use super::inner::Inner;
use super::readahead::{Expected, Pattern, Window};
use super::table::DROPPED;
use super::task::{CacheTask, File};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::lock::Backoff;
use pumice_io::sync::atomic::{AtomicU64, Ordering};
use pumice_io::sync::in_policy;
use pumice_paging::page_table::Atomic;
use pumice_paging::space::file::Noted;
use pumice_paging::space::file_ops::FileOps;
use pumice_paging::space::region::{Page, Words};
use pumice_paging::space::{Frames, ReadGuard, ReadRange, Region, VmError, WriteGuard};

/// A file as a thread sees it. Pages are counted from the file's start.
pub struct View<'t, 'c> {
    pub(super) task: &'t CacheTask<'c>,
    pub(super) region: Region<'t, Frames<'c>, Atomic>,
    pub(super) file: Arc<Inner>,
    seen: Arc<AtomicU64>,
    pattern: Pattern,
    /// Dropped after the file: closing waits for that, and finds no user then.
    _user: Arc<()>,
}

impl<'c> CacheTask<'c> {
    /// A file as this thread sees it. A task has seven views at a time.
    ///
    /// # Errors
    /// [`CacheError::Space`] for the eighth; [`CacheError::OtherCache`].
    ///
    /// # Panics
    /// As [`Cache::task`](crate::Cache::task).
    pub fn view<'t>(&'t self, file: &File) -> Result<View<'t, 'c>> {
        in_policy::refuse();
        self.check_own(&file.inner)?;
        View::new(self, file)
    }
}

/// A page that nobody else writes.
pub type PageRef<'v, 'c> = ReadGuard<'v, Frames<'c>, Atomic>;

/// Pages in a row that nobody else writes.
pub type RangeRef<'v, 'c> = ReadRange<'v, Frames<'c>, Atomic>;

/// A page that is this guard's alone. It is dirty from here on. A `sync` of the file waits until it is dropped.
#[derive(Debug)]
pub struct PageMut<'v, 'c> {
    guard: WriteGuard<'v, Frames<'c>, Atomic>,
    /// Of a page that has a checksum, and its number.
    checksum: Option<(Checksum, usize)>,
    /// The frames of models have no lifetime.
    _frames: PhantomData<&'c ()>,
}

impl Drop for PageMut<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((checksum, number)) = self.checksum {
            checksum.seal(number, &mut self.guard);
        }
    }
}

impl Deref for PageMut<'_, '_> {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        &self.guard
    }
}

impl DerefMut for PageMut<'_, '_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Page {
        &mut self.guard
    }
}

/// Advice on the coming use of pages (`madvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// They are read soon.
    WillNeed,
    /// They are not needed: the clean ones are evicted.
    DontNeed,
    /// For all of the view: pages are read ahead by the pattern of reads.
    Normal,
    /// For all of the view: nothing is read ahead.
    Random,
    /// For all of the view: pages are read in order.
    Sequential,
}

/// Pages read ahead of a sequence at most.
const MOST_AHEAD: usize = 512;

impl<'t, 'c> View<'t, 'c> {
    pub(super) fn new(task: &'t CacheTask<'c>, file: &File) -> Result<View<'t, 'c>> {
        let region = task.task.region(file.inner.first_page * FRAME_SIZE)?;
        let most = (task.cache.files.settings.frames / 32).min(MOST_AHEAD);
        let (inner, seen) = (file.inner.clone(), file.seen.clone());
        let pattern = Pattern::new(most);
        Ok(View { task, region, file: inner, seen, pattern, _user: file.user.clone() })
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pages that begin before its end.
    #[inline]
    pub fn pages(&self) -> usize {
        self.file.pages()
    }

    /// Shares a page with others that read it, and keeps it in place. It is read if it is not in memory. Waits for its
    /// writer: if it is the calling thread, for ever.
    ///
    /// # Errors
    /// [`CacheError::PastEnd`], [`CacheError::Read`], [`CacheError::Checksum`]; [`CacheError::Space`] without frames.
    #[inline]
    pub fn read(&self, page: usize) -> Result<PageRef<'_, 'c>> {
        self.read_or(page, || self.region.read_at_once(page))
    }

    /// `at_once`: has it if it is there and nobody writes to it.
    #[inline(always)]
    pub(super) fn read_or<'v>(
        &'v self,
        page: usize,
        at_once: impl FnOnce() -> Option<PageRef<'v, 'c>>,
    ) -> Result<PageRef<'v, 'c>> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        if self.pattern.is_trigger(page) {
            self.read_on();
        }
        match at_once() {
            Some(guard) => Ok(guard),
            None => self.read_slowly(page),
        }
    }

    /// Shares pages in a row with others that read them, and keeps them in place: from the first, which is had as by
    /// [`View::read`], up to the next that is not in memory or that somebody writes to. There are 512 at most, and no
    /// more than a sixteenth of the cache. Pages after them are read ahead, as where they are read one by one.
    ///
    /// ```
    /// # use pumice::cache::{self, CacheError, Options, Settings};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("pumice-range-{}", std::process::id()));
    /// cache::run(&Settings::new(1024), |cache| -> Result<(), CacheError> {
    ///     let file = cache.open(&path, &Options::new())?;
    ///     let task = cache.task()?;
    ///     let view = task.view(&file)?;
    ///     view.write_at(0, &[7; 300 * 4096])?;
    ///     let (mut page, mut sum) = (0, 0);
    ///     while page < view.pages() {
    ///         let range = view.read_range(page..view.pages())?; // one page at least
    ///         sum += range.iter().map(|page| u64::from(page[9])).sum::<u64>();
    ///         page = range.pages().end;
    ///     }
    ///     assert_eq!(sum, 2100);
    ///     Ok(())
    /// })??;
    /// # std::fs::remove_file(path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`View::read`], for the first page.
    pub fn read_range(&self, pages: Range<usize>) -> Result<RangeRef<'_, 'c>> {
        let end = pages.end.min(pages.start.saturating_add(self.most_at_once())).min(self.pages());
        let range = || Ok(self.region.range_from(self.read(pages.start)?, pages.start..end));
        let had = range()?;
        if !had.pages().any(|page| self.pattern.is_trigger(page)) {
            return Ok(had);
        }
        // No page is waited for while others are held.
        drop(had);
        self.read_on();
        range()
    }

    /// Pages that one call has at a time.
    pub(crate) fn most_at_once(&self) -> usize {
        (self.task.cache.files.settings.frames / 16).max(1)
    }

    #[cold]
    #[inline(never)]
    fn read_slowly(&self, page: usize) -> Result<PageRef<'_, 'c>> {
        self.read_ahead(page);
        let mut backoff = Backoff::default();
        loop {
            match self.region.try_read(page) {
                Err(VmError::Busy(_)) => self.wait_for(page, &mut backoff),
                Err(VmError::OutOfFrames(_)) if self.task.end_reads() => {}
                guard => return guard.map_err(|error| self.error(error, page)),
            }
        }
    }

    /// Has a page alone, and keeps it in place. It is read if it is not in memory, and dirty from then on. Waits for
    /// all guards of it: a thread that has one itself waits for ever. Waits a moment where too many pages are dirty.
    ///
    /// # Errors
    /// As [`View::read`]; [`CacheError::ReadOnly`].
    #[inline]
    pub fn write(&self, page: usize) -> Result<PageMut<'_, 'c>> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        self.prepare_to_write()?;
        if self.pattern.is_trigger(page) {
            self.read_on();
        }
        if self.region.translate(page).is_none() {
            self.read_ahead(page);
        }
        let mut backoff = Backoff::default();
        loop {
            match self.region.try_write_noting(page) {
                Ok((guard, Noted::Dirty)) => return Ok(self.page_mut(page, guard)),
                Ok((guard, Noted::Clean)) => return Ok(self.made_dirty(page, guard)),
                Err(VmError::Busy(_)) => self.wait_for(page, &mut backoff),
                Err(VmError::OutOfFrames(_)) if self.task.end_reads() => {}
                Err(error) => return Err(self.error(error, page)),
            }
        }
    }

    /// As [`View::write`]; past the end of the file, that grows, by whole pages. Waits while another thread cuts the
    /// file off: a thread that has a guard of a page that is cut off waits for ever, as does one that has a guard of
    /// the last page of a file that ends within it.
    ///
    /// # Errors
    /// As there, and [`CacheError::NoRoom`].
    pub fn write_or_grow(&self, page: usize) -> Result<PageMut<'_, 'c>> {
        if page >= self.pages() {
            let end = (page as u64).saturating_add(1).saturating_mul(FRAME_SIZE as u64);
            self.grow_to(end)?;
        }
        self.write(page)
    }

    /// As [`View::read`], without waiting for a guard of somebody else's.
    ///
    /// # Errors
    /// As there, and [`CacheError::Space`] with [`VmError::Busy`].
    pub fn try_read(&self, page: usize) -> Result<PageRef<'_, 'c>> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        let mut backoff = Backoff::default();
        loop {
            match self.region.try_read(page) {
                Err(VmError::Busy(_)) if self.ends_a_read_of(page, &mut backoff) => {}
                Err(VmError::OutOfFrames(_)) if self.task.end_reads() => {}
                guard => return guard.map_err(|error| self.error(error, page)),
            }
        }
    }

    /// As [`View::write`], without waiting for a guard of somebody else's.
    ///
    /// # Errors
    /// As there, and [`CacheError::Space`] with [`VmError::Busy`].
    pub fn try_write(&self, page: usize) -> Result<PageMut<'_, 'c>> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        self.check_writable()?;
        let mut backoff = Backoff::default();
        loop {
            match self.region.try_write_noting(page) {
                Ok((guard, Noted::Dirty)) => return Ok(self.page_mut(page, guard)),
                Ok((guard, Noted::Clean)) => return Ok(self.made_dirty(page, guard)),
                Err(VmError::Busy(_)) if self.ends_a_read_of(page, &mut backoff) => {}
                Err(VmError::OutOfFrames(_)) if self.task.end_reads() => {}
                Err(error) => return Err(self.error(error, page)),
            }
        }
    }

    /// Reads a page's words without a guard, as [`Region::read_optimistic`].
    ///
    /// # Errors
    /// As [`View::read`].
    #[inline]
    pub fn read_optimistic<R>(
        &self,
        page: usize,
        mut read: impl FnMut(Words<'_>) -> R,
    ) -> Result<R> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        match self.region.read_optimistic_at_once(page, &mut read) {
            Some(result) => Ok(result),
            None => self.read_copied(page, read),
        }
    }

    /// Of a page that is not there, or written to again and again. Waiting for it is not the region's.
    #[cold]
    #[inline(never)]
    pub(super) fn read_copied<R>(
        &self,
        page: usize,
        read: impl FnOnce(Words<'_>) -> R,
    ) -> Result<R> {
        Ok(self.read(page)?.read_copy(read))
    }

    /// Where a page's frame is, if it is in memory, as [`Region::translate`]. Reclaim does not count this, or a fetch,
    /// as a use of the page: [`View::read_optimistic`] is for readers of its content.
    #[doc(hidden)]
    #[inline]
    pub fn translate(&self, page: usize) -> Option<NonNull<u8>> {
        if page < self.pages() {
            self.region.translate(page)
        } else {
            None
        }
    }

    /// Begins to read those of these pages that are not in memory, and waits for none. Returns how many pages of the
    /// list it has handled: all, unless there are no frames for more, or the queue of reads is full. Pages past the
    /// file's end are not read.
    pub fn prefetch(&self, pages: &[usize]) -> usize {
        self.begin(pages, Why::Wanted)
    }

    /// As [`View::prefetch`], of pages that [`View::arrived`] will report.
    pub fn request(&self, pages: &[usize]) -> usize {
        self.begin(pages, Why::Asked)
    }

    fn begin(&self, pages: &[usize], why: Why) -> usize {
        let counters = &self.task.cache.files.counters;
        let pages = pages.iter().copied();
        self.task.fills.begin(&self.task.task, &self.file, pages, (why, counters)).pages
    }

    /// Pages that were asked for by [`View::request`] and have come since it was last asked, of this file, by any view
    /// of this task, in any order; waits until there are `least`, if so many are on their way. A page that could not be
    /// read, or is past the file's end, is among them: a read of it gives the error.
    ///
    /// # Errors
    /// [`CacheError::Read`] where the kernel no longer reports their outcome. They are then not on their way: a later
    /// call reports them, and a read of one reads it anew.
    pub fn arrived(&self, least: usize, pages: &mut Vec<usize>) -> Result<()> {
        let (task, fills) = (&self.task.task, &self.task.fills);
        let error = |errno| CacheError::Read { path: self.file.path.clone(), page: 0, errno };
        let enough = pages.len().saturating_add(least);
        let mut backoff = Backoff::default();
        loop {
            let is_more = fills.arrived(task, &self.file, pages).map_err(error)?;
            if pages.len() >= enough || !is_more {
                return Ok(());
            }
            if !fills.reap(task, 1).map_err(error)? {
                // Another thread reads it.
                self.task.wait_for_expected(&self.file, &mut backoff);
            }
        }
    }

    /// Announces the next accesses to pages.
    pub fn advise(&self, pages: Range<usize>, advice: Advice) {
        let pages = pages.start..pages.end.min(self.pages());
        match advice {
            Advice::Normal => self.pattern.expect(Expected::Normal),
            Advice::Random => self.pattern.expect(Expected::Random),
            Advice::Sequential => self.pattern.expect(Expected::Sequential),
            Advice::WillNeed => {
                let counters = &self.task.cache.files.counters;
                let fills = &self.task.fills;
                fills.begin(&self.task.task, &self.file, pages, (Why::Wanted, counters));
            }
            Advice::DontNeed => {
                let first = self.file.first_page;
                for page in pages {
                    self.task.task.evict_clean(first + page, DROPPED);
                }
                self.task.task.give_frames_back();
            }
        }
    }

    /// Makes the file's writes durable, its length, and its name if the cache has made it: all that any
    /// thread wrote by guards it had before this was called. Waits for those guards that are still held: for ever, if
    /// the calling thread has one. Waits for the log, too.
    ///
    /// Also waits for truncation. A thread with a guard, also for reading, on a page being cut off waits for ever.
    /// Where the last pages were never written, this also waits for a thread that makes the file longer, and that
    /// thread waits for guards of the last page.
    ///
    /// # Errors
    /// [`CacheError::Write`], [`CacheError::Sync`]: also of a write in the background that failed since this file was
    /// last synced by this view, or by others of the same [`File`]. Pages that were not written are dirty, and
    /// written the next time. [`CacheError::Log`] where they wait for a log that has failed.
    pub fn sync(&self) -> Result<()> {
        self.task.sync(&self.file, &self.seen, 0..self.file.room)
    }

    /// As [`View::sync`], of a range of pages; others may be written with them.
    ///
    /// # Errors
    /// As there.
    pub fn sync_range(&self, pages: Range<usize>) -> Result<()> {
        let end = pages.end.min(self.file.room);
        self.task.sync(&self.file, &self.seen, pages.start.min(end)..end)
    }

    /// A demanded page is not in memory: it is read together with the next pages, if it is one of a sequence.
    #[cold]
    #[inline(never)]
    fn read_ahead(&self, page: usize) {
        if self.task.task.is_being_read(self.file.first_page + page) {
            return;
        }
        if let Some(window) = self.pattern.missed(page) {
            self.begin_window(window, Some(self.file.first_page + page));
        }
    }

    /// The thread has come to where it is time to read on.
    #[cold]
    #[inline(never)]
    fn read_on(&self) {
        self.begin_window(self.pattern.reached(), None);
    }

    /// `wanted`: one of them that is, by its number in the space.
    fn begin_window(&self, window: Window, wanted: Option<usize>) {
        let (end, counters) = (self.pages(), &self.task.cache.files.counters);
        let (task, fills) = (&self.task.task, &self.task.fills);
        fills.begin(task, &self.file, window.pages(end), (Why::Ahead(wanted), counters));
    }

    /// A page that was clean has a guard for writing.
    #[cold]
    #[inline(never)]
    pub(super) fn made_dirty<'v>(
        &'v self,
        page: usize,
        guard: WriteGuard<'v, Frames<'c>, Atomic>,
    ) -> PageMut<'v, 'c> {
        self.file.dirty.add(page);
        self.task.cache.made_dirty();
        self.page_mut(page, guard)
    }

    #[inline]
    fn page_mut<'v>(
        &'v self,
        page: usize,
        guard: WriteGuard<'v, Frames<'c>, Atomic>,
    ) -> PageMut<'v, 'c> {
        let checksum = self.file.checksum.map(|checksum| (checksum, page));
        PageMut { guard, checksum, _frames: PhantomData }
    }

    /// A thread that is going to write waits a moment where more is dirty than may be.
    #[inline]
    pub(super) fn prepare_to_write(&self) -> Result<()> {
        self.check_writable()?;
        if self.task.cache.files.is_too_dirty() {
            self.task.cache.throttle();
        }
        Ok(())
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.file.is_writable {
            true => Ok(()),
            false => Err(CacheError::ReadOnly(self.file.path.clone())),
        }
    }

    #[inline]
    pub(super) fn wait_for(&self, page: usize, backoff: &mut Backoff) {
        self.task.wait_for(self.file.first_page + page, backoff);
    }

    /// Whether a page is being read, and that may be over now.
    fn ends_a_read_of(&self, page: usize, backoff: &mut Backoff) -> bool {
        let is_being_read = self.task.task.is_being_read(self.file.first_page + page);
        if is_being_read {
            self.wait_for(page, backoff);
        }
        is_being_read
    }

    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, error: VmError, page: usize) -> CacheError {
        match error {
            VmError::ReadFailed(_) => self.file.read_error(page),
            error => error.into(),
        }
    }
}

impl std::fmt::Debug for View<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({:?})", self.file)
    }
}

/// Relaxed: a number that was seen.
pub(super) fn seen_now(file: &Inner) -> Arc<AtomicU64> {
    let seen = AtomicU64::new(0);
    seen.store(file.errors(), Ordering::Relaxed);
    Arc::new(seen)
}
