//! Swap of the kernel's in a file or device of this experiment's own, taken off again when it is over.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pumice_frames::addr::FRAME_SIZE;
use rustix::fs::{fallocate, flock, FallocateFlags, FlockOperation};

use super::zram::Zram;

/// `SWAP_FLAG_PREFER` and the highest priority: before any other swap the machine has.
const FLAGS: libc::c_int = 0x8000 | 0x7fff;

/// The kernel's swap. Dropping it has the kernel bring back what is there, and removes the file.
#[derive(Debug)]
pub struct SwapArea {
    path: PathBuf,
    is_on: bool,
    /// Goes when it is off.
    zram: Option<Zram>,
    /// Let go when all else is done.
    _turn: Option<File>,
}

/// There is one swap for the whole machine: pages of one experiment's process may lie in another's area, whose end
/// brings them back, where there is no room for them. So they take turns.
const TURN: &str = "/run/pumice-bench-swap.lock";

impl SwapArea {
    /// Makes a file that was not there, and has the kernel use it. Needs root.
    pub fn on(path: &Path, bytes: u64) -> io::Result<SwapArea> {
        let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = options?;
        let mut area = SwapArea { path: path.to_owned(), is_on: false, zram: None, _turn: None };
        area._turn = wait_for_turn()?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        area.begin(&file, bytes)?;
        Ok(area)
    }

    /// Makes a device of compressed memory, and has the kernel use it. Needs root.
    pub fn on_zram(bytes: u64) -> io::Result<SwapArea> {
        let zram = Zram::add(bytes)?;
        let path = zram.path();
        let file = OpenOptions::new().write(true).open(&path)?;
        let mut area = SwapArea { path, is_on: false, zram: Some(zram), _turn: None };
        area._turn = wait_for_turn()?;
        area.begin(&file, bytes)?;
        Ok(area)
    }

    fn begin(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        file.write_all_at(&header(bytes / FRAME_SIZE as u64), 0)?;
        file.sync_all()?;
        let name = CString::new(self.path.as_os_str().as_bytes())?;
        // SAFETY: a plain system call with a string of this function's.
        if unsafe { libc::swapon(name.as_ptr(), FLAGS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.is_on = true;
        Ok(())
    }
}

/// `None` where there is no such file to be had.
fn wait_for_turn() -> io::Result<Option<File>> {
    let options =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(TURN);
    let Ok(turn) = options else { return Ok(None) };
    if flock(&turn, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("waiting for another process that uses swap ({TURN}) …");
        flock(&turn, FlockOperation::LockExclusive)?;
    }
    Ok(Some(turn))
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        if self.is_on {
            if let Err(error) = swap_off(&self.path) {
                eprintln!("{} stays in use as swap: {error}", self.path.display());
                // Which could not be removed either.
                std::mem::forget(self.zram.take());
                return;
            }
        }
        if self.zram.is_some() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} is left behind: {error}", self.path.display());
        }
    }
}

fn swap_off(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    loop {
        // SAFETY: as above.
        if unsafe { libc::swapoff(name.as_ptr()) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // After a signal it goes on where it was.
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The header that `mkswap` writes: version 1, the last page's number, and the signature at the end of the first page.
fn header(pages: u64) -> [u8; FRAME_SIZE] {
    let mut header = [0; FRAME_SIZE];
    header[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    header[1028..1032].copy_from_slice(&last.to_ne_bytes());
    header[FRAME_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    header
}
