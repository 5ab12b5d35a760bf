//! Where the threads of a measurement start together.
//!
//! They arrive, the last one sets a time-stamp, and all spin until then: a futex would let them run
//! one after the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pumice_frames::sys::cpu;
use pumice_frames::sys::thread::now_ns;

/// From the last thread's arrival to the start.
const LEAD_NS: u64 = 200_000;

/// Threads that wait for each other.
#[derive(Debug)]
pub struct StartLine {
    /// Whether there are more threads than processors.
    is_crowded: bool,
    missing: AtomicUsize,
    at_ns: AtomicU64,
}

impl StartLine {
    /// A line for so many threads.
    pub fn new(threads: usize) -> StartLine {
        StartLine {
            is_crowded: threads > cpu::count(),
            missing: AtomicUsize::new(threads),
            at_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns at the time-stamp, on every thread at once as far as there are processors.
    pub fn wait(&self) -> u64 {
        // Relaxed: only the time-stamp is handed on, and it is an atomic itself.
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.at_ns.store(now_ns() + LEAD_NS, Ordering::Relaxed);
        }
        loop {
            let at_ns = self.at_ns.load(Ordering::Relaxed);
            if now_ns() >= at_ns {
                return at_ns;
            }
            // With more threads than processors, some of those that come must first have one.
            if self.is_crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Runs `work` on so many threads, each with its number and the line where they start together: the results in order.
pub fn together<T: Send, E: Send>(
    threads: usize,
    work: impl Fn(usize, &StartLine) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let line = StartLine::new(threads);
    std::thread::scope(|scope| {
        let (work, line) = (&work, &line);
        let one = |thread| scope.spawn(move || work(thread, line));
        let spawned: Vec<_> = (0..threads).map(one).collect();
        spawned.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}
