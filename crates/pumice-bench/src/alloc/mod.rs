//! `pumice bench alloc`: real programs and small loads under pumice and under other allocators.
//!
//! | module | contents |
//! |---|---|
//! | [`allocator`] | the providers of memory, and how a program is started under each |
//! | [`loads`] | the loads: what each needs and runs; the scripts are files of that folder |
//! | [`kit`] | the folder of inputs, and the parts of the machine that the loads use |
//! | [`measure`] | one run of one program: time, processor time, memory, faults |
//! | [`row`] | rows: medians, and ratios with their intervals |
//! | [`rounds`] | the rounds of a load |
//! | [`turns`] | the order of turns |
//! | [`cold`] | rounds in which the host had to bring memory, which are repeated |
//!
//! In each round every allocator runs a load once, in an order in which over the rounds each follows
//! every other equally often ([`turns`]), after a round that is not counted. A round in which the
//! host had to bring memory is repeated ([`cold`]). All figures are of
//! whole trees of processes, from start to end, helper threads and `pumice run` included; the
//! memory is the most that one process of the tree had resident. Peers are `glibc` as it is and
//! `glibc-huge`, told by `GLIBC_TUNABLES` to use huge pages: ratios are to whichever is better at
//! the figure in question. `glibc` means that nothing is preloaded: a program that brings an
//! allocator of its own, as Debian's redis-server brings jemalloc, uses that there, and below
//! pumice's threshold.

pub mod allocator;
mod cold;
pub mod kit;
pub mod loads;
pub mod measure;
pub mod rounds;
pub mod row;
mod turns;

use std::time::Instant;

use clap::Args;

use super::harness::{Output, OutputArgs};
use super::registry::field::{float, number, text};
use super::registry::worth::{ALLOC, RATIOS};
use super::registry::Row;
use allocator::{Allocator, Preload};
use kit::{Kit, Size};
use loads::{Load, LOADS};
use pumice_command::table::Table;
use pumice_command::Failure;
use rounds::Bench;
use row::Measured;

/// Options of `pumice bench alloc`.
#[derive(Args, Debug)]
pub struct AllocArgs {
    /// Rounds; each runs every load once under each allocator [default: 9, or 3 with --quick]. As many as there are
    /// allocators, or a multiple, have each follow each other equally often; others nearly so
    #[arg(long, value_name = "N", default_value = "9", default_value_if("quick", "true", "3"),
          hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only the loads whose name contains this (can be repeated). 'op-' are operations of NumPy, 'map-' programs that
    /// map memory for themselves, 'large-sort' sorts 1 GB: they run only when they are named
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only this allocator beside glibc's two settings (can be repeated). 'pumice-mmap', which is pumice run --mmap,
    /// runs only when it is named
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
    let kit = Kit::new(if options.quick { Size::Small } else { Size::Full })?;
    let mut bench = Bench::new(kit, preloads, rounds);

    println!("Medians of {rounds} rounds; ratios to the better of glibc's two settings");
    let started = Instant::now();
    let (mut measured_loads, mut round_s) = (0, 0.0);
    for (index, load) in loads.iter().enumerate() {
        bench.look()?;
        let progress = bench.progress(format!("{} ({} of {})", load.name, index + 1, loads.len()));
        progress.show("getting it ready");
        let ready = bench.kit.ready(load);
        progress.clear();
        println!();
        let ready = match ready {
            Ok(ready) => ready,
            Err(why) => {
                bench.look()?;
                println!("{}: skipped, {why}", load.name);
                continue;
            }
        };
        let Some(measured) = bench.measure(&ready, &progress)? else {
            println!("{}: skipped, see above", load.name);
            continue;
        };
        println!("{}: {}{}", load.name, load.about, weather(&measured));
        output.begin(&ALLOC[0]);
        row::rows(load.name, &measured).into_iter().try_for_each(|row| output.show(row))?;
        measured_loads += 1;
        round_s += measured.round_s;
    }
    print_ratios(&mut output);
    print_mappings(&mut output);
    print_means(output.rows());
    let took_s = started.elapsed().as_secs_f64();
    println!("\nloads measured: {measured_loads}, in {took_s:.0} s; one round of all takes {round_s:.0} s");
    output.finish()
}

/// Words about the repeated and the cold rounds of a load.
fn weather(measured: &Measured) -> String {
    let mut words = Vec::new();
    if measured.repeated > 0 {
        words.push(format!(
            "{} rounds repeated, since the host had to bring memory",
            measured.repeated
        ));
    }
    if measured.cold > 0 {
        words.push(format!("{} counted although it had to each time", measured.cold));
    }
    match &*words {
        [] => String::new(),
        words => format!(" ({})", words.join("; ")),
    }
}

fn wanted_loads(only: &[String]) -> Result<Vec<&'static Load>, Failure> {
    let wanted = |load: &&Load| only.iter().any(|part| load.name.contains(part));
    let loads: Vec<_> = match only {
        [] => LOADS.iter().collect(),
        _ => loads::all().filter(wanted).collect(),
    };
    if loads.is_empty() {
        let names: Vec<_> = loads::all().map(|load| load.name).collect();
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
        let is_wanted = match wanted {
            [] => allocator.is_usual(),
            _ => allocator.is_glibc() || wanted.contains(&allocator),
        };
        if !is_wanted {
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

fn is_of(row: &Row, allocator: Allocator) -> bool {
    text(row, "allocator") == allocator.name()
}

/// pumice beside the better of glibc's settings and the best of all, load by load.
fn print_ratios(output: &mut Output) {
    let is_ours = |row: &&Row| is_of(row, Allocator::Pumice);
    if !output.rows().iter().any(|row| is_ours(&row)) {
        return;
    }
    println!(
        "\npumice against the better of glibc's two settings [95 % interval], below 1 it wins"
    );
    output.begin(&ALLOC[1]);
    output.rows().iter().filter(is_ours).for_each(|row| output.print(row));
}

/// pumice with mappings beside pumice without, load by load.
fn print_mappings(output: &mut Output) {
    let is_compared = |row: &&Row| number(row, row::MMAP_TIME[0]).is_some();
    if output.rows().iter().any(|row| is_compared(&row)) {
        println!("\npumice-mmap against pumice, within rounds [95 % interval], below 1 it wins");
        output.begin(&ALLOC[2]);
        output.rows().iter().filter(is_compared).for_each(|row| output.print(row));
    }
}

/// Each allocator's time relative to glibc as it is, over the loads that it ran.
fn print_means(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    println!("\ntime relative to glibc, geometric mean over the loads");
    let table = Table::begin(&[("allocator", 11), ("time", 6), ("loads", 5)]);
    for allocator in Allocator::ALL {
        let to_glibc = |row: &Row| {
            let of_load = |other: &&Row| text(other, "load") == text(row, "load");
            let mut glibc = rows.iter().filter(|row| is_of(row, Allocator::Glibc));
            Some(float(row, "wall_s") / float(glibc.find(of_load)?, "wall_s"))
        };
        let of = rows.iter().filter(|row| is_of(row, allocator));
        let relative: Vec<f64> = of.filter_map(to_glibc).collect();
        if !relative.is_empty() {
            let mean = format!("{:.3}", row::geometric_mean(&relative));
            table.row(&[allocator.name().to_owned(), mean, relative.len().to_string()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<&'static str> {
        let only: Vec<_> = only.iter().map(|part| part.to_string()).collect();
        wanted_loads(&only).expect("there are some").iter().map(|load| load.name).collect()
    }

    #[test]
    fn long_loads_and_mappings_run_when_they_are_named() {
        assert_eq!(names(&[]).len(), LOADS.len());
        assert!(!names(&[]).iter().any(|name| name.starts_with("map-") || name.starts_with("op-")));
        assert_eq!(names(&["sort"]), ["sort", "large-sort"]);
        assert_eq!(names(&["op-"]).len(), 5);
        assert!(names(&["map-"]).iter().all(|name| name.starts_with("map-")));
        let usual = Allocator::ALL.iter().filter(|it| it.is_usual() && it.is_pumice());
        assert_eq!(usual.collect::<Vec<_>>(), [&Allocator::Pumice]);
    }

    #[test]
    fn repeated_rounds_are_said() {
        let measured = |repeated, cold| Measured {
            all: Vec::new(),
            repeated,
            cold,
            probes_ns: Vec::new(),
            round_s: 1.0,
        };
        assert_eq!(weather(&measured(0, 0)), "");
        let words = weather(&measured(2, 1));
        assert!(words.contains("2 rounds repeated") && words.contains("1 counted"), "{words}");
    }
}
