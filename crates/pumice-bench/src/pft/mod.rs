//! `pumice bench pft`: page faults a second, as Lameter's `pft` counted them for prezeroing.
//!
//! Four experiments, each against the kernel with 4 KiB pages and with huge pages:
//!
//! - *burst*: the pool is full; threads allocate, and write to 1, 2, 4 … 64 lines of every page;
//! - *row*: the same ten times in a row, giving back included: the pool runs out;
//! - *sparse*: 128 MiB are allocated, of which 1, 8 or 64 pages are touched, and given back.
//!
//! The backends take turns, so that other load on the machine affects all of them. Each figure is
//! the median of the rounds, after one to warm up. The helper thread's processor time counts as ours: *System* has its
//! time while the clock ran. The column *w/ filling* also has its time before, to have the pool full. *Pays after* says
//! how many such allocations repay the first populating of the pool, against huge pages; each of them includes
//! its refill.

pub(super) mod backend;
pub(super) mod measure;
pub(super) mod row;

use clap::Args;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::cpu;

use super::arguments::size_in;
use super::harness::{in_turns, Output, OutputArgs, WarmUp};
use super::registry::field::{float, number, text};
use super::registry::prezeroing::PFT;
use super::registry::Row;
use backend::{resident_kb, Backend, Pool, Source};
use measure::{Job, Timed, LINES};
use pumice_command::table::Table;
use pumice_command::Failure;
use row::Round;

/// Repetitions of the experiment in which the pool runs out.
const ROW_REPETITIONS: usize = 10;
/// Bytes allocated where few are touched, and how often in one measurement.
const SPARSE_BYTES: usize = 128 << 20;
const SPARSE_REPETITIONS: usize = 50;
const SPARSE_PAGES: [usize; 3] = [1, 8, 64];

/// A kernel's backend is warm when a measurement takes more than this share of the best before
/// it, or after so many.
const SETTLED: f64 = 0.9;
const WARM_UP_ROUNDS: usize = 8;

/// Options that `bench pft` and `bench fault` share.
#[derive(Args, Debug)]
pub struct RoundsArgs {
    /// Measurements of each row [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Fewer rounds and fewer rows
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of `pumice bench pft`.
#[derive(Args, Debug)]
pub struct PftArgs {
    /// Bytes that all threads allocate together
    #[arg(long, value_name = "SIZE", default_value = "256M",
          value_parser = size_in(1 << 20..=1 << 40, "a size from 1M to 1T, such as 256M"))]
    size: usize,
    #[command(flatten)]
    rounds: RoundsArgs,
}

/// Runs all experiments.
pub fn pft(options: &PftArgs) -> Result<(), Failure> {
    let mut bench = Bench {
        rounds: options.rounds.rounds as usize,
        output: Output::create(&options.rounds.output, &PFT.plots[0])?,
    };
    // First, while no pool of another experiment is in what the process has resident.
    eprintln!("pft: sparse …");
    bench.sparse()?;
    let lines: &[usize] =
        if options.rounds.quick { &[1, 8, 64] } else { &[1, 2, 4, 8, 16, 32, 64] };
    eprintln!("pft: burst …");
    let pool = Pool::new(options.size, 2 * options.size)?;
    bench.begin("burst, the pool full");
    for threads in thread_counts() {
        for &lines in lines {
            bench.compare(&pool, &taking(options.size, threads, lines), "burst")?;
        }
    }
    let was_not_full =
        |row: &Row| text(row, "experiment") == "burst" && float(row, "hot_cleared_mb") > 0.0;
    if bench.output.rows().iter().any(was_not_full) {
        println!("The pool was not always full: scrubd left the machine to others.");
    }
    bench.begin("ten in a row, the pool runs out");
    for threads in thread_counts() {
        for lines in [1, LINES] {
            bench.compare(&pool, &in_a_row(options.size, threads, lines), "row")?;
        }
    }
    bench.print_sparse();
    bench.print_ratios();
    bench.output.finish()
}

/// 1, 2, 4 … and the number of processors.
fn thread_counts() -> Vec<usize> {
    let most = cpu::count();
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < most).collect();
    counts.push(most);
    counts
}

fn taking(size: usize, threads: usize, lines: usize) -> Job {
    let pages = size / threads / FRAME_SIZE;
    let bytes = pages * FRAME_SIZE;
    Job { threads, bytes, repetitions: 1, pages, lines, timed: Timed::Taking }
}

fn in_a_row(size: usize, threads: usize, lines: usize) -> Job {
    let timed = Timed::Cycle;
    Job { repetitions: ROW_REPETITIONS, timed, ..taking(size, threads, lines) }
}

fn touching(pages: usize) -> Job {
    let (bytes, repetitions) = (SPARSE_BYTES, SPARSE_REPETITIONS);
    Job { threads: 1, bytes, repetitions, pages, lines: 1, timed: Timed::Cycle }
}

/// The rows so far, and where they go.
struct Bench {
    rounds: usize,
    output: Output,
}

impl Bench {
    fn begin(&mut self, title: &str) {
        println!("\n{title} (medians of {} rounds)", self.rounds);
        self.output.begin(&PFT.tables[0]);
    }

    /// Measures a job on each backend, in turns, and shows a row for each.
    fn compare(&mut self, pool: &Pool, job: &Job, experiment: &str) -> Result<(), Failure> {
        for row in self.measure(pool, job, experiment)? {
            self.output.show(row)?;
        }
        self.output.gap();
        Ok(())
    }

    fn measure(&self, pool: &Pool, job: &Job, experiment: &str) -> Result<Vec<Row>, Failure> {
        warm_up(pool, job)?;
        let mut helper_s = pool.helper_s();
        let rounds = in_turns(Backend::ALL.len(), self.rounds, WarmUp::Round, |index, _| {
            measure_once(pool, job, Backend::ALL[index], &mut helper_s)
        })?;
        let backends = Backend::ALL.iter().zip(&rounds);
        let mut rows: Vec<Row> =
            backends.map(|(&backend, rounds)| row::row(experiment, backend, job, rounds)).collect();
        let huge_cpu_s = row::cpu_s(&rows[Backend::KernelThp as usize]);
        let invested_s = pool.populating_s(job.threads * job.bytes);
        let ours = &mut rows[Backend::Pumice as usize];
        *ours = row::with_repayment(std::mem::take(ours), huge_cpu_s, invested_s);
        Ok(rows)
    }

    /// Few pages of a large allocation, from a heap that has nothing ready and knows nothing.
    fn sparse(&mut self) -> Result<(), Failure> {
        for pages in SPARSE_PAGES {
            let job = touching(pages);
            let look = |source| job.hold(source, resident_kb);
            let pool = Pool::new(0, 2 * SPARSE_BYTES)?;
            // The resident memory of the process with one such allocation: the kernel's before the
            // heap was first used, the heap's once it has settled.
            let kernel_4k_kb = look(Source::of(Backend::Kernel4k, &pool))?;
            let kernel_thp_kb = look(Source::of(Backend::KernelThp, &pool))?;
            let rows = self.measure(&pool, &job, "sparse")?;
            let resident = [kernel_4k_kb, kernel_thp_kb, look(Source::Pool(&pool))?];
            for (row, rss_kb) in rows.into_iter().zip(resident) {
                self.output.keep(match rss_kb {
                    Some(rss_kb) => row.set("rss_kb", rss_kb),
                    None => row,
                })?;
            }
        }
        Ok(())
    }

    fn print_sparse(&mut self) {
        println!("sparse, pages touched of 128 MiB (medians of {} rounds)", self.rounds);
        self.output.begin(&PFT.tables[2]);
        let is_sparse = |row: &&Row| text(row, "experiment") == "sparse";
        self.output.rows().iter().filter(is_sparse).for_each(|row| self.output.print(row));
    }

    /// Print the ratios of pumice to each setting of the kernel: above 1 it wins.
    fn print_ratios(&self) {
        println!("\npumice against the kernel, per processor second (in brackets: with filling)");
        let columns = [("Experiment", 10), ("Thr", 3), ("CLine", 5), ("Pages", 6)];
        let peers = [("kernel-4k", 17), ("kernel-thp", 17)];
        let table = Table::begin(&[&columns[..], &peers[..]].concat());
        for group in self.output.rows().chunks_exact(Backend::ALL.len()) {
            let [small, huge, ours] = group else { continue };
            let ratio = |peer: &Row| {
                let ratio = |field: &str| float(ours, field) / float(peer, "flt_cpu_s");
                format!("{:.2} ({:.2})", ratio("flt_cpu_s"), ratio("flt_cpu_s_with_filling"))
            };
            table.row(&[
                text(ours, "experiment"),
                text(ours, "thr"),
                text(ours, "lines"),
                number(ours, "touched_pages").map_or("all".to_owned(), |pages| pages.to_string()),
                ratio(small),
                ratio(huge),
            ]);
        }
    }
}

/// Lets the kernel's backends settle: memory that a virtual machine has not touched for a while
/// costs several times more, which must not flatter us.
fn warm_up(pool: &Pool, job: &Job) -> Result<(), Failure> {
    let once = Job { repetitions: 1, ..*job };
    for backend in [Backend::Kernel4k, Backend::KernelThp] {
        let mut best_s = f64::INFINITY;
        for _ in 0..WARM_UP_ROUNDS {
            let cpu_s = measure::run(&once, Source::of(backend, pool))?.cpu.total_s();
            let settled = cpu_s > best_s * SETTLED;
            best_s = best_s.min(cpu_s);
            if settled {
                break;
            }
        }
    }
    Ok(())
}

/// `helper_s` is the helper thread's time when it was last looked at.
fn measure_once(
    pool: &Pool,
    job: &Job,
    backend: Backend,
    helper_s: &mut f64,
) -> Result<Round, Failure> {
    if backend != Backend::Pumice {
        let spent = measure::run(job, Source::of(backend, pool))?;
        return Ok(Round { spent, filling_s: 0.0, hot_cleared_mb: 0.0 });
    }
    pool.wait_until_full();
    let before_s = pool.helper_s();
    let filling_s = before_s - *helper_s;
    let cleared_before = pool.hot_cleared_bytes();
    let mut spent = measure::run(job, Source::Pool(pool))?;
    let hot_cleared_mb = (pool.hot_cleared_bytes() - cleared_before) as f64 / 1e6;
    *helper_s = pool.helper_s();
    spent.cpu.system_s += *helper_s - before_s;
    Ok(Round { spent, filling_s, hot_cleared_mb })
}
