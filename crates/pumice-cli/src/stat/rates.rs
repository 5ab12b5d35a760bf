//! How fast counters move between two samples.

use std::time::Duration;

use pumice_heap::stats::Event;
use serde::Serialize;

use super::sample::{share, Process};

/// Of one program, over some time; in JSON, added to its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Requests served.
    pub requests_per_s: f64,
    /// Frames handed out.
    pub zfod_per_s: f64,
    /// Bytes zeroed ahead.
    pub scrubbed_bytes_per_s: f64,
    /// Bytes zeroed while a request waited.
    pub hot_cleared_bytes_per_s: f64,
    /// Processor time of the helper threads: 1 is one processor.
    pub scrubber_cpu: f64,
    /// As [`Process::hit_rate`], of this time's requests.
    pub recent_hit_rate: Option<f64>,
}

impl Rates {
    /// `None` where the earlier sample is not of the same program: a counter went back.
    pub fn between(before: &Process, now: &Process, elapsed: Duration) -> Option<Rates> {
        let new = |event: Event| now.event(event).checked_sub(before.event(event));
        let per_s = |event: Event| {
            let count = new(event)? as f64;
            (!elapsed.is_zero()).then(|| count / elapsed.as_secs_f64())
        };
        let (hits, misses) = (new(Event::Hits)?, new(Event::Misses)?);
        Some(Rates {
            requests_per_s: per_s(Event::Requests)?,
            zfod_per_s: per_s(Event::Zfod)?,
            scrubbed_bytes_per_s: per_s(Event::ScrubbedBytes)?,
            hot_cleared_bytes_per_s: per_s(Event::HotClearedBytes)?,
            scrubber_cpu: per_s(Event::ScrubberNs)? / 1e9,
            recent_hit_rate: share(hits, hits.saturating_add(misses)),
        })
    }
}
