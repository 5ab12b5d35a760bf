//! `pumice bench start`: what `pumice run` costs a program that has nothing to gain from it.
//!
//! Short programs run by turns plain, under `pumice run`, and under `env`: that is what any program
//! costs that only starts another, and so the peer. Differences are taken within a round, where
//! both ran under the same weather; the interval is that of the median by order statistics, which
//! asks nothing of the distribution.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::statistics::{interval, median};
use pumice_command::table::Table;
use pumice_command::Failure;

/// What `pumice bench start` is asked for.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// Rounds; each runs every variant once
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..))]
    rounds: u32,
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A program to measure instead of true, python3, git and cc
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A row of the table. Times are medians.
#[derive(Debug, Serialize)]
struct Row {
    program: String,
    plain_ms: f64,
    env_ms: f64,
    pumice_ms: f64,
    /// The median of the differences between `pumice run` and plain, and its 95 % interval.
    added_ms: f64,
    added_low_ms: f64,
    added_high_ms: f64,
    ratio: f64,
    samples: Samples,
}

/// Runs the experiment and prints its table.
pub fn start(options: &StartArgs) -> Result<ExitCode, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
    let mut json = JsonLines::create(options.json.as_deref())?;
    let lines = match &*options.program {
        [] => short_programs(),
        line => vec![line.to_vec()],
    };
    let table = Table::begin(&[
        ("program", 24),
        ("plain ms", 9),
        ("env ms", 9),
        ("pumice ms", 9),
        ("added ms", 9),
        ("95 % interval", 17),
        ("ratio", 6),
    ]);
    for line in lines {
        let Some(row) = measure(&own, &line, options.rounds) else {
            println!("{}: skipped, it does not run here", show(&line));
            continue;
        };
        table.row(&[
            row.program.clone(),
            format!("{:.3}", row.plain_ms),
            format!("{:.3}", row.env_ms),
            format!("{:.3}", row.pumice_ms),
            format!("{:.3}", row.added_ms),
            format!("{:.3} to {:.3}", row.added_low_ms, row.added_high_ms),
            format!("{:.3}", row.ratio),
        ]);
        json.write(&row)?;
    }
    json.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn short_programs() -> Vec<Vec<OsString>> {
    [
        "true",
        "python3 -c pass",
        "git log --oneline",
        // The largest source there is without one of our own: all that a header pulls in.
        "cc -O2 -x c -include stdlib.h -include stdio.h -c -o /dev/null -",
    ]
    .map(|line| line.split(' ').map(OsString::from).collect())
    .to_vec()
}

fn show(line: &[OsString]) -> String {
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    let mut text = words.join(" ").escape_debug().to_string();
    if let Some((cut, _)) = text.char_indices().nth(24) {
        text.truncate(cut);
    }
    text
}

/// `None` if the program does not end well by itself.
fn measure(own: &Path, line: &[OsString], rounds: u32) -> Option<Row> {
    let under = |words: &[OsString]| [words, line].concat();
    let variants =
        [line.to_vec(), under(&["env".into()]), under(&[own.into(), "run".into(), "--".into()])];
    // Warms the caches, writes the shim, and measures the clearing plan.
    for variant in &variants {
        run(variant)?;
    }
    let mut times_ms: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds as usize {
        // Nobody always goes first.
        for turn in 0..variants.len() {
            let which = (round + turn) % variants.len();
            times_ms[which].push(run(&variants[which])?);
        }
    }
    let [plain, under_env, under_pumice] = &times_ms;
    let added: Vec<_> = under_pumice.iter().zip(plain).map(|(with, plain)| with - plain).collect();
    let (added_low_ms, added_high_ms) = interval(&added);
    Some(Row {
        program: show(line),
        plain_ms: median(plain),
        env_ms: median(under_env),
        pumice_ms: median(under_pumice),
        added_ms: median(&added),
        added_low_ms,
        added_high_ms,
        ratio: median(under_pumice) / median(plain),
        samples: [
            ("plain_ms", plain.clone()),
            ("pumice_ms", under_pumice.clone()),
            ("added_ms", added.clone()),
        ]
        .into(),
    })
}

/// Milliseconds from start to end; `None` if it can't be run or fails.
fn run(line: &[OsString]) -> Option<f64> {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let status = command.status().ok()?;
    let elapsed = started.elapsed();
    status.success().then_some(elapsed.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_not_measured() {
        assert!(run(&["false".into()]).is_none());
        assert!(run(&["/no/such/program".into()]).is_none());
        assert!(run(&["true".into()]).is_some());
    }
}
