//! `pumice bench map`: a program that maps, touches and unmaps, and knows nothing of pumice.
//!
//! The same small C program runs by turns plain, plain and advising huge pages, and under
//! `pumice run`, where it advises nothing. It times itself; ratios are within a round. What
//! `--ready` has ready is measured by its first touch; the last columns say what it cost to have
//! it, too.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use pumice::addr::FRAME_SIZE;
use serde::Serialize;

use super::c_program;
use super::json_lines::JsonLines;
use super::statistics::{interval, median};
use super::table::{thousands, Table};
use crate::args::Failure;

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

/// How it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    #[serde(rename = "kernel-4k")]
    Small,
    #[serde(rename = "kernel-thp")]
    Huge,
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
    times_faster_than_4k: f64,
    times_faster_than_4k_low: f64,
    times_faster_than_4k_high: f64,
    times_faster_than_thp: f64,
    times_faster_than_thp_low: f64,
    times_faster_than_thp_high: f64,
}

/// Runs the experiment and prints its table.
pub fn map(options: &MapArgs) -> Result<ExitCode, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
    let folder = env::temp_dir().join(format!("pumice-bench-map.{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| {
        Failure::system(format!("can't make the folder {}: {error}", folder.display()))
    })?;
    let program = c_program::compile("loop", SOURCE, &folder).map_err(Failure::system);
    let done = program.and_then(|program| measure_all(options, &own, &program));
    // What can't be removed stays where temporary files are looked for.
    let _ = std::fs::remove_dir_all(&folder);
    done.map(|()| ExitCode::SUCCESS)
}

fn measure_all(options: &MapArgs, own: &Path, program: &Path) -> Result<(), Failure> {
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
    let (bytes, times) = match quick {
        true => (load.bytes / 8, (load.times / 100).max(1)),
        false => (load.bytes, load.times),
    };
    let pages = if load.pages == 0 { bytes / FRAME_SIZE as u64 } else { load.pages };
    let mut command = match way {
        Way::Pumice => Command::new(own),
        _ => Command::new(program),
    };
    if way == Way::Pumice {
        command.arg("run");
        if load.ready {
            command.args(["--ready", &bytes.to_string()]);
        }
        command.arg("--").arg(program);
    }
    let wait_ms = if load.ready { WAIT_MS } else { 0 };
    let huge = u64::from(way == Way::Huge);
    let numbers = [bytes, pages, times, load.threads, huge, wait_ms];
    command.args(numbers.map(|number| number.to_string())).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD").stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| Failure::system(format!("the loop can't be started: {error}")))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match (output.status.success(), &*numbers) {
        (true, &[wall_ns, cpu_ns, all_cpu_ns, peak_kib]) => {
            Ok(Figures { wall_ns, cpu_ns, all_cpu_ns, peak_kib })
        }
        _ => Err(Failure::system(format!("the loop ended with {}", output.status))),
    }
}

/// Given to whoever has something to populate: more than it takes.
const WAIT_MS: u64 = 1500;

fn summarize(load: Load, way: Way, which: usize, rounds: &[[Figures; 3]]) -> Row {
    let middle = |of: fn(&Figures) -> f64| {
        median(&rounds.iter().map(|round| of(&round[which])).collect::<Vec<_>>())
    };
    // A first touch is one thread's: there processor time is what is compared.
    let of = |figures: &Figures| if load.ready { figures.cpu_ns } else { figures.wall_ns };
    let against = |peer: usize| {
        let ratio = |round: &[Figures; 3]| of(&round[peer]) / of(&round[which]);
        let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
        (median(&ratios), interval(&ratios))
    };
    let (small, huge) = (against(0), against(1));
    Row {
        load: load.name,
        way,
        wall_ns: middle(|figures| figures.wall_ns),
        cpu_ns: middle(|figures| figures.cpu_ns),
        all_cpu_ns: middle(|figures| figures.all_cpu_ns),
        peak_kib: middle(|figures| figures.peak_kib),
        times_faster_than_4k: small.0,
        times_faster_than_4k_low: small.1 .0,
        times_faster_than_4k_high: small.1 .1,
        times_faster_than_thp: huge.0,
        times_faster_than_thp_low: huge.1 .0,
        times_faster_than_thp_high: huge.1 .1,
    }
}

fn cells(row: &Row) -> Vec<String> {
    let with_interval =
        |middle: f64, low: f64, high: f64| format!("{middle:.2} [{low:.2}, {high:.2}]");
    vec![
        row.load.to_owned(),
        row.way.name().to_owned(),
        format!("{:.1}", row.wall_ns),
        format!("{:.1}", row.cpu_ns),
        format!("{:.1}", row.all_cpu_ns),
        thousands(row.peak_kib),
        with_interval(
            row.times_faster_than_4k,
            row.times_faster_than_4k_low,
            row.times_faster_than_4k_high,
        ),
        with_interval(
            row.times_faster_than_thp,
            row.times_faster_than_thp_low,
            row.times_faster_than_thp_high,
        ),
    ]
}
