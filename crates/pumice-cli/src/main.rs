//! The `pumice` program: one subcommand, one module.
//!
//! | module | what lives there |
//! |---|---|
//! | [`args`] | what may be typed, and how what may not is answered |
//! | [`run`] | `pumice run`: a program on memory that is already there and already zero |
//! | [`ctl`] | `pumice ctl`: settings of a running program |
//! | [`man`] | `pumice man`: the manual page |
//! | [`memory`] | how much memory there is to have |
//! | [`stats_file`] | the file of a tree's counters: made, found, swept away |
//! | [`bench`] | `pumice bench`: one experiment a file |
//! | [`clear_plan`] | which engine zeroes what on this machine: measured once, kept |

mod args;
mod bench;
mod clear_plan;
mod ctl;
mod man;
mod memory;
mod run;
mod stats_file;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(status) => return status,
    };
    let done = match command {
        Command::Run(options) => run::run(*options),
        Command::Ctl(options) => ctl::ctl(options),
        Command::Bench(options) => bench::bench(options),
        Command::Completions { shell } => args::print_completions(shell),
        Command::Man => args::print_man(),
    };
    done.unwrap_or_else(|failure| failure.report())
}
