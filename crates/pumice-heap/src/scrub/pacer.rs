//! The governor for work outside a served program: the daemon's threads that populate slots.

use core::time::Duration;

use super::governor::{Governor, Limits, Manner, Procfs, Verdict};
use super::helper::Descriptors;
use super::Need;
use pumice_frames::addr::BLOCK_SIZE;

/// Decides when a thread under `SCHED_IDLE` may work in the background, burst by burst. It belongs to the
/// thread that made it, and reads files under `/proc` and of the process's control groups.
#[derive(Debug)]
pub struct Pacer {
    governor: Governor<Procfs>,
}

/// The user's limits.
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
        let sensors = Procfs::new(Descriptors::Own);
        Pacer { governor: Governor::new(sensors, Manner::Populate) }
    }

    /// To be called after a long sleep: readings from before it say nothing about now.
    pub fn wake(&mut self) {
        self.governor.wake();
    }

    /// Asks before a burst: how long to rest before asking again, `None` for not at all.
    pub fn ask(&mut self, limits: PaceLimits) -> Option<Duration> {
        match self.governor.ask(&limits.into(), Need::Wanted) {
            Verdict::Go => None,
            Verdict::Rest(rest_ns) => Some(Duration::from_nanos(rest_ns)),
        }
    }

    /// How much the burst may be that was asked for: where every processor is taken, the thread that runs there waits
    /// for all of it.
    pub fn most_bytes(&self) -> usize {
        match self.governor.is_full() {
            true => BLOCK_SIZE,
            false => usize::MAX,
        }
    }

    /// How long to pause after a burst that populated `bytes` in `took`.
    pub fn pause_after(&mut self, bytes: usize, took: Duration, limits: PaceLimits) -> Duration {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.governor.pause_after(bytes, took_ns, &limits.into()))
    }
}
