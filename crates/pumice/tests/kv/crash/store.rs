//! The store after a crash, also one while it opens: all committed changes are there, nothing that was overwritten or
//! removed shows, and the tree is one.
//!
//! As in `kill`, a thread's nth change follows from the seed, and the state of its keys from how many changes there
//! were.

use std::path::Path;

use fastrand::Rng;

use pumice::cache;

use super::disk::{Disk, Image, Kept};
use super::trace::Event;
use super::{crashes, in_memory, record, seed, settings, settings_of_child, wanted};
use crate::child::{apply, Change, Map, Orders, Work};
use crate::store::check::check;
use crate::store::Store;
use crate::Folder;

const THREADS: usize = 2;
/// Changes of a thread in a process's life, and from one commit to the next at most.
const CHANGES: u64 = 60;
const UNCOMMITTED: u64 = 6;
/// Keys of a thread.
const KEYS: u64 = 40;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;
type Failed = Box<dyn std::error::Error>;

fn change(seed: u64, thread: usize, nth: u64) -> Change {
    let mut random = Rng::with_seed(seed ^ (thread as u64) << 56 ^ nth << 8);
    let key = vec![thread as u8, random.u64(..KEYS) as u8];
    let mut value = nth.to_le_bytes().to_vec();
    // Of few entries a page, so that nodes are split.
    value.resize(8 + random.u64(..800) as usize, random.u8(..));
    (key, (random.u64(..4) > 0).then_some(value))
}

/// The process that is traced. It ends well.
#[test]
#[ignore = "a_crash_loses_nothing_that_was_committed runs it, as the process that is traced"]
fn child() {
    let Some(orders) = Orders::of_this_process() else { return };
    // The output begins a line.
    println!();
    let commits =
        |thread, nth| nth % UNCOMMITTED == 2 * thread as u64 || Rng::with_seed(nth).u64(..4) == 0;
    let work = Work { change, changes: CHANGES, commits, changes_per_checkpoint: 25 };
    cache::run(&settings_of_child(), |cache| work.run(cache, &orders)).expect("a cache");
}

/// The keys of each thread, and after how many of its changes.
#[derive(Clone)]
struct Known {
    seed: u64,
    maps: Vec<Map>,
    done: Vec<u64>,
}

impl Known {
    fn new(seed: u64) -> Known {
        Known { seed, maps: vec![Map::new(); THREADS], done: vec![0; THREADS] }
    }

    fn go_on(&mut self, thread: usize, until: u64) {
        for nth in self.done[thread]..until {
            apply(&mut self.maps[thread], change(self.seed, thread, nth));
        }
        self.done[thread] = self.done[thread].max(until);
    }

    /// Takes what is there for what it must be, or for some changes more, of a process that began after `begin`.
    fn compare(&mut self, all: &[(Vec<u8>, Vec<u8>)], begin: &[u64]) -> Result<(), String> {
        for (thread, &begin) in begin.iter().enumerate() {
            let own = |entry: &&(Vec<u8>, Vec<u8>)| usize::from(entry.0[0]) == thread;
            let there: Map = all.iter().filter(own).cloned().collect();
            let committed = self.done[thread];
            while self.maps[thread] != there {
                if self.done[thread] > committed.max(begin) + UNCOMMITTED {
                    return Err(format!("thread {thread}: {committed} changes were committed"));
                }
                self.go_on(thread, self.done[thread] + 1);
            }
        }
        Ok(())
    }
}

/// Opens the store in a folder, and looks at all of it.
fn open(folder: &Path) -> Result<Entries, Failed> {
    cache::run(&settings(), |cache| -> Result<_, Failed> {
        let store = Store::open(cache, folder)?;
        let task = cache.task()?;
        let session = store.session(&task)?;
        let shape = check(&session)?;
        let all = session.range(b"")?.collect::<Result<Vec<_>, _>>()?;
        assert_eq!(shape.entries, all.len());
        Ok(all)
    })?
}

/// The state that a process begins with.
struct Start {
    image: Image,
    /// The same, with the changes that may be lost.
    disk: Disk,
    /// The keys that are certain to be there, and up to which changes they are there.
    known: Known,
    begin: Vec<u64>,
}

#[test]
fn a_crash_loses_nothing_that_was_committed() {
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let wanted = wanted();
    let replay = in_memory("store");
    let (mut looked_at, mut lives, mut changes) = (0, 0, 0);
    let image = Image::default();
    let mut start = Start {
        disk: Disk::new(image.clone()),
        image,
        known: Known::new(random.u64(..)),
        begin: vec![0; THREADS],
    };
    while looked_at < wanted {
        let Start { image, disk, known, begin } = start;
        let folder = Folder::make("crash");
        std::fs::create_dir(folder.path().join("log")).expect("ours");
        image.write(folder.path(), Some(&Image::default()));
        let variables = Orders::variables(known.seed, &begin);
        let Some(events) = record("crash::store::child", &folder, &variables) else { return };
        lives += 1;
        let mut now = known.clone();
        let mut last: Option<Image> = None;
        let mut next = None;
        let mut nth = 0;
        crashes(&events, disk, &mut random, |news, crash, random| {
            for event in news {
                let Event::Said(line) = event else { continue };
                let mut fields = line.split(' ').map(str::parse::<u64>);
                if let (Some(Ok(thread)), Some(Ok(done)), None) =
                    (fields.next(), fields.next(), fields.next())
                {
                    now.go_on(thread as usize, done);
                }
            }
            crash.image.write(&replay, last.as_ref());
            let mut found = now.clone();
            let result = open(&replay)
                .map_err(|error| error.to_string())
                .and_then(|all| found.compare(&all, &begin));
            if let Err(error) = result {
                let left = in_memory("failed");
                crash.image.write(&left, None);
                panic!("seed {seed}, life {lives}, state {nth}: {error}; see {}", left.display());
            }
            nth += 1;
            // Opening it adds files to those of the image.
            last = Some(Image::read(&replay));
            // The next process begins after any of these, or after a kill, which loses nothing yet.
            if random.u64(..nth) == 0 || crash.kept == Kept::All && random.u64(..nth) < 5 {
                let image = crash.image.clone();
                next = Some(if crash.kept == Kept::All {
                    let begin = found.done.clone();
                    Start { image, disk: crash.disk.killed(), known: now.clone(), begin }
                } else {
                    let begin = found.done.clone();
                    Start { disk: Disk::new(image.clone()), image, known: found, begin }
                });
            }
            looked_at += 1;
            if looked_at % 100_000 == 0 {
                eprintln!("{looked_at} states of {wanted}, {lives} processes");
            }
            looked_at < wanted
        });
        changes += now.done.iter().sum::<u64>() - known.done.iter().sum::<u64>();
        start = next.expect("a process writes");
    }
    let _ = std::fs::remove_dir_all(&replay);
    println!("{looked_at} states after {changes} changes of {lives} processes");
}
