//! How a file is opened: its descriptors, and the folder that has its name.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::error::{CacheError, Result};
use super::settings::{shared, Options};
use pumice_io::{BlockFile, Cached, Opening};

/// The file's descriptors, as they were opened.
pub(super) struct Opened {
    pub data: BlockFile,
    /// For the end of a file that direct I/O does not take.
    pub tail: Option<BlockFile>,
    /// The folder of a file that may be written, until its name is known to be durable.
    pub folder: Option<File>,
}

/// Opens a file.
pub(super) fn open(path: &Path, options: &Options) -> Result<Opened> {
    let error = |errno| match errno {
        // A mounted device, of a kernel that lets nobody else write to such.
        Errno::BUSY => CacheError::InUse(shared(path)),
        errno => CacheError::Open { path: shared(path), errno },
    };
    let there = match options.opening {
        Opening::Create => Opening::Write,
        opening => opening,
    };
    let (data, is_made) = match BlockFile::open_to(path, there, options.cached) {
        Err(Errno::NOENT) if options.opening == Opening::Create => {
            (BlockFile::open_to(path, Opening::Create, options.cached), true)
        }
        data => (data, false),
    };
    let data = data.map_err(error)?;
    let folder = if data.is_device() {
        None
    } else if is_made {
        Some(folder_of(path).map_err(|io| error(errno_of(&io)))?)
    } else if options.opening != Opening::Read {
        // A process may have made it that was killed before its name was durable. If not, it has a name, in a folder
        // that need not be ours to open.
        match folder_of(path).map_err(|io| errno_of(&io)) {
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => None,
            folder => Some(folder.map_err(error)?),
        }
    } else {
        None
    };
    let needs_tail = data.cached() == Cached::No && !data.is_device();
    let tail = if needs_tail && options.opening != Opening::Read {
        let tail = BlockFile::open_to(path, Opening::Write, Cached::Yes).map_err(error)?;
        // Another file has its name meanwhile.
        if tail.id() != data.id() {
            return Err(error(Errno::AGAIN));
        }
        Some(tail)
    } else {
        None
    };
    Ok(Opened { data, tail, folder })
}

/// The folder that a file lies in, wherever its links lead.
fn folder_of(path: &Path) -> io::Result<File> {
    let path = path.canonicalize()?;
    File::open(path.parent().unwrap_or(&path))
}

/// The kernel's error.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
