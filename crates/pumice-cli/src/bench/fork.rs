//! `pumice bench fork`: a server that takes snapshots by `fork`, and knows nothing of pumice.
//!
//! The same small C program keeps a large heap, forks, reads all of it in the child and writes a part of
//! it anew in the parent. It runs by turns plain, plain with huge pages for `malloc` (glibc's tunable), and
//! under `pumice run`. Ratios are within a round: above 1, the server takes longer, or more memory, under
//! pumice.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use serde::Serialize;

use super::c_program;
use super::json_lines::JsonLines;
use super::statistics::{interval, median};
use super::table::{thousands, Table};
use crate::args::Failure;

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

/// How it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Way {
    #[serde(rename = "kernel-4k")]
    Small,
    #[serde(rename = "kernel-thp")]
    Huge,
    #[serde(rename = "pumice")]
    Pumice,
}

const WAYS: [Way; 3] = [Way::Small, Way::Huge, Way::Pumice];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Small => "kernel-4k",
            Way::Huge => "kernel-thp",
            Way::Pumice => "pumice",
        }
    }
}

/// What the program prints.
#[derive(Clone, Copy, Debug)]
struct Figures {
    snapshot_ms: f64,
    fork_ms: f64,
    writing_ms: f64,
    all_ms: f64,
    peak_kib: f64,
}

/// A ratio to one of the kernel's ways: its median, and the 95 % interval of that.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ratio {
    median: f64,
    low: f64,
    high: f64,
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
}

/// Runs the experiment and prints its table.
pub fn fork(options: &ForkArgs) -> Result<ExitCode, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
    let folder = env::temp_dir().join(format!("pumice-bench-fork.{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| {
        Failure::system(format!("can't make the folder {}: {error}", folder.display()))
    })?;
    let program = c_program::compile("snapshot", SOURCE, &folder).map_err(Failure::system);
    let done = program.and_then(|program| measure_all(options, &own, &program));
    // What can't be removed stays where temporary files are looked for.
    let _ = std::fs::remove_dir_all(&folder);
    done.map(|()| ExitCode::SUCCESS)
}

fn measure_all(options: &ForkArgs, own: &Path, program: &Path) -> Result<(), Failure> {
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
        let mut rounds = Vec::new();
        for round in 0..options.rounds as usize {
            let mut figures = [None; 3];
            for turn in 0..WAYS.len() {
                // Nobody always goes first.
                let which = (round + turn) % WAYS.len();
                figures[which] = Some(run(own, program, load, WAYS[which], options.quick)?);
            }
            rounds.push(figures.map(|figures| figures.expect("each way has run")));
        }
        for (which, way) in WAYS.into_iter().enumerate() {
            let row = summarize(load, way, which, &rounds);
            table.row(&cells(&row));
            json.write(&row)?;
        }
        table.gap();
    }
    json.finish()
}

fn run(own: &Path, program: &Path, load: Load, way: Way, quick: bool) -> Result<Figures, Failure> {
    let share = if quick { 16 } else { 1 };
    let mut command = match way {
        Way::Pumice => Command::new(own),
        _ => Command::new(program),
    };
    if way == Way::Pumice {
        command.args(["run", "--"]).arg(program);
    }
    let numbers = [load.bytes / share, load.least, load.most, load.written / share, load.times];
    command.args(numbers.map(|number| number.to_string())).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES").stderr(Stdio::inherit());
    if way == Way::Huge {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    let output = command
        .output()
        .map_err(|error| Failure::system(format!("the server can't be started: {error}")))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match (output.status.success(), &*numbers) {
        (true, &[snapshot_ms, fork_ms, writing_ms, all_ms, peak_kib]) => {
            Ok(Figures { snapshot_ms, fork_ms, writing_ms, all_ms, peak_kib })
        }
        _ => Err(Failure::system(format!("the server ended with {}", output.status))),
    }
}

fn summarize(load: Load, way: Way, which: usize, rounds: &[[Figures; 3]]) -> Row {
    let middle = |of: fn(&Figures) -> f64| {
        median(&rounds.iter().map(|round| of(&round[which])).collect::<Vec<_>>())
    };
    let against = |peer: usize, of: fn(&Figures) -> f64| {
        let ratio = |round: &[Figures; 3]| of(&round[which]) / of(&round[peer]);
        let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
        let (low, high) = interval(&ratios);
        Ratio { median: median(&ratios), low, high }
    };
    let snapshot = |figures: &Figures| figures.snapshot_ms;
    let all = |figures: &Figures| figures.all_ms;
    let peak = |figures: &Figures| figures.peak_kib;
    Row {
        load: load.name,
        way,
        snapshot_ms: middle(snapshot),
        fork_ms: middle(|figures| figures.fork_ms),
        writing_ms: middle(|figures| figures.writing_ms),
        all_ms: middle(all),
        peak_kib: middle(peak),
        snapshot_to_4k: against(0, snapshot),
        snapshot_to_thp: against(1, snapshot),
        all_to_4k: against(0, all),
        all_to_thp: against(1, all),
        peak_to_4k: against(0, peak),
        peak_to_thp: against(1, peak),
    }
}

fn cells(row: &Row) -> Vec<String> {
    let ratio = |ratio: Ratio| format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high);
    vec![
        row.load.to_owned(),
        row.way.name().to_owned(),
        format!("{:.0}", row.snapshot_ms),
        format!("{:.1}", row.fork_ms),
        format!("{:.0}", row.writing_ms),
        format!("{:.0}", row.all_ms),
        thousands(row.peak_kib),
        ratio(row.snapshot_to_4k),
        ratio(row.all_to_4k),
        ratio(row.peak_to_4k),
        ratio(row.snapshot_to_thp),
        ratio(row.peak_to_thp),
    ]
}
