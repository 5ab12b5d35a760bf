//! `pumice bench`: the experiments, each a file or a folder of its name here. [`Experiment`] lists them and their
//! subjects. Beside them:
//!
//! | module | contents |
//! |---|---|
//! | [`all`] | every experiment, one page, one file of results |
//! | [`registry`] | each experiment's settings in `all`, and how it is shown and compared |
//! | [`results`] | the file of results |
//! | [`page`] | the page |
//! | [`show`] | the page of results that were measured before |
//! | [`compare`] | the differences between two files of results |
//! | [`harness`] | rounds in turns, and where rows go |
//! | [`slot_daemon`] | a daemon that keeps a slot for an experiment |
//! | [`team`] | the parts of experiments that compare processes of ours and the kernel's |
//! | [`arguments`] | arguments that several experiments share |
//! | [`interrupts`] | signals that would end an experiment |
//! | [`start_line`] | where threads start together |
//! | [`names`] | enums whose values have names |
//! | [`neighbours`] | programs that do something else meanwhile |
//! | [`c_program`] | programs that know nothing of pumice |
//! | [`proc_file`] | numbers that the kernel tells under names |
//! | [`spent`] | processor time of a process, of the kernel's threads, of the machine |
//! | [`machine`] | the machine of the measurements |
//! | [`weather`] | how quiet it was meanwhile |
//! | [`cpu`] | processor time of a thread, and its processors |
//!
//! One experiment, that of files, is in a crate of its own, `pumice-bench-io`, which uses the rest of this one.
//! The others measure `pumice-frames`, `pumice-accel`, `pumice-heap`, `pumice-io`, `pumice-paging` and
//! `pumice-slots`. They share `pumice-command` with the program's other commands.
//!
//! The rules are CONTRIBUTING.md's: every figure stands beside a peer's, measured in the same run
//! and interleaved with it.

mod all;
mod alloc;
pub mod arguments;
mod c_program;
mod clear;
mod compare;
mod cpu;
mod fault;
mod fork;
mod frame;
pub mod harness;
pub mod interrupts;
mod lease;
mod machine;
mod map;
pub mod names;
mod neighbours;
mod page;
mod pft;
mod pin;
mod populate;
pub mod proc_file;
mod programs;
mod reclaim;
pub mod registry;
mod replace;
mod results;
mod scrub;
mod show;
mod sizes;
pub mod slot_daemon;
pub mod spent;
mod start;
pub mod start_line;
pub mod team;
mod three_ways;
mod vm;
mod weather;

use clap::Subcommand;

use pumice_command::Failure;

/// The experiments, but for those that are crates of their own.
#[derive(Subcommand, Debug)]
pub enum Experiment {
    /// Every experiment: one page of tables and pictures, one file of results
    All(all::AllArgs),
    /// Real programs under pumice and other allocators: time, processor time, memory, faults
    Alloc(alloc::AllocArgs),
    /// The differences between two files of results, and whether they are more than noise
    Compare(compare::CompareArgs),
    /// How fast each engine zeroes memory, and how fast memory is read
    Clear(clear::ClearArgs),
    /// Page faults in an address space of our own: one lock, a short lock, none; the kernel's
    Fault(fault::FaultArgs),
    /// A server with a large heap that takes snapshots by fork: time and memory
    Fork(three_ways::WaysArgs<7>),
    /// The cost of getting and putting frames, beside a peer's if one is given
    Frame(frame::FrameArgs),
    /// How soon leased memory is in hand, and the resources that thousands of leases leave behind
    Lease(lease::LeaseArgs),
    /// A loop of mmap, touch and munmap, and a first touch of memory that is ready
    Map(three_ways::WaysArgs<9>),
    /// Page faults a second: a burst, ten in a row, 1 to 64 lines a page, sparse
    Pft(pft::PftArgs),
    /// Pinning memory by registered buffers and mlock: fresh memory against a slot
    Pin(pin::PinArgs),
    /// How fast pumice serve populates, and its cost to programs beside it
    Populate(populate::PopulateArgs),
    /// Programs that you know: the most each could gain, its gain, a verdict
    Programs(programs::ProgramsArgs),
    /// A region many times larger than its memory: accesses, waits and processor time, and the kernel's swap
    Reclaim(reclaim::ReclaimArgs),
    /// Write the page of results that were measured before
    Report(show::ReportArgs),
    /// The share of a trace's references that each replacement policy finds in memory
    Replace(replace::ReplaceArgs),
    /// How fast scrubd zeroes, and its cost to programs beside it
    Scrub(scrub::ScrubArgs),
    /// The cost of pumice run to a program that has nothing to gain from it
    Start(start::StartArgs),
    /// How long a virtual machine (QEMU) takes to be there, with a slot and without
    Vm(vm::VmArgs),
}

/// Runs an experiment, prints its table, and returns the exit status.
pub fn bench(experiment: Experiment) -> Result<u8, Failure> {
    let ran = match experiment {
        Experiment::Compare(options) => return compare::compare(&options),
        Experiment::All(options) => all::all(&options),
        Experiment::Programs(options) => programs::programs(&options),
        Experiment::Report(options) => show::report(&options),
        Experiment::Alloc(options) => alloc::alloc(&options),
        Experiment::Clear(options) => clear::clear(options),
        Experiment::Fault(options) => fault::fault(&options),
        Experiment::Fork(options) => fork::fork(&options),
        Experiment::Frame(options) => frame::frame(&options),
        Experiment::Lease(options) => lease::lease(&options),
        Experiment::Map(options) => map::map(&options),
        Experiment::Pft(options) => pft::pft(&options),
        Experiment::Pin(options) => pin::pin(&options),
        Experiment::Populate(options) => populate::populate(&options),
        Experiment::Reclaim(options) => reclaim::reclaim(&options),
        Experiment::Replace(options) => replace::replace(&options),
        Experiment::Scrub(options) => scrub::scrub(options),
        Experiment::Start(options) => start::start(&options),
        Experiment::Vm(options) => vm::vm(&options),
    };
    ran.map(|()| 0)
}
