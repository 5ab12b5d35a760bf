//! Caches that have ended leave nothing mapped, however many there were.

use std::process::Command;

use pumice::cache::{run, Options};
use pumice::frame::Zone;

use super::*;

const RUNS: usize = 100;
/// The file that a child is to use; without it, there is no child.
const CHILD: &str = "PUMICE_CACHE_ENDED";

#[test]
fn nothing_stays_mapped_of_caches_that_have_ended() {
    let scratch = Scratch::new("ended");
    // By itself: other tests map and unmap meanwhile.
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "ended::child", "--nocapture"])
        .env(CHILD, &scratch.0)
        .output()
        .expect("another process");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("a process has mappings").lines().count()
}

/// The process that makes them.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let once = || {
        run(&settings(512), |cache| {
            let file = cache.open(path.as_ref(), &Options::new()).expect("a file");
            let task = cache.task().expect("room");
            task.view(&file).expect("room").write_or_grow(7).expect("room")[0] = 1;
        })
        .expect("a cache");
        let zone = Zone::new(8 << 20, 2, Huge::No).expect("addresses");
        zone.grow(2).expect("memory");
    };
    (0..RUNS / 10).for_each(|_| once());
    let before = mappings();
    (0..RUNS).for_each(|_| once());
    let after = mappings();
    assert!(after < before + RUNS / 10, "{before} mappings before, {after} after {RUNS} caches");
}
