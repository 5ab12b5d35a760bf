//! The tickets that were given out, and the conversation with the daemon.
//!
//! The daemon has the reservations and keeps their time. This has the tickets besides, for as long as they may be
//! shown: a daemon that is started anew is told of them ([`Ledger::look`]). One lock is held during each conversation,
//! so that an old ticket is never told in place of a new one.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pumice_slots::message::{ReservationRow, MAX_WAIT_MS};
use pumice_slots::refusal::Reason;
use pumice_slots::ticket::{Reservation, ReservationName, Stage};
use pumice_slots::{Client, Error, Ticket};

use crate::devices::{self, Device, Inventory, Kind};
use crate::store::Store;

/// How long a device's slot may take to be free that the kubelet says is free: its last pod's connection has been
/// closed, and the daemon may not have read that.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked for meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// A reservation that the daemon has no more and that had so little time left has expired there.
const EXPIRED_EARLY: Duration = Duration::from_millis(500);

/// See the module's text.
#[derive(Debug)]
pub struct Ledger {
    client: Client,
    store: Store,
    limit: Duration,
    state: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    tickets: HashMap<ReservationName, Held>,
    /// Slots that clients without tickets had when the daemon was last asked.
    strangers: HashMap<Kind, u32>,
    inventory: Inventory,
}

/// A ticket that may be shown.
#[derive(Debug)]
struct Held {
    reservation: Reservation,
    /// Until when the daemon keeps it, as far as is known.
    until: Instant,
    /// Since when the kubelet's list has no pod with the device.
    unlisted: Option<Instant>,
}

impl Ledger {
    /// Of the daemon of this client, with the tickets that a process before has stored. Slots are kept for so long for
    /// tickets that nobody shows.
    ///
    /// # Errors
    /// The stored tickets can't be read.
    pub fn new(client: Client, store: Store, limit: Duration) -> io::Result<Ledger> {
        let until = Instant::now() + limit;
        let held = |reservation| Held { reservation, until, unlisted: None };
        let tickets = store.read()?.into_iter().map(|it| (it.name, held(it))).collect();
        let state = Mutex::new(Given { tickets, ..Given::default() });
        Ok(Ledger { client, store, limit, state })
    }

    /// How many tickets may be shown.
    pub fn len(&self) -> usize {
        self.state().tickets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reserves a device's slot, and gives up the ticket that was given out for the device before.
    ///
    /// # Errors
    /// A message: the daemon is gone, or has no slot for the device.
    pub fn give(&self, device: &Device) -> Result<Ticket, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.reserve(device) {
                Ok(ticket) => return Ok(ticket),
                Err(Error::Refused(refusal))
                    if may_pass(refusal.reason) && Instant::now() < until =>
                {
                    thread::sleep(ASK_AGAIN);
                }
                Err(error) => {
                    self.forget_after(&error, device);
                    return Err(format!("{}: {error}", device.name));
                }
            }
        }
    }

    fn reserve(&self, device: &Device) -> Result<Ticket, Error> {
        let limit_ms = self.limit.as_millis().clamp(1, MAX_WAIT_MS.into()) as u32;
        let ticket = Ticket::random()?;
        let kind = device.kind;
        let reservation = Reservation {
            name: device.name,
            ticket,
            bytes: kind.bytes,
            pages: Some(kind.pages),
            node: kind.node,
            limit_ms,
        };
        let mut state = self.state();
        self.client.reserve(&reservation)?;
        let held = Held { reservation, until: Instant::now() + self.limit, unlisted: None };
        state.tickets.insert(device.name, held);
        self.save(&state);
        Ok(ticket)
    }

    /// The daemon has given the device's ticket of before up, and has no slot for another.
    fn forget_after(&self, error: &Error, device: &Device) {
        let Error::Refused(refusal) = error else { return };
        let mut state = self.state();
        if refusal.reason == Reason::NoneFree && state.tickets.remove(&device.name).is_some() {
            self.save(&state);
        }
    }

    /// Gives up a ticket that nobody was told of.
    pub fn take_back(&self, device: &Device) {
        let mut state = self.state();
        if state.tickets.remove(&device.name).is_some() {
            // A daemon that is gone has none.
            let _ = self.client.release(device.name);
            self.save(&state);
        }
    }

    /// Asks the daemon for its slots, and tells it of tickets that it should have and has not.
    ///
    /// # Errors
    /// The daemon is gone, or refuses: it takes reservations of root and its own user only.
    pub fn look(&self) -> Result<Inventory, Error> {
        let mut state = self.state();
        let classes = self.client.classes()?;
        let mut rows = self.client.reservations()?;
        let count = state.tickets.len();
        if self.tell_again(&mut state, &rows) {
            rows = self.client.reservations()?;
        }
        if state.tickets.len() != count {
            self.save(&state);
        }
        let now: HashMap<_, _> =
            classes.iter().map(|it| (Kind::of(it), devices::strangers(it, &rows))).collect();
        // A lease that ends looks like a stranger's for a moment.
        let before = std::mem::replace(&mut state.strangers, now);
        let strangers = |kind| {
            let both = before.get(&kind).zip(state.strangers.get(&kind));
            both.map_or(0, |(before, now)| *before.min(now))
        };
        let inventory = Inventory::new(&classes, &rows, strangers);
        state.inventory = inventory.clone();
        Ok(inventory)
    }

    /// The devices that there were when the daemon was last asked.
    pub fn last_seen(&self) -> Inventory {
        self.state().inventory.clone()
    }

    /// Releases tickets of devices that no pod has had for so long, as the kubelet says. Returns how many.
    pub fn release_unlisted(&self, listed: &HashSet<String>, grace: Duration) -> usize {
        let (now, mut state) = (Instant::now(), self.state());
        let mut gone = Vec::new();
        for (&name, held) in &mut state.tickets {
            if listed.contains(name.as_str()) {
                held.unlisted = None;
            } else if now.duration_since(*held.unlisted.get_or_insert(now)) >= grace {
                gone.push(name);
            }
        }
        gone.retain(|&name| self.client.release(name).is_ok());
        for name in &gone {
            state.tickets.remove(name);
        }
        if !gone.is_empty() {
            self.save(&state);
        }
        gone.len()
    }

    /// Returns whether the daemon was told of any ticket.
    fn tell_again(&self, state: &mut Given, rows: &[ReservationRow]) -> bool {
        let now = Instant::now();
        let rows: HashMap<_, _> = rows.iter().map(|row| (row.name, row)).collect();
        let mut is_told = false;
        state.tickets.retain(|name, held| match rows.get(name) {
            Some(row) => {
                let left = match row.stage {
                    Stage::Kept => Duration::from_millis(row.left_ms),
                    Stage::Waiting | Stage::Leased => self.limit,
                };
                held.until = now + left;
                true
            }
            None if held.until < now + EXPIRED_EARLY => false,
            None => {
                // Where it is refused, it is told once more as long as it has time.
                is_told |= self.client.reserve(&held.reservation).is_ok();
                true
            }
        });
        is_told
    }

    /// Stores the tickets. A full disk keeps no pod from its slot.
    fn save(&self, state: &Given) {
        let all = state.tickets.values().map(|held| &held.reservation);
        if let Err(error) = self.store.write(all) {
            let path = self.store.path().display();
            eprintln!("pumice-kubelet: can't write {path}: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, Given> {
        // Each change is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a refusal may be over in a moment.
fn may_pass(reason: Reason) -> bool {
    matches!(reason, Reason::TicketInUse | Reason::NoneFree)
}
