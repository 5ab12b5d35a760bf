//! `pumice bench vm`: how long a virtual machine takes to be there, with a slot and without.
//!
//! | module | contents |
//! |---|---|
//! | [`qmp`] | QEMU's monitor, which tells when the machine is there |
//!
//! From the start of the program (of `pumice lease` where there is a slot) to the answer of
//! `query-status`. All ways take turns, in each round and for each size. A slot's daemon runs only
//! for its turn, and has populated before the clock starts. A column shows the time that took.

mod qmp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use pumice_slots::{Client, PageKind};
use serde_json::json;

use super::arguments::size_in_steps;
use super::harness::{figures, in_turns, middle, Output, OutputArgs, WarmUp};
use super::registry::machines::VM;
use super::registry::Row;
use super::sizes;
use super::slot_daemon::{own_program, HugetlbPool, SlotDaemon};
use super::team::folder::Folder;
use pumice_command::statistics::median;
use pumice_command::Failure;

const SIZES: &str = "a machine's size is such as 512M or 4G: 16M at least, in steps of 2M";

/// Options of `pumice bench vm`.
#[derive(Args, Debug)]
pub struct VmArgs {
    /// Memory of the machines (can be repeated, or separated by commas); 1, 2, 4 and 8 GiB, as far as they
    /// fit, if not given
    #[arg(long, value_name = "SIZE", value_delimiter = ',',
          value_parser = size_in_steps(16 << 20, SIZES))]
    sizes: Vec<u64>,
    /// Rounds; each starts every machine once in every way
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these kinds of memory, and no `prealloc` at all, which all are compared with
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    memory: Vec<Memory>,
    /// The program that runs the machines
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// Where a machine's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Memory {
    /// No `prealloc`: the machine faults as it goes.
    Floor,
    /// `memory-backend-memfd`, small pages.
    #[value(name = "prealloc-4k")]
    Memfd,
    /// `memory-backend-ram`, huge pages.
    #[value(name = "prealloc-thp")]
    Ram,
    /// `memory-backend-memfd,hugetlb=on`
    #[value(name = "prealloc-hugetlb-2m")]
    Hugetlb,
    /// A slot, and `prealloc` all the same.
    #[value(name = "slot-4k")]
    SlotSmall,
    #[value(name = "slot-thp")]
    SlotThp,
    #[value(name = "slot-hugetlb-2m")]
    SlotHugetlb,
}

/// A way to start a machine: the memory, and how many threads preallocate.
const WAYS: [(Memory, u32); 12] = [
    (Memory::Floor, 0),
    (Memory::Memfd, 1),
    (Memory::Memfd, 4),
    (Memory::SlotSmall, 1),
    (Memory::SlotSmall, 4),
    (Memory::Ram, 1),
    (Memory::Ram, 4),
    (Memory::SlotThp, 1),
    (Memory::SlotThp, 4),
    (Memory::Hugetlb, 1),
    (Memory::Hugetlb, 4),
    (Memory::SlotHugetlb, 1),
];

impl Memory {
    /// As `--memory` and JSON have it.
    fn json_name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn slot(self) -> Option<PageKind> {
        match self {
            Memory::SlotSmall => Some(PageKind::Small),
            Memory::SlotThp => Some(PageKind::Thp),
            Memory::SlotHugetlb => Some(PageKind::Hugetlb2M),
            _ => None,
        }
    }

    fn is_hugetlb(self) -> bool {
        matches!(self, Memory::Hugetlb | Memory::SlotHugetlb)
    }

    /// QEMU's object of the name `m`.
    fn object(self, bytes: u64, threads: u32) -> String {
        let kind = match self {
            Memory::Ram => "memory-backend-ram,id=m",
            Memory::Hugetlb => "memory-backend-memfd,id=m,share=on,hugetlb=on,hugetlbsize=2M",
            _ => "memory-backend-memfd,id=m,share=on",
        };
        let prealloc = match threads {
            0 => String::new(),
            threads => format!(",prealloc=on,prealloc-threads={threads}"),
        };
        format!("{kind},size={bytes}{prealloc}")
    }
}

/// Runs the experiment and prints its table.
pub fn vm(options: &VmArgs) -> Result<(), Failure> {
    let there = Command::new(&options.qemu).arg("--version").stdout(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        return Err(Failure::usage(format!(
            "no {}; try 'apt install qemu-system-x86', or name a program with --qemu",
            options.qemu.display()
        )));
    }
    let sizes = sizes::that_fit(&options.sizes)?;
    let mut output = Output::create(&options.output, &VM.plots[0])?;
    let folder = Folder::make(None, "vm")?;
    sizes.iter().try_for_each(|&bytes| measure(options, bytes, folder.path(), &mut output))?;
    output.finish()
}

fn measure(
    options: &VmArgs,
    bytes: u64,
    folder: &Path,
    output: &mut Output,
) -> Result<(), Failure> {
    let accelerator = if usable_kvm() { "kvm" } else { "tcg" };
    println!("{} MiB, {accelerator}, {} rounds", bytes >> 20, options.rounds);
    output.begin(&VM.tables[0]);
    let is_wanted = |memory| memory == Memory::Floor || options.memory.contains(&memory);
    let ways: Vec<_> = match options.memory.is_empty() {
        true => WAYS.to_vec(),
        false => WAYS.into_iter().filter(|&(memory, _)| is_wanted(memory)).collect(),
    };
    // A way finds memory as warm or as split as the one before left it. So another begins each time.
    let starts = in_turns(ways.len(), options.rounds as usize, WarmUp::Round, |index, _| {
        let (memory, threads) = ways[index];
        let _pool = match memory.is_hugetlb().then(|| HugetlbPool::with_free(bytes)) {
            Some(None) => return Ok(None),
            pool => pool.flatten(),
        };
        start(options, bytes, memory, threads, accelerator, folder).map(Some)
    })?;
    let mut floor_s = f64::NAN;
    for (&(memory, threads), rounds) in ways.iter().zip(&starts) {
        let Some(rounds) = rounds.iter().copied().collect::<Option<Vec<Started>>>() else {
            output.line([&memory.json_name(), "", &threads.to_string(), "skipped: no pages"]);
            continue;
        };
        let values = figures(&rounds, |started| started.start_s);
        if memory == Memory::Floor {
            floor_s = median(&values);
        }
        let slots: Vec<_> = rounds.iter().filter_map(|started| started.slot).collect();
        let row = Row::of(json!({
            "bytes": bytes,
            "memory": memory.json_name(),
            "prealloc_threads": threads,
            "start_low_s": values.iter().copied().fold(f64::INFINITY, f64::min),
            "start_high_s": values.iter().copied().fold(0.0, f64::max),
            "times_floor": median(&values) / floor_s,
            "populate_s": (!slots.is_empty()).then(|| middle(&slots, |slot| slot.0)),
            // The least of all rounds.
            "huge_share": slots.iter().map(|slot| slot.1).reduce(f64::min),
            "accelerator": accelerator,
        }));
        output.show(row.sampled("start_s", values))?;
    }
    output.gap();
    Ok(())
}

/// A machine that was there.
#[derive(Clone, Copy)]
struct Started {
    start_s: f64,
    /// Seconds until its slot was ready, and the share of it in huge pages.
    slot: Option<(f64, f64)>,
}

/// Starts one machine.
fn start(
    options: &VmArgs,
    bytes: u64,
    memory: Memory,
    threads: u32,
    accelerator: &str,
    folder: &Path,
) -> Result<Started, Failure> {
    let machine = |command: &mut Command, object: &str, id: &str| {
        command.args(["-nodefaults", "-display", "none", "-accel", accelerator, "-m"]);
        command.arg(format!("{}B", bytes)).arg("-object").arg(object);
        command.arg("-machine").arg(format!("q35,memory-backend={id}"));
    };
    let Some(pages) = memory.slot() else {
        let mut command = Command::new(&options.qemu);
        machine(&mut command, &memory.object(bytes, threads), "m");
        return Ok(Started { start_s: qmp::time_to_status(command, folder)?, slot: None });
    };
    let (daemon, row, populate_s) = SlotDaemon::ready(bytes, pages)?;
    let huge_bytes = if pages.is_hugetlb() { bytes } else { row.huge_bytes };
    let own = own_program()?;
    let mut command = Command::new(own);
    command.args(["lease", &bytes.to_string(), "--socket"]).arg(daemon.socket()).arg("--");
    command.arg(&options.qemu);
    machine(&mut command, &format!("{{qemu}},prealloc=on,prealloc-threads={threads}"), "pumice");
    let start_s = qmp::time_to_status(command, folder)?;
    // The slot was really used.
    let granted =
        Client::new(daemon.socket()).stat().ok().and_then(|values| values.first().copied());
    if granted != Some(1) {
        return Err(Failure::system("the machine did not lease its slot"));
    }
    Ok(Started { start_s, slot: Some((populate_s, huge_bytes as f64 / bytes as f64)) })
}

/// Whether this user may use KVM.
fn usable_kvm() -> bool {
    fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}
