//! Children that change a store: this program again, as one of its tests, told by the environment what to do.
//!
//! A child's thread changes keys of its own. Its nth change follows from the seed, so its keys follow from the count of
//! changes.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use pumice::cache::Cache;

use crate::store::Store;

/// Keys, and their values.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key, and its value if it is not removed.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// Applies a change.
pub fn apply(map: &mut Map, change: Change) {
    match change {
        (key, Some(value)) => map.insert(key, value),
        (key, None) => map.remove(&key),
    };
}

/// The orders of a child.
pub struct Orders {
    pub folder: PathBuf,
    pub seed: u64,
    /// The changes that each thread did before.
    pub done: Vec<u64>,
}

impl Orders {
    /// The variables that say them, but for the folder.
    pub fn variables(seed: u64, done: &[u64]) -> [(&'static str, String); 2] {
        let done: Vec<_> = done.iter().map(u64::to_string).collect();
        [("KV_SEED", seed.to_string()), ("KV_DONE", done.join(","))]
    }

    /// Those of this process, if it is a child.
    pub fn of_this_process() -> Option<Orders> {
        let folder = std::env::var_os("KV_FOLDER")?.into();
        let seed = std::env::var("KV_SEED").expect("a seed").parse().expect("a number");
        let done = std::env::var("KV_DONE").expect("numbers");
        let done = done.split(',').map(|nth| nth.parse().expect("a number")).collect();
        Some(Orders { folder, seed, done })
    }
}

/// The changes of a child's thread.
#[derive(Clone, Copy)]
pub struct Work {
    /// The nth change of a thread, by the seed.
    pub change: fn(u64, usize, u64) -> Change,
    /// Changes of a thread in a process's life.
    pub changes: u64,
    /// Whether a thread commits after its nth change.
    pub commits: fn(usize, u64) -> bool,
    /// Changes from one checkpoint to the next.
    pub changes_per_checkpoint: u64,
}

impl Work {
    /// Does it on the store of the orders, and prints what was committed: the thread, and its count of changes.
    pub fn run(self, cache: &Cache<'_>, orders: &Orders) {
        let store = Store::open(cache, &orders.folder).expect("a store");
        std::thread::scope(|scope| {
            for (thread, &first) in orders.done.iter().enumerate() {
                let store = &store;
                scope.spawn(move || self.run_thread(cache, store, orders.seed, (thread, first)));
            }
        });
    }

    fn run_thread(
        self,
        cache: &Cache<'_>,
        store: &Store,
        seed: u64,
        (thread, first): (usize, u64),
    ) {
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        // Removing a key that is not there changes nothing: then the change before it is committed.
        let mut last = None;
        for nth in first..first.saturating_add(self.changes) {
            let end = match (self.change)(seed, thread, nth) {
                (key, Some(value)) => Some(session.put(&key, &value).expect("room")),
                (key, None) => session.remove(&key).expect("a tree"),
            };
            last = end.or(last);
            if (self.commits)(thread, nth) {
                if let Some(end) = last {
                    session.commit(end).expect("a disk");
                }
                let line = format!("{thread} {}\n", nth + 1);
                std::io::stdout().write_all(line.as_bytes()).expect("a parent");
            }
            if thread == 0 && (nth + 1) % self.changes_per_checkpoint == 0 {
                session.checkpoint().expect("a disk");
            }
        }
    }
}
