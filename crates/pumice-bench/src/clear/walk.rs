//! A walk through a working set: line after line, each address read from the line before, so that the time a line takes
//! to come is measured; in an order that is random, so that nothing is fetched ahead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pumice_frames::addr::CACHE_LINE;
use pumice_frames::sys::thread::{cpu_time_ns, now_ns};

use pumice_command::random::Random;

/// How far a walk has got, and in how much processor time of its own: others' turns don't count.
#[derive(Clone, Copy)]
pub struct Walked {
    /// So many times [`STEPS`] lines.
    steps: u64,
    cpu_us: u64,
}

/// Lines between two looks at the clock.
pub const STEPS: u64 = 1024;

impl Walked {
    /// Both are in one word, so that they belong together. They go round: only differences count.
    pub fn of(count: &AtomicU64) -> Walked {
        // Relaxed: nothing hangs on it.
        let word = count.load(Ordering::Relaxed);
        Walked { steps: word >> 32, cpu_us: word & 0xffff_ffff }
    }

    /// Lines walked since an earlier look.
    pub fn lines_since(self, before: Walked) -> u64 {
        u64::from((self.steps as u32).wrapping_sub(before.steps as u32)) * STEPS
    }

    /// Lines walked in a second of its own time since then.
    pub fn lines_per_s_since(self, before: Walked) -> f64 {
        let cpu_us = (self.cpu_us as u32).wrapping_sub(before.cpu_us as u32);
        self.lines_since(before) as f64 / (f64::from(cpu_us.max(1)) / 1e6)
    }
}

/// Has each of the first lines name the next one: all of them, in one ring (S. Sattolo, 1986).
pub fn chain(memory: &mut [u8], lines: usize) {
    let name = |memory: &mut [u8], line: usize, next: usize| {
        memory[line * CACHE_LINE..][..8].copy_from_slice(&(next * CACHE_LINE).to_ne_bytes());
    };
    let next = |memory: &[u8], line: usize| {
        let word = memory[line * CACHE_LINE..][..8].try_into();
        usize::from_ne_bytes(word.unwrap_or_default()) / CACHE_LINE
    };
    for line in 0..lines {
        name(memory, line, line);
    }
    let mut random = Random::new(1);
    for line in (1..lines).rev() {
        let other = random.below(line);
        let (one, two) = (next(memory, line), next(memory, other));
        name(memory, line, two);
        name(memory, other, one);
    }
}

/// Walks until told to stop, and counts.
pub fn walk(memory: *const u8, stop: &AtomicBool, count: &AtomicU64) {
    let (mut offset, mut steps) = (0, 0u64);
    let begun_ns = cpu_time_ns();
    // Relaxed: a hint, soon seen.
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..STEPS {
            // SAFETY: `chain` wrote offsets of lines of this memory.
            offset = unsafe { memory.add(offset).cast::<usize>().read_volatile() };
        }
        steps += 1;
        let cpu_us = (cpu_time_ns() - begun_ns) / 1000;
        count.store(steps << 32 | cpu_us & 0xffff_ffff, Ordering::Relaxed);
    }
}

/// This program's share of the last-level cache: the most that can be walked in two thirds of the time that memory
/// takes. `nominal` is what the cache says.
pub fn cache_share(region: &mut [u8], nominal: usize) -> usize {
    let most = nominal.min(region.len());
    let memory_ns = walk_ns(region, region.len());
    let mut share = LEAST_SHARE;
    let (mut size, mut step) = (LEAST_SHARE, LEAST_SHARE / 2);
    while size <= most && walk_ns(region, size) <= memory_ns * 2.0 / 3.0 {
        share = size;
        size += step;
        if size.is_power_of_two() {
            step = size / 2;
        }
    }
    share
}

/// Where looking for [`cache_share`] begins: more than any near cache would be taken for.
const LEAST_SHARE: usize = 1 << 20;

/// Nanoseconds for each line of a walk through the first bytes; the best of three.
fn walk_ns(region: &mut [u8], size: usize) -> f64 {
    const STEPS: usize = 200_000;
    let lines = size / CACHE_LINE;
    chain(&mut region[..size], lines);
    let mut offset = 0;
    let mut steps = |count: usize| {
        let started_ns = now_ns();
        for _ in 0..count {
            // SAFETY: `chain` wrote offsets of lines of this memory.
            offset = unsafe { region.as_ptr().add(offset).cast::<usize>().read_volatile() };
        }
        (now_ns() - started_ns) as f64 / count as f64
    };
    // A lap, so that lines that fit are there.
    steps(lines.min(4 * STEPS));
    (0..3).map(|_| steps(STEPS)).fold(f64::MAX, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_line_once() {
        for lines in [1, 2, 8, 1000, 4096, 7680] {
            let mut memory = vec![0u8; lines * CACHE_LINE];
            chain(&mut memory, lines);
            let mut seen = vec![false; lines];
            let mut offset = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[offset / CACHE_LINE], true), "{lines}");
                let word = memory[offset..][..8].try_into().expect("8 bytes");
                offset = usize::from_ne_bytes(word);
            }
            assert_eq!(offset, 0);
        }
    }

    #[test]
    fn counts_that_go_round_are_no_matter() {
        let at = |steps: u64, cpu_us: u64| {
            Walked::of(&AtomicU64::new(steps << 32 | cpu_us & 0xffff_ffff))
        };
        let (before, after) = (at(10, u64::from(u32::MAX) - 499_999), at(12, 500_000));
        assert_eq!(after.lines_since(before), 2 * STEPS);
        assert_eq!(after.lines_per_s_since(before), 2.0 * STEPS as f64);
    }
}
