//! The user that listens at a socket, and the others that could.
//!
//! A socket's path says nothing about the process that answers there: a daemon ends, and another process binds the same
//! path. So a client asks the kernel for the listener's credentials (`SO_PEERCRED`: the user that called `listen`), and
//! compares.
//!
//! - *Leasing*, a client trusts root, its own user, and the user whose folder the socket is in: that one could
//!   replace the daemon anyway.
//! - *Resuming*, it sends its slot's descriptor, and all that is in the slot with it. It trusts root and the user
//!   it leased from only. The folder must belong to one of them, or to its owner of that time, and the socket too;
//!   nobody else may write in the folder. Folder and socket are opened once and then used by their descriptors, so the
//!   client connects to the socket that it has checked.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{fstat, openat, FileType, Mode, OFlags, Stat, CWD};
use rustix::process::geteuid;

use super::error::Error;
use super::socket;
use pumice_frames::sys::raw;

/// The process at the other end of a connection, as the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Credentials {
    /// The process; 0 where it is not visible from here.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The process that connected, or that listened before this was connected.
///
/// rustix would take the process's number for one that is not 0, and it is 0 for a peer in another pid namespace.
///
/// # Errors
/// As getsockopt(2).
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    const SOL_SOCKET: usize = 1;
    const SO_PEERCRED: usize = 17;
    let mut peer = Credentials::default();
    let mut length = size_of::<Credentials>() as u32;
    let socket = socket.as_fd().as_raw_fd() as usize;
    let (to, its_length) = (&raw mut peer as usize, &raw mut length as usize);
    let args = [socket, SOL_SOCKET, SO_PEERCRED, to, its_length, 0];
    // SAFETY: the kernel writes a ucred at most, which is three numbers of 32 bits, and its length; both live here.
    unsafe { raw::syscall(raw::number::__NR_getsockopt, args)? };
    Ok(peer)
}

/// The users that a holder's slot may go to, besides root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trusted {
    /// The user that listened when the slot was leased: systemd's user, where it listens for the daemon.
    listened: u32,
    /// The user that had the folder then. It may have the socket's folder again, and not listen.
    had_folder: u32,
}

impl Trusted {
    /// Finds out which user gives a slot over this connection to the socket at `path`.
    ///
    /// # Errors
    /// [`Error::Stranger`] where it is neither root, nor the caller's own user, nor the owner of the socket's folder.
    pub(super) fn of(connection: &OwnedFd, path: &Path) -> Result<Trusted, Error> {
        let listens = credentials(connection)?.uid;
        let (folder, _) = open_folder(path)?;
        let owner = fstat(&folder).map_err(io::Error::from)?.st_uid;
        if ![0, geteuid().as_raw(), owner].contains(&listens) {
            let what = "neither root nor you, and its folder is another's";
            return Err(stranger(path, listens, what));
        }
        Ok(Trusted { listened: listens, had_folder: owner })
    }

    fn may_listen(&self, user: u32) -> bool {
        [0, self.listened].contains(&user)
    }

    fn may_bind(&self, user: u32) -> bool {
        self.may_listen(user) || user == self.had_folder
    }

    /// Connects to the listener at `path`, if it is one of them, and if no other user could listen there.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::Stranger`].
    pub(super) fn connect(&self, path: &Path, patience: Duration) -> Result<OwnedFd, Error> {
        let failed = |source: io::Error| Error::Connect { path: path.to_owned(), source };
        let (folder, name) = open_folder(path).map_err(failed)?;
        let status = fstat(&folder).map_err(|error| failed(error.into()))?;
        if !self.may_bind(status.st_uid) {
            return Err(stranger(path, status.st_uid, "the folder is another's"));
        }
        if is_open_to_others(&status) {
            return Err(stranger(path, status.st_uid, "other users can write in the folder"));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&folder, &*name, flags, Mode::empty());
        let socket = socket.map_err(|error| failed(error.into()))?;
        let status = fstat(&socket).map_err(|error| failed(error.into()))?;
        let is_socket = FileType::from_raw_mode(status.st_mode) == FileType::Socket;
        if !is_socket || !self.may_bind(status.st_uid) {
            return Err(stranger(path, status.st_uid, "the socket is another's"));
        }
        // The very file that was looked at, whatever the path names by now.
        let same = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let connection = socket::connect_to(Path::new(&same), patience).map_err(failed)?;
        let listens = credentials(&connection)?.uid;
        if !self.may_listen(listens) {
            return Err(stranger(path, listens, "another user listens"));
        }
        Ok(connection)
    }
}

/// Whether users besides its owner can replace what others have in a folder: the sticky bit forbids that.
pub fn is_open_to_others(folder: &Stat) -> bool {
    let mode = Mode::from_raw_mode(folder.st_mode);
    mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX)
}

fn stranger(path: &Path, uid: u32, what: &'static str) -> Error {
    Error::Stranger { path: path.to_owned(), uid, what }
}

/// The folder that a path's file is in, links followed, and the file's name there.
fn open_folder(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let path = fs::canonicalize(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name: &OsStr = name;
    Ok((openat(CWD, folder, flags, Mode::empty())?, name.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use rustix::net::{
        bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
    };

    use super::*;
    use tempfile::TempDir;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A listening socket in a folder of its own.
    struct Listening {
        folder: TempDir,
        _socket: OwnedFd,
    }

    impl Listening {
        fn new() -> Listening {
            let folder = tempfile::tempdir().expect("a folder");
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
            let socket = socket.expect("a socket");
            bind(&socket, &SocketAddrUnix::new(folder.path().join("s")).expect("short"))
                .expect("bound");
            listen(&socket, 8).expect("listening");
            Listening { folder, _socket: socket }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("s")
        }

        fn set_mode(&self, mode: u32) {
            fs::set_permissions(&self.folder, fs::Permissions::from_mode(mode)).expect("ours");
        }
    }

    fn why<T>(outcome: Result<T, Error>) -> &'static str {
        match outcome {
            Ok(_) => "",
            Err(Error::Stranger { what, .. }) => what,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_peer_is_whom_the_kernel_says() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = geteuid().as_raw();
        let peer = credentials(&one).expect("a socket");
        assert_eq!((peer.pid, peer.uid), (std::process::id(), own));
        assert!(credentials(fs::File::open("/dev/null").expect("there")).is_err());
    }

    #[test]
    fn a_folder_that_others_can_write_in_is_not_trusted_again() {
        let listening = Listening::new();
        let path = listening.path();
        let connection = socket::connect_to(&path, PATIENCE).expect("connected");
        let trusted = Trusted::of(&connection, &path).expect("our own");
        assert_eq!(why(trusted.connect(&path, PATIENCE)), "");
        for mode in [0o777, 0o775] {
            listening.set_mode(mode);
            let what = why(trusted.connect(&path, PATIENCE));
            assert_eq!(what, "other users can write in the folder", "{mode:o}");
        }
        listening.set_mode(0o1777);
        assert_eq!(why(trusted.connect(&path, PATIENCE)), "", "they can't replace what is ours");
        listening.set_mode(0o755);
        let link = listening.folder.path().join("link");
        std::os::unix::fs::symlink("s", &link).expect("a link");
        assert_eq!(why(trusted.connect(&link, PATIENCE)), "", "what a link names is checked");
    }

    #[test]
    fn a_daemon_that_gave_nothing_is_sent_nothing() {
        let own = geteuid().as_raw();
        if own == 0 {
            eprintln!("skipped: root is always trusted");
            return;
        }
        let listening = Listening::new();
        let other = Trusted { listened: own + 1, had_folder: own + 1 };
        assert_eq!(why(other.connect(&listening.path(), PATIENCE)), "the folder is another's");
    }
}
