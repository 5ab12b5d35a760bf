//! The files that a cache has open, as a backing of reclaim.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;

use super::inner::{Admitted, Inner, Write, WRITE_DEPTH};
use super::settings::Settings;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::frame::Gfp;
use pumice_io::file::FileId;
use pumice_io::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use pumice_io::sync::{Condvar, Mutex, MutexGuard, RwLock};
use pumice_io::Queues;
use pumice_paging::backing::{Backing, Came, Outgoing, Place, Refusal};
use pumice_paging::page_table::pager::{Evicted, ReadFailed, SpaceId};
use pumice_paging::page_table::Rights;

/// A page that was dropped, not chosen by reclaim: nothing is known of when it was used.
pub(super) const DROPPED: Evicted = Evicted::Shadow(1);

/// Counted in pages, but for requests. Relaxed throughout: numbers.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub read: AtomicU64,
    pub read_requests: AtomicU64,
    pub read_ahead: AtomicU64,
    pub written: AtomicU64,
    pub write_requests: AtomicU64,
    pub throttled: AtomicU64,
    /// Flushes that no `sync` waited for.
    pub flushed_ahead: AtomicU64,
}

/// Adds to a count.
pub(super) fn count(counter: &AtomicU64, many: usize) {
    counter.fetch_add(many as u64, Ordering::Relaxed);
}

/// See the module's top.
pub(super) struct Files {
    pub settings: Settings,
    /// By their first pages.
    files: RwLock<BTreeMap<usize, (FileId, Arc<Inner>)>>,
    /// Held by a thread that opens or closes a file.
    pub opening: Mutex<()>,
    /// Regions of closed files: first pages, and how many.
    pub vacant: Mutex<Vec<(usize, usize)>>,
    readers: Queues,
    pub writers: Queues<Write>,
    /// The program's work is over: guards that are still there were forgotten. Relaxed: the thread that says so asks.
    pub is_ending: AtomicBool,
    /// Dirty pages of all files.
    pub dirty: Arc<AtomicUsize>,
    pub counters: Counters,
    flusher: Mutex<Flusher>,
    pub wake_flusher: Condvar,
    pub flush_due: Condvar,
    pub flushed: Condvar,
}

/// The state of the flusher.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    is_stopped: bool,
    /// Somebody waits, or there is more that is dirty than is left in peace.
    is_wanted: bool,
    /// A device is to be flushed.
    is_flush_due: bool,
    /// Rounds it has done.
    pub rounds: u64,
}

impl Flusher {
    /// It ends.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether it was wanted; now it is not.
    pub fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.is_wanted)
    }

    /// Whether a device was to be flushed; now it is not.
    pub fn take_flush_due(&mut self) -> bool {
        std::mem::take(&mut self.is_flush_due)
    }
}

impl Files {
    pub fn new(settings: &Settings) -> Files {
        Files {
            settings: settings.clone(),
            files: RwLock::default(),
            opening: Mutex::new(()),
            vacant: Mutex::default(),
            readers: Queues::new(settings.engines.clone(), 1),
            writers: Queues::new(settings.engines.clone(), WRITE_DEPTH as u32),
            is_ending: AtomicBool::new(false),
            dirty: Arc::default(),
            counters: Counters::default(),
            flusher: Mutex::default(),
            wake_flusher: Condvar::new(),
            flush_due: Condvar::new(),
            flushed: Condvar::new(),
        }
    }

    pub fn flusher(&self) -> MutexGuard<'_, Flusher> {
        self.flusher.lock()
    }

    /// The file that a page of the space is of.
    pub fn find(&self, page: usize) -> Option<Arc<Inner>> {
        let files = self.files.read();
        let (_, (_, file)) = files.range(..=page).next_back()?;
        (page < file.first_page + file.room).then(|| file.clone())
    }

    /// The file that is open under a name of the kernel's.
    pub fn find_id(&self, id: FileId) -> Option<Arc<Inner>> {
        let files = self.files.read();
        files.values().find(|(other, _)| *other == id).map(|(_, file)| file.clone())
    }

    pub fn all(&self) -> Vec<Arc<Inner>> {
        let files = self.files.read();
        files.values().map(|(_, file)| file.clone()).collect()
    }

    pub fn add(&self, id: FileId, file: Arc<Inner>) {
        let mut files = self.files.write();
        files.insert(file.first_page, (id, file));
    }

    pub fn remove(&self, first_page: usize) {
        self.files.write().remove(&first_page);
    }

    /// Whether more is dirty than may be.
    #[inline]
    pub fn is_too_dirty(&self) -> bool {
        // Relaxed: a number.
        self.dirty.load(Ordering::Relaxed) > self.settings.dirty_most
    }

    /// Whether so much is dirty that it is written back.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) > self.settings.dirty_background
    }

    /// Tells the flusher that there is something to do.
    pub fn want_flushed(&self) {
        let mut flusher = self.flusher();
        if !flusher.is_wanted {
            flusher.is_wanted = true;
            self.wake_flusher.notify_one();
        }
    }

    /// Tells the thread that flushes devices that it is time to.
    pub fn want_device_flushed(&self) {
        let mut flusher = self.flusher();
        if !flusher.is_flush_due {
            flusher.is_flush_due = true;
            self.flush_due.notify_one();
        }
    }

    /// Reads a page of a file, by its number in the space.
    pub fn read_page(
        &self,
        file: &Inner,
        page: usize,
        from: Evicted,
        into: &mut [u8; FRAME_SIZE],
    ) -> Result<(), ReadFailed> {
        let page = page - file.first_page;
        file.read(&self.readers, page, from, into).map_err(|errno| {
            file.note_read_error(page, errno);
            ReadFailed
        })?;
        if !file.is_zeros(page, from) {
            count(&self.counters.read, 1);
            count(&self.counters.read_requests, 1);
        }
        Ok(())
    }

    /// The file of pages that go.
    fn file_of(&self, page: usize) -> Result<Arc<Inner>, Refusal> {
        self.find(page).ok_or(Refusal::Failed)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Nothing is written any more, and others may have the files; handles of them, or children that were forked,
        // may be there still.
        let files = self.files.get_mut();
        files.values().for_each(|(_, file)| file.data.unlock());
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

/// The place of a page that is evicted, with the policy's note of it: another one than that of a page that never was in
/// memory.
fn elsewhere(note: u32) -> Evicted {
    if Evicted::Shadow(note) == Evicted::Shadow(0) {
        DROPPED
    } else {
        Evicted::Shadow(note)
    }
}

// SAFETY: it uses no task.
unsafe impl Backing for Files {
    fn needs(&self) -> Gfp {
        Gfp::IO | Gfp::FS
    }

    fn writes_in_place(&self) -> bool {
        true
    }

    fn read(
        &self,
        _: SpaceId,
        page: usize,
        from: Evicted,
        into: &mut [u8; FRAME_SIZE],
    ) -> Result<(), ReadFailed> {
        let file = self.find(page).ok_or(ReadFailed)?;
        self.read_page(&file, page, from, into)
    }

    fn came_in(&self, _: SpaceId, _: usize, from: Evicted, _: Rights) -> Came {
        let note = match from {
            Evicted::Shadow(0) | DROPPED => None,
            Evicted::Shadow(note) | Evicted::Swapped(note) => Some(note),
        };
        Came { note, slot: 0 }
    }

    fn free(&self, _: SpaceId, _: Evicted) {}

    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        Some(elsewhere(page.note))
    }

    unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        let first = pages.first().ok_or(Refusal::Failed)?;
        let file = self.file_of(first.page)?;
        let own = pages.iter().take_while(|page| page.page < file.first_page + file.room);
        let own = own.map(|page| (page.page - file.first_page, page.at));
        // SAFETY: the caller's promise; they are held for reading: pages written in place are not in transit.
        let Admitted { file, offset, pages, bytes, epoch } = unsafe { file.admit(own) }?;
        Ok(Place { file, offset, pages, bytes, tag: epoch as u64 })
    }

    fn written(&self, place: &Place, pages: &[Outgoing], result: Result<(), Errno>) {
        let Some(file) = pages.first().and_then(|first| self.find(first.page)) else { return };
        let &Place { file: reference, offset, pages, bytes, tag } = place;
        let write = Admitted { file: reference, offset, pages, bytes, epoch: tag as usize };
        file.written(&write, result);
        if result.is_ok() {
            count(&self.counters.written, pages);
            count(&self.counters.write_requests, 1);
        }
        if file.unflushed.is_due() {
            self.want_device_flushed();
        }
    }

    fn evicted(&self, _: &Place, _: usize, page: &Outgoing) -> Evicted {
        elsewhere(page.note)
    }

    fn give_up(&self, _: &Place, _: usize) {}

    fn hold(&self, _: SpaceId, page: usize) -> bool {
        let file = self.find(page);
        file.is_some_and(|file| {
            file.hold(page - file.first_page);
            true
        })
    }

    fn let_go(&self, _: SpaceId, page: usize) {
        if let Some(file) = self.find(page) {
            let page = page - file.first_page;
            // It may be dirty again, and a scan for dirty pages meanwhile has not seen it.
            file.dirty.mark(page);
            file.let_go(page);
        }
    }

    fn dirty_again(&self, _: SpaceId, page: usize) {
        if let Some(file) = self.find(page) {
            file.note_given_up();
        }
    }

    fn release(&self, _: &mut dyn Iterator<Item = u32>) {}
}
