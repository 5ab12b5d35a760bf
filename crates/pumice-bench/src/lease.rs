//! `pumice bench lease`: the time from the request to the descriptor in hand, and the resources that thousands of
//! leases leave behind.
//!
//! A lease is timed from connecting to the daemon on; a request that finds no slot ready is made again, and not
//! counted. Its peer makes the same thing itself: a file without a name, its pages populated. The two take
//! turns. After the last cycle the daemon's descriptors, its own memory and the files in its folder are compared
//! with what they were after the first hundredth.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::Args;
use pumice_slots::file::Populating;
use pumice_slots::refusal::Reason;
use pumice_slots::{Client, Error, LeaseRequest, PageKind, SlotFile};
use serde_json::json;

use super::harness::{Output, OutputArgs};
use super::proc_file;
use super::registry::machines::LEASE;
use super::registry::Row;
use super::slot_daemon::SlotDaemon;
use pumice_command::{Explain, Failure};

/// Sizes, kinds of pages, and how many slots are kept ready.
const CLASSES: [(u64, PageKind, u32); 3] =
    [(64 << 10, PageKind::Small, 64), (2 << 20, PageKind::Thp, 32), (64 << 20, PageKind::Thp, 8)];
/// Most bytes that go through one class: making them anew for each cycle costs time.
const MOST_BYTES: u64 = 32 << 30;
/// A pause in which the daemon makes another slot.
const NAP: Duration = Duration::from_micros(500);
/// A daemon that takes longer makes no slots any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `pumice bench lease`.
#[derive(Args, Debug)]
pub struct LeaseArgs {
    /// Leases of each size; fewer where that would be more than 32 GiB
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = cycles())]
    cycles: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// The resources that a daemon holds.
#[derive(Clone, Copy)]
struct Holdings {
    descriptors: i64,
    files: i64,
    resident_kib: i64,
}

/// Runs the experiment and prints its table.
pub fn lease(options: &LeaseArgs) -> Result<(), Failure> {
    let mut output = Output::create(&options.output, &LEASE.plots[0])?;
    output.begin(&LEASE.tables[0]);
    for (bytes, pages, slots) in CLASSES {
        let cycles = options.cycles.min(MOST_BYTES / bytes);
        output.show(measure(bytes, pages, slots, cycles)?)?;
    }
    output.finish()
}

fn measure(bytes: u64, pages: PageKind, slots: u32, cycles: u64) -> Result<Row, Failure> {
    let slot = format!("{bytes}={slots}");
    let daemon =
        SlotDaemon::start_with(["--slot", &slot, "--pages", pages.name(), "--polite", "off"])?;
    daemon.wait_ready()?;
    let client = Client::new(daemon.socket());
    let (mut leases, mut fresh) = (Vec::new(), Vec::new());
    let mut before = None;
    for cycle in 0..cycles {
        if cycle == cycles.div_ceil(100) {
            before = Some(settled(&daemon, &client, slots)?);
        }
        leases.push(time_lease(&client, bytes)?);
        fresh.push(
            time_fresh(bytes, pages)
                .or_fail(format_args!("can't populate a file of {bytes} bytes"))?,
        );
    }
    let after = settled(&daemon, &client, slots)?;
    let before = before.unwrap_or(after);
    Ok(Row::of(json!({
        "bytes": bytes,
        "pages": pages.name(),
        "cycles": cycles,
        "lease_p50_us": percentile(&mut leases, 50),
        "lease_p99_us": percentile(&mut leases, 99),
        "fresh_p50_us": percentile(&mut fresh, 50),
        "fresh_p99_us": percentile(&mut fresh, 99),
        "descriptors_left": after.descriptors - before.descriptors,
        "files_left": after.files - before.files,
        "resident_kib_left": after.resident_kib - before.resident_kib,
    })))
}

/// A lease, which ends at once, in microseconds.
fn time_lease(client: &Client, bytes: u64) -> Result<f64, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let begun = Instant::now();
        match client.lease(&LeaseRequest::new(bytes)) {
            Ok(lease) => {
                let took = begun.elapsed();
                drop(lease);
                return Ok(took.as_secs_f64() * 1e6);
            }
            Err(Error::Refused(refusal))
                if refusal.reason == Reason::NoneReady && Instant::now() < until =>
            {
                thread::sleep(NAP);
            }
            Err(error) => return Err(Failure::system(error.to_string())),
        }
    }
}

/// The same by oneself.
fn time_fresh(bytes: u64, pages: PageKind) -> std::io::Result<f64> {
    let begun = Instant::now();
    let file = SlotFile::create(bytes, pages)?;
    let mut populating = Populating::begin(&file, bytes, pages)?;
    while populating.step(usize::MAX)? != 0 {}
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

/// The daemon's resources once all of its slots are ready and ended leases are gone.
fn settled(daemon: &SlotDaemon, client: &Client, slots: u32) -> Result<Holdings, Failure> {
    let until = Instant::now() + PATIENCE;
    while !client.classes().is_ok_and(|rows| rows.iter().any(|row| row.ready == slots)) {
        if Instant::now() > until {
            return Err(Failure::system("the slots did not become ready again"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    // It closes what clients have closed a moment later.
    thread::sleep(Duration::from_millis(100));
    let process = PathBuf::from(format!("/proc/{}", daemon.pid()));
    // But for what it reads the machine's load from, which it opens when it needs it.
    let is_sensor = |path: &Path| path.starts_with("/proc") || path.starts_with("/sys");
    let descriptors = entries(&process.join("fd"))
        .into_iter()
        .filter(|entry| fs::read_link(entry).is_ok_and(|target| !is_sensor(&target)));
    let folder = daemon.socket().parent().map(Path::to_owned).unwrap_or_default();
    Ok(Holdings {
        descriptors: descriptors.count() as i64,
        files: entries(&folder).len() as i64,
        resident_kib: proc_file::number(process.join("status"), "RssAnon").unwrap_or(0) as i64,
    })
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn cycles() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(100..=1_000_000)
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * percent / 100).copied().unwrap_or(f64::NAN)
}
