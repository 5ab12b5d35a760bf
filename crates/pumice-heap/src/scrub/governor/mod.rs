//! Decides when scrubd may work and how much: so little that nobody else notices.
//!
//! Nothing else does that: a low priority counts only among threads of the same session and group
//! (the scheduler shares a processor between groups first), says nothing about memory bandwidth,
//! eats a quota as any thread does, and makes a program slow to end (see [`crate::scrub`]).
//!
//! | watched | how often | consequence |
//! |---|---|---|
//! | threads that run or are ready, in the whole system | each burst | none besides us, or the served program's one: no pauses; one or more: a pause of [`PAUSE_BESIDE_OTHERS`] times the burst; as many as processors, or any where nobody asks for zeros: rest, 1 to 64 ms, and one burst between two of the longest rests |
//! | bandwidth: the burst's own time against the best seen | each burst | a pause as long as its delay |
//! | own and group's run-queue wait, CPU pressure | 20 ms | risen above their level while we rest: rest, 20 ms to 1.3 s |
//! | idle time of the processors we may use, where they are not all | 100 ms | under a quarter of one: rest |
//! | quota | 100 ms | [`quota`] |
//! | load average, rate | each burst | as set |
//!
//! Threads that populate slots under `SCHED_IDLE`, in a process of their own, go by the same rows with other numbers
//! ([`Manner::Populate`]). Beside others they are held to a bandwidth, since the kernel's zeroing has no more to it.
//! On a full machine they go on, with pauses of [`PAUSE_WHERE_FULL`] times the processor time of a burst: their own
//! wait for a processor is nobody's loss, and neither that nor the pressure which it causes makes them rest.
//!
//! The first row does nearly all of the work: it is exact, costs 1.5 µs, and reacts within a burst, where averages
//! take seconds. The others see conditions that it can't: a neighbour on the only processors we may use, a group's
//! limit, somebody outside this virtual machine.
//!
//! A governor owns no thread and reads the world through [`Sensors`], so tests drive it by hand.

mod cgroup;
mod procfs;
mod quota;
mod sensors;

pub(super) use procfs::Procfs;
pub(super) use sensors::Sensors;

use super::Need;
use pumice_frames::addr::FRAME_SIZE;
use quota::QuotaKeeper;
use sensors::Waits;

const MS: u64 = 1_000_000;

/// Pauses beside a neighbour, in burst lengths. A thread that streams through memory lost 3 to 4 %
/// to a scrubber at 4 to 5 GB/s, 1 % at 3, on a machine that clears 22 GB/s; elsewhere 22 % at 40
/// GB/s, 5 to 7 % at 10, 4 % at 6.5.
const PAUSE_BESIDE_OTHERS: u64 = 4;
/// Bytes a second that are populated beside a neighbour at most. The kernel zeroes through the cache: a thread
/// that streams through memory lost 6 % to populating at 0.9 GiB/s.
const POPULATED_BESIDE_OTHERS: u64 = 512 << 20;
/// Pauses of threads that populate on a full machine, in processor time of the burst: 1 % of one processor. The
/// content that a burst pushes out of its caches costs as much again at most.
const PAUSE_WHERE_FULL: u64 = 99;
/// How often it is looked meanwhile whether the machine is still full.
const LOOK_WHERE_FULL_NS: u64 = 8 * MS;
/// Share of the last span, in thousandths, that makes a runnable thread the served program's, which
/// loses the bandwidth and gets the memory.
const OWN_SHARE: u64 = 500;
/// The span for that: the kernel counts the time of a running thread at clock ticks.
const OWN_SPAN_NS: u64 = 10 * MS;
/// Looks in a row that must find nobody before pauses end.
const CALM_LOOKS: u32 = 2;
/// How often the slow sensors are read, and the span over which they are judged.
const WINDOW_NS: u64 = 20 * MS;
/// The span of the coarsest sensor, which counts in hundredths of a second.
const IDLE_WINDOW_NS: u64 = 100 * MS;
/// Share of a window, in thousandths, by which waiting may rise while we work.
const WAIT_RISE: u64 = 50;
/// Share of a window, in thousandths, that we may have waited ourselves.
const OWN_WAIT: u64 = 200;
/// Idle time that must be there, in thousandths of one processor.
const IDLE_FLOOR: u64 = 250;
/// The load average changes every 5 s.
const LOAD_REST_NS: u64 = 1_000 * MS;
/// Pauses shorter than this cost more than they give.
const SHORTEST_PAUSE_NS: u64 = 10_000;

/// The user's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Load average above which nothing is done, in hundredths; 0 for none.
    pub(super) load_hundredths: u64,
    /// Frames a second; 0 for no limit.
    pub(super) rate_pages_per_s: u64,
}

/// The kind of work that is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// scrubd's: it has the priority of the program that it is part of.
    Scrub,
    /// A daemon's, under `SCHED_IDLE`, which the kernel zeroes for.
    Populate,
}

/// Whether the next burst may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Now.
    Go,
    /// Not for so many nanoseconds; ask again then.
    Rest(u64),
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Governor<S> {
    sensors: S,
    manner: Manner,
    /// Our processor time when a burst on a full machine was begun.
    full_since_ns: Option<u64>,
    /// No other burst on a full machine before this.
    full_until_ns: u64,
    pace: Pace,
    crowded: Backoff,
    noticed: Backoff,
    no_idle: Backoff,
    last: Option<Look>,
    last_idle: Option<(u64, u64, u64)>,
    /// When the program's processor time was last looked at, and its value.
    last_program: (u64, u64),
    /// Whether it had its share of the time before that.
    program_runs: bool,
    resting: Rates,
    bytes_since_look: u64,
    quota: QuotaKeeper,
}

/// The slow sensors at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at_ns: u64,
    waits: Waits,
}

/// Shares of time, in thousandths: how long others wait while we rest.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    group_wait: u64,
    pressure: u64,
}

impl<S: Sensors> Governor<S> {
    pub(super) fn new(sensors: S, manner: Manner) -> Governor<S> {
        Governor {
            sensors,
            manner,
            full_since_ns: None,
            full_until_ns: 0,
            pace: Pace::default(),
            crowded: match manner {
                Manner::Scrub => Backoff::new(MS, 64 * MS),
                // Long enough to tell a full machine from one on which something runs for a moment.
                Manner::Populate => Backoff::new(MS, 4 * MS),
            },
            noticed: Backoff::new(WINDOW_NS, 64 * WINDOW_NS),
            no_idle: Backoff::new(IDLE_WINDOW_NS, 16 * IDLE_WINDOW_NS),
            last: None,
            last_idle: None,
            last_program: (0, 0),
            program_runs: false,
            resting: Rates::default(),
            bytes_since_look: 0,
            quota: QuotaKeeper::default(),
        }
    }

    /// To be called after a long sleep: readings from before it say nothing about now.
    pub(super) fn wake(&mut self) {
        self.sensors.refresh();
        self.pace.calm_looks = 0;
        self.last = None;
        self.last_idle = None;
        self.bytes_since_look = 0;
        (self.full_since_ns, self.full_until_ns) = (None, 0);
        self.quota.forget();
    }

    /// Asks before each burst.
    pub(super) fn ask(&mut self, limits: &Limits, need: Need) -> Verdict {
        if limits.load_hundredths != 0 && self.sensors.load_hundredths() > limits.load_hundredths {
            return Verdict::Rest(LOAD_REST_NS);
        }
        let others = self.sensors.others_runnable();
        let most = if need == Need::Spare { 1 } else { self.sensors.processors() };
        if others.is_some_and(|others| others >= most) {
            self.pace.calm_looks = 0;
            let now_ns = self.sensors.now_ns();
            let left_ns = self.full_until_ns.saturating_sub(now_ns);
            if left_ns > 0 {
                return Verdict::Rest(left_ns.min(LOOK_WHERE_FULL_NS));
            }
            if !self.crowded.is_trickling() {
                return Verdict::Rest(self.crowded.next());
            }
            self.full_since_ns = Some(self.sensors.cpu_time_ns());
            return self.review_quota(now_ns).map_or(Verdict::Go, Verdict::Rest);
        }
        self.full_since_ns = None;
        self.crowded.reset();
        let now_ns = self.sensors.now_ns();
        let is_own = others == Some(1) && self.own_program_runs(now_ns);
        self.pace.note_others(others, is_own);
        match self.review(now_ns) {
            Some(rest_ns) => Verdict::Rest(rest_ns),
            None => Verdict::Go,
        }
    }

    /// Whether about one thread's worth of time goes to our own process.
    fn own_program_runs(&mut self, now_ns: u64) -> bool {
        let (then_ns, before_ns) = self.last_program;
        let span_ns = now_ns.saturating_sub(then_ns);
        if span_ns >= OWN_SPAN_NS {
            let program_ns = self.sensors.program_ns();
            self.program_runs = rate(Some(before_ns), Some(program_ns), span_ns) >= OWN_SHARE;
            self.last_program = (now_ns, program_ns);
        }
        self.program_runs
    }

    /// How long to pause after a burst that cleared `bytes` in `took_ns`.
    pub(super) fn pause_after(&mut self, bytes: usize, took_ns: u64, limits: &Limits) -> u64 {
        self.bytes_since_look += bytes as u64;
        let polite_ns = match (self.manner, self.full_since_ns) {
            (Manner::Scrub, _) => self.pace.pause_ns(bytes as u64, took_ns),
            (Manner::Populate, None) => self.pace.bandwidth_pause_ns(bytes as u64, took_ns),
            (Manner::Populate, Some(then_ns)) => {
                let used_ns = self.sensors.cpu_time_ns().saturating_sub(then_ns);
                let pause_ns = used_ns.saturating_mul(PAUSE_WHERE_FULL);
                // Not a pause: it ends when a processor is idle.
                self.full_until_ns = self.sensors.now_ns().saturating_add(pause_ns);
                0
            }
        };
        let quota_ns = self.quota.pause_ns(took_ns);
        let rate_ns = match limits.rate_pages_per_s {
            0 => 0,
            rate => {
                let due_ns = (bytes / FRAME_SIZE) as u128 * 1_000_000_000 / u128::from(rate);
                u64::try_from(due_ns).unwrap_or(u64::MAX).saturating_sub(took_ns)
            }
        };
        match polite_ns.max(quota_ns).max(rate_ns) {
            short if short < SHORTEST_PAUSE_NS => 0,
            pause => pause,
        }
    }

    /// Whether the machine is full, and the next burst one of those that are done all the same.
    pub(super) fn is_full(&self) -> bool {
        self.full_since_ns.is_some()
    }

    /// Reads the slow sensors when they are due. How long to rest, if so.
    fn review(&mut self, now_ns: u64) -> Option<u64> {
        if let Some(rest_ns) = self.review_quota(now_ns) {
            return Some(rest_ns);
        }
        if let Some(rest_ns) = self.review_idle(now_ns) {
            return Some(rest_ns);
        }
        if self.manner == Manner::Populate {
            return None;
        }
        let Some(last) = self.last else {
            self.last = Some(Look { at_ns: now_ns, waits: self.sensors.waits() });
            return None;
        };
        let span_ns = now_ns.saturating_sub(last.at_ns);
        if span_ns < WINDOW_NS {
            return None;
        }
        let waits = self.sensors.waits();
        let worked = self.bytes_since_look != 0;
        self.last = Some(Look { at_ns: now_ns, waits });
        self.bytes_since_look = 0;
        let rates = Rates {
            group_wait: rate(last.waits.group_ns, waits.group_ns, span_ns),
            pressure: rate(last.waits.pressure_ns, waits.pressure_ns, span_ns),
        };
        if !worked {
            self.resting = rates;
            return None;
        }
        let own = rate(Some(last.waits.own_ns), Some(waits.own_ns), span_ns);
        let risen = own > OWN_WAIT
            || rates.group_wait > self.resting.group_wait + WAIT_RISE
            || rates.pressure > self.resting.pressure + WAIT_RISE;
        if risen {
            return Some(self.noticed.next());
        }
        self.noticed.reset();
        None
    }

    fn review_idle(&mut self, now_ns: u64) -> Option<u64> {
        let (then_ns, idle_then, own_then) = match self.last_idle {
            Some(last) if now_ns.saturating_sub(last.0) < IDLE_WINDOW_NS => return None,
            Some(last) => last,
            None => {
                let idle_ns = self.sensors.idle_ns()?;
                self.last_idle = Some((now_ns, idle_ns, self.sensors.cpu_time_ns()));
                return None;
            }
        };
        let (idle_ns, own_ns) = (self.sensors.idle_ns()?, self.sensors.cpu_time_ns());
        self.last_idle = Some((now_ns, idle_ns, own_ns));
        let to_be_had = idle_ns.saturating_sub(idle_then) + own_ns.saturating_sub(own_then);
        let share = to_be_had.saturating_mul(1000) / (now_ns - then_ns).max(1);
        if share < IDLE_FLOOR {
            return Some(self.no_idle.next());
        }
        self.no_idle.reset();
        None
    }

    fn review_quota(&mut self, now_ns: u64) -> Option<u64> {
        if !self.quota.is_due(now_ns) {
            return None;
        }
        let own_ns = self.sensors.cpu_time_ns();
        let sensors = &mut self.sensors;
        self.quota.review(now_ns, own_ns, |level| sensors.quota(level))
    }
}

/// How much of `span_ns` a counter of nanoseconds grew by, in thousandths.
fn rate(before: Option<u64>, after: Option<u64>, span_ns: u64) -> u64 {
    match (before, after) {
        (Some(before), Some(after)) => {
            after.saturating_sub(before).saturating_mul(1000) / span_ns.max(1)
        }
        _ => 0,
    }
}

/// Bandwidth: the other users of memory, and how fast memory answers.
#[derive(Debug, Default)]
struct Pace {
    calm_looks: u32,
    /// Best speed seen, in bytes per microsecond (MB/s); it fades, should the machine have changed.
    best: u64,
}

impl Pace {
    fn note_others(&mut self, others: Option<u32>, is_own: bool) {
        self.calm_looks = match others {
            Some(0) => self.calm_looks.saturating_add(1),
            Some(1) if is_own => self.calm_looks.saturating_add(1),
            // Where nobody can tell, somebody is there.
            _ => 0,
        };
    }

    /// The pause that keeps populating below its bandwidth beside others.
    fn bandwidth_pause_ns(&self, bytes: u64, took_ns: u64) -> u64 {
        if self.calm_looks >= CALM_LOOKS {
            return 0;
        }
        let due_ns = u128::from(bytes) * 1_000_000_000 / u128::from(POPULATED_BESIDE_OTHERS);
        u64::try_from(due_ns).unwrap_or(u64::MAX).saturating_sub(took_ns)
    }

    fn pause_ns(&mut self, bytes: u64, took_ns: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let speed = bytes.saturating_mul(1000) / took_ns.max(1);
        self.best = speed.max(self.best - self.best / 1024);
        if self.calm_looks < CALM_LOOKS {
            // The burst's time contains the neighbour's delay of it: the pause grows with that.
            return took_ns * PAUSE_BESIDE_OTHERS;
        }
        // Nobody is to be seen, yet memory is slow: somebody outside this system. A third is noise.
        let best_took_ns = bytes.saturating_mul(1000) / self.best.max(1);
        match took_ns.saturating_sub(best_took_ns) {
            late_ns if late_ns > took_ns / 3 => late_ns,
            _ => 0,
        }
    }
}

/// Rests that double from one to the next, up to a limit.
#[derive(Debug)]
struct Backoff {
    next_ns: u64,
    first_ns: u64,
    longest_ns: u64,
    /// Whether the longest rest is behind us.
    rested: bool,
}

impl Backoff {
    const fn new(first_ns: u64, longest_ns: u64) -> Backoff {
        Backoff { next_ns: first_ns, first_ns, longest_ns, rested: false }
    }

    fn next(&mut self) -> u64 {
        let rest_ns = self.next_ns;
        self.rested = rest_ns == self.longest_ns;
        self.next_ns = (rest_ns * 2).min(self.longest_ns);
        rest_ns
    }

    /// Once after each of the longest rests: a burst of 100 µs in 64 ms is noticed by nobody, and work that waits for
    /// us gets done on a machine that is always full.
    fn is_trickling(&mut self) -> bool {
        core::mem::take(&mut self.rested)
    }

    fn reset(&mut self) {
        self.next_ns = self.first_ns;
        self.rested = false;
    }
}

#[cfg(test)]
mod tests;
