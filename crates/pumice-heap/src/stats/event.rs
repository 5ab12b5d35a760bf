//! The events that are counted.

/// The events that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// requests served
    Requests,
    /// bytes those asked for
    RequestBytes,
    /// requests passed on to the next allocator
    PassedOn,
    /// frames handed out: zero-fill faults the kernel would have taken (if touched)
    Zfod,
    /// of these, frames that were ready and zeroed
    Ozfod,
    /// requests of whose memory the greater part was ready
    Hits,
    /// the other requests served: theirs faults when touched
    Misses,
    /// bytes cleared ahead by scrubd
    ScrubbedBytes,
    /// bytes cleared while a request waited
    HotClearedBytes,
    /// bytes populated ahead
    PopulatedBytes,
    /// bytes given back to the kernel
    GivenBackBytes,
    /// processor time of the helper thread, nanoseconds
    ScrubberNs,
    /// times scrubd held back because others wanted the machine
    ScrubYields,
    /// reallocations that stayed in place
    ReallocInPlace,
    /// reallocations that moved
    ReallocMoved,
    /// forks seen
    Forks,
}

/// Number of [`Event`]s.
pub const EVENTS: usize = 16;

impl Event {
    /// All of them, in the order of the layout.
    pub const ALL: [Event; EVENTS] = [
        Event::Requests,
        Event::RequestBytes,
        Event::PassedOn,
        Event::Zfod,
        Event::Ozfod,
        Event::Hits,
        Event::Misses,
        Event::ScrubbedBytes,
        Event::HotClearedBytes,
        Event::PopulatedBytes,
        Event::GivenBackBytes,
        Event::ScrubberNs,
        Event::ScrubYields,
        Event::ReallocInPlace,
        Event::ReallocMoved,
        Event::Forks,
    ];

    /// The name under which JSON and tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Event::Requests => "requests",
            Event::RequestBytes => "request_bytes",
            Event::PassedOn => "passed_on",
            Event::Zfod => "zfod",
            Event::Ozfod => "ozfod",
            Event::Hits => "hits",
            Event::Misses => "misses",
            Event::ScrubbedBytes => "scrubbed_bytes",
            Event::HotClearedBytes => "hot_cleared_bytes",
            Event::PopulatedBytes => "populated_bytes",
            Event::GivenBackBytes => "given_back_bytes",
            Event::ScrubberNs => "scrubber_ns",
            Event::ScrubYields => "scrub_yields",
            Event::ReallocInPlace => "realloc_in_place",
            Event::ReallocMoved => "realloc_moved",
            Event::Forks => "forks",
        }
    }

    /// A description of the event.
    pub const fn explain(self) -> &'static str {
        match self {
            Event::Requests => "requests served",
            Event::RequestBytes => "bytes those asked for",
            Event::PassedOn => "requests passed on to the next allocator",
            Event::Zfod => {
                "frames handed out: zero-fill faults the kernel would have taken (if touched)"
            }
            Event::Ozfod => "of these, frames that were ready and zeroed",
            Event::Hits => "requests of whose memory the greater part was ready",
            Event::Misses => "the other requests served: theirs faults when touched",
            Event::ScrubbedBytes => "bytes cleared ahead by scrubd",
            Event::HotClearedBytes => "bytes cleared while a request waited",
            Event::PopulatedBytes => "bytes populated ahead",
            Event::GivenBackBytes => "bytes given back to the kernel",
            Event::ScrubberNs => "processor time of the helper thread, nanoseconds",
            Event::ScrubYields => "times scrubd held back because others wanted the machine",
            Event::ReallocInPlace => "reallocations that stayed in place",
            Event::ReallocMoved => "reallocations that moved",
            Event::Forks => "forks seen",
        }
    }
}
