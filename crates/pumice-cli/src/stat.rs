//! `pumice stat`: what the programs under `pumice run` have been served, while they run.
//!
//! The counters are read from a copy of each tree's file. Nothing a program does to its file meanwhile
//! can stop this one, and nothing here stops or slows a program.

use std::collections::BTreeMap;

use clap::Args;
use pumice::stats::{Event, Slot, Tree};
use serde::Serialize;

use crate::args::Failure;
use crate::bench::table::Table;
use crate::stats_file::{self, Snapshot};

/// What `pumice stat` is asked for.
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Process ids of programs, or of `pumice run` for all its programs; all there are if not given
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// As JSON, one object a program and line
    #[arg(long)]
    json: bool,
}

/// A program, in JSON: its tree by the number of the `pumice run` that made it, sizes in bytes.
#[derive(Debug, Serialize)]
struct Row {
    run_pid: u32,
    uid: u32,
    pid: u32,
    program: String,
    pool_bytes: u64,
    /// Of the whole tree.
    tree_pool_bytes: u64,
    tree_pool_peak_bytes: u64,
    tree_pool_max_bytes: u64,
    /// Of requests served, those of whose memory the greater part was ready; `null` before the first.
    hit_rate: Option<f64>,
    /// Of the frames handed out, those that were ready and zeroed; `null` before the first.
    zeroed_rate: Option<f64>,
    scrubber_s: f64,
    /// Why nothing is served, if so.
    reason: Option<&'static str>,
    #[serde(flatten)]
    events: BTreeMap<&'static str, u64>,
}

/// Shows them.
pub fn stat(options: &StatArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for (path, maker) in stats_file::files() {
        let Some(snapshot) = Snapshot::read(&path) else { continue };
        let tree = snapshot.tree();
        let meant = |slot: &&Slot| {
            let is_named = |pid: &u32| *pid == maker.pid || *pid == slot.pid();
            options.pids.is_empty() || options.pids.iter().any(is_named)
        };
        let owner = stats_file::owner(&path);
        rows.extend(stats_file::live_slots(tree).filter(meant).filter_map(|slot| {
            // A file of somebody else's says nothing about a process.
            let uid =
                owner.filter(|&owner| stats_file::process_owner(slot.pid()) == Some(owner))?;
            Some(Row::new(tree, slot, maker.pid, uid))
        }));
    }
    if let Some(pid) = options.pids.iter().find(|&&pid| !rows.iter().any(|row| row.is_of(pid))) {
        return Err(Failure::system(format!(
            "process {pid} is not there, or has been served nothing by pumice; see 'pumice stat'"
        )));
    }
    rows.sort_by_key(|row| (row.run_pid, row.pid));
    match options.json {
        true => print_json(&rows),
        false => print_table(&rows),
    }
}

impl Row {
    fn new(tree: &Tree, slot: &Slot, run_pid: u32, uid: u32) -> Row {
        let share = |part: Event, all: u64| {
            (all > 0).then(|| (slot.get(part) as f64 / all as f64).min(1.0))
        };
        let served = slot.get(Event::Hits).saturating_add(slot.get(Event::Misses));
        Row {
            run_pid,
            uid,
            pid: slot.pid(),
            program: stats_file::program_name(slot),
            pool_bytes: slot.pool_bytes(),
            tree_pool_bytes: tree.pool_bytes(),
            tree_pool_peak_bytes: tree.pool_peak(),
            tree_pool_max_bytes: tree.pool_max(),
            hit_rate: share(Event::Hits, served),
            zeroed_rate: share(Event::Ozfod, slot.get(Event::Zfod)),
            scrubber_s: slot.get(Event::ScrubberNs) as f64 / 1e9,
            reason: slot.reason().map(|reason| reason.name()),
            events: Event::ALL.into_iter().map(|event| (event.name(), slot.get(event))).collect(),
        }
    }

    fn is_of(&self, pid: u32) -> bool {
        self.pid == pid || self.run_pid == pid
    }

    fn event(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }
}

fn print_json(rows: &[Row]) -> Result<(), Failure> {
    for row in rows {
        let line = serde_json::to_string(row)
            .map_err(|error| Failure::system(format!("can't write: {error}")))?;
        crate::args::print(format!("{line}\n").as_bytes())?;
    }
    Ok(())
}

fn print_table(rows: &[Row]) -> Result<(), Failure> {
    if rows.is_empty() {
        return crate::args::print(b"no program is being served by pumice\n");
    }
    let columns = [
        ("program", 16),
        ("pid", 8),
        ("pumice run", 8),
        ("pool MiB", 9),
        ("requests", 10),
        ("hits %", 6),
        ("zeroed %", 6),
        ("scrubbed MiB", 9),
        ("cleared hot MiB", 9),
        ("given back MiB", 9),
        ("scrubd s", 8),
    ];
    let table = Table::resume(&columns);
    let mut lines = vec![table.format(&columns.map(|(name, _)| name.to_owned()))];
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}", 100.0 * share))
    };
    for row in rows {
        lines.push(table.format(&[
            row.program.escape_debug().to_string(),
            row.pid.to_string(),
            row.run_pid.to_string(),
            mib(row.pool_bytes),
            row.event(Event::Requests).to_string(),
            percent(row.hit_rate),
            percent(row.zeroed_rate),
            mib(row.event(Event::ScrubbedBytes)),
            mib(row.event(Event::HotClearedBytes)),
            mib(row.event(Event::GivenBackBytes)),
            format!("{:.2}", row.scrubber_s),
        ]));
        if let Some(reason) = row.reason {
            lines.push(format!("  nothing served: {reason}"));
        }
    }
    lines.push(String::new());
    crate::args::print(lines.join("\n").as_bytes())
}
