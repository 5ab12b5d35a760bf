//! `pumice bench populate`: how fast `pumice serve` populates, and its cost to programs beside it.
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
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use pumice_frames::sys::cpu;
use pumice_slots::stat::Counter;
use pumice_slots::{Client, PageKind};
use serde_json::json;

use super::harness::{Output, OutputArgs};
use super::neighbours::case::{self, look_for_autogroup, Case, CaseArgs, GroupKind};
use super::neighbours::pairs::{alternate, with_loss, Pair, Window};
use super::neighbours::{Session, Work};
use super::proc_file;
use super::registry::machines::POPULATE;
use super::registry::Row;
use super::slot_daemon::SlotDaemon;
use super::team::folder::Folder;
use pumice_command::memory;
use pumice_command::{Explain, Failure};

const SLOT_BYTES: u64 = 64 << 20;
const MIB: f64 = (1 << 20) as f64;
/// No machine populates faster.
const MOST_BYTES_PER_MS: u64 = 8 << 20;
/// The slot that a daemon always has: it needs one.
const ALWAYS: &str = "[[slot]]\nsize = \"64K\"\npages = \"4k\"\n";
/// After a switch, this much passes before a window begins: naps and rests end, and what was begun.
const SETTLE: Duration = Duration::from_millis(100);
/// How long memory may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options of `pumice bench populate`.
#[derive(Args, Debug)]
pub struct PopulateArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cases: CaseArgs,
    /// Length of a window in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    window_ms: u64,
    /// Pages that the slots are made of: 4k or thp
    #[arg(long, value_name = "KIND", default_value = "thp", value_parser = pages)]
    pages: PageKind,
    /// Populate at full speed, even if others want the machine
    #[arg(long)]
    impolite: bool,
}

fn cases() -> Vec<Case> {
    let works = [("compute", Work::Compute), ("copy", Work::Copy)];
    let counts = [("one", 1), ("all", cpu::count())];
    let places = [
        ("", Session::Same, None),
        ("-session", Session::Own, None),
        ("-cgroup", Session::Same, Some(GroupKind::Neighbours)),
    ];
    let mut cases = Vec::new();
    for (work_name, work) in works {
        for (count_name, neighbours) in counts {
            for (place_name, session, group) in places {
                let name = format!("{work_name}-{count_name}{place_name}");
                cases.push(Case { name, neighbours, work, session, group });
            }
        }
    }
    cases
}

/// Measures, and prints the table.
pub fn populate(options: &PopulateArgs) -> Result<(), Failure> {
    let mut output = Output::create(&options.output, &POPULATE.plots[0])?;
    look_for_autogroup("a session of its own makes no difference");
    output.begin(&POPULATE.tables[0]);
    let beside = |case: &Case| beside(case, options);
    case::measure(&cases(), &options.cases, &mut output, || alone(options), beside)?;
    output.finish()
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

/// A daemon, and the file that says which slots it should have.
struct Setup {
    daemon: SlotDaemon,
    client: Client,
    _folder: Folder,
    file: PathBuf,
    /// Its slots while it is switched on.
    wanted: String,
    idle_kib: u64,
}

impl Setup {
    fn new(options: &PopulateArgs) -> Result<Setup, Failure> {
        let free = memory::free_bytes().unwrap_or(0) / 2;
        let bytes = free.min(2 * options.window_ms * MOST_BYTES_PER_MS);
        let count = (bytes / SLOT_BYTES).max(1);
        let pages = options.pages.name();
        let wanted = format!("[[slot]]\nsize = \"64M\"\ncount = {count}\npages = \"{pages}\"\n");
        let folder = Folder::make(None, "populate")?;
        let file = folder.path().join("slots.toml");
        fs::write(&file, ALWAYS).or_fail(format_args!("can't write {}", file.display()))?;
        let daemon = SlotDaemon::start_with(["--config".as_ref(), file.as_os_str()])?;
        daemon.wait_ready()?;
        let client = Client::new(daemon.socket());
        Ok(Setup { daemon, client, _folder: folder, file, wanted, idle_kib: shared_kib() })
    }

    /// Takes all slots away, and gives it others to populate if it is to have any.
    fn switch(&self, to: Switch) -> Result<(), String> {
        self.configure("")?;
        let start = Instant::now();
        // Other processes' shared memory comes and goes meanwhile; some MiB do not matter.
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

    fn window(&self, options: &PopulateArgs, work: impl Fn(u64) -> u64) -> Result<Window, String> {
        Window::watch(Duration::from_millis(options.window_ms), || {
            let values = self.client.stat().map_err(|error| error.to_string())?;
            let get = |counter: Counter| values.get(counter as usize).copied().unwrap_or(0);
            let bytes = get(Counter::PopulatedBytes);
            Ok([bytes, get(Counter::PopulateCpuNs), work(bytes)])
        })
    }
}

/// Memory of files without a name and the like, in KiB.
fn shared_kib() -> u64 {
    proc_file::number("/proc/meminfo", "Shmem").unwrap_or(0)
}

/// The daemon's own work counts here.
fn alone(options: &PopulateArgs) -> Result<Row, Failure> {
    let setup = Setup::new(options)?;
    let measured = pairs(options, |polite| {
        setup.switch(if polite { Switch::Polite } else { Switch::Impolite })?;
        setup.window(options, |bytes| bytes)
    });
    Ok(row("alone", 0, options, &measured.map_err(Failure::system)?))
}

/// `Err` says why the case can't be measured here.
fn beside(case: &Case, options: &PopulateArgs) -> Result<Row, String> {
    let beside = case.start()?;
    let setup = Setup::new(options).map_err(|failure| failure.message)?;
    let measured = pairs(options, |on| {
        setup.switch(match on {
            false => Switch::Off,
            true if options.impolite => Switch::Impolite,
            true => Switch::Polite,
        })?;
        setup.window(options, |_| beside.work_done())
    })?;
    Ok(row(&case.name, case.neighbours, options, &measured))
}

/// Windows with and without, `measure` says of one. A first one brings memory from the host, and does not count.
fn pairs(
    options: &PopulateArgs,
    mut measure: impl FnMut(bool) -> Result<Window, String>,
) -> Result<Vec<Pair>, String> {
    measure(true)?;
    alternate(options.cases.pairs, measure)
}

fn row(case: &str, neighbours: usize, options: &PopulateArgs, pairs: &[Pair]) -> Row {
    let row = Row::of(json!({
        "case": case,
        "pages": options.pages.name(),
        "polite": !options.impolite,
        "neighbours": neighbours,
    }));
    with_loss(row, pairs, ("populate_mib_s", MIB), "populate_cpu_pct")
}

fn pages(text: &str) -> Result<PageKind, String> {
    let kind = PageKind::parse(text).filter(|kind| !kind.is_hugetlb());
    kind.ok_or_else(|| "kinds of pages here are 4k and thp".to_owned())
}
