//! A thread's part in a cache.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{CacheError, Result};
use super::fill::Fills;
use super::inner::{Change, Inner};
use super::write_back::Writer;
use super::{Cache, FileTask};
use pumice_frames::sys::lock::Backoff;
use pumice_frames::sys::thread;
use pumice_io::sync::atomic::{fence, AtomicU64, Ordering};
use pumice_io::sync::in_policy;
use pumice_io::Way;
use pumice_paging::space::file_ops::FileOps;

/// An open file, to be viewed by any task of its cache. It stays in the cache when this is dropped, as the kernel keeps
/// pages of files that nobody has open: [`CacheTask::close`] removes it.
#[derive(Debug)]
pub struct File {
    pub(super) inner: Arc<Inner>,
    /// Errors in writing that were told by way of this.
    pub(super) seen: Arc<AtomicU64>,
    pub(super) user: Arc<()>,
}

impl Clone for File {
    /// Another handle of the file. It is told of errors that happen from now on, or have not been told of yet.
    fn clone(&self) -> File {
        // Relaxed: a number.
        let seen = self.seen.load(Ordering::Relaxed);
        let (inner, user) = (self.inner.clone(), self.user.clone());
        File { inner, seen: Arc::new(AtomicU64::new(seen)), user }
    }
}

impl File {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pages that begin before its end.
    pub fn pages(&self) -> usize {
        self.inner.pages()
    }

    /// Pages that it can grow to.
    pub fn room(&self) -> usize {
        self.inner.room
    }

    /// Whether its data goes straight between the device and frames, or why not.
    pub fn way(&self) -> Way {
        self.inner.data.way()
    }

    /// The path that it was opened by first.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Pages that are not written yet.
    pub fn dirty(&self) -> usize {
        self.inner.dirty.pages()
    }
}

/// A thread's part in a [`Cache`]: its frames, its reads in flight. One thread uses it at a time; a thread has as
/// many as it likes.
pub struct CacheTask<'c> {
    pub(super) cache: &'c Cache<'c>,
    pub(super) task: FileTask<'c>,
    pub(super) fills: Arc<Fills>,
}

/// Polls before a thread that waits for a page sleeps.
const WAITS_AWAKE: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);
/// Polls before a thread reads a page itself that another thread has asked for: some 20 ms.
const WAITS_FOR_A_THREAD: u32 = if cfg!(shuttle) { 8 } else { WAITS_AWAKE + 200 };
/// Waits for a guard, of which each takes longer than the one before, after which all other pages are looked at again.
const WAITS_FOR_OTHERS: u32 = 64;
/// How long a thread without frames waits for frames of other threads' reads.
const WAIT_FOR_FRAMES: Duration = Duration::from_secs(5);

impl<'c> CacheTask<'c> {
    pub(super) fn new(cache: &'c Cache<'c>) -> Result<CacheTask<'c>> {
        let task = cache.space.enter()?;
        let fills = Arc::new(Fills::new(&cache.files.settings.engines));
        cache.fills.write().push(fills.clone());
        Ok(CacheTask { cache, task, fills })
    }

    /// The pages of another cache's file are numbered as others are here.
    pub(super) fn check_own(&self, file: &Inner) -> Result<()> {
        match file.dirty.counts_in(&self.cache.files.dirty) {
            true => Ok(()),
            false => Err(CacheError::OtherCache(file.path.clone())),
        }
    }

    /// Writes all dirty pages of all files back and makes them durable.
    ///
    /// # Errors
    /// As [`View::sync`](super::View::sync), the first there is; the others are synced all the same.
    pub fn sync_all(&self) -> Result<()> {
        let mut result = Ok(());
        for file in self.cache.files.all() {
            let seen = AtomicU64::new(file.errors());
            let synced = self.sync(&file, &seen, 0..file.room);
            result = result.and(synced);
        }
        result
    }

    /// Writes a file's dirty pages back and makes them durable. If nobody else has a handle or a view of the file, its
    /// pages leave the cache: the next open reads them from the device.
    ///
    /// # Errors
    /// As [`View::sync`](super::View::sync); the file is then still there, but where all is written and
    /// [`CacheError::Sync`] says that it can't be made durable. [`CacheError::OtherCache`]: it stays in that one.
    pub fn close(&self, file: File) -> Result<()> {
        self.check_own(&file.inner)?;
        let File { inner, seen, user } = file;
        drop(user);
        let files = &self.cache.files;
        let (_opening, result) = loop {
            let result = self.sync(&inner, &seen, 0..inner.room);
            // Bytes that are written, and can't be made durable, are of no more use here.
            if result.is_err() && !(inner.has_failed_to_sync() && inner.dirty.pages() == 0) {
                return result;
            }
            let opening = files.opening.lock();
            // Nobody gets another meanwhile: threads that open it wait, and there is none to be cloned.
            if Arc::strong_count(&inner.users) > 1 {
                return result;
            }
            // Pairs with the release by which the last of them dropped it: pages that it made dirty are seen.
            fence(Ordering::Acquire);
            // Another thread that had it may have written to it since it was synced. Beside the table and this, reads
            // ahead have it, and writers.
            if inner.dirty.pages() == 0 && Arc::strong_count(&inner) == 2 {
                break (opening, result);
            }
            drop(opening);
            if !self.end_reads() {
                thread::sleep(SLEEP);
            }
        };
        // A `sync` of all files may have found it still.
        let syncing = inner.syncing.lock();
        inner.is_closed.store(true, Ordering::Relaxed);
        drop(syncing);
        inner.set_change(Change::Stopped);
        inner.set_len(0);
        inner.wait_for_writes();
        let pages = inner.first_page..inner.first_page + inner.room;
        self.forget(&inner, pages.clone());
        let fills = self.cache.fills.read();
        fills.iter().for_each(|fills| fills.forget(&pages));
        drop(fills);
        files.remove(inner.first_page);
        // A thread that found it before may have it for a moment more, and a child for longer.
        inner.data.unlock();
        let mut vacant = files.vacant.lock();
        vacant.push((inner.first_page, inner.room));
        result
    }

    /// Makes the pages of a range durable that were dirty before this call.
    pub(super) fn sync(
        &self,
        file: &Arc<Inner>,
        seen: &AtomicU64,
        pages: std::ops::Range<usize>,
    ) -> Result<()> {
        in_policy::refuse();
        if !file.is_writable {
            return Ok(());
        }
        if !file.maker.is_here() {
            return Err(CacheError::Forked);
        }
        let _one = file.syncing.lock();
        if file.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let files = self.cache.files;
        let mut writer = Writer::new(&self.task, files);
        writer.begin_all(file, &pages);
        let logged = writer.finish(file);
        file.wait_for_writes();
        writer.close();
        let error = |errno| CacheError::Sync { path: file.path.clone(), errno };
        // After the waits only: a thread that held a guard may extend the file. And only if it must be: a thread that
        // extends the file may wait for a guard of this thread's, for reading.
        if file.is_longer_than_on_device() {
            let _length = self.resize(file);
            file.catch_up_on_device().map_err(error)?;
        }
        let durable = file.make_durable();
        file.error_since(seen).and(logged).and(durable)
    }

    /// Forgets pages of a file that is cut off or closed, and waits for the end of their guards. Others can have the
    /// frames of pages without one, or whose guards have ended, meanwhile: reclaim writes no page beyond the end.
    pub(super) fn forget(&self, inner: &Inner, pages: std::ops::Range<usize>) {
        let forget_idle = |pages| {
            // SAFETY: a file's region stays until the cache ends.
            inner.dirty.remove(unsafe { self.task.forget_idle(pages) });
            self.task.give_frames_back();
        };
        forget_idle(pages.clone());
        let mut waits = 0;
        let wait = |page| {
            waits += 1;
            if waits % WAITS_FOR_OTHERS == 0 {
                forget_idle(page..pages.end);
            }
            let is_any = matches!(self.fills.reap(&self.task, 0), Ok(true));
            if !is_any && !self.cache.help(&self.task) && waits > WAITS_FOR_A_THREAD {
                self.cache.take_over(&self.task, page);
            }
        };
        // SAFETY: a file's region stays until the cache ends, and the wait ends reads only.
        let dirty = unsafe { self.task.forget(pages.clone(), wait) };
        inner.dirty.remove(dirty);
        self.task.give_frames_back();
    }

    /// Has frames of reads that are on their way be pages, which reclaim can take. Whether there were any; of other
    /// threads' it may be that none is done.
    #[cold]
    #[inline(never)]
    pub(super) fn end_reads(&self) -> bool {
        let begun = Instant::now();
        let mut backoff = Backoff::default();
        let mut were_any = self.fills.end_some(&self.task) | self.cache.help(&self.task);
        while !were_any && self.cache.may_end_reads() && begun.elapsed() < WAIT_FOR_FRAMES {
            backoff.wait();
            if backoff.waits() > WAITS_AWAKE && !cfg!(shuttle) {
                thread::sleep(SLEEP);
            }
            were_any = self.cache.help(&self.task);
        }
        self.task.lru_drain();
        were_any
    }

    /// Waits for the thread that reads a page, or has a guard of it.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for(&self, page: usize, backoff: &mut Backoff) {
        if self.task.is_being_read(page) {
            if matches!(self.fills.reap(&self.task, 1), Ok(true)) {
                return;
            }
            self.cache.help(&self.task);
            if backoff.waits() > WAITS_FOR_A_THREAD && self.cache.take_over(&self.task, page) {
                return;
            }
        }
        backoff.wait();
        if backoff.waits() > WAITS_AWAKE && !cfg!(shuttle) {
            thread::sleep(SLEEP);
        }
    }
}

impl CacheTask<'_> {
    /// Waits for pages of a file that were asked for, and that other threads read.
    pub(super) fn wait_for_expected(&self, file: &Inner, backoff: &mut Backoff) {
        self.cache.help(&self.task);
        if backoff.waits() > WAITS_FOR_A_THREAD {
            for page in self.fills.expected(file) {
                self.cache.take_over(&self.task, page);
            }
        }
        backoff.wait();
        if backoff.waits() > WAITS_AWAKE && !cfg!(shuttle) {
            thread::sleep(SLEEP);
        }
    }
}

impl Drop for CacheTask<'_> {
    fn drop(&mut self) {
        let mut fills = self.cache.fills.write();
        fills.retain(|other| !Arc::ptr_eq(other, &self.fills));
        drop(fills);
        self.fills.drain(&self.task);
    }
}

impl std::fmt::Debug for CacheTask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheTask").finish_non_exhaustive()
    }
}
