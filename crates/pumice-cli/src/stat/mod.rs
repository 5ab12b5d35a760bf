//! `pumice stat`: the pools of the programs under `pumice run`, and the requests served, while they run.
//!
//! | module | contents |
//! |---|---|
//! | [`running`] | the kernel's records of a process |
//! | [`sample`] | the counters at one time |
//! | [`rates`] | how fast it changes |
//! | [`show`] | tables and JSON |
//! | [`prometheus`] | the same for Prometheus |

mod prometheus;
pub mod rates;
mod running;
pub mod sample;
pub mod show;

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use clap::Args;
use pumice_command::Failure;
use pumice_slots::serving::http::{self, Address};

use crate::numbers::parse_pid;
use crate::run::spawn;
use crate::serve::not_served;
use rates::Rates;
use sample::{Process, Sample};
use show::Of;

/// The arguments of `pumice stat`.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Process ids of programs, or of `pumice run` for all its programs; all programs if not given
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pids: Vec<u32>,
    /// As JSON, one object a program and line
    #[arg(long)]
    json: bool,
    /// Go on, every --interval, and show the changes
    #[arg(long, short)]
    watch: bool,
    /// Seconds between two samples
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = parse_interval,
          requires = "watch")]
    interval: Duration,
    /// Samples that --watch takes; it goes on for ever if not given
    #[arg(long, short = 'n', value_name = "N", requires = "watch",
          value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// In the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
    /// Serve that for Prometheus at unix:PATH or a loopback address such as 127.0.0.1:9465
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse,
          conflicts_with_all = ["json", "watch"])]
    listen: Option<Address>,
}

/// Reads a number of seconds; a hundredth of one at least.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "an interval is a number of seconds from 0.01 to 86400, such as 0.5";
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| EXPECTED.into())
}

/// Shows them.
pub fn stat(options: &StatArgs) -> Result<(), Failure> {
    if let Some(address) = &options.listen {
        return listen(address, options.pids.clone());
    }
    let sample = Sample::take(&options.pids);
    let is_missing = |pid: &&u32| !sample.processes.iter().any(|process| process.is_of(**pid));
    if let Some(pid) = options.pids.iter().find(is_missing) {
        return Err(Failure::system(format!(
            "process {pid} is not there, or has been served nothing by pumice; see 'pumice stat'"
        )));
    }
    if options.prometheus {
        return pumice_command::print(prometheus::page(&sample).as_bytes());
    }
    if options.watch {
        return watch(options, sample);
    }
    let rows: Vec<_> = sample.processes.into_iter().map(|process| (process, None)).collect();
    match options.json {
        true => show::print_json(&rows),
        false => show::print_table(&rows, Of::Totals),
    }
}

/// Shows the changes until there were enough samples, or nobody reads any more.
fn watch(options: &StatArgs, mut before: Sample) -> Result<(), Failure> {
    let mut left = options.samples;
    // SAFETY: a plain call. The process that started this may ignore the signal, and then this one would not notice
    // that its reader has gone.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    while left != Some(0) {
        thread::sleep(options.interval);
        let now = Sample::take(&options.pids);
        let rows = with_rates(&before, &now);
        match options.json {
            true => show::print_json(&rows)?,
            false => {
                show::print_table(&rows, Of::Changes)?;
                pumice_command::print(b"\n")?;
            }
        }
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// The programs of a sample, and how fast their counters moved since another.
pub fn with_rates(before: &Sample, now: &Sample) -> Vec<(Process, Option<Rates>)> {
    let elapsed = now.at.saturating_duration_since(before.at);
    let key = |process: &Process| (process.run_pid, process.pid);
    let earlier: HashMap<_, _> = before.processes.iter().map(|one| (key(one), one)).collect();
    let rates =
        |process: &Process| Rates::between(earlier.get(&key(process)).copied()?, process, elapsed);
    now.processes.iter().map(|process| (process.clone(), rates(process))).collect()
}

/// Serves samples, taken when somebody asks, until a signal ends it.
fn listen(address: &Address, pids: Vec<u32>) -> Result<(), Failure> {
    let endings = spawn::block_endings();
    let page = move || Some(prometheus::page(&Sample::take(&pids)));
    let serving = http::start(address, "--listen", page).map_err(not_served)?;
    eprintln!("pumice: metrics for Prometheus are at {}", serving.at);
    spawn::wait_for(&endings);
    serving.clear();
    Ok(())
}
