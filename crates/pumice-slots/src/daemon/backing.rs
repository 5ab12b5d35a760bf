//! The file behind a slot: one tenant's, or a shared snapshot's, which many have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::{SharedFile, SlotFile};

/// See the module's text.
#[derive(Debug)]
pub enum Backing {
    /// One tenant's alone, once and never again.
    Own(SlotFile),
    /// Sealed; this is one of those that hold it.
    Shared(SharedFile),
}

impl Backing {
    /// Its memory goes: at once, or when the last one that holds it lets go. Either may take long.
    ///
    /// # Errors
    /// As ftruncate(2); no seal forbids it.
    pub fn end(self) -> io::Result<()> {
        match self {
            Backing::Own(file) => file.end(),
            Backing::Shared(_) => Ok(()),
        }
    }

    /// Another hold on a shared one; `None` for one tenant's, and where no more files can be opened.
    pub fn share(&self) -> Option<Backing> {
        match self {
            Backing::Own(_) => None,
            Backing::Shared(file) => file.share().ok().map(Backing::Shared),
        }
    }

    /// The file, if it is one tenant's.
    pub fn own(&self) -> Option<&SlotFile> {
        match self {
            Backing::Own(file) => Some(file),
            Backing::Shared(_) => None,
        }
    }

    /// The file, if it is shared.
    pub fn shared(&self) -> Option<&SharedFile> {
        match self {
            Backing::Own(_) => None,
            Backing::Shared(file) => Some(file),
        }
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Backing::Own(file) => file.as_fd(),
            Backing::Shared(file) => file.as_fd(),
        }
    }
}
