//! `pumice bench replace`: the share of a trace's references that each replacement policy finds in memory.
//!
//! No memory is used and no time is measured: ours are the very policies that reclaim runs
//! ([`pumice_paging::reclaim`]), the others are as published ([`peers`]), and [`opt`] knows the references to come. A
//! memory is empty at first, so first references count against all of them. Without a trace of yours, some are
//! [`made`] up.

mod curve;
mod live;
mod made;
mod opt;
mod ours;
mod peers;
mod queue;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::{Adaptive, TwoList};
use serde_json::json;

use super::harness::{Output, OutputArgs};
use super::registry::paging::{HITS_AGAINST_FRAMES, REPLACE};
use super::registry::Row;
use curve::Point;
use live::Reclaimer;
use opt::Opt;
use ours::Ours;
use peers::{Arc, Cache, Clock, ClockPro, Lirs, Oldest, S3Fifo, Sieve, TwoQ};
use pumice_command::table::Table;
use pumice_command::Failure;
use trace::Trace;

/// The policies, as the table has them.
const POLICIES: [&str; 12] = [
    "fifo",
    "lru",
    "clock",
    "2q",
    "arc",
    "lirs",
    "s3-fifo",
    "sieve",
    "clock-pro",
    "two-list",
    "adaptive",
    "opt",
];
/// The policies of a curve.
const OF_CURVE: [&str; 3] = ["lru", "adaptive", "opt"];
/// A curve says where so much of the most hits begins.
const MOST_OF_IT: f64 = 0.95;
/// Those that are run unless others are asked for.
const USUAL: [&str; 7] = ["fifo", "lru", "clock", "2q", "two-list", "adaptive", "opt"];
/// References between two looks at the bar.
const STRIDE: usize = 1 << 16;
/// As many as a zone has at most.
const MOST_FRAMES: i64 = (1 << 28) - 1;

/// Options of `pumice bench replace`.
#[derive(Args, Debug)]
pub struct ReplaceArgs {
    /// References to pages, as text, which zstd may have compressed: a page's number a line, as 'pumice trace' writes
    /// it, or as in the ARC paper's traces 'first_page number_of_pages ignored request_number' [default: some that
    /// are made up]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many frames there are, such as 1000,5000,15000
    #[arg(long, value_name = "LIST", default_value = "1000,4000,16000", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=MOST_FRAMES))]
    frames: Vec<u32>,
    /// Only these policies, of fifo, lru, clock, 2q, arc, lirs, s3-fifo, sieve, clock-pro, two-list, adaptive, opt
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = POLICIES)]
    only: Vec<String>,
    /// All of these policies, and not only fifo, lru, clock, 2q, two-list, adaptive and opt
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Hit ratios from a thousandth of the pages up to all of them, by lru, adaptive and opt unless others are asked
    /// for; of a sample of the pages where there are many
    #[arg(long, conflicts_with = "frames")]
    curve: bool,
    /// With real pages and reclaim, beside what is simulated: lru, 2q and adaptive unless others are asked for, and
    /// two-list if it is. Pages are taken out by kswapd, or by the thread that needs a frame
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true, default_missing_value = "kswapd",
          conflicts_with_all = ["curve", "all", "plot"])]
    live: Option<Reclaimer>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs all policies over the trace, or over those that are made up.
pub fn replace(options: &ReplaceArgs) -> Result<(), Failure> {
    let mut traces = match &options.trace {
        Some(path) => vec![trace::read(path)?],
        None => made::traces(),
    };
    let is_of_lines = options.trace.is_some() || options.curve;
    let plot = if is_of_lines { &HITS_AGAINST_FRAMES } else { &REPLACE.plots[0] };
    let mut output = Output::create(&options.output, plot)?;
    let policies: Vec<&'static str> = POLICIES
        .into_iter()
        .filter(|policy| match options.only[..] {
            [] if options.live.is_some() => live::USUAL.contains(policy),
            [] if options.curve => options.all || OF_CURVE.contains(policy),
            [] => options.all || USUAL.contains(policy),
            _ => options.only.iter().any(|one| one == policy),
        })
        .collect();
    if options.live.is_some() {
        live::check(&policies, &options.frames)?;
    }
    let points_of = |trace: &Trace| {
        let one_in = trace.one_in();
        options.frames.iter().map(|&frames| Point::of(frames, one_in)).collect()
    };
    let mut points: Vec<Vec<Point>> = traces.iter().map(points_of).collect();
    if options.curve {
        let curve_of = |trace| {
            let (trace, one_in) = curve::sample(trace);
            let points = curve::points(trace.pages, one_in);
            (trace, points)
        };
        (traces, points) = traces.into_iter().map(curve_of).unzip();
    }
    let runs =
        traces.iter().zip(&points).map(|(trace, points)| trace.references.len() * points.len());
    let times = if options.live.is_some() { 2 } else { 1 };
    let bar = bar(times * runs.sum::<usize>() * policies.len());
    for (trace, points) in traces.iter().zip(&points) {
        if let Some(reclaimer) = options.live {
            let simulate = |policy: &str, frames| hits(policy, frames, trace, &[], &bar);
            let of = (&policies[..], &points[..]);
            live::run_trace(trace, of, reclaimer, &mut output, &bar, &simulate)?;
            continue;
        }
        let ratios = run_trace(trace, &policies, points, &mut output, &bar)?;
        if options.curve {
            bar.suspend(|| print_most(&policies, points, &ratios, trace.page_bytes));
        }
    }
    bar.finish_and_clear();
    output.finish()
}

/// Prints where a curve has most of its hits.
fn print_most(policies: &[&str], points: &[Point], ratios: &[Vec<f64>], page_bytes: Option<u64>) {
    for (nth, policy) in policies.iter().enumerate() {
        let curve: Vec<_> =
            points.iter().zip(ratios).map(|(point, row)| (point.frames, row[nth])).collect();
        if let Some(frames) = curve::frames_for(MOST_OF_IT, &curve) {
            let percent = MOST_OF_IT * 100.0;
            let size = page_bytes.map_or(String::new(), |bytes| {
                format!(" ({:.1} MiB)", bytes as f64 * f64::from(frames) / f64::from(1 << 20))
            });
            println!(
                "{policy}: {percent} % of the hits that all memory gives, from {frames} frames{size} on"
            );
        }
    }
}

/// Prints a table of one trace. Returns the hit ratios, a row for each point.
fn run_trace(
    trace: &Trace,
    policies: &[&'static str],
    points: &[Point],
    output: &mut Output,
    bar: &ProgressBar,
) -> Result<Vec<Vec<f64>>, Failure> {
    let (references, pages) = (trace.references.len(), trace.pages);
    let mut columns = vec![("frames", 10)];
    columns.extend(policies.iter().map(|&policy| (policy, 9)));
    let shown = bar.suspend(|| {
        let of_a_share = match trace.share {
            Some(share) => format!(", a sample of {share} of the pages; frames are for all pages"),
            None => String::new(),
        };
        let (of_all, simulated) = match trace.whole {
            Some(whole) => {
                let simulated = format!("; of these 1/{} are simulated", whole.one_in);
                ((whole.references, whole.pages), simulated)
            }
            None => ((references, pages), String::new()),
        };
        println!(
            "{}: {} references to {} pages{of_a_share}{simulated}; hits in percent",
            trace.name, of_all.0, of_all.1
        );
        Table::begin(&columns)
    });
    let next_uses = opt::next_uses(&trace.references, pages);
    let mut ratios = Vec::new();
    for &Point { frames, simulated } in points {
        let mut cells = vec![frames.to_string()];
        let mut row = Vec::new();
        for &policy in policies {
            let hits = hits(policy, simulated, trace, &next_uses, bar);
            let hit_ratio = hits as f64 / references as f64;
            let hit_pct = 100.0 * hit_ratio;
            // The ratio is from 0 to 1.
            output.keep(Row::of(json!({
                "trace": trace.name,
                "policy": policy,
                "frames": frames,
                "hit_ratio": hit_ratio,
                "hit_pct": hit_pct,
            })))?;
            cells.push(format!("{hit_pct:.2}"));
            row.push(hit_ratio);
        }
        bar.suspend(|| shown.row(&cells));
        ratios.push(row);
    }
    Ok(ratios)
}

/// How far it is, if somebody looks.
fn bar(references: usize) -> ProgressBar {
    let bar = ProgressBar::new(references as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent} %, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn hits(policy: &str, frames: u32, trace: &Trace, next_uses: &[u32], bar: &ProgressBar) -> usize {
    let pages = trace.pages;
    // More than all pages need make no difference.
    let frames = (frames as usize).min(pages);
    let run = |cache: &mut dyn Cache| {
        let mut hits = 0;
        for stretch in trace.references.chunks(STRIDE) {
            hits += stretch.iter().filter(|&&page| cache.access(page)).count();
            bar.inc(stretch.len() as u64);
        }
        hits
    };
    match policy {
        "fifo" => run(&mut Oldest::fifo(frames, pages)),
        "lru" => run(&mut Oldest::lru(frames, pages)),
        "clock" => run(&mut Clock::new(frames, pages)),
        "2q" => run(&mut TwoQ::new(frames, pages)),
        "arc" => run(&mut Arc::new(frames, pages)),
        "lirs" => run(&mut Lirs::new(frames, pages)),
        "s3-fifo" => run(&mut S3Fifo::new(frames, pages)),
        "sieve" => run(&mut Sieve::new(frames, pages)),
        "clock-pro" => run(&mut ClockPro::new(frames, pages)),
        "two-list" => {
            let mut entries = table::<TwoList<'_>>(frames);
            run(&mut Ours::new(TwoList::new(&mut entries), frames, pages))
        }
        "adaptive" => {
            let mut entries = table::<Adaptive<'_>>(frames);
            run(&mut Ours::new(Adaptive::new(&mut entries), frames, pages))
        }
        _ => run(&mut Opt::new(frames, pages, next_uses)),
    }
}
