//! A store's lock: the file `lock` in its folder. The process that has the store open has it to itself.
//!
//! The file stays when the store is closed: its removal could remove a file that another has locked by then. Nothing is
//! in it.

use std::fs;
use std::path::Path;

use pumice::io::{BlockFile, Cached};
use rustix::io::Errno;

use super::{Error, Result};

/// A folder that nobody else has, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: BlockFile,
}

impl Lock {
    /// Takes the lock of a folder, which is made if there is none. Waits some seconds for a process that was killed and
    /// is ending still.
    pub fn take(folder: &Path) -> Result<Lock> {
        fs::create_dir_all(folder).map_err(Error::Lock)?;
        let failed = |errno| match errno {
            Errno::BUSY => Error::InUse(folder.to_owned()),
            errno => Error::Lock(errno.into()),
        };
        let mut file = BlockFile::open(&folder.join("lock"), Cached::Yes).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(Lock { _file: file })
    }
}
