//! A store's lock: the file `lock` in its folder, which who has the store open has to itself (flock(2)).
//!
//! The file stays when the store is closed: who removed it could remove what another has locked by then. Nothing is
//! in it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use super::{Error, Result};

/// A process that was killed may be ending still, and who starts another has its files for a moment: so long it is
/// waited.
const ENDING: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A folder that nobody else has, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a folder, which is made if there is none. A file system that knows no locks lets everybody
    /// have it.
    pub fn take(folder: &Path) -> Result<Lock> {
        fs::create_dir_all(folder).map_err(Error::Lock)?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(folder.join("lock"));
        let file = file.map_err(Error::Lock)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Ok(Lock { _file: file })
                }
                Err(Errno::WOULDBLOCK) if begun.elapsed() > ENDING => {
                    return Err(Error::InUse(folder.to_owned()))
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOOK_AGAIN),
                Err(errno) => return Err(Error::Lock(io::Error::from(errno))),
            }
        }
    }
}
