//! Keeps within the part of its quota that a group leaves.
//!
//! A quota is a budget per period (100 ms): the program may lack at a period's end the time that scrubd spent early in
//! it. So no more is taken than a quarter of the time that the group left unused *in its busiest recent period*, none
//! where it left less than a tenth, and none for seconds after it was throttled, by its own fault or not.

use super::sensors::{Quota, LEVELS};
use super::MS;

/// The span over which use is measured: one period.
const PERIOD_NS: u64 = 100 * MS;
/// Rests after throttling double up to this.
const LONGEST_REST_NS: u64 = 16_000 * MS;
const FIRST_REST_NS: u64 = 1_000 * MS;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct QuotaKeeper {
    levels: [Option<Level>; LEVELS],
    checked_ns: Option<u64>,
    own_ns: u64,
    rest_until_ns: u64,
    rest_ns: u64,
    /// Thousandths of a processor that we may use; `None` without a quota.
    share: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    last: Quota,
    /// The most that others in the group used of late, in thousandths of a processor.
    peak: u64,
}

impl QuotaKeeper {
    /// Forgets how busy the group was; the knowledge about throttling stays.
    pub(super) fn forget(&mut self) {
        self.levels = [None; LEVELS];
        self.checked_ns = None;
        self.share = None;
    }

    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns < self.rest_until_ns
            || self.checked_ns.is_none_or(|then| now_ns.saturating_sub(then) >= PERIOD_NS)
            || self.share == Some(0)
    }

    /// Reads the quotas. How long to rest, if so.
    pub(super) fn review(
        &mut self,
        now_ns: u64,
        own_ns: u64,
        mut read: impl FnMut(usize) -> Option<Quota>,
    ) -> Option<u64> {
        if now_ns < self.rest_until_ns {
            return Some(self.rest_until_ns - now_ns);
        }
        let span_ns = self.checked_ns.map(|then| now_ns.saturating_sub(then));
        if span_ns.is_some_and(|span_ns| span_ns < PERIOD_NS) {
            return Some(PERIOD_NS);
        }
        let own_used_ns = own_ns.saturating_sub(self.own_ns);
        (self.checked_ns, self.own_ns) = (Some(now_ns), own_ns);
        let mut share = None::<u64>;
        let mut throttled = false;
        for (index, kept) in self.levels.iter_mut().enumerate() {
            let Some(now) = read(index) else {
                *kept = None;
                break;
            };
            let free = match (&mut *kept, span_ns) {
                (Some(level), Some(span_ns)) => {
                    throttled |= now.throttled > level.last.throttled;
                    level.review(now, own_used_ns, span_ns)
                }
                _ => {
                    // Nothing is known yet: look on for a period first.
                    *kept = Some(Level { last: now, peak: 0 });
                    0
                }
            };
            share = Some(share.map_or(free, |least| least.min(free)));
        }
        self.share = share;
        if throttled {
            self.rest_ns = (self.rest_ns * 2).clamp(FIRST_REST_NS, LONGEST_REST_NS);
            self.rest_until_ns = now_ns + self.rest_ns;
            return Some(self.rest_ns);
        }
        self.rest_ns -= self.rest_ns / 64;
        (share == Some(0)).then_some(PERIOD_NS)
    }

    /// How long to pause after working for `took_ns`.
    pub(super) fn pause_ns(&self, took_ns: u64) -> u64 {
        match self.share {
            None => 0,
            Some(share) => took_ns.saturating_mul(1000) / share.clamp(1, 1000) - took_ns,
        }
    }
}

impl Level {
    /// The part of the quota that we may use, in thousandths of a processor.
    fn review(&mut self, now: Quota, own_used_ns: u64, span_ns: u64) -> u64 {
        let used_ns = now.used_ns.saturating_sub(self.last.used_ns).saturating_sub(own_used_ns);
        let used = used_ns.saturating_mul(1000) / span_ns.max(1);
        self.last = now;
        // A peak is half forgotten after seven periods.
        self.peak = used.max(self.peak - self.peak / 10);
        let unused = now.limit.saturating_sub(self.peak);
        if unused < now.limit / 10 {
            0
        } else {
            unused / 4
        }
    }
}
