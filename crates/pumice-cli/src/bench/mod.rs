//! `pumice bench`: the experiments, each a file of this folder and a variant of [`Experiment`].

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
enum Experiment {}

/// Runs an experiment and prints its table.
pub fn bench(options: BenchArgs) -> Result<ExitCode, Failure> {
    match options.experiment {}
}
