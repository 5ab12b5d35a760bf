//! The thread that zeroes: age, wait, claim, clear, hand back, and sleep when nothing is left.

use core::convert::Infallible;
use core::ffi::c_void;
use core::time::Duration;

use super::by_engine;
use super::claims::Claims;
use super::engines::{Lent, Opened};
use super::governor::{Governor, Limits, Manner, Procfs, Verdict};
use super::helper::{begin, Helper, Job, Stopped};
use super::waiting::STAY_AWAY;
use super::{Left, Outcome, Source};
use crate::config::Setting;
use crate::stats::{CounterSlot, Event};
use pumice_frames::addr::{Order, FRAME_SIZE};
use pumice_frames::sys::thread;

pub(super) const ENTRY: thread::Entry = run;

/// Passes in a row that find marked memory but get none of it are this much further apart at most, as powers of two of
/// the delay: a program that allocates and frees in a loop is not worth following.
const MOST_DOUBLINGS: u32 = 6;
/// So many of them, and scrubd sleeps until the next free.
const EMPTY_PASSES: u32 = 12;
/// Long pauses are cut into naps of this, after each of which the settings are looked at.
const LONGEST_NAP_NS: u64 = 500_000_000;
/// The free memory is counted this seldom while scrubd works, and in this share of its time at most.
const PUBLISH_PAUSE_NS: u64 = 100_000_000;
/// See [`PUBLISH_PAUSE_NS`].
const PUBLISH_SHARE: u64 = 1000;

extern "C" fn run(argument: *mut c_void) -> ! {
    // SAFETY: `Helper::ring` passed it.
    let (job, descriptors) = unsafe { begin(argument, c"pumice-scrubd") };
    let kind = job.scrubber.clearer().ahead();
    let mut scrubd = Scrubd {
        job,
        claims: Claims::new(job),
        slot: job.scrubber.slot(),
        governor: Governor::new(Procfs::new(descriptors), Manner::Scrub),
        engine: Lent::new(move || Opened::open(kind, descriptors)),
        counted_ns: 0,
        publish_ns: 0,
    };
    let Err(Stopped) = scrubd.serve();
    scrubd.engine.give_back();
    // SAFETY: a helper's own thread, whose stack nobody else knows.
    unsafe { thread::exit() }
}

/// The thread's own state.
struct Scrubd<F> {
    job: Job,
    claims: Claims,
    slot: &'static CounterSlot,
    governor: Governor<Procfs>,
    /// The engine that zeroes beside the processor, where there is one.
    engine: Lent<Opened, F>,
    /// Processor time already counted in the slot.
    counted_ns: u64,
    /// When to publish next.
    publish_ns: u64,
}

/// The settings that one pass goes by.
#[derive(Clone, Copy)]
pub(super) struct Orders {
    version: u64,
    pub(super) stop: Order,
    pub(super) batch_bytes: usize,
    delay: Duration,
    limits: Limits,
}

impl Orders {
    pub(super) fn read(slot: &CounterSlot) -> Orders {
        let version = slot.settings_version();
        let get = |setting: Setting| setting.get(slot);
        let stop = u8::try_from(get(Setting::ScrubStop)).ok().and_then(Order::new);
        let batch_pages = usize::try_from(get(Setting::ScrubBatchPages)).unwrap_or(usize::MAX);
        Orders {
            version,
            stop: stop.unwrap_or(Order::MAX),
            batch_bytes: batch_pages.saturating_mul(FRAME_SIZE),
            delay: Duration::from_millis(get(Setting::ScrubDelayMs)),
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

impl<F: FnMut() -> Option<Opened>> Scrubd<F> {
    fn serve(&mut self) -> Result<Infallible, Stopped> {
        loop {
            self.work()?;
            self.source().publish();
            self.count_cpu_time();
            let slept = match self.engine.left(thread::now_ns()) {
                None => self.helper().sleep()?,
                Some(left) => {
                    let slept = self.helper().sleep_for(left)?;
                    self.engine.give_back_if_unused(thread::now_ns());
                    slept
                }
            };
            if slept {
                self.governor.wake();
            }
        }
    }

    fn helper(&self) -> &'static Helper {
        self.job.scrubber.scrubd()
    }

    fn source(&self) -> &'static dyn Source {
        self.job.source
    }

    /// Works until nothing is left.
    fn work(&mut self) -> Result<(), Stopped> {
        let mut empty = 0;
        while empty < EMPTY_PASSES {
            self.helper().look()?;
            let orders = Orders::read(self.slot);
            if self.source().age(orders.stop) == Left::Nothing {
                break;
            }
            self.helper().nap(orders.delay * (1 << empty.min(MOST_DOUBLINGS)))?;
            empty = match self.clear_marked(&orders)? {
                Pass::Empty => empty + 1,
                Pass::Cleared => 0,
            };
        }
        Ok(())
    }

    /// Clears marked memory, burst by burst, until there is no more or the settings change.
    fn clear_marked(&mut self, orders: &Orders) -> Result<Pass, Stopped> {
        let mut pass = Pass::Empty;
        while self.slot.settings_version() == orders.version {
            match self.governor.ask(&orders.limits, self.source().need()) {
                Verdict::Go => {}
                Verdict::Rest(rest_ns) => {
                    self.slot.add(Event::ScrubYields, 1);
                    self.pause(rest_ns, orders.version)?;
                    self.engine.give_back_if_unused(thread::now_ns());
                    continue;
                }
            }
            let started_ns = thread::now_ns();
            let by_engine = |flight| by_engine::burst(&self.claims, flight, orders);
            let bytes = self.engine.flight(started_ns).and_then(by_engine);
            let bytes = match bytes {
                None => self.burst(orders)?,
                some => some,
            };
            let Some(bytes) = bytes else { break };
            pass = Pass::Cleared;
            let took_ns = thread::now_ns().saturating_sub(started_ns);
            self.publish_if_due();
            self.count_cpu_time();
            let pause_ns = self.governor.pause_after(bytes, took_ns, &orders.limits);
            self.pause(pause_ns, orders.version)?;
        }
        Ok(pass)
    }

    /// Claims and clears until the batch is full; a batch is rounded up to whole claims. Returns
    /// the bytes cleared; `None` if there is nothing to claim.
    fn burst(&mut self, orders: &Orders) -> Result<Option<usize>, Stopped> {
        let mut bytes = None;
        while bytes.unwrap_or(0) < orders.batch_bytes {
            while self.job.scrubber.is_waited_for() {
                self.helper().nap(STAY_AWAY)?;
            }
            let Some(claim) = self.claims.claim(orders.stop) else { break };
            if self.claims.finish(claim, 0) == Outcome::Dirty {
                return Ok(bytes.or(Some(0)));
            }
            bytes = Some(bytes.unwrap_or(0) + claim.len);
        }
        Ok(bytes)
    }

    /// Does nothing for so long, unless the settings change meanwhile.
    fn pause(&self, mut left_ns: u64, version: u64) -> Result<(), Stopped> {
        while left_ns > 0 && self.slot.settings_version() == version {
            let nap_ns = left_ns.min(LONGEST_NAP_NS);
            self.helper().nap(Duration::from_nanos(nap_ns))?;
            left_ns -= nap_ns;
        }
        Ok(())
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
        self.slot.add(Event::ScrubberNs, used_ns.saturating_sub(self.counted_ns));
        self.counted_ns = used_ns;
    }
}
