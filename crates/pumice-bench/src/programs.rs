//! `pumice bench programs`: programs that people know, each with its verdict, which may be "nothing".
//!
//! They are loads of [`bench alloc`](super::alloc). Each runs by turns as it is, with glibc told to use huge
//! pages, and under `pumice run`; then `pumice estimate` looks at it as it is, some times. A difference is taken
//! within a round, its interval is Student's (95 %) over the rounds. A bound is a share of the time of the
//! run that was looked at, since what makes faults dear makes that run long; the median of those is shown.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::alloc::allocator::{Allocator, Preload};
use super::alloc::kit::{Kit, Size};
use super::alloc::loads::{Load, LOADS};
use super::alloc::row::Rounds;
use super::alloc::{measure_load, Progress};
use super::interrupts::Interrupts;
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::statistics::{mean_interval, median};
use pumice_command::table::Table;
use pumice_command::Failure;

/// Which of the loads.
const PROGRAMS: [&str; 10] = [
    "c-project",
    "numpy-arithmetic",
    "numpy-zeros-sparse",
    "sklearn-forest",
    "sort",
    "sqlite",
    "gzip",
    "zstd",
    "hash-table",
    LONGEST,
];
/// Not with `--quick`: it takes as long as all the others.
const LONGEST: &str = "sklearn-kmeans";
/// The ways that are compared: the first two are the peers.
const WAYS: [Allocator; 3] = [Allocator::Glibc, Allocator::GlibcHuge, Allocator::Pumice];
/// Looks at each program, and those with `--quick`.
const LOOKS: u32 = 3;
const QUICK_LOOKS: u32 = 2;
/// A bound below this many percent is nothing.
const NOTHING_PCT: f64 = 1.0;

/// What `pumice bench programs` is asked for.
#[derive(Args, Debug)]
pub struct ProgramsArgs {
    /// Rounds; each runs every program once in every way [default: 9, or 4 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: Option<u32>,
    /// Only the programs whose name contains this (can be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fewer rounds and smaller loads
    #[arg(long)]
    quick: bool,
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A row of the table. Times are medians; shares are of the program's time as it is.
#[derive(Debug, Default, Serialize)]
struct Row {
    program: &'static str,
    about: &'static str,
    /// In words.
    verdict: String,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Samples::is_empty")]
    samples: Samples,
}

#[derive(Debug, Serialize)]
struct Figures {
    /// Zero-fill faults, and what follows from them; nothing where the program can't be looked at.
    #[serde(flatten)]
    expected: Option<Expected>,
    plain_s: f64,
    huge_s: f64,
    pumice_s: f64,
    plain_cpu_s: f64,
    pumice_cpu_s: f64,
    plain_peak_mib: f64,
    pumice_peak_mib: f64,
    saved_pct: f64,
    saved_low_pct: f64,
    saved_high_pct: f64,
    huge_saved_pct: f64,
    huge_saved_low_pct: f64,
    huge_saved_high_pct: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Expected {
    zfod: u64,
    bound_s: f64,
    bound_pct: f64,
    /// Where the program writes all of each page.
    bound_low_pct: f64,
    /// Where glibc uses huge pages already.
    bound_over_huge_s: f64,
}

/// What is read of an estimate.
#[derive(Clone, Debug, Deserialize)]
struct Estimate {
    zfod: u64,
    wall_s: f64,
    bound_range_s: Range,
    bound_over_huge_s: Range,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Range {
    low: f64,
    high: f64,
}

/// Runs the programs and prints the table.
pub fn programs(options: &ProgramsArgs) -> Result<ExitCode, Failure> {
    let loads = wanted(&options.only, options.quick)?;
    let mut json = JsonLines::create(options.json.as_deref())?;
    let rounds = options.rounds.unwrap_or(if options.quick { 4 } else { 9 }) as usize;
    let interrupts = Interrupts::take();
    let kit = Kit::new(if options.quick { Size::Small } else { Size::Full })?;
    let mut preloads = Vec::new();
    for way in WAYS {
        preloads.extend(way.find()?.ok());
    }
    println!("Time saved, of the program's time as it is ({rounds} rounds, 95 % intervals)");
    let looks = if options.quick { QUICK_LOOKS } else { LOOKS };
    let table = Table::begin(&[
        ("program", 18),
        ("glibc s", 8),
        ("pumice s", 8),
        ("bound %", 12),
        ("saved %", 22),
        ("huge pages alone %", 22),
        ("verdict", 0),
    ]);
    for (index, load) in loads.iter().enumerate() {
        let place = format!("{} ({} of {})", load.name, index + 1, loads.len());
        let progress = Progress { place, rounds };
        let row = row(load, &kit, &preloads, &interrupts, &progress, looks)?;
        table.row(&cells(&row));
        json.write(&row)?;
    }
    json.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn wanted(only: &[String], quick: bool) -> Result<Vec<&'static Load>, Failure> {
    let of_name = |name: &&str| LOADS.iter().find(|load| load.name == *name);
    let is_wanted = |name: &&str| match only {
        [] => !quick || *name != LONGEST,
        only => only.iter().any(|part| name.contains(part)),
    };
    let loads: Vec<_> = PROGRAMS.iter().filter(|it| is_wanted(it)).filter_map(of_name).collect();
    if loads.is_empty() {
        let (only, names) = (only.join(", ").escape_debug().to_string(), PROGRAMS.join(", "));
        return Err(Failure::usage(format!("no program is called '{only}'; there are {names}")));
    }
    Ok(loads)
}

fn row(
    load: &'static Load,
    kit: &Kit,
    preloads: &[Preload],
    interrupts: &Interrupts,
    progress: &Progress,
    looks: u32,
) -> Result<Row, Failure> {
    let skipped = |why: String| Row {
        program: load.name,
        about: load.about,
        verdict: format!("skipped: {why}"),
        ..Row::default()
    };
    let line = match kit.line(load) {
        Ok(line) => line,
        Err(why) => return Ok(skipped(why)),
    };
    let Some(measured) = measure_load(kit, &line, preloads, interrupts, progress)? else {
        return Ok(skipped("it does not run here".to_owned()));
    };
    let of = |way| measured.iter().find(|rounds: &&Rounds| rounds.allocator == way);
    let (Some(plain), Some(huge), Some(pumice)) = (of(WAYS[0]), of(WAYS[1]), of(WAYS[2])) else {
        return Ok(skipped("it does not run in every way".to_owned()));
    };
    let estimates: Vec<_> = (0..looks).filter_map(|_| estimate(kit, &preloads[0], &line)).collect();
    let figures = Figures::of([plain, huge, pumice], Expected::of(&estimates));
    let samples = [("plain_s", plain), ("huge_s", huge), ("pumice_s", pumice)];
    Ok(Row {
        program: load.name,
        about: load.about,
        verdict: figures.verdict(),
        figures: Some(figures),
        samples: samples.map(|(name, rounds)| (name, rounds.figures(|it| it.wall_s))).into(),
    })
}

/// Looks at the program as it is. `None` where that does not work.
fn estimate(kit: &Kit, plain: &Preload, line: &[OsString]) -> Option<Estimate> {
    let file = kit.folder().join("estimate.json");
    let own = std::env::current_exe().ok()?;
    let words = [own.into(), "estimate".into(), "--json".into(), file.clone().into(), "--".into()];
    let mut command = plain.command(&[&words[..], line].concat());
    command.current_dir(kit.folder()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().ok()?;
    let text = std::fs::read_to_string(file).ok().filter(|_| status.success())?;
    serde_json::from_str(&text).ok()
}

impl Expected {
    /// `None` of none.
    fn of(estimates: &[Estimate]) -> Option<Expected> {
        let middle = |figure: &dyn Fn(&Estimate) -> f64| {
            let all: Vec<_> = estimates.iter().map(figure).collect();
            (!all.is_empty()).then(|| median(&all))
        };
        let percent = |part_s: f64, of: &Estimate| {
            (100.0 * part_s / of.wall_s.max(f64::MIN_POSITIVE)).min(100.0)
        };
        Some(Expected {
            zfod: middle(&|it| it.zfod as f64)? as u64,
            bound_s: middle(&|it| it.bound_range_s.high)?,
            bound_pct: middle(&|it| percent(it.bound_range_s.high, it))?,
            bound_low_pct: middle(&|it| percent(it.bound_range_s.low, it))?,
            bound_over_huge_s: middle(&|it| it.bound_over_huge_s.high)?,
        })
    }
}

impl Figures {
    fn of([plain, huge, pumice]: [&Rounds; 3], expected: Option<Expected>) -> Figures {
        let middle = |rounds: &Rounds, figure| median(&rounds.figures(figure));
        let plain_s = middle(plain, |it| it.wall_s);
        let percent = |seconds: f64| 100.0 * seconds / plain_s.max(f64::MIN_POSITIVE);
        let saved = |by: &Rounds| {
            let pairs = plain.spent.iter().zip(&by.spent);
            let saved: Vec<_> =
                pairs.map(|(plain, by)| percent(plain.wall_s - by.wall_s)).collect();
            let (low, high) = mean_interval(&saved);
            (saved.iter().sum::<f64>() / saved.len() as f64, low, high)
        };
        let (saved_pct, saved_low_pct, saved_high_pct) = saved(pumice);
        let (huge_saved_pct, huge_saved_low_pct, huge_saved_high_pct) = saved(huge);
        Figures {
            expected,
            plain_s,
            huge_s: middle(huge, |it| it.wall_s),
            pumice_s: middle(pumice, |it| it.wall_s),
            plain_cpu_s: middle(plain, |it| it.cpu_s),
            pumice_cpu_s: middle(pumice, |it| it.cpu_s),
            plain_peak_mib: middle(plain, |it| it.peak_kib) / 1024.0,
            pumice_peak_mib: middle(pumice, |it| it.peak_kib) / 1024.0,
            saved_pct,
            saved_low_pct,
            saved_high_pct,
            huge_saved_pct,
            huge_saved_low_pct,
            huge_saved_high_pct,
        }
    }

    fn verdict(&self) -> String {
        let bound_pct = self.expected.map(|expected| expected.bound_pct);
        let mut words = if self.saved_low_pct > 0.0 {
            format!("pumice saves {:.1} %", self.saved_pct)
        } else if self.saved_high_pct < 0.0 {
            format!("pumice costs {:.1} %: leave it as it is", -self.saved_pct)
        } else {
            match bound_pct {
                Some(bound) if bound < NOTHING_PCT => "nothing: don't bother".to_owned(),
                _ => "too close to call".to_owned(),
            }
        };
        if self.huge_saved_low_pct > 0.0 {
            words += &format!("; huge pages alone save {:.1} %", self.huge_saved_pct);
        }
        match bound_pct {
            None => words += "; its faults can't be counted here",
            Some(bound) if self.saved_low_pct > bound => words += "; more than its faults explain",
            Some(_) => {}
        }
        words
    }
}

fn cells(row: &Row) -> Vec<String> {
    let Some(figures) = &row.figures else {
        let empty = std::iter::repeat_n(String::new(), 5);
        let name = std::iter::once(row.program.to_owned());
        return name.chain(empty).chain([row.verdict.clone()]).collect();
    };
    let range = |middle: f64, low: f64, high: f64| format!("{middle:+.1} [{low:+.1}, {high:+.1}]");
    vec![
        row.program.to_owned(),
        format!("{:.3}", figures.plain_s),
        format!("{:.3}", figures.pumice_s),
        figures.expected.map_or_else(
            || "?".to_owned(),
            |it| format!("{:.1} to {:.1}", it.bound_low_pct, it.bound_pct),
        ),
        range(figures.saved_pct, figures.saved_low_pct, figures.saved_high_pct),
        range(figures.huge_saved_pct, figures.huge_saved_low_pct, figures.huge_saved_high_pct),
        row.verdict.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::alloc::measure::Spent;
    use super::*;

    fn rounds(allocator: Allocator, wall_s: &[f64]) -> Rounds {
        let spent =
            |&wall_s: &f64| Spent { wall_s, cpu_s: wall_s, peak_kib: 2048.0, ..Spent::default() };
        Rounds { allocator, spent: wall_s.iter().map(spent).collect() }
    }

    fn figures(pumice: &[f64], bound_s: f64) -> Figures {
        let plain = [1.0, 1.01, 0.99, 1.0];
        let range = |high: f64| Range { low: high / 2.0, high };
        let estimate = |by: f64| Estimate {
            zfod: 7,
            wall_s: by,
            bound_range_s: range(bound_s * by),
            bound_over_huge_s: range(0.0),
        };
        // A slow run and a fast one say the same.
        let expected = Expected::of(&[1.0, 2.0, 0.5].map(estimate));
        let [plain, huge] = [Allocator::Glibc, Allocator::GlibcHuge].map(|it| rounds(it, &plain));
        Figures::of([&plain, &huge, &rounds(Allocator::Pumice, pumice)], expected)
    }

    #[test]
    fn verdicts_are_what_was_measured() {
        let saves = figures(&[0.8, 0.81, 0.79, 0.8], 0.3);
        assert!((saves.saved_pct - 20.0).abs() < 0.1 && saves.plain_peak_mib == 2.0, "{saves:?}");
        assert_eq!(saves.verdict(), "pumice saves 20.0 %");
        let expected = saves.expected.expect("looked at");
        assert_eq!((expected.bound_pct, expected.bound_low_pct), (30.0, 15.0));
        assert!(Expected::of(&[]).is_none());
        let more = figures(&[0.8, 0.81, 0.79, 0.8], 0.1).verdict();
        assert_eq!(more, "pumice saves 20.0 %; more than its faults explain");
        let costs = figures(&[1.1, 1.11, 1.09, 1.1], 0.001).verdict();
        assert_eq!(costs, "pumice costs 10.0 %: leave it as it is");
        let same = [0.99, 1.0, 1.01, 1.0];
        assert_eq!(figures(&same, 0.001).verdict(), "nothing: don't bother");
        assert_eq!(figures(&same, 0.1).verdict(), "too close to call");
    }

    #[test]
    fn every_program_is_a_load() {
        assert_eq!(wanted(&[], false).expect("all").len(), PROGRAMS.len());
        assert_eq!(wanted(&[], true).expect("all but one").len(), PROGRAMS.len() - 1);
        assert_eq!(wanted(&["sklearn".to_owned()], true).expect("two").len(), 2);
        assert!(wanted(&["no such".to_owned()], false).is_err());
    }
}
