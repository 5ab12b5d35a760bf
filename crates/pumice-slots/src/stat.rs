//! The counters of a daemon, under the names that its metrics have.
//!
//! A `Stat` reply is the values in the order of [`Counter::ALL`]. New counters are added at the end: a client
//! takes as many as it knows.

/// Upper bounds of the wait times' histogram, in microseconds; a last bucket has the longer ones.
pub const WAIT_BOUNDS_US: [u64; 11] =
    [50, 100, 200, 500, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000];

/// Buckets of the histogram.
pub const WAIT_BUCKETS: usize = WAIT_BOUNDS_US.len() + 1;

pumice_frames::table! {
    /// One number of a daemon's. All but the gauges among them only grow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Counter: &'static str {
        /// Leases granted.
        Granted => "granted_total",
        /// Leases ended.
        Ended => "ended_total",
        /// Leases taken over from a daemon that was there before.
        Resumed => "resumed_total",
        /// Slots populated.
        Populated => "populated_total",
        /// Bytes populated.
        PopulatedBytes => "populated_bytes_total",
        /// Bytes of those that are in transparent huge pages.
        HugeBytes => "populated_huge_bytes_total",
        /// Processor time that populating took, in nanoseconds.
        PopulateCpuNs => "populate_cpu_ns_total",
        /// Times that populating rested because others wanted the machine.
        Yields => "populate_yields_total",
        /// Times that a slot could not be populated.
        PopulateFailures => "populate_failures_total",
        /// Messages that could not be read.
        RefusedMalformed => "refused_malformed_total",
        /// Requests of peers that may not lease.
        RefusedNotAllowed => "refused_not_allowed_total",
        /// Requests beyond a user's quota.
        RefusedQuota => "refused_quota_total",
        /// Requests larger than any slot.
        RefusedTooLarge => "refused_too_large_total",
        /// Requests that found none ready and did not want to wait.
        RefusedNoneReady => "refused_none_ready_total",
        /// Requests whose wait was over.
        RefusedTimedOut => "refused_timed_out_total",
        /// Connections and requests above the number that is held at a time.
        RefusedBusy => "refused_busy_total",
        /// Requests while the daemon was ending.
        RefusedDraining => "refused_draining_total",
        /// Requests refused for other reasons.
        RefusedOther => "refused_other_total",
        /// Connections at present.
        Connections => "connections",
        /// Requests waiting at present.
        Waiting => "waiting",
        /// Leases at present.
        Leased => "leased",
        /// Bytes leased at present.
        LeasedBytes => "leased_bytes",
        /// Slots ready at present.
        Ready => "ready",
        /// Bytes ready at present.
        ReadyBytes => "ready_bytes",
        /// Slots being populated at present.
        Populating => "populating",
        /// Time that granted requests waited, in microseconds.
        WaitSumUs => "wait_us_sum",
        /// Leases granted before another user's earlier request, as that user had had more.
        OutOfOrder => "granted_out_of_order_total",
        /// Requests that found a slot ready and did not get it at once, as their user had ended its share.
        HeldBack => "held_back_total",
    }
}

impl Counter {
    /// The name in JSON; metrics have `pumice_slots_` before it.
    pub const fn name(self) -> &'static str {
        self.row()
    }

    /// Whether it may fall.
    pub const fn is_gauge(self) -> bool {
        matches!(
            self,
            Counter::Connections
                | Counter::Waiting
                | Counter::Leased
                | Counter::LeasedBytes
                | Counter::Ready
                | Counter::ReadyBytes
                | Counter::Populating
        )
    }
}
