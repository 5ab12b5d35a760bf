//! The store after errors of its log: earlier commits are there, and the cache ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use crate::store::check::check;
use crate::store::Store;
use crate::{with_cache, Folder};
use pumice::cache::{self, Settings};

const FRAMES: usize = 2048;
const KEYS: u64 = 3000;

fn key(nth: u64) -> Vec<u8> {
    format!("key{nth:08}").into_bytes()
}

/// Sets a limit of this process's. Returns the old one.
fn limit(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit is written there.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    let before = limit.rlim_cur;
    limit.rlim_cur = soft.min(limit.rlim_max);
    // SAFETY: a limit is read there.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
    before
}

/// All of these keys are in the store, and it is whole.
fn all_there(folder: &Path, keys: impl Iterator<Item = u64>) {
    with_cache(FRAMES, |cache| {
        let store = Store::open(cache, folder).expect("a store");
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        check(&session).expect("a tree");
        for nth in keys {
            assert!(session.get(&key(nth)).expect("a tree").is_some(), "key {nth}");
        }
    });
}

fn child(name: &str, folder: &Path) {
    let mut command = Command::new(std::env::current_exe().expect("a test"));
    command.args(["--exact", name, "--ignored", "--nocapture"]).env("PUMICE_KV_ERRORS", folder);
    let said = command.output().expect("it starts");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
#[ignore = "a_checkpoint_that_fails_halfway_loses_nothing runs it, with few descriptors"]
fn child_without_descriptors() {
    let Some(folder) = std::env::var_os("PUMICE_KV_ERRORS") else { return };
    with_cache(FRAMES, |cache| {
        let store = Store::open(cache, Path::new(&folder)).expect("a store");
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        (0..100).for_each(|nth| assert!(session.put(&key(nth), b"value").is_ok()));
        // One more for the segment, and none for the folder.
        let next = File::open("/dev/null").expect("it").as_raw_fd() as u64;
        let before = limit(libc::RLIMIT_NOFILE, next + 1);
        assert!(session.checkpoint().is_err());
        limit(libc::RLIMIT_NOFILE, before);
        let ends = (100..200).map(|nth| session.put(&key(nth), b"value").expect("room"));
        session.commit(ends.max().expect("some")).expect("a disk");
    });
}

#[test]
fn a_checkpoint_that_fails_halfway_loses_nothing() {
    let folder = Folder::make("descriptors");
    child("errors::child_without_descriptors", folder.path());
    all_there(folder.path(), 0..200);
}

#[test]
#[ignore = "a_log_that_is_full_leaves_what_was_committed runs it, where no file may grow"]
fn child_without_room() {
    let Some(folder) = std::env::var_os("PUMICE_KV_ERRORS") else { return };
    // SAFETY: that a file may not grow is an error then.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut settings = Settings::new(FRAMES);
    settings.dirty_background = 1;
    let ended = cache::run(&settings, |cache| {
        let store = Store::open(cache, Path::new(&folder)).expect("a store");
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        (0..KEYS).for_each(|nth| assert!(session.put(&key(2 * nth), &[1; 100]).is_ok()));
        session.checkpoint().expect("a disk");
        let before = limit(libc::RLIMIT_FSIZE, 100_000);
        let put = |nth| session.put(&key(2 * nth + 1), &[2; 100]).expect("in memory");
        assert!((0..KEYS).any(|nth| session.commit(put(nth)).is_err()), "the log is full");
        limit(libc::RLIMIT_FSIZE, before);
        // Each changes pages before it is refused.
        assert!((0..KEYS).all(|nth| session.put(&key(2 * nth + 1), &[3; 200]).is_err()));
    });
    assert!(matches!(ended, Err(cache::CacheError::Log { .. })), "{ended:?}");
}

#[test]
fn a_log_that_is_full_leaves_what_was_committed() {
    let folder = Folder::make("room");
    child("errors::child_without_room", folder.path());
    all_there(folder.path(), (0..KEYS).map(|nth| 2 * nth));
}
