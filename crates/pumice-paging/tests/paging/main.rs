//! Regions many times larger than their frames, in use by many threads in every way at once: nothing is lost.
//!
//! - [`pattern`]: the content of a page, so that a wrong one is seen; a seed that is printed.
//! - [`scenario`]: threads, their operations, and the conditions that must hold.
//! - [`several`]: several spaces under one reclaim, which come and go.
//! - [`places`]: swap in files, on devices, and where there is no room.
//!
//! `PUMICE_SEED` repeats a run as far as threads allow; `PUMICE_SOAK_SECONDS` makes each scenario last so long
//! (`ci/soak-paging`).

#![cfg(not(any(loom, shuttle)))]

mod pattern;
mod places;
mod scenario;
mod several;

use pumice_io::fake::Faults;
use scenario::{Doing, Scenario, Which};

const PLAIN: Scenario = Scenario {
    name: "plain",
    frames: 1024,
    pages: 4 * 1024,
    used: None,
    swap_pages: 5 * 1024,
    threads: 4,
    which: Which::Adaptive,
    faults: None,
    doing: Doing::Accesses,
};

#[test]
fn four_times_the_frames() {
    PLAIN.run();
}

#[test]
fn sixteen_times_the_frames() {
    Scenario { name: "sixteen", pages: 16 * 1024, swap_pages: 17 * 1024, threads: 8, ..PLAIN }
        .run();
}

#[test]
fn sixteen_times_the_frames_by_two_lists() {
    let which = Which::TwoList;
    let name = "sixteen-two-list";
    Scenario { name, which, frames: 512, pages: 16 * 512, swap_pages: 17 * 512, ..PLAIN }.run();
}

/// Most pages that come back give their slot up at once.
#[test]
fn four_times_the_frames_with_as_little_swap_as_that_takes() {
    Scenario { name: "scarce", swap_pages: 3 * 1024 + 400, ..PLAIN }.run();
}

#[test]
fn a_device_that_fails_in_every_way() {
    let faults = Faults { error: 40, no_space: 60, short: 5, late: 3 };
    Scenario { name: "faulty", faults: Some(faults), ..PLAIN }.run();
}

#[test]
fn a_device_that_is_late_and_short_loses_nothing() {
    let faults = Faults { error: 0, no_space: 0, short: 4, late: 2 };
    Scenario { name: "late", faults: Some(faults), threads: 8, ..PLAIN }.run();
}

/// Memory that is plenty, of which little may be used, so that a child has room for what it shares.
const FORKS: Scenario = Scenario {
    name: "forks",
    frames: 4096,
    pages: 1024,
    used: Some(512),
    swap_pages: 4096,
    doing: Doing::Forks,
    ..PLAIN
};

#[test]
fn children_see_what_was_there() {
    FORKS.run();
}

#[test]
fn children_beside_a_device_that_fails() {
    let faults = Faults { error: 40, no_space: 60, short: 5, late: 3 };
    Scenario { name: "faulty-forks", faults: Some(faults), which: Which::TwoList, ..FORKS }.run();
}

#[test]
fn regions_come_and_go_meanwhile() {
    Scenario { name: "maps", doing: Doing::Maps, ..PLAIN }.run();
}

#[test]
fn regions_come_and_go_beside_a_device_that_fails() {
    let faults = Faults { error: 30, no_space: 30, short: 5, late: 3 };
    Scenario { name: "faulty-maps", doing: Doing::Maps, faults: Some(faults), ..PLAIN }.run();
}
