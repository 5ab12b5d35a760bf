//! The events that are counted.

pumice_frames::table! {
    /// The events that are counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum Event: &'static str {
        /// requests served
        Requests => "requests",
        /// bytes of these requests
        RequestBytes => "request_bytes",
        /// requests passed on to the next allocator
        PassedOn => "passed_on",
        /// frames handed out: zero-fill faults the kernel would have taken (if touched)
        Zfod => "zfod",
        /// of these, frames that were ready and zeroed
        Ozfod => "ozfod",
        /// requests with most of their memory ready
        Hits => "hits",
        /// the other requests served: their memory faults when touched
        Misses => "misses",
        /// bytes cleared ahead by scrubd
        ScrubbedBytes => "scrubbed_bytes",
        /// bytes cleared while a request waited
        HotClearedBytes => "hot_cleared_bytes",
        /// bytes populated ahead
        PopulatedBytes => "populated_bytes",
        /// bytes given back to the kernel
        GivenBackBytes => "given_back_bytes",
        /// processor time of the helper thread, nanoseconds
        ScrubberNs => "scrubber_ns",
        /// times scrubd yielded to other programs
        ScrubYields => "scrub_yields",
        /// reallocations that stayed in place
        ReallocInPlace => "realloc_in_place",
        /// reallocations that moved
        ReallocMoved => "realloc_moved",
        /// forks seen
        Forks => "forks",
    }
}

/// Number of [`Event`]s.
pub const EVENTS: usize = Event::ALL.len();

impl Event {
    /// The name under which JSON and tables show it.
    pub const fn name(self) -> &'static str {
        self.row()
    }
}
