//! One client: its requests, its waits and its leases.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::message::{LeaseRequest, Reply};
use crate::{socket, Charge, Sharing};

use super::allow::{is_master, Peer};
use super::backing::Backing;
use super::pool::Key;
use super::turns::{Rank, Taker};

/// See the module's text.
#[derive(Debug)]
pub struct Connection {
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
        let rank = if is_master(&self.peer) { Rank::Master } else { Rank::Tenant };
        Taker { user: self.account, rank }
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

    /// The bytes that it has alone.
    pub fn leased_bytes(&self) -> u64 {
        let own = self.lease().filter(|lease| lease.key.sharing == Sharing::Alone);
        own.map_or(0, |lease| lease.key.bytes)
    }
}
