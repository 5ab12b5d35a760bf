//! The socket that clients connect to: bound here, or handed over by systemd; and the clients that connect.

use std::env;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::peer::credentials;
use rustix::net::{accept_with, shutdown, sockopt, Shutdown, SocketFlags, SocketType};

use super::allow::Peer;
use crate::serving::bound::{Bound, Neighbours};
use crate::ServeError;

/// The first descriptor that systemd hands over; see sd_listen_fds(3).
const FIRST_ACTIVATED: i32 = 3;

/// See the module's text.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// The socket's file, to be removed at the end; none where the socket is systemd's.
    bound: Option<Bound>,
}

impl Listener {
    /// systemd's socket if there is one, else a new one at `path`.
    pub fn open(path: &Path, systemds: Option<OwnedFd>) -> Result<Listener, ServeError> {
        if let Some(socket) = systemds {
            // A daemon that was killed may have left it otherwise.
            set_rights(&socket, Rights::Passed);
            return Ok(Listener { socket, bound: None });
        }
        Listener::open_named(path, "--socket")
    }

    /// A new one at `path`, which was given with `option`.
    pub fn open_named(path: &Path, option: &str) -> Result<Listener, ServeError> {
        let kind = SocketType::SEQPACKET;
        let (socket, bound) = Bound::listen(path, kind, Neighbours::Trusted, option)?;
        Ok(Listener { socket, bound: Some(bound) })
    }

    /// Sets whether clients that connect from now on can send descriptors before they are accepted. A kernel before
    /// Linux 6.16 always lets them.
    pub fn set_rights(&self, rights: Rights) {
        set_rights(&self.socket, rights);
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
        if let Some(bound) = &self.bound {
            bound.remove();
            // Those that have the path open already are refused, too. (systemd's socket is not ours to end.)
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }
}

/// Whether descriptors can be sent to a socket; else sending fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// They can.
    Passed,
    /// They can't.
    Refused,
}

/// `SO_PASSRIGHTS`, as Linux 6.16 has it.
const SO_PASSRIGHTS: libc::c_int = 83;

/// From now on. A socket that is accepted begins as its listener was when its client connected.
pub fn set_rights(socket: impl AsFd, rights: Rights) {
    let value = libc::c_int::from(rights == Rights::Passed);
    // An older kernel does not know the option.
    // SAFETY: the kernel reads a number that lives here.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// The rights that [`set_rights`] has set.
pub fn rights(socket: impl AsFd) -> Rights {
    let mut value: libc::c_int = 1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes a number at most, which lives here.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut value).cast(),
            &mut length,
        )
    };
    if failed == 0 && value == 0 {
        Rights::Refused
    } else {
        Rights::Passed
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket that systemd has handed over to this process, if it has (`sd_listen_fds(3)`).
///
/// # Errors
/// It has handed over something else.
///
/// # Safety
/// The process has just begun: no descriptor is used yet but the first three.
pub unsafe fn systemd_socket() -> Result<Option<OwnedFd>, ServeError> {
    let number = |name| env::var(name).ok().and_then(|text: String| text.parse::<u32>().ok());
    let (pid, count) = (number("LISTEN_PID"), number("LISTEN_FDS"));
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        env::remove_var(name);
    }
    if pid != Some(std::process::id()) || count.is_none_or(|count| count == 0) {
        return Ok(None);
    }
    // SAFETY: systemd gave it to this process; as the caller promises, nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST_ACTIVATED) };
    let fits = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(&socket).unwrap_or(false);
    if count != Some(1) || !fits {
        return Err(ServeError::usage(
            "systemd must hand over one listening socket: ListenSequentialPacket= in the unit"
                .to_owned(),
        ));
    }
    let set = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .and_then(|()| rustix::io::ioctl_fionbio(&socket, true));
    set.map_err(|error| ServeError::system(format!("systemd's socket can't be used: {error}")))?;
    Ok(Some(socket))
}

/// The process that connected.
fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let credentials = credentials(socket)?;
    let mut groups = peer_groups(socket);
    groups.push(credentials.gid);
    Ok(Peer { uid: credentials.uid, groups, pid: credentials.pid })
}

/// The supplementary groups, as the kernel has them; none where it does not say.
fn peer_groups(socket: &OwnedFd) -> Vec<u32> {
    /// The kernel's `NGROUPS_MAX` is 65536; groups beyond this number are not seen.
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
