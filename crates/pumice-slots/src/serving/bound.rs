//! Sockets in the file system, by their folder's descriptor: nobody can swap a part of the path meanwhile.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::socket;
use rustix::fs::{
    chmod, fchmod, fstat, openat, statat, unlinkat, AtFlags, FileType, Mode, OFlags, Stat,
};
use rustix::io::Errno;
use rustix::net::{
    bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

use super::folder::{is_ours, split, Folder, Missing};
use crate::ServeError;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// The users that may be able to write in a socket's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Root and this user only: clients trust the listener.
    Trusted,
    /// Anybody: nothing is said there that is not for all.
    Any,
}

/// A socket's file, which has its name until [`Bound::remove`].
#[derive(Debug)]
pub struct Bound {
    folder: Folder,
    name: OsString,
    file: (u64, u64),
}

impl Bound {
    /// Listens at `path`, where a dead daemon may have left a socket. All may connect; their
    /// credentials decide which of them are served. `option` is what the path was given with.
    pub fn listen(
        path: &Path,
        kind: SocketType,
        neighbours: Neighbours,
        option: &str,
    ) -> Result<(OwnedFd, Bound), ServeError> {
        let shown = path.display();
        let failed = |error: Errno| {
            let what = format!("can't listen at {shown}: {error}");
            ServeError::usage(format!("{what}; name another path with {option}"))
        };
        let (folder, name) = split(path).ok_or_else(|| failed(Errno::INVAL))?;
        // Clients need all of it to connect.
        SocketAddrUnix::new(path).map_err(failed)?;
        let folder = match neighbours {
            Neighbours::Trusted => Folder::open(folder, Missing::Fail, option)?,
            Neighbours::Any => Folder::open_any(folder, option)?,
        };
        clear(&folder, name, path, option)?;
        let (socket, file) = bind_in(&folder, name, kind).map_err(failed)?;
        Ok((socket, Bound { folder, name: name.to_owned(), file }))
    }

    /// Nobody can connect from now on. A file that has come to the name since then stays.
    pub fn remove(&self) {
        let found = statat(&self.folder, &*self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| identity(&found) == self.file) {
            // The next daemon that binds there removes a file that is left.
            let _ = unlinkat(&self.folder, &*self.name, AtFlags::empty());
        }
    }
}

fn identity(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

/// Until it listens, only this user and root can connect, and they find out that nobody listens yet.
fn bind_in(
    folder: &Folder,
    name: &OsStr,
    kind: SocketType,
) -> Result<(OwnedFd, (u64, u64)), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    // The file gets the socket's own rights, less the umask.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(folder.path_of(name))?)?;
    listen(&socket, BACKLOG)?;
    let file = open(folder, name)?;
    let status = fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket || !is_ours(status.st_uid) {
        return Err(Errno::EXIST);
    }
    chmod(path_of(&file), Mode::from_raw_mode(0o666))?;
    Ok((socket, identity(&status)))
}

/// Removes a socket that a dead daemon left, so that one can be bound there.
fn clear(folder: &Folder, name: &OsStr, path: &Path, option: &str) -> Result<(), ServeError> {
    let shown = path.display();
    let file = match open(folder, name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(ServeError::usage(format!("can't listen at {shown}: {error}"))),
        Ok(file) => file,
    };
    let status = fstat(&file);
    let status =
        status.map_err(|error| ServeError::usage(format!("can't listen at {shown}: {error}")))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(ServeError::usage(format!(
            "{shown} is there and is no socket; name another path"
        )));
    }
    if !is_ours(status.st_uid) {
        let user = status.st_uid;
        return Err(ServeError::usage(format!(
            "{shown} belongs to user {user}; remove it, or name another path with {option}"
        )));
    }
    // For any type of socket, a refusal means that nobody listens.
    match socket::connect_to(&path_of(&file), Duration::from_secs(1)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => {
            return Err(ServeError::system(format!(
                "another process listens at {shown}; name another path with {option}"
            )))
        }
    }
    unlinkat(folder, name, AtFlags::empty())
        .map_err(|error| ServeError::usage(format!("can't remove the old {shown}: {error}")))
}

/// The file of that name itself, not what it points to, and nothing that opening it would do.
fn open(folder: &Folder, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn path_of(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}
