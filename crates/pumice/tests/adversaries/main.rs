//! Programs of safe code that misuse spaces and caches: none breaks memory, reads what is another's, or hangs.
//!
//! The examples of `src/misuse.rs` hold the programs that must not compile.

#![forbid(unsafe_code)]

mod caches;
mod engines;
mod pagers;
mod policies;
mod spaces;

use pumice::addr::FRAME_SIZE;
use pumice::io::Cached;
use pumice::swap::Swap;
use tempfile::TempPath;

/// A path that is nobody else's, gone with this.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let prefix = format!("pumice-adversary-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make(|_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }
}

/// A swap area of so many frames, whose file is gone.
fn swap(frames: usize) -> Swap {
    let scratch = Scratch::new("swap");
    Swap::create(&scratch.0, (frames * FRAME_SIZE) as u64, Cached::Yes).expect("swap")
}
