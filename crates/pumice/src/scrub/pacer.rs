//! The governor for work outside a served program: the daemon's threads that populate slots.

use core::time::Duration;

use super::governor::{Governor, Limits, Procfs, Verdict};
use super::helper::Descriptors;
use super::Need;

/// A burst after the longest of rests is one that trickles through a full machine: it is followed by so
/// many times its own length. (A page that the host has to bring takes milliseconds, not 100 µs.)
const PAUSE_WHERE_FULL: u32 = 60;
/// What counts as such a rest.
const LONG_REST: Duration = Duration::from_millis(32);

/// Decides when a thread may work in the background, burst by burst. It belongs to the thread that made
/// it, and reads files under `/proc` and of the process's control groups.
#[derive(Debug)]
pub struct Pacer {
    governor: Governor<Procfs>,
    is_full: bool,
}

/// What the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceLimits {
    /// Load average above which nothing is done, in hundredths; 0 for none.
    pub load_hundredths: u64,
    /// Frames a second; 0 for no limit.
    pub rate_pages_per_s: u64,
}

impl From<PaceLimits> for Limits {
    fn from(limits: PaceLimits) -> Limits {
        Limits {
            load_hundredths: limits.load_hundredths,
            rate_pages_per_s: limits.rate_pages_per_s,
        }
    }
}

impl Pacer {
    /// For the calling thread.
    #[allow(clippy::new_without_default, reason = "it opens files, and is for one thread")]
    pub fn new() -> Pacer {
        Pacer { governor: Governor::new(Procfs::new(Descriptors::Own)), is_full: false }
    }

    /// To be called after a long sleep: what was seen before it says nothing about now.
    pub fn wake(&mut self) {
        self.governor.wake();
        self.is_full = false;
    }

    /// Asks before a burst: how long to rest before asking again, `None` for not at all.
    pub fn ask(&mut self, limits: PaceLimits) -> Option<Duration> {
        match self.governor.ask(&limits.into(), Need::Wanted) {
            Verdict::Go => None,
            Verdict::Rest(rest_ns) => {
                let rest = Duration::from_nanos(rest_ns);
                self.is_full = rest >= LONG_REST;
                Some(rest)
            }
        }
    }

    /// How long to pause after a burst that populated `bytes` in `took`.
    pub fn pause_after(&mut self, bytes: usize, took: Duration, limits: PaceLimits) -> Duration {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let pause_ns = self.governor.pause_after(bytes, took_ns, &limits.into());
        let least = if self.is_full { took * PAUSE_WHERE_FULL } else { Duration::ZERO };
        self.is_full = false;
        Duration::from_nanos(pause_ns).max(least)
    }
}
