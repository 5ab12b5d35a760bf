//! A daemon's no, its reasons, and the words for them.

/// A daemon's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Bytes that the reason is about: the quota where that is it, else 0.
    pub limit_bytes: u64,
    /// The sizes there are, in bytes, where that helps.
    pub sizes: Vec<u64>,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason.explain())?;
        if self.reason == Reason::Quota {
            write!(f, " ({})", size(self.limit_bytes))?;
        }
        if !self.sizes.is_empty() {
            let sizes: Vec<_> = self.sizes.iter().map(|&bytes| size(bytes)).collect();
            write!(f, "; there are slots of {}", sizes.join(", "))?;
        } else if matches!(self.reason, Reason::TooLarge | Reason::NoSuchPages) {
            f.write_str("; there are no slots at all")?;
        }
        Ok(())
    }
}

pumice_frames::table! {
    /// Why a daemon says no, in words, with a remedy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u16)]
    pub enum Reason {
        /// the daemon could not read the request
        Malformed = 1,
        /// the daemon speaks another version of the protocol; install the same pumice
        Version = 2,
        /// you may not lease here; 'pumice serve --allow user:NAME' lets a user
        NotAllowed = 3,
        /// this would be more than your quota; end another lease first
        Quota = 4,
        /// this is larger than any slot
        TooLarge = 5,
        /// there are no slots of that size and kind of pages
        NoSuchPages = 6,
        /// no such slot is ready; 'pumice slots' lists them, '--wait 1m' waits
        NoneReady = 7,
        /// no such slot became ready in time; 'pumice slots' lists them
        TimedOut = 8,
        /// the daemon has as many connections or requests of yours as it takes at a time
        Busy = 9,
        /// the daemon is ending and grants nothing more
        Draining = 10,
        /// the connection is not in a state for this request
        OutOfTurn = 11,
        /// the descriptor is no slot
        NotASlot = 12,
        /// only root and the daemon's own user may do this
        NotYours = 13,
        /// the machine has not enough free memory for it now
        NoMemory = 14,
        /// the daemon has no snapshot of that name; 'pumice slots' lists them
        NoSuchSnapshot = 15,
        /// no slot is reserved for this ticket: it is wrong, or its time is over
        NoSuchTicket = 16,
        /// the slot of this ticket is leased already
        TicketInUse = 17,
        /// all such slots are leased or reserved; 'pumice slots' lists them
        NoneFree = 18,
    }
}

/// A size as it would be typed.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_can_be_typed() {
        for bytes in [0, 1, 4096, 5 << 20, 3 << 30, 1 << 40, (1 << 30) + 1] {
            assert_eq!(pumice_heap::config::parse_size(&size(bytes)), Some(bytes as usize));
        }
    }

    #[test]
    fn a_refusal_names_the_sizes() {
        let refusal = Refusal { reason: Reason::TooLarge, limit_bytes: 0, sizes: vec![1 << 30] };
        assert!(refusal.to_string().ends_with("there are slots of 1G"));
    }
}
