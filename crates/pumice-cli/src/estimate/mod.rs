//! `pumice estimate`: how much a program could gain, before anything is changed, and also if it is nothing.
//!
//! | module | contents |
//! |---|---|
//! | [`faults`] | counts the program's faults from outside, and reads of what kind they are |
//! | [`spaces`] | the address spaces behind that |
//! | [`peaks`] | how much memory the processes had at their most |
//! | [`translation`] | how often addresses had to be looked up, where the processor counts that |
//! | [`verdict`] | the arithmetic |
//! | [`show`] | the lines for people, and the object for machines |
//!
//! The program runs as it is, with nothing preloaded. With `--try`, the program is also
//! measured as it is, under `pumice run` and under `pumice run --mmap`, by turns.

mod faults;
mod peaks;
mod show;
mod spaces;
mod translation;
mod verdict;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::run::spawn::{self, End};
use faults::{Faults, Watch};
use pumice_command::costs::Costs;
use pumice_command::json_lines::JsonLines;
use pumice_command::statistics::median;
use pumice_command::Failure;
use show::{Estimate, Saved, Tried};
use translation::Misses;
use verdict::{Bounds, Given};

/// Estimate how much a program could gain under `pumice run`, which may be nothing
#[derive(Args, Debug)]
pub struct EstimateArgs {
    /// Then also run it as it is, under pumice run and under pumice run --mmap, by turns, and print the measured gain;
    /// its output is shown once
    #[arg(long = "try")]
    try_it: bool,
    /// Runs each way that --try makes
    #[arg(long, value_name = "N", default_value_t = 5, requires = "try_it",
          value_parser = clap::value_parser!(u32).range(2..=1000))]
    runs: u32,
    /// Also write the estimate to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program, prints the estimate on stderr, and returns the program's exit status.
pub fn estimate(options: &EstimateArgs) -> Result<u8, Failure> {
    let mut json = JsonLines::create(options.json.as_deref())?;
    let mut costs = Costs::default();
    let no_memory = |error| Failure::system(format!("no memory to measure this machine: {error}"));
    costs.measure().map_err(no_memory)?;
    costs.measure_translation().map_err(no_memory)?;
    forget_peak();
    let misses = Misses::begin();
    let watch = Watch::begin();
    let started = Instant::now();
    let ended = spawn::run(&options.program);
    let wall_s = started.elapsed().as_secs_f64();
    let (watched, why_not) = match watch.and_then(Watch::end) {
        Ok(faults) => (Some(faults), None),
        Err(error) => (None, Some(error)),
    };
    let tlb_misses = misses.and_then(Misses::end).ok().filter(|&misses| misses > 0);
    let (end, usage) = ended.map_err(|error| crate::run::not_run(&options.program[0], &error))?;
    costs.measure().map_err(no_memory)?;

    let faults = watched.unwrap_or_else(|| Faults::unsplit(usage.minor_faults));
    let bounds = Bounds::of(&Given {
        counts: faults.counts,
        user_s: usage.user.as_secs_f64(),
        system_s: usage.system.as_secs_f64(),
        wall_s,
        resident_bytes: usage.peak_resident_bytes,
        first_bytes: faults.first_bytes,
        busiest: faults.busiest,
        small_ns: costs.small_ns.cost().unwrap_or_default(),
        huge_ns: costs.huge_ns.cost(),
        small_written_ns: costs.small_written_ns.cost().unwrap_or_default(),
        huge_written_ns: costs.huge_written_ns.cost(),
        steps_ns: costs.small_step_ns.cost().zip(costs.huge_step_ns.cost()),
        tlb_misses,
        fill_gb_s: costs.fill_gb_s.cost().unwrap_or_default(),
    });
    let mut estimate =
        Estimate::new(&options.program, wall_s, end, &usage, &faults, &costs, &bounds);
    estimate.print(why_not.as_ref());
    if options.try_it {
        let tried = try_it(options)?;
        estimate.add(tried);
    }
    json.write(&estimate)?;
    json.finish()?;
    match end {
        End::Exited(status) => Ok(status),
        End::Killed(signal) => spawn::end_like(signal),
    }
}

/// Forgets how much memory this process had at its most, which the kernel would else say of the program
/// too, since that starts in this one's memory.
fn forget_peak() {
    // Where the kernel can't, the program is said to have had some 100 MiB.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The words before the program in each way that is tried; `None` is the program as it is.
const WAYS: [Option<&[&str]>; 3] = [None, Some(&["run", "--"]), Some(&["run", "--mmap", "--"])];

/// Runs the program in all ways, by turns, after once each that is not counted.
fn try_it(options: &EstimateArgs) -> Result<Tried, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
    let ways = WAYS.len() as u32;
    let bar = show::bar(u64::from((options.runs + 1) * ways));
    let time = |way: Option<&[&str]>| {
        let mut command = match way {
            Some(words) => {
                let mut command = Command::new(&own);
                command.args(words).arg(&options.program[0]);
                command
            }
            None => Command::new(&options.program[0]),
        };
        command.args(&options.program[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let status = command.stdin(Stdio::null()).status();
        status.map_err(|error| crate::run::not_run(&options.program[0], &error))?;
        bar.inc(1);
        Ok(started.elapsed().as_secs_f64())
    };
    let mut times: [Vec<f64>; WAYS.len()] = Default::default();
    for round in 0..=options.runs {
        // Each goes first as often as the others.
        for turn in 0..ways {
            let way = ((round + turn) % ways) as usize;
            let elapsed_s = time(WAYS[way])?;
            if round > 0 {
                times[way].push(elapsed_s);
            }
        }
    }
    bar.finish_and_clear();
    let [plain, pumice, mapping] = &times;
    Ok(Tried {
        runs: options.runs,
        plain_s: median(plain),
        pumice_s: median(pumice),
        saved: Saved::between(plain, pumice),
        mmap_s: median(mapping),
        mmap_saved: Saved::between(plain, mapping),
        mmap_over_run: Saved::between(pumice, mapping),
    })
}
