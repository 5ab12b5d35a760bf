//! The `pumice` program: one subcommand, one module.
//!
//! | module | contents |
//! |---|---|
//! | [`args`] | the command line, and the answers to mistakes in it |
//! | [`run`] | `pumice run`: a program on memory that is already there and already zero; `pumice env` |
//! | [`mod@estimate`] | `pumice estimate`: the gain that a program could have |
//! | [`mod@trace`] | `pumice trace`: the pages that a program touches, for `bench replace` |
//! | [`mod@stat`] | `pumice stat`: the pools of running programs |
//! | [`mod@top`] | `pumice top`: the same on a terminal, as it changes |
//! | [`ctl`] | `pumice ctl`: settings of a running program |
//! | [`serve`] | `pumice serve`: starts the daemon that keeps slots of ready memory |
//! | [`lease`] | `pumice lease`: a program on such a slot |
//! | [`snapshot`] | `pumice snapshot`: such a slot's memory into a file |
//! | [`slots`] | `pumice slots`: a daemon's slots, leases and counts |
//! | [`mod@bench`] | `pumice bench`: the experiments |
//! | [`man`] | `pumice man`: the manual page |
//! | [`counters`] | the counters of a tree of programs: made, found again, copied |
//! | [`numbers`] | processes by the numbers that they have here |
//!
//! The experiments are in `pumice-bench` and `pumice-bench-io`; they share `pumice-command` with the program. Programs
//! and slots are those of `pumice-heap`, `pumice-frames` and `pumice-slots`.
//!
//! The program starts at C's `main`. Before its own, Rust's runtime would set SIGPIPE to be
//! ignored, which is the caller's and the program's business, and read `/proc/self/maps`, which
//! costs a tenth of all the time that `pumice run` may take.

#![cfg_attr(not(test), no_main)]

mod args;
mod bench;
mod counters;
mod ctl;
mod estimate;
mod lease;
mod man;
mod math;
mod numbers;
mod run;
mod serve;
mod slots;
mod snapshot;
mod stat;
mod top;
mod trace;

use std::ffi::{c_char, c_int, CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use args::Command;
use pumice_command::Failure;

/// Where the C library starts the program.
///
/// # Safety
/// `arguments` is an array of `count` C strings.
#[cfg_attr(not(test), export_name = "main")]
pub unsafe extern "C" fn start(count: c_int, arguments: *const *const c_char) -> c_int {
    let argument = |index: usize| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { CStr::from_ptr(*arguments.add(index)) }.to_bytes();
        OsStr::from_bytes(bytes).to_owned()
    };
    let line = (0..count as usize).map(argument);
    i32::from(obey(line).unwrap_or_else(|failure| failure.report()))
}

/// Runs the command and returns the exit status.
fn obey(line: impl Iterator<Item = OsString>) -> Result<u8, Failure> {
    match args::parse(line) {
        Err(status) => Ok(status),
        Ok(Command::Run(options)) => run::run(*options),
        Ok(Command::Env(options)) => run::print_variables(&options).map(|()| 0),
        Ok(Command::Ctl(options)) => ctl::ctl(options).map(|()| 0),
        Ok(Command::Stat(options)) => stat::stat(&options).map(|()| 0),
        Ok(Command::Top(options)) => top::top(&options).map(|()| 0),
        Ok(Command::Serve(options)) => serve::serve(*options).map(|()| 0),
        Ok(Command::Lease(options)) => lease::lease(options),
        Ok(Command::Snapshot(options)) => snapshot::snapshot(&options).map(|()| 0),
        Ok(Command::Slots(options)) => slots::slots(options).map(|()| 0),
        Ok(Command::Estimate(options)) => estimate::estimate(&options),
        Ok(Command::Trace(options)) => trace::trace(&options),
        Ok(Command::Bench(options)) => bench::bench(options),
        Ok(Command::Completions { shell }) => args::print_completions(shell).map(|()| 0),
        Ok(Command::Man) => args::print_man().map(|()| 0),
    }
}
