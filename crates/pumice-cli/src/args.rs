//! The command line, and the answer to a wrong one: one line on stderr, exit status 2.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use pumice_command::{print, Failure, STATUS_USAGE};

use crate::bench::BenchArgs;
use crate::ctl::CtlArgs;
use crate::estimate::EstimateArgs;
use crate::lease::LeaseArgs;
use crate::man;
use crate::run::{EnvArgs, RunArgs};
use crate::serve::ServeArgs;
use crate::slots::SlotsArgs;
use crate::snapshot::SnapshotArgs;
use crate::stat::StatArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;

/// Runs programs on memory that is already there and already zero.
#[derive(Parser, Debug)]
#[command(name = "pumice", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Box<RunArgs>),
    Env(Box<EnvArgs>),
    /// Show or change the settings of a running program
    Ctl(CtlArgs),
    /// Show the pools of running programs, and the requests that were served
    Stat(StatArgs),
    /// Watch running programs on a terminal
    Top(TopArgs),
    /// Keep slots of ready memory for virtual machines and others to lease
    Serve(Box<ServeArgs>),
    /// Run a program on a slot of ready memory that a daemon keeps
    Lease(LeaseArgs),
    /// Write the memory of a slot that a program runs on to a file, of which pumice serve --snapshot makes slots
    Snapshot(SnapshotArgs),
    /// List a daemon's slots, show its counters, change how it populates
    Slots(SlotsArgs),
    Estimate(EstimateArgs),
    Trace(TraceArgs),
    /// Run pumice's experiments on this machine
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// Reads the command line. `Err` is the exit status where nothing is left to do: help was asked
/// for and printed, or the input was bad and that was said.
pub fn parse(line: impl Iterator<Item = OsString>) -> Result<Command, u8> {
    let line: Vec<_> = line.collect();
    // Of bench, the experiment too.
    let names: Vec<_> = line.iter().skip(1).take(2).cloned().collect();
    let subcommand = names.first().and_then(|name| name.to_str()).unwrap_or("");
    let command = match (subcommand, line.get(2..).and_then(usual_run)) {
        // For a fast start. That there are no options, or which one, is seen sooner than all are described...
        ("run", Some(run)) => Ok(Command::Run(Box::new(run))),
        // ... and the flags of all the other subcommands cost time too.
        ("run", None) => RunArgs::try_parse_from(&line[1..]).map(|run| Command::Run(Box::new(run))),
        _ => Cli::try_parse_from(line).map(|cli| cli.command),
    };
    command.map_err(|error| answer(&error, &names))
}

/// The options, where they are none, or a report.
fn usual_run(line: &[OsString]) -> Option<RunArgs> {
    match line {
        [report, rest @ ..] if report == "--report" => {
            program_alone(rest).map(RunArgs::with_report)
        }
        _ => program_alone(line).map(RunArgs::of),
    }
}

/// The program and its arguments, where no option precedes them.
fn program_alone(line: &[OsString]) -> Option<&[OsString]> {
    match line {
        [dashes, program @ ..] if dashes == "--" => Some(program).filter(|it| !it.is_empty()),
        [first, ..] if !first.as_encoded_bytes().starts_with(b"-") => Some(line),
        _ => None,
    }
}

fn answer(error: &clap::Error, names: &[OsString]) -> u8 {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let status = if error.use_stderr() { STATUS_USAGE } else { 0 };
        // A reader that closed the pipe has seen enough.
        let _ = error.print();
        return status;
    }
    let help = help_of(&Cli::command(), names);
    Failure::usage(format!("{}; see '{help}'", one_line(error))).report()
}

/// The command line for the help of the innermost subcommand that is named.
fn help_of(command: &clap::Command, names: &[OsString]) -> String {
    let (mut command, mut help) = (command, command.get_name().to_owned());
    for name in names {
        let Some(found) = command.find_subcommand(name) else { break };
        help = format!("{help} {}", found.get_name());
        command = found;
    }
    format!("{help} --help")
}

/// clap's message on one line: the error, and the hint if it has one.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut message = lines.next().unwrap_or("bad input").trim_start_matches("error: ").to_owned();
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ").filter(|tip| tip.contains("similar")) {
            message = format!("{message}; {tip}");
        } else if message.ends_with(':') || line.starts_with('[') {
            message = format!("{message} {line}");
        }
    }
    message
}

/// `pumice completions SHELL`.
pub fn print_completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pumice", &mut script);
    print(&script)
}

/// `pumice man`.
pub fn print_man() -> Result<(), Failure> {
    let page = man::page(Cli::command());
    print(&page.map_err(|error| Failure::system(format!("no manual page: {error}")))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_innermost_subcommand() {
        let cases: [(&[&str], &str); 7] = [
            (&[], "pumice --help"),
            (&["nosuch"], "pumice --help"),
            (&["run", "--nosuch"], "pumice run --help"),
            (&["run", "stat"], "pumice run --help"),
            (&["bench", "nosuch"], "pumice bench --help"),
            (&["bench", "pft"], "pumice bench pft --help"),
            (&["bench", "io"], "pumice bench io --help"),
        ];
        for (names, help) in cases {
            let names: Vec<OsString> = names.iter().map(OsString::from).collect();
            assert_eq!(help_of(&Cli::command(), &names), help);
        }
    }

    #[test]
    fn usual_lines_are_what_clap_takes_them_for() {
        let lines: [&[&str]; 14] = [
            &["true"],
            &["--", "true"],
            &["true", "--ready", "x"],
            &["true", "--", "-x"],
            &["--", "--report"],
            &["--", "--", "a"],
            &["", "a"],
            &["--"],
            &["-"],
            &["--report", "true"],
            &["--report", "--", "true", "--report"],
            &["--report", "--report", "true"],
            &["--report", "--"],
            &["--report"],
        ];
        for line in lines {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let parsed = RunArgs::try_parse_from([&["run".into()], &*words].concat());
            if let Some(run) = usual_run(&words) {
                assert_eq!(format!("{run:?}"), format!("{:?}", parsed.expect("right")), "{line:?}");
            }
        }
        for line in [&["--"][..], &["--report=json", "a"], &["--report", "--ready", "1G", "a"]] {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert!(usual_run(&words).is_none(), "{line:?}");
        }
    }
}
