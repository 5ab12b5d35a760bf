//! `pumice bench`: the experiments, each a file of this folder and a variant of [`Experiment`].
//!
//! They share [`region`], memory to measure in, and [`json_lines`], rows for other programs.

mod clear;
pub mod json_lines;
pub mod region;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::args::Failure;

/// What `pumice bench` is asked for.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    experiment: Experiment,
}

/// The experiments.
#[derive(Subcommand, Debug)]
enum Experiment {
    /// How fast each engine zeroes memory, and how fast memory is read
    Clear(clear::ClearArgs),
}

/// Runs an experiment and prints its table.
pub fn bench(options: BenchArgs) -> Result<ExitCode, Failure> {
    match options.experiment {
        Experiment::Clear(options) => clear::clear(options),
    }
}
