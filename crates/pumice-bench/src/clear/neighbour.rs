//! The loss of a neighbour while memory is zeroed beside it.
//!
//! A thread on one processor walks a working set ([`super::walk`]). On another one memory is zeroed, a block of 2 MiB
//! at a time as scrubd does it, through a region many times as large as the cache. Every engine that is fast enough
//! zeroes the same bytes in the same time. Both are in huge pages where there are any.
//!
//! # Figures
//! A *window* is some time in which one engine zeroes, or none. Before it begins to count the walk goes round once,
//! so that the cache is as it is while that engine zeroes: lines that another has evicted are not charged to it. Each
//! engine's window lies between two in which nobody zeroes, and its *slow-down* is against the mean of both, so that a
//! drift concerns all alike; the order of engines changes from round to round. The slow-down of a window is a mean over
//! bursts and what is between. *Lost* is the same for each gigabyte zeroed, also where an engine is not fast enough.
//! *Of stosb's* is the ratio of the median losses, with the interval that resampling the rounds gives it.
//!
//! # Which working sets
//! A quarter, half, three quarters and all of the last-level cache's size, and the part that this program gets: on a
//! shared machine others have the rest. A walk through as much as the cache holds is at its edge, and loses lines to
//! all else that is in there. A walk through more than it gets goes to memory for each line, and has only bandwidth to
//! lose, of which every engine takes the same.
//!
//! # Which processors
//! Two of different cores that share a last-level cache, if the process may use such. The rows say what they share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use pumice_frames::addr::{BLOCK_SIZE, CACHE_LINE};
use pumice_frames::clear::CpuEngine;
use pumice_frames::sys::thread::now_ns;
use serde_json::json;

use super::walk::{chain, walk, Walked};
use crate::cpu::{self, Pair};
use crate::harness::{with_interval, Output};
use crate::registry::prezeroing::CLEAR;
use crate::registry::Row;
use pumice_command::region::Region;
use pumice_command::statistics::ratio_interval;
use pumice_command::{Explain, Failure};

const SLOWDOWN: [&str; 3] = ["slowdown_percent", "slowdown_low", "slowdown_high"];
const LOST: [&str; 3] = ["lost_ms_per_gb", "lost_ms_low", "lost_ms_high"];

/// The settings of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// Bytes that are walked.
    pub working_set: usize,
    /// Bytes a second that every engine zeroes.
    pub rate_gb_per_s: f64,
    /// A window, of which each engine has one a round.
    pub window_ns: u64,
    /// Rounds.
    pub rounds: usize,
}

/// Of an engine, a value a round.
#[derive(Clone, Debug, Default)]
struct Figures {
    alone: Vec<f64>,
    beside: Vec<f64>,
    zeroed: Vec<f64>,
}

impl Figures {
    fn slowdowns(&self) -> Vec<f64> {
        let pairs = self.beside.iter().zip(&self.alone);
        pairs.map(|(beside, alone)| (1.0 - beside / alone) * 100.0).collect()
    }

    /// Hundredths of a second's time, for so many gigabytes in it.
    fn losses(&self) -> Vec<f64> {
        let pairs = self.slowdowns().into_iter().zip(&self.zeroed);
        pairs.map(|(percent, speed)| percent * 10.0 / speed).collect()
    }
}

/// Says which processors are used; `None` where there are no two.
pub fn processors() -> Option<Pair> {
    println!();
    let pair = cpu::pair();
    match pair {
        None => println!("Skipped: a neighbour needs a second processor"),
        Some(pair) => println!("Neighbours: {pair}"),
    }
    pair
}

/// Measures the neighbour.
pub fn neighbours(
    options: Neighbours,
    pair: Pair,
    region: &mut [u8],
    output: &mut Output,
) -> Result<(), Failure> {
    let size = options.working_set;
    let mut walked =
        Region::populate(size.next_multiple_of(BLOCK_SIZE)).or_fail("no memory to walk through")?;
    let lines = size / CACHE_LINE;
    chain(walked.bytes(), lines);
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let walked = walked.bytes().as_ptr() as usize;
    let mut engines: Vec<_> = CpuEngine::available().collect();
    if engines.len() > 1 {
        // The C library's, which is one of the others in its own words.
        engines.retain(|engine| *engine != CpuEngine::PORTABLE);
    }
    let figures = thread::scope(|scope| {
        scope.spawn(|| {
            cpu::pin_to(pair.other);
            walk(walked as *const u8, &stop, &count);
        });
        let zeroing = scope.spawn(|| {
            cpu::pin_to(pair.one);
            let mut beside = Beside { options, region, at: 0, count: &count, lap: lines as u64 };
            let figures = beside.rounds(&engines);
            stop.store(true, Ordering::Relaxed);
            figures
        });
        zeroing.join().expect("it only measures")
    });
    println!(
        "\nA neighbour that walks {} MiB, while {:.1} GB/s are zeroed on another processor",
        size >> 20,
        options.rate_gb_per_s
    );
    print_rows(options, pair, &engines, &figures, output)
}

/// The thread that zeroes, or does nothing.
struct Beside<'b> {
    options: Neighbours,
    region: &'b mut [u8],
    /// The place that is zeroed next.
    at: usize,
    count: &'b AtomicU64,
    /// Lines of the working set.
    lap: u64,
}

impl Beside<'_> {
    /// All rounds, and one before them that does not count.
    fn rounds(&mut self, engines: &[CpuEngine]) -> Vec<Figures> {
        let mut figures = vec![Figures::default(); engines.len()];
        for round in 0..=self.options.rounds {
            let (mut before, _) = self.window(None);
            for turn in 0..engines.len() {
                let index = (round + turn) % engines.len();
                let (beside, zeroed) = self.window(Some(engines[index]));
                let (after, _) = self.window(None);
                if round > 0 {
                    figures[index].alone.push((before + after) / 2.0);
                    figures[index].beside.push(beside);
                    figures[index].zeroed.push(zeroed);
                }
                before = after;
            }
        }
        figures
    }

    /// Lines walked in a second of a window, and what was zeroed in it, in GB/s.
    fn window(&mut self, engine: Option<CpuEngine>) -> (f64, f64) {
        let begun = Walked::of(self.count);
        let lap = self.lap;
        // No longer than two windows: a walk through far more than the cache holds has nothing there.
        let most_ns = 2 * self.options.window_ns;
        self.zero_while(engine, |elapsed_ns, walked| {
            elapsed_ns < most_ns && walked.lines_since(begun) < lap
        });
        let before = Walked::of(self.count);
        let window_ns = self.options.window_ns;
        let gb_per_s = self.zero_while(engine, |elapsed_ns, _| elapsed_ns < window_ns);
        (Walked::of(self.count).lines_per_s_since(before), gb_per_s)
    }

    /// Zeroes at the rate while that is wanted. Returns the rate that it reached, in GB/s.
    fn zero_while(
        &mut self,
        engine: Option<CpuEngine>,
        go_on: impl Fn(u64, Walked) -> bool,
    ) -> f64 {
        let (started_ns, mut bytes, mut elapsed_ns) = (now_ns(), 0, 0);
        while go_on(elapsed_ns, Walked::of(self.count)) {
            // As many as are due by now: the same for every engine.
            let is_due = (bytes as f64) < elapsed_ns as f64 * self.options.rate_gb_per_s;
            if let Some(engine) = engine.filter(|_| is_due) {
                let block = &mut self.region[self.at..self.at + BLOCK_SIZE];
                // SAFETY: the block is borrowed mutably.
                unsafe { engine.clear(block.as_mut_ptr(), block.len()) };
                self.at = (self.at + BLOCK_SIZE) % (self.region.len() / BLOCK_SIZE * BLOCK_SIZE);
                bytes += BLOCK_SIZE;
            }
            elapsed_ns = now_ns() - started_ns;
        }
        bytes as f64 / elapsed_ns.max(1) as f64
    }
}

fn print_rows(
    options: Neighbours,
    pair: Pair,
    engines: &[CpuEngine],
    figures: &[Figures],
    output: &mut Output,
) -> Result<(), Failure> {
    let stosb = engines.iter().position(|engine| engine.name() == "stosb");
    let stosb = stosb.map(|index| figures[index].losses());
    output.begin(&CLEAR.tables[3]);
    for (engine, figures) in engines.iter().zip(figures) {
        let losses = figures.losses();
        let others = stosb.as_deref().filter(|_| engine.name() != "stosb");
        // Where stosb itself can't be told from nothing there is nothing to be a share of.
        let share = others.and_then(|stosb| ratio_interval(&losses, stosb));
        let row = Row::of(json!({
            "experiment": "neighbour",
            "use": "neighbour",
            "engine": engine.name(),
            "working_set_bytes": options.working_set,
            // Nothing, cache or core.
            "processors_share": pair.shares.name(),
            "share_of_stosb": share.map(|share| share.median),
            "share_low": share.map(|share| share.low),
            "share_high": share.map(|share| share.high),
        }));
        let row = row
            .median("zeroed_gb_per_s", &figures.zeroed)
            .median("alone_lines_per_s", &figures.alone)
            .median("beside_lines_per_s", &figures.beside);
        let row = with_interval(row, SLOWDOWN, figures.slowdowns());
        output.show(with_interval(row, LOST, losses))?;
    }
    Ok(())
}
