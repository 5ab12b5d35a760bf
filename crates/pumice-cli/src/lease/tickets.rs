//! The slots that are reserved for a program: it shows the tickets that its environment or an option has.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use pumice_command::Failure;
use pumice_slots::refusal::{size, Reason};
use pumice_slots::ticket::ENV_TICKET;
use pumice_slots::{Client, Error, Lease, PageKind, Ticket};

/// How often tickets are shown again whose slots are all leased: those of a container that has just ended.
const SHOW_AGAIN: Duration = Duration::from_millis(50);

/// Reads tickets with commas between them.
pub fn parse(text: &str) -> Result<Tickets, String> {
    Ok(Tickets(Ticket::list(text)?))
}

/// Tickets, of which the first serves whose slot nobody has.
#[derive(Clone, Debug)]
pub struct Tickets(Vec<Ticket>);

impl Tickets {
    /// Those of the environment, if it has any.
    pub fn of_environment() -> Result<Option<Tickets>, Failure> {
        let Some(text) = env::var_os(ENV_TICKET).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let tickets = parse(text.to_str().unwrap_or_default());
        let bad = |why: String| Failure::usage(format!("{ENV_TICKET} can't be read: {why}"));
        tickets.map(Some).map_err(bad)
    }

    /// Leases the slot of one of them.
    pub fn lease(&self, client: &Client, wait: Duration) -> Result<Lease, Error> {
        let until = Instant::now() + wait;
        loop {
            let mut in_use = None;
            for &ticket in &self.0 {
                let left = until.saturating_duration_since(Instant::now());
                match client.lease_ticket(ticket, left) {
                    Err(Error::Refused(refusal)) if refusal.reason == Reason::TicketInUse => {
                        in_use = Some(Error::Refused(refusal));
                    }
                    outcome => return outcome,
                }
            }
            // A list has one ticket at least.
            if let Some(error) = in_use.filter(|_| Instant::now() >= until) {
                return Err(error);
            }
            thread::sleep(SHOW_AGAIN);
        }
    }
}

/// Checks that the slot is as it was asked for.
pub fn check(lease: &Lease, bytes: Option<u64>, pages: Option<PageKind>) -> Result<(), Failure> {
    if let Some(bytes) = bytes.filter(|&bytes| bytes > lease.bytes()) {
        let (bytes, there) = (size(bytes), size(lease.bytes()));
        return Err(Failure::usage(format!(
            "the ticket's slot has {there}, less than {bytes}; ask for less, or have a larger one reserved"
        )));
    }
    match pages.filter(|&pages| pages != lease.pages()) {
        Some(pages) => {
            let there = lease.pages();
            Err(Failure::usage(format!("the ticket's slot has {there} pages, and not {pages}")))
        }
        None => Ok(()),
    }
}
