//! Processes that are killed anywhere, also while they open: all commits are there, nothing older shows, the tree is
//! whole. Pages that the log is about are torn between, as by a power failure.
//!
//! The keys of a child's thread follow from the count of its changes: as many as it said were committed, or some more.
//!
//! And processes that come while another has the store open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fastrand::Rng;
use rustix::fs::FlockOperation;

use crate::child::{apply, Change, Map, Orders, Work};
use crate::store::check::check;
use crate::store::log::Log;
use crate::store::{record, Error, Store};
use crate::{with_cache, Folder};

const THREADS: usize = 3;
/// Kills in tests; `ci/crash` asks for more (`PUMICE_KILLS`).
const KILLS: usize = 12;
/// Changes from one commit of a thread to its next.
const UNCOMMITTED: u64 = 64;
const FRAMES: usize = 512;

/// A thread's nth change.
fn change(seed: u64, thread: usize, nth: u64) -> Change {
    let mut random = Rng::with_seed(seed ^ (thread as u64) << 56 ^ nth << 8);
    let mut key = vec![thread as u8];
    // So many and so long that they are several times as large as the cache.
    key.extend((random.u64(..6000) as u16).to_be_bytes());
    let len = 8 + random.u64(..850) as usize;
    let mut value = nth.to_le_bytes().to_vec();
    value.resize(len, random.u8(..));
    (key, (random.u64(..4) > 0).then_some(value))
}

/// The child, which never ends by itself.
#[test]
#[ignore = "what_was_committed_is_there_after_a_kill runs it, as the process that is killed"]
fn child() {
    let Some(orders) = Orders::of_this_process() else { return };
    let commits = |thread, nth| nth % UNCOMMITTED == 7 * thread as u64;
    let work = Work { change, changes: u64::MAX, commits, changes_per_checkpoint: 700 };
    with_cache(FRAMES, |cache| work.run(cache, &orders));
}

/// Another child, which opens the store too, and says what came of it.
#[test]
#[ignore = "a_store_is_one_processes_at_a_time runs it, as the second process"]
fn second_child() {
    let Ok(folder) = std::env::var("KV_FOLDER") else { return };
    let opened = with_cache(FRAMES, |cache| Store::open(cache, Path::new(&folder)).map(drop));
    println!("\nopened {}", opened.map_or_else(|error| error.to_string(), |()| "it".to_owned()));
}

/// This program again, as one of its tests that are children.
fn command(child: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", child, "--ignored", "--nocapture"]).env("KV_FOLDER", folder);
    command
}

/// Runs a child until it has committed something, and a while longer, or only until it is about to open. Returns the
/// last commit that each thread reported.
fn run_and_kill(folder: &Path, seed: u64, done: &[u64], random: &mut Rng) -> Vec<u64> {
    let mut command = command("kill::child", folder);
    command.envs(Orders::variables(seed, done));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let (said, lines) = mpsc::channel();
    let output = child.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = said.send(line);
        }
    });
    let mut heard = Vec::new();
    if random.u64(..4) > 0 {
        // The test harness says something, too.
        let is_first = |line: &String| line.starts_with(|digit: char| digit.is_ascii_digit());
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(60)) {
            heard.push(line);
            if heard.last().is_some_and(is_first) {
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(random.u64(..400_000) >> random.u64(..6)));
    } else {
        std::thread::sleep(Duration::from_micros(random.u64(..150_000) >> random.u64(..4)));
    }
    assert!(child.try_wait().expect("a child").is_none(), "it ended by itself: {heard:?}");
    child.kill().expect("a child");
    child.wait().expect("a child");
    reader.join().expect("no panic");
    heard.extend(lines.try_iter());
    let mut committed = done.to_vec();
    for line in heard {
        let mut fields = line.split(' ').map(str::parse::<u64>);
        if let (Some(Ok(thread)), Some(Ok(nth))) = (fields.next(), fields.next()) {
            committed[thread as usize] = nth;
        }
    }
    committed
}

/// Leaves half of some pages that the log is about as they are, and writes something else over the rest.
fn tear(folder: &Path, random: &mut Rng) {
    let Ok(tree) = OpenOptions::new().write(true).open(folder.join("tree")) else { return };
    // Writes of the one that was killed may be in flight still, and have its file locked until they end.
    rustix::fs::flock(&tree, FlockOperation::LockExclusive).expect("a lock");
    let log = Log::open(&folder.join("log")).expect("a log");
    let mut pages = BTreeSet::new();
    log.replay(|body| {
        pages.extend(record::parts(body).map(|part| part.expect("a part").0));
        Ok::<(), std::io::Error>(())
    })
    .expect("records");
    let len = tree.metadata().expect("ours").len();
    for page in pages {
        let at = u64::from(page) * 4096;
        if at + 4096 <= len && random.bool() {
            let rubbish = vec![random.u8(..); 2048];
            tree.write_all_at(&rubbish, at + 2048 * random.u64(..2)).expect("ours");
        }
    }
}

#[test]
fn what_was_committed_is_there_after_a_kill() {
    let seed = Rng::with_seed(std::process::id().into()).u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let folder = Folder::make("kill");
    let mut done = vec![0; THREADS];
    let mut maps = vec![Map::new(); THREADS];
    let kills = std::env::var("PUMICE_KILLS").ok().and_then(|many| many.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    for kill in 0..kills {
        let committed = run_and_kill(folder.path(), seed, &done, &mut random);
        tear(folder.path(), &mut random);
        let all: Vec<(Vec<u8>, Vec<u8>)> = with_cache(FRAMES, |cache| {
            let store = Store::open(cache, folder.path()).expect("a store");
            let task = cache.task().expect("a task");
            let session = store.session(&task).expect("a session");
            let shape = check(&session).expect("a tree");
            let all: Vec<_> =
                session.range(b"").expect("a tree").map(|entry| entry.expect("one")).collect();
            assert_eq!(shape.entries, all.len());
            all
        });
        for thread in 0..THREADS {
            let is_mine = |entry: &&(Vec<u8>, Vec<u8>)| usize::from(entry.0[0]) == thread;
            let there: Map = all.iter().filter(is_mine).cloned().collect();
            let map = &mut maps[thread];
            // A commit that was not said any more, and what came before it.
            let most = committed[thread] + UNCOMMITTED;
            loop {
                if done[thread] >= committed[thread] && *map == there {
                    break;
                }
                assert!(
                    done[thread] < most,
                    "seed {seed}, kill {kill}: thread {thread} said {} changes were committed",
                    committed[thread]
                );
                apply(map, change(seed, thread, done[thread]));
                done[thread] += 1;
            }
        }
        if kill % 100 == 99 {
            println!("{} of {kills} kills", kill + 1);
        }
    }
    println!("{kills} kills, {done:?} changes");
    assert!(done.iter().all(|&changes| changes > 0), "{done:?}");
}

/// The contents of the files of a folder, by name.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("ours").map(|entry| entry.expect("ours").path());
    entries.map(|path| (path.clone(), std::fs::read(path).expect("ours"))).collect()
}

/// The output of a second process that opens the store.
fn open_by_second(folder: &Path) -> String {
    let said = command("kill::second_child", folder).output().expect("it starts").stdout;
    let said = String::from_utf8(said).expect("text");
    let line = said.lines().find_map(|line| line.strip_prefix("opened "));
    line.unwrap_or_else(|| panic!("it says {said}")).to_owned()
}

#[test]
fn a_store_is_one_processes_at_a_time() {
    let folder = Folder::make("two");
    let (log, path) = (folder.path().join("log"), folder.path());
    with_cache(FRAMES, |cache| {
        let store = Store::open(cache, path).expect("a store");
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        let end = session.put(b"a", b"first").expect("room");
        session.commit(end).expect("a disk");
        let before = contents(&log);
        assert_eq!(open_by_second(path), Error::InUse(path.to_owned()).to_string());
        let again = Store::open(cache, path);
        assert!(matches!(again, Err(Error::InUse(_))), "{again:?}");
        assert_eq!(contents(&log), before, "the log belongs to the process that has it open");
        let end = session.put(b"b", b"second").expect("room");
        session.commit(end).expect("a disk");
    });
    assert_eq!(open_by_second(path), "it");
    with_cache(FRAMES, |cache| {
        let store = Store::open(cache, path).expect("a store");
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        assert_eq!(session.get(b"a").expect("a tree").as_deref(), Some(&b"first"[..]));
        assert_eq!(session.get(b"b").expect("a tree").as_deref(), Some(&b"second"[..]));
    });
}
