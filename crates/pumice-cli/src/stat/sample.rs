//! The state of the programs under `pumice run` at one time.
//!
//! It is read from a copy of each tree. Nothing a program does to its tree meanwhile can stop
//! this one, and nothing here stops or slows a program. A tree says nothing about a process of another user's,
//! and of each process there is one row for each `pumice run`, also if its tree says otherwise.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use pumice_heap::stats::{CounterSlot, Event, PoolSplit, Tree, TreeName};
use serde::Serialize;

use super::running::Running;
use crate::counters::{self, Snapshot};
use crate::numbers::Numbers;

/// Trees that are read at most: any user may make as many as there is room for.
const MOST_TREES: usize = 4096;

/// A program; in JSON, an object with these names. Its tree goes by the number of its `pumice run`; sizes are in
/// bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// The `pumice run`, or the program that it became, as the tree says.
    pub run_pid: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// The process.
    pub pid: u32,
    /// The name that it gives itself.
    pub program: String,
    /// Its share of the pool.
    pub pool_bytes: u64,
    /// The parts of that; `null` where the process has no helper threads to count it.
    #[serde(flatten)]
    pub split: Split,
    /// Of the whole tree.
    pub tree_pool_bytes: u64,
    /// The most there ever was in the whole tree.
    pub tree_pool_peak_bytes: u64,
    /// The most there may be.
    pub tree_pool_max_bytes: u64,
    /// The share of served requests with most of their memory ready; `null` before the first.
    pub hit_rate: Option<f64>,
    /// Of the frames handed out, those that were ready and zeroed; `null` before the first.
    pub zeroed_rate: Option<f64>,
    /// Processor time of the helper threads.
    pub scrubber_s: f64,
    /// Why nothing is served, if so.
    pub reason: Option<&'static str>,
    /// All that is counted, by name.
    #[serde(flatten)]
    pub events: BTreeMap<&'static str, u64>,
}

/// See [`PoolSplit`]; all four are known, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Ready and zero.
    pub zeroed_bytes: Option<u64>,
    /// Free and dirty.
    pub unzeroed_bytes: Option<u64>,
    /// Free, and not there.
    pub absent_bytes: Option<u64>,
    /// In use.
    pub in_use_bytes: Option<u64>,
}

impl From<Option<PoolSplit>> for Split {
    fn from(split: Option<PoolSplit>) -> Split {
        Split {
            zeroed_bytes: split.map(|split| split.free.zeroed),
            unzeroed_bytes: split.map(|split| split.free.unzeroed),
            absent_bytes: split.map(|split| split.free.absent),
            in_use_bytes: split.map(|split| split.in_use),
        }
    }
}

/// A tree of a `pumice run`, one for each namespace of processes and each user: the sum over all its processes, those
/// that have ended included.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Its name, which another that comes when this has ended may have again.
    pub tree: String,
    /// The `pumice run`.
    pub run_pid: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// Bytes of pool now, the most there ever were, and the most there may be.
    pub pool_bytes: u64,
    /// See [`Totals::pool_bytes`].
    pub pool_peak_bytes: u64,
    /// See [`Totals::pool_bytes`].
    pub pool_max_bytes: u64,
    /// Processes that were ever served, or would have been but for a reason.
    pub processes: u64,
    /// As [`Event::ALL`].
    pub events: Vec<u64>,
}

/// All of them, by their numbers.
#[derive(Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Processes that live.
    pub processes: Vec<Process>,
    /// Trees that have any.
    pub trees: Vec<Totals>,
}

impl Sample {
    /// Reads all trees that this user may read. `pids`: only of these processes, or of trees
    /// that these lead; all if there are none.
    pub fn take(pids: &[u32]) -> Sample {
        let mut sample = Sample { at: Instant::now(), processes: Vec::new(), trees: Vec::new() };
        let numbers = Numbers::now();
        for found in counters::all().take(MOST_TREES) {
            if let Some(snapshot) = Snapshot::read(found) {
                let tree = snapshot.tree();
                sample.add(tree, &numbers, counters::leader(tree, &numbers), found.uid, pids);
            }
        }
        sample.processes.sort_by_key(|process| (process.run_pid, process.pid));
        let mut seen = HashSet::new();
        sample.processes.retain(|process| seen.insert((process.run_pid, process.pid)));
        let mut seen = HashSet::new();
        sample.trees.retain(|it| seen.insert((it.run_pid, it.uid, it.tree.clone())));
        sample
    }

    fn add(&mut self, tree: &Tree, numbers: &Numbers, run_pid: u32, uid: u32, pids: &[u32]) {
        let meant = |own: u32| {
            let is_named = |pid: &u32| *pid == run_pid || *pid == own;
            pids.is_empty() || pids.iter().any(is_named)
        };
        let before = self.processes.len();
        let slots = counters::live_slots(tree, numbers).filter(|&(pid, _)| meant(pid));
        self.processes.extend(slots.filter_map(|(pid, slot)| {
            let running = Running::find(pid).filter(|running| running.uid == uid)?;
            Some(Process::new(tree, slot, pid, run_pid, running))
        }));
        if self.processes.len() > before {
            self.trees.push(Totals::new(tree, run_pid, uid));
        }
    }
}

impl Totals {
    fn new(tree: &Tree, run_pid: u32, uid: u32) -> Totals {
        let TreeName { key, namespace, .. } = tree.name();
        Totals {
            tree: format!("{key:08x}-{namespace}"),
            run_pid,
            uid,
            pool_bytes: tree.pool_bytes(),
            pool_peak_bytes: tree.pool_peak(),
            pool_max_bytes: tree.pool_max(),
            processes: tree.processes(),
            events: Event::ALL.into_iter().map(|event| tree.total(event)).collect(),
        }
    }
}

impl Process {
    fn new(tree: &Tree, slot: &CounterSlot, pid: u32, run_pid: u32, running: Running) -> Process {
        let served = slot.get(Event::Hits).saturating_add(slot.get(Event::Misses));
        Process {
            run_pid,
            uid: running.uid,
            pid,
            program: running.name,
            pool_bytes: slot.pool_bytes(),
            split: slot.pool_split().into(),
            tree_pool_bytes: tree.pool_bytes(),
            tree_pool_peak_bytes: tree.pool_peak(),
            tree_pool_max_bytes: tree.pool_max(),
            hit_rate: share(slot.get(Event::Hits), served),
            zeroed_rate: share(slot.get(Event::Ozfod), slot.get(Event::Zfod)),
            scrubber_s: slot.get(Event::ScrubberNs) as f64 / 1e9,
            reason: slot.reason().map(|reason| reason.name()),
            events: Event::ALL.into_iter().map(|event| (event.name(), slot.get(event))).collect(),
        }
    }

    /// Whether a number means this program.
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid == pid || self.run_pid == pid
    }

    /// A counter.
    pub fn event(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or(0)
    }
}

/// `None` of nothing.
pub fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| (part as f64 / all as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pumice_frames::sys::segment;
    use pumice_heap::stats::{Owner, MAGIC, SLOTS, TREE_SIZE, VERSION};

    use super::*;
    use crate::stat::{prometheus, rates::Rates, show};

    /// A tree whose beginning is right and whose rest is any of these words.
    fn hostile(words: &[u64]) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            words.iter().cycle().take(TREE_SIZE / 8).flat_map(|word| word.to_le_bytes()).collect();
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let sizes =
            [VERSION, SLOTS as u32, size_of::<CounterSlot>() as u32, Event::ALL.len() as u32];
        for (index, size) in sizes.into_iter().enumerate() {
            bytes[8 + 4 * index..12 + 4 * index].copy_from_slice(&size.to_le_bytes());
        }
        bytes
    }

    fn any_word() -> impl Strategy<Value = u64> {
        let here = Owner::here();
        let own = u64::from(here.namespace) << 32 | u64::from(here.pid);
        prop_oneof![Just(own), Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>(), 0..4096u64]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A tree with any contents is shown in some way, and in few words.
        #[test]
        fn hostile_trees_are_shown_or_passed_over(
            words in proptest::collection::vec(any_word(), 1..200),
        ) {
            let (id, at) = segment::create(TREE_SIZE).expect("shared memory");
            // SAFETY: mapped at that length, and nobody else's.
            unsafe { at.as_ptr().copy_from(hostile(&words).as_ptr(), TREE_SIZE) };
            let own = counters::tests::own(id);
            let mut sample =
                Sample { at: Instant::now(), processes: Vec::new(), trees: Vec::new() };
            let snapshot = Snapshot::read(own).expect("its beginning is right");
            sample.add(snapshot.tree(), &Numbers::now(), 1, own.uid, &[]);
            // SAFETY: mapped above, and not used any more.
            unsafe { libc::shmdt(at.as_ptr().cast()) };
            for process in &sample.processes {
                prop_assert!(process.hit_rate.is_none_or(|rate| (0.0..=1.0).contains(&rate)));
                let parts = process.split;
                let parts = [
                    parts.zeroed_bytes,
                    parts.unzeroed_bytes,
                    parts.absent_bytes,
                    parts.in_use_bytes,
                ];
                if let [Some(_), Some(_), Some(_), Some(_)] = parts {
                    let sum: u64 = parts.into_iter().flatten().sum();
                    prop_assert_eq!(sum, process.pool_bytes);
                }
                let elapsed = std::time::Duration::from_millis(1);
                let rates = Rates::between(&sample.processes[0], process, elapsed);
                prop_assert!(!show::table(&[(process.clone(), rates)], show::Of::Changes).is_empty());
            }
            for line in prometheus::page(&sample).lines().filter(|line| !line.starts_with('#')) {
                let value = line.rsplit(' ').next().expect("a value");
                prop_assert!(value.parse::<f64>().is_ok(), "{}", line);
            }
        }
    }
}
