//! The reasons for which a command gives up, and its message.

use std::fmt::Display;
use std::io::{self, Write};
use std::{panic, process};

/// Exit status for input that can't be used, as shells and getopt programs have it.
pub const STATUS_USAGE: u8 = 2;

/// Why a subcommand gave up: one line for people, and an exit status.
#[derive(Debug)]
pub struct Failure {
    /// The error and its remedy, without a full stop.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// A failure caused by the input.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), status: STATUS_USAGE }
    }

    /// A failure of the machine's, status 1.
    pub fn system(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), status: 1 }
    }

    /// Says it on stderr and returns the exit status.
    pub fn report(&self) -> u8 {
        eprintln!("pumice: {}", self.message);
        self.status
    }
}

/// Adds to an error the step that failed.
pub trait Explain<T> {
    /// A failure of the machine's: the step that failed, and the error.
    fn or_fail(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Explain<T> for Result<T, E> {
    fn or_fail(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::system(format!("{what}: {error}")))
    }
}

/// From now on, text that `println` can't write ends the program with one line, as another failure does.
pub fn report_lost_output() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |panic| match panic.payload().downcast_ref::<String>() {
        Some(text) if text.starts_with("failed printing to stdout") => {
            let reason = text.rsplit_once("stdout: ").map_or("", |(_, reason)| reason);
            process::exit(i32::from(Failure::system(format!("can't write: {reason}")).report()));
        }
        _ => default(panic),
    }));
}

/// Writes to stdout; a reader that has gone away has seen enough.
pub fn print(text: &[u8]) -> Result<(), Failure> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::system(format!("can't write: {error}")))
        }
        _ => Ok(()),
    }
}
