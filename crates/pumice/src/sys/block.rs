//! Files and block devices, read and written at an offset straight from memory.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{self, FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::raw::{number, syscall};
use crate::addr::FRAME_SIZE;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// Opens for reading and writing, around the page cache if `direct`; makes the file if there is none.
///
/// # Errors
/// What the kernel says: `EINVAL` where the file system does no direct I/O.
pub fn open(path: &Path, direct: bool) -> Result<OwnedFd, Errno> {
    let around = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | around;
    fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

/// Whether it is a block device, and its length in bytes.
///
/// # Errors
/// What the kernel says; `EINVAL` for what is neither file nor block device.
pub fn extent(file: &OwnedFd) -> Result<(bool, u64), Errno> {
    let stat = fs::fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((false, stat.st_size as u64)),
        FileType::BlockDevice => Ok((true, fs::seek(file, SeekFrom::End(0))?)),
        _ => Err(Errno::INVAL),
    }
}

/// Makes a file so long, with its blocks there if the file system can do that.
///
/// # Errors
/// What the kernel says: `ENOSPC` where there is no room.
pub fn allocate(file: &OwnedFd, len: u64) -> Result<(), Errno> {
    match fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fs::ftruncate(file, len),
        result => result,
    }
}

/// A frame of a scattered request: an `iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    at: *mut u8,
    len: usize,
}

// SAFETY: an address; whose the memory is, the requests say that it is in.
unsafe impl Send for Piece {}

impl Piece {
    /// The frame at `at`.
    pub const fn frame(at: NonNull<u8>) -> Piece {
        Piece { at: at.as_ptr(), len: FRAME_SIZE }
    }
}

/// One `pread` or `pwrite`.
///
/// No reference is made of the bytes: what is written may be memory that its owner takes back meanwhile.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// The `len` bytes at `at` are there; to be read into, they are the caller's.
pub unsafe fn transfer(
    direction: Direction,
    file: &OwnedFd,
    (at, len): (*mut u8, usize),
    offset: u64,
) -> Result<usize, Errno> {
    let call = match direction {
        Direction::Read => number::__NR_pread64,
        Direction::Write => number::__NR_pwrite64,
    };
    // SAFETY: the caller's promise.
    unsafe { syscall(call, [file.as_raw_fd() as usize, at as usize, len, offset as usize, 0, 0]) }
}

/// One `preadv` or `pwritev`.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// There are `count` pieces at `pieces`, of which [`transfer`] says what must hold.
pub unsafe fn transfer_pieces(
    direction: Direction,
    file: &OwnedFd,
    (pieces, count): (*const Piece, usize),
    offset: u64,
) -> Result<usize, Errno> {
    let call = match direction {
        Direction::Read => number::__NR_preadv,
        Direction::Write => number::__NR_pwritev,
    };
    // The offset's upper half, on 64 bits, is not looked at.
    let args = [file.as_raw_fd() as usize, pieces as usize, count, offset as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { syscall(call, args) }
}
