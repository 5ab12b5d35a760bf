//! The errors of clients and of daemons. Each message names the remedy, if there is one.

use std::io;
use std::path::PathBuf;

use crate::refusal::Refusal;

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no daemon at {}: {source}; start one with 'pumice serve'", path.display())]
    Connect {
        /// The socket that was tried.
        path: PathBuf,
        /// The error of connecting.
        source: io::Error,
    },
    /// A user listens, or could, that the slot must not go to.
    #[error("{} is not the daemon's: {what} (user {uid}); nothing was sent there", path.display())]
    Stranger {
        /// The socket that was tried.
        path: PathBuf,
        /// The user that listens there, or could.
        uid: u32,
        /// The reason, in words.
        what: &'static str,
    },
    /// The daemon said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The daemon said nothing in the time that it had.
    #[error("the daemon does not answer")]
    NoAnswer,
    /// The daemon said something that this version does not understand.
    #[error("the daemon's answer can't be read: {0}; is it another version of pumice?")]
    Protocol(&'static str),
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a daemon, or a page of metrics, can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something that was configured can't be used. The message names a setting that can.
    #[error("{0}")]
    Usage(String),
    /// The machine or another process stands in the way.
    #[error("{0}")]
    System(String),
}

impl ServeError {
    pub(crate) fn usage(message: impl Into<String>) -> ServeError {
        ServeError::Usage(message.into())
    }

    /// A call failed on something that was configured. That may have nothing wrong with it where the machine is short
    /// of descriptors or memory, or a device or a network fails.
    pub(crate) fn of(error: &io::Error, message: impl Into<String>) -> ServeError {
        const OUTSIDE: [i32; 13] = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EINTR,
            libc::EIO,
            libc::ESTALE,
            libc::ETIMEDOUT,
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::EAGAIN,
            libc::ENODEV,
            libc::EHOSTDOWN,
            libc::EHOSTUNREACH,
        ];
        match error.raw_os_error().is_some_and(|number| OUTSIDE.contains(&number)) {
            true => ServeError::system(message),
            false => ServeError::usage(message),
        }
    }

    /// The same with another message.
    pub(crate) fn map(self, message: impl FnOnce(String) -> String) -> ServeError {
        match self {
            ServeError::Usage(text) => ServeError::Usage(message(text)),
            ServeError::System(text) => ServeError::System(message(text)),
        }
    }

    pub(crate) fn system(message: impl Into<String>) -> ServeError {
        ServeError::System(message.into())
    }
}
