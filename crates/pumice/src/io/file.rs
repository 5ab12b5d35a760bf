//! An open file or block device.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::addr::FRAME_SIZE;
use crate::sys::block::{self, Direction};

/// Whether data goes through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Straight between the device and the caller's memory (`O_DIRECT`), where the kernel does that; offsets,
    /// lengths and addresses are multiples of a frame.
    No,
    /// Through it.
    Yes,
}

/// See the module's top.
#[derive(Debug)]
pub struct BlockFile {
    file: OwnedFd,
    cached: Cached,
    is_device: bool,
    len: u64,
}

impl BlockFile {
    /// Opens a file, made if there is none, or a block device. What the kernel can't do directly goes
    /// through the page cache: [`BlockFile::cached`] says so.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` for what is neither.
    pub fn open(path: &Path, cached: Cached) -> Result<BlockFile, Errno> {
        let (file, cached) = match cached {
            Cached::Yes => (block::open(path, false)?, Cached::Yes),
            Cached::No => match block::open(path, true) {
                Err(Errno::INVAL) => (block::open(path, false)?, Cached::Yes),
                file => (file?, Cached::No),
            },
        };
        let (is_device, len) = block::extent(&file)?;
        Ok(BlockFile { file, cached, is_device, len })
    }

    /// Makes a file `len` bytes long at least, whole frames, with blocks behind them where the file system can; a
    /// device is as long as it is.
    ///
    /// # Errors
    /// `ENOSPC` without room, on a device too.
    pub fn reserve(&mut self, len: u64) -> Result<(), Errno> {
        let len = len.next_multiple_of(FRAME_SIZE as u64);
        if self.is_device {
            return if len <= self.len { Ok(()) } else { Err(Errno::NOSPC) };
        }
        block::allocate(&self.file, len)?;
        self.len = self.len.max(len);
        Ok(())
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether data goes through the page cache.
    pub fn cached(&self) -> Cached {
        self.cached
    }

    /// Reads or writes all of `len` bytes, waiting.
    ///
    /// # Errors
    /// What the kernel says; `EIO` past the end.
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
            // SAFETY: the rest of the caller's bytes.
            let went = unsafe { block::transfer(direction, &self.file, (at, len - done), offset) };
            match went {
                Ok(0) => return Err(Errno::IO),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.file
    }
}
