//! `pumice bench compare`: the differences between two files of results, and whether they are more than noise.
//!
//! Rows are paired by their subject (the registry's keys), figures by name. A figure's change is the ratio of
//! its medians, for shares in percent their difference. Its interval is Welch's: 99 %, over the
//! logarithms of the rounds that both files have kept (over the rounds themselves for shares), and a quarter
//! wider, as medians vary that much more than means. For ratios it is made wider, either way, by as much as
//! the calibration loops around that experiment differ between the files: rounds of one run had the same
//! weather, two runs have not. A change outside it is more than noise. A figure of which a file has fewer than two
//! rounds, or rounds that are all the same (a clock too coarse to show how they differ), can't be told. One that is the
//! same each time by its nature differs if it differs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::registry::field::{identity, number, samples, text, Row};
use super::registry::{entry, Better, Entry, Figure, Scale};
use super::results::{Ending, Measured, Results};
use crate::names::named;
use pumice_command::statistics::{welch_99, MEDIAN_TO_MEAN};
use pumice_command::table::Table;
use pumice_command::whole_file::write_whole;
use pumice_command::{Explain, Failure};

/// Rows of one file only that are named.
const MOST_NAMED: usize = 5;
/// The exit status where both files could be read and something is worse.
const STATUS_SOMETHING_WORSE: u8 = 1;

const STATUS_HELP: &str = "\
Exit status:
  0  no figure is worse by more than noise
  1  some figure is
  2  a file can't be used
";

/// Options of `pumice bench compare`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct CompareArgs {
    /// Results that 'pumice bench all --json' wrote before
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Results that it wrote after
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Show unchanged figures, too
    #[arg(long)]
    unchanged: bool,
    /// Also write everything to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

named! {
    /// The kind of a change.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    enum Verdict {
        Worse = "worse",
        Better = "better",
        WithinNoise = "within noise",
        /// Too few rounds were kept.
        CantTell = "can't tell",
    }
}

/// One figure of one row.
#[derive(Debug, Serialize)]
struct Change {
    experiment: String,
    /// The row's keys.
    row: BTreeMap<&'static str, String>,
    figure: &'static str,
    unit: &'static str,
    before: f64,
    after: f64,
    /// After by before, or after less before, and its interval.
    #[serde(flatten)]
    by: By,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum By {
    Ratio { ratio: f64, low: Option<f64>, high: Option<f64> },
    Difference { difference: f64, low: Option<f64>, high: Option<f64> },
}

/// Everything.
#[derive(Debug, Serialize)]
struct Comparison {
    format: &'static str,
    version: u32,
    warnings: Vec<String>,
    changes: Vec<Change>,
}

/// Compares, prints, and returns the exit status.
pub fn compare(options: &CompareArgs) -> Result<u8, Failure> {
    let [before, after] = [&options.before, &options.after].map(|path| Results::load(path));
    let comparison = comparison(&before?, &after?);
    print(&comparison, options.unchanged);
    if let Some(path) = &options.json {
        let text = serde_json::to_string(&comparison)
            .or_fail(format_args!("can't write {}", path.display()))?;
        write_whole(path, &(text + "\n"))?;
    }
    let is_worse = comparison.changes.iter().any(|change| change.verdict == Verdict::Worse);
    Ok(if is_worse { STATUS_SOMETHING_WORSE } else { 0 })
}

fn comparison(before: &Results, after: &Results) -> Comparison {
    let mut warnings = warnings(before, after);
    let mut changes = Vec::new();
    for one in &before.experiments {
        let Some(other) = after.experiment(&one.name) else {
            warnings.push(format!("{} is only in the first file", one.name));
            continue;
        };
        match entry(&one.name) {
            None => warnings.push(format!("this pumice knows no experiment {}", one.name)),
            Some(entry) => compare_experiment(entry, [one, other], &mut warnings, &mut changes),
        }
    }
    for other in &after.experiments {
        if before.experiment(&other.name).is_none() {
            warnings.push(format!("{} is only in the second file", other.name));
        }
    }
    Comparison { format: "pumice-bench-comparison", version: 1, warnings, changes }
}

fn warnings(before: &Results, after: &Results) -> Vec<String> {
    let mut warnings = before.machine.differences(&after.machine);
    if !warnings.is_empty() {
        warnings.insert(0, "the machines or their software differ, so figures may, too".to_owned());
    }
    if before.quick != after.quick {
        warnings.push("one is a quick run and the other is not: sizes differ".to_owned());
    }
    for (which, results) in [("first", before), ("second", after)] {
        if !results.complete {
            warnings.push(format!("the {which} file's run did not come to its end"));
        }
    }
    warnings
}

fn compare_experiment(
    entry: &'static Entry,
    both: [&Measured; 2],
    warnings: &mut Vec<String>,
    changes: &mut Vec<Change>,
) {
    let [one, other] = both;
    let name = entry.name;
    for measured in both {
        if measured.state != Ending::Complete {
            let why = measured.why.as_deref().unwrap_or("no reason is given");
            warnings.push(format!("{name} was {}: {why}", measured.state.name()));
        }
    }
    if one.arguments != other.arguments {
        warnings.push(format!("{name} ran with other arguments: not compared"));
        return;
    }
    let weather = between(one, other);
    let after = keyed(entry, &other.rows);
    let before = keyed(entry, &one.rows);
    for (key, row) in &before {
        let Some(then) = after.get(key) else { continue };
        let both = [*row, *then];
        changes.extend(entry.figures.iter().filter_map(|it| change(entry, it, both, weather)));
    }
    if both.iter().all(|measured| measured.state == Ending::Complete) {
        for (which, ours, theirs) in [("first", &before, &after), ("second", &after, &before)] {
            let only: Vec<_> = ours.keys().filter(|key| !theirs.contains_key(key)).collect();
            warnings.extend(only_in(name, which, &only));
        }
    }
}

/// Rows that are in one file only, by their keys; some of them, where there are many.
fn only_in(name: &str, which: &str, rows: &[&(Vec<String>, usize)]) -> Option<String> {
    let words = |(keys, _): &&(Vec<String>, usize)| {
        let words: Vec<_> = keys.iter().filter(|key| !key.is_empty()).cloned().collect();
        words.join(" ")
    };
    let named: Vec<_> = rows.iter().take(MOST_NAMED).map(words).collect();
    let more = match rows.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = match rows.len() {
        0 => return None,
        1 => "1 row is".to_owned(),
        count => format!("{count} rows are"),
    };
    Some(format!("{name}: {count} only in the {which} file: {}{more}", named.join("; ")))
}

/// How far the weather of two measurements is apart.
fn between(one: &Measured, other: &Measured) -> f64 {
    let pairs = one.weather.iter().zip(&other.weather);
    pairs.map(|(one, other)| one.drift(other)).fold(0.0, f64::max)
}

/// Rows by their subject. Those measured more than once are told apart by their order.
fn keyed<'r>(entry: &Entry, rows: &'r [Row]) -> BTreeMap<(Vec<String>, usize), &'r Row> {
    let mut keyed = BTreeMap::new();
    for row in rows {
        let key = identity(entry.keys, row);
        let times = keyed.keys().filter(|(other, _)| *other == key).count();
        keyed.insert((key, times), row);
    }
    keyed
}

/// The change of a figure; `None` where a row has none.
fn change(
    entry: &'static Entry,
    figure: &'static Figure,
    both: [&Row; 2],
    weather: f64,
) -> Option<Change> {
    let [before, after] = [number(both[0], figure.field)?, number(both[1], figure.field)?];
    let rounds = both.map(|row| samples(row, figure.field));
    let (by, sign) = match figure.scale {
        Scale::Ratio => ratio(before, after, &rounds, weather)?,
        Scale::Difference => difference(before, after, &rounds),
        Scale::Exact => exact(before, after),
    };
    let verdict = match (sign, figure.better) {
        (None, _) => Verdict::CantTell,
        (Some(0), _) => Verdict::WithinNoise,
        (Some(1), Better::More) | (Some(-1), Better::Less) => Verdict::Better,
        _ => Verdict::Worse,
    };
    let keys = entry.keys.iter().map(|&key| (key, text(both[0], key)));
    Some(Change {
        experiment: entry.name.to_owned(),
        row: keys.filter(|(_, value)| !value.is_empty()).collect(),
        figure: figure.field,
        unit: figure.unit,
        before,
        after,
        by,
        verdict,
    })
}

/// The ratio, and whether it is more or less than 1 for sure. `None` where there is none.
fn ratio(
    before: f64,
    after: f64,
    rounds: &[Vec<f64>; 2],
    weather: f64,
) -> Option<(By, Option<i8>)> {
    let ratio = Some(after / before).filter(|ratio| ratio.is_finite() && *ratio > 0.0)?;
    let logarithms = rounds.each_ref().map(|rounds| {
        let above_0 = rounds.iter().filter(|&&round| round > 0.0);
        above_0.map(|round| round.ln()).collect::<Vec<_>>()
    });
    let reach = median_reach(&logarithms).map(|reach| reach + weather.ln_1p());
    let (low, high) = (reach.map(|it| ratio * (-it).exp()), reach.map(|it| ratio * it.exp()));
    Some((By::Ratio { ratio, low, high }, sign(low, high, 1.0)))
}

fn difference(before: f64, after: f64, rounds: &[Vec<f64>; 2]) -> (By, Option<i8>) {
    let difference = after - before;
    let reach = median_reach(rounds);
    let (low, high) = (reach.map(|it| difference - it), reach.map(|it| difference + it));
    (By::Difference { difference, low, high }, sign(low, high, 0.0))
}

/// A figure that does not vary needs no rounds.
fn exact(before: f64, after: f64) -> (By, Option<i8>) {
    let difference = after - before;
    let ends = Some(difference);
    (By::Difference { difference, low: ends, high: ends }, sign(ends, ends, 0.0))
}

/// Welch's reach is that of means; those in the middle are medians, which vary more.
fn median_reach(rounds: &[Vec<f64>; 2]) -> Option<f64> {
    welch_99(&rounds[0], &rounds[1]).map(|reach| reach * MEDIAN_TO_MEAN)
}

/// On which side of `none` the interval lies; 0 where it has it inside.
fn sign(low: Option<f64>, high: Option<f64>, none: f64) -> Option<i8> {
    match (low?, high?) {
        (low, _) if low > none => Some(1),
        (_, high) if high < none => Some(-1),
        _ => Some(0),
    }
}

fn print(comparison: &Comparison, unchanged: bool) {
    for warning in &comparison.warnings {
        eprintln!("note: {}", harmless(warning));
    }
    let count = |verdict| comparison.changes.iter().filter(|it| it.verdict == verdict).count();
    let is_shown =
        |change: &&Change| unchanged || matches!(change.verdict, Verdict::Worse | Verdict::Better);
    let shown: Vec<_> = comparison.changes.iter().filter(is_shown).collect();
    if !shown.is_empty() {
        let table = Table::begin(&[
            ("experiment", 10),
            ("row", 48),
            ("figure", 12),
            ("before", 12),
            ("after", 12),
            ("change [99 %]", 24),
            ("", 12),
        ]);
        for change in shown {
            let keys = entry(&change.experiment).map_or(&[][..], |entry| entry.keys);
            let row = keys.iter().filter_map(|key| change.row.get(key).map(String::as_str));
            let row: Vec<_> = row.collect();
            table.row(&[
                change.experiment.clone(),
                harmless(&row.join(" ")).chars().take(48).collect(),
                change.figure.to_owned(),
                short(change.before),
                short(change.after),
                change.by.words(),
                change.verdict.name().to_owned(),
            ]);
        }
    }
    let all = comparison.changes.len();
    println!(
        "{all} figures: {} worse, {} better, {} within noise, {} can't be told; by chance alone, {:.0} would differ",
        count(Verdict::Worse),
        count(Verdict::Better),
        count(Verdict::WithinNoise),
        count(Verdict::CantTell),
        (all - count(Verdict::CantTell)) as f64 / 100.0
    );
}

/// Text of a file, with the letters escaped that a terminal takes for orders.
fn harmless(text: &str) -> String {
    let letter = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(letter).collect()
}

impl By {
    fn words(self) -> String {
        let (value, low, high, sign) = match self {
            By::Ratio { ratio, low, high } => (format!("x {ratio:.3}"), low, high, ""),
            By::Difference { difference, low, high } => {
                (format!("{difference:+.2}"), low, high, "+")
            }
        };
        match (low, high, sign) {
            (Some(low), Some(high), "+") => format!("{value} [{low:+.2}, {high:+.2}]"),
            (Some(low), Some(high), _) => format!("{value} [{low:.3}, {high:.3}]"),
            _ => value,
        }
    }
}

/// Four digits or so.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => pumice_command::table::thousands(value),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machine::Machine;
    use crate::weather::{Noise, Weather};

    fn results(rows: &[(&str, &[f64])], fault_ns: f64) -> Results {
        let mut results = Results::new("2026-01-02T03:04:05Z".to_owned(), true, Machine::default());
        let weather = Weather { compute_ms: vec![10.0], zero_ns: 100.0, fault_ns };
        let row = |(operation, rounds): &(&str, &[f64])| {
            let middle = pumice_command::statistics::median(rounds);
            Row::of(json!({"operation": operation, "ns": middle, "samples": {"ns": rounds}}))
        };
        results.experiments.push(Measured {
            name: "frame".to_owned(),
            arguments: vec![],
            state: Ending::Complete,
            why: None,
            seconds: 1.0,
            rows: rows.iter().map(row).collect(),
            notes: vec![],
            weather: [weather.clone(), weather],
            noise: Noise::default(),
        });
        results.complete = true;
        results
    }

    const STEADY: &[f64] = &[100.0, 101.0, 99.0, 100.0, 100.5];

    fn verdict(before: &[f64], after: &[f64], fault_ns: f64) -> Verdict {
        let [before, after] =
            [results(&[("get", before)], 1000.0), results(&[("get", after)], fault_ns)];
        let comparison = comparison(&before, &after);
        assert_eq!(comparison.changes.len(), 1);
        assert!(comparison.warnings.is_empty(), "{comparison:?}");
        comparison.changes[0].verdict
    }

    #[test]
    fn known_answers() {
        let times = |by: f64| STEADY.iter().map(|value| value * by).collect::<Vec<_>>();
        assert_eq!(verdict(STEADY, STEADY, 1000.0), Verdict::WithinNoise);
        assert_eq!(verdict(STEADY, &times(1.005), 1000.0), Verdict::WithinNoise);
        assert_eq!(verdict(STEADY, &times(1.1), 1000.0), Verdict::Worse);
        assert_eq!(verdict(STEADY, &times(0.9), 1000.0), Verdict::Better);
        // As much as the machine itself became slower.
        assert_eq!(verdict(STEADY, &times(1.1), 1150.0), Verdict::WithinNoise);
        assert_eq!(verdict(STEADY, &times(1.4), 1150.0), Verdict::Worse);
        let wild = [50.0, 100.0, 200.0];
        assert_eq!(verdict(&wild, &wild.map(|value| value * 1.3), 1000.0), Verdict::WithinNoise);
        assert_eq!(verdict(&[100.0], &[200.0], 1000.0), Verdict::CantTell);
        // As coarse as the clock.
        assert_eq!(verdict(&[100.0; 3], &[101.0; 3], 1000.0), Verdict::CantTell);
        assert_eq!(verdict(STEADY, &[101.0; 3], 1000.0), Verdict::CantTell);
    }

    #[test]
    fn what_never_varies_differs_if_it_differs() {
        assert_eq!(exact(33.0, 33.0).1, Some(0));
        assert_eq!(exact(33.0, 33.01).1, Some(1));
    }

    #[test]
    fn the_interval_is_welchs() {
        let rounds = [vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
        let (by, sign) = difference(2.0, 5.0, &rounds);
        // Means 2 and 5, variances 1 and 1: error sqrt(2/3), 4 degrees of freedom, t = 4.604, and 1.2533
        // times that for medians.
        let By::Difference { difference, low: Some(low), high: Some(high) } = by else {
            panic!("{by:?}")
        };
        assert_eq!(difference, 3.0);
        assert!(
            (low - (3.0 - 4.711)).abs() < 1e-3 && (high - (3.0 + 4.711)).abs() < 1e-3,
            "{by:?}"
        );
        assert_eq!(sign, Some(0));
    }

    #[test]
    fn what_is_missing_is_told() {
        let before = results(&[("get", STEADY), ("put\u{1b}[2J", STEADY)], 1000.0);
        let many = ["a", "b", "c", "d", "e", "f", "g", "get"].map(|name| (name, STEADY));
        let mut after = results(&many, 1000.0);
        after.machine.processors = 7;
        after.complete = false;
        let comparison = comparison(&before, &after);
        assert_eq!(comparison.changes.len(), 1);
        for part in [
            "1 row is only in the first file: put",
            "7 rows are only in the second file: a; b; c; d; e and 2 more",
            "processors: 0, then 7",
            "did not come to its end",
        ] {
            assert!(comparison.warnings.iter().any(|it| it.contains(part)), "{comparison:?}");
        }
        assert_eq!(harmless("put\u{1b}[2J\u{9b}"), "put\\u{1b}[2J\\u{9b}");
    }

    #[test]
    fn rows_measured_twice_are_told_apart() {
        let both = results(&[("get", STEADY), ("get", &[300.0, 301.0])], 1000.0);
        let comparison = comparison(&both, &both);
        let befores: Vec<_> = comparison.changes.iter().map(|it| it.before).collect();
        assert_eq!(befores, [100.0, 300.5]);
    }
}
