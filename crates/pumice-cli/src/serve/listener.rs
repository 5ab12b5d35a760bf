//! The socket that clients connect to: bound here, or handed over by systemd; and who connects.

use std::env;
use std::fs;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::net::{
    accept_with, bind, listen, socket_with, sockopt, AddressFamily, SocketAddrUnix, SocketFlags,
    SocketType,
};

use super::allow::Peer;
use super::directory;
use crate::args::Failure;

/// The first descriptor that systemd hands over; see sd_listen_fds(3).
const FIRST_ACTIVATED: i32 = 3;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// See the module's text.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// What to remove at the end; nothing where the socket is systemd's.
    path: Option<PathBuf>,
}

impl Listener {
    /// systemd's socket if there is one, else a new one at `path`.
    pub fn open(path: &Path) -> Result<Listener, Failure> {
        if let Some(socket) = activated()? {
            return Ok(Listener { socket, path: None });
        }
        directory::clear_socket(path, "--socket")?;
        let socket = bind_to(path, SocketType::SEQPACKET).map_err(|error| {
            let path = path.display();
            Failure::usage(format!("can't listen at {path}: {error}; name another with --socket"))
        })?;
        Ok(Listener { socket, path: Some(path.to_owned()) })
    }

    /// The next client; `None` if there is none, or none that lives.
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, Peer)>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.socket, flags) {
            Ok(socket) => Ok(peer(&socket).ok().map(|peer| (socket, peer))),
            Err(error) => Err(error.into()),
        }
    }

    /// Nobody can connect from now on.
    pub fn remove(&self) {
        if let Some(path) = &self.path {
            // Who binds there next removes what is left.
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket at a path. All may connect: who is served, their credentials say.
pub fn bind_to(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn activated() -> Result<Option<OwnedFd>, Failure> {
    let number = |name| env::var(name).ok().and_then(|text: String| text.parse::<u32>().ok());
    let (pid, count) = (number("LISTEN_PID"), number("LISTEN_FDS"));
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        env::remove_var(name);
    }
    if pid != Some(std::process::id()) || count.is_none_or(|count| count == 0) {
        return Ok(None);
    }
    // SAFETY: systemd gave it to this process, which has not used it before.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST_ACTIVATED) };
    let fits = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(&socket).unwrap_or(false);
    if count != Some(1) || !fits {
        return Err(Failure::usage(
            "systemd must hand over one listening socket: ListenSequentialPacket= in the unit"
                .to_owned(),
        ));
    }
    let set = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .and_then(|()| rustix::io::ioctl_fionbio(&socket, true));
    set.map_err(|error| Failure::system(format!("systemd's socket can't be used: {error}")))?;
    Ok(Some(socket))
}

/// Who connected. rustix would take the process number for one that is not 0, which it is for a peer in
/// another pid namespace.
fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes one ucred at most.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it did.
    let credentials = unsafe { credentials.assume_init() };
    let mut groups = peer_groups(socket);
    groups.push(credentials.gid);
    Ok(Peer { uid: credentials.uid, groups, pid: credentials.pid as u32 })
}

/// The supplementary groups, as the kernel has them; none where it does not say.
fn peer_groups(socket: &OwnedFd) -> Vec<u32> {
    /// The kernel's `NGROUPS_MAX` is 65536; who is in more than this is not known by the others.
    const MOST: usize = 4096;
    let mut groups = vec![0u32; MOST];
    let mut length = (MOST * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel writes as much as the length says at most.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &mut length,
        )
    };
    groups.truncate(if failed == 0 { length as usize / size_of::<u32>() } else { 0 });
    groups
}
