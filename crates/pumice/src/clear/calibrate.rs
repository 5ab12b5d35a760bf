//! Measuring a plan in a few milliseconds.
//!
//! Two questions are asked. Which engine goes around the cache fastest, for memory that nobody
//! waits for? And where somebody does wait, does it pay to go around the cache or through it?
//! That depends on what nobody knows in advance: whether the memory is still in the cache (it was
//! freed a moment ago) and how much of it gets touched. So four uses are timed, and the path with
//! the smaller product of times wins, if it wins clearly.
//!
//! What a few milliseconds can't tell is left to rule. The scratch memory may well fit into the
//! last-level cache, so that *whether* to go around it is not asked for memory that nobody waits
//! for, nor for sizes beyond a block: there, streaming is twice as fast on memory that has left
//! the caches, and spares what is in them. And `portable` is never chosen over another engine:
//! it is libc's `memset` here but another one in the shim.

use super::cpu::{CpuEngine, Path};
use super::detect::Features;
use super::plan::{Plan, SIZES};
use super::Clearer;
use crate::addr::{BLOCK_SIZE, CACHE_LINE, FRAME_SIZE};
use crate::sys::thread::cpu_time_ns;

/// Bytes of populated scratch memory that [`Clearer::calibrate`] wants; with fewer it measures
/// nothing.
pub const SCRATCH_BYTES: usize = 4 * BLOCK_SIZE;

/// Rounds over all candidates; of each the best time counts.
const ROUNDS: usize = 2;

/// A challenger replaces what CPUID suggests if it takes at most this share of the time, in
/// hundredths: the noise of a shared machine is no reason to change.
const CLEAR_WIN_PERCENT: u64 = 85;

/// Bytes cleared in one timing of each of [`SIZES`]: a few hundred microseconds at most.
const TRIAL_BYTES: [usize; 3] = [128 << 10, 256 << 10, BLOCK_SIZE];

impl Clearer {
    /// Chooses by measuring, in a few milliseconds. The content of `scratch` is lost.
    ///
    /// Meant for a program that starts others, which hands the result on as text: see
    /// [`Clearer::plan`].
    pub fn calibrate(scratch: &mut [u8]) -> Clearer {
        let features = Features::detect();
        let mut plan = Plan::known_good(features);
        if scratch.len() >= SCRATCH_BYTES {
            let engines = || CpuEngine::supported_by(features);
            choose_cold(&mut plan, engines(), scratch);
            choose_hot(&mut plan, scratch);
        }
        Clearer::new(plan, features)
    }
}

/// The fastest engine that goes around the cache, for 64 KiB and for 2 MiB.
fn choose_cold(
    plan: &mut Plan,
    engines: impl Iterator<Item = CpuEngine> + Clone,
    scratch: &mut [u8],
) {
    let around = |engine: &CpuEngine| engine.path() == Path::Around;
    for (classes, class) in [(0..2, 1), (2..SIZES.len(), 2)] {
        let (mut best, mut best_ns) = (plan.cold[class], u64::MAX);
        for _ in 0..ROUNDS {
            for engine in engines.clone().filter(around) {
                let ns = time(engine, Trial { size: SIZES[class], ..COLD_BLOCK }, scratch);
                // The incumbent is met in the first round, before any time is to be beaten.
                let to_beat = if engine == best { best_ns } else { clear_win(best_ns) };
                if ns < to_beat {
                    (best, best_ns) = (engine, ns);
                }
            }
        }
        plan.cold[classes].fill(best);
    }
}

/// Around the cache or through it, for each size up to a block.
fn choose_hot(plan: &mut Plan, scratch: &mut [u8]) {
    for class in 0..TRIAL_BYTES.len() {
        let (through, around) = (plan.hot[class], plan.cold[class]);
        if through == around {
            continue;
        }
        let mut product = [1u128; 2];
        for lines in [1, FRAME_SIZE / CACHE_LINE] {
            for span in [SIZES[class], scratch.len()] {
                let trial = Trial { size: SIZES[class], bytes: TRIAL_BYTES[class], span, lines };
                let mut best = [u64::MAX; 2];
                for _ in 0..ROUNDS {
                    for (best, engine) in best.iter_mut().zip([through, around]) {
                        *best = (*best).min(time(engine, trial, scratch));
                    }
                }
                for (product, best) in product.iter_mut().zip(best) {
                    // Microseconds at least 1: four factors of a second each would fit.
                    *product *= u128::from(best / 256 + 1);
                }
            }
        }
        // The product of four times: the margin is the fourth power too.
        let margin = u128::from(CLEAR_WIN_PERCENT).pow(4);
        if product[1] * 100u128.pow(4) < product[0] * margin {
            plan.hot[class] = around;
        }
    }
}

/// What is timed: `bytes` cleared in pieces of `size`, going round within `span` bytes, and then
/// `lines` cache lines written in each page of the piece.
#[derive(Clone, Copy)]
struct Trial {
    size: usize,
    bytes: usize,
    span: usize,
    lines: usize,
}

const COLD_BLOCK: Trial =
    Trial { size: BLOCK_SIZE, bytes: BLOCK_SIZE, span: SCRATCH_BYTES, lines: 0 };

/// Nanoseconds of processor time that a trial takes: others' turns don't count.
fn time(engine: CpuEngine, trial: Trial, scratch: &mut [u8]) -> u64 {
    let span = &mut scratch[..trial.span];
    let start = cpu_time_ns();
    let mut pieces = 0..trial.bytes / trial.size;
    while !pieces.is_empty() {
        for piece in span.chunks_exact_mut(trial.size).zip(pieces.by_ref()).map(|(piece, _)| piece)
        {
            // SAFETY: the piece is borrowed mutably.
            unsafe { engine.clear(piece.as_mut_ptr(), piece.len()) };
            touch(piece, trial.lines);
        }
    }
    cpu_time_ns() - start
}

/// Writes one byte in each of `lines` lines of each page, starting at another line in each page:
/// the first lines of all pages compete for one set of the nearest cache.
pub fn touch(piece: &mut [u8], lines: usize) {
    for (number, page) in piece.chunks_exact_mut(FRAME_SIZE).enumerate() {
        for line in 0..lines {
            let offset = (number + line) * CACHE_LINE % FRAME_SIZE;
            // SAFETY: the byte lies in the page; volatile, so that the stores are made.
            unsafe { page.as_mut_ptr().add(offset).write_volatile(1) };
        }
    }
}

fn clear_win(ns: u64) -> u64 {
    (u128::from(ns) * u128::from(CLEAR_WIN_PERCENT) / 100) as u64
}
