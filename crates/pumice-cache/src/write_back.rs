//! Writing dirty pages back, many at a time: in the background, and for `sync`.
//!
//! A page that is begun is clean, and not yet in flight: a `sync` beside it would find nothing to write and nothing to
//! wait for. So a writer holds the file's scan lock until its pages are handed over. `sync` need not: only one runs,
//! and it waits for its own.
//!
//! Pages that lie beside each other go by one request. While it waits for somebody's guard, or for the log, a writer
//! holds nothing: a thread that has one page and wants another, which is being written, would wait for it.
//!
//! Where the queue can't be asked any more, pages in flight were not written, for all that is known. They are dirty
//! still, `sync` reports it, and another queue goes on.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::dirty::Which;
use super::error::CacheError;
use super::inner::{Admitted, Inner, Refused, Write, MOST_PAGES};
use super::table::{count, Files};
use super::FileTask;
use pumice_frames::sys::lock::Backoff;
use pumice_frames::sys::thread;
use pumice_io::engine::Direction;
use pumice_io::sync::atomic::Ordering;
use pumice_io::sync::pause_in_models;
use pumice_io::{AnyEngine, Bytes, Queue, Request};
use pumice_paging::space::file_ops::FileOps;
use pumice_paging::space::write_back::{StillHeld, WriteBack, WriteFailed};

/// How long it is waited between looks whether the log is durable by now.
const LOG_LOOK: Duration = Duration::from_micros(100);

/// Writes pages of files back. It is one thread's, for as long as it takes.
pub(super) struct Writer<'w, 'c> {
    task: &'w FileTask<'c>,
    /// Those of the cache, with the counters and the queues.
    files: &'w Files,
    /// All guards that there are were forgotten: they are not waited for.
    is_last: bool,
    /// One of them, until this is closed.
    queue: Queue<AnyEngine, Write>,
    /// Pages begun, beside each other, that are to be written next.
    batch: Vec<WriteBack>,
    /// Pages of the file that somebody writes to, and those that may not be written yet.
    held: Vec<usize>,
    refused: Vec<(usize, Refused)>,
    /// Pages of requests for several that failed.
    failed: Vec<(Arc<Inner>, usize)>,
}

impl<'w, 'c> Writer<'w, 'c> {
    pub fn new(task: &'w FileTask<'c>, files: &'w Files) -> Writer<'w, 'c> {
        Writer {
            task,
            files,
            is_last: files.is_ending.load(Ordering::Relaxed),
            queue: files.writers.take(),
            batch: Vec::with_capacity(MOST_PAGES),
            held: Vec::new(),
            refused: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Waits for all that is in flight, and leaves the queue to the next.
    pub fn close(mut self) {
        self.drain();
        self.files.writers.give(self.queue);
    }

    /// Begins to write the dirty pages of a range of a file, of all of their granules in fact. Pages that can't
    /// be written now are marked again, and left in `held` and `refused`.
    pub fn begin(&mut self, file: &Arc<Inner>, which: Which, pages: &Range<usize>) {
        self.held.clear();
        self.refused.clear();
        let scan = file.scan.lock();
        let mut dirty = Vec::new();
        let (first, end) = (file.first_page, file.first_page + file.room);
        file.dirty.take(which, pages, |granule| {
            let granule = first + granule.start..(first + granule.end).min(end);
            // SAFETY: a file's region stays until the cache ends, and the closure only takes note.
            unsafe { self.task.scan_dirty(granule, |page| dirty.push(page)) };
        });
        let mut begun = Vec::with_capacity(MOST_PAGES);
        for pages in dirty.chunks(MOST_PAGES) {
            self.task.begin_write_back_all(pages, &mut |page, one| match one {
                Some(one) => begun.push(one),
                None => {
                    // Somebody writes to it, or has begun to write it back: that looks at it again.
                    file.dirty.mark(page - first);
                    self.held.push(page);
                }
            });
            begun.drain(..).for_each(|begun| self.add(file, begun));
        }
        self.submit(file);
        drop(scan);
    }

    /// As [`Writer::begin`], of all that was dirty before this: also what reclaim has begun to write, and may give up.
    pub fn begin_all(&mut self, file: &Arc<Inner>, pages: &Range<usize>) {
        file.watch_holds();
        self.begin(file, Which::All, pages);
        let holds = file.take_holds();
        let holds = holds.iter().filter(|page| pages.contains(page));
        self.held.extend(holds.map(|page| file.first_page + page));
    }

    /// Writes the pages that [`Writer::begin`] has left: waits for those who write to them, and for the log.
    ///
    /// # Errors
    /// [`CacheError::Log`] and [`CacheError::Held`]: pages that wait for that are dirty still.
    pub fn finish(&mut self, file: &Arc<Inner>) -> Result<(), CacheError> {
        self.retry();
        let mut result = self.wait_for_held(file);
        let mut backoff = Backoff::default();
        while !self.refused.is_empty() {
            // Asked before: then pages go whose records it made durable before it failed.
            let has_failed = file.log_has_failed();
            // As many as may go go together.
            for (page, _) in std::mem::take(&mut self.refused) {
                match self.task.begin_write_back(page) {
                    Some(begun) => self.add(file, begun),
                    None => self.held.push(page),
                }
            }
            self.submit(file);
            self.retry();
            result = result.and(self.wait_for_held(file));
            // A page that waits for the file's length goes when that is as it is to be, whatever the log says.
            if has_failed && self.refused.iter().any(|&(_, refused)| refused == Refused::Log) {
                self.refused.retain(|&(_, refused)| refused != Refused::Log);
                result = Err(file.log_error());
            }
            if !self.refused.is_empty() {
                backoff.wait();
                thread::sleep(LOG_LOOK);
            }
        }
        result
    }

    /// Waits for all that is in flight, and writes pages one by one that could not be written together: one of them may
    /// be what is bad.
    pub fn retry(&mut self) {
        self.drain();
        for (file, page) in std::mem::take(&mut self.failed) {
            self.write_alone(&file, page);
        }
    }

    /// Writes a page, by its number in the space, and waits for that.
    pub fn write_alone(&mut self, file: &Arc<Inner>, page: usize) {
        // A `sync` meanwhile finds the page dirty, or its write in flight.
        let scan = file.scan.lock();
        // Somebody has it: it is dirty, and marked.
        let Some(begun) = self.task.begin_write_back(page) else { return };
        self.add(file, begun);
        self.submit(file);
        drop(scan);
        self.drain();
    }

    /// Writes pages that somebody wrote to, or has: nothing is in flight, and nothing is held while one is waited for,
    /// so its holder goes on.
    fn wait_for_held(&mut self, file: &Arc<Inner>) -> Result<(), CacheError> {
        let mut result = Ok(());
        for page in std::mem::take(&mut self.held) {
            match self.wait_to_begin(file, page) {
                Ok(Some(begun)) => {
                    self.add(file, begun);
                    self.submit(file);
                    self.drain();
                }
                Ok(None) => {}
                Err(StillHeld) => {
                    let (path, page) = (file.path.clone(), page - file.first_page);
                    result = result.and(Err(CacheError::Held { path, page }));
                }
            }
        }
        result
    }

    /// Begins a page when nobody writes to it. `None`: it is clean, or on its way to the device, by whomever.
    fn wait_to_begin(&self, file: &Inner, page: usize) -> Result<Option<WriteBack>, StillHeld> {
        loop {
            let given_up = file.wait_for_hold(page - file.first_page);
            if let Some(begun) = self.task.wait_to_write_back(page, !self.is_last)? {
                return Ok(Some(begun));
            }
            if !file.may_be_given_up(page - file.first_page, given_up) {
                return Ok(None);
            }
        }
    }

    fn add(&mut self, file: &Arc<Inner>, begun: WriteBack) {
        let is_next =
            self.batch.last().is_none_or(|last| last.page().page + 1 == begun.page().page);
        if !is_next || self.batch.len() == MOST_PAGES {
            self.submit(file);
        }
        self.batch.push(begun);
        pause_in_models();
    }

    /// Hands the batch over, as far as it may be written.
    fn submit(&mut self, file: &Arc<Inner>) {
        let mut batch = std::mem::take(&mut self.batch);
        while !batch.is_empty() {
            if file.unflushed.is_due() {
                self.files.want_device_flushed();
            }
            while self.queue.room() == 0 {
                self.reap();
            }
            let task = self.task;
            let pages = batch
                .iter()
                .map(|begun| (begun.page().page - file.first_page, task.bytes(begun.page().frame)));
            // SAFETY: the pages are held for reading until their write-back is ended.
            match unsafe { file.admit(pages) } {
                Ok(admitted) => {
                    let pages = batch.drain(..admitted.pages).collect();
                    self.write(file, admitted, pages);
                }
                Err(refused) => {
                    self.refused.push((batch[0].page().page, refused));
                    self.give_up(file, batch.drain(..1));
                }
            }
        }
        self.batch = batch;
    }

    fn write(&mut self, file: &Arc<Inner>, admitted: Admitted, pages: Vec<WriteBack>) {
        let (task, mut pieces) = (self.task, Vec::new());
        let at = pages.iter().map(|page| task.bytes(page.page().frame));
        // Less than all of it only if it is one.
        let bytes = Bytes::of_frames(at, &mut pieces).first(admitted.bytes);
        let write = Write { file: file.clone(), admitted, pages, _pieces: pieces };
        let Admitted { file, offset, .. } = admitted;
        let request = Request { file, direction: Direction::Write, bytes, offset, token: 0 };
        // SAFETY: the frames are their pages' until the write-back is ended. The queue has the file and the list.
        if let Err((errno, write)) = unsafe { self.queue.submit(request, write) } {
            self.end(write, Err(errno));
        }
        self.poll();
    }

    /// Submits the requests, and ends those that are done.
    fn poll(&mut self) {
        let asked = self.queue.poll();
        self.end_done(asked);
    }

    /// Waits for one request at least, if any is in flight.
    fn reap(&mut self) {
        let asked = self.queue.reap();
        self.end_done(asked);
    }

    fn end_done(&mut self, asked: Result<(), Errno>) {
        if let Err(errno) = asked {
            // It is not known how much of it was written, but nobody writes it any more.
            self.files.writers.replace(&mut self.queue, errno);
        }
        while let Some((write, result)) = self.queue.pop() {
            self.end(write, result);
        }
    }

    /// Waits for all that is in flight.
    pub fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.reap();
        }
    }

    fn end(&mut self, write: Write, result: Result<(), Errno>) {
        let Write { file, admitted, pages, .. } = write;
        if result.is_ok() {
            file.written(&admitted, result);
            count(&self.files.counters.written, pages.len());
            count(&self.files.counters.write_requests, 1);
            // SAFETY: they were begun in the cache's space, where files' regions stay mapped.
            unsafe { self.task.end_write_back_all(&mut pages.into_iter()) };
        } else {
            if pages.len() > 1 {
                self.failed.extend(pages.iter().map(|page| (file.clone(), page.page().page)));
            }
            // A thread that waits for writes in flight finds these marked then, and an error.
            self.give_up(&file, pages);
            file.written(&admitted, result);
        }
    }

    /// Leaves pages dirty.
    fn give_up(&self, file: &Arc<Inner>, pages: impl IntoIterator<Item = WriteBack>) {
        for begun in pages {
            let page = begun.page().page;
            // Counted and marked when it is dirty again.
            // SAFETY: as in `end`.
            unsafe { self.task.end_write_back(begun, Err(WriteFailed)) };
            file.note_given_up();
            file.dirty.mark(page - file.first_page);
        }
    }
}
