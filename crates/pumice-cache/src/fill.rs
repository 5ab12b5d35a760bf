//! Reads of many pages at a time: begun by a thread, and ended by any thread that looks.
//!
//! Each thread has a queue of reads of its own. A page that is on its way is claimed in its word, so it is read once.
//! A thread that wants such a page ends the requests that its own queue has done; if that does not help, those of
//! others' queues: their owners may be busy with something else. The kernel ends what an io_uring has done in the
//! thread that asked for it, which may be stopped, or get no processor for long. So a thread that has waited for longer
//! than devices take reads the page anew, into another frame, and the first one is free when that thread goes on
//! ([`Fills::take_over`]). So nobody waits for a thread, only for the device.
//!
//! A queue that can't be asked any more is replaced by the thread that finds that out. Its requests have failed then,
//! and each page is read once more, alone, by a thread that wants it.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use super::inner::Inner;
use super::table::{count, Counters};
use super::FileTask;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::engine::{Direction, Piece};
use pumice_io::sync::{Mutex, MutexGuard};
use pumice_io::{AnyEngine, Bytes, Engines, Plain, Queue, Request};
use pumice_paging::page_table::pager::{Evicted, ReadFailed};
use pumice_paging::space::file::{Filling, Overtaken, Patience};
use pumice_paging::space::file_ops::FileOps;
use pumice_paging::space::region::Page;
use pumice_paging::space::runs::Halt;
use pumice_paging::space::swap_in::Use;

/// Requests of a thread in flight at a time.
pub(super) const DEPTH: usize = 256;
/// Pages read by one request at most.
pub(super) const RUN_PAGES: usize = 256;

/// A thread's queue of reads.
pub(super) struct Fills(Mutex<State>);

struct State {
    queue: Queue<AnyEngine, Read>,
    /// For another.
    engines: Engines,
    /// Lists of reads to come.
    spare: Vec<(Vec<Filling>, Vec<Piece>)>,
    /// Pages of the space that were asked for, and have come since, or have not; and those that were on their way
    /// already when they were asked for.
    arrived: Vec<usize>,
    expected: Vec<usize>,
    /// The first pages of files, and pages past their ends that were asked for.
    past_end: Vec<(usize, usize)>,
}

/// Pages beside each other that are on their way.
struct Read {
    file: Arc<Inner>,
    why: Why,
    pages: Vec<Filling>,
    /// The rest of those that others read by now.
    overtaken: Vec<Overtaken>,
    pieces: Vec<Piece>,
}

/// Why pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// They may be wanted; one of them, by its number in the space, perhaps is.
    Ahead(Option<usize>),
    /// They will be.
    Wanted,
    /// Somebody is going to ask which have come.
    Asked,
}

impl Why {
    /// The use of a page, as reclaim is told when it has come: it is used when somebody comes for it, and that is told
    /// then.
    fn used(self, page: usize) -> Use {
        match self {
            Why::Ahead(wanted) if wanted != Some(page) => Use::None,
            _ => Use::Soon,
        }
    }
}

/// How far a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Pages of the list that were dealt with.
    pub pages: usize,
    /// There were no frames for more.
    pub is_short: bool,
}

impl Fills {
    pub fn new(engines: &Engines) -> Fills {
        let queue = Queue::new(engines.make(DEPTH as u32), DEPTH);
        let (arrived, expected, past_end) = (Vec::new(), Vec::new(), Vec::new());
        let (engines, spare) = (engines.clone(), Vec::new());
        Fills(Mutex::new(State { queue, engines, spare, arrived, expected, past_end }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Begins to read those of a file's pages that are not in memory.
    pub fn begin(
        &self,
        task: &FileTask<'_>,
        file: &Arc<Inner>,
        pages: impl Iterator<Item = usize>,
        (why, counters): (Why, &Counters),
    ) -> Progress {
        let mut state = self.state();
        let mut progress = Progress { pages: 0, is_short: false };
        let mut pages = pages.peekable();
        while let Some(first) = pages.next() {
            if first >= file.room {
                if why == Why::Asked {
                    state.past_end.push((file.first_page, first));
                }
                progress.pages += 1;
                continue;
            }
            let mut end = first + 1;
            while end - first < RUN_PAGES && pages.next_if_eq(&end).is_some() {
                end += 1;
            }
            if !state.begin_run(task, file, first..end, (why, counters), &mut progress) {
                break;
            }
        }
        let _ = state.reap(task, 0);
        progress
    }

    /// Ends the requests that are done, and waits until `least` are, if so many are in flight. Returns whether any was
    /// ended.
    ///
    /// # Errors
    /// The kernel's error where it can't be asked for completions: then all are ended.
    pub fn reap(&self, task: &FileTask<'_>, least: usize) -> Result<bool, Errno> {
        self.state().reap(task, least)
    }

    /// As [`Fills::reap`], of another thread's, if nobody has it, without waiting. Whether any was ended.
    pub fn help(&self, task: &FileTask<'_>) -> bool {
        let Some(mut state) = self.0.try_lock() else { return false };
        matches!(state.reap(task, 0), Ok(true))
    }

    /// Ends one request or more, if any is in flight: until then its frames are in use. Returns whether one was in
    /// flight.
    pub fn end_some(&self, task: &FileTask<'_>) -> bool {
        let mut state = self.state();
        let is_any = state.queue.in_flight() > 0;
        if is_any {
            let _ = state.reap(task, 1);
        }
        is_any
    }

    /// Whether anything may be in flight.
    pub fn may_end(&self) -> bool {
        self.0.try_lock().is_none_or(|state| state.queue.in_flight() > 0)
    }

    /// Takes a page over that is on its way and does not come, to be read and ended by the caller; `None` where it is
    /// not among these, or there is no frame.
    pub fn take_over(&self, task: &FileTask<'_>, page: usize) -> Option<(Arc<Inner>, Filling)> {
        let mut state = self.0.try_lock()?;
        let is_it = |filling: &Filling| filling.page() == page;
        // SAFETY: the list that the request refers to is left alone, and its frame is kept, as one overtaken.
        let mut reads = unsafe { state.queue.payloads_mut() };
        let read = reads.find(|read| read.pages.iter().any(is_it))?;
        let file = read.file.clone();
        // Their order counts before they are asked for only.
        let filling = read.pages.swap_remove(read.pages.iter().position(is_it)?);
        match task.take_over(filling) {
            Ok((filling, overtaken)) => {
                read.overtaken.push(overtaken);
                Some((file, filling))
            }
            Err(filling) => {
                read.pages.push(filling);
                None
            }
        }
    }

    /// Pages of a file, by their numbers in the space, that were asked for and that others read.
    pub fn expected(&self, file: &Inner) -> Vec<usize> {
        let own = file.first_page..file.first_page + file.room;
        self.state().expected.iter().copied().filter(|page| own.contains(page)).collect()
    }

    /// Waits for all that is in flight: no page stays claimed by a thread that is no more.
    pub fn drain(&self, task: &FileTask<'_>) {
        let mut state = self.state();
        while state.queue.in_flight() > 0 {
            let _ = state.reap(task, 1);
        }
    }

    /// Returns when the kernel has finished all requests: nobody is told of that, nor asks for more.
    pub fn end(&self) {
        self.state().queue = Queue::new(Box::new(Plain::new()), 1);
    }

    /// Tells of a file's pages that were asked for and have come, or could not be read; whether more of it are on
    /// their way.
    pub fn arrived(
        &self,
        task: &FileTask<'_>,
        file: &Arc<Inner>,
        found: &mut Vec<usize>,
    ) -> Result<bool, Errno> {
        let mut state = self.state();
        state.reap(task, 0)?;
        let State { queue, arrived, expected, past_end, .. } = &mut *state;
        let own = file.first_page..file.first_page + file.room;
        expected.retain(|&page| {
            let is_coming = task.is_being_read(page);
            if !is_coming {
                arrived.push(page);
            }
            is_coming
        });
        arrived.retain(|page| {
            let is_own = own.contains(page);
            if is_own {
                found.push(page - own.start);
            }
            !is_own
        });
        past_end.retain(|&(first, page)| {
            if first == own.start {
                found.push(page);
            }
            first != own.start
        });
        let is_asked = |read: &Read| Arc::ptr_eq(&read.file, file) && read.why == Why::Asked;
        Ok(expected.iter().any(|page| own.contains(page)) || queue.payloads().any(is_asked))
    }

    /// Nobody is told any more of pages that were asked for of a region: its file is closed.
    pub fn forget(&self, pages: &Range<usize>) {
        let mut state = self.state();
        state.arrived.retain(|page| !pages.contains(page));
        state.expected.retain(|page| !pages.contains(page));
        state.past_end.retain(|(first, _)| !pages.contains(first));
    }
}

impl State {
    /// Begins to read pages in a row. Whether there may be room for more.
    fn begin_run(
        &mut self,
        task: &FileTask<'_>,
        file: &Arc<Inner>,
        pages: Range<usize>,
        (why, counters): (Why, &Counters),
        progress: &mut Progress,
    ) -> bool {
        let there = file.pages().clamp(pages.start, pages.end);
        let mut page = pages.start;
        while page < there {
            if self.queue.room() == 0 {
                // Some may be done.
                let _ = self.reap(task, 0);
            }
            if self.queue.room() == 0 {
                return false;
            }
            let mut read = self.read_of(file, why);
            let number = file.first_page + page;
            // Where nothing is on its way, so that nothing will change by itself, it waits for reclaim.
            let is_idle = progress.pages == 0 && self.queue.in_flight() == 0;
            let patience = if is_idle { Patience::Fault } else { Patience::None };
            let numbers = number..file.first_page + there;
            let halt =
                task.begin_fill_all(numbers, patience, &mut |filling| read.pages.push(filling));
            page += read.pages.len();
            progress.pages += read.pages.len();
            self.ask_for(task, read, counters);
            match halt {
                Halt::End => continue,
                Halt::NoFrame => {
                    progress.is_short = true;
                    return false;
                }
                Halt::BeingRead if why == Why::Asked => self.expected.push(file.first_page + page),
                Halt::InMemory if why == Why::Asked => self.arrived.push(file.first_page + page),
                Halt::BeingRead | Halt::InMemory => {}
            }
            page += 1;
            progress.pages += 1;
        }
        if why == Why::Asked {
            self.past_end.extend((there..pages.end).map(|page| (file.first_page, page)));
        }
        progress.pages += pages.end - there;
        true
    }

    /// Has pages be read that were begun, in a row: those that are not whole in the file by themselves, at once.
    fn ask_for(&mut self, task: &FileTask<'_>, mut read: Read, counters: &Counters) {
        let (file, why) = (read.file.clone(), read.why);
        let page = |filling: &Filling| filling.page() - file.first_page;
        let Some(last) = read.pages.last().map(page) else {
            self.spare.push((read.pages, read.pieces));
            return;
        };
        // Pages before a whole one are whole. None is zeros that nobody has written if the last is none for its place.
        if file.is_whole(last) && !file.is_zeros(last, Evicted::Shadow(0)) {
            self.submit(task, read, counters);
            return;
        }
        let mut run: Option<Read> = None;
        for filling in read.pages.drain(..) {
            let is_plain =
                !file.is_whole(page(&filling)) || file.is_zeros(page(&filling), filling.from());
            if let Some(read) = run.take_if(|_| is_plain) {
                self.submit(task, read, counters);
            }
            run.get_or_insert_with(|| self.read_of(&file, why)).pages.push(filling);
            if let Some(read) = run.take_if(|_| is_plain) {
                self.read_now(task, read);
            }
        }
        if let Some(read) = run {
            self.submit(task, read, counters);
        }
        self.spare.push((read.pages, read.pieces));
    }

    fn read_of(&mut self, file: &Arc<Inner>, why: Why) -> Read {
        let (pages, pieces) = self.spare.pop().unwrap_or_default();
        Read { file: file.clone(), why, pages, overtaken: Vec::new(), pieces }
    }

    fn submit(&mut self, task: &FileTask<'_>, mut read: Read, counters: &Counters) {
        let Read { file, why, pages, pieces, .. } = &mut read;
        let bytes = Bytes::of_frames(pages.iter().map(|page| task.bytes(page.frame())), pieces);
        let offset = ((pages[0].page() - file.first_page) * FRAME_SIZE) as u64;
        let file = file.data.reference();
        let request = Request { file, direction: Direction::Read, bytes, offset, token: 0 };
        count(&counters.read, pages.len());
        count(&counters.read_requests, 1);
        let ahead = pages.iter().filter(|filling| why.used(filling.page()) == Use::None);
        count(&counters.read_ahead, ahead.count());
        // SAFETY: the queue has the read, and with it the frames, the file and the list.
        if let Err((_, read)) = unsafe { self.queue.submit(request, read) } {
            self.end(task, read, Err(ReadFailed));
        }
    }

    /// See [`Fills::reap`]. No read is being put together meanwhile.
    fn reap(&mut self, task: &FileTask<'_>, least: usize) -> Result<bool, Errno> {
        let is_to_wait = least > 0 && self.queue.in_flight() > 0;
        let reaped = if is_to_wait { self.queue.reap() } else { self.queue.poll() };
        if let Err(errno) = reaped {
            // Nobody reads into its frames when another is there.
            self.engines.replace(&mut self.queue, DEPTH as u32, errno);
        }
        let mut is_any = false;
        while let Some((read, result)) = self.queue.pop() {
            // A thread that wants the page reads it once more, and finds out why.
            self.end(task, read, result.map_err(|_| ReadFailed));
            is_any = true;
        }
        reaped.map(|()| is_any)
    }

    /// Reads a single page of which not all is in the file, waiting.
    fn read_now(&mut self, task: &FileTask<'_>, read: Read) {
        let filling = &read.pages[0];
        let mut at = task.bytes(filling.frame()).cast::<Page>();
        let page = filling.page() - read.file.first_page;
        // SAFETY: the frame is this read's.
        let result = read.file.read_plainly(page, filling.from(), unsafe { at.as_mut() });
        self.end(task, read, result.map_err(|_| ReadFailed));
    }

    fn end(&mut self, task: &FileTask<'_>, read: Read, result: Result<(), ReadFailed>) {
        let Read { file, why, mut pages, overtaken, pieces } = read;
        let arrived = &mut self.arrived;
        let mut ended = pages.drain(..).map(|filling| {
            if why == Why::Asked {
                arrived.push(filling.page());
            }
            let used = why.used(filling.page());
            let at = task.bytes(filling.frame()).cast::<Page>();
            // SAFETY: the frame is this read's, which is done.
            let is_right = result.is_err()
                || file.is_as_written(filling.page() - file.first_page, unsafe { at.as_ref() });
            // A thread that wants it finds out why not, too.
            let result = if is_right { result } else { Err(ReadFailed) };
            (filling, result, used)
        });
        // SAFETY: they were begun in the cache's space, where files' regions stay mapped, and the read is over.
        unsafe { task.end_fill_all(&mut ended) };
        drop(ended);
        for overtaken in overtaken {
            if why == Why::Asked {
                self.arrived.push(overtaken.page());
            }
            // SAFETY: as above.
            unsafe { task.end_overtaken(overtaken) };
        }
        self.spare.push((pages, pieces));
    }
}
