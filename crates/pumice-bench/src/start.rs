//! `pumice bench start`: the cost of `pumice run` to a program that has nothing to gain from it.
//!
//! Short programs run by turns plain, under `pumice run`, and under `env`, the peer: it has the cost of any program
//! that only starts another. Differences are taken within a round, where both ran under the same weather; the interval
//! is that of the median by order statistics, which asks nothing of the distribution.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::harness::{in_turns, Output, OutputArgs, WarmUp};
use super::registry::worth::START;
use super::registry::Row;
use super::slot_daemon::own_program;
use pumice_command::statistics::{median, Ratio};
use pumice_command::Failure;

/// Options of `pumice bench start`.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// Rounds; each runs every variant once
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
    /// A program to measure instead of true, python3, git and cc
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the experiment and prints its table.
pub fn start(options: &StartArgs) -> Result<(), Failure> {
    let own = own_program()?;
    let mut output = Output::create(&options.output, &START.plots[0])?;
    let lines = match &*options.program {
        [] => short_programs(),
        line => vec![line.to_vec()],
    };
    output.begin(&START.tables[0]);
    for line in lines {
        match measure(&own, &line, options.rounds) {
            Some(row) => output.show(row)?,
            None => println!("{}: skipped, it does not run here", show(&line)),
        }
    }
    output.finish()
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
    let ways = variants.len();
    let times_ms =
        in_turns(ways, rounds as usize, WarmUp::None, |way, _| run(&variants[way]).ok_or(()));
    let [plain, under_env, under_pumice] = <[Vec<f64>; 3]>::try_from(times_ms.ok()?).ok()?;
    let added: Vec<_> = under_pumice.iter().zip(&plain).map(|(with, plain)| with - plain).collect();
    // The median of the differences between `pumice run` and plain, and its 95 % interval.
    let of_added = Ratio::of(&added);
    let row =
        Row::of(json!({"program": show(line), "ratio": median(&under_pumice) / median(&plain)}));
    Some(
        row.sampled("plain_ms", plain)
            .median("env_ms", &under_env)
            .sampled("pumice_ms", under_pumice)
            .interval(["added_ms", "added_low_ms", "added_high_ms"], of_added)
            .samples("added_ms", added),
    )
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
