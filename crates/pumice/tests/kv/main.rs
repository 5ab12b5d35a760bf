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

use std::path::{Path, PathBuf};

use pumice::cache::{self, Cache, Settings};

/// A folder that goes with it.
struct Folder(PathBuf);

impl Folder {
    fn make(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("pumice-kv-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("left for a look: {}", self.0.display());
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A cache with few frames.
fn with_cache<R>(frames: usize, work: impl FnOnce(&Cache<'_>) -> R) -> R {
    cache::run(&Settings::new(frames), work).expect("a cache")
}

/// Steele, Lea and Flood's SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
