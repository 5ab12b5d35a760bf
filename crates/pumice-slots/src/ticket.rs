//! Tickets: a slot is reserved for the client that shows one.
//!
//! Root or the daemon's user reserves a slot and chooses the ticket. It gives the ticket to a program that may lease
//! the slot, which need not be known to the daemon in any other way.

use core::fmt;
use core::str::FromStr;
use std::io;

use crate::{PageKind, SnapshotName};

/// The variable that has a program's tickets, with commas between them.
pub const ENV_TICKET: &str = "PUMICE_SLOT_TICKET";

/// Bytes of a ticket.
pub const TICKET_BYTES: usize = 16;

/// The name of a reservation: of the same letters as a snapshot's.
pub type ReservationName = SnapshotName;

/// A ticket: 128 random bits, as text 32 hexadecimal digits. Comparing two takes the same time whatever they are, and
/// `Debug` shows none.
#[derive(Clone, Copy)]
pub struct Ticket([u8; TICKET_BYTES]);

impl Ticket {
    /// A new one, from the kernel's random numbers.
    ///
    /// # Errors
    /// As getrandom(2).
    #[doc(hidden)]
    pub fn random() -> io::Result<Ticket> {
        let mut bytes = [0; TICKET_BYTES];
        // The kernel gives so few bytes at once, or none.
        let got = rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        })?;
        match got {
            TICKET_BYTES => Ok(Ticket(bytes)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The one of these bytes.
    #[doc(hidden)]
    pub const fn from_bytes(bytes: [u8; TICKET_BYTES]) -> Ticket {
        Ticket(bytes)
    }

    /// Its bytes.
    #[doc(hidden)]
    pub const fn to_bytes(self) -> [u8; TICKET_BYTES] {
        self.0
    }

    /// Reads a list with commas, as [`ENV_TICKET`] has it.
    ///
    /// # Errors
    /// A message, if one of them is none.
    #[doc(hidden)]
    pub fn list(text: &str) -> Result<Vec<Ticket>, &'static str> {
        text.split(',').map(|word| word.trim().parse()).collect()
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        let differing =
            self.0.iter().zip(&other.0).fold(0, |all, (one, other)| all | (one ^ other));
        // The compiler must not find out that it could stop at the first one.
        core::hint::black_box(differing) == 0
    }
}

impl Eq for Ticket {}

impl FromStr for Ticket {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Ticket, &'static str> {
        const EXPECTED: &str = "a ticket has 32 hexadecimal digits";
        let text = text.as_bytes();
        if text.len() != 2 * TICKET_BYTES {
            return Err(EXPECTED);
        }
        let mut bytes = [0; TICKET_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks(2)) {
            for &digit in pair {
                let digit = char::from(digit).to_digit(16).ok_or(EXPECTED)?;
                *byte = *byte << 4 | digit as u8;
            }
        }
        Ok(Ticket(bytes))
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

/// A slot that is to be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its name. A new reservation takes the place of one of the same name.
    pub name: ReservationName,
    /// The ticket that gets the slot.
    pub ticket: Ticket,
    /// Bytes that are needed at least, not 0.
    pub bytes: u64,
    /// The kind of pages, if it matters.
    pub pages: Option<PageKind>,
    /// The memory node, if it matters.
    pub node: Option<u32>,
    /// For how long the slot is kept while nobody has it, in milliseconds, not 0: from now on, and from the end of each
    /// lease on.
    pub limit_ms: u32,
}

pumice_frames::table! {
    /// The stage of a reservation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Stage: &'static str {
        /// Nobody has the slot.
        Kept = 0 => "kept",
        /// A client has shown the ticket and waits until the slot is populated.
        Waiting = 1 => "waiting",
        /// A client has the slot.
        Leased = 2 => "leased",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_read_back() {
        let ticket = Ticket::random().expect("random numbers");
        let text = ticket.to_string();
        assert_eq!((text.len(), text.parse()), (32, Ok(ticket)));
        assert_eq!(text.to_uppercase().parse(), Ok(ticket));
        assert_ne!(Ticket::random().expect("random numbers"), ticket);
        assert_eq!(format!("{ticket:?}"), "Ticket");
        let other = "00112233445566778899aabbccddeeff";
        assert_eq!(Ticket::list(&format!("{text}, {other}")).map(|list| list.len()), Ok(2));
        for bad in ["", "0", &text[1..], &format!("{text}0"), "+0112233445566778899aabbccddeeff"] {
            assert!(Ticket::list(bad).is_err(), "{bad}");
        }
    }
}
