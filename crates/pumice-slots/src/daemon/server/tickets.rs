//! Slots that are reserved for tickets: requests of those that reserve, and of clients that show a ticket.
//!
//! A client that shows a ticket always waits first, and is served at once if a slot is ready. So it has one way to a
//! lease, and [`Server::left`] is the one way back.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::message::{LeaseRequest, Reply, ReservationRow, MAX_ROWS};
use crate::refusal::Reason;
use crate::ticket::{Reservation, ReservationName, Ticket};

use super::super::connection::{ConnectionState, Door, Wait};
use super::super::pool::{Key, Token};
use super::super::tickets::{ReservationId, Reserved, State, MOST};
use super::Server;

/// Connections at the door for tickets that have asked for nothing yet. Of more than these the oldest is closed: a
/// client shows its ticket at once.
const IDLE_AT_THE_DOOR: usize = 64;

impl Server {
    /// Reserves a slot, and gives up the reservation of the same name.
    pub(super) fn reserve(&mut self, token: Token, asked: &Reservation) {
        if !self.is_master(token) {
            return self.refuse(token, Reason::NotYours, 0);
        }
        if self.drain_until.is_some() {
            return self.refuse(token, Reason::Draining, 0);
        }
        let now = Instant::now();
        let before = self.tickets.named(asked.name).map(|it| it.state);
        if self.tickets.renew(asked, now) {
            return self.answer(token, &Reply::Done);
        }
        if matches!(before, Some(State::Leased(_))) {
            return self.refuse(token, Reason::TicketInUse, 0);
        }
        // Two of one ticket would be one that nobody could have.
        if self.tickets.iter().any(|it| it.has(asked.ticket)) {
            return self.refuse(token, Reason::TicketInUse, 0);
        }
        self.release_now(asked.name);
        if self.tickets.len() >= MOST {
            return self.refuse(token, Reason::Busy, 0);
        }
        match self.pool.reserve(asked.bytes, asked.pages, asked.node) {
            Ok(key) => {
                self.tickets.add(asked, key, now);
                self.answer(token, &Reply::Done);
            }
            Err(reason) => self.refuse(token, reason, 0),
        }
    }

    pub(super) fn release(&mut self, token: Token, name: ReservationName) {
        if !self.is_master(token) {
            return self.refuse(token, Reason::NotYours, 0);
        }
        self.release_now(name);
        self.answer(token, &Reply::Done);
    }

    pub(super) fn list_reservations(&mut self, token: Token, from: u32) {
        if !self.is_master(token) {
            return self.refuse(token, Reason::NotYours, 0);
        }
        let now = Instant::now();
        let rows: Vec<ReservationRow> = self.tickets.iter().map(|it| it.row(now)).collect();
        let page = rows.iter().skip(from as usize).take(MAX_ROWS).copied().collect();
        self.answer(token, &Reply::Reservations(rows.len() as u32, page));
    }

    /// A client shows a ticket and asks for its slot.
    pub(super) fn lease_ticket(&mut self, token: Token, ticket: Ticket, wait_ms: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if !matches!(connection.state, ConnectionState::Idle) {
            return self.refuse_and_close(token, Reason::OutOfTurn);
        }
        let (id, key) = match self.tickets.of(ticket).map(|it| (it.id, it.key, it.state)) {
            Some((id, key, State::Kept(_))) => (id, key),
            Some(_) => return self.refuse(token, Reason::TicketInUse, 0),
            // A second guess needs another connection.
            None => return self.refuse_and_close(token, Reason::NoSuchTicket),
        };
        if self.drain_until.is_some() {
            return self.refuse(token, Reason::Draining, 0);
        }
        let since = Instant::now();
        let until = since + Duration::from_millis(wait_ms.into());
        let request = LeaseRequest { wait_ms, ..LeaseRequest::new(key.bytes) };
        let wait = Wait { key, request, since, until, look: 0, reservation: Some(id) };
        connection.state = ConnectionState::Waiting(wait);
        self.tickets.waits(id, token);
        self.pool.wait_with_ticket(key, token);
        self.serve_waiting(key);
        let waits = |it: &Server| it.connections.get(&token).is_some_and(|it| it.wait().is_some());
        if wait_ms == 0 && waits(self) {
            self.stop_waiting(token, Reason::NoneReady);
        }
    }

    /// A client shows a ticket, and the slot that a daemon before gave it for that.
    pub(super) fn resume_ticket(
        &mut self,
        token: Token,
        ticket: Ticket,
        descriptor: Option<OwnedFd>,
    ) {
        let Some(user) = self.connections.get(&token).map(|it| it.account) else { return };
        let found = self.tickets.of(ticket).map(|it| (it.id, it.key, it.state));
        let refused = match found {
            Some((id, key, State::Kept(_))) => {
                return self.resume(token, descriptor, Some((id, key)));
            }
            Some(_) => Reason::TicketInUse,
            // The one that has reserved the slot may yet tell this daemon.
            None => Reason::NoSuchTicket,
        };
        descriptor.into_iter().for_each(|it| self.reaper.close(user, it));
        self.refuse_and_close(token, refused);
    }

    /// A client waits for a reserved slot no more, or has ended its lease.
    pub(super) fn left(&mut self, key: Key, reservation: Option<ReservationId>, was: Held) {
        let Some(id) = reservation else { return };
        let is_kept = self.tickets.left(id, Instant::now());
        match (was, is_kept) {
            (Held::Waited, false) => self.pool.unreserve(key),
            (Held::Leased, true) => self.pool.reserve_again(key),
            (Held::Waited, true) | (Held::Leased, false) => {}
        }
    }

    /// Reservations whose time is over.
    pub(super) fn expire_tickets(&mut self, now: Instant) {
        while let Some(expired) = self.tickets.expire(now) {
            self.unreserve(&expired);
        }
    }

    /// After a change of the configuration: reservations that there is no slot for are given up, newest first.
    pub(super) fn release_overbooked(&mut self) {
        let unleased = self.tickets.iter().rev().filter(|it| !matches!(it.state, State::Leased(_)));
        let unleased: Vec<_> = unleased.map(|it| (it.name, it.key)).collect();
        for (name, key) in unleased {
            if self.pool.overbooked(key) > 0 {
                self.release_now(name);
            }
        }
    }

    fn release_now(&mut self, name: ReservationName) {
        let Some(released) = self.tickets.release(name) else { return };
        self.unreserve(&released);
    }

    /// A reservation is gone that nobody has leased: its client waits in vain, and others may have the slot.
    fn unreserve(&mut self, gone: &Reserved) {
        match gone.state {
            // Which gives the slot up, as it finds no reservation.
            State::Waiting(token) => self.stop_waiting(token, Reason::NoSuchTicket),
            State::Kept(_) | State::Leased(_) => self.pool.unreserve(gone.key),
        }
        self.serve_waiting(gone.key);
    }

    fn is_master(&self, token: Token) -> bool {
        self.connections.get(&token).is_some_and(|it| it.is_master())
    }

    /// Makes room at the door for tickets.
    pub(super) fn close_idlest(&mut self) {
        let idle = self.connections.iter().filter(|(_, it)| {
            it.door == Door::Tickets && matches!(it.state, ConnectionState::Idle)
        });
        let idle: Vec<_> = idle.map(|(&token, _)| token).collect();
        if idle.len() >= IDLE_AT_THE_DOOR {
            if let Some(&oldest) = idle.iter().min() {
                self.disconnect(oldest);
            }
        }
    }
}

/// The thing that a client had of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A place in the queue.
    Waited,
    /// The slot.
    Leased,
}
