//! The parts that the commands of the program share: how they fail, print and count, and their facts about the machine.
//!
//! | module | contents |
//! |---|---|
//! | [`failure`] | one line on stderr and an exit status; printing |
//! | [`table`], [`json_lines`] | rows for people and for programs |
//! | [`statistics`] | medians, and how sure they are |
//! | [`random`] | numbers that look random and are the same in every run |
//! | [`memory`] | the available memory, from `pumice-slots` |
//! | [`share`] | the pages that a sampled trace has |
//! | [`region`] | memory to measure in |
//! | [`costs`] | the costs of faults and touching on this machine |
//! | [`engines`] | engines by name, and whether they are here |
//! | [`clear_plan`] | the plan of engines for this machine: measured once, kept |
//! | [`safe_path`] | paths at which nobody else can put another file |
//! | [`whole_file`] | files that are written whole |
//! | [`small`] | installed allocators for small requests |
//!
//! It asks `pumice-frames`, `pumice-accel`, `pumice-heap` and `pumice-slots` about the machine. Its users are
//! `pumice-cli`, `pumice-bench` and `pumice-bench-io`. Of these, the first calls the others in one place.

pub mod clear_plan;
pub mod costs;
pub mod engines;
pub mod failure;
pub mod json_lines;
pub mod random;
pub mod region;
pub mod safe_path;
pub mod share;
pub mod small;
pub mod statistics;
pub mod table;
pub mod whole_file;

pub use failure::{print, report_lost_output, Explain, Failure, STATUS_USAGE};
pub use pumice_slots::memory;
