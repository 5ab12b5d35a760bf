//! `pumice bench map`: a program that maps, touches and unmaps, and knows nothing of pumice.
//!
//! The same small C program runs by turns plain, plain and advising huge pages, and under
//! `pumice run --mmap`, where it advises nothing. It times itself; ratios are within a round. Memory that
//! `--ready` has ready is measured by its first touch; the last columns have the cost of making it ready, too.

use pumice_frames::addr::FRAME_SIZE;

use super::harness::Output;
use super::pft::backend::Backend;
use super::registry::processes::MAP;
use super::registry::Row;
use super::three_ways::{self, Measured, Program, WaysArgs};
use pumice_command::Failure;

const SOURCE: &str = include_str!("map/loop.c");
const MIB: u64 = 1 << 20;

/// The program's work.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    bytes: u64,
    /// 0: all of them.
    pages: u64,
    times: u64,
    threads: u64,
    /// Whether `pumice run` is told to have the memory ready, and all are given time for it.
    ready: bool,
}

const LOOP: Load =
    Load { name: "loop", bytes: 128 * MIB, pages: 0, times: 40, threads: 1, ready: false };

const LOADS: [Load; 4] = [
    LOOP,
    Load { name: "loop, two threads", threads: 2, ..LOOP },
    Load { name: "loop, one page", pages: 1, times: 4000, ..LOOP },
    Load { name: "first touch, --ready", bytes: 512 * MIB, times: 1, ready: true, ..LOOP },
];

/// The figures that the program prints for a touched page; a row has their medians.
const FIELDS: [&str; 4] = [
    // Nanoseconds.
    "wall_ns",
    // Of processor time, helper threads' included.
    "cpu_ns",
    // The same since the process began: with what it cost to populate.
    "all_cpu_ns",
    // The most that was resident.
    "peak_kib",
];

/// Runs the experiment and prints its table.
pub fn map(options: &WaysArgs<9>) -> Result<(), Failure> {
    let program = Program::compile("map", SOURCE)?;
    let mut output = Output::create(&options.output, &MAP.plots[0])?;
    output.begin(&MAP.tables[0]);
    for load in LOADS {
        let run = |way| run(&program, load, way, options.quick);
        // A first touch is one thread's: there processor time is what is compared.
        let time = if load.ready { "cpu_ns" } else { "wall_ns" };
        let ratios = |row: Row, way, measured: &Measured<'_, 4>| {
            row.set("times_faster_than_4k", measured.ratio(Backend::Kernel4k, way, time))
                .set("times_faster_than_thp", measured.ratio(Backend::KernelThp, way, time))
        };
        let sampled = ["wall_ns", "cpu_ns"];
        three_ways::compare(load.name, options.rounds, FIELDS, &sampled, run, ratios, &mut output)?;
    }
    output.finish()
}

fn run(program: &Program, load: Load, way: Backend, quick: bool) -> Result<[f64; 4], Failure> {
    let (bytes, times) = match quick {
        true => (load.bytes / 8, (load.times / 100).max(1)),
        false => (load.bytes, load.times),
    };
    let pages = if load.pages == 0 { bytes / FRAME_SIZE as u64 } else { load.pages };
    let options = ["--mmap".to_owned(), "--ready".to_owned(), bytes.to_string()];
    let mut command = program.command(way, if load.ready { &options } else { &options[..1] });
    let wait_ms = if load.ready { WAIT_MS } else { 0 };
    let huge = u64::from(way == Backend::KernelThp);
    let numbers = [bytes, pages, times, load.threads, huge, wait_ms];
    command.args(numbers.map(|number| number.to_string()));
    three_ways::printed(command)
}

/// The time to populate: more than it takes.
const WAIT_MS: u64 = 1500;
