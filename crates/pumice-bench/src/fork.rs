//! `pumice bench fork`: a server that takes snapshots by `fork`, and knows nothing of pumice.
//!
//! The same small C program keeps a large heap, forks, reads all of it in the child and writes a part of
//! it anew in the parent. It runs by turns plain, plain with huge pages for `malloc` (glibc's tunable), and
//! under `pumice run`. Ratios are within a round: above 1, the server takes longer, or more memory, under
//! pumice.

use super::harness::Output;
use super::pft::backend::Backend;
use super::registry::processes::FORK;
use super::registry::Row;
use super::three_ways::{self, Measured, Program, WaysArgs};
use pumice_command::small::{ENV_TUNABLES, HUGE_HEAP};
use pumice_command::Failure;

const SOURCE: &str = include_str!("fork/snapshot.c");
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The program's work.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    bytes: u64,
    least: u64,
    most: u64,
    /// Bytes written anew during each snapshot.
    written: u64,
    times: u64,
}

const LOADS: [Load; 4] = [
    load("1 KiB to 1 MiB", KIB, MIB, 256 * MIB),
    load("1 to 64 KiB", KIB, 64 * KIB, 256 * MIB),
    load("64 KiB to 1 MiB", 64 * KIB, MIB, 256 * MIB),
    load("the same, few writes", 64 * KIB, MIB, 32 * MIB),
];

const fn load(name: &'static str, least: u64, most: u64, written: u64) -> Load {
    Load { name, bytes: 1024 * MIB, least, most, written, times: 3 }
}

/// The figures that the program prints; a row has their medians.
const FIELDS: [&str; 5] = [
    // From the fork until the child has read all and the parent written its part.
    "snapshot_ms",
    // The fork alone.
    "fork_ms",
    // The parent's writing alone.
    "writing_ms",
    // The whole program.
    "all_ms",
    // The most that both processes had together.
    "peak_kib",
];
const SAMPLED: [&str; 3] = ["snapshot_ms", "all_ms", "peak_kib"];

/// Runs the experiment and prints its table.
pub fn fork(options: &WaysArgs<7>) -> Result<(), Failure> {
    let program = Program::compile("fork", SOURCE)?;
    let mut output = Output::create(&options.output, &FORK.plots[0])?;
    output.begin(&FORK.tables[0]);
    for load in LOADS {
        let run = |way| run(&program, load, way, options.quick);
        three_ways::compare(load.name, options.rounds, FIELDS, &SAMPLED, run, ratios, &mut output)?;
    }
    output.finish()
}

fn run(program: &Program, load: Load, way: Backend, quick: bool) -> Result<[f64; 5], Failure> {
    // Of the memory.
    let share = if quick { 16 } else { 1 };
    let mut command = program.command(way, &[]);
    let numbers = [load.bytes / share, load.least, load.most, load.written / share, load.times];
    command.args(numbers.map(|number| number.to_string()));
    if way == Backend::KernelThp {
        command.env(ENV_TUNABLES, HUGE_HEAP);
    }
    three_ways::printed(command)
}

fn ratios(mut row: Row, way: Backend, measured: &Measured<'_, 5>) -> Row {
    for (name, field) in [("snapshot", "snapshot_ms"), ("all", "all_ms"), ("peak", "peak_kib")] {
        for (peer_name, peer) in [("4k", Backend::Kernel4k), ("thp", Backend::KernelThp)] {
            row = row.set(&format!("{name}_to_{peer_name}"), measured.ratio(way, peer, field));
        }
    }
    row
}
