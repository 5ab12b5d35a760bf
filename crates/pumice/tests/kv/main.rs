//! The key-value store of `examples/kv`: its pages and its log by themselves, the tree beside a `BTreeMap`, threads,
//! and processes that are killed.

#![cfg(not(any(loom, shuttle)))]

#[path = "../../examples/kv/store/mod.rs"]
mod store;

mod child;
mod crash;
mod errors;
mod kill;
mod logs;
mod nodes;
mod trees;

use std::path::Path;

use pumice::cache::{self, Cache, Settings};
use tempfile::TempDir;

/// A folder that goes with it.
struct Folder(TempDir);

impl Folder {
    fn make(name: &str) -> Folder {
        let folder = tempfile::Builder::new().prefix(&format!("pumice-kv-{name}-")).tempdir();
        Folder(folder.expect("a folder for temporary files"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("left for a look: {}", self.path().display());
            self.0.disable_cleanup(true);
        }
    }
}

/// A cache with few frames.
fn with_cache<R>(frames: usize, work: impl FnOnce(&Cache<'_>) -> R) -> R {
    cache::run(&Settings::new(frames), work).expect("a cache")
}
