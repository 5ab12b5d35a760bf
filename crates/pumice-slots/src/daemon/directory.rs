//! The daemon's folder: a lock that only one daemon has, and the socket.
//!
//! Slots are memfds, so a daemon that is killed leaves only those behind that are leased. It also leaves its
//! socket, which the next daemon removes: as it has the lock, it knows that nobody listens.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::client::SYSTEM_SOCKET;
use rustix::fs::{
    flock, fstat, openat, statat, unlinkat, AtFlags, FileType, FlockOperation, Mode, OFlags, Stat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::serving::folder::{Folder, Missing};
use crate::ServeError;

/// The lock's name.
const LOCK: &str = "lock";
/// Rights of others on the lock. A user that can open it can take it.
const OTHERS: u32 = 0o077;
/// Times that another daemon may replace the lock meanwhile.
const ATTEMPTS: u32 = 16;

/// The folder, locked for as long as this lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The process that has it open has the lock.
    lock: File,
}

impl Directory {
    /// Makes the folder if there is none, and locks it.
    pub fn open(named: Option<&Path>) -> Result<Directory, ServeError> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => default_path()?,
        };
        let folder = Folder::open(&path, Missing::Make, "--dir")?;
        let lock = take_lock(&folder)?;
        // The number is for people; the lock is what counts.
        let _ = lock.set_len(0);
        let _ = (&lock).rewind();
        let _ = writeln!(&lock, "{}", std::process::id());
        Ok(Directory { path, lock })
    }

    /// Gives up the lock: threads that the kernel holds up may keep it open for long.
    pub fn unlock(&self) {
        // It can only fail where nothing was locked.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    /// Where the daemon listens unless it is told otherwise.
    pub fn socket(&self) -> PathBuf {
        self.path.join("slots.sock")
    }
}

/// Opens the lock and takes it. One that others can open (those of earlier versions) is taken, and a new one takes
/// its place: somebody may still have the old one open.
fn take_lock(folder: &Folder) -> Result<File, ServeError> {
    for _ in 0..ATTEMPTS {
        let lock = open_lock(folder)?;
        let path = folder.path().join(LOCK);
        let shown = path.display();
        let failed =
            |error: Errno| ServeError::usage(format!("can't use {shown}: {error}; see to it"));
        let status = fstat(&lock).map_err(failed)?;
        let user = status.st_uid;
        if user != geteuid().as_raw() {
            return Err(ServeError::usage(format!(
                "{shown} belongs to user {user}, which could keep this daemon from starting; remove it, or name \
                 another folder with --dir"
            )));
        }
        // With a second name it would be another file of ours, which would be emptied.
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || status.st_nlink > 1 {
            return Err(ServeError::usage(format!(
                "{shown} is no file of its own; remove it, or name another folder with --dir"
            )));
        }
        let is_loose = status.st_mode & OTHERS != 0;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(is_taken(folder, &lock, is_loose));
        }
        // Another daemon may have replaced it before the lock was taken.
        let named = statat(folder, LOCK, AtFlags::SYMLINK_NOFOLLOW);
        if !named.is_ok_and(|named| is_same(&named, &status)) {
            continue;
        }
        if !is_loose {
            return Ok(lock);
        }
        unlinkat(folder, LOCK, AtFlags::empty()).map_err(failed)?;
    }
    let shown = folder.path().display();
    Err(ServeError::system(format!("other processes keep replacing the lock in {shown}; end them")))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Follows no link, and waits for no file of any kind.
fn open_lock(folder: &Folder) -> Result<File, ServeError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = openat(folder, OsStr::new(LOCK), flags, Mode::RUSR | Mode::WUSR);
    let shown = folder.path().display();
    opened.map(File::from).map_err(|error| {
        ServeError::usage(match error {
            Errno::LOOP => {
                format!("{shown}/{LOCK} is a link; remove it, or name another folder with --dir")
            }
            error => format!("can't write in {shown}: {error}; name a folder with --dir"),
        })
    })
}

/// The error that names the lock's holder.
fn is_taken(folder: &Folder, lock: &File, is_loose: bool) -> ServeError {
    let shown = folder.path().display();
    let mut pid = String::new();
    // Only for the message.
    let _ = lock.take(20).read_to_string(&mut pid);
    let pid = pid.trim();
    ServeError::system(if is_killed(pid) {
        format!(
            "the pumice serve that has {shown} (process {pid}) was killed, and ends when a file of \
             a tenant's or of a snapshot lets go of it; end the tenant, have the file system \
             answer, or give this daemon a folder of its own with \
             --dir, and --socket"
        )
    } else if is_loose {
        format!(
            "another pumice serve (process {pid}) has {shown}, or a user that may read {shown}/{LOCK} has \
             locked it: if no daemon runs, remove it; else give this one a folder of its own with --dir, and \
             --socket"
        )
    } else {
        format!(
            "another pumice serve (process {pid}) has {shown}; give this one a folder of its own \
             with --dir, and --socket"
        )
    })
}

/// Whether a process was killed and has not ended: its first thread has, and another is held up in the kernel.
fn is_killed(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tZ"))
}

fn default_path() -> Result<PathBuf, ServeError> {
    if geteuid().is_root() {
        let system = Path::new(SYSTEM_SOCKET).parent();
        return Ok(system.expect("a path in a folder").to_owned());
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => Ok(Path::new(&path).join("pumice")),
        None => Err(ServeError::usage("no XDG_RUNTIME_DIR; name a folder with --dir".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_lock_can_be_given_up_before_the_end() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().expect("a folder");
        let ours = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&place, ours).expect("ours");
        let first = Directory::open(Some(place.path())).expect("locked");
        assert!(Directory::open(Some(place.path())).is_err(), "one daemon in each");
        first.unlock();
        Directory::open(Some(place.path())).expect("the next one");
    }

    #[test]
    fn killed_and_running_daemons_are_told_apart() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("there");
        let pid = child.id().to_string();
        assert!(!is_killed(&pid));
        child.kill().expect("ours");
        // Until it is waited for it is like a daemon that can't end.
        while !is_killed(&pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().expect("ours");
        assert!(!is_killed(&pid) && !is_killed(""));
    }
}
