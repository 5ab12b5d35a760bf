//! Programs as a table for people and as JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use pumice_heap::stats::Event;
use serde::Serialize;

use super::rates::Rates;
use super::sample::Process;
use pumice_command::table::Table;
use pumice_command::Failure;

const COLUMNS: [(&str, usize); 12] = [
    ("program", 15),
    ("pid", 7),
    ("run", 7),
    ("pool MiB", 8),
    ("zeroed", 7),
    ("unzeroed", 8),
    ("in use", 8),
    ("requests", 9),
    ("hits %", 6),
    ("scrubbed MiB", 9),
    ("given back MiB", 9),
    ("scrubber s", 8),
];
/// Shown instead of totals where there are two samples.
const SINCE: [(&str, usize); 12] = [
    COLUMNS[0],
    COLUMNS[1],
    COLUMNS[2],
    COLUMNS[3],
    COLUMNS[4],
    COLUMNS[5],
    COLUMNS[6],
    ("req/s", 9),
    ("hits %", 6),
    ("scrub MiB/s", 11),
    ("hot MiB/s", 9),
    ("CPU %", 8),
];

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time_s: f64,
    #[serde(flatten)]
    process: &'a Process,
    #[serde(flatten)]
    rates: Option<&'a Rates>,
}

/// As JSON, one object a program and line.
pub fn print_json(rows: &[(Process, Option<Rates>)]) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let time_s = now.map_or(0.0, |since| since.as_secs_f64());
    let mut text = String::new();
    for (process, rates) in rows {
        let line = Line { time_s, process, rates: rates.as_ref() };
        let line = serde_json::to_string(&line)
            .map_err(|error| Failure::system(format!("can't write: {error}")))?;
        text += &line;
        text += "\n";
    }
    pumice_command::print(text.as_bytes())
}

/// The values of counters that a table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All since the program's start.
    Totals,
    /// The changes since the last sample.
    Changes,
}

/// As a table.
pub fn print_table(rows: &[(Process, Option<Rates>)], of: Of) -> Result<(), Failure> {
    pumice_command::print(table(rows, of).as_bytes())
}

/// The text of a table.
pub fn table(rows: &[(Process, Option<Rates>)], of: Of) -> String {
    if rows.is_empty() {
        return "no program is being served by pumice\n".to_owned();
    }
    let columns = if of == Of::Totals { COLUMNS } else { SINCE };
    let table = Table::resume(&columns);
    let mut lines = vec![table.format(&columns.map(|(name, _)| name.to_owned()))];
    for (process, rates) in rows {
        let mut cells = vec![
            process.program.escape_debug().to_string(),
            process.pid.to_string(),
            process.run_pid.to_string(),
            mib(process.pool_bytes),
        ];
        let split = process.split;
        let parts = [split.zeroed_bytes, split.unzeroed_bytes, split.in_use_bytes];
        cells.extend(parts.map(|bytes| bytes.map_or_else(|| "-".to_owned(), mib)));
        cells.extend(match of {
            Of::Totals => totals(process),
            Of::Changes => rates.as_ref().map_or_else(|| ["-"; 5].map(str::to_owned), changes),
        });
        lines.push(table.format(&cells));
        if let Some(reason) = process.reason {
            lines.push(format!("  nothing served: {reason}"));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn totals(process: &Process) -> [String; 5] {
    [
        process.event(Event::Requests).to_string(),
        percent(process.hit_rate),
        mib(process.event(Event::ScrubbedBytes)),
        mib(process.event(Event::GivenBackBytes)),
        format!("{:.2}", process.scrubber_s),
    ]
}

fn changes(rates: &Rates) -> [String; 5] {
    let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
    [
        format!("{:.0}", rates.requests_per_s),
        percent(rates.recent_hit_rate),
        mib(rates.scrubbed_bytes_per_s),
        mib(rates.hot_cleared_bytes_per_s),
        format!("{:.1}", 100.0 * rates.scrubber_cpu),
    ]
}

/// With one digit after the point.
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Without any; a dash where nothing is known.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}", 100.0 * share))
}
