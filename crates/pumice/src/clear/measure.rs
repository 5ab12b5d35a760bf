//! What zeroing by an engine costs, measured in some milliseconds, and which to take.
//!
//! Three things are asked of each: how many bytes it zeroes in a second; what processor time of the
//! caller's that takes (hardware that works beside the processor takes nearly none); and by how much
//! a walk through a small working set is slower right after, for what the engine has evicted.
//!
//! # The choice
//! Nobody waits for what is zeroed ahead, so the least processor time wins, among those that are
//! fast enough and disturb no more than the processor does when it goes around the cache. The
//! processor stays unless another takes clearly less: the noise of a shared machine is no reason.

use core::hint::black_box;
use core::time::Duration;

use super::engine::{Engine, Piece, State};
use super::kind::EngineKind;
use super::Warmth;
use crate::addr::{BLOCK_SIZE, CACHE_LINE};
use crate::sys::thread::{cpu_time_ns, now_ns};

/// What an engine costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Zeroed in a second.
    pub bytes_per_s: f64,
    /// Processor time of the calling thread for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// How much longer a walk through what was in the near cache takes, for each block zeroed
    /// meanwhile: 0.5 is half as long again.
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

/// Measures an engine in `scratch`, populated private anonymous memory whose content is lost: the
/// first block is the working set, the others are zeroed. `None` if there are fewer than two, or the
/// engine does not zero all of it: then the memory is the engine's for good.
pub fn measure(
    engine: &dyn Engine,
    scratch: &'static mut [u8],
) -> Option<(Cost, &'static mut [u8])> {
    let (near, far) = scratch.split_at_mut_checked(BLOCK_SIZE)?;
    let (near, bytes) = (&near[..NEAR_BYTES], far.len() / BLOCK_SIZE * BLOCK_SIZE);
    if bytes == 0 {
        return None;
    }
    let mut best = Cost { bytes_per_s: 0.0, cpu_s_per_gb: f64::MAX, disturbance: 0.0 };
    let mut disturbances = [0.0; ROUNDS];
    for disturbance in &mut disturbances {
        walk(near);
        let before_ns = walk(near);
        let (started_ns, cpu_ns) = (now_ns(), cpu_time_ns());
        for batch in far[..bytes].chunks_mut(BATCH * BLOCK_SIZE) {
            zero(engine, batch)?;
        }
        let (took_ns, used_ns) = (now_ns() - started_ns, cpu_time_ns() - cpu_ns);
        let after_ns = walk(near);
        let slower = after_ns as f64 / before_ns.max(1) as f64 - 1.0;
        let blocks = (bytes / BLOCK_SIZE) as f64;
        best.bytes_per_s = best.bytes_per_s.max(bytes as f64 / (took_ns.max(1) as f64 / 1e9));
        best.cpu_s_per_gb = best.cpu_s_per_gb.min(used_ns as f64 / bytes as f64);
        *disturbance = (slower / blocks).max(0.0);
    }
    disturbances.sort_unstable_by(f64::total_cmp);
    best.disturbance = disturbances[ROUNDS / 2];
    Some((best, scratch))
}

/// Zeroes up to [`BATCH`] blocks, together. `None` if the engine does not.
fn zero(engine: &dyn Engine, blocks: &mut [u8]) -> Option<()> {
    let mut pieces = [const { Piece::nothing() }; BATCH];
    for (piece, block) in pieces.iter_mut().zip(blocks.chunks_exact_mut(BLOCK_SIZE)) {
        *piece = Piece::new(block.as_mut_ptr(), block.len(), Warmth::Cold);
    }
    let waiting =
        |pieces: &[Piece]| pieces.iter().filter(|piece| piece.state() == State::Waiting).count();
    let mut left = waiting(&pieces);
    while left > 0 {
        // SAFETY: the blocks are borrowed mutably, and live for ever: an engine that does not come
        // back may write to them later.
        unsafe {
            engine.submit(&mut pieces).ok()?;
            engine.wait(&mut pieces, PATIENCE).ok()?;
        }
        // One that takes none of them never will.
        left = Some(waiting(&pieces)).filter(|&now| now < left)?;
    }
    pieces.iter().all(|piece| piece.state() == State::Zeroed).then_some(())
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
/// And disturbs by no more than this above the processor.
const MORE_DISTURBANCE: f64 = 0.05;

/// Which of the engines is to zero ahead, where the processor going around the cache costs `cpu`. See
/// the module's top.
pub fn choose(cpu: Cost, others: impl Iterator<Item = (EngineKind, Cost)>) -> EngineKind {
    let fits = |cost: &Cost| {
        cost.cpu_s_per_gb <= cpu.cpu_s_per_gb * CLEAR_WIN
            && cost.bytes_per_s >= cpu.bytes_per_s * FAST_ENOUGH
            && cost.disturbance <= cpu.disturbance + MORE_DISTURBANCE
    };
    let cheaper = |one: &(EngineKind, Cost), other: &(EngineKind, Cost)| {
        one.1.cpu_s_per_gb.total_cmp(&other.1.cpu_s_per_gb)
    };
    others.filter(|(_, cost)| fits(cost)).min_by(cheaper).map_or(EngineKind::Cpu, |(kind, _)| kind)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::clear::{CpuEngine, Kernel};

    const CPU: Cost = Cost { bytes_per_s: 20e9, cpu_s_per_gb: 0.05, disturbance: 0.02 };

    #[test]
    fn what_takes_the_least_processor_time_wins_unless_it_is_slow_or_disturbs() {
        let other = |cost: Cost| [(EngineKind::Kernel, cost)].into_iter();
        let free = Cost { cpu_s_per_gb: 0.001, ..CPU };
        assert_eq!(choose(CPU, [].into_iter()), EngineKind::Cpu);
        assert_eq!(choose(CPU, other(free)), EngineKind::Kernel);
        assert_eq!(choose(CPU, other(Cost { bytes_per_s: 1e9, ..free })), EngineKind::Cpu);
        assert_eq!(choose(CPU, other(Cost { disturbance: 0.2, ..free })), EngineKind::Cpu);
        assert_eq!(choose(CPU, other(Cost { cpu_s_per_gb: 0.045, ..CPU })), EngineKind::Cpu);
    }

    #[test]
    fn figures_are_had_of_the_processor_and_of_the_kernel() {
        // SAFETY: the memory below is private and anonymous.
        let kernel = unsafe { Kernel::new() };
        for engine in [&CpuEngine::PORTABLE as &dyn Engine, &kernel] {
            let at = crate::sys::mem::map_table(3 * BLOCK_SIZE).expect("memory").as_ptr();
            // SAFETY: mapped a moment ago, for good.
            let scratch = unsafe { core::slice::from_raw_parts_mut(at, 3 * BLOCK_SIZE) };
            let (cost, scratch) = measure(engine, scratch).expect("figures");
            assert_eq!(scratch.len(), 3 * BLOCK_SIZE);
            assert!(cost.bytes_per_s > 0.0 && cost.cpu_s_per_gb > 0.0, "{cost:?}");
            assert!(cost.disturbance >= 0.0);
        }
        assert!(measure(&CpuEngine::PORTABLE, &mut []).is_none());
    }
}
