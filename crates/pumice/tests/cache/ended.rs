//! Caches that have ended leave nothing mapped, however many there were.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use pumice::cache::{run, Options};
use pumice::frame::Zone;
use pumice::io::{Completion, Engine, Engines, Plain, Request};
use rustix::io::Errno;

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

/// A device that is slow, and has done nothing yet when the cache ends: its reads go into memory of the cache's.
struct Late {
    asked: Vec<Request>,
    is_over: Arc<AtomicBool>,
}

// SAFETY: the requests are the engine's, in any thread.
unsafe impl Send for Late {}

// SAFETY: none is done before this is dropped, which does them by plain calls.
unsafe impl Engine for Late {
    fn depth(&self) -> usize {
        64
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        self.asked.push(request);
        Ok(())
    }

    fn wait(&mut self, _: usize) -> Result<(), Errno> {
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        None
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let mut plain = Plain::new();
        for request in self.asked.drain(..) {
            // SAFETY: the requester keeps all that it refers to until this is dropped.
            unsafe { plain.submit(request) }.expect("it is taken");
            assert!(plain.next().expect("it is done").result.is_ok(), "the memory is gone");
            self.is_over.store(true, Ordering::Relaxed);
        }
    }
}

/// Reads of a task that is forgotten go on: the cache ends when they are over.
#[test]
fn reads_of_a_task_that_was_forgotten_end_before_the_cache_does() {
    let scratch = Scratch::new("forgotten");
    std::fs::write(&scratch.0, vec![7; 64 * FRAME]).expect("room");
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = is_over.clone();
    let mut settings = settings(512);
    settings.engines = Engines::new(move |depth| match depth {
        1 => Box::new(Plain::new()),
        _ => Box::new(Late { asked: Vec::new(), is_over: seen.clone() }),
    });
    run(&settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new().buffered()).expect("a file");
        let task = cache.task().expect("room");
        assert_eq!(task.view(&file).expect("room").prefetch(&[3, 4, 9]), 3);
        std::mem::forget(task);
    })
    .expect("a cache");
    assert!(is_over.load(Ordering::Relaxed));
}
