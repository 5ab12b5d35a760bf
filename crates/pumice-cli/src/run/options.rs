//! The flags of `pumice run`, most of which `pumice env` has too, and the environment that they
//! become.
//!
//! Each flag has its `PUMICE_*` variable. Where the flag is not given, a variable that is already
//! set stands in for it, and is checked as the flag would be.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use pumice_heap::config::{
    parse_mmap_threshold, parse_size, Setting, DEFAULT_THRESHOLD, ENV_CLEAR, ENV_MMAP_THRESHOLD,
    ENV_ONLY, ENV_POOL_MAX, ENV_READY, ENV_SKIP, ENV_THRESHOLD, ENV_VERIFY, MIN_THRESHOLD,
    MMAP_THRESHOLD,
};

use super::profile::Profile;
use crate::serve::duration;
use pumice_command::engines::{self, Choice};
use pumice_command::memory;
use pumice_command::small::{self, Small};
use pumice_command::Failure;

/// The settings of programs (memory, and the programs to serve), which `pumice run` and `pumice env` take.
#[derive(Args, Debug, Default)]
pub struct PoolArgs {
    /// Memory to have ready, populated in the background in the first process (such as 512M)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ready: Option<usize>,
    /// The most memory the pools of all processes together may take; three quarters of the memory
    /// there is (the machine's, or its control group's) if not given
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pool_max: Option<usize>,
    /// Serve requests of this size and larger; 64K if not given, 4K at least
    #[arg(long, value_name = "SIZE", value_parser = threshold)]
    threshold: Option<usize>,
    /// Serve private anonymous mappings of 1M and larger, too, for programs that map memory themselves
    #[arg(long, overrides_with = "no_mmap")]
    mmap: bool,
    /// The same for mappings of this size and larger, 4K at least
    #[arg(long, value_name = "SIZE", value_parser = threshold, overrides_with = "no_mmap")]
    mmap_threshold: Option<usize>,
    /// Leave all mappings to the kernel, as without --mmap, also where the environment says otherwise
    #[arg(long, overrides_with_all = ["mmap", "mmap_threshold"])]
    no_mmap: bool,
    /// Have another allocator serve the requests that are too small for pumice, instead of the C library's as it is
    #[arg(long, value_name = "ALLOCATOR")]
    pub(super) small: Option<Small>,
    /// How long free memory is kept before it is given back (such as 500ms, 10s or 1m); 10s if
    /// not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    decay: Option<Duration>,
    /// Serve only programs of this name (can be repeated)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<OsString>,
    /// Do not serve programs of this name (can be repeated)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    skip: Vec<OsString>,
    /// The engine that zeroes memory ahead of need: auto (as measured), cpu, kernel, or an engine of this
    /// processor for everything (pumice bench clear lists them)
    #[arg(long, value_name = "NAME", value_parser = engines::parse)]
    pub(super) engine: Option<Choice>,
    /// Check at each request that memory said to be zero is
    #[arg(long)]
    verify: bool,
}

/// Run a program on memory that is already there and already zero
#[derive(Parser, Debug, Default)]
#[command(name = "run", bin_name = "pumice run")]
pub struct RunArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Have ready at the start the memory that the last run used in its first second, as --ready does, and record that
    /// of this run in FILE (a file for each program in your cache folder, if none is given)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "ready")]
    profile: Option<Option<PathBuf>>,
    /// At exit, print on stderr the requests that were served, and their cost
    #[arg(
        long,
        value_name = "FORM",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "table"
    )]
    report: Option<ReportForm>,
    /// Write the report to this file instead
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
    // Last, since its heading holds for all that follows.
    #[command(flatten)]
    scrub: ScrubArgs,
}

/// The scrubber's settings, as typed: checked, and kept as text for the environment.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Scrubber (also while it runs: pumice ctl)")]
pub struct ScrubArgs {
    /// A freed area of this order or higher wakes the scrubber
    #[arg(long, value_name = "N", value_parser = setting(Setting::ScrubStart))]
    scrub_start: Option<String>,
    /// The scrubber zeroes areas of this order and higher
    #[arg(long, value_name = "N", value_parser = setting(Setting::ScrubStop))]
    scrub_stop: Option<String>,
    /// The scrubber rests while the load average is above this; 0 for no limit
    #[arg(long, value_name = "L", value_parser = setting(Setting::ScrubLoad))]
    scrub_load: Option<String>,
    /// Pages it zeroes in a second at most; 0 for no limit
    #[arg(long, value_name = "N", value_parser = setting(Setting::ScrubRatePagesPerS))]
    scrub_rate_pages_per_s: Option<String>,
    /// Pages it zeroes in one burst
    #[arg(long, value_name = "N", value_parser = setting(Setting::ScrubBatchPages))]
    scrub_batch_pages: Option<String>,
    /// How long freed memory must lie before it is zeroed, in milliseconds
    #[arg(long, value_name = "N", value_parser = setting(Setting::ScrubDelayMs))]
    scrub_delay_ms: Option<String>,
}

/// The report's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// for people
    Table,
    /// one object
    Json,
}

/// A report to be written.
#[derive(Debug)]
pub struct ReportTo {
    /// Its form.
    pub form: ReportForm,
    /// The file to write it to, opened before the program runs; stderr if there is none.
    pub file: Option<File>,
}

/// A checked command line: the program to run, and how.
#[derive(Debug)]
pub struct Plan {
    /// The program and its arguments; never empty.
    pub program: Vec<OsString>,
    /// Variables to set; the shim's file and the counters' are not among them.
    pub variables: Vec<(&'static str, OsString)>,
    /// Bytes to have ready in the first process.
    pub ready_bytes: usize,
    /// The most bytes of pool in the tree.
    pub pool_max_bytes: usize,
    /// The library that serves small requests, if one was asked for.
    pub small: Option<PathBuf>,
    /// The program's profile, if it is to have one.
    pub profile: Option<Profile>,
    /// The report wanted, if one is.
    pub report: Option<ReportTo>,
}

impl RunArgs {
    /// Those of a program that is run without options.
    pub fn of(program: &[OsString]) -> RunArgs {
        RunArgs { program: program.to_vec(), ..RunArgs::default() }
    }

    /// The same with a report, for people.
    pub fn with_report(program: &[OsString]) -> RunArgs {
        RunArgs { report: Some(ReportForm::Table), ..RunArgs::of(program) }
    }

    /// Adds the environment's settings and checks that they fit the machine.
    pub fn plan(self) -> Result<Plan, Failure> {
        let ready = or_env(self.pool.ready, "--ready", ENV_READY, size)?;
        let pool_max = or_env(self.pool.pool_max, "--pool-max", ENV_POOL_MAX, size)?;
        let threshold = or_env(self.pool.threshold, "--threshold", ENV_THRESHOLD, threshold)?;
        if let Some(Choice::Kind(kind)) = self.pool.engine {
            engines::check_for_programs(kind)?;
        }
        let small = self.pool.small.map_or(Ok(None), Small::find_or_explain)?;
        let profile = self.profile.map(|file| Profile::open(file.as_deref(), &self.program));
        let profile = profile.transpose()?;
        let available = memory::available_bytes();
        let (mut ready_bytes, pool_max_bytes) = fit(ready, pool_max, available)?;
        if let Some(profile) = &profile {
            // A size that was right on another day must not drive others out of memory.
            let most = usize::try_from(available / 2).unwrap_or(usize::MAX).min(pool_max_bytes);
            ready_bytes = ready_bytes.max(profile.ready_bytes(most));
        }

        let mut variables = variables(&self.pool, &self.scrub);
        if variables.iter().all(|(name, _)| *name != ENV_MMAP_THRESHOLD) {
            check_mmap_threshold()?;
        }
        if profile.is_some() && threshold.is_none() {
            // It is about all that the program asks for: also where that is little.
            variables.push((ENV_THRESHOLD, DEFAULT_THRESHOLD.to_string().into()));
        }
        variables.retain(|(name, _)| ![ENV_READY, ENV_POOL_MAX].contains(name));
        variables.push((ENV_POOL_MAX, pool_max_bytes.to_string().into()));
        for setting in Setting::ALL {
            if variables.iter().all(|(name, _)| *name != setting.env()) {
                check_env(setting)?;
            }
        }
        let wanted = self.report.is_some() || self.report_file.is_some();
        let report = wanted.then(|| {
            let form = self.report.unwrap_or(ReportForm::Table);
            let file = self.report_file.as_deref().map(report_file).transpose()?;
            Ok(ReportTo { form, file })
        });
        let report = report.transpose()?;
        let program = self.program;
        Ok(Plan { program, variables, ready_bytes, pool_max_bytes, small, profile, report })
    }
}

impl Plan {
    /// Whether there is something to do while the program runs, or after it.
    pub fn needs_parent(&self) -> bool {
        self.ready_bytes > 0 || self.profile.is_some() || self.report.is_some()
    }
}

/// The variables that stand for the options, sizes in bytes.
pub fn variables(pool: &PoolArgs, scrub: &ScrubArgs) -> Vec<(&'static str, OsString)> {
    let mut variables = Vec::new();
    let sizes =
        [(pool.ready, ENV_READY), (pool.pool_max, ENV_POOL_MAX), (pool.threshold, ENV_THRESHOLD)];
    for (bytes, name) in sizes {
        variables.extend(bytes.map(|bytes| (name, bytes.to_string().into())));
    }
    let mmap_threshold = pool.mmap_threshold.or(pool.mmap.then_some(MMAP_THRESHOLD));
    let mmap_threshold = match pool.no_mmap {
        true => Some("off".into()),
        false => mmap_threshold.map(|bytes| bytes.to_string().into()),
    };
    variables.extend(mmap_threshold.map(|value| (ENV_MMAP_THRESHOLD, value)));
    for (list, name) in [(&pool.only, ENV_ONLY), (&pool.skip, ENV_SKIP)] {
        if !list.is_empty() {
            variables.push((name, list.join(OsStr::new(","))));
        }
    }
    variables.extend(pool.engine.map(|choice| (ENV_CLEAR, choice.to_string().into())));
    if pool.small == Some(Small::GlibcHuge) {
        variables.push((small::ENV_TUNABLES, small::HUGE_HEAP.into()));
    }
    if pool.verify {
        variables.push((ENV_VERIFY, "1".into()));
    }
    let decay_ms = pool.decay.map(|time| time.as_millis().to_string());
    for (typed, setting) in scrub.settings().into_iter().chain([(decay_ms, Setting::DecayMs)]) {
        variables.extend(typed.map(|text| (setting.env(), text.into())));
    }
    variables
}

/// Checks sizes of memory for another machine: the pool must have room for the ready memory.
pub fn check_pool(pool: &PoolArgs) -> Result<(), Failure> {
    let typed = |value, source| Some(Sourced { value: value?, source });
    let (ready, most) = (typed(pool.ready, "--ready"), typed(pool.pool_max, "--pool-max"));
    fit(ready, most, u64::MAX).map(drop)
}

impl ScrubArgs {
    fn settings(&self) -> [(Option<String>, Setting); 6] {
        [
            (self.scrub_start.clone(), Setting::ScrubStart),
            (self.scrub_stop.clone(), Setting::ScrubStop),
            (self.scrub_load.clone(), Setting::ScrubLoad),
            (self.scrub_rate_pages_per_s.clone(), Setting::ScrubRatePagesPerS),
            (self.scrub_batch_pages.clone(), Setting::ScrubBatchPages),
            (self.scrub_delay_ms.clone(), Setting::ScrubDelayMs),
        ]
    }
}

fn check_mmap_threshold() -> Result<(), Failure> {
    match env::var_os(ENV_MMAP_THRESHOLD) {
        Some(text) if text.to_str().and_then(parse_mmap_threshold).is_none() => {
            let text = text.to_string_lossy();
            let text = text.escape_debug();
            Err(Failure::usage(format!(
                "{ENV_MMAP_THRESHOLD}={text} is neither a size of {MIN_THRESHOLD} bytes or more nor off"
            )))
        }
        _ => Ok(()),
    }
}

fn report_file(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        let path = path.display();
        Failure::usage(format!("--report-file {path} can't be written: {error}"))
    })
}

/// A value, and the flag or variable it came from.
#[derive(Clone, Copy, Debug)]
struct Sourced {
    value: usize,
    source: &'static str,
}

fn or_env(
    flag: Option<usize>,
    flag_name: &'static str,
    variable: &'static str,
    parse: fn(&str) -> Result<usize, String>,
) -> Result<Option<Sourced>, Failure> {
    if let Some(value) = flag {
        return Ok(Some(Sourced { value, source: flag_name }));
    }
    let Some(text) = env::var_os(variable).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    match parse(&text) {
        Ok(value) => Ok(Some(Sourced { value, source: variable })),
        Err(why) => Err(Failure::usage(format!("bad value in {variable}={text}: {why}"))),
    }
}

fn check_env(setting: Setting) -> Result<(), Failure> {
    match env::var_os(setting.env()) {
        Some(text) if !text.is_empty() && setting.parse(&text.to_string_lossy()).is_none() => {
            let (name, text) = (setting.env(), text.to_string_lossy());
            let expects = setting.expects();
            Err(Failure::usage(format!("bad value in {name}={text}: it takes {expects}")))
        }
        _ => Ok(()),
    }
}

/// Bytes ready and most bytes of pool, where `available` bytes of memory are to be had.
fn fit(
    ready: Option<Sourced>,
    pool_max: Option<Sourced>,
    available: u64,
) -> Result<(usize, usize), Failure> {
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    for given in [pool_max, ready].into_iter().flatten() {
        if given.value > available {
            let (source, wanted, most) = (given.source, show(given.value), show(available));
            return Err(Failure::usage(format!(
                "{source} asks for {wanted}, but there are only {most} of memory; \
                 give {source} a smaller size"
            )));
        }
    }
    let ready_bytes = ready.map_or(0, |ready| ready.value);
    let Some(most) = pool_max else {
        return Ok((ready_bytes, ready_bytes.max(available / 4 * 3)));
    };
    match ready {
        Some(ready) if ready.value > most.value => Err(Failure::usage(format!(
            "{} ({}) is larger than {} ({}); raise the one or lower the other",
            ready.source,
            show(ready.value),
            most.source,
            show(most.value)
        ))),
        _ => Ok((ready_bytes, most.value)),
    }
}

/// A size in the largest unit that leaves a digit before the point.
pub fn show(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let decimals = usize::from(value < 99.95);
    format!("{value:.decimals$} {}", units[power])
}

fn size(text: &str) -> Result<usize, String> {
    parse_size(text)
        .ok_or_else(|| "a size is a number of bytes, or one with K, M, G or T, such as 512M".into())
}

fn threshold(text: &str) -> Result<usize, String> {
    match size(text)? {
        bytes if bytes < MIN_THRESHOLD => Err(format!("it must be {MIN_THRESHOLD} bytes at least")),
        bytes => Ok(bytes),
    }
}

fn setting(setting: Setting) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text| match setting.parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("it takes {}", setting.expects())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(value: usize) -> Option<Sourced> {
        Some(Sourced { value, source: "--test" })
    }

    #[test]
    fn thresholds() {
        assert_eq!(threshold("64K"), Ok(64 << 10));
        assert!(threshold("1K").is_err());
    }

    #[test]
    fn a_pool_fits_the_memory() {
        assert_eq!(fit(None, None, 1 << 20).expect("fits"), (0, 3 << 18));
        assert_eq!(fit(given(1 << 20), None, 1 << 20).expect("fits"), (1 << 20, 1 << 20));
        assert_eq!(fit(given(1), given(2), 1 << 20).expect("fits"), (1, 2));
        assert!(fit(None, given((1 << 20) + 1), 1 << 20).is_err());
        assert!(fit(given((1 << 20) + 1), None, 1 << 20).is_err());
        assert!(fit(given(3), given(2), 1 << 20).is_err());
    }

    #[test]
    fn sizes_are_shown_in_their_unit() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(300 << 20), "300 MiB");
        assert_eq!(show(12_345_678_901), "11.5 GiB");
    }
}
