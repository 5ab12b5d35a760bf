//! The log by itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use pumice::cache::WriteAhead;

use crate::store::log::{Log, Part};
use crate::store::node::{self, Page, Parts};
use crate::store::record::{self, Change};
use crate::Folder;

fn page() -> Page {
    let mut page = [0; 4096];
    Parts::default().write(&mut page).expect("an empty leaf");
    page
}

fn put(log: &Log, page: &mut Page, key: &[u8]) -> u64 {
    node::put(page, key, b"value").expect("room");
    let change = Some(Change::Put(key, b"value"));
    log.append(&mut [Part { number: 7, page, change }]).expect("a log")
}

/// The contents of a log for page 7: images as `None`, keys.
fn keys(log: &Log) -> Vec<Option<Vec<u8>>> {
    let mut keys = Vec::new();
    log.replay(|body| {
        for part in record::parts(body) {
            let (number, change) = part.ok_or_else(|| io::Error::other("a part"))?;
            assert_eq!(number, 7);
            keys.push(match change {
                Change::Put(key, _) => Some(key.to_vec()),
                _ => None,
            });
        }
        Ok::<(), io::Error>(())
    })
    .expect("records");
    keys
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("ours");
    let mut all: Vec<_> = entries.map(|entry| entry.expect("ours").path()).collect();
    all.sort();
    all
}

fn key(name: &str) -> Option<Vec<u8>> {
    Some(name.as_bytes().to_vec())
}

#[test]
fn what_was_flushed_is_there_again() {
    let folder = Folder::make("log-again");
    let log = Log::open(folder.path()).expect("a log");
    let mut page = page();
    let first = put(&log, &mut page, b"a");
    let second = put(&log, &mut page, b"b");
    assert_eq!(node::lsn(&page), second);
    assert!(WriteAhead::durable(&log) < first, "the page may not go yet");
    assert_eq!(log.position(7, &page), second);
    log.flush(first).expect("a disk");
    // All that was there goes together.
    assert!(WriteAhead::durable(&log) >= second);
    put(&log, &mut page, b"lost");
    drop(log);
    let log = Log::open(folder.path()).expect("a log");
    // The first change of a page is its image.
    assert_eq!(keys(&log), [None, key("b")]);
}

#[test]
fn after_a_checkpoint_pages_come_whole_again() {
    let folder = Folder::make("log-checkpoint");
    let log = Log::open(folder.path()).expect("a log");
    let mut page = page();
    put(&log, &mut page, b"a");
    let start = log.begin_segment().expect("a disk");
    assert_eq!(log.len(), 0);
    put(&log, &mut page, b"b");
    put(&log, &mut page, b"c");
    log.flush_all().expect("a disk");
    log.forget(start).expect("a disk");
    assert_eq!(segments(folder.path()).len(), 1);
    drop(log);
    let log = Log::open(folder.path()).expect("a log");
    assert_eq!(keys(&log), [None, key("c")]);
}

/// Wherever the end is cut off or wrong, what comes before it is there, and what is added then follows it.
#[test]
fn what_is_half_written_is_cut_off() {
    let seed = Rng::with_seed(std::process::id().into()).u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for round in 0..40 {
        let folder = Folder::make("log-torn");
        let log = Log::open(folder.path()).expect("a log");
        let mut page = page();
        let ends: Vec<_> = ["a", "b", "c"].map(|key| put(&log, &mut page, key.as_bytes())).into();
        log.flush_all().expect("a disk");
        drop(log);
        let path = segments(folder.path()).pop().expect("a segment");
        let mut bytes = fs::read(&path).expect("ours");
        let first = ends[2] as usize - bytes.len();
        let at = 16 + random.u64(..bytes.len() as u64 - 16) as usize;
        if round % 2 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << random.u64(..8);
        }
        fs::write(&path, bytes).expect("ours");
        let whole = ends.iter().filter(|&&end| end as usize - first <= at).count();
        let log = Log::open(folder.path()).expect("a log");
        let wanted = [None, key("b"), key("c")];
        assert_eq!(keys(&log), wanted[..whole], "cut at {at}");
        put(&log, &mut page, b"d");
        log.flush_all().expect("a disk");
        drop(log);
        let log = Log::open(folder.path()).expect("a log");
        assert_eq!(keys(&log).len(), whole + 1);
    }
}

#[test]
fn a_segment_that_was_being_made_is_none() {
    let folder = Folder::make("log-made");
    let log = Log::open(folder.path()).expect("a log");
    let mut page = page();
    put(&log, &mut page, b"a");
    log.flush_all().expect("a disk");
    drop(log);
    fs::write(folder.path().join("log.0000000000ffffff"), b"kvl").expect("ours");
    let log = Log::open(folder.path()).expect("a log");
    assert_eq!(keys(&log), [None]);
}

/// One that could not be made, and came back by a crash, is none, however much of its header is there, and whatever
/// comes after it.
#[test]
fn a_segment_that_could_not_be_made_is_none() {
    for left in [0, 3, 16] {
        let folder = Folder::make("log-unmade");
        let log = Log::open(folder.path()).expect("a log");
        let mut page = page();
        put(&log, &mut page, b"a");
        log.flush_all().expect("a disk");
        let unmade = WriteAhead::durable(&log);
        put(&log, &mut page, b"b");
        log.flush_all().expect("a disk");
        log.begin_segment().expect("a disk");
        drop(log);
        fs::write(folder.path().join(format!("log.{unmade:016x}")), vec![0; left]).expect("ours");
        let log = Log::open(folder.path()).expect("a log");
        assert_eq!(keys(&log), [None, key("b")]);
    }
}

#[test]
fn a_gap_between_segments_is_an_error() {
    let folder = Folder::make("log-gap");
    let mut page = page();
    for key in [b"a", b"b", b"c"] {
        let log = Log::open(folder.path()).expect("a log");
        put(&log, &mut page, key);
        log.flush_all().expect("a disk");
    }
    fs::remove_file(&segments(folder.path())[1]).expect("ours");
    assert!(Log::open(folder.path()).is_err());
}

#[test]
fn many_who_wait_are_served_together() {
    let folder = Folder::make("log-group");
    let log = Log::open(folder.path()).expect("a log");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut page = page();
                for nth in 0..50_u8 {
                    let end = put(&log, &mut page, &[nth]);
                    log.flush(end).expect("a disk");
                    assert!(WriteAhead::durable(&log) >= end);
                }
            });
        }
    });
    drop(log);
    let log = Log::open(folder.path()).expect("a log");
    assert_eq!(keys(&log).len(), 200);
}
