//! One client: its requests, its waits and its leases.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::message::{LeaseRequest, Reply};
use crate::{socket, Charge, Sharing};

use super::allow::{is_master, Peer};
use super::backing::Backing;
use super::pool::Key;
use super::tickets::ReservationId;
use super::turns::{Rank, Taker};

/// The socket that a client came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The daemon's socket: the kernel says which user it is, and the user has its rights.
    Main,
    /// The socket for tickets: clients have no rights but those that a ticket gives, root neither. In containers that
    /// the socket is mounted into, the kernel's numbers of users say nothing.
    Tickets,
}

/// See the module's text.
#[derive(Debug)]
pub struct Connection {
    /// The socket that it came by.
    pub door: Door,
    /// Its socket, which never blocks.
    pub socket: OwnedFd,
    /// The client.
    pub peer: Peer,
    /// The user that its limits are of.
    pub account: u32,
    /// The stage that it is in.
    pub state: ConnectionState,
}

/// A connection's life goes down this list, and may leave out steps.
#[derive(Debug)]
pub enum ConnectionState {
    /// It has not asked for a slot yet.
    Idle,
    /// It waits for one.
    Waiting(Wait),
    /// It has one.
    Leased(Lease),
    /// It has ended its lease and is told when the memory is gone.
    Ending,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// For which class.
    pub key: Key,
    /// The request.
    pub request: LeaseRequest,
    /// Since when.
    pub since: Instant,
    /// Until when.
    pub until: Instant,
    /// The look at the snapshot's file that must come first: it began after the request. 0 without a snapshot.
    pub look: u64,
    /// The reservation whose ticket it has shown.
    pub reservation: Option<ReservationId>,
}

/// A leased slot.
#[derive(Debug)]
pub struct Lease {
    /// Its number.
    pub id: u64,
    /// The properties of the slot.
    pub key: Key,
    /// Its file, which nobody reads here.
    pub file: Backing,
    /// Since when.
    pub since: Instant,
    /// The side that populated it: no class counts slots that the lessee populates.
    pub charge: Charge,
    /// The reservation that it is of.
    pub reservation: Option<ReservationId>,
}

/// Whether a client heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Heard {
    /// It will.
    Yes,
    /// It is gone, or does not read its answers.
    No,
}

impl Connection {
    /// Answers. The socket has room for many answers, so one that has none is never read.
    pub fn reply(&self, reply: &Reply) -> Heard {
        match socket::send(&self.socket, &reply.encode(), None) {
            Ok(()) => Heard::Yes,
            Err(_) => Heard::No,
        }
    }

    /// Hands over the leased slot.
    pub fn grant(&self, reply: &Reply, file: &Backing) -> Heard {
        use std::os::fd::AsFd;
        match socket::send(&self.socket, &reply.encode(), Some(file.as_fd())) {
            Ok(()) => Heard::Yes,
            Err(_) => Heard::No,
        }
    }

    /// The client as one that asks for a slot.
    pub fn taker(&self) -> Taker {
        let rank = if self.is_master() { Rank::Master } else { Rank::Tenant };
        Taker { user: self.account, rank }
    }

    /// Whether it is root's or the daemon's user's, with their rights.
    pub fn is_master(&self) -> bool {
        self.door == Door::Main && is_master(&self.peer)
    }

    /// Its request that waits.
    pub fn wait(&self) -> Option<&Wait> {
        match &self.state {
            ConnectionState::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// Its lease.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            ConnectionState::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// The reservation that it waits for a slot of, or has one of: that is on no user's account.
    pub fn reservation(&self) -> Option<ReservationId> {
        let waited_for = self.wait().and_then(|wait| wait.reservation);
        waited_for.or(self.lease().and_then(|lease| lease.reservation))
    }

    /// The bytes that it has alone.
    pub fn leased_bytes(&self) -> u64 {
        let own = self.lease().filter(|lease| lease.key.sharing == Sharing::Alone);
        own.map_or(0, |lease| lease.key.bytes)
    }
}
