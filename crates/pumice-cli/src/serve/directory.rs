//! The daemon's folder: a lock that only one daemon has, and the socket.
//!
//! Slots are memfds, so a daemon that is killed leaves nothing of them behind but what is leased. What it
//! does leave is its socket, which the next one removes: having the lock, it knows that nobody listens.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pumice::slots::client::SYSTEM_SOCKET;
use pumice::slots::socket;
use rustix::fs::{flock, FlockOperation};

use crate::args::Failure;

/// The folder, locked for as long as this lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Whoever has it open has the lock.
    _lock: File,
}

impl Directory {
    /// Makes the folder if there is none, and locks it.
    pub fn open(named: Option<&Path>) -> Result<Directory, Failure> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => default_path()?,
        };
        let shown = path.display();
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
        made.map_err(|error| {
            Failure::usage(format!("can't make the folder {shown}: {error}; name one with --dir"))
        })?;
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path.join("lock"));
        let mut lock = opened.map_err(|error| {
            Failure::usage(format!("can't write in {shown}: {error}; name a folder with --dir"))
        })?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            // Only for the message.
            let _ = (&mut lock).take(20).read_to_string(&mut pid);
            let pid = pid.trim();
            return Err(Failure::system(match is_killed(pid) {
                true => format!(
                    "the pumice serve that has {shown} (process {pid}) was killed, and ends when a file of \
                     a tenant's lets go of it; end the tenant, or give this daemon a folder of its own with \
                     --dir, and --socket"
                ),
                false => format!(
                    "another pumice serve (process {pid}) has {shown}; give this one a folder of its own \
                     with --dir, and --socket"
                ),
            }));
        }
        // The number is for people; the lock is what counts.
        let _ = lock.set_len(0);
        let _ = writeln!(&lock, "{}", std::process::id());
        Ok(Directory { path, _lock: lock })
    }

    /// Where the daemon listens unless it is told otherwise.
    pub fn socket(&self) -> PathBuf {
        self.path.join("slots.sock")
    }
}

/// Whether a process was killed and has not ended: its first thread has, and another is held up in the kernel.
fn is_killed(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tZ"))
}

fn default_path() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        let system = Path::new(SYSTEM_SOCKET).parent();
        return Ok(system.expect("a path in a folder").to_owned());
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => Ok(Path::new(&path).join("pumice")),
        None => Err(Failure::usage("no XDG_RUNTIME_DIR; name a folder with --dir".to_owned())),
    }
}

/// Removes a socket that a dead daemon left, so that one can be bound there. `option` is what the path was
/// given with.
pub fn clear_socket(path: &Path, option: &str) -> Result<(), Failure> {
    let shown = path.display();
    let status = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::usage(format!("can't listen at {shown}: {error}"))),
        Ok(status) => status,
    };
    if !status.file_type().is_socket() {
        return Err(Failure::usage(format!(
            "{shown} is there and is no socket; name another path"
        )));
    }
    // Of whatever type it is, a refusal means that nobody listens.
    match socket::connect_to(path, Duration::from_secs(1)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => {
            return Err(Failure::system(format!(
                "somebody else listens at {shown}; name another path with {option}"
            )))
        }
    }
    fs::remove_file(path)
        .map_err(|error| Failure::usage(format!("can't remove the old {shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_killed_is_told_from_who_runs() {
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
