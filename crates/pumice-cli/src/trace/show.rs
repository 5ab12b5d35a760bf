//! The summary of a trace: lines for people, an object for machines.

use std::io::{self, Write};
use std::time::Duration;

use pumice_command::table::thousands;
use serde::Serialize;

use super::tree::Counts;
use super::TraceArgs;
use crate::run::spawn::End;

/// Fewer intervals may hide the knee of a curve.
const FEW: u64 = 10;

/// The figures, under the names that `--json` has. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    program: String,
    exit_status: Option<u8>,
    signal: Option<i32>,
    wall_s: f64,
    trace: String,
    page_bytes: u64,
    /// One page in so many is in the trace.
    one_in: u32,
    references: u64,
    pages: u64,
    /// Of all pages, as many as the trace stands for.
    bytes: u64,
    intervals: u64,
    interval_s: f64,
    /// The pages touched in the fullest interval, of all: the curve says nothing below.
    interval_bytes: u64,
    looking_s: f64,
    stopped_s: f64,
    spaces: u64,
    blind_processes: u64,
    looks_without_stop: u64,
    looks_at_limit: u64,
    executed_while_traced: u64,
    follows_children: bool,
}

impl Summary {
    pub fn new(options: &TraceArgs, wall: Duration, end: End, counts: Counts) -> Summary {
        let words: Vec<_> = options.program.iter().map(|word| word.to_string_lossy()).collect();
        let (exit_status, signal) = match end {
            End::Exited(status) => (Some(status), None),
            End::Killed(signal) => (None, Some(signal)),
        };
        let wall_s = wall.as_secs_f64();
        let of_all = |pages: u64| pages * u64::from(counts.one_in) * options.pages;
        Summary {
            program: words.join(" "),
            exit_status,
            signal,
            wall_s,
            trace: options.out.display().to_string(),
            page_bytes: options.pages,
            one_in: counts.one_in,
            references: counts.references,
            pages: counts.pages,
            bytes: of_all(counts.pages),
            intervals: counts.intervals,
            interval_s: wall_s / counts.intervals.max(1) as f64,
            interval_bytes: of_all(counts.most_in_interval),
            looking_s: counts.looking.as_secs_f64(),
            stopped_s: counts.stopped.as_secs_f64(),
            spaces: counts.spaces,
            blind_processes: counts.blind,
            looks_without_stop: counts.not_stopped,
            looks_at_limit: counts.full,
            executed_while_traced: counts.executed,
            follows_children: counts.follows_children,
        }
    }

    /// Prints it on stderr, apart from the program's own output.
    pub fn print(&self) {
        for line in self.lines() {
            // The program's status counts, also where nobody reads this.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let percent = |seconds: f64| 100.0 * seconds / self.wall_s.max(f64::MIN_POSITIVE);
        let mut lines = vec![
            format!(
                "trace       {}: {} references to {} pages, a sample of 1/{} of about {:.1} MiB",
                self.trace,
                thousands(self.references as f64),
                thousands(self.pages as f64),
                self.one_in,
                mib(self.bytes)
            ),
            format!(
                "intervals   {} of {:.1} ms on average; up to {:.1} MiB were touched in one: of less memory the \
                 trace says nothing",
                thousands(self.intervals as f64),
                1e3 * self.interval_s,
                mib(self.interval_bytes)
            ),
            format!(
                "cost        looking took {:.1} % of the time, in another process; a thread of the program was \
                 stopped for {:.2} % of it",
                percent(self.looking_s),
                percent(self.stopped_s)
            ),
        ];
        if (1..FEW).contains(&self.intervals) {
            lines.push(format!(
                "note        {} intervals show little but the program's start: let it run longer, or type a smaller \
                 --most",
                self.intervals
            ));
        }
        if self.blind_processes > 0 {
            lines.push(format!(
                "note        {} processes are not in the trace: they have other rights, or ended at once",
                self.blind_processes
            ));
        }
        if !self.follows_children {
            lines.push(
                "note        processes that it started are not in the trace: the kernel lacks CONFIG_PROC_CHILDREN"
                    .to_owned(),
            );
        }
        if self.looks_without_stop > 0 {
            lines.push(format!(
                "note        {} times no thread could be stopped, and new pages had to wait: all slept, or the \
                 program is debugged, or is under seccomp",
                self.looks_without_stop
            ));
        }
        if self.executed_while_traced > 0 {
            lines.push(format!(
                "note        {} programs were executed while a thread was stopped: set-user-ID programs among them \
                 ran without their rights",
                self.executed_while_traced
            ));
        }
        if self.looks_at_limit > 0 {
            lines.push(
                "note        a process has half of the mappings that it may have: some pages are missing; \
                 type a smaller --most"
                    .to_owned(),
            );
        }
        lines.push(match self.references {
            0 => "next        nothing: the program ended too soon, or could not be watched"
                .to_owned(),
            _ => format!("next        pumice bench replace --curve --trace {}", self.trace),
        });
        lines
    }
}
