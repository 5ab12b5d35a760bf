//! A small C program that knows nothing of pumice, by turns plain with small pages, plain with huge
//! ones, and under `pumice run`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::{json, Value};

use super::c_program;
use super::harness::{figures, in_turns, Output, OutputArgs, WarmUp};
use super::registry::Row;
use super::slot_daemon::own_program;
use super::team::folder::Folder;
use crate::pft::backend::Backend;
use pumice_command::statistics::Ratio;
use pumice_command::Failure;

/// Options of the experiments that run it so, and how many rounds they have where nobody says.
#[derive(Args, Debug)]
pub struct WaysArgs<const USUAL: u32> {
    /// Rounds; each runs every load once in every way
    #[arg(long, value_name = "N", default_value_t = USUAL, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Less memory, and fewer repetitions of a load that is repeated
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The program, compiled in a folder that goes with it.
#[derive(Debug)]
pub struct Program {
    own: PathBuf,
    _folder: Folder,
    path: PathBuf,
}

impl Program {
    /// Compiles `source` for `pumice bench NAME`.
    pub fn compile(name: &str, source: &str) -> Result<Program, Failure> {
        let (own, folder) = (own_program()?, Folder::make(None, name)?);
        let path = c_program::compile(name, source, folder.path()).map_err(Failure::system)?;
        Ok(Program { own, _folder: folder, path })
    }

    /// The command that starts it, without its arguments; `options` are for `pumice run`.
    pub fn command(&self, way: Backend, options: &[String]) -> Command {
        let mut command = match way {
            Backend::Pumice => Command::new(&self.own),
            _ => Command::new(&self.path),
        };
        if way == Backend::Pumice {
            command.arg("run").args(options).arg("--").arg(&self.path);
        }
        command.env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES");
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        command
    }
}

/// Measures a load in every way, in turns: a row for each way. `run` returns the program's figures, in the order of
/// `fields`; those that are `sampled` keep their rounds. `ratios` adds what compares a way with the others, from the
/// rounds of all.
pub fn compare<const N: usize>(
    load: &str,
    rounds: u32,
    fields: [&str; N],
    sampled: &[&str],
    mut run: impl FnMut(Backend) -> Result<[f64; N], Failure>,
    ratios: impl Fn(Row, Backend, &Measured<N>) -> Row,
    output: &mut Output,
) -> Result<(), Failure> {
    let rounds = in_turns(Backend::ALL.len(), rounds as usize, WarmUp::None, |way, _| {
        run(Backend::ALL[way])
    })?;
    let measured = Measured { fields, rounds };
    for way in Backend::ALL {
        let mut row = Row::of(json!({"load": load, "way": way.name()}));
        for field in fields {
            let figures = measured.figures(way, field);
            row = row.median(field, &figures);
            if sampled.contains(&field) {
                row = row.samples(field, figures);
            }
        }
        output.show(ratios(row, way, &measured))?;
    }
    output.gap();
    Ok(())
}

/// The figures of each way in each round.
#[derive(Debug)]
pub struct Measured<'f, const N: usize> {
    fields: [&'f str; N],
    rounds: Vec<Vec<[f64; N]>>,
}

impl<const N: usize> Measured<'_, N> {
    fn figures(&self, way: Backend, field: &str) -> Vec<f64> {
        let index = self.fields.iter().position(|one| *one == field).expect("a field");
        figures(&self.rounds[way as usize], |round| round[index])
    }

    /// A figure of one way by that of another, each pair of the same round.
    pub fn ratio(&self, way: Backend, to: Backend, field: &str) -> Value {
        let ratio = Ratio::within_rounds(&self.figures(way, field), &self.figures(to, field));
        json!(ratio)
    }
}

/// Runs a command: the numbers that it prints.
pub fn printed<const N: usize>(mut command: Command) -> Result<[f64; N], Failure> {
    let output = command.output().map_err(|error| {
        let program = command.get_program().to_string_lossy();
        Failure::system(format!("{program} can't be started: {error}"))
    })?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match <[f64; N]>::try_from(numbers) {
        Ok(numbers) if output.status.success() => Ok(numbers),
        _ => Err(Failure::system(format!("the program ended with {}", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::field::{number, samples};
    use crate::registry::processes::MAP;

    #[test]
    fn each_way_runs_once_a_round_and_is_compared_within_it() {
        let mut order = Vec::new();
        let mut turn = 0.0;
        let mut output = Output::create(&OutputArgs::default(), &MAP.plots[0]).expect("no file");
        let run = |way: Backend| {
            order.push(way.name());
            turn += 1.0;
            Ok([turn])
        };
        let ratios = |row: Row, way, measured: &Measured<'_, 1>| {
            row.set("ratio", measured.ratio(way, Backend::KernelThp, "figure"))
        };
        compare("load", 3, ["figure"], &["figure"], run, ratios, &mut output).expect("it runs");
        let firsts: Vec<_> = order.iter().step_by(3).copied().collect();
        assert_eq!(firsts, ["kernel-4k", "kernel-thp", "pumice"]);
        let small = &output.rows()[0];
        assert_eq!(number(small, "figure"), Some(6.0));
        assert_eq!(samples(small, "figure"), [1.0, 6.0, 8.0]);
        // 1 to 2, 6 to 4, 8 to 9.
        let ratio = ["ratio.median", "ratio.low", "ratio.high"].map(|it| number(small, it));
        assert_eq!(ratio, [Some(8.0 / 9.0), Some(0.5), Some(1.5)]);
    }
}
