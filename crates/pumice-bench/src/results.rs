//! The file of results that `bench all --json` writes and `bench compare` and `report` read: one object, with a
//! version.
//!
//! docs/report.md describes it for others. A file is read whole or not at all, and its text is
//! data: nothing of it is taken for a path, a command or markup.

use std::fs::{self, File};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::registry::Row;
use super::weather::{Noise, Weather};
use crate::names::named;
use pumice_command::Failure;

/// The file's name for its format.
const FORMAT: &str = "pumice-bench";
/// Raised when a reader of the one before would misread a file.
pub const VERSION: u32 = 1;
/// No file of ours is near it.
const MOST_BYTES: u64 = 256 << 20;

const NO_RESULTS: &str = "it is no file of results; make one with 'pumice bench all --json FILE'";

/// Everything of one `bench all`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    format: String,
    version: u32,
    /// pumice's version.
    pub pumice: String,
    /// When it began, as RFC 3339 has it, in UTC.
    pub date: String,
    /// Whether it was `--quick`.
    pub quick: bool,
    /// Whether every experiment had its turn, be it that it failed.
    pub complete: bool,
    /// From start to end.
    pub seconds: f64,
    pub machine: Machine,
    pub experiments: Vec<Measured>,
}

/// One experiment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    /// After the name.
    pub arguments: Vec<String>,
    pub state: Ending,
    /// Why it is not complete, in a line.
    pub why: Option<String>,
    pub seconds: f64,
    pub rows: Vec<Row>,
    /// Its other output.
    pub notes: Vec<String>,
    /// The machine before and after it.
    pub weather: [Weather; 2],
    pub noise: Noise,
}

named! {
    /// How an experiment ended.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Ending {
        /// As it should.
        Complete = "complete",
        /// Something that it needs is not here.
        Skipped = "skipped",
        /// It ended with an error.
        Failed = "failed",
        /// A signal ended it, or its time was over: the rows until then are there.
        CutOff = "cut off",
        /// It had no turn.
        NotRun = "not run",
    }
}

impl Results {
    /// Without experiments.
    pub fn new(date: String, quick: bool, machine: Machine) -> Results {
        Results {
            format: FORMAT.to_owned(),
            version: VERSION,
            pumice: env!("CARGO_PKG_VERSION").to_owned(),
            date,
            quick,
            complete: false,
            seconds: 0.0,
            machine,
            experiments: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn load(path: &Path) -> Result<Results, Failure> {
        let refuse = |why: &dyn std::fmt::Display| {
            Failure::usage(format!("can't use {}: {why}", path.display()))
        };
        let file = File::open(path).map_err(|error| refuse(&error))?;
        let data = file.metadata().map_err(|error| refuse(&error))?;
        if !data.is_file() || data.len() > MOST_BYTES {
            return Err(refuse(&NO_RESULTS));
        }
        let text = fs::read_to_string(path).map_err(|error| refuse(&error))?;
        Results::parse(&text).map_err(|why| refuse(&why))
    }

    fn parse(text: &str) -> Result<Results, String> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Option<Head> = serde_json::from_str(text).ok();
        let Head { version, .. } = head.filter(|head| head.format == FORMAT).ok_or(NO_RESULTS)?;
        if version != VERSION {
            let advice = match version < VERSION {
                true => "measure again with 'pumice bench all --json FILE'",
                false => "use a newer one",
            };
            return Err(format!("its version is {version}, this pumice reads {VERSION}; {advice}"));
        }
        serde_json::from_str(text).map_err(|error| format!("it is damaged: {error}"))
    }

    /// The experiment of this name.
    pub fn experiment(&self, name: &str) -> Option<&Measured> {
        self.experiments.iter().find(|one| one.name == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Results {
        let mut results = Results::new("2026-01-02T03:04:05Z".to_owned(), true, Machine::default());
        results.experiments.push(Measured {
            name: "frame".to_owned(),
            arguments: vec![],
            state: Ending::CutOff,
            why: Some("interrupted".to_owned()),
            seconds: 1.5,
            rows: vec![Row::of(json!({"operation": "get", "ns": 20.0}))],
            notes: vec!["a note".to_owned()],
            weather: Default::default(),
            noise: Noise::default(),
        });
        results
    }

    #[test]
    fn what_is_written_is_read() {
        let text = serde_json::to_string(&results()).expect("JSON");
        let read = Results::parse(&text).expect("read");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        assert_eq!(read.experiment("frame").map(|one| one.state), Some(Ending::CutOff));
    }

    #[test]
    fn what_is_none_is_told_in_a_line() {
        let text = serde_json::to_string(&results()).expect("JSON");
        let newer = text.replace("\"version\":1", "\"version\":2");
        let older = text.replace("\"version\":1", "\"version\":0");
        let damaged = text.replace("\"rows\"", "\"rose\"");
        let other = text.replace("pumice-bench", "other");
        for (bad, why) in [
            (&*newer, "use a newer one"),
            (&older, "measure again"),
            (&damaged, "damaged"),
            (&other, "no file of results"),
            ("", "no file of results"),
            ("[1, 2]", "no file of results"),
            (&text[..text.len() / 2], "no file of results"),
        ] {
            let said = Results::parse(bad).expect_err("it is bad");
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
    }
}
