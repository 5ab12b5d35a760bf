//! `pumice bench clear`: how fast each engine zeroes memory, and how the caches are after it.
//!
//! All memory is populated, in huge pages where there are any, and the region is meant to be
//! larger than one program's share of the last-level cache. The `use` column says what is timed:
//!
//! | use | |
//! |---|---|
//! | `clear` | pieces of the size, one after the other through the region: none is in the cache |
//! | `batch` | the same, 512 pieces submitted at once, as scrubd hands small ones over |
//! | `far+1`, `far+64` | as `clear`, then 1 or all 64 lines of each page of the piece are written |
//! | `near+1`, `near+64` | the same, but always the same piece: it is in the cache, if it fits |
//! | `read` | plain loads through the region: one thread's bandwidth |
//!
//! [`batches`] has the cost of zeroing to the thread that has it done, [`neighbour`] that to a thread beside it.
//!
//! Every cell is measured in several rounds, cells interleaved, and others begin each round; the median counts. Times
//! are the thread's processor time, so that a busy neighbour costs bandwidth but not its turns.

mod batches;
mod neighbour;
mod walk;

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use pumice_frames::addr::{BLOCK_SIZE, CACHE_LINE, FRAME_SIZE};
use pumice_frames::clear::calibrate::touch;
use pumice_frames::clear::{Clearer, CpuEngine, Engine, EngineKind, Piece, Warmth, SIZES};
use pumice_frames::sys::thread::cpu_time_ns;
use pumice_heap::config::parse_size;
use serde_json::json;

use self::batches::Named;
use self::neighbour::Neighbours;
use super::arguments::{number_in, size_in};
use super::harness::{figures, in_turns, Output, OutputArgs, WarmUp};
use super::registry::prezeroing::CLEAR;
use super::registry::Row;
use pumice_command::clear_plan;
use pumice_command::engines::{self, Choice};
use pumice_command::memory;
use pumice_command::region::Region;
use pumice_command::{Explain, Failure};

/// Rounds over all cells.
const ROUNDS: usize = 5;
/// Pieces in a batch.
const BATCH: usize = 512;
/// The region, where there is memory for it: several times a last-level cache.
const REGION_BYTES: usize = 1 << 30;
/// The least that every cell fits in.
const MIN_REGION_BYTES: usize = 128 << 20;
/// A neighbour is watched for so long at least: it may have to wait for its processor.
const SHORTEST_WINDOW_NS: u64 = 20_000_000;
/// And in so many rounds.
const LEAST_ROUNDS: u64 = 4;
/// Lines in a page.
const LINES_PER_PAGE: usize = FRAME_SIZE / CACHE_LINE;

const USES: &str = "\
Uses:
  clear            pieces of the size one after the other, none of them in the cache
  batch            the same, 512 pieces submitted at once
  far+1, far+64    as clear, then 1 or all 64 lines of each page are written
  near+1, near+64  the same, but always the same piece
  read             plain loads, none of them from the cache
";

/// Options of `pumice bench clear`.
#[derive(Args, Debug)]
#[command(after_help = USES)]
pub struct ClearArgs {
    #[command(flatten)]
    output: OutputArgs,
    /// How long each cell of the table is measured, all rounds together
    #[arg(long, value_name = "S", default_value_t = 0.2,
          value_parser = number_in(0.001..=60.0, "expected seconds from 0.001 to 60"))]
    seconds_per_cell: f64,
    /// Memory to measure in, at least 128M; 1G or a quarter of the memory if that is less
    #[arg(long, value_name = "SIZE",
          value_parser = size_in(MIN_REGION_BYTES..=usize::MAX, "expected a size such as 1G, 128M or more"))]
    region: Option<usize>,
    /// Of the batches, measure only this engine's; cuda is not measured unless named
    #[arg(long, value_name = "NAME", value_parser = engines::parse)]
    engine: Option<Choice>,
    /// Memory the neighbour walks through; if not given, parts of the last-level cache, all of it, and this
    /// program's share of it
    #[arg(long, value_name = "SIZE",
          value_parser = size_in(64 << 10..=usize::MAX, "expected a size such as 32M, 64K or more"))]
    working_set: Option<usize>,
    /// The rate of zeroing beside the neighbour, in GB/s
    #[arg(long, value_name = "RATE", default_value_t = 8.0,
          value_parser = number_in(0.1..=100.0, "expected GB/s from 0.1 to 100"))]
    beside_gb_per_s: f64,
    /// Rounds of the neighbour's table, in each of which every engine has a window; if not given, by --seconds-per-cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    neighbour_rounds: Option<u16>,
}

impl ClearArgs {
    /// Settings of the neighbour's experiment: the windows are short and many.
    fn neighbours(&self, working_set: usize) -> Neighbours {
        let cell_ns = (self.seconds_per_cell * 1e9) as u64;
        let window_ns = (cell_ns / 4).max(SHORTEST_WINDOW_NS);
        let rounds = (4 * cell_ns / window_ns).max(LEAST_ROUNDS) as usize;
        let rounds = self.neighbour_rounds.map_or(rounds, usize::from);
        Neighbours { working_set, rate_gb_per_s: self.beside_gb_per_s, window_ns, rounds }
    }
}

/// Measures, and prints the table.
pub fn clear(options: ClearArgs) -> Result<(), Failure> {
    let mut output = Output::create(&options.output, &CLEAR.plots[0])?;
    let len = region_bytes(options.region)?;
    let mut region =
        Region::populate(len).or_fail(format_args!("can't populate {}", size_name(len)))?;
    let engines = engines_to_measure(options.engine, region.bytes())?;
    let mut cells = cells();
    let slice_ns = (options.seconds_per_cell * 1e9) as u64 / ROUNDS as u64;
    eprintln!(
        "Measuring {} cells in {}, about {:.0} s",
        cells.len(),
        size_name(len),
        cells.len() as f64 * options.seconds_per_cell
    );
    let ns_per_frame = in_turns(cells.len(), ROUNDS, WarmUp::None, |index, _| {
        Ok::<_, Failure>(cells[index].measure(region.bytes(), slice_ns))
    })?;
    output.begin(&CLEAR.tables[0]);
    for (cell, rounds) in cells.iter().zip(&ns_per_frame) {
        output.show(cell.row(rounds))?;
    }
    batches::engines(&engines, region.bytes(), ROUNDS, &mut output)?;
    drop(engines);
    batches::overhead(region.bytes(), 4 * ROUNDS, &mut output)?;
    if let Some(pair) = neighbour::processors() {
        for working_set in working_sets(options.working_set, region.bytes()) {
            let neighbours = options.neighbours(working_set);
            neighbour::neighbours(neighbours, pair, region.bytes(), &mut output)?;
        }
    }
    output.finish()?;
    drop(region);
    print_plans();
    Ok(())
}

fn region_bytes(wanted: Option<usize>) -> Result<usize, Failure> {
    let available = memory::available_bytes() as usize;
    let bytes = wanted.unwrap_or((available / 4).clamp(MIN_REGION_BYTES, REGION_BYTES));
    if bytes > available {
        let (region, memory) = (size_name(bytes), size_name(available));
        return Err(Failure::usage(format!("--region {region} is more than the memory, {memory}")));
    }
    let largest_piece = SIZES[SIZES.len() - 1];
    Ok(bytes / largest_piece * largest_piece)
}

/// The engines whose batches are measured: the one that was named, or all that are here.
fn engines_to_measure(choice: Option<Choice>, region: &mut [u8]) -> Result<Vec<Named>, Failure> {
    let open = |kind: EngineKind| engines::open(kind).transpose();
    match choice {
        Some(Choice::Processor(engine)) => Ok(vec![(engine.name().into(), Box::new(engine))]),
        Some(Choice::Kind(kind)) if kind != EngineKind::Cpu => {
            // SAFETY: the region is there until the engines are gone.
            match unsafe { engines::open_for(kind, region) } {
                Ok(Some(engine)) => Ok(vec![(kind.name().into(), engine)]),
                Ok(None) => Ok(Vec::new()),
                Err(missing) => Err(engines::not_here(kind, &missing)),
            }
        }
        other => {
            let own = |engine: CpuEngine| -> Named { (engine.name().into(), Box::new(engine)) };
            let mut named: Vec<Named> = CpuEngine::available().map(own).collect();
            if other == Some(Choice::Kind(EngineKind::Cpu)) {
                return Ok(named);
            }
            // Nobody's GPU is touched that is not named.
            for kind in EngineKind::ALL.into_iter().filter(|&kind| kind != EngineKind::Cuda) {
                match open(kind) {
                    Some(Ok(engine)) => named.push((kind.name().into(), engine)),
                    Some(Err(missing)) => eprintln!("Skipped: {}: {missing}", kind.name()),
                    None => {}
                }
            }
            Ok(named)
        }
    }
}

/// The working sets: the one asked for, or parts of the last-level cache, all of it, and as much as this program
/// gets of it.
fn working_sets(asked: Option<usize>, region: &mut [u8]) -> Vec<usize> {
    if let Some(asked) = asked {
        return vec![asked];
    }
    let nominal = cache_bytes().min(memory::available_bytes() / 4) as usize;
    let share = walk::cache_share(region, nominal);
    let (kept, all) = (size_name(share), size_name(nominal));
    println!("The last-level cache holds {all}, of which this program gets about {kept}");
    let mut sets = vec![share, nominal / 4, nominal / 2, nominal / 4 * 3, nominal];
    sets.sort_unstable();
    sets.dedup();
    sets
}

/// Bytes that the last-level cache holds, as the kernel says; 32 MiB where it does not.
fn cache_bytes() -> u64 {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        parse_size(std::fs::read_to_string(path).ok()?.trim()).map(|bytes| bytes as u64)
    };
    (0..8).filter_map(size).max().unwrap_or(32 << 20)
}

/// Print the plan that CPUID suggests, that of a calibration now, and the one of the two that programs get.
fn print_plans() {
    println!("\nPlans (engines for 4 KiB, 64 KiB, 2 MiB, 64 MiB: somebody waits / nobody waits)");
    println!("  by CPUID    {}", Clearer::detect().plan());
    let start = Instant::now();
    let Some(measured) = clear_plan::calibrate() else { return };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    println!("  calibrated  {}, in {ms:.1} ms", measured.plan());
    clear_plan::keep(&measured);
    let kept = if clear_plan::kept() == Some(measured) { "calibrated" } else { "by CPUID" };
    println!("  programs started by pumice run get the one {kept}");
}

/// The use of the memory in a cell; see the table at the top.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Clear,
    Batch,
    Far { lines: usize },
    Near { lines: usize },
    Read,
}

impl Use {
    fn name(self) -> String {
        match self {
            Use::Clear => "clear".into(),
            Use::Batch => "batch".into(),
            Use::Far { lines } => format!("far+{lines}"),
            Use::Near { lines } => format!("near+{lines}"),
            Use::Read => "read".into(),
        }
    }
}

/// A use, an engine and a size.
struct Cell {
    usage: Use,
    engine: CpuEngine,
    size: usize,
    /// where in the region the next piece starts
    next: usize,
}

/// All cells: the engines next to each other, so that changes over time meet all.
fn cells() -> Vec<Cell> {
    let cell = |usage, engine, size| Cell { usage, engine, size, next: 0 };
    let touching = |size| {
        let uses = [1, LINES_PER_PAGE].map(|lines| [Use::Near { lines }, Use::Far { lines }]);
        uses.into_iter().flatten().map(move |usage| (usage, size))
    };
    let uses = SIZES
        .into_iter()
        .map(|size| (Use::Clear, size))
        .chain([(Use::Batch, FRAME_SIZE)])
        .chain(touching(SIZES[1]))
        .chain(touching(BLOCK_SIZE));
    uses.flat_map(|(usage, size)| {
        CpuEngine::available().map(move |engine| cell(usage, engine, size))
    })
    .chain([cell(Use::Read, CpuEngine::PORTABLE, SIZES[SIZES.len() - 1])])
    .collect()
}

impl Cell {
    /// One round: pieces until `slice_ns` are over, one step at least. Returns nanoseconds for a frame.
    fn measure(&mut self, region: &mut [u8], slice_ns: u64) -> f64 {
        let mut frames = 0;
        let start_ns = cpu_time_ns();
        let mut elapsed_ns = 0;
        while elapsed_ns < slice_ns || frames == 0 {
            frames += self.step(region) / FRAME_SIZE;
            elapsed_ns = cpu_time_ns() - start_ns;
        }
        elapsed_ns as f64 / frames as f64
    }

    /// Works on the next pieces, 2 MiB of them or one; returns the bytes done.
    fn step(&mut self, region: &mut [u8]) -> usize {
        let bytes = self.size.max(BLOCK_SIZE);
        if region.len() - self.next < bytes {
            self.next = 0;
        }
        let span = &mut region[self.next..][..bytes];
        match self.usage {
            Use::Clear => self.clear(span, 0),
            Use::Far { lines } => self.clear(span, lines),
            Use::Near { lines } => {
                for _ in 0..bytes / self.size {
                    self.clear(&mut span[..self.size], lines);
                }
                return bytes;
            }
            Use::Batch => self.clear_batch(span),
            Use::Read => read(span),
        }
        self.next += bytes;
        bytes
    }

    fn clear(&self, span: &mut [u8], lines: usize) {
        for piece in span.chunks_exact_mut(self.size) {
            // SAFETY: the piece is borrowed mutably.
            unsafe { self.engine.clear(piece.as_mut_ptr(), piece.len()) };
            touch(piece, lines);
        }
    }

    fn clear_batch(&self, span: &mut [u8]) {
        let piece = |piece: &mut [u8]| Piece::new(piece.as_mut_ptr(), piece.len(), Warmth::Cold);
        for batch in span.chunks_mut(BATCH * self.size) {
            let mut pieces: Vec<_> = batch.chunks_exact_mut(self.size).map(piece).collect();
            // SAFETY: the pieces lie in the batch, which is borrowed mutably.
            unsafe { self.engine.submit(&mut pieces) }.expect("a processor is never lost");
        }
    }

    fn row(&self, ns_per_frame: &[f64]) -> Row {
        let mut sorted = ns_per_frame.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        let gb_per_s = |ns: &f64| FRAME_SIZE as f64 / ns;
        let row = Row::of(json!({
            "experiment": "bandwidth",
            "use": self.usage.name(),
            "engine": if self.usage == Use::Read { "loads" } else { self.engine.name() },
            "size_bytes": self.size,
            "gb_per_s": gb_per_s(&median),
            "ns_per_4kib": median,
            // From the fastest round to the slowest.
            "spread_percent": (sorted[sorted.len() - 1] - sorted[0]) / median * 100.0,
        }));
        row.samples("gb_per_s", figures(ns_per_frame, gb_per_s))
    }
}

/// Loads every word.
fn read(span: &[u8]) {
    // SAFETY: every byte pattern is a word.
    let (_, words, _) = unsafe { span.align_to::<u64>() };
    black_box(words.iter().fold(0, |seen, &word| seen | word));
}

fn size_name(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}
