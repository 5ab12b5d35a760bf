//! `pumice trace`: the pages that an unmodified program touches, interval by interval, as a file for `bench replace`.
//!
//! | module | contents |
//! |---|---|
//! | [`tree`] | the program's processes, and the looks at all of them |
//! | [`space`] | one address space: which of its pages are watched, and which of these were touched |
//! | [`smaps`] | the mappings of a process, as the kernel lists them |
//! | [`identity`] | which memory a process has, and the thread that shows it |
//! | [`advise`] | advice on many pages of the program |
//! | [`inject`] | system calls in a thread of the program |
//! | [`tracee`] | threads that are traced for that, and the end of each |
//! | [`output`] | the file |
//! | [`show`] | the summary, for people and for machines |
//!
//! The processor notes in each page's entry that the page was touched, but Linux tells unprivileged users the sum over
//! a mapping only (`Referenced` in `/proc/PID/smaps`, cleared by `/proc/PID/clear_refs`). So each watched page is made
//! a mapping of its own: a thread of the program is stopped, and made to call `madvise` with `MADV_DONTDUMP`.
//! `docs/trace.md` lists what a program can see of that: more mappings, calls of `mremap` that fail, core files. A
//! share of the pages is watched, chosen by a hash. Where that would be too many, the share is halved, as often as it
//! takes (SHARDS, FAST 2015).
//!
//! A look takes a time in proportion to the watched pages. It happens once an interval, or less often, so that all
//! looks take a tenth of the time at most.

mod advise;
mod identity;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod inject;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod inject_nowhere;
mod output;
mod show;
mod smaps;
mod space;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod tracee;
mod tree;

use std::ffi::OsString;
use std::fs::File;
use std::mem::forget;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use pumice_command::json_lines::JsonLines;
use pumice_command::share::Share;
use pumice_command::Failure;

use crate::run::spawn::{self, End};
use crate::serve::duration;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
use inject_nowhere as inject;
use output::Output;
use tree::Tree;

/// Looks take this part of the time at most.
const MOST_OF_TIME: u32 = 10;
/// The sizes that a page of the trace can have.
const PAGES: [(&str, u64); 4] =
    [("4k", 4 << 10), ("16k", 16 << 10), ("64k", 64 << 10), ("2m", 2 << 20)];

/// Write down which pages a program touches, for 'pumice bench replace --curve'
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// The trace, as text; it must not exist yet unless --overwrite is given
    #[arg(long, value_name = "FILE", default_value = "pumice.trace")]
    out: PathBuf,
    /// Write the trace over a file that exists
    #[arg(long)]
    overwrite: bool,
    /// Look at the pages so often at most; less often where that would take more than a tenth of the time
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = duration)]
    interval: Duration,
    /// Watch this share of the pages: 1/2, 1/4, 1/8 and so on; it is halved while that is more than --most
    #[arg(long, value_name = "SHARE", default_value = "1/16", value_parser = Share::parse)]
    share: Share,
    /// Watch so many pages at once at most: more are more exact and are looked at less often
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(16..=16384))]
    most: u32,
    /// The size of a page of the trace: 4k, 16k, 64k or 2m. Below 2m, huge pages with a watched page are split
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = page_bytes)]
    pages: u64,
    /// Also write the summary to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Keeps files that are opened later out of the places of standard ones that are closed, where messages would be
/// written into them. The program finds these places closed.
fn fill_standard_places() {
    while let Ok(file) = File::open("/dev/null") {
        if file.as_raw_fd() > 2 {
            break;
        }
        forget(file);
    }
}

fn page_bytes(text: &str) -> Result<u64, String> {
    let found = PAGES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|&(_, bytes)| bytes).ok_or_else(|| "pages are 4k, 16k, 64k or 2m".to_owned())
}

/// Runs the program, writes the trace, prints a summary on stderr, and returns the program's exit status.
pub fn trace(options: &TraceArgs) -> Result<u8, Failure> {
    if options.interval.is_zero() {
        return Err(Failure::usage("--interval 0 is no interval; type --interval 10ms"));
    }
    tree::check_machine()?;
    fill_standard_places();
    let mut json = JsonLines::create(options.json.as_deref())?;
    let output = Output::create(options)?;
    let mut tree = Tree::new(output, options.share, options.most as usize, options.pages);
    let started = Instant::now();
    let mut due = started;
    let mut look = |child| {
        // A signal or a stop of the program may have ended the pause early.
        let before = Instant::now();
        if before < due {
            return tree.reap(due - before);
        }
        tree.look(child, started.elapsed());
        let pause = options.interval.max(before.elapsed() * (MOST_OF_TIME - 1));
        due = Instant::now() + pause;
        tree.reap(pause)
    };
    let ended = spawn::run_and_look(&options.program, Duration::from_millis(1), &mut look);
    let wall = started.elapsed();
    let (end, _) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            tree.discard();
            return Err(crate::run::not_run(&options.program[0], &error));
        }
    };
    let summary = show::Summary::new(options, wall, end, tree.finish()?);
    summary.print();
    json.write(&summary)?;
    json.finish()?;
    match end {
        End::Exited(status) => Ok(status),
        End::Killed(signal) => spawn::end_like(signal),
    }
}
