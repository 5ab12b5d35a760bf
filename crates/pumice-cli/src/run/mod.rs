//! `pumice run`: runs a program with the shim preloaded.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::args::Failure;

/// What `pumice run` is asked for.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program.
pub fn run(options: RunArgs) -> Result<ExitCode, Failure> {
    let error = Command::new(&options.program[0]).args(&options.program[1..]).exec();
    Err(Failure { message: error.to_string(), status: 127 })
}
