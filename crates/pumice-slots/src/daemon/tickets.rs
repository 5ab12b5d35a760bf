//! The reservations: the ticket, the class and the stage of each. It touches no clock, so tests drive it by hand.
//!
//! | stage | changes to |
//! |---|---|
//! | kept until a time | waiting, when a client shows the ticket; gone, at that time or when it is released |
//! | waiting | leased; kept, when the client gives up; gone, when it is released |
//! | leased | kept, when the lease ends; gone then, if it was released before |
//!
//! The pool counts those that are kept or waiting, so each change here comes with one there.

use std::time::{Duration, Instant};

use crate::message::ReservationRow;
use crate::ticket::{Reservation, ReservationName, Stage, Ticket};

use super::pool::{Key, Token};

/// Reservations that there may be. The sum of all slots bounds them besides.
pub const MOST: usize = 4096;

/// A reservation's number, which no other gets.
pub type ReservationId = u64;

/// All reservations.
#[derive(Debug, Default)]
pub struct Tickets {
    all: Vec<Reserved>,
    last: ReservationId,
    counts: TicketCounts,
}

/// Numbers that only grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct TicketCounts {
    /// Slots reserved.
    pub reserved: u64,
    /// Leases of them.
    pub leased: u64,
    /// Reservations that ended as nobody showed the ticket in time.
    pub expired: u64,
    /// Reservations that were released, or replaced by another one.
    pub released: u64,
    /// Requests with a ticket for which nothing is reserved.
    pub wrong: u64,
}

/// One reservation.
#[derive(Debug)]
pub struct Reserved {
    /// Its number.
    pub id: ReservationId,
    /// Its name.
    pub name: ReservationName,
    /// The class of its slot.
    pub key: Key,
    /// Its stage.
    pub state: State,
    ticket: Ticket,
    /// For how long it is kept; for no time if it was released while it was leased.
    limit: Duration,
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Until then.
    Kept(Instant),
    /// This client waits for the slot.
    Waiting(Token),
    /// This client has it.
    Leased(Token),
}

impl Tickets {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The numbers.
    pub fn counts(&self) -> TicketCounts {
        self.counts
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Reserved> {
        self.all.iter()
    }

    /// The one of a name.
    pub fn named(&self, name: ReservationName) -> Option<&Reserved> {
        self.all.iter().find(|it| it.name == name)
    }

    /// The one of a ticket. All are compared, so that the time tells nothing about any.
    pub fn of(&mut self, ticket: Ticket) -> Option<&Reserved> {
        let mut found = None;
        for it in &self.all {
            if it.ticket == ticket {
                found = Some(it);
            }
        }
        self.counts.wrong += u64::from(found.is_none());
        found
    }

    /// Adds one whose slot the pool has reserved.
    pub fn add(&mut self, asked: &Reservation, key: Key, now: Instant) {
        self.last += 1;
        self.counts.reserved += 1;
        let limit = Duration::from_millis(asked.limit_ms.into());
        let (id, state) = (self.last, State::Kept(now + limit));
        self.all.push(Reserved { id, name: asked.name, key, state, ticket: asked.ticket, limit });
    }

    /// The same is asked for again: it is kept for as long from now on. Returns whether it is the same.
    pub fn renew(&mut self, asked: &Reservation, now: Instant) -> bool {
        let same = |it: &&mut Reserved| it.name == asked.name && it.ticket == asked.ticket;
        let Some(it) = self.all.iter_mut().find(same) else { return false };
        it.limit = Duration::from_millis(asked.limit_ms.into());
        if let State::Kept(until) = &mut it.state {
            *until = now + it.limit;
        }
        true
    }

    /// A client waits for its slot.
    pub fn waits(&mut self, id: ReservationId, token: Token) {
        if let Some(it) = self.of_id(id) {
            it.state = State::Waiting(token);
        }
    }

    /// A client has its slot.
    pub fn leased(&mut self, id: ReservationId, token: Token) {
        self.counts.leased += 1;
        if let Some(it) = self.of_id(id) {
            it.state = State::Leased(token);
        }
    }

    /// The client waits no more, or has ended its lease. Returns whether the reservation is kept.
    pub fn left(&mut self, id: ReservationId, now: Instant) -> bool {
        let Some(it) = self.of_id(id) else { return false };
        if it.limit.is_zero() {
            self.all.retain(|it| it.id != id);
            return false;
        }
        it.state = State::Kept(now + it.limit);
        true
    }

    /// Takes one out that is released. One that is leased goes when the lease ends, and is not returned.
    pub fn release(&mut self, name: ReservationName) -> Option<Reserved> {
        let index = self.all.iter().position(|it| it.name == name)?;
        if self.all[index].limit.is_zero() {
            return None;
        }
        self.counts.released += 1;
        if let State::Leased(_) = self.all[index].state {
            self.all[index].limit = Duration::ZERO;
            return None;
        }
        Some(self.all.remove(index))
    }

    /// Takes one out whose time is over.
    pub fn expire(&mut self, now: Instant) -> Option<Reserved> {
        let is_over = |it: &Reserved| matches!(it.state, State::Kept(until) if until <= now);
        let index = self.all.iter().position(is_over)?;
        self.counts.expired += 1;
        Some(self.all.remove(index))
    }

    /// When the time of the next one is over.
    pub fn next_end(&self) -> Option<Instant> {
        let ends = self.all.iter().filter_map(|it| match it.state {
            State::Kept(until) => Some(until),
            State::Waiting(_) | State::Leased(_) => None,
        });
        ends.min()
    }

    fn of_id(&mut self, id: ReservationId) -> Option<&mut Reserved> {
        self.all.iter_mut().find(|it| it.id == id)
    }
}

impl Reserved {
    /// Whether this is its ticket.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.ticket == ticket
    }

    /// The reservation as clients see it.
    pub fn row(&self, now: Instant) -> ReservationRow {
        let (stage, left) = match self.state {
            State::Kept(until) => (Stage::Kept, until.saturating_duration_since(now)),
            State::Waiting(_) => (Stage::Waiting, self.limit),
            State::Leased(_) => (Stage::Leased, self.limit),
        };
        ReservationRow {
            name: self.name,
            bytes: self.key.bytes,
            pages: self.key.pages,
            node: self.key.node,
            stage,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageKind;

    const KEY: Key = Key::new(64 << 10, PageKind::Small);
    const LIMIT: Duration = Duration::from_millis(50);

    fn asked(name: &str, byte: u8) -> Reservation {
        Reservation {
            name: name.parse().expect("a name"),
            ticket: Ticket::from_bytes([byte; 16]),
            bytes: 1,
            pages: None,
            node: None,
            limit_ms: 50,
        }
    }

    #[test]
    fn a_reservation_lives_until_it_is_left_for_its_time() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let one = asked("a", 1);
        tickets.add(&one, KEY, now);
        let id = tickets.of(one.ticket).expect("there").id;
        assert!(tickets.expire(now).is_none());
        assert_eq!(tickets.next_end(), Some(now + LIMIT));
        tickets.waits(id, 7);
        assert_eq!((tickets.next_end(), tickets.expire(now + 2 * LIMIT).is_none()), (None, true));
        tickets.leased(id, 7);
        assert!(tickets.left(id, now + LIMIT), "it is kept once more");
        assert!(tickets.renew(&one, now + 2 * LIMIT) && !tickets.renew(&asked("a", 2), now));
        assert_eq!(tickets.next_end(), Some(now + 3 * LIMIT));
        assert_eq!(tickets.expire(now + 3 * LIMIT).map(|it| it.id), Some(id));
        assert!(tickets.of(one.ticket).is_none());
        let counts = tickets.counts();
        assert_eq!((counts.reserved, counts.leased, counts.expired, counts.wrong), (1, 1, 1, 1));
    }

    #[test]
    fn one_that_is_released_while_it_is_leased_goes_with_the_lease() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        for (name, byte) in [("a", 1), ("b", 2)] {
            tickets.add(&asked(name, byte), KEY, now);
        }
        let id = tickets.named(asked("a", 1).name).expect("there").id;
        tickets.leased(id, 7);
        assert!(tickets.release(asked("a", 1).name).is_none());
        assert!(tickets.release(asked("b", 2).name).is_some());
        assert!(tickets.release(asked("b", 2).name).is_none());
        assert_eq!(tickets.len(), 1);
        assert!(!tickets.left(id, now));
        assert_eq!(tickets.len(), 0);
        assert_eq!(tickets.counts().released, 2);
    }
}
