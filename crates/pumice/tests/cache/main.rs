//! Caches beside other processes and devices: killed at any moment, over a block device, over one that lies, with a
//! scan going through.

mod ended;
mod forked;
mod killed;
mod large;
mod lies;
mod looped;
mod odd_files;
mod scanned;

use pumice::cache::Settings;
use pumice::sys::mem::Huge;
use tempfile::TempPath;

/// Bytes of a page.
const FRAME: usize = pumice::addr::FRAME_SIZE;

/// A path that is nobody else's, gone with this.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let prefix = format!("pumice-cache-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make(|_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }
}

/// A number that looks random, and follows from another.
fn mix(state: u64) -> u64 {
    fastrand::Rng::with_seed(state).u64(..)
}

/// The content of a page after a step: the step is its first word, and each other word depends on it.
fn fill(page: &mut [u8; FRAME], step: u64) {
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        let value = if at == 0 { step } else { mix(step << 10 | at as u64) };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// After which step a page is as it is; 0 for one of zeros.
#[track_caller]
fn step_of(page: &[u8; FRAME]) -> u64 {
    let step = u64::from_le_bytes(page[..8].try_into().expect("a word"));
    let mut expected = [0; FRAME];
    if step != 0 {
        fill(&mut expected, step);
    }
    assert!(*page == expected, "a page is half of what it was after step {step}");
    step
}

fn settings(frames: usize) -> Settings {
    let mut settings = Settings::new(frames);
    settings.huge = Huge::No;
    settings
}
