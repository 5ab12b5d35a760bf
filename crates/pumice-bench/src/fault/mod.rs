//! `pumice bench fault`: page faults a second against threads, as Lameter's V12 table.
//!
//! Threads touch pages of one region, each its share: in a space of ours ([`pumice_paging::space`]) whose
//! entries change under one lock held over the fault (`whole`, as before V12's patches), under a
//! lock held for each change (`short`) or by atomic operations (`atomic`), without and with
//! prefaulting; and in a mapping of the kernel's, with 4 KiB and with huge pages.
//!
//! All ways take turns. Our frames are there and zero when the clock starts; what clearing them took
//! is in *w/ filling*. `CLine` says how many lines of each page are written: 0 is the fault path
//! alone, which fetches nothing ahead (the kernel has no such thing: a line is written there). `prefault` says
//! how many pages a sequence populates at once, or that the region is of huge pages.
//!
//! `ready` takes no faults: it writes to pages that were faulted in before, and never written. What that costs, a
//! fault with the write can't save.
//!
//! There are more threads than processors on purpose: who holds a lock may then have none.
//!
//! A second table says what access costs to pages that are there.

mod access;
mod ground;
mod locking;
mod measure;
mod row;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use pumice_frames::addr::{BLOCK_FRAMES, FRAME_SIZE};
use pumice_heap::config::parse_size;
use rustix::mm::Advice;

use super::arguments::check_writable;
use super::pft::backend::{Backend, Source};
use super::pft::row::Round;
use super::plot::{self, Series, Stroke};
use ground::Ground;
use locking::Locking;
use measure::{Job, Pattern};
use pumice_command::json_lines::JsonLines;
use pumice_command::table::Table;
use pumice_command::Failure;
use row::{FaultRow, PageSize, Way};

/// Threads of the V12 table, as far as it goes.
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Pages at once, where prefaulting is on, and where it is looked at more closely.
const PREFAULT_PAGES: usize = 16;
const PREFAULT_PAGES_MORE: usize = 64;
/// Threads that share one 2 MiB, at most.
const ONE_BLOCK_THREADS: usize = 8;
/// Least pages of a thread's share.
const LEAST_SHARE: usize = BLOCK_FRAMES;

/// What `pumice bench fault` is asked for.
#[derive(Args, Debug)]
pub struct FaultArgs {
    /// Bytes of the region that all threads touch together
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    size: usize,
    /// Measurements of each row [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Fewer rounds and fewer rows
    #[arg(long)]
    quick: bool,
    /// Write the rows as JSON Lines as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rate against the threads, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).filter(|&bytes| (128 << 20..=1 << 38).contains(&bytes));
    bytes.ok_or_else(|| "a size from 128M to 256G, such as 1G".to_owned())
}

/// Runs all experiments.
pub fn fault(options: &FaultArgs) -> Result<ExitCode, Failure> {
    let json = JsonLines::create(options.json.as_deref())?;
    if let Some(path) = &options.plot {
        check_writable(path)?;
    }
    let ground = Ground::new(options.size)?;
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 7 }) as usize;
    let pages = options.size / FRAME_SIZE / LEAST_SHARE * LEAST_SHARE;
    let mut bench = Bench { ground, rounds, json, rows: Vec::new() };
    println!("page faults (medians of {rounds} rounds)");
    FaultRow::begin_table();
    let own = |threads, lines| Job { threads, pages, lines, pattern: Pattern::Own };
    let threads: &[usize] = if options.quick { &[1, 2, 64] } else { &THREADS };
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
    let alone = Job { pages: if options.quick { pages / 16 } else { pages }, ..own(1, 1) };
    let beside = Job { pattern: Pattern::Mapper, ..alone };
    bench.compare(&[each(alone, &ours), each(beside, &ours)].concat())?;
    bench.print_ratios();
    access::measure(&bench.ground, rounds, &mut bench.json)?;
    if let Some(path) = &options.plot {
        plot::rate_against_threads(path, "each its share, one line written", &bench.series())?;
    }
    bench.json.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn way(locking: Locking, prefault_pages: usize) -> Way {
    Way { backend: Backend::Pumice, locking, prefault_pages, page_size: PageSize::Small }
}

fn huge_way() -> Way {
    Way { page_size: PageSize::Huge, ..way(Locking::Atomic, 1) }
}

fn kernel_way(backend: Backend) -> Way {
    Way { backend, ..way(Locking::Kernel, 1) }
}

fn atomic_ways() -> Vec<Way> {
    vec![way(Locking::Atomic, 1), way(Locking::Atomic, PREFAULT_PAGES)]
}

/// A job in each of these ways.
fn each(job: Job, ways: &[Way]) -> Vec<(Job, Way)> {
    ways.iter().map(|&way| (job, way)).collect()
}

/// All ways to compare with so many threads.
fn ways(threads: usize) -> Vec<Way> {
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
    json: JsonLines,
    rows: Vec<FaultRow>,
}

impl Bench {
    /// Measures each job in its way, in turns, and shows a row for each. Only rows of one call should
    /// be compared: the machine may have others on it later.
    fn compare(&mut self, jobs: &[(Job, Way)]) -> Result<(), Failure> {
        let mut rounds = vec![Vec::new(); jobs.len()];
        for round in 0..=self.rounds {
            for turn in 0..jobs.len() {
                // Each goes first once in as many rounds as there are jobs.
                let index = (round + turn) % jobs.len();
                let measured = self.measure_once(&jobs[index].0, jobs[index].1)?;
                // The first is for warming up.
                if round > 0 {
                    rounds[index].push(measured);
                }
            }
        }
        let table = FaultRow::table();
        for ((job, way), rounds) in jobs.iter().zip(&rounds) {
            let row = FaultRow::new(*way, job, rounds);
            table.row(&row.cells());
            self.json.write(&row)?;
            self.rows.push(row);
        }
        table.gap();
        Ok(())
    }

    fn measure_once(&self, job: &Job, way: Way) -> Result<Round, Failure> {
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
        job: (usize, usize, Pattern),
        way: Way,
    ) -> impl DoubleEndedIterator<Item = &FaultRow> {
        self.rows.iter().filter(move |row| {
            (row.row.thr, row.row.lines, row.pattern) == job
                && (row.row.backend, row.locking) == (way.backend, way.locking)
                && (row.prefault_pages, row.page_size) == (way.prefault_pages, way.page_size)
        })
    }

    fn row(&self, job: (usize, usize, Pattern), way: Way) -> Option<&FaultRow> {
        self.rows(job, way).next()
    }

    /// What the rows say of each other.
    fn print_ratios(&self) {
        println!("ratios");
        let table = Table::begin(&[("", 62), ("ratio", 7)]);
        let (small, huge) = (kernel_way(Backend::Kernel4k), kernel_way(Backend::KernelThp));
        let atomic = way(Locking::Atomic, 1);
        let (one, alone) = ((1, 1, Pattern::Own), (1, 0, Pattern::Own));
        let cpu = |row: &FaultRow| row.row.flt_cpu_s;
        let wall = |row: &FaultRow| row.row.flt_wall_s;
        let ratio = |text: &str, this: Option<&FaultRow>, that: Option<&FaultRow>, by: Rate| {
            if let (Some(this), Some(that)) = (this, that) {
                table.row(&[text.to_owned(), format!("{:.2}", by(this) / by(that))]);
            }
        };
        let row = |job, way| self.row(job, way);
        ratio(
            "atomic / kernel-4k, 1 thread, per cpu second",
            row(one, atomic),
            row(one, small),
            cpu,
        );
        ratio("atomic / kernel-thp", row(one, atomic), row(one, huge), cpu);
        ratio("atomic, 2 MiB pages / kernel-thp", row(one, huge_way()), row(one, huge), cpu);
        ratio("atomic, path alone / kernel-4k", row(alone, atomic), row(alone, small), cpu);
        ratio("atomic / whole, 1 thread", row(one, atomic), row(one, way(Locking::Whole, 1)), cpu);
        for pages in [PREFAULT_PAGES, PREFAULT_PAGES_MORE] {
            let with = way(Locking::Atomic, pages);
            ratio(
                &format!("prefault {pages} / off, path alone"),
                row(alone, with),
                row(alone, atomic),
                cpu,
            );
            ratio(
                &format!("prefault {pages} / off, with the write"),
                row(one, with),
                row(one, atomic),
                cpu,
            );
        }
        ratio(
            "ready: no fault / atomic, 1 thread",
            row(one, way(Locking::Ready, 1)),
            row(one, atomic),
            cpu,
        );
        let (two, many) = ((2, 1, Pattern::Own), (64, 1, Pattern::Own));
        ratio("atomic, 2 threads / 1, per second", row(two, atomic), row(one, atomic), wall);
        ratio("atomic, 64 threads / 2", row(many, atomic), row(two, atomic), wall);
        let whole = way(Locking::Whole, 1);
        ratio("whole, 64 threads / 2", row(many, whole), row(two, whole), wall);
        ratio("whole, 2 threads / 1", row(two, whole), row(one, whole), wall);
        let blocks = |threads| (threads, 1, Pattern::OneBlock);
        let with = way(Locking::Atomic, PREFAULT_PAGES);
        ratio("one block, 2 threads / 1", row(blocks(2), atomic), row(blocks(1), atomic), wall);
        ratio(
            "one block, 2 threads, prefault / off",
            row(blocks(2), with),
            row(blocks(2), atomic),
            wall,
        );
        let mapper = (1, 1, Pattern::Mapper);
        // Measured in the same rounds.
        let without = |way| self.rows(one, way).next_back();
        ratio("atomic beside a mapper / without", row(mapper, atomic), without(atomic), wall);
        ratio("the same, per cpu second", row(mapper, atomic), without(atomic), cpu);
        ratio("whole beside a mapper / without", row(mapper, whole), without(whole), wall);
    }

    /// The rate against threads, without prefaulting, and with.
    fn series(&self) -> Vec<Series> {
        let lines = [
            ("kernel, 4 KiB pages", kernel_way(Backend::Kernel4k)),
            ("kernel, huge pages", kernel_way(Backend::KernelThp)),
            ("whole: one lock over the fault", way(Locking::Whole, 1)),
            ("short: a lock for each change", way(Locking::Short, 1)),
            ("atomic", way(Locking::Atomic, 1)),
            ("atomic, prefaulting 16 pages", way(Locking::Atomic, PREFAULT_PAGES)),
        ];
        let points = |way: Way| {
            let row = |threads| self.row((threads, 1, Pattern::Own), way);
            let point = |threads: usize| Some((threads as f64, row(threads)?.row.flt_wall_s));
            THREADS.into_iter().filter_map(point).collect()
        };
        let stroke = |way: Way| if way.prefault_pages > 1 { Stroke::Dotted } else { Stroke::Solid };
        lines.map(|(name, way)| Series { name, stroke: stroke(way), points: points(way) }).into()
    }
}

/// Which of a row's rates.
type Rate = fn(&FaultRow) -> f64;
