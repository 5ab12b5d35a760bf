//! A small C program that knows nothing of pumice, by turns plain with small pages, plain with huge
//! ones, and under `pumice run`.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::c_program;
use pumice_command::statistics::{interval, median};
use pumice_command::Failure;

/// How the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Way {
    #[serde(rename = "kernel-4k")]
    Small,
    #[serde(rename = "kernel-thp")]
    Huge,
    #[serde(rename = "pumice")]
    Pumice,
}

pub const WAYS: [Way; 3] = [Way::Small, Way::Huge, Way::Pumice];

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Small => "kernel-4k",
            Way::Huge => "kernel-thp",
            Way::Pumice => "pumice",
        }
    }
}

/// The program, compiled in a folder that goes with it.
#[derive(Debug)]
pub struct Program {
    own: PathBuf,
    folder: PathBuf,
    path: PathBuf,
}

impl Program {
    /// Compiles `source` for `pumice bench NAME`.
    pub fn compile(name: &str, source: &str) -> Result<Program, Failure> {
        let own = env::current_exe()
            .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
        let folder = env::temp_dir().join(format!("pumice-bench-{name}.{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| {
            Failure::system(format!("can't make the folder {}: {error}", folder.display()))
        })?;
        let mut program = Program { own, folder, path: PathBuf::new() };
        program.path =
            c_program::compile(name, source, &program.folder).map_err(Failure::system)?;
        Ok(program)
    }

    /// What starts it, without its arguments; `options` are for `pumice run`.
    pub fn command(&self, way: Way, options: &[String]) -> Command {
        let mut command = match way {
            Way::Pumice => Command::new(&self.own),
            _ => Command::new(&self.path),
        };
        if way == Way::Pumice {
            command.arg("run").args(options).arg("--").arg(&self.path);
        }
        command.env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES");
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        command
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // What can't be removed stays where temporary files are looked for.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a command: the numbers that it prints.
pub fn figures<const N: usize>(mut command: Command) -> Result<[f64; N], Failure> {
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

/// What was measured, each way in each round.
#[derive(Debug)]
pub struct Rounds<F>(Vec<[F; WAYS.len()]>);

impl<F: Copy> Rounds<F> {
    /// Runs each way once a round; nobody always goes first.
    pub fn run(
        rounds: u32,
        mut run: impl FnMut(Way) -> Result<F, Failure>,
    ) -> Result<Rounds<F>, Failure> {
        let mut all = Vec::new();
        for round in 0..rounds as usize {
            let mut figures = [None; WAYS.len()];
            for turn in 0..WAYS.len() {
                let which = (round + turn) % WAYS.len();
                figures[which] = Some(run(WAYS[which])?);
            }
            all.push(figures.map(|figures| figures.expect("each way has run")));
        }
        Ok(Rounds(all))
    }

    /// A figure of each round.
    pub fn figures(&self, way: Way, of: impl Fn(&F) -> f64) -> Vec<f64> {
        self.0.iter().map(|round| of(&round[way as usize])).collect()
    }

    /// The median of a figure.
    pub fn median(&self, way: Way, of: impl Fn(&F) -> f64) -> f64 {
        median(&self.figures(way, of))
    }

    /// A figure of one way by that of another, each pair of the same round.
    pub fn ratio(&self, way: Way, to: Way, of: impl Fn(&F) -> f64) -> Ratio {
        let ratio = |round: &[F; WAYS.len()]| of(&round[way as usize]) / of(&round[to as usize]);
        let ratios: Vec<f64> = self.0.iter().map(ratio).collect();
        let (low, high) = interval(&ratios);
        Ratio { median: median(&ratios), low, high }
    }
}

/// A ratio: its median, and the 95 % interval of that.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} [{:.2}, {:.2}]", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_runs_once_a_round_and_is_compared_within_it() {
        let mut order = Vec::new();
        let mut turn = 0.0;
        let rounds = Rounds::run(3, |way| {
            order.push(way.name());
            turn += 1.0;
            Ok(turn)
        })
        .expect("nothing fails");
        let firsts: Vec<_> = order.iter().step_by(3).copied().collect();
        assert_eq!(firsts, ["kernel-4k", "kernel-thp", "pumice"]);
        assert_eq!(rounds.median(Way::Small, |&figure| figure), 6.0);
        // 1 to 2, 6 to 4, 8 to 9.
        let ratio = rounds.ratio(Way::Small, Way::Huge, |&figure| figure);
        assert_eq!(ratio.to_string(), "0.89 [0.50, 1.50]");
    }
}
