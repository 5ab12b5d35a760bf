//! Files and block devices, read and written at an offset straight from memory.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{self, Errno};

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

/// One `pread`.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// The `len` bytes at `at` are the caller's to write.
pub unsafe fn read_at(
    file: &OwnedFd,
    at: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise; any bytes are bytes.
    let buffer = unsafe { core::slice::from_raw_parts_mut(at, len) };
    io::pread(file, buffer, offset)
}

/// One `pwrite`.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// The `len` bytes at `at` are there, and nobody writes them.
pub unsafe fn write_at(
    file: &OwnedFd,
    at: *const u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { core::slice::from_raw_parts(at, len) };
    io::pwrite(file, buffer, offset)
}
