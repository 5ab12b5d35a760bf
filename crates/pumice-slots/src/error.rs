//! The errors of clients and of daemons. Each message says what to do where there is something to do.

use std::io;
use std::path::PathBuf;

use crate::message::Reason;

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
    /// Somebody listens, or could, whom the slot must not go to.
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
    /// Something that was configured can't be used. The message says what to configure instead.
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

    pub(crate) fn system(message: impl Into<String>) -> ServeError {
        ServeError::System(message.into())
    }
}

/// A daemon's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Bytes that the reason is about: the quota where that is it, else 0.
    pub limit_bytes: u64,
    /// The sizes there are, in bytes, where that helps.
    pub sizes: Vec<u64>,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason.explain())?;
        if self.reason == Reason::Quota {
            write!(f, " ({})", size(self.limit_bytes))?;
        }
        if !self.sizes.is_empty() {
            let sizes: Vec<_> = self.sizes.iter().map(|&bytes| size(bytes)).collect();
            write!(f, "; there are slots of {}", sizes.join(", "))?;
        } else if matches!(self.reason, Reason::TooLarge | Reason::NoSuchPages) {
            f.write_str("; there are no slots at all")?;
        }
        Ok(())
    }
}

/// A size as it would be typed.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_can_be_typed() {
        for bytes in [0, 1, 4096, 5 << 20, 3 << 30, 1 << 40, (1 << 30) + 1] {
            assert_eq!(pumice_heap::config::parse_size(&size(bytes)), Some(bytes as usize));
        }
    }

    #[test]
    fn a_refusal_names_the_sizes() {
        let refusal = Refusal { reason: Reason::TooLarge, limit_bytes: 0, sizes: vec![1 << 30] };
        assert!(refusal.to_string().ends_with("there are slots of 1G"));
    }
}
