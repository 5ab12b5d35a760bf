//! `pumice bench io`: files through the kernel's page cache and through ours, under the same memory: the bonnie table.
//!
//! | op | work |
//! |---|---|
//! | `out` | all of a file is written in order and made durable; its blocks are reserved before |
//! | `rewrite` | all of it is read in order, a byte of each page changed, written back, made durable |
//! | `in` | all of it is read in order, nothing of it in memory before |
//! | `random` | single pages at random; each thread waits for one at a time |
//! | `random-ahead` | the same, each thread saying ahead which it will want, so that `--depth` are on their way |
//! | `random-beside` | as `random`, while one more thread overwrites the file in order, again and again: *MB/s out* is its |
//! | `scan` | a working set of half the frames, and a scan of a file ten times the frames: the share of the set's accesses that found their page during the scan, and the share of the set that was in memory after a scan during which nobody used it |
//! | `resident`, `resident-few` | pages that are in memory, read at random: `--resident` shared by all threads, with lines fetched ahead; 64 of each thread's own |
//!
//! | backend | description |
//! |---|---|
//! | `buffered` | the kernel's cache, by `read` and `write` of 1 MiB (at random: of pages) |
//! | `mmap` | the kernel's cache, mapped; advised sequential or random where it is that |
//! | `direct` | our cache (`pumice_cache`): straight from and to its frames; in order by ranges, and 64 pages a write |
//! | `fio` | the device: io_uring, direct, 4 requests of 1 MiB, or `--depth` of pages in all; where it is installed |
//!
//! The kernel's processes are in control groups with as much memory as ours has frames. Each backend has a file of its
//! own, and they take turns, round by round. Every page that is read is looked at: it begins with its number. A
//! `random` row compares pages read from the device, for a cache has a part of them. *CPU* is the process's threads and
//! `kswapd`; *mach* is everybody's, interrupts, the kernel's writing and all else that ran included.
//!
//! Neighbours: `pumice-cache`, which it measures, over memory of `pumice-frames`; `pumice-bench`, whose harness it
//! uses; `pumice-command`, by which it fails and prints. `pumice-cli` alone calls it.

mod backend;
mod buffered;
mod direct;
mod fio;
mod job;
mod mapped;
mod resident;
mod row;
mod worker;

use std::path::PathBuf;

use clap::Args;
use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sys::cpu;

use job::{Op, Request, Setup};
use pumice_bench::arguments::{frames_size, seconds};
use pumice_bench::harness::{in_turns, Output, OutputArgs, WarmUp};
use pumice_bench::interrupts::Interrupts;
use pumice_bench::registry::field::text;
use pumice_bench::registry::paging::IO;
use pumice_bench::registry::Row;
use pumice_bench::spent::machine_cpu_s;
use pumice_bench::team::answer::Answer;
use pumice_bench::team::control_group::ControlGroup;
use pumice_bench::team::folder::Folder;
use pumice_bench::team::worker::Worker;
use pumice_command::Failure;
use row::{beside, row, Case};
use worker::Kind;

/// The file of a scan, by the frames.
const SCAN_TIMES: u64 = 10;

/// Options of `pumice bench io`.
#[derive(Args, Debug)]
pub struct IoArgs {
    /// Memory for the file's pages [default: 512M, or 32M with --quick]
    #[arg(long, value_name = "SIZE", default_value = "512M", default_value_if("quick", "true", "32M"),
          hide_default_value = true, value_parser = frames_size)]
    frames: usize,
    /// How many times as large the file is
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u64).range(2..=64))]
    times: u64,
    /// How many threads read at random
    #[arg(long, value_name = "LIST", default_value = "1,2", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Reads on their way at a time, of all threads together
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(2..=1024))]
    depth: u32,
    /// Only these operations [default: all]; files are written first in any case
    #[arg(long, value_name = "LIST", value_enum, default_values_t = Op::ALL, hide_default_value = true,
          value_delimiter = ',')]
    ops: Vec<Op>,
    /// Only these backends [default: all]
    #[arg(long, value_name = "LIST", value_enum, default_values_t = Kind::ALL, hide_default_value = true,
          value_delimiter = ',')]
    backends: Vec<Kind>,
    /// Pages in memory that are read at random, 0 for none [default: 2G, or 32M with --quick]
    #[arg(long, value_name = "SIZE", default_value = "2G", default_value_if("quick", "true", "32M"),
          hide_default_value = true, value_parser = size_or_none)]
    resident: usize,
    /// Measurements of each row [default: 10, or 3 with --quick]
    #[arg(long, value_name = "N", default_value = "10", default_value_if("quick", "true", "3"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each of them is that does not end by itself [default: 1, or 0.2 with --quick]
    #[arg(long, value_name = "SECONDS", default_value = "1", default_value_if("quick", "true", "0.2"),
          hide_default_value = true, value_parser = seconds)]
    seconds: f64,
    /// Where the files are, in a folder of their own [default: where temporary files are]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Without fio's
    #[arg(long)]
    no_fio: bool,
    /// Less memory and fewer rounds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Be the process that is measured
    #[arg(long, hide = true)]
    worker: Option<Kind>,
}

fn size_or_none(text: &str) -> Result<usize, &'static str> {
    if text == "0" {
        return Ok(0);
    }
    frames_size(text)
}

/// Measures all rows.
pub fn io(options: &IoArgs) -> Result<(), Failure> {
    if let Some(kind) = options.worker {
        return worker::run(kind);
    }
    let mut output = Output::create(&options.output, &IO.plots[0])?;
    let has_fio = !options.no_fio && fio::is_installed();
    if !has_fio && !options.no_fio {
        eprintln!("io: fio is not installed: no rows of the device itself");
    }
    let signals = Interrupts::take();
    let folder = Folder::make(options.dir.as_deref(), "io")?;
    println!(
        "a file of {} MiB and {} MiB of memory (medians of {} rounds)",
        options.bytes() >> 20,
        options.frames >> 20,
        options.rounds
    );
    output.begin(&IO.tables[0]);
    let mut bench = Bench { options, has_fio, signals, folder, output };
    bench.files()?;
    bench.scan()?;
    bench.resident()?;
    bench.output.finish()
}

impl IoArgs {
    fn bytes(&self) -> u64 {
        self.frames as u64 * self.times
    }
}

/// A worker, and the group that the kernel's is in. They end in this order.
struct Side {
    kind: Kind,
    worker: Worker,
    _group: Option<ControlGroup>,
}

/// The rows so far, and where they go.
struct Bench<'o> {
    options: &'o IoArgs,
    has_fio: bool,
    signals: Interrupts,
    folder: Folder,
    output: Output,
}

impl Bench<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.file"))
    }

    /// A worker with so much memory, or why there is none.
    fn side(&self, kind: Kind, frames: usize, bytes: u64) -> Result<Option<Side>, Failure> {
        let mut worker = Worker::start("io", kind.name())?;
        let mut group = None;
        if kind.is_kernel() {
            match ControlGroup::with_memory(worker.pid(), frames * FRAME_SIZE) {
                Ok(limited) => group = Some(limited),
                Err(error) => {
                    eprintln!("io: without {}: no control group: {error}", kind.name());
                    return Ok(None);
                }
            }
        }
        let file = self.file(kind.name()).to_string_lossy().into_owned();
        let setup = Setup { file, bytes, frames, depth: self.options.depth as usize };
        worker.prepare(&setup, &self.signals)?;
        Ok(Some(Side { kind, worker, _group: group }))
    }

    fn sides(&self, frames: usize, bytes: u64) -> Result<Vec<Side>, Failure> {
        let mut sides = Vec::new();
        for &kind in &self.options.backends {
            sides.extend(self.side(kind, frames, bytes)?);
        }
        Ok(sides)
    }

    fn files(&mut self) -> Result<(), Failure> {
        let options = self.options;
        let mut sides = self.sides(options.frames / FRAME_SIZE, options.bytes())?;
        // After this all files are there for any operation, and each way has run once.
        self.compare(&mut sides, Op::Out, 1, 0)?;
        for &op in options.ops.iter().filter(|&&op| op != Op::Scan) {
            let threads = if op.is_sequential() { &[1] } else { &*options.threads };
            for &threads in threads {
                self.compare(&mut sides, op, threads as usize, options.rounds as usize)?;
            }
        }
        Ok(())
    }

    /// The files again, with so little memory that they are ten times as large.
    fn scan(&mut self) -> Result<(), Failure> {
        if !self.options.ops.contains(&Op::Scan) {
            return Ok(());
        }
        let bytes = self.options.bytes();
        let frames = (bytes / SCAN_TIMES) as usize / BLOCK_SIZE * (BLOCK_SIZE / FRAME_SIZE);
        let mut sides = self.sides(frames, bytes)?;
        // Of the others nobody knows what is in memory.
        sides.retain(|side| side.kind.knows_what_is_there());
        self.compare(&mut sides, Op::Scan, 1, self.options.rounds.min(3) as usize)
    }

    /// One operation on all sides, in turns, and a row for each.
    fn compare(
        &mut self,
        sides: &mut [Side],
        op: Op,
        threads: usize,
        rounds: usize,
    ) -> Result<(), Failure> {
        eprintln!("io: {}, {threads} threads …", op.name());
        let IoArgs { depth, seconds, .. } = *self.options;
        let bytes = self.options.bytes();
        let has_fio = self.has_fio && op != Op::Scan;
        let all = sides.len() + usize::from(has_fio);
        // The first warms up, but for what ends by itself.
        let is_warm_up = !op.is_sequential() && op != Op::Scan || rounds == 0;
        let warm_up = if is_warm_up { WarmUp::Round } else { WarmUp::None };
        let answers = in_turns(all, rounds, warm_up, |which, round| {
            self.signals.look()?;
            let seed = (op as u64) << 32 | (threads as u64) << 16 | round as u64;
            let request = Request { op, threads, seconds, seed };
            if let Some(side) = sides.get_mut(which) {
                return side.worker.run(&request, &self.signals);
            }
            let before = machine_cpu_s();
            let answer = fio::run(&self.file("fio"), bytes, depth as usize / threads, &request)?;
            Ok(Answer { machine_cpu_s: machine_cpu_s() - before, ..answer })
        })?;
        if rounds == 0 {
            return Ok(());
        }
        let names = sides.iter().map(|side| side.kind.name()).chain(["fio"]);
        let frames_bytes = self.options.frames as u64;
        let of = |(backend, rounds): (&'static str, &Vec<Answer>)| {
            let frames_bytes = match (op, backend) {
                (_, "fio") => 0,
                (Op::Scan, _) => bytes / SCAN_TIMES,
                _ => frames_bytes,
            };
            row(&Case { op: op.name(), backend, threads, file_bytes: bytes, frames_bytes }, rounds)
        };
        let rows: Vec<Row> = names.zip(&answers).map(of).collect();
        rows.iter().try_for_each(|row| self.output.show(beside(row, &rows)))?;
        self.output.gap();
        Ok(())
    }

    fn resident(&mut self) -> Result<(), Failure> {
        let IoArgs { resident, rounds, seconds, .. } = *self.options;
        if resident == 0 {
            return Ok(());
        }
        eprintln!("io: pages in memory …");
        let threads = cpu::count().min(2);
        let rows = resident::measure(
            &self.file("resident"),
            (resident, threads),
            (rounds as usize, seconds / 4.0),
            &self.signals,
        )?;
        for row in &rows {
            let is_same = |other: &&Row| text(other, "op") == text(row, "op");
            let same: Vec<Row> = rows.iter().filter(is_same).cloned().collect();
            self.output.show(beside(row, &same))?;
        }
        Ok(())
    }
}
