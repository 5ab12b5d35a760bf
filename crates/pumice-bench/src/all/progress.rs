//! How far `bench all` is, and how long it still takes: the registry's time for the rest, times the ratio of measured
//! to registered time so far.

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::page::minutes;
use crate::registry::Entry;
use crate::results::{Ending, Measured};

/// The progress that people are shown.
pub struct Progress {
    bar: Option<ProgressBar>,
    names: Vec<&'static str>,
    expected_s: Vec<f64>,
    state: std::cell::RefCell<Counts>,
}

struct Counts {
    index: usize,
    begun: Instant,
    /// The expected and the measured time of experiments that ended well.
    expected_s: f64,
    measured_s: f64,
}

impl Progress {
    /// Of these experiments.
    pub fn new(entries: &[&'static Entry], quick: bool) -> Progress {
        let seconds = |entry: &&Entry| if quick { entry.quick.seconds } else { entry.full.seconds };
        let expected_s: Vec<f64> = entries.iter().map(seconds).collect();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((expected_s.iter().sum::<f64>() * 10.0) as u64);
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        let counts = Counts { index: 0, begun: Instant::now(), expected_s: 0.0, measured_s: 0.0 };
        let names = entries.iter().map(|entry| entry.name).collect();
        Progress { bar, names, expected_s, state: counts.into() }
    }

    /// One begins.
    pub fn begin(&self, index: usize) {
        let mut counts = self.state.borrow_mut();
        (counts.index, counts.begun) = (index, Instant::now());
        drop(counts);
        self.look();
    }

    /// Some time has passed.
    pub fn look(&self) {
        let Some(bar) = &self.bar else { return };
        let counts = self.state.borrow();
        let done_s: f64 = self.expected_s[..counts.index].iter().sum();
        let of_this = counts.begun.elapsed().as_secs_f64() / counts.pace();
        let done_s = done_s + of_this.min(self.expected_s[counts.index]);
        let left_s = (self.expected_s.iter().sum::<f64>() - done_s) * counts.pace();
        bar.set_position((done_s * 10.0) as u64);
        let (index, count) = (counts.index, self.names.len());
        let name = self.names[index];
        bar.set_message(format!("{name} ({} of {count}), {} left", index + 1, minutes(left_s)));
    }

    /// It has ended.
    pub fn end(&self, measured: &Measured) {
        let mut counts = self.state.borrow_mut();
        if measured.state == Ending::Complete {
            counts.expected_s += self.expected_s[counts.index];
            counts.measured_s += measured.seconds;
        }
        let why = measured.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let line = format!(
            "{:<9} {}{why}, {} rows in {:.1} s, {}",
            measured.name,
            measured.state.name(),
            measured.rows.len(),
            measured.seconds,
            measured.noise.level.name()
        );
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// All have.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Counts {
    /// How much longer than expected.
    fn pace(&self) -> f64 {
        match self.expected_s > 0.0 {
            true => (self.measured_s / self.expected_s).clamp(0.1, 10.0),
            false => 1.0,
        }
    }
}
