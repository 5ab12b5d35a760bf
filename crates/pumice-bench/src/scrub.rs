//! `pumice bench scrub`: how fast scrubd zeroes, and what that costs those beside it.
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

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pumice_frames::addr::{Order, BLOCK_SIZE};
use pumice_frames::clear::{Clearer, CpuEngine, EngineKind};
use pumice_frames::sys::cpu;
use pumice_frames::sys::sched::Affinity;
use pumice_heap::scrub::Scrubber;
use pumice_heap::stats::{Event, Slot, Tree};
use serde::Serialize;

use super::neighbours::{wait_until_all_work, Estimate, Group, Neighbour, Pair, Session, Work};
use dirt::Dirt;
use pumice_command::clear_plan;
use pumice_command::engines::{self, Choice};
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::region::Region;
use pumice_command::table::Table;
use pumice_command::Failure;

/// Memory that scrubd clears over and over: more than most caches hold.
const DIRT_BYTES: usize = 256 << 20;
/// After a switch, this much passes before a window begins: naps and rests of scrubd's end, and
/// what it has begun.
const SETTLE: Duration = Duration::from_millis(30);

/// The names are the fields' of a row of JSON.
const COLUMNS: [(&str, usize); 7] = [
    ("case", 13),
    ("neighbours", 0),
    ("scrub_gb_s", 0),
    ("scrub_cpu_pct", 0),
    ("loss_pct", 0),
    ("loss_low_pct", 0),
    ("loss_high_pct", 0),
];

/// What `pumice bench scrub` is asked for.
#[derive(Args, Debug)]
pub struct ScrubArgs {
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Pairs of windows for each case
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// Length of a window in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    window_ms: u64,
    /// Only the cases whose name starts with this
    #[arg(long, value_name = "CASE", default_value = "")]
    case: String,
    /// What scrubd zeroes by: auto (as measured), cpu, kernel, dsa, or an engine of this processor
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

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    neighbours: usize,
    /// While scrubbing is on.
    scrub_gb_s: f64,
    /// Of one processor, while scrubbing is on.
    scrub_cpu_pct: f64,
    /// The neighbours' loss; for `alone`, how far scrubd stays behind the best engine.
    loss_pct: f64,
    loss_low_pct: f64,
    loss_high_pct: f64,
    samples: Samples,
}

/// A case with neighbours.
struct Case {
    name: &'static str,
    neighbours: usize,
    work: Work,
    session: Session,
    group: Option<GroupKind>,
}

/// Which group whom holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    /// The neighbours, without a limit.
    Neighbours,
    /// The neighbours and this process, with a quota of one processor.
    WithQuota,
}

fn cases() -> Vec<Case> {
    let all = cpu::count();
    let case =
        |name, neighbours, work, session, group| Case { name, neighbours, work, session, group };
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
pub fn scrub(options: ScrubArgs) -> Result<ExitCode, Failure> {
    // First of all, whichever cases are run.
    options.clearer()?;
    let mut json = JsonLines::create(options.json.as_deref())?;
    let autogroup = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if !autogroup.is_ok_and(|text| text.trim() == "1") {
        eprintln!("autogroup is off: busy-session measures the same as busy-all");
    }
    let failure = |errno| Failure::system(format!("can't get memory to clear: {errno}"));
    let region = Region::populate(DIRT_BYTES).map_err(failure)?;
    let dirt: &'static Dirt = Box::leak(Box::new(Dirt::new(region)));
    let table = Table::begin(&COLUMNS);
    let mut show = |row: Row| {
        let percents = [row.scrub_cpu_pct, row.loss_pct, row.loss_low_pct, row.loss_high_pct];
        let mut cells = vec![row.case.to_owned(), row.neighbours.to_string()];
        cells.push(format!("{:.2}", row.scrub_gb_s));
        cells.extend(percents.map(|percent| format!("{percent:.1}")));
        table.row(&cells);
        json.write(&row)
    };
    if "alone".starts_with(&options.case) {
        show(alone(dirt, &options)?)?;
    }
    for case in cases().iter().filter(|case| case.name.starts_with(&options.case)) {
        match beside(case, dirt, &options) {
            Ok(row) => show(row)?,
            Err(why) => eprintln!("{}: skipped, {why}", case.name),
        }
    }
    json.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// scrubd at work on a source of its own.
struct Setup {
    dirt: &'static Dirt,
    scrubber: &'static Scrubber,
    slot: &'static Slot,
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

    /// Lets scrubd work for a window; bytes it cleared and processor time it took per second.
    fn window(&self, length: Duration) -> (f64, f64) {
        let counts = || (self.dirt.cleared_bytes(), self.slot.get(Event::ScrubberNs));
        let (before, start) = (counts(), Instant::now());
        thread::sleep(length);
        let (after, seconds) = (counts(), start.elapsed().as_secs_f64());
        let per_second = |after: u64, before: u64| (after - before) as f64 / seconds;
        (per_second(after.0, before.0), per_second(after.1, before.1) / 1e9)
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
    let failure = |errno| Failure::system(format!("can't get memory to clear: {errno}"));
    let mut region = Region::populate(DIRT_BYTES).map_err(failure)?;
    let mut best = (0.0, CpuEngine::PORTABLE);
    for engine in CpuEngine::available() {
        let speed = engine_speed(engine, region.bytes(), length);
        if speed > best.0 {
            best = (speed, engine);
        }
    }
    let (mut speeds, mut shares) = (Vec::new(), Vec::new());
    let pairs: Vec<_> = (0..options.pairs)
        .map(|_| {
            setup.switch(true);
            let (speed, share) = setup.window(length);
            setup.switch(false);
            speeds.push(speed);
            shares.push(share);
            Pair { on: speed, off: engine_speed(best.1, region.bytes(), length) }
        })
        .collect();
    eprintln!("the best engine for 2 MiB at a time: {}", best.1.name());
    Ok(row("alone", 0, &speeds, &shares, &pairs))
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
    let group = match case.group {
        None => None,
        Some(kind) => {
            let mut group =
                Group::create().map_err(|error| format!("no control group: {error}"))?;
            if kind == GroupKind::WithQuota {
                group.set_quota_of_one().map_err(|error| format!("no quota: {error}"))?;
                group.enter(std::process::id()).map_err(|error| error.to_string())?;
            }
            Some(group)
        }
    };
    let neighbours = (0..case.neighbours)
        .map(|_| Neighbour::start(case.work, case.session))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("no neighbour: {error}"))?;
    if let (Some(group), Some(GroupKind::Neighbours)) = (&group, case.group) {
        for neighbour in &neighbours {
            group.enter(neighbour.pid()).map_err(|error| error.to_string())?;
        }
    }
    // Made after the neighbours: they are forks, and fork copies no thread.
    let new = options.clearer().and_then(|clearer| Setup::new(dirt, clearer));
    let setup = new.map_err(|failure| failure.message)?;
    let length = Duration::from_millis(options.window_ms);
    let work = || neighbours.iter().map(Neighbour::work_done).sum::<u64>();
    let (mut speeds, mut shares) = (Vec::new(), Vec::new());
    wait_until_all_work(&neighbours)?;
    let pairs = (0..options.pairs)
        .map(|pair| {
            let mut measure = |on: bool| {
                setup.switch(on);
                let (before, start) = (work(), Instant::now());
                let (speed, share) = setup.window(length);
                let done = (work() - before) as f64 / start.elapsed().as_secs_f64();
                if on {
                    speeds.push(speed);
                    shares.push(share);
                }
                done
            };
            if pair % 2 == 0 {
                let off = measure(false);
                Pair { on: measure(true), off }
            } else {
                let on = measure(true);
                Pair { on, off: measure(false) }
            }
        })
        .collect::<Vec<_>>();
    Ok(row(case.name, case.neighbours, &speeds, &shares, &pairs))
}

fn row(
    case: &'static str,
    neighbours: usize,
    speeds: &[f64],
    shares: &[f64],
    pairs: &[Pair],
) -> Row {
    let loss = Estimate::of_losses(pairs);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    Row {
        case,
        neighbours,
        scrub_gb_s: mean(speeds) / 1e9,
        scrub_cpu_pct: mean(shares) * 100.0,
        loss_pct: loss.median * 100.0,
        loss_low_pct: loss.low * 100.0,
        loss_high_pct: loss.high * 100.0,
        samples: [
            ("loss_pct", pairs.iter().map(|pair| pair.loss() * 100.0).collect()),
            ("scrub_gb_s", speeds.iter().map(|speed| speed / 1e9).collect()),
        ]
        .into(),
    }
}
