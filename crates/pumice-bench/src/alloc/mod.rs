//! `pumice bench alloc`: real programs and small loads under pumice and under other allocators.
//!
//! | module | what lives there |
//! |---|---|
//! | [`allocator`] | the providers of memory, and how a program is started under each |
//! | [`loads`] | the loads: what each needs and runs; the scripts are files of that folder |
//! | [`kit`] | the folder of inputs, and the parts of the machine that the loads use |
//! | [`measure`] | one run of one program: time, processor time, memory, faults |
//! | [`row`] | rows: medians, and ratios with their intervals |
//! | [`turns`] | the order of turns |
//!
//! In each round every allocator runs a load once, in an order in which over the rounds each follows
//! every other equally often ([`turns`]), after a round that is not counted. All figures are of
//! whole trees of processes, from start to end, helper threads and `pumice run` included; the
//! memory is the most that one process of the tree had resident. Peers are `glibc` as it is and
//! `glibc-huge`, told by `GLIBC_TUNABLES` to use huge pages: ratios are to whichever is better at
//! the figure in question. `glibc` means that nothing is preloaded: a program that brings an
//! allocator of its own, as Debian's redis-server brings jemalloc, uses that there, and below
//! pumice's threshold.

pub mod allocator;
pub mod kit;
pub mod loads;
pub mod measure;
pub mod row;
mod turns;

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use clap::Args;

use super::harness::{Output, OutputArgs};
use super::interrupts::Interrupts;
use super::registry::field::{float, text};
use super::registry::worth::{ALLOC, RATIOS};
use super::registry::Row;
use allocator::{Allocator, Preload};
use kit::{Kit, Size};
use loads::{Load, LOADS};
use measure::{NoRun, Spent};
use pumice_command::table::Table;
use pumice_command::Failure;
use row::Rounds;

/// Options of `pumice bench alloc`.
#[derive(Args, Debug)]
pub struct AllocArgs {
    /// Rounds; each runs every load once under each allocator [default: 9, or 3 with --quick]
    #[arg(long, value_name = "N", default_value = "9", default_value_if("quick", "true", "3"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only the loads whose name contains this (can be repeated)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only this allocator beside glibc's two settings (can be repeated)
    #[arg(long, value_name = "NAME")]
    allocator: Vec<Allocator>,
    /// Fewer rounds and smaller loads
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the experiment and prints its tables.
pub fn alloc(options: &AllocArgs) -> Result<(), Failure> {
    let loads = wanted_loads(&options.only)?;
    let mut output = Output::create(&options.output, &RATIOS)?;
    let rounds = options.rounds as usize;
    let preloads = installed(&options.allocator)?;
    let interrupts = Interrupts::take();
    let kit = Kit::new(if options.quick { Size::Small } else { Size::Full })?;

    println!("Medians of {rounds} rounds; ratios to the better of glibc's two settings");
    for (index, load) in loads.iter().enumerate() {
        let place = format!("{} ({} of {})", load.name, index + 1, loads.len());
        let progress = Progress { place, rounds };
        progress.show("getting it ready");
        let line = kit.line(load);
        progress.clear();
        println!();
        let line = match line {
            Ok(line) => line,
            Err(why) => {
                println!("{}: skipped, {why}", load.name);
                continue;
            }
        };
        let Some(measured) = measure_load(&kit, &line, &preloads, &interrupts, &progress)? else {
            println!("{}: skipped, see above", load.name);
            continue;
        };
        println!("{}: {}", load.name, load.about);
        output.begin(&ALLOC[0]);
        row::rows(load.name, &measured).into_iter().try_for_each(|row| output.show(row))?;
    }
    print_ratios(&mut output);
    print_means(output.rows());
    output.finish()
}

fn wanted_loads(only: &[String]) -> Result<Vec<&'static Load>, Failure> {
    let wanted = |load: &&Load| only.is_empty() || only.iter().any(|part| load.name.contains(part));
    let loads: Vec<_> = LOADS.iter().filter(wanted).collect();
    if loads.is_empty() {
        let names: Vec<_> = LOADS.iter().map(|load| load.name).collect();
        let (only, names) = (only.join(", ").escape_debug().to_string(), names.join(", "));
        return Err(Failure::usage(format!("no load is called '{only}'; there are {names}")));
    }
    Ok(loads)
}

/// How to run programs under glibc's two settings and those wanted of the others; says which are
/// not installed.
fn installed(wanted: &[Allocator]) -> Result<Vec<Preload>, Failure> {
    let mut preloads = Vec::new();
    for allocator in Allocator::ALL {
        if !(allocator.is_glibc() || wanted.is_empty() || wanted.contains(&allocator)) {
            continue;
        }
        match allocator.find()? {
            Ok(preload) => preloads.push(preload),
            Err(package) => {
                println!("{} is not installed: apt-get install {package}", allocator.name());
            }
        }
    }
    Ok(preloads)
}

/// The rounds under each allocator that runs the load. `None` if glibc is not among them.
pub fn measure_load(
    kit: &Kit,
    line: &[OsString],
    preloads: &[Preload],
    interrupts: &Interrupts,
    progress: &Progress,
) -> Result<Option<Vec<Rounds>>, Failure> {
    let mut measured: Vec<(&Preload, Vec<Spent>)> =
        preloads.iter().map(|preload| (preload, Vec::new())).collect();
    // The first round warms the caches, writes the shim, and measures the clearing plan.
    for round in 0..=progress.rounds {
        for turn in turns::order(preloads.len(), round) {
            let next = preloads[turn].allocator;
            let Some(index) = measured.iter().position(|(of, _)| of.allocator == next) else {
                continue;
            };
            progress.show(&format!("round {round} of {}, {}", progress.rounds, next.name()));
            match measure::run(measured[index].0, line, kit.folder(), interrupts) {
                Ok(spent) if round > 0 => measured[index].1.push(spent),
                Ok(_) => {}
                Err(NoRun::Interrupted) => {
                    progress.clear();
                    return Err(Failure { message: "interrupted".to_owned(), status: 130 });
                }
                Err(NoRun::Failed(why)) => {
                    progress.clear();
                    println!("fails under {}: {why}", next.name());
                    measured.remove(index);
                    if next == Allocator::Glibc {
                        return Ok(None);
                    }
                }
            }
        }
    }
    progress.clear();
    let rounds = measured.into_iter().map(|(preload, spent)| (preload.allocator, spent));
    Ok(Some(rounds.map(|(allocator, spent)| Rounds { allocator, spent }).collect()))
}

/// pumice beside the better of glibc's settings, load by load.
fn print_ratios(output: &mut Output) {
    let is_ours = |row: &&Row| text(row, "allocator") == Allocator::Pumice.name();
    if !output.rows().iter().any(|row| is_ours(&row)) {
        return;
    }
    println!(
        "\npumice against the better of glibc's two settings [95 % interval], below 1 it wins"
    );
    output.begin(&ALLOC[1]);
    output.rows().iter().filter(is_ours).for_each(|row| output.print(row));
}

/// Each allocator's time relative to glibc as it is, over the loads that it ran.
fn print_means(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    println!("\ntime relative to glibc, geometric mean over the loads");
    let table = Table::begin(&[("allocator", 10), ("time", 6), ("loads", 5)]);
    for allocator in Allocator::ALL {
        let of = |wanted: Allocator| {
            rows.iter().filter(move |row| text(row, "allocator") == wanted.name())
        };
        let to_glibc = |row: &Row| {
            let mut glibc = of(Allocator::Glibc);
            let glibc = glibc.find(|other| text(other, "load") == text(row, "load"))?;
            Some(float(row, "wall_s") / float(glibc, "wall_s"))
        };
        let relative: Vec<f64> = of(allocator).filter_map(to_glibc).collect();
        if !relative.is_empty() {
            let mean = format!("{:.3}", row::geometric_mean(&relative));
            table.row(&[allocator.name().to_owned(), mean, relative.len().to_string()]);
        }
    }
}

/// Where the experiment is, in one line on a terminal that is rewritten as it goes on.
pub struct Progress {
    /// Which load.
    pub place: String,
    /// Of how many rounds.
    pub rounds: usize,
}

impl Progress {
    fn show(&self, what: &str) {
        if io::stderr().is_terminal() {
            eprint!("\r{}: {what}\x1b[K", self.place);
        }
    }

    fn clear(&self) {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}
