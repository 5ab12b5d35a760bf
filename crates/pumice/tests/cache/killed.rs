//! A process that is killed at a moment of chance: all that it had synced is there, and nothing older shows.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pumice::cache::{run, Options};

use super::*;

/// The file that a child is to write; without it, there is no child.
const CHILD: &str = "PUMICE_CACHE_CHILD";
const SEED: &str = "PUMICE_CACHE_SEED";
const PAGES: usize = 2000;
/// Steps from one sync to the next.
const STEPS: u64 = 400;
const ROUNDS: u64 = 6;

/// The page that a step writes.
fn page_of(seed: u64, step: u64) -> usize {
    mix(seed << 32 ^ step) as usize % PAGES
}

#[test]
fn what_was_synced_survives_a_kill() {
    let seed = std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("PUMICE_SEED={seed}");
    for round in 0..ROUNDS {
        let scratch = Scratch::new(&format!("killed-{round}"));
        let synced = kill(&scratch.0, mix(seed + round));
        look(&scratch.0, mix(seed + round), synced);
    }
}

/// Has a child write, and kills it; the last step that it had synced.
fn kill(path: &Path, seed: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "killed::child", "--nocapture"])
        .env(CHILD, path)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("another process");
    let mut lines =
        BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    // Until it has begun; then some time more.
    let mut last = lines.find_map(|line| step_in(&line)).expect("it syncs");
    std::thread::sleep(Duration::from_micros(mix(seed) % 300_000));
    child.kill().expect("it runs");
    last = lines.filter_map(|line| step_in(&line)).last().unwrap_or(last);
    let _ = child.wait();
    last
}

fn step_in(line: &str) -> Option<u64> {
    line.strip_prefix("synced ")?.trim().parse().ok()
}

/// Each page is as it was after the last step that was synced, or a later one.
fn look(path: &Path, seed: u64, synced: u64) {
    let mut least = vec![0; PAGES];
    (1..=synced).for_each(|step| least[page_of(seed, step)] = step);
    run(&settings(512), |cache| {
        let file = cache.open(path, &Options::new().existing()).expect("the file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for (page, &least) in least.iter().enumerate() {
            let step = match view.pages() > page {
                true => step_of(&view.read(page).expect("there")),
                false => 0,
            };
            assert!(step >= least, "page {page} is of step {step}, and {least} was synced");
            assert!(step == 0 || page_of(seed, step) == page, "page {page} is another's");
        }
    })
    .expect("a cache");
    eprintln!("{synced} steps were synced");
}

/// The process that is killed.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let seed: u64 = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let mut settings = settings(512);
    settings.dirty_age = Duration::from_millis(20);
    run(&settings, |cache| {
        let file = cache.open(Path::new(&path), &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for step in 1.. {
            fill(&mut view.write_or_grow(page_of(seed, step)).expect("room"), step);
            if step % STEPS == 0 {
                view.sync().expect("the device is there");
                println!("synced {step}");
                std::io::stdout().flush().expect("a pipe");
            }
        }
    })
    .expect("a cache");
}
