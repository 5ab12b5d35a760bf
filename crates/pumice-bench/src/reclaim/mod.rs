//! `pumice bench reclaim`: a region many times larger than its memory, in a space of ours and in the kernel.
//!
//! Ours has so many frames and a swap file; the kernel's process is in a control group that may use as much memory, and
//! swaps to a file of the same size in the same folder. Each is a process of its own ([`worker`]), fills its region
//! first, and then they take turns, round by round. With `--swap-on zram`, and where the kernel can't swap to a file,
//! a device of compressed memory stands in its place: pages here are zeros but for a word, and take next to nothing.
//!
//! | pattern | accesses |
//! |---|---|
//! | `fill` | write all of the region once, in order: one round, nothing is in swap before it |
//! | `random-write`, `random-read` | any page, each as likely |
//! | `sequential-write`, `sequential-read` | each thread its share, in order, going on where it was |
//! | `zipf-write` | few pages often (Zipf, 0.99), scattered over the region |
//! | `google` | SPEC.md's "google testcase": all of the region is in use, half a memory full of it is written to at random, and one more thread reads a file twice the memory, again and again: through the page cache in the kernel, direct in ours |
//! | `hit`, `hit-shared` | read guards on pages that are there, with a pager: 4,096 of each thread's own, or the same for all; ns are without the loop |
//! | `device-read`, `device-mixed` | nothing of ours: single pages of a file, direct; mixed are half writes |
//!
//! An access is a word of a page, at random or in turn, and waits are how long accesses took, whether the page was
//! there or not. *CPU* is all of the process's threads and, for the kernel, its `kswapd`; *machine's* is everybody's,
//! interrupts and the kernel's workers included, and all other load.

mod device;
mod job;
mod kernel;
mod order;
mod ours;
mod row;
mod swap_area;
mod worker;
mod zram;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::cpu;

use super::arguments::{frames_size, seconds};
use super::harness::{in_turns, Output, OutputArgs, WarmUp};
use super::interrupts::Interrupts;
use super::registry::paging::RECLAIM;
use super::registry::Row;
use super::team::answer::Answer;
use super::team::control_group::ControlGroup;
use super::team::folder::Folder;
use super::team::worker::Worker;
use job::{Pattern, Request, Setup};
use pumice_command::Failure;
use row::{beside, row, Backend, Case};
use swap_area::SwapArea;
use worker::Kind;
use zram::Zram;

/// Swap, by the region: so that copies of pages that are in memory may stay there, in both.
const SWAP_TIMES: usize = 2;
/// The file that is read, by the frames.
const FILE_TIMES: usize = 2;
/// Threads that take guards.
const HIT_THREADS: [usize; 2] = [1, 2];

/// The place that pages go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SwapOn {
    /// A file for each side.
    File,
    /// A device of compressed memory for each, which costs memory beside what is allowed.
    Zram,
}

/// Options of `pumice bench reclaim`.
#[derive(Args, Debug)]
pub struct ReclaimArgs {
    /// Memory for the region's pages [default: 1G, or 64M with --quick]
    #[arg(long, value_name = "SIZE", default_value = "1G", default_value_if("quick", "true", "64M"),
          hide_default_value = true, value_parser = frames_size)]
    frames: usize,
    /// How many times as large the region is [default: 2,4, or 4 with --quick]
    #[arg(long, value_name = "LIST", default_value = "2,4", default_value_if("quick", "true", "4"),
          hide_default_value = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    times: Vec<u32>,
    /// How many threads there are [default: 1,2,8,32, or 1,8 with --quick]
    #[arg(long, value_name = "LIST", default_value = "1,2,8,32", default_value_if("quick", "true", "1,8"),
          hide_default_value = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Only these patterns [default: all, or random-write,zipf-write,hit with --quick]
    #[arg(long, value_name = "LIST", default_value = Pattern::MEASURED,
          default_value_if("quick", "true", "random-write,zipf-write,hit"), hide_default_value = true,
          value_delimiter = ',')]
    patterns: Vec<Pattern>,
    /// Measurements of each row [default: 10, or 3 with --quick]
    #[arg(long, value_name = "N", default_value = "10", default_value_if("quick", "true", "3"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each of them is [default: 1, or 0.3 with --quick]
    #[arg(long, value_name = "SECONDS", default_value = "1", default_value_if("quick", "true", "0.3"),
          hide_default_value = true, value_parser = seconds)]
    seconds: f64,
    /// The policy that chooses the pages to evict
    #[arg(long, value_name = "NAME", default_value = "adaptive", value_parser = ["adaptive", "two-list"])]
    policy: String,
    /// Where swap is, on both sides, in a folder of its own [default: where temporary files are]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Swap, on both sides: a file each, or a device of compressed memory each
    #[arg(long, value_name = "WHAT", default_value = "file")]
    swap_on: SwapOn,
    /// Ours alone, without the kernel's
    #[arg(long)]
    alone: bool,
    /// Less memory, fewer rounds and fewer rows
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Be the process that is measured
    #[arg(long, hide = true)]
    worker: Option<Kind>,
}

/// Measures all rows.
pub fn reclaim(options: &ReclaimArgs) -> Result<(), Failure> {
    if let Some(kind) = options.worker {
        return worker::run(kind);
    }
    let mut output = Output::create(&options.output, &RECLAIM.plots[0])?;
    let signals = Interrupts::take();
    let folder = Folder::make(options.dir.as_deref(), "reclaim")?;
    println!(
        "a region larger than its {} MiB (medians of {} rounds, {} s each)",
        options.frames >> 20,
        options.rounds,
        options.seconds
    );
    output.begin(&RECLAIM.tables[0]);
    let mut bench = Bench { options, signals, folder, output };
    bench.device()?;
    options.times.iter().try_for_each(|&times| bench.region(times as usize))?;
    bench.output.finish()
}

/// The kernel's process and what it needs. They end in this order: swap that nobody has pages in goes at once.
#[derive(Debug)]
struct Peer {
    worker: Worker,
    backend: Backend,
    _swap: SwapArea,
    _group: ControlGroup,
}

impl Peer {
    fn start(
        worker: Worker,
        swap_on: SwapOn,
        folder: &Path,
        setup: &Setup,
    ) -> Result<Peer, String> {
        let group = ControlGroup::with_memory(worker.pid(), setup.frames * FRAME_SIZE)
            .map_err(|error| format!("no control group: {error}"))?;
        let path = folder.join("kernel.swap");
        let in_file = (swap_on == SwapOn::File).then(|| SwapArea::on(&path, setup.swap_bytes));
        if let Some(Err(error)) = &in_file {
            let folder = folder.display();
            eprintln!("no swap of the kernel's in {folder}, so on zram, if there is any: {error}");
        }
        let (swap, backend) = match in_file {
            Some(Ok(swap)) => (swap, Backend::Kernel),
            _ => {
                let swap = SwapArea::on_zram(setup.swap_bytes);
                let swap = swap.map_err(|error| format!("no swap on zram: {error}"))?;
                (swap, Backend::KernelZram)
            }
        };
        Ok(Peer { worker, backend, _swap: swap, _group: group })
    }
}

/// The rows so far, and where they go.
struct Bench<'o> {
    options: &'o ReclaimArgs,
    signals: Interrupts,
    folder: Folder,
    output: Output,
}

impl Bench<'_> {
    /// Measures the device: its rate is the most there is to reach.
    fn device(&mut self) -> Result<(), Failure> {
        let file = self.folder.path().join("file");
        let options = self.options;
        let pages = FILE_TIMES * options.frames / FRAME_SIZE;
        device::make_file(&file, (pages * FRAME_SIZE) as u64)?;
        for pattern in [Pattern::DeviceRead, Pattern::DeviceMixed] {
            for threads in options.threads.iter().map(|&threads| threads as usize) {
                let mut rounds = Vec::new();
                for round in 0..u64::from(options.rounds) {
                    self.signals.look()?;
                    rounds.push(device::run(&file, pattern, threads, options.seconds, round)?);
                }
                let (region_pages, frames) = (pages, 0);
                let backend = Backend::Device;
                let case = Case { pattern, backend, threads, region_pages, frames };
                self.output.show(row(&case, &rounds))?;
            }
        }
        self.output.gap();
        Ok(())
    }

    /// All patterns on a region so many times the frames.
    fn region(&mut self, times: usize) -> Result<(), Failure> {
        let options = self.options;
        let frames = options.frames / FRAME_SIZE;
        let region_pages = times * frames;
        let swap_bytes = (SWAP_TIMES * region_pages * FRAME_SIZE) as u64;
        let in_folder = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        // Removed when the worker, which has it open, is gone.
        let zram = match options.swap_on {
            SwapOn::File => None,
            SwapOn::Zram => match Zram::add(swap_bytes) {
                Ok(zram) => Some(zram),
                Err(error) => {
                    eprintln!("skipped: no zram device can be made: {error}");
                    return Ok(());
                }
            },
        };
        let swap = match &zram {
            Some(zram) => zram.path().to_string_lossy().into_owned(),
            None => in_folder("pumice.swap"),
        };
        let backend = if zram.is_some() { Backend::PumiceZram } else { Backend::Pumice };
        let setup = Setup {
            region_pages,
            frames,
            swap,
            swap_bytes,
            policy: options.policy.clone(),
            file: in_folder("file"),
        };
        let mut ours = Worker::start("reclaim", "pumice")?;
        ours.prepare(&setup, &self.signals)?;
        let mut peer = None;
        if !options.alone {
            let worker = Worker::start("reclaim", "kernel")?;
            match Peer::start(worker, options.swap_on, self.folder.path(), &setup) {
                Ok(mut started) => {
                    started.worker.prepare(&setup, &self.signals)?;
                    peer = Some(started);
                }
                Err(why) => eprintln!("without the kernel's: {why}"),
            }
        }
        let mut sides = vec![(backend, &mut ours)];
        if let Some(peer) = &mut peer {
            sides.insert(0, (peer.backend, &mut peer.worker));
        }
        let case = Case { pattern: Pattern::Fill, backend, threads: 1, region_pages, frames };
        eprintln!("reclaim: filling {times} times the memory …");
        self.compare(&mut sides, case, 1)?;
        let rounds = options.rounds as usize;
        for &pattern in &options.patterns {
            eprintln!("reclaim: {times} times the memory, {} …", pattern.name());
            if pattern.is_hit() {
                for threads in HIT_THREADS.into_iter().filter(|&threads| threads <= cpu::count()) {
                    let (_, worker) = sides.last_mut().expect("ours is there");
                    let mut only = vec![(backend, &mut **worker)];
                    self.compare(&mut only, Case { pattern, threads, ..case }, rounds)?;
                }
                continue;
            }
            for threads in options.threads.iter().map(|&threads| threads as usize) {
                self.compare(&mut sides, Case { pattern, threads, ..case }, rounds)?;
            }
        }
        self.output.gap();
        if zram.is_none() {
            let _ = fs::remove_file(&setup.swap);
        }
        Ok(())
    }

    /// One case on all sides, in turns, after a round each to warm up; and a row for each. A side of the kernel's that
    /// the kernel kills, as it does where a group is so small that all of its pages were just used, is no side any
    /// more.
    fn compare(
        &mut self,
        sides: &mut Vec<(Backend, &mut Worker)>,
        case: Case,
        rounds: usize,
    ) -> Result<(), Failure> {
        let is_first = case.pattern == Pattern::Fill;
        let warm_up = if is_first { WarmUp::None } else { WarmUp::Round };
        let mut killed = None;
        let answers = in_turns(sides.len(), rounds, warm_up, |which, round| {
            self.signals.look()?;
            let (backend, worker) = &mut sides[which];
            let request = Request {
                pattern: case.pattern,
                threads: case.threads,
                seconds: self.options.seconds,
                // Other pages than in the rows before, of which many are still in memory.
                seed: (case.pattern as u64) << 32 | (case.threads as u64) << 16 | round as u64,
            };
            let answer: Result<Answer, Failure> = worker.run(&request, &self.signals);
            if answer.is_err() && backend.is_kernel() && worker.was_killed() {
                killed = Some(which);
            }
            answer
        });
        if let Some(which) = killed {
            eprintln!(
                "without the kernel's from here on: its process was killed, for its group of {} MiB was \
                 out of memory ({}, {} threads); give it more by --frames",
                (case.frames * FRAME_SIZE) >> 20,
                case.pattern.name(),
                case.threads
            );
            sides.remove(which);
            return self.compare(sides, case, rounds);
        }
        let mut kernel: Option<Row> = None;
        for ((backend, _), rounds) in sides.iter().zip(&answers?) {
            let row = row(&Case { backend: *backend, ..case }, rounds);
            let row = match &kernel {
                Some(kernel) => beside(row, kernel),
                None => row,
            };
            if backend.is_kernel() {
                kernel = Some(row.clone());
            }
            self.output.show(row)?;
        }
        Ok(())
    }
}
