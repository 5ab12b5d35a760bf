//! `pumice ctl`: shows and changes the settings of a running program.
//!
//! The number may be that of a program that counts in some tree, or of the process that leads
//! the tree, which then stands for all its programs. A tree is believed to be about a process only where the same user
//! owns both.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use clap::Args;
use pumice_heap::config::{Setting, ENV_STATS, ENV_TREE};
use pumice_heap::stats::{CounterSlot, Event};
use serde::Serialize;

use crate::counters;
use crate::numbers::{parse_pid, Numbers};
use pumice_command::Failure;

/// The arguments of `pumice ctl`.
#[derive(Args, Debug)]
pub struct CtlArgs {
    /// Process id of a program, or of `pumice run` for all its programs
    #[arg(value_parser = parse_pid)]
    pid: u32,
    /// Settings to change; without any, all are listed
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// List as JSON, one object a program and line
    #[arg(long)]
    json: bool,
}

/// Shows or changes settings.
pub fn ctl(options: CtlArgs) -> Result<(), Failure> {
    // All are read before one is made: a mistake changes nothing.
    let changes = options.changes.iter().map(|text| parse_change(text));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    let slots = find(options.pid)?;
    for (_, slot) in &slots {
        for &(setting, raw) in &changes {
            setting.set(slot, raw);
        }
    }
    if changes.is_empty() || options.json {
        let form = if options.json { line_of_json } else { paragraph };
        let text: Vec<_> = slots.iter().map(|&(pid, slot)| form(pid, slot)).collect();
        pumice_command::print(text.join("\n").as_bytes())?;
        return pumice_command::print(b"\n");
    }
    Ok(())
}

fn parse_change(text: &str) -> Result<(Setting, u64), Failure> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(Failure::usage(format!(
            "'{text}' is no KEY=VALUE, such as {}=5",
            Setting::ScrubDelayMs.key()
        )));
    };
    let Some(setting) = Setting::ALL.into_iter().find(|setting| setting.key() == key) else {
        let keys = Setting::ALL.map(Setting::key).join(", ");
        return Err(Failure::usage(format!("no setting '{key}'; there are {keys}")));
    };
    match setting.parse(value) {
        Some(raw) => Ok((setting, raw)),
        None => {
            let expects = setting.expects();
            Err(Failure::usage(format!("bad value '{value}' for {key}: it takes {expects}")))
        }
    }
}

/// The slots that a process number stands for, with the numbers of their processes; never empty.
fn find(pid: u32) -> Result<Vec<(u32, &'static CounterSlot)>, Failure> {
    let Ok(process) = fs::metadata(format!("/proc/{pid}")) else {
        return Err(Failure::system(format!("no process {pid}")));
    };
    let mut leads = false;
    let mut all = Vec::new();
    let mut unreadable = false;
    let numbers = Numbers::now();
    for found in counters::all().filter(|found| found.uid == process.uid()) {
        let Some(tree) = counters::open(found) else {
            unreadable = true;
            continue;
        };
        let leader = counters::leader(tree, &numbers);
        leads |= leader == pid;
        let slots =
            tree.slots().iter().filter_map(|slot| Some((numbers.here(slot.owner())?, slot)));
        let meant = |&(own, _): &(u32, _)| leader == pid || own == pid;
        all.extend(slots.filter(meant));
    }
    if !all.is_empty() {
        return Ok(all);
    }
    Err(Failure::system(if leads || runs_under_pumice(pid) {
        format!("process {pid} runs under pumice but has made no request to serve yet; try later")
    } else if unreadable {
        format!("process {pid} is another user's, or another version of pumice runs it")
    } else {
        format!("process {pid} does not run under pumice; start it with 'pumice run -- PROGRAM'")
    }))
}

fn runs_under_pumice(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|variable| {
        let is_set = |name: &str| {
            variable.strip_prefix(name.as_bytes()).is_some_and(|value| value.starts_with(b"="))
        };
        is_set(ENV_STATS) || is_set(ENV_TREE)
    })
}

/// `KEY=VALUE` lines that `pumice ctl` would take back, under a comment that names the program.
fn paragraph(pid: u32, slot: &CounterSlot) -> String {
    let mut lines = vec![format!("# {pid} {}", counters::program_name(slot).escape_debug())];
    if let Some(reason) = slot.reason() {
        lines.push(format!("# nothing served: {}", reason.explain()));
    }
    lines.extend(
        Setting::ALL
            .map(|setting| format!("{}={}", setting.key(), setting.show(setting.get(slot)))),
    );
    lines.join("\n")
}

#[derive(Serialize)]
struct Shown {
    pid: u32,
    name: String,
    pool_bytes: u64,
    /// Why nothing is served, if so.
    reason: Option<&'static str>,
    /// As typed.
    settings: BTreeMap<&'static str, String>,
    events: BTreeMap<&'static str, u64>,
}

fn line_of_json(pid: u32, slot: &CounterSlot) -> String {
    let shown = Shown {
        pid,
        name: counters::program_name(slot),
        pool_bytes: slot.pool_bytes(),
        reason: slot.reason().map(|reason| reason.name()),
        settings: Setting::ALL
            .into_iter()
            .map(|setting| (setting.key(), setting.show(setting.get(slot)).to_string()))
            .collect(),
        events: Event::ALL.into_iter().map(|event| (event.name(), slot.get(event))).collect(),
    };
    serde_json::to_string(&shown).expect("strings and whole numbers only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_or_explained() {
        assert_eq!(parse_change("scrub_start=3").expect("good"), (Setting::ScrubStart, 3));
        let why = |text: &str| parse_change(text).expect_err("bad").message;
        assert!(why("scrub_start").contains("KEY=VALUE"));
        assert!(why("scrub_strat=3").contains("scrub_start, scrub_stop"));
        assert!(why("scrub_start=99").contains("0 to 18"));
    }
}
