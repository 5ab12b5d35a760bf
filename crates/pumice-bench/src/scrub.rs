//! `pumice bench scrub`: how fast scrubd zeroes, and its cost to programs beside it.
//!
//! The real [`Scrubber`] with its governor works on a [`Dirt`], a source that never runs out, so it
//! works as hard as it is ever allowed to. Each case runs in pairs of windows, scrubbing on and
//! off, in alternating order; a pair's loss is `1 - on / off` in the neighbours' work per second
//! of wall time. The median over the pairs counts, with its 95 % interval (order statistics).
//!
//! | case | beside scrubd |
//! |---|---|
//! | `alone` | nothing; compared with the best engine cleared on this thread |
//! | `busy-one` | one thread that computes, same session |
//! | `busy-all` | one on each processor, same session |
//! | `busy-session` | the same in a session of their own, which autogroup schedules as a group |
//! | `busy-cgroup` | the same in a control group of their own (root) |
//! | `stream-read`, `stream-copy` | one that reads or copies more than the caches hold |
//! | `quota` | one that computes, in one group with scrubd whose quota is one processor (root) |

mod dirt;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pumice_frames::addr::{Order, BLOCK_SIZE};
use pumice_frames::clear::{Clearer, CpuEngine, EngineKind};
use pumice_frames::sys::cpu;
use pumice_frames::sys::sched::Affinity;
use pumice_heap::scrub::Scrubber;
use pumice_heap::stats::{CounterSlot, Event, Tree};
use serde_json::json;

use super::harness::{Output, OutputArgs};
use super::neighbours::case::{self, look_for_autogroup, Case, CaseArgs, GroupKind};
use super::neighbours::pairs::{alternate, with_loss, Pair, Window};
use super::neighbours::{Session, Work};
use super::registry::prezeroing::SCRUB;
use super::registry::Row;
use dirt::Dirt;
use pumice_command::clear_plan;
use pumice_command::engines::{self, Choice};
use pumice_command::region::Region;
use pumice_command::{Explain, Failure};

/// Memory that scrubd clears over and over: more than most caches hold.
const DIRT_BYTES: usize = 256 << 20;
/// After a switch, this much passes before a window begins: naps and rests of scrubd's end, and
/// what it has begun.
const SETTLE: Duration = Duration::from_millis(30);

/// Options of `pumice bench scrub`.
#[derive(Args, Debug)]
pub struct ScrubArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cases: CaseArgs,
    /// Length of a window in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    window_ms: u64,
    /// The engine scrubd zeroes by: auto (as measured), cpu, kernel, dsa, or an engine of this processor
    #[arg(long, value_name = "NAME", value_parser = engines::parse)]
    engine: Option<Choice>,
}

impl ScrubArgs {
    /// The engine that was named, or those that were measured before.
    fn clearer(&self) -> Result<Clearer, Failure> {
        let kept = clear_plan::kept().unwrap_or_else(Clearer::detect);
        match self.engine {
            None | Some(Choice::Auto) => Ok(kept),
            Some(Choice::Kind(kind)) => {
                engines::check_for_programs(kind)?;
                Ok(kept.with_ahead(kind))
            }
            Some(Choice::Processor(engine)) => {
                let plan = kept.with_ahead(EngineKind::Cpu).with_plan(engine.name());
                plan.map_err(|error| Failure::usage(error.to_string()))
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let all = cpu::count();
    let case = |name: &str, neighbours, work, session, group| Case {
        name: name.to_owned(),
        neighbours,
        work,
        session,
        group,
    };
    vec![
        case("busy-one", 1, Work::Compute, Session::Same, None),
        case("busy-all", all, Work::Compute, Session::Same, None),
        case("busy-session", all, Work::Compute, Session::Own, None),
        case("busy-cgroup", all, Work::Compute, Session::Same, Some(GroupKind::Neighbours)),
        case("stream-read", 1, Work::Read, Session::Same, None),
        case("stream-copy", 1, Work::Copy, Session::Same, None),
        case("quota", 1, Work::Compute, Session::Same, Some(GroupKind::WithQuota)),
    ]
}

/// Measures, and prints the table.
pub fn scrub(options: ScrubArgs) -> Result<(), Failure> {
    // First of all, whichever cases are run.
    options.clearer()?;
    let mut output = Output::create(&options.output, &SCRUB.plots[0])?;
    look_for_autogroup("busy-session measures the same as busy-all");
    let region = Region::populate(DIRT_BYTES).or_fail("can't get memory to clear")?;
    let dirt: &'static Dirt = Box::leak(Box::new(Dirt::new(region)));
    output.begin(&SCRUB.tables[0]);
    let beside = |case: &Case| beside(case, dirt, &options);
    case::measure(&cases(), &options.cases, &mut output, || alone(dirt, &options), beside)?;
    output.finish()
}

/// scrubd at work on a source of its own.
struct Setup {
    dirt: &'static Dirt,
    scrubber: &'static Scrubber,
    slot: &'static CounterSlot,
}

impl Setup {
    /// Threads live as long as the process; so does what they use.
    fn new(dirt: &'static Dirt, clearer: Clearer) -> Result<Setup, Failure> {
        let failure = |what| Failure::system(format!("can't get memory for {what}"));
        let tree = Tree::private(0, 0).map_err(|_| failure("counters"))?;
        let slot = tree.attach(std::process::id()).ok_or_else(|| failure("a slot"))?;
        Ok(Setup {
            dirt,
            scrubber: Box::leak(Box::new(Scrubber::new(slot, clearer, Affinity::here()))),
            slot,
        })
    }

    fn switch(&self, on: bool) {
        self.dirt.switch(on);
        if on {
            self.scrubber.freed(self.dirt, Order::BLOCK);
        }
        thread::sleep(SETTLE);
    }

    fn window(&self, length: Duration, work: impl Fn(u64) -> u64) -> Result<Window, String> {
        Window::watch(length, || {
            let bytes = self.dirt.cleared_bytes();
            Ok([bytes, self.slot.get(Event::ScrubberNs), work(bytes)])
        })
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.dirt.switch(false);
        self.scrubber.quiet();
    }
}

fn alone(dirt: &'static Dirt, options: &ScrubArgs) -> Result<Row, Failure> {
    let setup = Setup::new(dirt, options.clearer()?)?;
    let length = Duration::from_millis(options.window_ms);
    let mut region = Region::populate(DIRT_BYTES).or_fail("can't get memory to clear")?;
    let mut best = (0.0, CpuEngine::PORTABLE);
    for engine in CpuEngine::available() {
        let speed = engine_speed(engine, region.bytes(), length);
        if speed > best.0 {
            best = (speed, engine);
        }
    }
    let pair = |_| {
        setup.switch(true);
        let on = setup.window(length, |bytes| bytes).map_err(Failure::system)?;
        setup.switch(false);
        let work = engine_speed(best.1, region.bytes(), length);
        Ok(Pair { on, off: Window { work, ..Window::default() } })
    };
    let pairs = (0..options.cases.pairs).map(pair).collect::<Result<Vec<_>, Failure>>()?;
    eprintln!("the best engine for 2 MiB at a time: {}", best.1.name());
    Ok(row("alone", 0, &pairs))
}

/// Bytes a second that an engine clears on this thread, a block at a time.
fn engine_speed(engine: CpuEngine, memory: &mut [u8], length: Duration) -> f64 {
    let (start, mut bytes) = (Instant::now(), 0);
    loop {
        for block in memory.chunks_exact_mut(BLOCK_SIZE) {
            // SAFETY: the block is borrowed mutably.
            unsafe { engine.clear(block.as_mut_ptr(), BLOCK_SIZE) };
            bytes += BLOCK_SIZE;
            let elapsed = start.elapsed();
            if elapsed >= length {
                return bytes as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

/// `Err` says why the case can't be measured here.
fn beside(case: &Case, dirt: &'static Dirt, options: &ScrubArgs) -> Result<Row, String> {
    let beside = case.start()?;
    // Made after the neighbours: they are forks, and fork copies no thread.
    let new = options.clearer().and_then(|clearer| Setup::new(dirt, clearer));
    let setup = new.map_err(|failure| failure.message)?;
    let length = Duration::from_millis(options.window_ms);
    let pairs = alternate(options.cases.pairs, |on| {
        setup.switch(on);
        setup.window(length, |_| beside.work_done())
    })?;
    Ok(row(&case.name, case.neighbours, &pairs))
}

fn row(case: &str, neighbours: usize, pairs: &[Pair]) -> Row {
    let row = Row::of(json!({"case": case, "neighbours": neighbours}));
    with_loss(row, pairs, ("scrub_gb_s", 1e9), "scrub_cpu_pct")
}
