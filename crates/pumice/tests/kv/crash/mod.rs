//! Crashes between any two writes, and all that a device may make of writes that nobody has synced: a process is
//! traced, what it asks of its files recorded, and what a crash could have left of that looked at, state after state.
//!
//! `ci/crash` looks at a million; tests at some thousands (`PUMICE_CRASHES`).

mod disk;
mod pages;
mod store;
mod trace;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;

use pumice::cache::Settings;
use pumice::io::{Engines, Plain};
use pumice::sys::mem::Huge;

use disk::{Disk, Image, Kept};
use trace::Event;

use crate::Folder;

/// How many states are looked at, in tests.
const CRASHES: usize = 1000;
/// States by chance for each moment, beside those with all that may be lost and with nothing of it.
const BY_CHANCE: usize = 4;

/// How many states the environment asks for, or a test looks at otherwise.
fn wanted() -> usize {
    std::env::var("PUMICE_CRASHES").ok().and_then(|many| many.parse().ok()).unwrap_or(CRASHES)
}

fn seed() -> u64 {
    let seed = std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("PUMICE_SEED={seed}");
    seed
}

/// A folder in memory, where there is such.
fn in_memory(name: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    folder.join(format!("pumice-crash-{}-{name}", std::process::id()))
}

/// A small cache, whose files are used by calls that say what they do when they are made.
fn settings() -> Settings {
    let mut settings = Settings::new(512);
    settings.huge = Huge::No;
    settings.engines = Engines::new(|_| Box::new(Plain::new()));
    settings
}

/// The same of a child, which writes all dirty pages back whenever it may.
fn settings_of_child() -> Settings {
    let mut settings = settings();
    settings.dirty_background = 1;
    settings.dirty_age = Duration::from_millis(2);
    settings
}

/// The calls of a child, one of this program's tests, on the files in a folder; `None` where it can't be traced.
fn record(child: &str, folder: &Folder, variables: &[(&str, String)]) -> Option<Vec<Event>> {
    if !trace::is_possible() {
        eprintln!("skipped: processes can't be traced here");
        return None;
    }
    let mut events = Vec::new();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", child, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env("KV_FOLDER", folder.path());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let recorded = trace::record(&mut command, folder.path(), &mut events);
    recorded.unwrap_or_else(|error| panic!("{error}"));
    Some(events)
}

/// The files that a crash leaves.
struct Crash<'a> {
    image: Image,
    kept: Kept,
    /// The requests that may be lost at that moment.
    disk: &'a Disk,
}

/// Looks at what crashes leave after each event: the state with all changes so far, that with only what is certain,
/// those that miss one change or have one, of few, and some by chance. Ends when it returns false.
fn crashes(
    events: &[Event],
    mut disk: Disk,
    random: &mut Rng,
    mut look: impl FnMut(&[Event], &Crash<'_>, &mut Rng) -> bool,
) {
    let mut seen = 0;
    for (index, event) in events.iter().enumerate() {
        if !disk.happen(event) {
            continue;
        }
        let mut kinds = vec![Kept::All, Kept::None];
        let pending = disk.pending();
        let few = pending.min(3);
        kinds.extend((pending - few..pending).flat_map(|at| [Kept::AllBut(at), Kept::Only(at)]));
        kinds.extend(vec![Kept::Any; if pending == 0 { 0 } else { BY_CHANCE }]);
        for kept in kinds {
            let crash = Crash { image: disk.crash(kept, random), kept, disk: &disk };
            // The events since the last moment.
            let news = &events[std::mem::replace(&mut seen, index + 1)..index + 1];
            if !look(news, &crash, random) {
                return;
            }
        }
    }
}
