//! `pumice bench programs`: programs that people know, each with its verdict, which may be "nothing".
//!
//! They are loads of [`bench alloc`](super::alloc). Each runs by turns as it is, with glibc told to use huge
//! pages, and under `pumice run`; then `pumice estimate` looks at it as it is, some times. A difference is taken
//! within a round, its interval is Student's (95 %) over the rounds. A bound is a share of the time of the
//! run that was looked at, since a cause of dear faults makes that run long; the median of those is shown.

use std::process::Stdio;

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::alloc::allocator::Allocator;
use super::alloc::kit::{Kit, Ready, Size};
use super::alloc::loads::{Load, LOADS};
use super::alloc::rounds::Bench;
use super::alloc::row::Rounds;
use super::harness::{middle, Output, OutputArgs};
use super::registry::field::{float, number};
use super::registry::worth::PROGRAMS;
use super::registry::Row;
use super::slot_daemon::own_program;
use pumice_command::statistics::{mean_interval, Ratio};
use pumice_command::Failure;

/// Which of the loads.
const NAMES: [&str; 9] = [
    "c-project",
    "numpy-arithmetic",
    "numpy-zeros-sparse",
    "sort",
    "sqlite",
    "gzip",
    "zstd",
    "hash-table",
    LONGEST,
];
/// Not with `--quick`, whose programs are to take a minute.
const LONGEST: &str = "sklearn";
/// The ways that are compared: the first two are the peers.
const WAYS: [Allocator; 3] = [Allocator::Glibc, Allocator::GlibcHuge, Allocator::Pumice];
/// Looks at each program, and those with `--quick`.
const LOOKS: u32 = 3;
const QUICK_LOOKS: u32 = 2;
/// A bound below this many percent is nothing.
const NOTHING_PCT: f64 = 1.0;

/// Options of `pumice bench programs`.
#[derive(Args, Debug)]
pub struct ProgramsArgs {
    /// Rounds; each runs every program once in every way [default: 9, or 4 with --quick]
    #[arg(long, value_name = "N", default_value = "9", default_value_if("quick", "true", "4"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Only the programs whose name contains this (can be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fewer rounds and smaller loads
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputArgs,
}

const SAVED: [&str; 3] = ["saved_pct", "saved_low_pct", "saved_high_pct"];
const HUGE_SAVED: [&str; 3] = ["huge_saved_pct", "huge_saved_low_pct", "huge_saved_high_pct"];

/// The fields of an estimate that are used.
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
pub fn programs(options: &ProgramsArgs) -> Result<(), Failure> {
    let loads = wanted(&options.only, options.quick)?;
    let mut output = Output::create(&options.output, &PROGRAMS.plots[0])?;
    let rounds = options.rounds as usize;
    let kit = Kit::new(if options.quick { Size::Small } else { Size::Full })?;
    let mut preloads = Vec::new();
    for way in WAYS {
        preloads.extend(way.find()?.ok());
    }
    let mut bench = Bench::new(kit, preloads, rounds);
    println!("Time saved, of the program's time as it is ({rounds} rounds, 95 % intervals)");
    let looks = if options.quick { QUICK_LOOKS } else { LOOKS };
    output.begin(&PROGRAMS.tables[0]);
    for (index, load) in loads.iter().enumerate() {
        let place = format!("{} ({} of {})", load.name, index + 1, loads.len());
        output.show(row(load, &mut bench, place, looks)?)?;
    }
    output.finish()
}

fn wanted(only: &[String], quick: bool) -> Result<Vec<&'static Load>, Failure> {
    let of_name = |name: &&str| LOADS.iter().find(|load| load.name == *name);
    let is_wanted = |name: &&str| match only {
        [] => !quick || *name != LONGEST,
        only => only.iter().any(|part| name.contains(part)),
    };
    let loads: Vec<_> = NAMES.iter().filter(|it| is_wanted(it)).filter_map(of_name).collect();
    if loads.is_empty() {
        let (only, names) = (only.join(", ").escape_debug().to_string(), NAMES.join(", "));
        return Err(Failure::usage(format!("no program is called '{only}'; there are {names}")));
    }
    Ok(loads)
}

fn row(load: &'static Load, bench: &mut Bench, place: String, looks: u32) -> Result<Row, Failure> {
    let row = Row::of(json!({"program": load.name, "about": load.about}));
    let skipped = |why: String| row.clone().set("verdict", format!("skipped: {why}"));
    bench.look()?;
    let ready = match bench.kit.ready(load) {
        Ok(ready) => ready,
        Err(why) => return Ok(skipped(why)),
    };
    let progress = bench.progress(place);
    let Some(measured) = bench.measure(&ready, &progress)? else {
        return Ok(skipped("it does not run here".to_owned()));
    };
    let [Some(plain), Some(huge), Some(pumice)] = WAYS.map(|way| measured.of(way)) else {
        return Ok(skipped("it does not run in every way".to_owned()));
    };
    let estimates: Vec<_> = (0..looks).filter_map(|_| estimate(bench, &ready)).collect();
    let row = with_figures(with_expected(row, &estimates), [plain, huge, pumice]);
    let row = row.set("repeated_rounds", measured.repeated).set("cold_rounds", measured.cold);
    let verdict = verdict(&row);
    Ok(row.set("verdict", verdict))
}

/// Looks at the program as it is. `None` where that does not work.
fn estimate(bench: &Bench, load: &Ready) -> Option<Estimate> {
    let folder = bench.kit.folder();
    let plain = bench.preloads.first()?;
    let file = folder.join("estimate.json");
    let own = own_program().ok()?;
    let words = [own.into(), "estimate".into(), "--json".into(), file.clone().into(), "--".into()];
    let mut command = plain.command(&[&words[..], &load.line].concat());
    command.current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().ok()?;
    let text = std::fs::read_to_string(file).ok().filter(|_| status.success())?;
    serde_json::from_str(&text).ok()
}

/// With zero-fill faults, and what follows from them; without, where the program could not be looked at.
fn with_expected(row: Row, estimates: &[Estimate]) -> Row {
    if estimates.is_empty() {
        return row;
    }
    let percent =
        |part_s: f64, of: &Estimate| (100.0 * part_s / of.wall_s.max(f64::MIN_POSITIVE)).min(100.0);
    row.set("zfod", middle(estimates, |it| it.zfod as f64) as u64)
        .set("bound_s", middle(estimates, |it| it.bound_range_s.high))
        .set("bound_pct", middle(estimates, |it| percent(it.bound_range_s.high, it)))
        // Where the program writes all of each page.
        .set("bound_low_pct", middle(estimates, |it| percent(it.bound_range_s.low, it)))
        // Where glibc uses huge pages already.
        .set("bound_over_huge_s", middle(estimates, |it| it.bound_over_huge_s.high))
}

fn with_figures(row: Row, [plain, huge, pumice]: [&Rounds; 3]) -> Row {
    let plain_s = middle(&plain.spent, |it| it.wall_s);
    let percent = |seconds: f64| 100.0 * seconds / plain_s.max(f64::MIN_POSITIVE);
    let saved = |by: &Rounds| {
        let pairs = plain.spent.iter().zip(&by.spent);
        let saved: Vec<_> = pairs.map(|(plain, by)| percent(plain.wall_s - by.wall_s)).collect();
        let (low, high) = mean_interval(&saved);
        Ratio { median: saved.iter().sum::<f64>() / saved.len() as f64, low, high }
    };
    row.sampled("plain_s", plain.figures(|it| it.wall_s))
        .sampled("huge_s", huge.figures(|it| it.wall_s))
        .sampled("pumice_s", pumice.figures(|it| it.wall_s))
        .set("plain_cpu_s", middle(&plain.spent, |it| it.cpu_s))
        .set("pumice_cpu_s", middle(&pumice.spent, |it| it.cpu_s))
        .set("plain_peak_mib", middle(&plain.spent, |it| it.peak_kib / 1024.0))
        .set("pumice_peak_mib", middle(&pumice.spent, |it| it.peak_kib / 1024.0))
        .interval(SAVED, saved(pumice))
        .interval(HUGE_SAVED, saved(huge))
}

fn verdict(row: &Row) -> String {
    let bound_pct = number(row, "bound_pct");
    let [saved, low, high] = SAVED.map(|field| float(row, field));
    let mut words = if low > 0.0 {
        format!("pumice saves {saved:.1} %")
    } else if high < 0.0 {
        format!("pumice costs {:.1} %: leave it as it is", -saved)
    } else {
        match bound_pct {
            Some(bound) if bound < NOTHING_PCT => "nothing: don't bother".to_owned(),
            _ => "too close to call".to_owned(),
        }
    };
    let [huge_saved, huge_low, _] = HUGE_SAVED.map(|field| float(row, field));
    if huge_low > 0.0 {
        words += &format!("; huge pages alone save {huge_saved:.1} %");
    }
    match bound_pct {
        None => words += "; its faults can't be counted here",
        Some(bound) if low > bound => words += "; more than its faults explain",
        Some(_) => {}
    }
    words
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

    fn figures(pumice: &[f64], bound_s: f64) -> Row {
        let plain = [1.0, 1.01, 0.99, 1.0];
        let range = |high: f64| Range { low: high / 2.0, high };
        let estimate = |by: f64| Estimate {
            zfod: 7,
            wall_s: by,
            bound_range_s: range(bound_s * by),
            bound_over_huge_s: range(0.0),
        };
        // A slow run and a fast one say the same.
        let expected = with_expected(Row::default(), &[1.0, 2.0, 0.5].map(estimate));
        let [plain, huge] = [Allocator::Glibc, Allocator::GlibcHuge].map(|it| rounds(it, &plain));
        with_figures(expected, [&plain, &huge, &rounds(Allocator::Pumice, pumice)])
    }

    #[test]
    fn verdicts_are_what_was_measured() {
        let saves = figures(&[0.8, 0.81, 0.79, 0.8], 0.3);
        assert!((float(&saves, "saved_pct") - 20.0).abs() < 0.1, "{saves:?}");
        assert_eq!(float(&saves, "plain_peak_mib"), 2.0);
        assert_eq!(verdict(&saves), "pumice saves 20.0 %");
        let bounds = ["bound_pct", "bound_low_pct"].map(|field| float(&saves, field));
        assert_eq!(bounds, [30.0, 15.0]);
        assert_eq!(with_expected(Row::default(), &[]), Row::default());
        let more = verdict(&figures(&[0.8, 0.81, 0.79, 0.8], 0.1));
        assert_eq!(more, "pumice saves 20.0 %; more than its faults explain");
        let costs = verdict(&figures(&[1.1, 1.11, 1.09, 1.1], 0.001));
        assert_eq!(costs, "pumice costs 10.0 %: leave it as it is");
        let same = [0.99, 1.0, 1.01, 1.0];
        assert_eq!(verdict(&figures(&same, 0.001)), "nothing: don't bother");
        assert_eq!(verdict(&figures(&same, 0.1)), "too close to call");
    }

    #[test]
    fn every_program_is_a_load() {
        assert_eq!(wanted(&[], false).expect("all").len(), NAMES.len());
        assert_eq!(wanted(&[], true).expect("all but one").len(), NAMES.len() - 1);
        assert_eq!(wanted(&["sklearn".to_owned()], true).expect("one").len(), 1);
        assert!(wanted(&["no such".to_owned()], false).is_err());
    }
}
