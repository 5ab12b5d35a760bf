//! A file that the cache has open, as all threads share it: its length, its writes in flight, its errors.
//!
//! **Lengths.** `len` is the length that the file's users have set, to the byte. Pages that begin before it are there,
//! others are an error. On the device the file is never longer, but where its blocks can't be had otherwise
//! ([`View::allocate`](super::View::allocate)): its last page is written to the byte, by a descriptor of its own where
//! direct I/O does not take so few. Of pages from `zero_from` on nothing was ever written that is
//! still in the file: those that never were in memory since are zeros, and are not read.
//!
//! **Writes** of all threads are admitted here: not while [`Change`] stops them, nothing beyond the file's end, nothing
//! before its log. Writes in flight are counted in two epochs. A thread that waits for all begins the other, so that
//! later writes do not keep it waiting. A page that reclaim cleans counts from before its word
//! says that it is clean.

mod admit;
mod read;

pub(super) use admit::{Refused, Write, WRITE_DEPTH};

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::checksum::Checksum;
use super::dirty::DirtyMap;
use super::error::{CacheError, Otherwise};
use super::open::{errno_of, Opened};
use super::rule::WriteAhead;
use super::settings::Options;
use super::unflushed::{Unflushed, Why};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::thread::Maker;
use pumice_io::sync::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use pumice_io::sync::{contain, pause_in_models, Condvar, Mutex, MutexGuard};
use pumice_io::{BlockFile, Cached, FileRef, Opening};

/// Pages written by one request at most.
pub(super) const MOST_PAGES: usize = 256;
/// Read errors that are kept for the threads that asked.
const READ_ERRORS: usize = 64;
const FRAME: u64 = FRAME_SIZE as u64;

/// See the module's top.
pub(super) struct Inner {
    pub path: Arc<Path>,
    pub data: BlockFile,
    /// For writes that direct I/O does not take.
    pub tail: Option<BlockFile>,
    /// Of a file that may be written, until its name is known to be durable.
    pub folders: Mutex<Vec<File>>,
    /// The process whose cache it is: a child made by `fork` has old copies of its pages.
    pub maker: Maker,
    pub is_writable: bool,
    /// Of the region, in the cache's space.
    pub first_page: usize,
    pub room: usize,
    len: AtomicU64,
    zero_from: AtomicUsize,
    /// As far as the file is known to go on the device.
    len_on_device: AtomicU64,
    pub dirty: DirtyMap,
    pub rule: Option<Arc<dyn WriteAhead>>,
    /// Of a file that is whole pages long.
    pub checksum: Option<Checksum>,
    /// The rule is asked no more.
    rule_has_panicked: AtomicBool,
    /// A clone is each handle's and each view's: all others have the file for a while only.
    pub users: Arc<()>,
    /// Held by a thread that looks for dirty pages, until it has begun to write them.
    pub scan: Mutex<()>,
    /// Held by a thread that makes things durable.
    pub syncing: Mutex<()>,
    /// Held while the device is flushed: the kernel tells one thread of an error, and the next is to know of it.
    pub flushing: Mutex<()>,
    pub unflushed: Unflushed,
    /// Its pages may be another file's. Relaxed: by the holder of `syncing`.
    pub is_closed: AtomicBool,
    /// Held by a thread that changes the length, but in memory only.
    pub resizing: Mutex<()>,
    /// Held by a thread that waits for all writes in flight.
    turning: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    /// Errors of writes so far.
    errors: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The rule is the program's, and the last to have the file may be a thread that writes pages back.
        contain(|| drop(self.rule.take()));
    }
}

/// How far a thread is that changes the file's length.
///
/// | from | to | when |
/// |---|---|---|
/// | Still | Stopped | the device is to be told of another length |
/// | Stopped | Still | it has been, or has refused |
/// | Stopped | Forgetting | it has cut the file off: pages past the end are to go |
/// | Forgetting | Still | they are gone |
///
/// A Stopped file waits for writes in flight and the device, and for nobody's guard. So a write that it puts off waits
/// for no more than that: `put_off` says so, and before the next change may begin, the thread that changes the length
/// writes that page, and wakes reclaim (`length::Resizing`). A file that is closed stays Stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Writes are admitted, and the file grows.
    Still,
    /// No write is admitted, and the file does not grow.
    Stopped,
    /// It does not grow: a page past the end would go. This waits for guards of pages that go.
    Forgetting,
}

struct State {
    /// Writes in flight, by epoch.
    writing: [usize; 2],
    epoch: usize,
    change: Change,
    /// The first page, counted from the file's start, of which a write was put off since [`Inner::take_put_off`].
    put_off: Option<usize>,
    /// Pages that reclaimers have, which they clean and drop: since which epoch, and how many have each.
    held: BTreeMap<usize, (usize, usize)>,
    /// Those that any had since a `sync` asked for this.
    watched: Option<Vec<usize>>,
    /// Times that pages that were clean to be written are dirty again, but for errors.
    given_up: u64,
    last_error: Option<CacheError>,
    /// The kernel's error when it could not make writes durable. It reports that once.
    sync_error: Option<Errno>,
    read_errors: VecDeque<(usize, Errno)>,
    /// Threads that wait for any of this to change.
    waiting: usize,
}

/// Pages that may be written, by one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub file: FileRef,
    pub offset: u64,
    pub pages: usize,
    pub bytes: usize,
    pub epoch: usize,
}

impl Inner {
    pub fn new(
        path: Arc<Path>,
        Opened { data, tail, folder }: Opened,
        options: &Options,
        (first_page, room): (usize, usize),
        checksum: Option<Checksum>,
        all_dirty: Arc<AtomicUsize>,
    ) -> Inner {
        let len = data.len();
        let maker = Maker::here();
        let state = State {
            writing: [0; 2],
            epoch: 0,
            change: Change::Still,
            put_off: None,
            held: BTreeMap::new(),
            watched: None,
            given_up: 0,
            last_error: None,
            sync_error: None,
            read_errors: VecDeque::new(),
            waiting: 0,
        };
        Inner {
            path,
            data,
            tail,
            maker,
            folders: Mutex::new(folder.into_iter().collect()),
            is_writable: options.opening != Opening::Read,
            first_page,
            room,
            len: AtomicU64::new(len),
            zero_from: AtomicUsize::new(pages_of(len)),
            len_on_device: AtomicU64::new(len),
            dirty: DirtyMap::new(room, all_dirty),
            rule: options.rule.clone(),
            checksum,
            rule_has_panicked: AtomicBool::new(false),
            users: Arc::default(),
            scan: Mutex::new(()),
            syncing: Mutex::new(()),
            flushing: Mutex::new(()),
            unflushed: Unflushed::new(),
            is_closed: AtomicBool::new(false),
            resizing: Mutex::new(()),
            turning: Mutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            errors: AtomicU64::new(0),
        }
    }

    /// The first option that the open file does not have. A caller that asks for no log gets the one there is.
    pub fn is_otherwise(&self, options: &Options) -> Option<Otherwise> {
        let same = |rule: &Arc<dyn WriteAhead>| {
            self.rule.as_ref().is_some_and(|own| Arc::ptr_eq(own, rule))
        };
        let room = (self.room * FRAME_SIZE) as u64;
        if !options.rule.as_ref().is_none_or(same) {
            Some(Otherwise::WriteAhead)
        } else if options.cached == Cached::Yes && self.data.cached() == Cached::No {
            Some(Otherwise::Direct)
        } else if options.checksums != self.checksum.map(Checksum::place) {
            Some(Otherwise::Checksums { at: self.checksum.map(Checksum::place) })
        } else if options.room > room && !self.data.is_device() {
            Some(Otherwise::Room { room })
        } else {
            None
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until something has changed.
    fn wait<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.waiting += 1;
        let mut state = self.changed.wait(state);
        state.waiting -= 1;
        state
    }

    /// Something has changed. Where nobody waits, which is nearly always, the kernel is not asked.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let are_any = state.waiting > 0;
        drop(state);
        if are_any {
            self.changed.notify_all();
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        // Acquire: pairs with `set_len`: a thread that sees a file grown sees the changes to its last page.
        self.len.load(Ordering::Acquire)
    }

    /// Pages that begin before the end.
    #[inline]
    pub fn pages(&self) -> usize {
        pages_of(self.len())
    }

    /// Whether there is a page, of which the caller has claimed the word: then truncation waits for that.
    pub fn is_there(&self, page: usize) -> bool {
        // SeqCst: pairs with that in `View::cut`.
        fence(Ordering::SeqCst);
        page < self.pages()
    }

    pub fn set_len(&self, len: u64) {
        // Release: see `len`.
        self.len.store(len, Ordering::Release);
    }

    /// Its length, once nobody changes it.
    pub fn len_uncut(&self) -> u64 {
        let mut state = self.state();
        while state.change != Change::Still {
            state = self.wait(state);
        }
        self.len()
    }

    /// Makes it so long if it is as long as it was and nobody changes that. Waits for nobody: the caller has a guard.
    pub fn grow_from(&self, old: u64, len: u64) -> bool {
        let state = self.state();
        let is_as_it_was = state.change == Change::Still && self.len() == old;
        if is_as_it_was {
            self.set_len(len);
        }
        is_as_it_was
    }

    /// Its length on the device, as far as it is known. Relaxed: a hint, and its users find out when it is stale.
    pub fn len_on_device(&self) -> u64 {
        self.len_on_device.load(Ordering::Relaxed)
    }

    /// It goes so far on the device, cut off or grown.
    pub fn set_len_on_device(&self, len: u64) {
        self.len_on_device.store(len, Ordering::Relaxed);
    }

    /// Nothing from this page on is in the file any more.
    pub fn nothing_from(&self, page: usize) {
        // Relaxed: pages in memory are forgotten before; a thread that grows the file releases its length later.
        self.zero_from.fetch_min(page, Ordering::Relaxed);
    }

    pub fn past_end(&self, page: usize) -> CacheError {
        CacheError::PastEnd { path: self.path.clone(), page, pages: self.pages() }
    }

    // -- Writing ------------------------------------------------------------------------------------------------

    /// A write that was admitted is over, of this many pages, before their words say so.
    pub fn written(&self, write: &Admitted, result: Result<(), Errno>) {
        if result.is_ok() {
            self.dirty.remove(write.pages);
            self.len_on_device.fetch_max(write.offset + write.bytes as u64, Ordering::Relaxed);
        }
        let mut state = self.state();
        if let Err(errno) = result {
            let page = (write.offset / FRAME) as usize;
            state.last_error = Some(CacheError::Write { path: self.path.clone(), page, errno });
            // Relaxed: under the lock; a thread that reads it without is told sooner or later.
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.end_in_epoch(state, write.epoch);
    }

    /// Reclaim begins to clean a page. Threads that wait for writes count it as in flight until [`Inner::let_go`].
    pub fn hold(&self, page: usize) {
        let mut state = self.state();
        let State { held, writing, epoch, watched, .. } = &mut *state;
        if let Some(watched) = watched {
            watched.push(page);
        }
        let (since, many) = held.entry(page).or_insert((*epoch, 0));
        if *many == 0 {
            writing[*since] += 1;
        }
        *many += 1;
    }

    /// Reclaim is done with a page.
    pub fn let_go(&self, page: usize) {
        let mut state = self.state();
        let Some((epoch, many)) = state.held.get_mut(&page) else { return };
        *many -= 1;
        if *many == 0 {
            let epoch = *epoch;
            state.held.remove(&page);
            state.writing[epoch] -= 1;
            self.wake(state);
        }
    }

    /// Begins to note the pages that reclaim has, those it has now among them. Called by a `sync`.
    pub fn watch_holds(&self) {
        let mut state = self.state();
        state.watched = Some(state.held.keys().copied().collect());
    }

    /// Ends [`Inner::watch_holds`]: the pages that reclaim had since.
    pub fn take_holds(&self) -> Vec<usize> {
        self.state().watched.take().unwrap_or_default()
    }

    /// Waits until reclaim does not have a page. How often pages were given up until then.
    pub fn wait_for_hold(&self, page: usize) -> u64 {
        let mut state = self.state();
        while state.held.contains_key(&page) {
            state = self.wait(state);
        }
        state.given_up
    }

    /// Whether a page that was clean after [`Inner::wait_for_hold`] may be dirty again all the same: its holder gave it
    /// up, or still may.
    pub fn may_be_given_up(&self, page: usize, since: u64) -> bool {
        // The background writer gives up pages that it may not write while it has this.
        drop(self.scan.lock());
        let state = self.state();
        state.held.contains_key(&page) || state.given_up != since
    }

    /// A page is dirty again that was clean to be written. A thread that has it has it still.
    pub fn note_given_up(&self) {
        self.state().given_up += 1;
    }

    fn end_in_epoch(&self, mut state: MutexGuard<'_, State>, epoch: usize) {
        state.writing[epoch] -= 1;
        if state.writing[epoch] == 0 {
            self.wake(state);
        }
    }

    /// Waits for all writes that are in flight now: for the device, and for nobody's guard.
    pub fn wait_for_writes(&self) {
        let _turn = self.turning.lock();
        let mut state = self.state();
        let epoch = state.epoch;
        // The rest of the epoch before.
        while state.writing[1 - epoch] > 0 {
            state = self.wait(state);
        }
        state.epoch = 1 - epoch;
        while state.writing[epoch] > 0 {
            state = self.wait(state);
        }
    }

    /// Makes the file so long, on the device too, if it is as long as it was. For the thread that changes it.
    ///
    /// # Errors
    /// The kernel's error. The length is as before.
    pub fn extend(&self, old: u64, len: u64) -> Result<bool, Errno> {
        if self.len_on_device() >= len {
            return Ok(self.grow_from(old, len));
        }
        self.while_nothing_is_written(|| {
            let is_as_it_was = self.len() == old;
            if is_as_it_was {
                self.extend_on_device(len)?;
                self.set_len(len);
            }
            Ok(is_as_it_was)
        })
    }

    /// Whether it may not be as long on the device as it is: its last pages may never have been written.
    pub fn is_longer_than_on_device(&self) -> bool {
        let len = self.len();
        !self.data.is_device() && self.len_on_device() < len
    }

    /// Makes it as long on the device as it is. For the thread that changes it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn catch_up_on_device(&self) -> Result<(), Errno> {
        self.while_nothing_is_written(|| self.extend_on_device(self.len()))
    }

    /// Gives back blocks beyond the end on the device, and moves that end back to the file's.
    /// Called by a thread that changes the length. Where that can't be done they are in nobody's way.
    pub fn trim_on_device(&self) {
        if !self.data.is_device() {
            let _ = self.while_nothing_is_written(|| self.data.trim(self.len()));
        }
    }

    /// Bytes beyond a length that was right a moment ago would be cut off.
    fn while_nothing_is_written<R>(&self, work: impl FnOnce() -> R) -> R {
        self.set_change(Change::Stopped);
        self.wait_for_writes();
        pause_in_models();
        let result = work();
        self.set_change(Change::Still);
        result
    }

    fn extend_on_device(&self, len: u64) -> Result<(), Errno> {
        if self.len_on_device() < len {
            self.data.set_len(len)?;
            self.len_on_device.fetch_max(len, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the device's content durable, and the name of a file that was made.
    fn sync_data(&self) -> Result<(), Errno> {
        self.data.sync_data()?;
        let mut folders = self.folders.lock();
        while let Some(folder) = folders.last() {
            match folder.sync_all().map_err(|error| errno_of(&error)) {
                // The file system does no such thing, and says that of all its folders.
                Ok(()) | Err(Errno::INVAL) => drop(folders.pop()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Another thread that opened it may have made it, in this folder, besides those that are not synced yet.
    pub fn name_is_new(&self, folder: Option<File>) {
        let Some(folder) = folder else { return };
        let mut folders = self.folders.lock();
        let id = |folder: &File| folder.metadata().ok().map(|it| (it.dev(), it.ino()));
        if folders.iter().all(|one| id(one).is_none() || id(one) != id(&folder)) {
            folders.push(folder);
        }
    }

    /// The next step of a change of the length.
    pub fn set_change(&self, change: Change) {
        let mut state = self.state();
        state.change = change;
        self.wake(state);
    }

    /// The page of which a write was put off, when whoever began it has let go of it: nothing is put off any more.
    pub fn take_put_off(&self) -> Option<usize> {
        let page = self.state().put_off.take()?;
        self.wait_for_hold(page);
        Some(page)
    }

    // -- Errors -------------------------------------------------------------------------------------------------

    /// Makes the writes durable. After one failure it is never known again which of them are. Called by a `sync`.
    pub fn make_durable(&self) -> Result<(), CacheError> {
        self.flush(self.flushing.lock(), Why::Sync);
        let error = |errno| CacheError::Sync { path: self.path.clone(), errno };
        self.state().sync_error.map_or(Ok(()), |errno| Err(error(errno)))
    }

    /// Flushes what was written so far, before a `sync` waits for more of it, if that is still due. Whether it was.
    pub fn flush_ahead(&self) -> bool {
        let flushing = self.flushing.lock();
        let is_due = self.unflushed.is_due() && !self.has_failed_to_sync();
        if is_due {
            self.flush(flushing, Why::Due);
        }
        is_due
    }

    fn flush(&self, _flushing: MutexGuard<'_, ()>, why: Why) {
        let (bytes, begun) = (self.unflushed.begin(why), Instant::now());
        if self.has_failed_to_sync() {
            return;
        }
        match self.sync_data() {
            Ok(()) => self.unflushed.end(bytes, begun.elapsed()),
            Err(errno) => self.note_sync_error(errno),
        }
    }

    /// From here on nobody is told that anything is durable.
    pub fn note_sync_error(&self, errno: Errno) {
        self.state().sync_error = Some(errno);
    }

    /// Whether that is so.
    pub fn has_failed_to_sync(&self) -> bool {
        self.state().sync_error.is_some()
    }

    /// How many writes have failed so far.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The last error in writing, if there was one since `seen`, which is brought up to date.
    pub fn error_since(&self, seen: &AtomicU64) -> Result<(), CacheError> {
        let state = self.state();
        let now = self.errors();
        // Relaxed: any one of those that share `seen` gets the error.
        if seen.swap(now, Ordering::Relaxed) == now {
            return Ok(());
        }
        state.last_error.clone().map_or(Ok(()), Err)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({}, {} bytes)", self.path.display(), self.len())
    }
}

/// Pages that begin before so many bytes.
pub(super) fn pages_of(len: u64) -> usize {
    len.div_ceil(FRAME) as usize
}
