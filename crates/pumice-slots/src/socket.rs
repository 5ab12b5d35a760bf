//! Packets over a unix socket of type `SOCK_SEQPACKET`, with or without a descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{retry_on_intr, Errno};
use rustix::net::{
    connect, recvmsg, sendmsg, socket_with, sockopt, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::message::MAX_BYTES;

/// A packet that came.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// All descriptors that came with it. The receiver chooses the thread that closes them, since their sender can
    /// make closing take any time.
    pub descriptors: Vec<OwnedFd>,
}

/// The most descriptors that the kernel lets a packet have (`SCM_MAX_FD`). With less room it would
/// close the rest itself, in the thread that receives.
const MOST_DESCRIPTORS: usize = 253;

/// Connects. Calls on the connection wait no longer than `patience`.
///
/// # Errors
/// As connect(2).
pub fn connect_to(path: &Path, patience: Duration) -> io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_patience(&socket, patience)?;
    let address = SocketAddrUnix::new(path)?;
    let started = Instant::now();
    while let Err(error) = connect(&socket, &address) {
        if error != Errno::INTR {
            return Err(error.into());
        }
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(left))?;
    }
    set_patience(&socket, patience)?;
    Ok(socket)
}

/// Has calls on a blocking socket wait no longer than this.
///
/// # Errors
/// As setsockopt(2).
pub fn set_patience(socket: &OwnedFd, patience: Duration) -> io::Result<()> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(patience))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(patience))?;
    Ok(())
}

/// Sends a packet. A peer that is gone is an error, never a signal.
///
/// # Errors
/// As sendmsg(2).
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // A packet goes whole or not at all.
    let slices = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(&socket, &slices, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Takes the next packet; `None` when the peer has closed. Of a packet longer than a message may be, one
/// byte too many is kept: it is none.
///
/// A signal that is handled meanwhile, or a stop, neither ends the wait nor makes it longer.
///
/// # Errors
/// As recvmsg(2); `WouldBlock` when the socket's patience is at its end.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut buffer = [0; MAX_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let started = Instant::now();
    let received = loop {
        match recvmsg(&socket, &mut slices, &mut control, flags) {
            Err(Errno::INTR) => wait_on(&socket, started)?,
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    // A packet may be empty and bring descriptors.
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    Ok(Some(Packet { bytes: buffer[..received.bytes].to_vec(), descriptors }))
}

/// Waits for something to receive for what is left of the socket's patience: the kernel would begin it anew.
fn wait_on(socket: &impl AsFd, started: Instant) -> io::Result<()> {
    let Some(patience) = sockopt::socket_timeout(socket, sockopt::Timeout::Recv)? else {
        return Ok(());
    };
    loop {
        let left = patience.saturating_sub(started.elapsed());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
            other => return Ok(other.map(drop)?),
        }
    }
}
