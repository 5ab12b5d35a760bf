//! `pumice bench fault`: page faults a second against threads, as Lameter's V12 table.
//!
//! Threads touch pages of one region, each its share: in a space of ours ([`pumice_paging::space`]) whose
//! entries change under one lock held over the fault (`whole`, as before V12's patches), under a
//! lock held for each change (`short`) or by atomic operations (`atomic`), without and with
//! prefaulting; and in a mapping of the kernel's, with 4 KiB and with huge pages.
//!
//! All ways take turns. Our frames are there and zero when the clock starts; *w/ filling* includes the time that
//! clearing them took. `CLine` says how many lines of each page are written: 0 is the fault path alone, which fetches
//! nothing ahead (the kernel has no such thing: a line is written there). `prefault` says how many pages a sequence
//! populates at once, or that the region is of huge pages.
//!
//! `ready` takes no faults: it writes to pages that were faulted in before, and never written. A fault with
//! the write can't save that cost.
//!
//! There are more threads than processors on purpose: the holder of a lock may then have none.
//!
//! A second table has the cost of access to pages that are there.

mod access;
mod ground;
mod locking;
mod measure;
mod row;

use clap::Args;
use pumice_frames::addr::{BLOCK_FRAMES, FRAME_SIZE};
use rustix::mm::Advice;

use super::arguments::size_in;
use super::harness::{in_turns, Output, WarmUp};
use super::pft::backend::{Backend, Source};
use super::pft::row::Round;
use super::pft::RoundsArgs;
use super::registry::faults::FAULT;
use super::registry::field::{float, identity};
use super::registry::Row;
use ground::Ground;
use locking::Locking;
use measure::{Job, Pattern};
use pumice_command::table::Table;
use pumice_command::Failure;
use row::{FaultMode, PageSize};

/// Threads of the V12 table, as far as it goes.
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Pages at once, where prefaulting is on, and where it is looked at more closely.
const PREFAULT_PAGES: usize = 16;
const PREFAULT_PAGES_MORE: usize = 64;
/// Threads that share one 2 MiB, at most.
const ONE_BLOCK_THREADS: usize = 8;
/// Least pages of a thread's share.
const LEAST_SHARE: usize = BLOCK_FRAMES;

/// Options of `pumice bench fault`.
#[derive(Args, Debug)]
pub struct FaultArgs {
    /// Bytes of the region that all threads touch together
    #[arg(long, value_name = "SIZE", default_value = "1G",
          value_parser = size_in(128 << 20..=1 << 38, "a size from 128M to 256G, such as 1G"))]
    size: usize,
    #[command(flatten)]
    rounds: RoundsArgs,
}

/// Runs all experiments.
pub fn fault(options: &FaultArgs) -> Result<(), Failure> {
    let mut output = Output::create(&options.rounds.output, &FAULT.plots[0])?;
    let ground = Ground::new(options.size)?;
    let rounds = options.rounds.rounds as usize;
    let pages = options.size / FRAME_SIZE / LEAST_SHARE * LEAST_SHARE;
    println!("page faults (medians of {rounds} rounds)");
    output.begin(&FAULT.tables[0]);
    let mut bench = Bench { ground, rounds, output };
    let own = |threads, lines| Job { threads, pages, lines, pattern: Pattern::Own };
    let threads: &[usize] = if options.rounds.quick { &[1, 2, 64] } else { &THREADS };
    for &threads in threads {
        eprintln!("fault: {threads} threads …");
        bench.compare(&each(own(threads, 1), &ways(threads)))?;
    }
    eprintln!("fault: the path alone …");
    bench.compare(&each(own(1, 0), &ways(1)))?;
    bench.compare(&each(own(2, 0), &atomic_ways()))?;
    eprintln!("fault: one block …");
    let blocks = THREADS.into_iter().filter(|&threads| threads <= ONE_BLOCK_THREADS);
    let in_blocks = |threads| Job { pattern: Pattern::OneBlock, ..own(threads, 1) };
    let rows: Vec<_> =
        blocks.flat_map(|threads| each(in_blocks(threads), &atomic_ways())).collect();
    bench.compare(&rows)?;
    eprintln!("fault: a mapper …");
    // With one thread fewer than processors, and without the mapper in the same rounds. A thread that waits for a lock
    // which a mapper takes again and again has it a thousand times a second.
    let ours = Locking::OURS.map(|locking| way(locking, 1));
    let alone = Job { pages: if options.rounds.quick { pages / 16 } else { pages }, ..own(1, 1) };
    let beside = Job { pattern: Pattern::Mapper, ..alone };
    bench.compare(&[each(alone, &ours), each(beside, &ours)].concat())?;
    bench.print_ratios();
    access::measure(&bench.ground, rounds, &mut bench.output)?;
    bench.output.finish()
}

fn way(locking: Locking, prefault_pages: usize) -> FaultMode {
    FaultMode { backend: Backend::Pumice, locking, prefault_pages, page_size: PageSize::Small }
}

fn huge_way() -> FaultMode {
    FaultMode { page_size: PageSize::Huge, ..way(Locking::Atomic, 1) }
}

fn kernel_way(backend: Backend) -> FaultMode {
    FaultMode { backend, ..way(Locking::Kernel, 1) }
}

fn atomic_ways() -> Vec<FaultMode> {
    vec![way(Locking::Atomic, 1), way(Locking::Atomic, PREFAULT_PAGES)]
}

/// A job in each of these ways.
fn each(job: Job, ways: &[FaultMode]) -> Vec<(Job, FaultMode)> {
    ways.iter().map(|&way| (job, way)).collect()
}

/// All ways to compare with so many threads.
fn ways(threads: usize) -> Vec<FaultMode> {
    let mut ways = [Backend::Kernel4k, Backend::KernelThp].map(kernel_way).to_vec();
    for locking in Locking::OURS {
        ways.extend([way(locking, 1), way(locking, PREFAULT_PAGES)]);
    }
    if threads == 1 {
        ways.push(way(Locking::Atomic, PREFAULT_PAGES_MORE));
        ways.push(huge_way());
        ways.push(way(Locking::Ready, 1));
    }
    ways
}

/// The rows so far, and where they go.
struct Bench {
    ground: Ground,
    rounds: usize,
    output: Output,
}

impl Bench {
    /// Measures each job in its way, in turns, and shows a row for each. Only rows of one call should
    /// be compared: the machine may have others on it later.
    fn compare(&mut self, jobs: &[(Job, FaultMode)]) -> Result<(), Failure> {
        let rounds = in_turns(jobs.len(), self.rounds, WarmUp::Round, |index, _| {
            self.measure_once(&jobs[index].0, jobs[index].1)
        })?;
        for ((job, way), rounds) in jobs.iter().zip(&rounds) {
            self.output.show(row::row(*way, job, rounds))?;
        }
        self.output.gap();
        Ok(())
    }

    fn measure_once(&self, job: &Job, way: FaultMode) -> Result<Round, Failure> {
        let kernel = |advice| measure::kernel(Source::Kernel(advice), job);
        let (spent, filling_s) = match way.backend {
            Backend::Kernel4k => (kernel(Advice::LinuxNoHugepage)?, 0.0),
            Backend::KernelThp => (kernel(Advice::LinuxHugepage)?, 0.0),
            Backend::Pumice => {
                // Before, so that the warm-up round counts it as the others do.
                let filling_s = self.ground.refill();
                (measure::ours(&self.ground, way, job)?, filling_s)
            }
        };
        Ok(Round { spent, filling_s, hot_cleared_mb: 0.0 })
    }

    fn rows(
        &self,
        (threads, lines, pattern): Of,
        way: FaultMode,
    ) -> impl DoubleEndedIterator<Item = &Row> {
        let wanted = [
            threads.to_string(),
            lines.to_string(),
            pattern.name().to_owned(),
            way.backend.name().to_owned(),
            way.locking.name().to_owned(),
            way.prefault_pages.to_string(),
            way.page_size.name().to_owned(),
        ];
        self.output.rows().iter().filter(move |row| identity(&KEYS, row) == wanted)
    }

    /// Print the ratios between rows.
    fn print_ratios(&self) {
        println!("ratios");
        let table = Table::begin(&[("", 62), ("ratio", 7)]);
        let (small, huge) = (kernel_way(Backend::Kernel4k), kernel_way(Backend::KernelThp));
        let (atomic, whole) = (way(Locking::Atomic, 1), way(Locking::Whole, 1));
        let [with, with_more] =
            [PREFAULT_PAGES, PREFAULT_PAGES_MORE].map(|it| way(Locking::Atomic, it));
        let ready = way(Locking::Ready, 1);
        let own = |threads| (threads, 1, Pattern::Own);
        let blocks = |threads| (threads, 1, Pattern::OneBlock);
        let (one, two, many) = (own(1), own(2), own(64));
        let (alone, mapper) = ((1, 0, Pattern::Own), (1, 1, Pattern::Mapper));
        let ratios: [(&str, Side, Side, &str); 19] = [
            ("atomic / kernel-4k, 1 thread, per cpu second", (one, atomic), (one, small), CPU),
            ("atomic / kernel-thp", (one, atomic), (one, huge), CPU),
            ("atomic, 2 MiB pages / kernel-thp", (one, huge_way()), (one, huge), CPU),
            ("atomic, path alone / kernel-4k", (alone, atomic), (alone, small), CPU),
            ("atomic / whole, 1 thread", (one, atomic), (one, whole), CPU),
            ("prefault 16 / off, path alone", (alone, with), (alone, atomic), CPU),
            ("prefault 16 / off, with the write", (one, with), (one, atomic), CPU),
            ("prefault 64 / off, path alone", (alone, with_more), (alone, atomic), CPU),
            ("prefault 64 / off, with the write", (one, with_more), (one, atomic), CPU),
            ("ready: no fault / atomic, 1 thread", (one, ready), (one, atomic), CPU),
            ("atomic, 2 threads / 1, per second", (two, atomic), (one, atomic), WALL),
            ("atomic, 64 threads / 2", (many, atomic), (two, atomic), WALL),
            ("whole, 64 threads / 2", (many, whole), (two, whole), WALL),
            ("whole, 2 threads / 1", (two, whole), (one, whole), WALL),
            ("one block, 2 threads / 1", (blocks(2), atomic), (blocks(1), atomic), WALL),
            ("one block, 2 threads, prefault / off", (blocks(2), with), (blocks(2), atomic), WALL),
            ("atomic beside a mapper / without", (mapper, atomic), (one, atomic), WALL),
            ("the same, per cpu second", (mapper, atomic), (one, atomic), CPU),
            ("whole beside a mapper / without", (mapper, whole), (one, whole), WALL),
        ];
        for (text, this, that, by) in ratios {
            let mut others = self.rows(that.0, that.1);
            // A mapper's peer is the row of the same rounds: the last.
            let other = if this.0 == mapper { others.next_back() } else { others.next() };
            if let (Some(this), Some(that)) = (self.rows(this.0, this.1).next(), other) {
                table.row(&[text.to_owned(), format!("{:.2}", float(this, by) / float(that, by))]);
            }
        }
    }
}

/// Threads, lines and pattern of a row.
type Of = (usize, usize, Pattern);

/// A side of a ratio.
type Side = (Of, FaultMode);

/// The rates that are compared.
const CPU: &str = "flt_cpu_s";
const WALL: &str = "flt_wall_s";

const KEYS: [&str; 7] =
    ["thr", "lines", "pattern", "backend", "locking", "prefault_pages", "page_size"];
