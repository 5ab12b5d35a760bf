//! Calls of a file that fail on demand, for tests.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::io::Errno;

use crate::sys::block;

/// Results that replace the kernel's for the next calls to sync a file, to make it so long, or to give it blocks, in
/// order; `None`: the kernel's own.
#[derive(Debug, Default)]
pub struct FailingCalls {
    /// `fdatasync`.
    pub sync: Mutex<VecDeque<Option<Errno>>>,
    /// `ftruncate`.
    pub set_len: Mutex<VecDeque<Option<Errno>>>,
    /// `fallocate`, which has done half of it then, unless it can't be done so at all.
    pub allocate: Mutex<VecDeque<Option<Errno>>>,
    /// A model's flush, in place of the device's.
    #[cfg(shuttle)]
    pub flush: Flush,
}

/// Makes durable what a model's device has been handed by now, or says why it can't.
#[cfg(shuttle)]
#[derive(Default)]
pub struct Flush(pub std::sync::OnceLock<Box<dyn Fn() -> Result<(), Errno> + Send + Sync>>);

#[cfg(shuttle)]
impl Flush {
    pub(super) fn go(&self) -> Result<(), Errno> {
        self.0.get().map_or(Ok(()), |flush| flush())
    }
}

#[cfg(shuttle)]
impl std::fmt::Debug for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flush")
    }
}

impl FailingCalls {
    /// Whether a call may go to the kernel.
    pub(super) fn next(of: &Mutex<VecDeque<Option<Errno>>>) -> Result<(), Errno> {
        of.lock().expect("no panic").pop_front().flatten().map_or(Ok(()), Err)
    }

    /// Whether blocks may be asked of the kernel.
    pub(super) fn fallocate(
        &self,
        file: &OwnedFd,
        end: block::End,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        FailingCalls::next(&self.allocate).inspect_err(|&errno| {
            // As where a device is full in the middle of it.
            if errno != Errno::OPNOTSUPP {
                let _ = block::fallocate(file, end, offset, len / 2);
            }
        })
    }
}
