//! The daemon's numbers: one for each [`Counter`], and the histogram of wait times.

use std::time::Duration;

use crate::refusal::Reason;
use crate::stat::{Counter, WAIT_BOUNDS_US, WAIT_BUCKETS};

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Census {
    counters: [u64; Counter::ALL.len()],
    waits: [u64; WAIT_BUCKETS],
}

impl Default for Census {
    fn default() -> Census {
        Census { counters: [0; Counter::ALL.len()], waits: [0; WAIT_BUCKETS] }
    }
}

impl Census {
    /// The value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Another value.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// So many more.
    pub fn add(&mut self, counter: Counter, more: u64) {
        self.counters[counter as usize] += more;
    }

    /// A grant, and how long the request waited for it.
    pub fn granted(&mut self, waited: Duration) {
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let bucket = WAIT_BOUNDS_US.iter().position(|&bound_us| waited_us <= bound_us);
        self.waits[bucket.unwrap_or(WAIT_BUCKETS - 1)] += 1;
        self.add(Counter::WaitSumUs, waited_us);
        self.add(Counter::Granted, 1);
    }

    /// A refusal.
    pub fn refused(&mut self, reason: Reason) {
        self.add(
            match reason {
                Reason::Malformed | Reason::Version => Counter::RefusedMalformed,
                Reason::NotAllowed | Reason::NotYours | Reason::NoSuchTicket => {
                    Counter::RefusedNotAllowed
                }
                Reason::Quota => Counter::RefusedQuota,
                Reason::TooLarge => Counter::RefusedTooLarge,
                Reason::NoneReady | Reason::NoneFree => Counter::RefusedNoneReady,
                Reason::TimedOut => Counter::RefusedTimedOut,
                Reason::Busy => Counter::RefusedBusy,
                Reason::Draining => Counter::RefusedDraining,
                Reason::NoSuchPages
                | Reason::OutOfTurn
                | Reason::NotASlot
                | Reason::NoMemory
                | Reason::NoSuchSnapshot
                | Reason::TicketInUse => Counter::RefusedOther,
            },
            1,
        );
    }

    /// The buckets of the histogram.
    pub fn waits(&self) -> &[u64; WAIT_BUCKETS] {
        &self.waits
    }

    /// All of it in the order of a `Stat` reply.
    pub fn values(&self) -> Vec<u64> {
        self.counters.iter().chain(&self.waits).copied().collect()
    }
}
