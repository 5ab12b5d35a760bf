//! The report at exit: the requests that were served in the whole tree, their cost, and where none was, why.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use pumice_heap::config::{DEFAULT_THRESHOLD, MUCH_IN_ALL};
use pumice_heap::stats::{Event, Tree};
use serde::Serialize;

use super::elf;
use super::options::{show, ReportForm, ReportTo};
use super::spawn::{End, Ran, Usage};
use crate::counters::program_name;
use pumice_command::Failure;

/// Everything a report says; as JSON, one object with these names. Times are in seconds, sizes in
/// bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    ran: Ran,
    minor_faults: u64,
    major_faults: u64,
    peak_resident_bytes: u64,
    /// Processes that asked for memory that the shim looks at.
    processes: u64,
    pool_peak_bytes: u64,
    pool_max_bytes: u64,
    scrubber_s: f64,
    /// All events, by their names.
    #[serde(flatten)]
    events: BTreeMap<&'static str, u64>,
    /// Where nothing was served, why.
    not_served: Vec<NotServed>,
}

/// A program in which nothing was served.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct NotServed {
    program: String,
    /// A short name for programs to compare.
    reason: &'static str,
    /// The same for people.
    explanation: String,
}

/// Makes the report of a tree that has ended. The program's file says why nothing was served if nothing else does.
pub fn report(
    program: &OsStr,
    file: Option<&elf::Program>,
    tree: &Tree,
    threshold_bytes: usize,
    wall: Duration,
    end: End,
    usage: &Usage,
) -> Report {
    let events: BTreeMap<_, _> =
        Event::ALL.into_iter().map(|event| (event.name(), tree.total(event))).collect();
    let name = program.to_string_lossy().into_owned();
    Report {
        ran: Ran::new(name, wall.as_secs_f64(), end, usage),
        minor_faults: usage.minor_faults,
        major_faults: usage.major_faults,
        peak_resident_bytes: usage.peak_resident_bytes,
        processes: tree.processes(),
        pool_peak_bytes: tree.pool_peak(),
        pool_max_bytes: tree.pool_max(),
        scrubber_s: Duration::from_nanos(tree.total(Event::ScrubberNs)).as_secs_f64(),
        events,
        not_served: not_served(program, file, tree, threshold_bytes),
    }
}

/// The reasons that the processes noted themselves, and, where nothing at all was served, the reason in the
/// program's file.
fn not_served(
    program: &OsStr,
    file: Option<&elf::Program>,
    tree: &Tree,
    threshold_bytes: usize,
) -> Vec<NotServed> {
    let noted = tree.slots().iter().filter_map(|slot| {
        let reason = slot.reason()?;
        Some(NotServed {
            program: program_name(slot),
            reason: reason.name(),
            explanation: reason.explain().to_owned(),
        })
    });
    let mut all: Vec<_> = noted.collect();
    all.sort();
    all.dedup();
    if all.is_empty() && tree.total(Event::Requests) == 0 {
        all.push(why_nothing(program, file, tree, threshold_bytes));
    }
    all
}

fn why_nothing(
    program: &OsStr,
    file: Option<&elf::Program>,
    tree: &Tree,
    threshold_bytes: usize,
) -> NotServed {
    let because = |reason: &'static str, explanation: String| NotServed {
        program: program.to_string_lossy().into_owned(),
        reason,
        explanation,
    };
    if tree.total(Event::PassedOn) > 0 {
        let explanation = "every request was passed on to the next allocator: the pool was full";
        return because("passed_on", explanation.to_owned());
    }
    if tree.processes() == 0 {
        if let Some(file) = file {
            if let Some(explanation) = file.kind.explain() {
                let explanation = format!("{} {explanation}", file.path.display());
                return because(file.kind.name(), explanation);
            }
        }
    }
    let threshold = show(threshold_bytes);
    let explanation = match threshold_bytes {
        DEFAULT_THRESHOLD => {
            let much = show(MUCH_IN_ALL);
            format!("requests of {threshold} or more came to less than {much}; see --threshold")
        }
        _ => format!("no request of {threshold} or more was made; see --threshold"),
    };
    because("under_threshold", explanation)
}

impl Report {
    /// Writes it where it is wanted.
    pub fn write(&self, to: &ReportTo) -> Result<(), Failure> {
        let text = match to.form {
            ReportForm::Table => self.table(),
            ReportForm::Json => self.json(),
        };
        let written = match to.file.as_ref() {
            None => io::stderr().write_all(text.as_bytes()),
            Some(mut file) => file.write_all(text.as_bytes()),
        };
        written.map_err(|error| Failure::system(format!("the report can't be written: {error}")))
    }

    fn json(&self) -> String {
        let object = serde_json::to_string(self).expect("strings and finite numbers only");
        format!("{object}\n")
    }

    fn event(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }

    fn bytes(&self, event: Event) -> String {
        show(self.event(event) as usize)
    }

    fn table(&self) -> String {
        let frames = self.event(Event::Zfod);
        let ready = percent(self.event(Event::Ozfod), frames);
        let rows = [
            ("processes", format!("{} asked for memory", self.processes)),
            (
                "requests",
                format!(
                    "{} served, {}; {} passed on",
                    self.event(Event::Requests),
                    self.bytes(Event::RequestBytes),
                    self.event(Event::PassedOn)
                ),
            ),
            ("zfod", format!("{frames} frames handed out")),
            ("ozfod", format!("{} of them ready and zeroed{ready}", self.event(Event::Ozfod))),
            ("hits, misses", format!("{}, {}", self.event(Event::Hits), self.event(Event::Misses))),
            (
                "scrubbed",
                format!(
                    "{} ahead of need, {} on request",
                    self.bytes(Event::ScrubbedBytes),
                    self.bytes(Event::HotClearedBytes)
                ),
            ),
            ("given back", format!("{} to the kernel", self.bytes(Event::GivenBackBytes))),
            ("scrubber CPU", format!("{:.3} s", self.scrubber_s)),
            (
                "peak pool",
                format!(
                    "{} of {} at most",
                    show(self.pool_peak_bytes as usize),
                    show(self.pool_max_bytes as usize)
                ),
            ),
            (
                "programs' CPU",
                format!(
                    "{:.3} s user, {:.3} s system, the scrubber's included",
                    self.ran.user_s, self.ran.system_s
                ),
            ),
            (
                "their faults",
                format!("{} without I/O, {} with", self.minor_faults, self.major_faults),
            ),
            ("wall", format!("{:.3} s", self.ran.wall_s)),
        ];
        let mut table = format!("pumice report: {}\n", self.ran.program.escape_debug());
        for (name, value) in rows {
            // Writing to a String can't fail.
            let _ = writeln!(table, "  {name:<14} {value}");
        }
        for process in &self.not_served {
            let program = process.program.escape_debug();
            let _ = writeln!(table, "  nothing served in {program}: {}", process.explanation);
        }
        table
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    format!(" ({:.1} %)", 100.0 * part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_heap::stats::Reason;

    fn sample(tree: &Tree, program: &str) -> Report {
        let wall = Duration::from_millis(1500);
        let (program, end) = (OsStr::new(program), End::Exited(3));
        report(program, None, tree, 65536, wall, end, &Usage::default())
    }

    #[test]
    fn json_has_every_event_and_the_end() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        let slot = tree.attach(std::process::id()).expect("a slot");
        slot.add(Event::Requests, 7);
        slot.add(Event::ScrubberNs, 2_000_000_000);
        let json = sample(tree, "x").json();
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for event in Event::ALL {
            assert!(value[event.name()].is_u64(), "{}", event.name());
        }
        assert_eq!(value["requests"], 7);
        assert_eq!(value["scrubber_s"], 2.0);
        assert_eq!(value["exit_status"], 3);
        assert!(value["signal"].is_null());
        assert_eq!(json.lines().count(), 1);
    }

    #[test]
    fn reasons_are_told_once() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        for _ in 0..3 {
            let slot = tree.attach(std::process::id()).expect("a slot");
            slot.set_name(b"cc\x1b1");
            slot.set_reason(Reason::Skipped);
        }
        let table = sample(tree, "make").table();
        let told = table.lines().filter(|line| line.contains("--skip")).collect::<Vec<_>>();
        assert_eq!(told, ["  nothing served in cc\\u{1b}1: its name is in --skip"]);
    }

    #[test]
    fn small_requests_are_a_reason() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        let table = sample(tree, "sh").table();
        assert!(
            table.contains("requests of 64.0 KiB or more came to less than 16.0 MiB"),
            "{table}"
        );
    }
}
