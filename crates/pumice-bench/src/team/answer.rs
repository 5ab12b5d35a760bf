//! A worker's answer, and how it is made: threads that are timed, and processor time around them.

use pumice_frames::sys::thread::now_ns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::waits::Waits;
use crate::harness::{figures, middle};
use crate::registry::Row;
use crate::spent::{machine_cpu_s, process_cpu_s};
use crate::start_line::StartLine;

/// The work of a measurement, and its cost. An experiment leaves the fields at 0 that it has no use for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Chunks of a sequence, else pages.
    pub accesses: u64,
    /// Bytes of a file that were read or written.
    pub bytes: u64,
    /// Until the last thread was done.
    pub seconds: f64,
    /// Processor time of all of its threads, and of the kernel's `kswapd`s where the kernel pages.
    pub cpu_s: f64,
    /// Of the whole machine: interrupts, the kernel's workers, and other programs included.
    pub machine_cpu_s: f64,
    /// Pages read from the file or from swap.
    pub pages_in: u64,
    /// Pages written to swap.
    pub pages_out: u64,
    /// Bytes that another thread wrote meanwhile.
    pub beside_bytes: u64,
    /// Half of the accesses took this long at most.
    pub p50_us: f64,
    /// 99 of 100 did.
    pub p99_us: f64,
    /// All did.
    pub max_us: f64,
    /// The share of a working set's accesses that found their page beside a scan.
    pub hits_percent: f64,
    /// The share of the working set that was still in memory after a scan during which nobody asked for it.
    pub kept_percent: f64,
    /// Of hits: for each access, the loop alone taken off.
    pub hit_ns: f64,
}

/// The accesses of a thread.
#[derive(Debug)]
pub struct Timed {
    waits: Waits,
    begun_ns: u64,
    ended_ns: u64,
}

impl Timed {
    /// Waits at the line, then makes so many accesses, for so long at most. `access` is told when it begins.
    #[inline]
    pub fn run<E>(
        line: &StartLine,
        accesses: usize,
        seconds: f64,
        mut access: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<Timed, E> {
        let begun_ns = line.wait();
        let until = begun_ns.saturating_add((seconds * 1e9) as u64);
        let (mut waits, mut before, mut left) = (Waits::default(), now_ns(), accesses);
        while left > 0 && before < until {
            access(before)?;
            let now = now_ns();
            waits.add(now - before);
            (before, left) = (now, left - 1);
        }
        Ok(Timed { waits, begun_ns, ended_ns: before })
    }
}

impl Answer {
    /// The fields that rows of all workers have, with these keys: medians over the rounds, of which there is at least
    /// one; the longest wait is that of all of them. Processor time is for each page that came, if all rounds of a row
    /// have such.
    pub fn row(keys: Value, rounds: &[Answer], has_come: bool) -> Row {
        let per_page = |of: fn(&Answer) -> f64| {
            has_come.then(|| middle(rounds, |round| of(round) * 1e6 / round.pages_in as f64))
        };
        Row::of(keys)
            .set("in_per_s", middle(rounds, |round| round.pages_in as f64 / round.seconds))
            .set("p50_us", middle(rounds, |round| round.p50_us))
            .set("max_us", figures(rounds, |round| round.max_us).into_iter().fold(0.0, f64::max))
            // Of the process and its helpers, and of the whole machine.
            .set("cpu_us_per_page", per_page(|round| round.cpu_s))
            .set("machine_us_per_page", per_page(|round| round.machine_cpu_s))
            .sampled("p99_us", figures(rounds, |round| round.p99_us))
    }

    /// The accesses, and how long they took.
    pub fn of_waits(waits: &Waits) -> Answer {
        Answer {
            accesses: waits.count(),
            p50_us: waits.percentile_us(50.0),
            p99_us: waits.percentile_us(99.0),
            max_us: waits.longest_us(),
            ..Answer::default()
        }
    }

    /// The accesses of all threads.
    pub fn of_threads(threads: &[Timed]) -> Answer {
        let (mut waits, mut begun, mut ended) = (Waits::default(), u64::MAX, 0);
        for thread in threads {
            waits.merge(&thread.waits);
            (begun, ended) = (thread.begun_ns.min(begun), thread.ended_ns.max(ended));
        }
        Answer { seconds: ended.saturating_sub(begun) as f64 / 1e9, ..Answer::of_waits(&waits) }
    }

    /// The answer of `work`, with the processor time and the pages that it took. `counts` are processor time spent for
    /// it outside of this process, pages in, and pages out, so far.
    pub fn spending(
        counts: impl Fn() -> (f64, u64, u64),
        work: impl FnOnce() -> Result<Answer, String>,
    ) -> Result<Answer, String> {
        let now = || (process_cpu_s(), machine_cpu_s(), counts());
        let before = now();
        let answer = work()?;
        let after = now();
        Ok(Answer {
            cpu_s: after.0 - before.0 + after.2 .0 - before.2 .0,
            machine_cpu_s: after.1 - before.1,
            pages_in: after.2 .1 - before.2 .1,
            pages_out: after.2 .2 - before.2 .2,
            ..answer
        })
    }
}
