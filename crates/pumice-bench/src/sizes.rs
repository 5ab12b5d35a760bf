//! Sizes that an experiment with a lot of memory at once goes through.

use pumice_command::memory;
use pumice_command::Failure;

const GIB: u64 = 1 << 30;

/// The sizes asked for, in bytes, or those of 1 to 8 GiB that fit the memory that is free.
///
/// # Errors
/// One that was asked for does not fit.
pub fn that_fit(asked: &[u64]) -> Result<Vec<u64>, Failure> {
    if asked.is_empty() {
        return Ok([1, 2, 4, 8]
            .map(|size| size * GIB)
            .into_iter()
            .filter(|&it| fits(it))
            .collect());
    }
    match asked.iter().find(|&&size| !fits(size)) {
        None => Ok(asked.to_vec()),
        Some(size) => {
            let free = memory::free_bytes().unwrap_or(0) / GIB;
            let asked = size / GIB;
            Err(Failure::usage(format!("{asked} GiB do not fit the {free} GiB that are free")))
        }
    }
}

/// With something to spare for other programs.
fn fits(bytes: u64) -> bool {
    memory::free_bytes().is_none_or(|free| bytes + bytes / 8 + GIB / 2 <= free)
}
