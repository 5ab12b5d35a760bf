//! Arguments that several experiments share.

use std::fs::OpenOptions;
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

/// Memory for the pages of a process that is compared with another, in whole blocks.
pub fn frames_size(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).filter(|bytes| (16 << 20..=1 << 37).contains(bytes));
    bytes
        .map(|bytes| bytes.next_multiple_of(BLOCK_SIZE))
        .ok_or_else(|| "a size from 16M to 128G, such as 1G".to_owned())
}

/// How long something is measured.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "seconds from 0.01 to 3600, such as 1.5".to_owned())
}
