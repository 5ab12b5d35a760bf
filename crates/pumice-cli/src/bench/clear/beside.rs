//! What zeroing costs the thread that does it, and the one beside it.
//!
//! *Engines*: batches of 64 blocks, submitted and waited for, by each engine there is: bytes a second,
//! processor seconds a gigabyte of the whole program (a driver's threads among it, but no interrupts), and by
//! how much a walk through half a megabyte is slower right after ([`pumice::clear::measure`]).
//!
//! *Overhead*: a batch of 64 blocks on the accelerator in software; what is timed is submitting and
//! settling alone, while the device does nothing. Waiting is left out: its looks, and waking up in between.
//!
//! *Neighbours*: a thread on one processor walks a working set, line by line in an order that no
//! prefetcher guesses, each address known from the line before; on another one memory is zeroed, the same bytes in the
//! same time by every engine that is fast enough. The slow-down is the walk's; for the same bytes also where one is not
//! fast enough: what the walk loses while a gigabyte is zeroed. The walk's speed is by its own processor time.
//!
//! The two processors are the first two that this program may use. Where they are threads of one core the slow-down is
//! that of sharing a core.
//!
//! There are two working sets: as large as the last-level cache says that it is, and as large as what this
//! program gets of it. On a shared machine others have the rest, and who walks more than that goes to memory
//! for each line: it has nothing in the cache to lose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use pumice::addr::{BLOCK_SIZE, CACHE_LINE};
use pumice::clear::dsa::soft::{Manner, SoftDevice};
use pumice::clear::dsa::Dsa;
use pumice::clear::{CpuEngine, Engine, Piece, State, Waiting, Warmth};
use pumice::sys::thread::{cpu_time_ns, now_ns, process_cpu_time_ns};
use serde::Serialize;

use crate::args::Failure;
use crate::bench::cpu;
use crate::bench::json_lines::{JsonLines, Samples};
use crate::bench::region::Region;
use crate::bench::statistics::{interval, median};
use crate::bench::table::Table;

/// Blocks in a batch.
const BATCH: usize = 64;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// An engine under its name.
pub type Named = (String, Box<dyn Engine>);

/// A row of the engines' table.
#[derive(Debug, Serialize)]
struct EngineRow {
    experiment: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    engine: String,
    size_bytes: usize,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    samples: Samples,
}

/// Measures engines side by side, by batches.
pub fn engines(
    engines: &[Named],
    region: &mut [u8],
    rounds: usize,
    json: &mut JsonLines,
) -> Result<(), Failure> {
    let mut figures = vec![(Vec::new(), Vec::new()); engines.len()];
    let span = &mut region[..BATCH * BLOCK_SIZE];
    for _ in 0..rounds {
        for ((name, engine), (speeds, costs)) in engines.iter().zip(&mut figures) {
            let mut pieces = pieces_of(span);
            let (started_ns, cpu_ns) = (now_ns(), process_cpu_time_ns());
            zero(engine.as_ref(), &mut pieces)
                .map_err(|()| Failure::system(format!("{name} zeroes no whole batch")))?;
            let (took_ns, used_ns) = (now_ns() - started_ns, process_cpu_time_ns() - cpu_ns);
            let bytes = (BATCH * BLOCK_SIZE) as f64;
            speeds.push(bytes / took_ns.max(1) as f64);
            costs.push(used_ns as f64 / bytes);
        }
    }
    println!("\nEngines side by side: batches of {BATCH} blocks of 2 MiB");
    let table = Table::begin(&[("Engine", 14), ("GB/s", 8), ("CPU s/GB", 9)]);
    for ((name, _), (speeds, costs)) in engines.iter().zip(figures) {
        let row = EngineRow {
            experiment: "batches",
            usage: "engine",
            engine: name.clone(),
            size_bytes: BATCH * BLOCK_SIZE,
            gb_per_s: median(&speeds),
            cpu_s_per_gb: median(&costs),
            samples: [("gb_per_s", speeds), ("cpu_s_per_gb", costs)].into(),
        };
        let cells = [format!("{:.2}", row.gb_per_s), format!("{:.4}", row.cpu_s_per_gb)];
        table.row(&[[row.engine.clone()].as_slice(), &cells].concat());
        json.write(&row)?;
    }
    Ok(())
}

fn pieces_of(span: &mut [u8]) -> Vec<Piece> {
    let piece = |block: &mut [u8]| Piece::new(block.as_mut_ptr(), block.len(), Warmth::Cold);
    span.chunks_exact_mut(BLOCK_SIZE).map(piece).collect()
}

/// Zeroes all of the pieces. A queue that others keep full may have room later, but is not asked for ever.
fn zero(engine: &dyn Engine, pieces: &mut [Piece]) -> Result<(), ()> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE && pieces.iter().any(|piece| piece.state() == State::Waiting) {
        // SAFETY: the pieces' memory is the region's, which outlives them, and is used by nobody else.
        unsafe {
            engine.submit(pieces).map_err(drop)?;
            engine.wait(pieces, PATIENCE, Waiting::Spinning).map_err(drop)?;
        }
    }
    let all = pieces.iter().all(|piece| piece.state() == State::Zeroed);
    all.then_some(()).ok_or(())
}

/// A row of the overhead's table.
#[derive(Debug, Serialize)]
struct OverheadRow {
    experiment: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    engine: &'static str,
    blocks: usize,
    submit_ns_per_block: f64,
    settle_ns_per_block: f64,
    ns_per_block: f64,
    samples: Samples,
}

/// Measures what submitting and settling a batch costs.
pub fn overhead(region: &mut [u8], rounds: usize, json: &mut JsonLines) -> Result<(), Failure> {
    let device = SoftDevice::new(Manner::default());
    let dsa = Dsa::on(&device).map_err(|error| Failure::system(error.to_string()))?;
    let span = &mut region[..BATCH * BLOCK_SIZE];
    let (mut submits, mut settles) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut pieces = pieces_of(span);
        let submit_ns = cpu_time_ns();
        // SAFETY: the memory is the region's, and the device is done with it before it goes.
        let submitted = unsafe { dsa.submit(&mut pieces) };
        let submitted_ns = cpu_time_ns();
        device.work();
        let settle_ns = cpu_time_ns();
        // SAFETY: as above.
        let settled = unsafe { dsa.poll(&mut pieces) };
        let settled_ns = cpu_time_ns();
        let all = pieces.iter().all(|piece| piece.state() == State::Zeroed);
        if submitted.is_err() || settled.is_err() || !all {
            return Err(Failure::system("the accelerator in software did not zero a batch"));
        }
        submits.push((submitted_ns - submit_ns) as f64 / BATCH as f64);
        settles.push((settled_ns - settle_ns) as f64 / BATCH as f64);
    }
    let both: Vec<_> = submits.iter().zip(&settles).map(|(one, other)| one + other).collect();
    let row = OverheadRow {
        experiment: "overhead",
        usage: "overhead",
        engine: "dsa (software)",
        blocks: BATCH,
        submit_ns_per_block: median(&submits),
        settle_ns_per_block: median(&settles),
        ns_per_block: median(&both),
        samples: [("ns_per_block", both)].into(),
    };
    println!("\nThe processor's part of a batch of {BATCH} blocks, on an accelerator in software");
    let table = Table::begin(&[("Engine", 14), ("submit ns/block", 15), ("settle ns/block", 15)]);
    let cells = [row.submit_ns_per_block, row.settle_ns_per_block].map(|ns| format!("{ns:.0}"));
    table.row(&[[row.engine.to_owned()].as_slice(), &cells].concat());
    json.write(&row)
}

/// A row of the neighbours' table.
#[derive(Debug, Serialize)]
struct NeighbourRow {
    experiment: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    engine: &'static str,
    working_set_bytes: usize,
    /// Zeroed meanwhile.
    zeroed_gb_per_s: f64,
    /// Lines walked in a second, alone and beside.
    alone_lines_per_s: f64,
    beside_lines_per_s: f64,
    slowdown_percent: f64,
    slowdown_low: f64,
    slowdown_high: f64,
    /// What it loses for each gigabyte zeroed, in milliseconds of its own time.
    lost_ms_per_gb: f64,
    lost_ms_low: f64,
    lost_ms_high: f64,
    /// Of that under `rep stosb`, in the same rounds.
    share_of_stosb: Option<f64>,
    samples: Samples,
}

/// What this program gets of the last-level cache: the most that can be walked in two thirds of the time that memory
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
    // A lap, so that what fits is there.
    steps(lines.min(4 * STEPS));
    (0..3).map(|_| steps(STEPS)).fold(f64::MAX, f64::min)
}

/// What the neighbours' experiment goes by.
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

/// Measures the neighbour.
pub fn neighbours(
    options: Neighbours,
    region: &mut [u8],
    json: &mut JsonLines,
) -> Result<(), Failure> {
    println!();
    if pumice::sys::cpu::count() < 2 {
        println!("Skipped: a neighbour needs a second processor");
        return Ok(());
    }
    let size = options.working_set;
    let mut walked = Region::populate(size.next_multiple_of(BLOCK_SIZE))
        .map_err(|errno| Failure::system(format!("no memory to walk through: {errno}")))?;
    let lines = size / CACHE_LINE;
    chain(walked.bytes(), lines);
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let walked = walked.bytes().as_ptr() as usize;
    let mut engines: Vec<_> = CpuEngine::available().collect();
    if engines.len() > 1 {
        // The C library's, which is one of the others in its own words.
        engines.retain(|engine| *engine != CpuEngine::PORTABLE);
    }
    let mut alone = Vec::new();
    let mut beside = vec![(Vec::new(), Vec::new()); engines.len()];
    thread::scope(|scope| {
        scope.spawn(|| {
            cpu::pin(1);
            walk(walked as *const u8, &stop, &count);
        });
        let (alone, beside, engines) = (&mut alone, &mut beside, &engines);
        let zeroing = scope.spawn(|| {
            cpu::pin(0);
            let mut at = 0;
            // One round that does not count.
            for round in 0..=options.rounds {
                let (rate, _) = window(options, None, region, &mut at, &count);
                if round > 0 {
                    alone.push(rate);
                }
                for (engine, (rates, zeroed)) in engines.iter().zip(beside.iter_mut()) {
                    let (rate, speed) = window(options, Some(*engine), region, &mut at, &count);
                    if round > 0 {
                        rates.push(rate);
                        zeroed.push(speed);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        zeroing.join().expect("it only measures");
    });
    let slowdown = |rates: &[f64]| -> Vec<f64> {
        rates.iter().zip(&alone).map(|(rate, alone)| (1.0 - rate / alone) * 100.0).collect()
    };
    let lost = |(rates, zeroed): &(Vec<f64>, Vec<f64>)| -> Vec<f64> {
        // Hundredths of a second's time, for so many gigabytes in it.
        slowdown(rates).iter().zip(zeroed).map(|(percent, speed)| percent * 10.0 / speed).collect()
    };
    let stosb = engines.iter().position(|engine| engine.name() == "stosb");
    let stosb = stosb.map(|index| median(&lost(&beside[index])));
    println!(
        "A neighbour that walks {} MiB, while {:.1} GB/s are zeroed on another processor",
        size >> 20,
        options.rate_gb_per_s
    );
    let table = Table::begin(&[
        ("Engine", 9),
        ("zeroed GB/s", 11),
        ("alone Ml/s", 10),
        ("beside Ml/s", 11),
        ("slow-down", 9),
        ("95 %", 14),
        ("lost ms/GB", 10),
        ("of stosb's", 10),
    ]);
    for (engine, figures) in engines.iter().zip(beside) {
        let losses = lost(&figures);
        let (rates, zeroed) = figures;
        let slowdowns = slowdown(&rates);
        let (low, high) = interval(&slowdowns);
        let (lost_ms_low, lost_ms_high) = interval(&losses);
        let share = stosb.filter(|&stosb| stosb > 0.0).map(|stosb| median(&losses) / stosb);
        let row = NeighbourRow {
            experiment: "neighbour",
            usage: "neighbour",
            engine: engine.name(),
            working_set_bytes: size,
            zeroed_gb_per_s: median(&zeroed),
            alone_lines_per_s: median(&alone),
            beside_lines_per_s: median(&rates),
            slowdown_percent: median(&slowdowns),
            slowdown_low: low,
            slowdown_high: high,
            lost_ms_per_gb: median(&losses),
            lost_ms_low,
            lost_ms_high,
            share_of_stosb: share,
            samples: [("slowdown_percent", slowdowns), ("lost_ms_per_gb", losses)].into(),
        };
        table.row(&[
            row.engine.to_owned(),
            format!("{:.2}", row.zeroed_gb_per_s),
            format!("{:.1}", row.alone_lines_per_s / 1e6),
            format!("{:.1}", row.beside_lines_per_s / 1e6),
            format!("{:.1} %", row.slowdown_percent),
            format!("{low:.1} to {high:.1}"),
            format!("{:.2}", row.lost_ms_per_gb),
            share.map_or_else(String::new, |share| format!("{share:.2}")),
        ]);
        json.write(&row)?;
    }
    Ok(())
}

/// Lines walked in a second of a window, and what was zeroed in it, in GB/s.
fn window(
    options: Neighbours,
    engine: Option<CpuEngine>,
    region: &mut [u8],
    at: &mut usize,
    count: &AtomicU64,
) -> (f64, f64) {
    let (started_ns, before) = (now_ns(), Walked::of(count));
    let mut bytes = 0;
    let mut elapsed_ns = 0;
    while elapsed_ns < options.window_ns {
        if let Some(engine) = engine {
            // As many as are due by now: the same for every engine.
            if (bytes as f64) < elapsed_ns as f64 * options.rate_gb_per_s {
                let block = &mut region[*at..*at + BLOCK_SIZE];
                // SAFETY: the block is borrowed mutably.
                unsafe { engine.clear(block.as_mut_ptr(), block.len()) };
                *at = (*at + BLOCK_SIZE) % (region.len() / BLOCK_SIZE * BLOCK_SIZE);
                bytes += BLOCK_SIZE;
            }
        }
        elapsed_ns = now_ns() - started_ns;
    }
    let after = Walked::of(count);
    let (steps, cpu_us) = (after.steps - before.steps, after.cpu_us - before.cpu_us);
    let lines_per_s = steps as f64 * STEPS as f64 / (cpu_us.max(1) as f64 / 1e6);
    (lines_per_s, bytes as f64 / elapsed_ns as f64)
}

/// How far the walk has got, and in how much processor time of its own: others' turns don't count.
#[derive(Clone, Copy)]
struct Walked {
    steps: u64,
    cpu_us: u64,
}

/// Lines between two looks at the clock.
const STEPS: u64 = 1024;

impl Walked {
    /// Both are in one word, so that they belong together.
    fn of(count: &AtomicU64) -> Walked {
        let word = count.load(Ordering::Relaxed);
        Walked { steps: word >> 32, cpu_us: word & 0xffff_ffff }
    }
}

/// Has each line name the next one: a step that is no part of the number of lines visits all.
fn chain(memory: &mut [u8], lines: usize) {
    let mut step = (lines as f64 * 0.618_034) as usize | 1;
    while gcd(step, lines) != 1 {
        step += 2;
    }
    for line in 0..lines {
        let next = (line + step) % lines;
        memory[line * CACHE_LINE..][..8].copy_from_slice(&(next * CACHE_LINE).to_ne_bytes());
    }
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 {
        one
    } else {
        gcd(other, one % other)
    }
}

/// Walks until told to stop, and counts.
fn walk(memory: *const u8, stop: &AtomicBool, count: &AtomicU64) {
    let mut offset = 0;
    let mut steps = 0;
    let begun_ns = cpu_time_ns();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..STEPS {
            // SAFETY: `chain` wrote offsets of lines of this memory.
            offset = unsafe { memory.add(offset).cast::<usize>().read_volatile() };
        }
        steps += 1;
        let cpu_us = (cpu_time_ns() - begun_ns) / 1000;
        count.store(steps << 32 | cpu_us, Ordering::Relaxed);
    }
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
}
