//! The socket that clients connect to: bound here, or handed over by systemd; and who connects.

use std::env;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use pumice::slots::peer::credentials;
use rustix::net::{accept_with, sockopt, SocketFlags, SocketType};

use super::allow::Peer;
use super::bound::{Bound, Neighbours};
use crate::args::Failure;

/// The first descriptor that systemd hands over; see sd_listen_fds(3).
const FIRST_ACTIVATED: i32 = 3;

/// See the module's text.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// What to remove at the end; nothing where the socket is systemd's.
    bound: Option<Bound>,
}

impl Listener {
    /// systemd's socket if there is one, else a new one at `path`.
    pub fn open(path: &Path) -> Result<Listener, Failure> {
        if let Some(socket) = activated()? {
            return Ok(Listener { socket, bound: None });
        }
        let kind = SocketType::SEQPACKET;
        let (socket, bound) = Bound::listen(path, kind, Neighbours::Trusted, "--socket")?;
        Ok(Listener { socket, bound: Some(bound) })
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
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
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

/// Who connected.
fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let credentials = credentials(socket)?;
    let mut groups = peer_groups(socket);
    groups.push(credentials.gid);
    Ok(Peer { uid: credentials.uid, groups, pid: credentials.pid })
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
