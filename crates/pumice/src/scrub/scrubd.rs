//! The thread that zeroes: age, wait, claim, clear, hand back, and sleep when nothing is left.

use core::ffi::c_void;
use core::time::Duration;

use super::engines::Opened;
use super::flight::{Back, Flight, BATCHES, CLAIMS};
use super::governor::{Governor, Limits, Manner, Procfs, Verdict};
use super::helper::{begin, Helper, Job};
use super::waiting::{PIECE, STAY_AWAY};
use super::{Claim, Left, Outcome, Source};
use crate::addr::{Order, BLOCK_SIZE, FRAME_SIZE};
use crate::clear::Warmth;
use crate::config::{Nocache, Setting};
use crate::stats::{Event, Slot};
use crate::sys::thread;

pub(super) const ENTRY: thread::Entry = run;

/// Passes in a row that find marked memory but get none of it are this much further apart at most,
/// as powers of two of the delay: who allocates and frees in a loop is not worth following.
const MOST_DOUBLINGS: u32 = 6;
/// So many of them, and scrubd sleeps until the next free.
const EMPTY_PASSES: u32 = 12;
/// Long pauses are cut into naps of this, after each of which the settings are looked at.
const LONGEST_NAP_NS: u64 = 500_000_000;
/// What there is is counted this seldom while scrubd works, and in this share of its time at most.
const PUBLISH_PAUSE_NS: u64 = 100_000_000;
/// See [`PUBLISH_PAUSE_NS`].
const PUBLISH_SHARE: u64 = 1000;
/// Between two looks at an engine: it needs that long for a block or two.
const LOOK: Duration = Duration::from_micros(50);
/// When scrubd is to end it waits so many looks for what is in flight; the rest is given up.
const LAST_LOOKS: u32 = 2000;

extern "C" fn run(argument: *mut c_void) -> ! {
    // SAFETY: `Helper::ring` passed it.
    let (job, descriptors) = unsafe { begin(argument, c"pumice-scrubd") };
    let opened = Opened::open(job.scrubber.clearer().ahead(), descriptors);
    let mut scrubd = Scrubd {
        job,
        slot: job.scrubber.slot(),
        governor: Governor::new(Procfs::new(descriptors), Manner::Scrub),
        flight: opened.engine().map(Flight::new),
        counted_ns: 0,
        publish_ns: 0,
    };
    loop {
        scrubd.work();
        job.source.publish();
        scrubd.count_cpu_time();
        if scrubd.helper().sleep() {
            scrubd.governor.wake();
        }
    }
}

/// The thread's own state.
struct Scrubd<'e> {
    job: Job,
    slot: &'static Slot,
    governor: Governor<Procfs>,
    /// What an engine is at work on, where there is one.
    flight: Option<Flight<'e>>,
    /// Processor time already counted in the slot.
    counted_ns: u64,
    /// When to publish next.
    publish_ns: u64,
}

/// The settings that one pass goes by.
#[derive(Clone, Copy)]
struct Orders {
    version: u64,
    stop: Order,
    batch_bytes: usize,
    delay: Duration,
    nocache: Nocache,
    limits: Limits,
}

impl Orders {
    fn read(slot: &Slot) -> Orders {
        let version = slot.settings_version();
        let get = |setting: Setting| setting.get(slot);
        let stop = u8::try_from(get(Setting::ScrubStop)).ok().and_then(Order::new);
        let batch_pages = usize::try_from(get(Setting::ScrubBatchPages)).unwrap_or(usize::MAX);
        Orders {
            version,
            stop: stop.unwrap_or(Order::MAX),
            batch_bytes: batch_pages.saturating_mul(FRAME_SIZE),
            delay: Duration::from_millis(get(Setting::ScrubDelayMs)),
            nocache: match get(Setting::ScrubNocache) {
                on if on == Nocache::On as u64 => Nocache::On,
                off if off == Nocache::Off as u64 => Nocache::Off,
                _ => Nocache::Auto,
            },
            limits: Limits {
                load_hundredths: get(Setting::ScrubLoad),
                rate_pages_per_s: get(Setting::ScrubRatePagesPerS),
            },
        }
    }
}

/// How a run of bursts ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// There was nothing to claim.
    Empty,
    /// Something was zeroed.
    Cleared,
}

impl Scrubd<'_> {
    fn helper(&self) -> &'static Helper {
        self.job.scrubber.scrubd()
    }

    fn source(&self) -> &'static dyn Source {
        self.job.source
    }

    /// Works until nothing is left.
    fn work(&mut self) {
        let mut empty = 0;
        while empty < EMPTY_PASSES {
            self.helper().look();
            let orders = Orders::read(self.slot);
            if self.source().age(orders.stop) == Left::Nothing {
                return;
            }
            self.helper().nap(orders.delay * (1 << empty.min(MOST_DOUBLINGS)));
            empty = match self.clear_marked(&orders) {
                Pass::Empty => empty + 1,
                Pass::Cleared => 0,
            };
        }
    }

    /// Clears what is marked, burst by burst, until there is no more or the settings change.
    fn clear_marked(&mut self, orders: &Orders) -> Pass {
        let mut pass = Pass::Empty;
        while self.slot.settings_version() == orders.version {
            match self.governor.ask(&orders.limits, self.source().need()) {
                Verdict::Go => {}
                Verdict::Rest(rest_ns) => {
                    self.slot.add(Event::ScrubYields, 1);
                    self.pause(rest_ns, orders.version);
                    continue;
                }
            }
            let started_ns = thread::now_ns();
            let Some(bytes) = self.burst_by_engine(orders).or_else(|| self.burst(orders)) else {
                break;
            };
            pass = Pass::Cleared;
            let took_ns = thread::now_ns().saturating_sub(started_ns);
            self.publish_if_due();
            self.count_cpu_time();
            let pause_ns = self.governor.pause_after(bytes, took_ns, &orders.limits);
            self.pause(pause_ns, orders.version);
        }
        pass
    }

    /// Claims and clears until the batch is full; a batch is rounded up to whole claims. Returns
    /// the bytes cleared; `None` if there is nothing to claim.
    fn burst(&mut self, orders: &Orders) -> Option<usize> {
        let mut bytes = None;
        while bytes.unwrap_or(0) < orders.batch_bytes {
            while self.job.scrubber.is_waited_for() {
                self.helper().nap(STAY_AWAY);
            }
            let Some(claim) = self.source().claim(orders.stop) else { break };
            if finish(&self.job, self.slot, claim, 0, orders.nocache) == Outcome::Dirty {
                return bytes.or(Some(0));
            }
            bytes = Some(bytes.unwrap_or(0) + claim.len);
        }
        bytes
    }

    /// As [`Scrubd::burst`], by the engine; a batch of the settings' is in flight in several. `None` if there is
    /// none, or nothing that is worth its while: whole blocks are.
    fn burst_by_engine(&mut self, orders: &Orders) -> Option<usize> {
        let flight = self.flight.as_mut()?;
        let (job, slot) = (self.job, self.slot);
        let mut back = |claim: Claim, back: Back| {
            let zeroed = match back {
                Back::Zeroed => claim.len,
                Back::Rest(zeroed) => zeroed,
            };
            finish(&job, slot, claim, zeroed, orders.nocache);
        };
        // What was given up before may have come to its end meanwhile.
        flight.collect(&mut back);
        let mut bytes = 0;
        let mut area = None;
        for number in 0..BATCHES {
            let claims = orders.batch_bytes.saturating_sub(bytes).div_ceil(BLOCK_SIZE);
            if number > 0 && claims == 0 {
                break;
            }
            if !flight.has_room() || job.scrubber.is_waited_for() || area.is_some() {
                break;
            }
            let mut left = claims.clamp(1, CLAIMS);
            let launched = flight.launch(|| {
                left = left.checked_sub(1)?;
                let claim = job.source.claim(orders.stop)?;
                if claim.len < BLOCK_SIZE {
                    // Of areas within a block there is one claim at a time.
                    area = Some(claim);
                    return None;
                }
                Some(claim)
            });
            if launched == 0 {
                break;
            }
            bytes += launched;
            flight.collect(&mut back);
            job.scrubber.set_claims_away(flight.claims());
        }
        if let Some(claim) = area {
            if finish(&job, slot, claim, 0, orders.nocache) == Outcome::Zeroed {
                bytes += claim.len;
            }
        }
        let (mut is_wanted, mut looks) = (true, 0);
        flight.collect(&mut back);
        job.scrubber.set_claims_away(flight.claims());
        while !flight.is_empty() && !flight.is_lost() && looks < LAST_LOOKS {
            if is_wanted && (job.scrubber.is_waited_for() || job.scrubber.scrubd().is_stopped()) {
                flight.cancel();
                is_wanted = false;
            }
            looks += u32::from(job.scrubber.scrubd().is_stopped());
            thread::sleep(LOOK);
            flight.collect(&mut back);
            job.scrubber.set_claims_away(flight.claims());
        }
        (bytes > 0 || area.is_some()).then_some(bytes)
    }

    /// Does nothing for so long, unless the settings change meanwhile.
    fn pause(&self, mut left_ns: u64, version: u64) {
        while left_ns > 0 && self.slot.settings_version() == version {
            let nap_ns = left_ns.min(LONGEST_NAP_NS);
            self.helper().nap(Duration::from_nanos(nap_ns));
            left_ns -= nap_ns;
        }
    }

    fn publish_if_due(&mut self) {
        let started_ns = thread::now_ns();
        if started_ns < self.publish_ns {
            return;
        }
        self.source().publish();
        let took_ns = thread::now_ns().saturating_sub(started_ns);
        self.publish_ns = started_ns + PUBLISH_PAUSE_NS.max(took_ns.saturating_mul(PUBLISH_SHARE));
    }

    fn count_cpu_time(&mut self) {
        let used_ns = thread::cpu_time_ns();
        self.slot.add(Event::ScrubberNs, used_ns - self.counted_ns);
        self.counted_ns = used_ns;
    }
}

/// Clears what of a claim is not zeroed yet, and hands it back.
fn finish(job: &Job, slot: &Slot, claim: Claim, zeroed: usize, nocache: Nocache) -> Outcome {
    let outcome = clear(job, &claim, zeroed, nocache);
    if outcome == Outcome::Zeroed {
        slot.add(Event::ScrubbedBytes, claim.len as u64);
    }
    job.source.finish(claim, outcome);
    outcome
}

/// Clears a claim from `zeroed` on, unless somebody comes to wait for it.
fn clear(job: &Job, claim: &Claim, zeroed: usize, nocache: Nocache) -> Outcome {
    let clearer = job.scrubber.clearer();
    for from in (zeroed..claim.len).step_by(PIECE) {
        if job.scrubber.is_waited_for() {
            return Outcome::Dirty;
        }
        let at = claim.at.wrapping_add(from);
        // SAFETY: the claim is ours alone until it is finished, and no engine has it.
        unsafe { clearer.clear_as(at, PIECE.min(claim.len - from), Warmth::Cold, nocache) };
    }
    Outcome::Zeroed
}
