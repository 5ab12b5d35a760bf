//! Reads of many pages at a time: begun by a thread, and ended by whoever looks.
//!
//! Each thread has a queue of reads of its own. A page that is on its way is claimed in its word, so it is read once.
//! A thread that wants such a page ends what its own queue has done; if that does not help, what others' have: their
//! owners may be busy with something else. The kernel ends what an io_uring has done in the thread that asked for it,
//! which may be stopped, or get no processor for long: so who has waited for longer than devices take reads the page
//! anew, into another frame, and the first one is free when that thread goes on ([`Fills::take_over`]). So nobody waits
//! for a thread, only for the device.
//!
//! A queue that can't be asked any more is replaced by whoever finds that out. Its requests have failed then, and each
//! page is read once more, alone, by a thread that wants it.

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
use pumice_paging::page_table::pager::ReadFailed;
use pumice_paging::page_table::FrameSource;
use pumice_paging::space::file::{Begun, Filling, Overtaken, Patience, Use};
use pumice_paging::space::region::Page;

/// Requests of a thread in flight at a time.
pub(super) const DEPTH: usize = 256;
/// Pages read by one request at most.
pub(super) const RUN_PAGES: usize = 128;

/// A thread's queue of reads.
pub(super) struct Fills(Mutex<State>);

struct State {
    /// Before what its requests refer to: it waits for them when it is dropped.
    queue: Queue<AnyEngine>,
    /// For another.
    engines: Engines,
    /// By the requests' tokens, and those of which none is in flight.
    reads: Vec<Read>,
    vacant: Vec<usize>,
    /// Pages of the space that were asked for, and have come since, or have not; and those that were on their way
    /// already when they were asked for.
    arrived: Vec<usize>,
    expected: Vec<usize>,
    /// The first pages of files, and pages past their ends that were asked for.
    past_end: Vec<(usize, usize)>,
}

/// Pages beside each other that are on their way.
#[derive(Default)]
struct Read {
    file: Option<Arc<Inner>>,
    pages: Vec<Filling>,
    /// The rest of those that others read by now.
    overtaken: Vec<Overtaken>,
    pieces: Vec<Piece>,
    why: Option<Why>,
}

// SAFETY: pieces are frames that are the read's alone.
unsafe impl Send for Read {}

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
        let depth = queue.room();
        let reads = (0..depth).map(|_| Read::default()).collect();
        let (arrived, expected, past_end) = (Vec::new(), Vec::new(), Vec::new());
        let vacant = (0..depth).collect();
        let engines = engines.clone();
        Fills(Mutex::new(State { queue, engines, reads, vacant, arrived, expected, past_end }))
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
        let mut run: Option<usize> = None;
        for page in pages {
            if page >= file.pages() {
                if why == Why::Asked {
                    state.past_end.push((file.first_page, page));
                }
                progress.pages += 1;
                continue;
            }
            let is_new_run = run.is_none_or(|place| !state.reads[place].goes_on_with(file, page));
            if is_new_run {
                if let Some(place) = run.take() {
                    state.submit(task, place, counters);
                }
                if state.vacant.is_empty() {
                    // Some may be done.
                    let _ = state.reap(task, 0);
                }
                if state.vacant.is_empty() {
                    break;
                }
            }
            let number = file.first_page + page;
            // Where nothing is on its way, so that nothing will change by itself, it waits for reclaim.
            let is_idle = progress.pages == 0 && state.queue.in_flight() == 0;
            let patience = if is_idle { Patience::Fault } else { Patience::None };
            match task.begin_fill(number, patience) {
                Ok(Begun::Filling(filling)) => {
                    // A page that is not whole in the file is read by itself, at once.
                    let is_plain = !file.is_whole(page) || file.is_zeros(page, filling.from());
                    if let Some(place) = run.take_if(|_| is_plain) {
                        state.submit(task, place, counters);
                    }
                    let place = match run {
                        Some(place) => place,
                        None => {
                            let Some(place) = state.vacant.pop() else {
                                // SAFETY: it was begun by this task, the region stays mapped, and nothing is read.
                                unsafe { task.end_fill(filling, Err(ReadFailed), Use::None) };
                                break;
                            };
                            state.reads[place].file = Some(file.clone());
                            state.reads[place].why = Some(why);
                            run = Some(place);
                            place
                        }
                    };
                    state.reads[place].pages.push(filling);
                    if is_plain {
                        state.read_now(task, place);
                        run = None;
                    }
                }
                Ok(Begun::NoFrame) => {
                    progress.is_short = true;
                    break;
                }
                Ok(Begun::BeingRead) => {
                    if why == Why::Asked {
                        state.expected.push(number);
                    }
                }
                Ok(Begun::InMemory) | Err(_) => {
                    if why == Why::Asked {
                        state.arrived.push(number);
                    }
                }
            }
            progress.pages += 1;
        }
        if let Some(place) = run {
            state.submit(task, place, counters);
        }
        let _ = state.reap(task, 0);
        progress
    }

    /// Ends what is done, and waits until `least` requests are, if so many are in flight. Whether any was ended.
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

    /// Ends a request at least, if any is in flight: its frames are nobody's who could do without them before. Whether
    /// one was.
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
        let read = state.reads.iter_mut().find(|read| read.pages.iter().any(is_it))?;
        let file = read.file.clone()?;
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

    /// Returns when the kernel has done with what it was asked for: nobody is told of that, nor asks for more.
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
        let State { reads, arrived, expected, past_end, .. } = &mut *state;
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
        let is_asked = |read: &Read| {
            let is_of_file = read.file.as_ref().is_some_and(|other| Arc::ptr_eq(other, file));
            is_of_file && read.why == Some(Why::Asked)
        };
        Ok(expected.iter().any(|page| own.contains(page)) || reads.iter().any(is_asked))
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
    fn submit(&mut self, task: &FileTask<'_>, place: usize, counters: &Counters) {
        let State { queue, reads, .. } = self;
        let Read { file, pages, pieces, why, .. } = &mut reads[place];
        let (Some(file), Some(first)) = (file.as_ref(), pages.first()) else { return };
        let frames = task.space().frames();
        let bytes = Bytes::of_frames(pages.iter().map(|page| frames.bytes(page.frame())), pieces);
        let offset = ((first.page() - file.first_page) * FRAME_SIZE) as u64;
        let (file, token) = (file.data.reference(), place as u64);
        let request = Request { file, direction: Direction::Read, bytes, offset, token };
        count(&counters.read, pages.len());
        count(&counters.read_requests, 1);
        if let Some(why) = *why {
            let ahead = pages.iter().filter(|filling| why.used(filling.page()) == Use::None);
            count(&counters.read_ahead, ahead.count());
        }
        // SAFETY: the frames are this read's, the file is kept with it, and the list is not touched before it is
        // done.
        if unsafe { queue.submit(request) }.is_err() {
            self.end(task, place, Err(ReadFailed));
        }
    }

    /// See [`Fills::reap`]. No read is being put together meanwhile.
    fn reap(&mut self, task: &FileTask<'_>, least: usize) -> Result<bool, Errno> {
        let mut done = [(0usize, Ok(())); DEPTH];
        let mut len = 0;
        let note = |place: u64, result: Result<(), Errno>| {
            done[len] = (place as usize, result);
            len += 1;
        };
        let is_to_wait = least > 0 && self.queue.in_flight() > 0;
        let reaped = if is_to_wait { self.queue.reap(note) } else { self.queue.poll(note) };
        for &(place, result) in &done[..len] {
            // Why, who wants the page finds out: it is read once more then.
            self.end(task, place, result.map_err(|_| ReadFailed));
        }
        match reaped {
            Ok(()) => Ok(len > 0),
            Err(errno) => {
                self.replace_queue(task);
                Err(errno)
            }
        }
    }

    /// The queue can't be asked any more: another is, and what is in flight ends. Nobody reads into its frames by then.
    fn replace_queue(&mut self, task: &FileTask<'_>) {
        self.engines.replace(&mut self.queue, DEPTH as u32);
        for place in 0..self.reads.len() {
            if self.reads[place].file.is_some() {
                self.end(task, place, Err(ReadFailed));
            }
        }
        let depth = self.queue.room();
        self.reads.resize_with(depth.max(self.reads.len()), Read::default);
        self.vacant = (0..depth).collect();
    }

    /// Reads a single page of which not all is in the file, waiting.
    fn read_now(&mut self, task: &FileTask<'_>, place: usize) {
        let Read { file, pages, .. } = &mut self.reads[place];
        let (Some(file), Some(filling)) = (file.as_ref(), pages.first()) else { return };
        let mut at = task.space().frames().bytes(filling.frame()).cast::<Page>();
        let page = filling.page() - file.first_page;
        // SAFETY: the frame is this read's.
        let result = file.read_plainly(page, filling.from(), unsafe { at.as_mut() });
        self.end(task, place, result.map_err(|_| ReadFailed));
    }

    fn end(&mut self, task: &FileTask<'_>, place: usize, result: Result<(), ReadFailed>) {
        let read = &mut self.reads[place];
        let why = read.why.unwrap_or(Why::Wanted);
        let file = read.file.take();
        let frames = task.space().frames();
        for filling in read.pages.drain(..) {
            if why == Why::Asked {
                self.arrived.push(filling.page());
            }
            let used = why.used(filling.page());
            let at = frames.bytes(filling.frame()).cast::<Page>();
            let is_right = file.as_ref().is_none_or(|file| {
                // SAFETY: the frame is this read's, which is done.
                result.is_err()
                    || file.is_as_written(filling.page() - file.first_page, unsafe { at.as_ref() })
            });
            // Why not, too, who wants it finds out.
            let result = if is_right { result } else { Err(ReadFailed) };
            // SAFETY: it was begun in the cache's space, where files' regions stay mapped, and the read is over.
            unsafe { task.end_fill(filling, result, used) };
        }
        for overtaken in read.overtaken.drain(..) {
            if why == Why::Asked {
                self.arrived.push(overtaken.page());
            }
            // SAFETY: as above.
            unsafe { task.end_overtaken(overtaken) };
        }
        self.vacant.push(place);
    }
}

impl Read {
    /// Whether a page of a file is the next of this.
    fn goes_on_with(&self, file: &Arc<Inner>, page: usize) -> bool {
        let is_next =
            self.pages.last().is_some_and(|last| last.page() + 1 == file.first_page + page);
        is_next && self.pages.len() < RUN_PAGES
    }
}
