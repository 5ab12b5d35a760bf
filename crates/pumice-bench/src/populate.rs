//! `pumice bench populate`: how fast `pumice serve` populates, and what that costs those beside it.
//!
//! A real daemon, as it is by default, is given slots to populate and has them taken away again, in pairs of
//! windows of which one is with and one without, in alternating order. A pair's loss is `1 - on / off`
//! in the neighbours' work per second of wall time; the median over the pairs counts, with its 95 %
//! interval (order statistics). Before a window begins all that was populated in the last one is gone.
//!
//! | case | beside the daemon |
//! |---|---|
//! | `alone` | nothing; its loss is how far it stays behind one that is not polite |
//! | `compute-one`, `compute-all` | one thread that computes, or one on each processor; same session |
//! | `copy-one`, `copy-all` | as many that copy more memory than the caches hold |
//! | the same with `-session` | in a session of their own each, which autogroup schedules as a group |
//! | the same with `-cgroup` | in a control group of their own (root) |

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pumice_frames::sys::cpu;
use pumice_slots::stat::Counter;
use pumice_slots::{Client, PageKind};
use serde::Serialize;

use super::neighbours::{wait_until_all_work, Estimate, Group, Neighbour, Pair, Session, Work};
use super::slot_daemon::SlotDaemon;
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::memory;
use pumice_command::table::Table;
use pumice_command::Failure;

const SLOT_BYTES: u64 = 64 << 20;
const MIB: f64 = (1 << 20) as f64;
/// No machine populates faster.
const MOST_BYTES_PER_MS: u64 = 8 << 20;
/// What a daemon has always: without any slot there is none.
const ALWAYS: &str = "[[slot]]\nsize = \"64K\"\npages = \"4k\"\n";
/// After a switch, this much passes before a window begins: naps and rests end, and what was begun.
const SETTLE: Duration = Duration::from_millis(100);
/// How long memory may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names are the fields' of a row of JSON.
const COLUMNS: [(&str, usize); 7] = [
    ("case", 19),
    ("neighbours", 0),
    ("populate_mib_s", 0),
    ("populate_cpu_pct", 0),
    ("loss_pct", 0),
    ("loss_low_pct", 0),
    ("loss_high_pct", 0),
];

/// What `pumice bench populate` is asked for.
#[derive(Args, Debug)]
pub struct PopulateArgs {
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Pairs of windows for each case
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: u32,
    /// Length of a window in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    window_ms: u64,
    /// Only the cases whose name starts with this
    #[arg(long, value_name = "CASE", default_value = "")]
    case: String,
    /// What the slots are made of: 4k or thp
    #[arg(long, value_name = "KIND", default_value = "thp", value_parser = pages)]
    pages: PageKind,
    /// Populate at full speed, whoever else wants the machine
    #[arg(long)]
    impolite: bool,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    pages: &'static str,
    polite: bool,
    neighbours: usize,
    /// While populating is on.
    populate_mib_s: f64,
    /// Of one processor, while populating is on.
    populate_cpu_pct: f64,
    /// The neighbours' loss; for `alone`, how far the polite daemon stays behind.
    loss_pct: f64,
    loss_low_pct: f64,
    loss_high_pct: f64,
    samples: Samples,
}

/// A case with neighbours.
struct Case {
    name: String,
    neighbours: usize,
    work: Work,
    session: Session,
    in_group: bool,
}

fn cases() -> Vec<Case> {
    let works = [("compute", Work::Compute), ("copy", Work::Copy)];
    let counts = [("one", 1), ("all", cpu::count())];
    let places = [
        ("", Session::Same, false),
        ("-session", Session::Own, false),
        ("-cgroup", Session::Same, true),
    ];
    let mut cases = Vec::new();
    for (work_name, work) in works {
        for (count_name, neighbours) in counts {
            for (place_name, session, in_group) in places {
                let name = format!("{work_name}-{count_name}{place_name}");
                cases.push(Case { name, neighbours, work, session, in_group });
            }
        }
    }
    cases
}

/// Measures, and prints the table.
pub fn populate(options: &PopulateArgs) -> Result<ExitCode, Failure> {
    let mut json = JsonLines::create(options.json.as_deref())?;
    let autogroup = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    if !autogroup.is_ok_and(|text| text.trim() == "1") {
        eprintln!("autogroup is off: a session of its own makes no difference");
    }
    let table = Table::begin(&COLUMNS);
    let mut show = |row: Row| {
        let percents = [row.populate_cpu_pct, row.loss_pct, row.loss_low_pct, row.loss_high_pct];
        let mut cells = vec![row.case.clone(), row.neighbours.to_string()];
        cells.push(format!("{:.0}", row.populate_mib_s));
        cells.extend(percents.map(|percent| format!("{percent:.1}")));
        table.row(&cells);
        json.write(&row)
    };
    if "alone".starts_with(&options.case) {
        show(alone(options)?)?;
    }
    for case in cases().iter().filter(|case| case.name.starts_with(&options.case)) {
        match beside(case, options) {
            Ok(row) => show(row)?,
            Err(why) => eprintln!("{}: skipped, {why}", case.name),
        }
    }
    json.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// How much a daemon does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    Off,
    /// It looks whether anybody else wants the machine.
    Polite,
    /// At full speed.
    Impolite,
}

/// A daemon, and the file that says what it should have.
struct Setup {
    daemon: SlotDaemon,
    client: Client,
    file: PathBuf,
    /// What it has while it is switched on.
    wanted: String,
    idle_kib: u64,
}

/// What a window saw, each per second.
#[derive(Clone, Copy)]
struct Window {
    bytes: f64,
    cpu: f64,
    work: f64,
}

impl Setup {
    fn new(options: &PopulateArgs) -> Result<Setup, Failure> {
        let free = memory::free_bytes().unwrap_or(0) / 2;
        let bytes = free.min(2 * options.window_ms * MOST_BYTES_PER_MS);
        let count = (bytes / SLOT_BYTES).max(1);
        let pages = options.pages.name();
        let wanted = format!("[[slot]]\nsize = \"64M\"\ncount = {count}\npages = \"{pages}\"\n");
        let file =
            std::env::temp_dir().join(format!("pumice-bench-populate.{}", std::process::id()));
        let failure = |error| Failure::system(format!("can't write {}: {error}", file.display()));
        fs::write(&file, ALWAYS).map_err(failure)?;
        let daemon = SlotDaemon::start_with(["--config".as_ref(), file.as_os_str()])?;
        daemon.wait_ready()?;
        let client = Client::new(daemon.socket());
        Ok(Setup { daemon, client, file, wanted, idle_kib: shared_kib() })
    }

    /// Takes all slots away, and gives it others to populate if it is to have any.
    fn switch(&self, to: Switch) -> Result<(), String> {
        self.configure("")?;
        let start = Instant::now();
        // Whoever else has shared memory comes and goes meanwhile; some MiB do not matter.
        while shared_kib() > self.idle_kib + (SLOT_BYTES >> 10) {
            if start.elapsed() > PATIENCE {
                return Err("slots are not given back".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let word = match to {
            Switch::Off => None,
            Switch::Polite => Some("on"),
            Switch::Impolite => Some("off"),
        };
        if let Some(word) = word {
            self.configure(&format!("[populate]\npolite = \"{word}\"\n{}", self.wanted))?;
        }
        thread::sleep(SETTLE);
        Ok(())
    }

    fn configure(&self, more: &str) -> Result<(), String> {
        fs::write(&self.file, format!("{ALWAYS}{more}")).map_err(|error| error.to_string())?;
        // SAFETY: a plain system call; the daemon is our child and not reaped yet.
        unsafe { libc::kill(self.daemon.pid(), libc::SIGHUP) };
        Ok(())
    }

    fn window(&self, length: Duration, work: impl Fn() -> u64) -> Result<Window, String> {
        let counts = || -> Result<_, String> {
            let values = self.client.stat().map_err(|error| error.to_string())?;
            let get = |counter: Counter| values.get(counter as usize).copied().unwrap_or(0);
            Ok((get(Counter::PopulatedBytes), get(Counter::PopulateCpuNs), work()))
        };
        let (before, start) = (counts()?, Instant::now());
        thread::sleep(length);
        let (after, seconds) = (counts()?, start.elapsed().as_secs_f64());
        let per_second = |after: u64, before: u64| (after - before) as f64 / seconds;
        Ok(Window {
            bytes: per_second(after.0, before.0),
            cpu: per_second(after.1, before.1) / 1e9,
            work: per_second(after.2, before.2),
        })
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Memory of files without a name and the like, in KiB.
fn shared_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.unwrap_or(0)
}

fn alone(options: &PopulateArgs) -> Result<Row, Failure> {
    let setup = Setup::new(options)?;
    let length = Duration::from_millis(options.window_ms);
    let measured = pairs(options, |polite| {
        setup.switch(if polite { Switch::Polite } else { Switch::Impolite })?;
        setup.window(length, || 0)
    });
    let measured = measured.map_err(Failure::system)?;
    Ok(row("alone".to_owned(), 0, options, &measured, |window| window.bytes))
}

/// `Err` says why the case can't be measured here.
fn beside(case: &Case, options: &PopulateArgs) -> Result<Row, String> {
    let group = match case.in_group {
        false => None,
        true => Some(Group::create().map_err(|error| format!("no control group: {error}"))?),
    };
    let neighbours = (0..case.neighbours)
        .map(|_| Neighbour::start(case.work, case.session))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("no neighbour: {error}"))?;
    if let Some(group) = &group {
        for neighbour in &neighbours {
            group.enter(neighbour.pid()).map_err(|error| error.to_string())?;
        }
    }
    wait_until_all_work(&neighbours)?;
    let setup = Setup::new(options).map_err(|failure| failure.message)?;
    let length = Duration::from_millis(options.window_ms);
    let work = || neighbours.iter().map(Neighbour::work_done).sum::<u64>();
    let measured = pairs(options, |on| {
        setup.switch(match on {
            false => Switch::Off,
            true if options.impolite => Switch::Impolite,
            true => Switch::Polite,
        })?;
        setup.window(length, work)
    })?;
    Ok(row(case.name.clone(), case.neighbours, options, &measured, |window| window.work))
}

/// Windows with and without, `measure` says of one. A first one brings memory from the host, and does not count.
fn pairs(
    options: &PopulateArgs,
    mut measure: impl FnMut(bool) -> Result<Window, String>,
) -> Result<Vec<(Window, Window)>, String> {
    measure(true)?;
    let mut measured = Vec::new();
    for pair in 0..options.pairs {
        measured.push(if pair % 2 == 0 {
            let off = measure(false)?;
            (measure(true)?, off)
        } else {
            let on = measure(true)?;
            (on, measure(false)?)
        });
    }
    Ok(measured)
}

fn row(
    case: String,
    neighbours: usize,
    options: &PopulateArgs,
    measured: &[(Window, Window)],
    work: impl Fn(&Window) -> f64,
) -> Row {
    let pairs: Vec<_> =
        measured.iter().map(|(on, off)| Pair { on: work(on), off: work(off) }).collect();
    let loss = Estimate::of_losses(&pairs);
    let mean = |value: fn(&Window) -> f64| {
        measured.iter().map(|(on, _)| value(on)).sum::<f64>() / measured.len().max(1) as f64
    };
    Row {
        case,
        pages: options.pages.name(),
        polite: !options.impolite,
        neighbours,
        populate_mib_s: mean(|window| window.bytes) / MIB,
        populate_cpu_pct: mean(|window| window.cpu) * 100.0,
        loss_pct: loss.median * 100.0,
        loss_low_pct: loss.low * 100.0,
        loss_high_pct: loss.high * 100.0,
        samples: [
            ("loss_pct", pairs.iter().map(|pair| pair.loss() * 100.0).collect()),
            ("populate_mib_s", measured.iter().map(|(on, _)| on.bytes / MIB).collect()),
        ]
        .into(),
    }
}

fn pages(text: &str) -> Result<PageKind, String> {
    let kind = PageKind::parse(text).filter(|kind| !kind.is_hugetlb());
    kind.ok_or_else(|| "kinds of pages here are 4k and thp".to_owned())
}
