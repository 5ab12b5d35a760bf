//! Measuring a plan in a few milliseconds.
//!
//! Two questions are asked. Which engine goes around the cache fastest, for memory that nobody
//! waits for, and among those that are as fast, which disturbs least? And where somebody does wait, does it pay to go
//! around the cache or through it? That depends on two unknowns: whether the memory is still in the
//! cache (it was freed a moment ago) and how much of it gets touched. So four uses are timed, and the path with the
//! smaller product of times wins, if it wins clearly.
//!
//! Some questions can't be measured in a few milliseconds and are left to rule. The scratch memory may well fit into
//! the last-level cache, so that *whether* to go around it is not asked for memory that nobody waits for, nor for
//! sizes beyond a block: there, streaming is twice as fast on memory that has left the caches, and spares what is in
//! them. And `portable` is never chosen over another engine: it is libc's `memset` here but another one in the shim.

use super::cpu::{CpuEngine, Path};
use super::detect::Features;
use super::measure::{disturbance, MORE_DISTURBANCE};
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
    /// Meant for a program that starts others, which hands the result on as text.
    #[doc(hidden)]
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

/// The engine that goes around the cache, for 64 KiB and for 2 MiB: the fastest, and among those that are about as
/// fast the one that leaves most of the near cache as it was.
fn choose_cold(
    plan: &mut Plan,
    engines: impl Iterator<Item = CpuEngine> + Clone,
    scratch: &mut [u8],
) {
    let around = || engines.clone().filter(|engine| engine.path() == Path::Around);
    for (classes, class) in [(0..2, 1), (2..SIZES.len(), 2)] {
        let mut times = [u64::MAX; CpuEngine::MAX];
        for _ in 0..ROUNDS {
            for (engine, best_ns) in around().zip(&mut times) {
                let trial = Trial { size: SIZES[class], ..COLD_BLOCK };
                *best_ns = (*best_ns).min(time(engine, trial, scratch));
            }
        }
        let timed = around().zip(times).map(|(engine, ns)| {
            let (near, far) = scratch.split_at_mut(BLOCK_SIZE);
            (engine, ns, disturbance(engine, near, far))
        });
        let mut found = [None; CpuEngine::MAX];
        found.iter_mut().zip(timed).for_each(|(place, timed)| *place = Some(timed));
        let picked = pick(plan.cold[class], found.iter().flatten());
        plan.cold[classes].fill(picked);
    }
}

/// Of engines with their times and how much they disturb: the incumbent, unless another is clearly faster, or as fast
/// and disturbs clearly less.
fn pick<'t>(
    incumbent: CpuEngine,
    timed: impl Iterator<Item = &'t (CpuEngine, u64, f64)> + Clone,
) -> CpuEngine {
    let fastest_ns = timed.clone().map(|timed| timed.1).min().unwrap_or(u64::MAX);
    let as_fast = timed.filter(|timed| clear_win(timed.1) <= fastest_ns);
    // The incumbent is met first, wherever it stands; else the fastest.
    let rank = |timed: &&(CpuEngine, u64, f64)| (timed.0 != incumbent, timed.1);
    let Some(first) = as_fast.clone().min_by_key(rank) else { return incumbent };
    let calmest = as_fast.min_by(|one, other| one.2.total_cmp(&other.2));
    let calmer = calmest.filter(|timed| timed.2 + MORE_DISTURBANCE < first.2);
    calmer.unwrap_or(first).0
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

/// The work that is timed: `bytes` cleared in pieces of `size`, going round within `span` bytes, and then `lines`
/// cache lines written in each page of the piece.
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

#[cfg(all(test, target_arch = "x86_64", not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn of_engines_as_fast_the_one_that_disturbs_least_is_taken() {
        let all: Vec<_> = CpuEngine::available().collect();
        let [one, other] = [all[0], all[all.len() - 1]];
        let of = |timed: [(CpuEngine, u64, f64); 2]| pick(one, timed.iter());
        assert_eq!(of([(one, 100, 0.0), (other, 100, 0.0)]), one);
        assert_eq!(of([(one, 100, 0.0), (other, 90, 0.0)]), one, "as fast");
        assert_eq!(of([(one, 100, 0.0), (other, 80, 0.0)]), other);
        assert_eq!(of([(one, 100, 0.2), (other, 110, 0.1)]), other, "as fast, and calmer");
        assert_eq!(of([(one, 100, 0.12), (other, 110, 0.1)]), one, "that is no difference");
        assert_eq!(of([(one, 100, 0.2), (other, 130, 0.0)]), one, "calmer, but slow");
        assert_eq!(of([(one, 130, 0.0), (other, 100, 0.2)]), other, "speed comes first");
        assert_eq!(pick(one, [].iter()), one);
    }
}
