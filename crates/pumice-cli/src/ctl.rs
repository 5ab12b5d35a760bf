//! `pumice ctl`: shows and changes the settings of a running program.

use std::process::ExitCode;

use clap::Args;

use crate::args::Failure;

/// What `pumice ctl` is asked for.
#[derive(Args, Debug)]
pub struct CtlArgs {
    /// Process id of the program
    pid: u32,
    /// Settings to change; without any, all are listed
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

/// Shows or changes settings.
pub fn ctl(options: CtlArgs) -> Result<ExitCode, Failure> {
    let CtlArgs { pid, changes: _ } = options;
    Err(Failure::usage(format!("process {pid} does not run under pumice")))
}
