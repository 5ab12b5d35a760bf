//! A bar on a terminal: how much of what should be ready is.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// See the module's text.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar, if stderr is a terminal.
    pub fn new() -> Progress {
        Progress { bar: io::stderr().is_terminal().then(|| bar(0)) }
    }

    /// Whether anybody looks.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// So many bytes are ready or populated on the way there, of so many.
    pub fn show(&self, done_bytes: u64, all_bytes: u64, status: &str) {
        let Some(bar) = &self.bar else { return };
        bar.set_length(all_bytes);
        bar.set_position(done_bytes.min(all_bytes));
        bar.set_message(status.to_owned());
    }

    /// The bar makes way for good.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar of bytes on stderr.
pub fn bar(all_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(all_bytes), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes} {msg}");
    // The template is fixed, and good.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
