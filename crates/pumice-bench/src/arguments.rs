//! Arguments that several experiments share.

use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::path::Path;

use pumice_frames::addr::BLOCK_SIZE;
use pumice_heap::config::parse_size;

use pumice_command::Failure;

/// Looks whether a file can be written, so that a bad path is reported before the measurement.
///
/// # Errors
/// It can't.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let failure = |error| Failure::usage(format!("can't write {}: {error}", path.display()));
    opened.map(drop).map_err(failure)
}

/// The value of an argument, or a message that says which values there are.
type Parsed<T> = Result<T, &'static str>;

/// Reads a size in this range.
pub fn size_in(
    range: RangeInclusive<usize>,
    message: &'static str,
) -> impl Fn(&str) -> Parsed<usize> + Clone {
    move |text| parse_size(text).filter(|bytes| range.contains(bytes)).ok_or(message)
}

/// Reads a size in steps of 2 MiB, this at least.
pub fn size_in_steps(least: u64, message: &'static str) -> impl Fn(&str) -> Parsed<u64> + Clone {
    move |text| {
        let bytes = parse_size(text).map(|bytes| bytes as u64);
        bytes.filter(|&bytes| bytes >= least && bytes % (2 << 20) == 0).ok_or(message)
    }
}

/// Reads a number in this range.
pub fn number_in(
    range: RangeInclusive<f64>,
    message: &'static str,
) -> impl Fn(&str) -> Parsed<f64> + Clone {
    move |text| text.parse().ok().filter(|number| range.contains(number)).ok_or(message)
}

/// Memory for the pages of a process that is compared with another, in whole blocks.
pub fn frames_size(text: &str) -> Parsed<usize> {
    let bytes = size_in(16 << 20..=1 << 37, "a size from 16M to 128G, such as 1G")(text)?;
    Ok(bytes.next_multiple_of(BLOCK_SIZE))
}

/// How long something is measured.
pub fn seconds(text: &str) -> Parsed<f64> {
    number_in(0.01..=3600.0, "seconds from 0.01 to 3600, such as 1.5")(text)
}
