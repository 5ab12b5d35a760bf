//! `pumice serve`: starts the daemon of `pumice-slots`.
//!
//! | module | contents |
//! |---|---|
//! | [`options`] | the flags, and the plan that they and a file become |
//! | [`config`] | the file |

mod config;
mod options;

pub use options::{duration, pages, snapshot_name, ServeArgs};

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pumice_command::Failure;
use pumice_slots::daemon::{self, Host, Plan};
use pumice_slots::ServeError;

/// Serves until a signal ends it.
pub fn serve(arguments: ServeArgs) -> Result<(), Failure> {
    let plan = arguments.plan()?;
    let bar = io::stderr().is_terminal().then(|| bar(0));
    // SAFETY: the program has opened nothing that it still has.
    let socket = unsafe { daemon::systemd_socket() }.map_err(not_served)?;
    daemon::serve(plan, Box::new(Terminal { arguments, bar }), socket).map_err(not_served)
}

/// An error of the daemon's as a failure of this program.
pub fn not_served(error: ServeError) -> Failure {
    match error {
        ServeError::Usage(message) => Failure::usage(message),
        ServeError::System(message) => Failure::system(message),
    }
}

/// A bar of bytes on stderr.
pub fn bar(all_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(all_bytes), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes} {msg}");
    // The template is fixed, and good.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The log and the progress go to stderr, the bar only if that is a terminal.
struct Terminal {
    arguments: ServeArgs,
    bar: Option<ProgressBar>,
}

impl Host for Terminal {
    fn plan(&mut self) -> Result<Plan, String> {
        self.arguments.plan().map_err(|failure| failure.message)
    }

    fn say(&self, line: &str) {
        let _ = writeln!(io::stderr(), "pumice: {line}");
    }

    fn shows_progress(&self) -> bool {
        self.bar.is_some()
    }

    fn show_progress(&self, done_bytes: u64, all_bytes: u64, status: &str) {
        let Some(bar) = &self.bar else { return };
        bar.set_length(all_bytes);
        bar.set_position(done_bytes.min(all_bytes));
        bar.set_message(status.to_owned());
    }

    fn clear_progress(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
