//! The page cache of a program that caches for itself: files and block devices, many times larger than the memory for
//! their pages, read and written around the kernel's page cache straight into and from frames. It is an inside of
//! pumice, whose facade is `pumice`.
//!
//! - [`Cache`]: the files that are open, over one zone of frames; [`run()`] makes one.
//! - [`CacheTask`]: a thread's part in it; [`View`]: a file as a thread sees it: guards, reads ahead, lengths,
//!   `sync`.
//! - [`settings`]: how large a cache is, and how a file is opened; [`rule`]: the log before the page.
//! - `bytes`: pages that are written whole, and bytes at any place; `checksum`: pages that say whether they are right.
//! - `inner`: a file as all threads share it; `open`: how it is opened; `table`: files as reclaim sees them.
//! - `readahead`: the pages to read next.
//! - `fill`: reads of many pages at a time; `write_back`, `flusher`, `dirty`, `unflushed`: writing; `length`: growing
//!   and cutting off.
//!
//! Neighbours: `pumice-paging`, whose spaces and reclaim it is made of; `pumice-io`, by which files are read and
//! written; `pumice-frames`, whose frames have the pages.
//! Every `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are for pumice's crates.
//!
//! ```
//! use pumice::cache::{self, Options, Settings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("pumice-cache-{}", std::process::id()));
//! cache::run(&Settings::new(1024), |cache| -> Result<(), cache::CacheError> {
//!     let file = cache.open(&path, &Options::new())?;
//!     let task = cache.task()?; // one for each thread
//!     let view = task.view(&file)?;
//!     view.set_len(64 << 20)?; // sixteen times the memory
//!     for page in 0..view.pages() {
//!         view.write(page)?[0] = page as u8;
//!     }
//!     view.sync()?; // it is on the device
//!     assert_eq!(view.read(300)?[0], 300usize as u8);
//!     Ok(())
//! })??;
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Design
//! A cache is a [`VmSpace`], and each file a region of it; one that is opened twice, by device and inode, is one
//! region. So the page table and reclaim treat pages of files like anonymous memory. A page that is not in memory is a
//! shadow; a fault has the file read it into a frame that is not zeroed first. Any thread may write a dirty page to its
//! place in the file, while only readers may have the page. The page is then clean and still in memory. Reclaim cleans
//! a page in this way before it evicts it.
//!
//! # Locks
//! Nothing is locked to get a page that is in memory. Else, in this order: a file's *syncing* (to make it durable), its
//! *resizing* (to change its length), its *turning* (to wait for all writes in flight), its *scan* (to look for dirty
//! pages, until their writes have begun), its *flushing* (to flush its device), a thread's queue of reads, a file's
//! state. Reclaim's comes after these. A cache's *opening* (to open or close a file) comes before all of them. A `sync`
//! waits for guards, and has *syncing* only meanwhile, for which only another `sync` waits. A thread that makes a file
//! longer waits for no guard but one of its last page. A thread that cuts it off waits for those of pages that go. Each
//! says so. The log is asked under no lock but *syncing*, *resizing* and *scan*.

mod bytes;
mod checksum;
mod dirty;
mod entry;
mod error;
mod fill;
mod flusher;
mod inner;
mod length;
#[cfg(all(test, shuttle))]
mod models;
mod open;
mod readahead;
pub mod rule;
#[cfg(not(shuttle))]
mod run;
pub mod settings;
mod table;
mod task;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod unflushed;
mod view;
mod write_back;

pub use entry::PageEntry;
pub use error::{CacheError, Otherwise, Result};
pub use rule::WriteAhead;
#[cfg(not(shuttle))]
pub use run::run;
pub use settings::{Options, Settings};
pub use task::{CacheTask, File};
pub use view::{Advice, PageMut, PageRef, RangeRef, View};

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use checksum::Checksum;
use fill::Fills;
use inner::Inner;
use open::Opened;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::file::{FileId, Wait};
use pumice_io::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pumice_io::sync::{in_policy, RwLock};
use pumice_io::Opening;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::space::file_ops::FileOps;
use pumice_paging::space::swap_in::Use;
use pumice_paging::space::{Frames, Task, VmError, VmSpace};
use settings::shared;
use table::{Counters, Files};

/// A task in the space of files.
type FileTask<'c> = Task<'c, Frames<'c>, Atomic>;

/// See the module's top. Threads share it by reference.
pub struct Cache<'c> {
    space: &'c VmSpace<Frames<'c>, Atomic>,
    files: &'c Files,
    reclaim: &'c (dyn Fn() -> pumice_paging::reclaim::Counts + Sync),
    /// Of the threads, for each other.
    fills: &'c RwLock<Vec<Arc<Fills>>>,
}

/// The counts so far, in pages but for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Read from files.
    pub read: u64,
    /// Requests that they were read by.
    pub read_requests: u64,
    /// Of these, pages of readahead.
    pub read_ahead: u64,
    /// Written to files.
    pub written: u64,
    /// Requests that they were written by.
    pub write_requests: u64,
    /// Pages that are dirty now.
    pub dirty: u64,
    /// Pages in memory now.
    pub resident: u64,
    /// Times a thread waited because too much was dirty.
    pub throttled: u64,
    /// Times a device was flushed before a `sync` had to wait for more.
    pub flushed_ahead: u64,
    /// Times a thread waited for a frame.
    pub allocstall: u64,
}

impl<'c> Cache<'c> {
    /// The calling thread's part in it.
    ///
    /// # Errors
    /// [`CacheError::Space`] without frames.
    ///
    /// # Panics
    /// In a replacement policy's method: a task may have to wait for threads that wait for that method.
    pub fn task(&self) -> Result<CacheTask<'_>> {
        in_policy::refuse();
        CacheTask::new(self)
    }

    /// Opens a file or a block device. A file that is open in the cache already is the same file under any name, with
    /// the options of its first opening. It stays open when its handles are dropped, until [`CacheTask::close`].
    ///
    /// A writable file belongs to one cache at a time (flock(2)), except on CIFS, where a lock would stop the cache's
    /// own descriptors. A block device is claimed, as a mount does. Writes of a killed process may still be on their
    /// way to the device: this waits for them, some seconds at most.
    ///
    /// # Errors
    /// [`CacheError::Open`], with `EINVAL` too for a place where no checksum can be; [`CacheError::PartOfPage`] for a
    /// file with checksums that is not whole pages long; [`CacheError::InUse`] for a file that another cache may write,
    /// and for a device that is mounted or claimed otherwise; [`CacheError::ReadOnly`] for a file that is open for
    /// reading only; [`CacheError::OpenOtherwise`] for a file that is open with other options; [`CacheError::Space`]
    /// where no addresses are left for it.
    ///
    /// # Panics
    /// As [`Cache::task`].
    pub fn open(&self, path: &Path, options: &Options) -> Result<File> {
        in_policy::refuse();
        let mut wait = Wait::new();
        loop {
            if let Some(file) = self.open_once(path, options, open::open(path, options)?)? {
                return Ok(file);
            }
            if !wait.pause() {
                return Err(CacheError::InUse(shared(path)));
            }
        }
    }

    /// `None` where another cache may write it, or another file has its name by now.
    fn open_once(
        &self,
        path: &Path,
        options: &Options,
        mut opened: Opened,
    ) -> Result<Option<File>> {
        let at = path;
        let path = shared(path);
        let error = |errno| CacheError::Open { path: path.clone(), errno };
        let id = opened.data.id().map_err(error)?;
        let files = self.files;
        let _opening = files.opening.lock();
        let is_writable = options.opening != Opening::Read;
        if let Some(inner) = files.find_id(id) {
            if !inner.is_writable && is_writable {
                return Err(CacheError::ReadOnly(inner.path.clone()));
            }
            if let Some(otherwise) = inner.is_otherwise(options) {
                return Err(CacheError::OpenOtherwise { path: inner.path.clone(), otherwise });
            }
            inner.name_is_new(opened.folder);
            return Ok(Some(File {
                seen: view::seen_now(&inner),
                user: inner.users.clone(),
                inner,
            }));
        }
        // The thread that had it may have put another in its place before.
        let is_to_wait = is_writable
            && (!opened.data.try_lock().map_err(error)? || FileId::at(at).ok() != Some(id));
        if is_to_wait {
            return Ok(None);
        }
        let room = options.room_pages(opened.data.len(), opened.data.is_device());
        let checksum = match options.checksums {
            Some(at) => Some(Checksum::at(at).ok_or_else(|| error(Errno::INVAL))?),
            None => None,
        };
        let len = opened.data.len();
        if checksum.is_some() && len % FRAME_SIZE as u64 != 0 {
            return Err(CacheError::PartOfPage { path, len });
        }
        let region = self.region_for(room)?;
        let inner = Inner::new(path, opened, options, region, checksum, files.dirty.clone());
        let inner = Arc::new(inner);
        files.add(id, inner.clone());
        Ok(Some(File { seen: view::seen_now(&inner), user: inner.users.clone(), inner }))
    }

    /// A region of so many pages at least: its first, and how many. Called by a thread that opens a file.
    fn region_for(&self, room: usize) -> Result<(usize, usize)> {
        let mut vacant = self.files.vacant.lock();
        let fits = |&(_, pages): &(usize, usize)| pages >= room && pages <= room.saturating_mul(2);
        if let Some(place) = vacant.iter().position(fits) {
            return Ok(vacant.swap_remove(place));
        }
        drop(vacant);
        let bytes = room.checked_mul(FRAME_SIZE).ok_or(VmError::OutOfAddresses(usize::MAX))?;
        let task = self.space.enter()?;
        let at = task.map_file(bytes, Rights::READ_WRITE)?;
        Ok((at / FRAME_SIZE, room))
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let Counters {
            read,
            read_requests,
            read_ahead,
            written,
            write_requests,
            throttled,
            flushed_ahead,
        } = &self.files.counters;
        // Relaxed: numbers.
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dirty: &AtomicUsize = &self.files.dirty;
        Counts {
            read: number(read),
            read_requests: number(read_requests),
            read_ahead: number(read_ahead),
            written: number(written),
            write_requests: number(write_requests),
            dirty: dirty.load(Ordering::Relaxed) as u64,
            resident: self.space.rss() as u64,
            throttled: number(throttled),
            flushed_ahead: number(flushed_ahead),
            allocstall: (self.reclaim)().allocstall,
        }
    }

    /// Ends reads of all threads, as far as they are done and nobody else does. Whether there were any.
    fn help(&self, task: &FileTask<'_>) -> bool {
        let fills = self.fills.read();
        fills.iter().filter(|fills| fills.help(task)).count() > 0
    }

    /// Whether any thread may have reads in flight.
    fn may_end_reads(&self) -> bool {
        let fills = self.fills.read();
        fills.iter().any(|fills| fills.may_end())
    }

    /// Reads a page that another thread reads, and that does not come. Whether it did.
    fn take_over(&self, task: &FileTask<'_>, page: usize) -> bool {
        let fills = self.fills.read();
        let taken = fills.iter().find_map(|fills| fills.take_over(task, page));
        drop(fills);
        let Some((file, filling)) = taken else { return false };
        let mut at = task.bytes(filling.frame()).cast();
        // SAFETY: the frame is this read's alone.
        let read = self.files.read_page(&file, page, filling.from(), unsafe { at.as_mut() });
        // SAFETY: it was begun and taken over in this space, the file's region stays mapped, and the read is over.
        unsafe { task.end_fill(filling, read, Use::Soon) };
        true
    }
}

impl std::fmt::Debug for Cache<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}
