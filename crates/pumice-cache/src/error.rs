//! Errors of a cache: each names the file, and the page if there is one.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use pumice_paging::space::VmError;

/// See the module's top.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A file can't be opened or made.
    #[error("can't open {} for the cache: {errno}", path.display())]
    Open {
        /// The file.
        path: Arc<Path>,
        /// The kernel's error; `EINVAL` for anything but a file or a block device.
        errno: Errno,
    },
    /// Another cache, of this process or of another, has the file open to be written; or a device is mounted, used for
    /// swap, or claimed otherwise.
    #[error("{} is in use by another cache, which may write it, or mounted; close it there", .0.display())]
    InUse(Arc<Path>),
    /// A file is open in the cache for reading only, and is to be written.
    #[error("{} may only be read: it was opened so", .0.display())]
    ReadOnly(Arc<Path>),
    /// A file is in the cache already, where it stays when its handles are dropped, and not as it is to be opened.
    #[error(
        "{} is in the cache already, {otherwise}: close it first (CacheTask::close), or open it as it is",
        path.display()
    )]
    OpenOtherwise {
        /// The file, as it was opened first.
        path: Arc<Path>,
        /// The option that the open file does not have.
        otherwise: Otherwise,
    },
    /// A file is another cache's, which may have other pages by now.
    #[error("{} was opened in another cache: open it in this one", .0.display())]
    OtherCache(Arc<Path>),
    /// There is no such page: the file ends before it.
    #[error("page {page} lies past the end of {}, which has {pages}", path.display())]
    PastEnd {
        /// The file.
        path: Arc<Path>,
        /// The page that was asked for.
        page: usize,
        /// Pages the file has.
        pages: usize,
    },
    /// The file can't grow so far.
    #[error(
        "{} can't be {len} bytes long: {room} bytes are reserved for it; open it with more room",
        path.display()
    )]
    NoRoom {
        /// The file.
        path: Arc<Path>,
        /// The length asked for.
        len: u64,
        /// The addresses kept for it.
        room: u64,
    },
    /// A page can't be read.
    #[error("can't read page {page} of {}: {errno}", path.display())]
    Read {
        /// The file.
        path: Arc<Path>,
        /// The page.
        page: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A page is not as it was written: the device has changed it, or a crash has left it half written.
    #[error("page {page} of {} is not as it was written: its checksum is wrong", path.display())]
    Checksum {
        /// The file.
        path: Arc<Path>,
        /// The page.
        page: usize,
    },
    /// A file whose pages have checksums is whole pages long.
    #[error("{} can't be {len} bytes long: its pages have checksums, and are 4096 bytes each", path.display())]
    PartOfPage {
        /// The file.
        path: Arc<Path>,
        /// The length it has, or was to have.
        len: u64,
    },
    /// A page could not be written; it is in memory, and dirty.
    #[error("can't write page {page} of {}: {errno}", path.display())]
    Write {
        /// The file.
        path: Arc<Path>,
        /// The first page of those that could not be written.
        page: usize,
        /// The kernel's error; `ENOSPC` where the file system is full.
        errno: Errno,
    },
    /// The bytes that were written can't be made durable. Nobody knows how much of it is, so each `sync` of the file
    /// says so, until it is closed.
    #[error("can't make {} durable: {errno}", path.display())]
    Sync {
        /// The file.
        path: Arc<Path>,
        /// The kernel's error.
        errno: Errno,
    },
    /// A cache has ended while a page had a guard for writing, which was forgotten (`std::mem::forget`): the page is
    /// not written.
    #[error("page {page} of {} is not written: a guard for writing to it was never dropped", path.display())]
    Held {
        /// The file.
        path: Arc<Path>,
        /// The page.
        page: usize,
    },
    /// The cache is the parent's: a child made by `fork` has copies of its pages, which may be old by now.
    #[error("the cache is the parent process's: a child made by fork can't write its files")]
    Forked,
    /// Pages wait for a log that has failed: they are in memory, and dirty.
    #[error("the log before {} has failed: pages that wait for it are not written", path.display())]
    Log {
        /// The file.
        path: Arc<Path>,
    },
    /// The file's length can't be changed.
    #[error("can't make {} {len} bytes long: {errno}", path.display())]
    Resize {
        /// The file.
        path: Arc<Path>,
        /// The length asked for.
        len: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// There is no memory for the cache.
    #[error("no memory for the cache: {0}")]
    Memory(pumice_frames::error::Error),
    /// The error of the cache's space: no frames, a page held by another guard, too many regions held.
    #[error(transparent)]
    Space(#[from] VmError),
}

/// See [`CacheError::OpenOtherwise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Otherwise {
    /// Another log was asked for.
    #[error("and its pages don't wait for that log")]
    WriteAhead,
    /// It was asked that it goes through the kernel's page cache.
    #[error("and goes around the kernel's page cache")]
    Direct,
    /// Checksums were asked for, none, or in another place.
    #[error("{}", .at.map_or("with no checksums".into(), |at| format!("with checksums at byte {at}")))]
    Checksums {
        /// Where its pages have them.
        at: Option<usize>,
    },
    /// More room was asked for.
    #[error("with room for {room} bytes")]
    Room {
        /// Addresses kept for it.
        room: u64,
    },
}

/// [`core::result::Result`] with [`CacheError`].
pub type Result<T> = core::result::Result<T, CacheError>;
