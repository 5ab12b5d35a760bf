//! `pumice bench fork`: a server that takes snapshots by `fork`, and knows nothing of pumice.
//!
//! The same small C program keeps a large heap, forks, reads all of it in the child and writes a part of
//! it anew in the parent. It runs by turns plain, plain with huge pages for `malloc` (glibc's tunable), and
//! under `pumice run`. Ratios are within a round: above 1, the server takes longer, or more memory, under
//! pumice.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::three_ways::{self, Program, Ratio, Rounds, Way, WAYS};
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::table::{thousands, Table};
use pumice_command::Failure;

const SOURCE: &str = include_str!("fork/snapshot.c");
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What `pumice bench fork` is asked for.
#[derive(Args, Debug)]
pub struct ForkArgs {
    /// Rounds; each runs every load once in every way
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A sixteenth of the memory
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
    least: u64,
    most: u64,
    /// Bytes written anew during each snapshot.
    written: u64,
    times: u64,
}

const LOADS: [Load; 4] = [
    Load {
        name: "1 KiB to 1 MiB",
        bytes: 1024 * MIB,
        least: KIB,
        most: MIB,
        written: 256 * MIB,
        times: 3,
    },
    Load {
        name: "1 to 64 KiB",
        bytes: 1024 * MIB,
        least: KIB,
        most: 64 * KIB,
        written: 256 * MIB,
        times: 3,
    },
    Load {
        name: "64 KiB to 1 MiB",
        bytes: 1024 * MIB,
        least: 64 * KIB,
        most: MIB,
        written: 256 * MIB,
        times: 3,
    },
    Load {
        name: "the same, few writes",
        bytes: 1024 * MIB,
        least: 64 * KIB,
        most: MIB,
        written: 32 * MIB,
        times: 3,
    },
];

/// What the program prints.
#[derive(Clone, Copy, Debug)]
struct Figures {
    snapshot_ms: f64,
    fork_ms: f64,
    writing_ms: f64,
    all_ms: f64,
    peak_kib: f64,
}

/// A row of the table: medians.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    way: Way,
    /// From the fork until the child has read all and the parent written its part.
    snapshot_ms: f64,
    /// The fork alone.
    fork_ms: f64,
    /// The parent's writing alone.
    writing_ms: f64,
    /// The whole program.
    all_ms: f64,
    /// The most that both processes had together.
    peak_kib: f64,
    snapshot_to_4k: Ratio,
    snapshot_to_thp: Ratio,
    all_to_4k: Ratio,
    all_to_thp: Ratio,
    peak_to_4k: Ratio,
    peak_to_thp: Ratio,
    samples: Samples,
}

/// Runs the experiment and prints its table.
pub fn fork(options: &ForkArgs) -> Result<ExitCode, Failure> {
    let program = Program::compile("fork", SOURCE)?;
    let mut json = JsonLines::create(options.json.as_deref())?;
    let table = Table::begin(&[
        ("values", 22),
        ("memory", 10),
        ("snapshot ms", 11),
        ("fork ms", 8),
        ("writing ms", 10),
        ("all ms", 8),
        ("peak KiB", 10),
        ("snapshot / 4k [95 %]", 20),
        ("all / 4k [95 %]", 20),
        ("peak / 4k [95 %]", 20),
        ("snapshot / thp", 20),
        ("peak / thp", 20),
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
    let share = if quick { 16 } else { 1 };
    let mut command = program.command(way, &[]);
    let numbers = [load.bytes / share, load.least, load.most, load.written / share, load.times];
    command.args(numbers.map(|number| number.to_string()));
    if way == Way::Huge {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    let [snapshot_ms, fork_ms, writing_ms, all_ms, peak_kib] = three_ways::figures(command)?;
    Ok(Figures { snapshot_ms, fork_ms, writing_ms, all_ms, peak_kib })
}

fn summarize(load: Load, way: Way, rounds: &Rounds<Figures>) -> Row {
    let snapshot = |figures: &Figures| figures.snapshot_ms;
    let all = |figures: &Figures| figures.all_ms;
    let peak = |figures: &Figures| figures.peak_kib;
    Row {
        load: load.name,
        way,
        snapshot_ms: rounds.median(way, snapshot),
        fork_ms: rounds.median(way, |figures| figures.fork_ms),
        writing_ms: rounds.median(way, |figures| figures.writing_ms),
        all_ms: rounds.median(way, all),
        peak_kib: rounds.median(way, peak),
        snapshot_to_4k: rounds.ratio(way, Way::Small, snapshot),
        snapshot_to_thp: rounds.ratio(way, Way::Huge, snapshot),
        all_to_4k: rounds.ratio(way, Way::Small, all),
        all_to_thp: rounds.ratio(way, Way::Huge, all),
        peak_to_4k: rounds.ratio(way, Way::Small, peak),
        peak_to_thp: rounds.ratio(way, Way::Huge, peak),
        samples: [
            ("snapshot_ms", rounds.figures(way, snapshot)),
            ("all_ms", rounds.figures(way, all)),
            ("peak_kib", rounds.figures(way, peak)),
        ]
        .into(),
    }
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.load.to_owned(),
        row.way.name().to_owned(),
        format!("{:.0}", row.snapshot_ms),
        format!("{:.1}", row.fork_ms),
        format!("{:.0}", row.writing_ms),
        format!("{:.0}", row.all_ms),
        thousands(row.peak_kib),
        row.snapshot_to_4k.to_string(),
        row.all_to_4k.to_string(),
        row.peak_to_4k.to_string(),
        row.snapshot_to_thp.to_string(),
        row.peak_to_thp.to_string(),
    ]
}
