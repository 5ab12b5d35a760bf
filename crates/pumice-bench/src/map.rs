//! `pumice bench map`: a program that maps, touches and unmaps, and knows nothing of pumice.
//!
//! The same small C program runs by turns plain, plain and advising huge pages, and under
//! `pumice run --mmap`, where it advises nothing. It times itself; ratios are within a round. What
//! `--ready` has ready is measured by its first touch; the last columns say what it cost to have
//! it, too.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use pumice_frames::addr::FRAME_SIZE;
use serde::Serialize;

use super::three_ways::{self, Program, Ratio, Rounds, Way, WAYS};
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::table::{thousands, Table};
use pumice_command::Failure;

const SOURCE: &str = include_str!("map/loop.c");
const MIB: u64 = 1 << 20;

/// What `pumice bench map` is asked for.
#[derive(Args, Debug)]
pub struct MapArgs {
    /// Rounds; each runs every load once in every way
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A hundredth of the repetitions, and memory of an eighth
    #[arg(long)]
    quick: bool,
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the program is to do.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    bytes: u64,
    /// 0: all of them.
    pages: u64,
    times: u64,
    threads: u64,
    /// Whether `pumice run` is told to have the memory ready, and all are given time for it.
    ready: bool,
}

const LOADS: [Load; 4] = [
    Load { name: "loop", bytes: 128 * MIB, pages: 0, times: 40, threads: 1, ready: false },
    Load {
        name: "loop, two threads",
        bytes: 128 * MIB,
        pages: 0,
        times: 40,
        threads: 2,
        ready: false,
    },
    Load {
        name: "loop, one page",
        bytes: 128 * MIB,
        pages: 1,
        times: 4000,
        threads: 1,
        ready: false,
    },
    Load {
        name: "first touch, --ready",
        bytes: 512 * MIB,
        pages: 0,
        times: 1,
        threads: 1,
        ready: true,
    },
];

/// What the program prints.
#[derive(Clone, Copy, Debug)]
struct Figures {
    wall_ns: f64,
    cpu_ns: f64,
    all_cpu_ns: f64,
    peak_kib: f64,
}

/// A row of the table: medians for a touched page.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    way: Way,
    /// Nanoseconds.
    wall_ns: f64,
    /// Of processor time, helper threads' included.
    cpu_ns: f64,
    /// The same since the process began: with what it cost to populate.
    all_cpu_ns: f64,
    /// The most that was resident.
    peak_kib: f64,
    /// How many times faster than the kernel with small pages, and with huge ones.
    times_faster_than_4k: Ratio,
    times_faster_than_thp: Ratio,
    samples: Samples,
}

/// Runs the experiment and prints its table.
pub fn map(options: &MapArgs) -> Result<ExitCode, Failure> {
    let program = Program::compile("map", SOURCE)?;
    let mut json = JsonLines::create(options.json.as_deref())?;
    let table = Table::begin(&[
        ("load", 22),
        ("memory", 10),
        ("ns/page", 9),
        ("CPU", 9),
        ("CPU, all", 9),
        ("peak KiB", 10),
        ("times 4k [95 %]", 22),
        ("times thp [95 %]", 22),
    ]);
    for load in LOADS {
        let rounds = Rounds::run(options.rounds, |way| run(&program, load, way, options.quick))?;
        for way in WAYS {
            let row = summarize(load, way, &rounds);
            table.row(&cells(&row));
            json.write(&row)?;
        }
        table.gap();
    }
    json.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn run(program: &Program, load: Load, way: Way, quick: bool) -> Result<Figures, Failure> {
    let (bytes, times) = match quick {
        true => (load.bytes / 8, (load.times / 100).max(1)),
        false => (load.bytes, load.times),
    };
    let pages = if load.pages == 0 { bytes / FRAME_SIZE as u64 } else { load.pages };
    let options = ["--mmap".to_owned(), "--ready".to_owned(), bytes.to_string()];
    let mut command = program.command(way, if load.ready { &options } else { &options[..1] });
    let wait_ms = if load.ready { WAIT_MS } else { 0 };
    let huge = u64::from(way == Way::Huge);
    let numbers = [bytes, pages, times, load.threads, huge, wait_ms];
    command.args(numbers.map(|number| number.to_string()));
    let [wall_ns, cpu_ns, all_cpu_ns, peak_kib] = three_ways::figures(command)?;
    Ok(Figures { wall_ns, cpu_ns, all_cpu_ns, peak_kib })
}

/// Given to whoever has something to populate: more than it takes.
const WAIT_MS: u64 = 1500;

fn summarize(load: Load, way: Way, rounds: &Rounds<Figures>) -> Row {
    // A first touch is one thread's: there processor time is what is compared.
    let time = |figures: &Figures| if load.ready { figures.cpu_ns } else { figures.wall_ns };
    Row {
        load: load.name,
        way,
        wall_ns: rounds.median(way, |figures| figures.wall_ns),
        cpu_ns: rounds.median(way, |figures| figures.cpu_ns),
        all_cpu_ns: rounds.median(way, |figures| figures.all_cpu_ns),
        peak_kib: rounds.median(way, |figures| figures.peak_kib),
        times_faster_than_4k: rounds.ratio(Way::Small, way, time),
        times_faster_than_thp: rounds.ratio(Way::Huge, way, time),
        samples: [
            ("wall_ns", rounds.figures(way, |figures| figures.wall_ns)),
            ("cpu_ns", rounds.figures(way, |figures| figures.cpu_ns)),
        ]
        .into(),
    }
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.load.to_owned(),
        row.way.name().to_owned(),
        format!("{:.1}", row.wall_ns),
        format!("{:.1}", row.cpu_ns),
        format!("{:.1}", row.all_cpu_ns),
        thousands(row.peak_kib),
        row.times_faster_than_4k.to_string(),
        row.times_faster_than_thp.to_string(),
    ]
}
