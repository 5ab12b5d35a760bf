//! Signals as something to read, blocked in every thread of the daemon.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM, SIGINT: end.
    End,
}

/// See the module's text.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    /// Blocks them; to be called before any thread is started.
    pub fn take_over() -> io::Result<Signals> {
        // SAFETY: plain system calls on a set that lives here; zeros are the empty set.
        unsafe {
            let mut wanted: libc::sigset_t = zeroed();
            for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
                libc::sigaddset(&mut wanted, signal);
            }
            // A log that nobody reads any more must not end the daemon.
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::sigprocmask(libc::SIG_BLOCK, &wanted, null_mut());
            let descriptor = libc::signalfd(-1, &wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { descriptor: OwnedFd::from_raw_fd(descriptor) })
        }
    }

    /// The next one that came.
    pub fn next(&self) -> Option<Wish> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.descriptor, &mut info).ok()?;
        let number = info.first_chunk::<4>().filter(|_| read == info.len())?;
        match i32::from_ne_bytes(*number) {
            libc::SIGHUP => Some(Wish::Reload),
            _ => Some(Wish::End),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
