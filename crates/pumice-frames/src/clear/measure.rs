//! The costs of zeroing by an engine, measured in some milliseconds, and the choice among engines.
//!
//! Three things are asked of each: how many bytes it zeroes in a second; how much of the caller's processor time that
//! takes (hardware that works beside the processor takes nearly none); and by how much a walk through a small working
//! set is slower right after, since the engine has evicted a part of it.
//!
//! # The choice
//! Nobody waits for memory that is zeroed ahead, so the least processor time wins, among those that are fast enough
//! and disturb no more than the processor does when it goes around the cache; among those that take about as little,
//! the one that disturbs least. The processor stays unless another takes clearly less: the noise of a shared machine
//! is no reason.

use core::hint::black_box;
use core::time::Duration;

use super::cpu::CpuEngine;
use super::engine::{Engine, Piece, PieceState, Waiting};
use super::kind::EngineKind;
use super::Warmth;
use crate::addr::{BLOCK_SIZE, CACHE_LINE};
use crate::sys::thread::{cpu_time_ns, now_ns};

/// An engine's costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Zeroed in a second.
    pub bytes_per_s: f64,
    /// Processor time of the calling thread for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// How much longer a walk through memory that was in the near cache takes, for each block zeroed meanwhile: 0.5 is
    /// half as long again.
    pub disturbance: f64,
}

/// The working set that is walked.
const NEAR_BYTES: usize = 512 << 10;
/// Rounds. The best speed and processor time of them count, and the median disturbance: the least of a
/// noisy figure is nothing.
const ROUNDS: usize = 5;
/// Blocks in a batch at most: one block's time is mostly waiting for it.
const BATCH: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);

/// An engine, and its measured costs.
pub struct Candidate<'e> {
    engine: &'e dyn Engine,
    best: Cost,
    disturbances: [f64; ROUNDS],
}

impl<'e> Candidate<'e> {
    /// Nothing is known of it yet.
    pub fn new(engine: &'e dyn Engine) -> Candidate<'e> {
        let best = Cost { bytes_per_s: 0.0, cpu_s_per_gb: f64::MAX, disturbance: 0.0 };
        Candidate { engine, best, disturbances: [0.0; ROUNDS] }
    }

    /// The findings of [`measure`].
    pub fn cost(&self) -> Cost {
        let mut disturbances = self.disturbances;
        disturbances.sort_unstable_by(f64::total_cmp);
        Cost { disturbance: disturbances[ROUNDS / 2], ..self.best }
    }

    /// A round in which it zeroes all of `far`.
    fn round(&mut self, round: usize, near: &[u8], far: &mut [u8]) -> Option<()> {
        let before_ns = walk_again(near);
        let (started_ns, cpu_ns) = (now_ns(), cpu_time_ns());
        for batch in far.chunks_mut(BATCH * BLOCK_SIZE) {
            zero(self.engine, batch)?;
        }
        let (took_ns, used_ns) = (now_ns() - started_ns, cpu_time_ns() - cpu_ns);
        let (bytes, blocks) = (far.len() as f64, (far.len() / BLOCK_SIZE) as f64);
        self.disturbances[round] = slower(before_ns, walk(near)) / blocks;
        let best = &mut self.best;
        best.bytes_per_s = best.bytes_per_s.max(bytes / (took_ns.max(1) as f64 / 1e9));
        best.cpu_s_per_gb = best.cpu_s_per_gb.min(used_ns as f64 / bytes);
        Some(())
    }
}

/// Measures engines in `scratch`, populated private anonymous memory whose content is lost: the first block is the
/// working set, the others are zeroed. They take turns, and another begins each round: a drift of the machine
/// meanwhile favours none. `None` if there are fewer than two blocks, or an engine does not zero all of them: then the
/// memory is that engine's for good.
pub fn measure(
    candidates: &mut [Candidate<'_>],
    scratch: &'static mut [u8],
) -> Option<&'static mut [u8]> {
    let (near, far) = scratch.split_at_mut_checked(BLOCK_SIZE)?;
    let (near, bytes) = (&near[..NEAR_BYTES], far.len() / BLOCK_SIZE * BLOCK_SIZE);
    if bytes == 0 {
        return None;
    }
    let count = candidates.len();
    for round in 0..ROUNDS {
        for turn in 0..count {
            candidates[(round + turn) % count].round(round, near, &mut far[..bytes])?;
        }
    }
    Some(scratch)
}

/// By how much a walk through `near` is slower after an engine of the processor has cleared each block of `far`,
/// for one of them: the median of some.
pub(super) fn disturbance(engine: CpuEngine, near: &[u8], far: &mut [u8]) -> f64 {
    let near = &near[..near.len().min(NEAR_BYTES)];
    let mut found = [0.0; ROUNDS];
    for found in &mut found {
        let before_ns = walk_again(near);
        for block in far.chunks_exact_mut(BLOCK_SIZE) {
            // SAFETY: the block is borrowed mutably.
            unsafe { engine.clear(block.as_mut_ptr(), block.len()) };
        }
        *found = slower(before_ns, walk(near)) / (far.len() / BLOCK_SIZE).max(1) as f64;
    }
    found.sort_unstable_by(f64::total_cmp);
    found[ROUNDS / 2]
}

fn slower(before_ns: u64, after_ns: u64) -> f64 {
    (after_ns as f64 / before_ns.max(1) as f64 - 1.0).max(0.0)
}

/// Zeroes up to [`BATCH`] blocks, together, and sleeps meanwhile, as scrubd does: waiting is a part of what it
/// costs. `None` if the engine does not.
fn zero(engine: &dyn Engine, blocks: &mut [u8]) -> Option<()> {
    let mut pieces = [const { Piece::nothing() }; BATCH];
    for (piece, block) in pieces.iter_mut().zip(blocks.chunks_exact_mut(BLOCK_SIZE)) {
        *piece = Piece::new(block.as_mut_ptr(), block.len(), Warmth::Cold);
    }
    let waiting = |pieces: &[Piece]| {
        pieces.iter().filter(|piece| piece.state() == PieceState::Waiting).count()
    };
    let mut left = waiting(&pieces);
    while left > 0 {
        // SAFETY: the blocks are borrowed mutably, and live for ever: an engine that does not come
        // back may write to them later.
        unsafe {
            engine.submit(&mut pieces).ok()?;
            engine.wait(&mut pieces, PATIENCE, Waiting::Asleep).ok()?;
        }
        // One that takes none of them never will.
        left = Some(waiting(&pieces)).filter(|&now| now < left)?;
    }
    pieces.iter().all(|piece| piece.state() == PieceState::Zeroed).then_some(())
}

/// The time of a walk through memory that was walked a moment ago.
fn walk_again(memory: &[u8]) -> u64 {
    walk(memory);
    walk(memory)
}

/// Reads a byte of each line; the time it took.
fn walk(memory: &[u8]) -> u64 {
    let started_ns = now_ns();
    let lines = memory.iter().step_by(CACHE_LINE);
    black_box(lines.fold(0u8, |seen, &byte| seen.wrapping_add(byte)));
    now_ns() - started_ns
}

/// An engine takes over from the processor if it takes at most this share of its time.
const CLEAR_WIN: f64 = 0.85;
/// And is at least this share as fast.
const FAST_ENOUGH: f64 = 0.25;
/// And disturbs by no more than this above the processor. Less of a difference is none.
pub(super) const MORE_DISTURBANCE: f64 = 0.05;

/// Which of the engines is to zero ahead, where the processor going around the cache costs `cpu`. See
/// the module's top.
pub fn choose(cpu: Cost, others: &[(EngineKind, Cost)]) -> EngineKind {
    let fits = |cost: &Cost| {
        cost.cpu_s_per_gb <= cpu.cpu_s_per_gb * CLEAR_WIN
            && cost.bytes_per_s >= cpu.bytes_per_s * FAST_ENOUGH
            && cost.disturbance <= cpu.disturbance + MORE_DISTURBANCE
    };
    let fitting = || others.iter().filter(|(_, cost)| fits(cost));
    let least = fitting().map(|(_, cost)| cost.cpu_s_per_gb).fold(f64::MAX, f64::min);
    let cheap = fitting().filter(|(_, cost)| cost.cpu_s_per_gb * CLEAR_WIN <= least);
    let calmer = |one: &&(EngineKind, Cost), other: &&(EngineKind, Cost)| {
        one.1.disturbance.total_cmp(&other.1.disturbance)
    };
    cheap.min_by(calmer).map_or(EngineKind::Cpu, |&(kind, _)| kind)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::clear::{Kernel, Lost};

    const CPU: Cost = Cost { bytes_per_s: 20e9, cpu_s_per_gb: 0.05, disturbance: 0.02 };

    #[test]
    fn what_takes_the_least_processor_time_wins_unless_it_is_slow_or_disturbs() {
        let of = |others: &[(EngineKind, Cost)]| choose(CPU, others);
        let other = |cost: Cost| of(&[(EngineKind::Kernel, cost)]);
        let free = Cost { cpu_s_per_gb: 0.001, ..CPU };
        assert_eq!(of(&[]), EngineKind::Cpu);
        assert_eq!(other(free), EngineKind::Kernel);
        assert_eq!(other(Cost { bytes_per_s: 1e9, ..free }), EngineKind::Cpu);
        assert_eq!(other(Cost { disturbance: 0.2, ..free }), EngineKind::Cpu);
        assert_eq!(other(Cost { cpu_s_per_gb: 0.045, ..CPU }), EngineKind::Cpu);
    }

    #[test]
    fn among_the_cheapest_the_one_that_disturbs_least_wins() {
        let cost = |cpu_s_per_gb: f64, disturbance: f64| Cost { cpu_s_per_gb, disturbance, ..CPU };
        let of = |kernel: Cost, dsa: Cost| {
            choose(CPU, &[(EngineKind::Kernel, kernel), (EngineKind::Dsa, dsa)])
        };
        assert_eq!(of(cost(0.010, 0.06), cost(0.011, 0.01)), EngineKind::Dsa);
        assert_eq!(of(cost(0.011, 0.01), cost(0.010, 0.06)), EngineKind::Kernel);
        assert_eq!(of(cost(0.010, 0.06), cost(0.030, 0.01)), EngineKind::Kernel);
        assert_eq!(of(cost(0.010, 0.2), cost(0.011, 0.01)), EngineKind::Dsa);
    }

    #[test]
    fn figures_are_had_of_the_processor_and_of_the_kernel() {
        // SAFETY: the memory below is private and anonymous.
        let kernel = unsafe { Kernel::new() };
        let at = crate::sys::mem::map_table(3 * BLOCK_SIZE).expect("memory").as_ptr();
        // SAFETY: mapped a moment ago, for good.
        let scratch = unsafe { core::slice::from_raw_parts_mut(at, 3 * BLOCK_SIZE) };
        let mut both = [Candidate::new(&CpuEngine::PORTABLE), Candidate::new(&kernel)];
        let scratch = measure(&mut both, scratch).expect("figures");
        assert_eq!(scratch.len(), 3 * BLOCK_SIZE);
        for cost in both.map(|candidate| candidate.cost()) {
            assert!(cost.bytes_per_s > 0.0 && cost.cpu_s_per_gb > 0.0, "{cost:?}");
            assert!(cost.disturbance >= 0.0);
        }
        assert!(measure(&mut [Candidate::new(&CpuEngine::PORTABLE)], &mut []).is_none());
    }

    /// Notes when it is asked, and zeroes in its own time: never at once.
    struct Slow<'n> {
        name: &'static str,
        asked: &'n std::sync::Mutex<Vec<&'static str>>,
    }

    // SAFETY: settled pieces were written, and are touched no more.
    unsafe impl Engine for Slow<'_> {
        fn name(&self) -> &'static str {
            self.name
        }

        unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            self.asked.lock().expect("no panic").push(self.name);
            let waiting = pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting);
            waiting.for_each(|piece| piece.take(0));
            Ok(())
        }

        unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            let mut in_flight =
                pieces.iter_mut().filter(|piece| piece.state() == PieceState::InFlight);
            if let Some(piece) = in_flight.next() {
                let (at, len) = piece.remaining();
                // SAFETY: the piece is this engine's.
                unsafe {
                    at.write_bytes(0, len);
                    piece.settle_zeroed();
                }
            }
            Ok(())
        }
    }

    #[test]
    fn engines_take_turns_and_another_begins_each_round() {
        let asked = std::sync::Mutex::default();
        let named = |name| Slow { name, asked: &asked };
        let (one, two, three) = (named("1"), named("2"), named("3"));
        let at = crate::sys::mem::map_table(3 * BLOCK_SIZE).expect("memory").as_ptr();
        // SAFETY: mapped a moment ago, for good.
        let scratch = unsafe { core::slice::from_raw_parts_mut(at, 3 * BLOCK_SIZE) };
        let mut all = [&one, &two, &three].map(|engine| Candidate::new(engine));
        measure(&mut all, scratch).expect("figures");
        let order = asked.lock().expect("no panic").concat();
        assert_eq!(order, "123231312123231");
    }
}
