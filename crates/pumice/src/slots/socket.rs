//! Packets over a unix socket of type `SOCK_SEQPACKET`, with or without a descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    connect, recvmsg, sendmsg, socket_with, sockopt, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::message::MAX_BYTES;

/// A packet that came.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptor that came with it; others that did are closed.
    pub descriptor: Option<OwnedFd>,
}

/// Connects. Calls on the connection wait no longer than `patience`.
///
/// # Errors
/// As connect(2).
pub fn connect_to(path: &Path, patience: Duration) -> io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_patience(&socket, patience)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
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
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the next packet; `None` when the peer has closed.
///
/// # Errors
/// As recvmsg(2); `InvalidData` for a packet longer than a message may be, which is dropped.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut buffer = [0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut buffer)];
    let received = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            descriptor = descriptors.next();
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet longer than a message"));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(Some(Packet { bytes: buffer[..received.bytes].to_vec(), descriptor }))
}
