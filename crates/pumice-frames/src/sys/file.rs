//! Small files, read whole into a buffer of the caller's.

use core::ffi::CStr;
use rustix::fd::OwnedFd;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{self, Errno};

/// Opens for reading, closed on exec.
pub fn open_read(path: &CStr) -> Result<OwnedFd, Errno> {
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Reads the file's beginning into `buffer` and returns that part.
pub fn read<'b>(path: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = open_read(path)?;
    read_at(&file, buffer)
}

/// Reads an open file's beginning again, as files under `/proc` want it.
pub fn read_at<'b>(file: &OwnedFd, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let mut length = 0;
    while length < buffer.len() {
        match io::pread(file, &mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(&buffer[..length])
}
