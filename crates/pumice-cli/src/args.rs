//! What may be typed, and how what may not is answered: one line on stderr, exit status 2.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::BenchArgs;
use crate::ctl::CtlArgs;
use crate::man;
use crate::run::RunArgs;

/// Exit status for input that can't be used, as shells and getopt programs have it.
pub const STATUS_USAGE: u8 = 2;

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
    /// Run a program on memory that is already there and already zero
    Run(Box<RunArgs>),
    /// Show or change the settings of a running program
    Ctl(CtlArgs),
    /// Measure on this machine what it is worth
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// Why a subcommand gave up: one line for people, and an exit status.
#[derive(Debug)]
pub struct Failure {
    /// What was wrong and what to type instead, without a full stop.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// A failure whose cause is what was typed.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), status: STATUS_USAGE }
    }

    /// A failure of the machine's, status 1.
    pub fn system(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), status: 1 }
    }

    /// Says it on stderr.
    pub fn report(&self) -> ExitCode {
        eprintln!("pumice: {}", self.message);
        ExitCode::from(self.status)
    }
}

/// Reads the command line. `Err` is the exit status where nothing is left to do: help was asked
/// for and printed, or the input was bad and that was said.
pub fn parse() -> Result<Command, ExitCode> {
    match Cli::try_parse() {
        Ok(cli) => Ok(cli.command),
        Err(error) => Err(answer(&error)),
    }
}

fn answer(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let status = if error.use_stderr() { STATUS_USAGE } else { 0 };
        // Whoever closed the pipe has seen enough.
        let _ = error.print();
        return ExitCode::from(status);
    }
    Failure::usage(one_line(error)).report()
}

/// clap's message without its paragraphs: what is wrong, the hint if it has one, where to read on.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut message = lines.next().unwrap_or("bad input").trim_start_matches("error: ").to_owned();
    let mut help = "pumice --help".to_owned();
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ") {
            message = format!("{message}; {tip}");
        } else if let Some(usage) = line.strip_prefix("Usage: ") {
            let names = usage.split(' ').take_while(|word| word.bytes().all(is_name_byte));
            help = format!("{} --help", names.collect::<Vec<_>>().join(" "));
        } else if message.ends_with(':') || line.starts_with('[') {
            message = format!("{message} {line}");
        }
    }
    format!("{message}; see '{help}'")
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte == b'-'
}

/// `pumice completions SHELL`.
pub fn print_completions(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pumice", &mut script);
    print(&script)
}

/// `pumice man`.
pub fn print_man() -> Result<ExitCode, Failure> {
    let page = man::page(Cli::command());
    print(&page.map_err(|error| Failure::system(format!("no manual page: {error}")))?)
}

/// Writes to stdout; a reader that has gone away has seen enough.
pub fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::system(format!("can't write: {error}")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
