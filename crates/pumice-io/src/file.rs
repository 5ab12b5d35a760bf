//! A file or a block device that requests are made of.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::sync::Mutex;
use crate::sys::block::{self, Direction};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::thread::Maker;

pub use crate::sys::block::{FileId, Opening};

/// How long a lock waits for writes of a killed process: longer than devices take.
pub const WRITES_IN_FLIGHT: Duration = Duration::from_secs(5);

/// Waits for a locked file: a millisecond at first, then longer each time.
#[derive(Debug)]
pub struct Wait {
    begun: Instant,
    pause_ms: u64,
}

impl Wait {
    /// Long beside the look at a device that udev(7) takes, which has its lock, each time that somebody closes it.
    const MOST_MS: u64 = 256;

    /// From now on.
    pub fn new() -> Wait {
        Wait { begun: Instant::now(), pause_ms: 1 }
    }

    /// Waits a while, unless it has been long enough for all writes to be over: whether it is worth another look.
    pub fn pause(&mut self) -> bool {
        if self.begun.elapsed() > WRITES_IN_FLIGHT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(self.pause_ms));
        self.pause_ms = (self.pause_ms * 2).min(Wait::MOST_MS);
        true
    }
}

impl Default for Wait {
    fn default() -> Wait {
        Wait::new()
    }
}

/// Whether data goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Straight between the device and the caller's memory (`O_DIRECT`), where the kernel does that; offsets,
    /// lengths and addresses are multiples of a frame.
    No,
    /// Through it.
    Yes,
}

/// How data goes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Straight between the device and the caller's memory.
    Direct {
        /// The alignment of addresses.
        memory: u32,
        /// The alignment of offsets and lengths.
        offset: u32,
    },
    /// Through the kernel's page cache.
    Buffered(Buffered),
}

/// Why data goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffered {
    /// It was asked for.
    AsAsked,
    /// The file system does no direct I/O, or not of this file.
    Refused,
    /// The file system is in memory: there is nothing that data could go to directly.
    InMemory,
    /// Direct I/O takes multiples of this many bytes, which is more than a frame.
    Coarse(u32),
}

/// An open file, as a request names it: a descriptor, open for as long as the [`BlockFile`] is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef(RawFd);

impl FileRef {
    pub(super) fn raw(self) -> RawFd {
        self.0
    }

    /// # Safety
    /// The file is open for as long as this is used.
    pub(super) unsafe fn borrow<'f>(self) -> BorrowedFd<'f> {
        // SAFETY: the caller's promise.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// See the module's top.
#[derive(Debug)]
pub struct BlockFile {
    file: OwnedFd,
    way: Way,
    is_device: bool,
    len: u64,
    /// The maker that has locked it.
    locked_by: Option<Maker>,
    /// Of a device that was locked, while it is. It serves for nothing else.
    claim: Mutex<Option<OwnedFd>>,
    /// Calls that fail next.
    #[cfg(any(test, feature = "fake"))]
    pub fails: super::fails::FailingCalls,
}

impl BlockFile {
    /// Opens a file, made if there is none, or a block device. Requests that the kernel can't do directly go through
    /// the page cache: [`BlockFile::way`] says so.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` for anything that is neither.
    pub fn open(path: &Path, cached: Cached) -> Result<BlockFile, Errno> {
        BlockFile::open_to(path, Opening::Create, cached)
    }

    /// As [`BlockFile::open`], to read it only, or without making it.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn open_to(path: &Path, opening: Opening, cached: Cached) -> Result<BlockFile, Errno> {
        let buffered = |why| Ok((block::open(path, opening, false)?, Way::Buffered(why)));
        let (file, way) = match cached {
            Cached::Yes => buffered(Buffered::AsAsked)?,
            Cached::No => match block::open(path, opening, true) {
                Err(Errno::INVAL) => buffered(Buffered::Refused)?,
                file => {
                    let file = file?;
                    match direct_way(&file) {
                        Way::Buffered(why) => buffered(why)?,
                        way => (file, way),
                    }
                }
            },
        };
        let (is_device, len) = block::extent(&file)?;
        Ok(BlockFile {
            file,
            way,
            is_device,
            len,
            locked_by: None,
            claim: Mutex::default(),
            #[cfg(any(test, feature = "fake"))]
            fails: super::fails::FailingCalls::default(),
        })
    }

    /// Locks the file until it is unlocked, or closed and all writes to it are over, also those that were in flight
    /// when its process was killed. Waits some seconds for such writes of another process. A device is claimed, too, so
    /// that it is neither mounted nor used for swap meanwhile.
    ///
    /// # Errors
    /// `EBUSY` where it is still locked.
    pub fn lock(&mut self) -> Result<(), Errno> {
        let mut wait = Wait::new();
        while !self.try_lock()? {
            if !wait.pause() {
                return Err(Errno::BUSY);
            }
        }
        Ok(())
    }

    /// As [`BlockFile::lock`], without waiting: whether it has it.
    ///
    /// # Errors
    /// The kernel's error.
    #[doc(hidden)]
    pub fn try_lock(&mut self) -> Result<bool, Errno> {
        if !block::try_lock(&self.file)? {
            return Ok(false);
        }
        self.locked_by = Some(Maker::here());
        // The last write may have made it longer.
        (self.is_device, self.len) = block::extent(&self.file)?;
        if self.is_device {
            match block::try_claim(&self.file) {
                Ok(claim) => *self.claim.lock() = claim,
                Err(errno) => {
                    self.unlock();
                    return if errno == Errno::BUSY { Ok(false) } else { Err(errno) };
                }
            }
        }
        Ok(true)
    }

    /// Releases the lock, also where a descriptor of the file is still open: a forked child may have one, and live on.
    /// (A device's claim is that child's, too, and goes with its last descriptor.) Nothing is being written to it any
    /// more.
    #[doc(hidden)]
    pub fn unlock(&self) {
        if self.locked_by.is_some_and(|maker| maker.is_here()) {
            *self.claim.lock() = None;
            block::unlock(&self.file);
        }
    }

    /// Makes a file `len` bytes long at least, whole frames, with blocks behind them where the file system can; a
    /// device is as long as it is.
    ///
    /// # Errors
    /// `ENOSPC` without room, on a device too; `EFBIG` for more bytes than there are numbers for.
    #[doc(hidden)]
    pub fn reserve(&mut self, len: u64) -> Result<(), Errno> {
        let len = len.checked_next_multiple_of(FRAME_SIZE as u64).ok_or(Errno::FBIG)?;
        if self.is_device {
            return if len <= self.len { Ok(()) } else { Err(Errno::NOSPC) };
        }
        block::allocate(&self.file, len)?;
        self.len = self.len.max(len);
        Ok(())
    }

    /// Length in bytes, when it was opened or reserved.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is in it.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a block device.
    #[doc(hidden)]
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Whether data goes through the page cache.
    #[doc(hidden)]
    pub fn cached(&self) -> Cached {
        match self.way {
            Way::Direct { .. } => Cached::No,
            Way::Buffered(_) => Cached::Yes,
        }
    }

    /// How data goes, and why.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Which file it is.
    ///
    /// # Errors
    /// The kernel's error.
    #[doc(hidden)]
    pub fn id(&self) -> Result<FileId, Errno> {
        block::id(&self.file)
    }

    /// Its descriptor.
    #[cfg(any(test, feature = "fake"))]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.file
    }

    /// Its name in requests.
    pub fn reference(&self) -> FileRef {
        FileRef(self.file.as_raw_fd())
    }

    /// Has blocks behind the first `len` bytes of a file, where the file system can. It is as long as it was, or so
    /// long at least: some file systems have no blocks beyond a file's end.
    ///
    /// # Errors
    /// `ENOSPC` without room; some blocks may be there, those beyond its end until [`BlockFile::trim`], and it may be
    /// longer.
    #[doc(hidden)]
    pub fn allocate(&self, len: u64) -> Result<(), Errno> {
        if self.is_device {
            return Ok(());
        }
        let allocated = block::preallocate(len, |end, offset, len| {
            #[cfg(any(test, feature = "fake"))]
            self.fails.fallocate(&self.file, end, offset, len)?;
            block::fallocate(&self.file, end, offset, len)
        });
        match allocated {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => result,
        }
    }

    /// Gives back the blocks beyond the end of a file, which is `len` bytes long then at most. Nobody writes
    /// there meanwhile.
    ///
    /// # Errors
    /// The kernel's error.
    #[doc(hidden)]
    pub fn trim(&self, len: u64) -> Result<(), Errno> {
        let (_, now) = block::extent(&self.file)?;
        block::set_len(&self.file, now.min(len))
    }

    /// Makes a file so long, or so short. [`BlockFile::len`] stays what it was.
    ///
    /// # Errors
    /// The kernel's error.
    #[doc(hidden)]
    pub fn set_len(&self, len: u64) -> Result<(), Errno> {
        #[cfg(any(test, feature = "fake"))]
        super::fails::FailingCalls::next(&self.fails.set_len)?;
        block::set_len(&self.file, len)
    }

    /// Waits until the writes are on the device, and the length with them.
    ///
    /// # Errors
    /// The kernel's error. It is reported once: bytes that were written since the last time may be lost.
    pub fn sync_data(&self) -> Result<(), Errno> {
        loop {
            match self.sync_data_once() {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    fn sync_data_once(&self) -> Result<(), Errno> {
        #[cfg(any(test, feature = "fake"))]
        super::fails::FailingCalls::next(&self.fails.sync)?;
        #[cfg(all(shuttle, any(test, feature = "fake")))]
        self.fails.flush.go()?;
        block::sync_data(&self.file)
    }

    /// Reads or writes all of `len` bytes, waiting.
    ///
    /// # Errors
    /// The kernel's error; `EIO` past the end.
    ///
    /// # Safety
    /// The bytes at `at` are there, and the caller's (to be written: written by nobody).
    pub unsafe fn transfer(
        &self,
        direction: Direction,
        at: NonNull<u8>,
        len: usize,
        offset: u64,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            // SAFETY: less than `len` is done.
            let (at, offset) = (unsafe { at.as_ptr().add(done) }, offset + done as u64);
            let (file, rest) = (self.file.as_fd(), (at, len - done));
            // SAFETY: the rest of the caller's bytes.
            let went = unsafe { block::transfer(direction, file, rest, offset) };
            match went {
                Ok(0) => return Err(Errno::IO),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Reads `len` bytes, or as many as there are: how many there were.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    /// The bytes at `at` are there, and the caller's.
    #[doc(hidden)]
    pub unsafe fn read_up_to(
        &self,
        at: NonNull<u8>,
        len: usize,
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            // SAFETY: less than `len` is done.
            let (at, offset) = (unsafe { at.as_ptr().add(done) }, offset + done as u64);
            let (file, rest) = (self.file.as_fd(), (at, len - done));
            // SAFETY: the rest of the caller's bytes.
            match unsafe { block::transfer(Direction::Read, file, rest, offset) } {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                // Direct I/O does not go on from within a block: a read that ended there ended at the end.
                Err(Errno::INVAL) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

impl Drop for BlockFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// How data goes by a descriptor that was opened for direct I/O.
fn direct_way(file: &OwnedFd) -> Way {
    // Before 6.1, and in file systems that don't say. All devices and file systems take it.
    const ANY: u32 = FRAME_SIZE as u32;
    // A device's node lies in a file system in memory, its blocks do not.
    let is_device = block::extent(file).is_ok_and(|(is_device, _)| is_device);
    if !is_device && block::is_in_memory(file) {
        return Way::Buffered(Buffered::InMemory);
    }
    let (memory, offset) = block::direct_alignment(file).unwrap_or((ANY, ANY));
    match memory.max(offset) {
        _ if memory == 0 || offset == 0 => Way::Buffered(Buffered::Refused),
        coarse if coarse > ANY => Way::Buffered(Buffered::Coarse(coarse)),
        _ => Way::Direct { memory, offset },
    }
}
