//! The tree beside a `BTreeMap`, and under many threads.

use std::collections::BTreeMap;
use std::path::Path;

use fastrand::Rng;

use pumice::cache::{Cache, CacheError, Options};

use crate::store::check::check;
use crate::store::{Error, Session, Store};
use crate::{with_cache, Folder};

/// Few frames, so that pages come and go.
const FRAMES: usize = 512;

fn with_session<R>(
    cache: &Cache<'_>,
    folder: &Path,
    work: impl FnOnce(&Session<'_, '_>) -> R,
) -> R {
    let store = Store::open(cache, folder).expect("a store");
    let task = cache.task().expect("a task");
    let session = store.session(&task).expect("a session");
    work(&session)
}

fn key(random: &mut Rng, kinds: u64) -> Vec<u8> {
    let kind = random.u64(..kinds);
    // Lengths of all sizes, the same for the same key.
    let len = Rng::with_seed(kind).u64(..if kind % 7 == 0 { 400 } else { 24 }) as usize;
    let mut key = kind.to_be_bytes()[4..].to_vec();
    key.resize(key.len().max(len), b'k');
    key
}

fn compare(session: &Session<'_, '_>, map: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let shape = check(session).expect("a tree");
    assert_eq!(shape.entries, map.len());
    let all: Vec<_> = session.range(b"").expect("a way").map(|entry| entry.expect("one")).collect();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(map));
}

/// Changes at random; now and then everything is closed and opened again, or a checkpoint is made.
#[test]
fn a_tree_is_a_map() {
    let seed = Rng::with_seed(std::process::id().into()).u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for kinds in [50, 2000, 20_000] {
        let folder = Folder::make("tree-map");
        let mut map = BTreeMap::new();
        for _ in 0..4 {
            with_cache(FRAMES, |cache| {
                with_session(cache, folder.path(), |session| {
                    compare(session, &map);
                    for _ in 0..4000 {
                        let key = key(&mut random, kinds);
                        match random.u64(..10) {
                            0..=5 => {
                                let most = if random.u64(..8) == 0 { 500 } else { 60 };
                                let len = random.u64(..most) as usize;
                                let value = vec![random.u8(..); len];
                                session.put(&key, &value).expect("room");
                                map.insert(key, value);
                            }
                            6 | 7 => {
                                let removed = session.remove(&key).expect("a tree").is_some();
                                assert_eq!(removed, map.remove(&key).is_some());
                            }
                            8 => assert_eq!(
                                session.get(&key).expect("a tree").as_ref(),
                                map.get(&key)
                            ),
                            _ => {
                                let few = session.range(&key).expect("a tree").take(5);
                                let few: Vec<_> = few.map(|entry| entry.expect("one")).collect();
                                let wanted = map.range(key..).take(5);
                                assert!(few.iter().map(|(key, value)| (key, value)).eq(wanted));
                            }
                        }
                        if random.u64(..2000) == 0 {
                            session.checkpoint().expect("a disk");
                        }
                    }
                    compare(session, &map);
                });
            });
        }
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let folder = Folder::make("tree-long");
    with_cache(FRAMES, |cache| {
        with_session(cache, folder.path(), |session| {
            let long = session.put(&[1; 401], b"");
            assert!(matches!(long, Err(Error::TooLong { key: 401, value: 0 })), "{long:?}");
            assert!(session.put(&[1; 400], &[2; 501]).is_err());
            session.put(&[1; 400], &[2; 500]).expect("room");
            assert_eq!(session.get(&[1; 400]).expect("a tree"), Some(vec![2; 500]));
            assert_eq!(session.get(b"").expect("a tree"), None);
        });
    });
}

#[test]
fn what_is_no_store_is_left_alone() {
    let folder = Folder::make("tree-none");
    let tree = folder.path().join("tree");
    // Of another program, and of one with a cache like this.
    let mut of_a_cache = vec![0; 8192];
    of_a_cache[..4].copy_from_slice(b"what");
    std::fs::write(&tree, &of_a_cache).expect("ours");
    with_cache(FRAMES, |cache| {
        let options = Options::new().checksums(24);
        let file = cache.open(&tree, &options).expect("a file");
        let task = cache.task().expect("a task");
        task.view(&file).expect("a view").write_at(0, &of_a_cache).expect("room");
    });
    let of_a_cache = std::fs::read(&tree).expect("ours");
    for bytes in [vec![3; 8192], of_a_cache] {
        std::fs::write(&tree, &bytes).expect("ours");
        with_cache(FRAMES, |cache| {
            let opened = Store::open(cache, folder.path());
            let is_refused = matches!(
                opened,
                Err(Error::NoStore(_) | Error::Cache(CacheError::Checksum { page: 0, .. }))
            );
            assert!(is_refused, "{opened:?}");
        });
        assert!(std::fs::read(&tree).expect("ours") == bytes, "it was changed");
    }
}

/// Each thread writes keys of its own, which lie between the others', and reads everybody's.
#[test]
fn threads_do_not_lose_what_others_write() {
    const THREADS: u64 = 4;
    const EACH: u64 = 4000;
    let folder = Folder::make("tree-threads");
    with_cache(FRAMES, |cache| {
        let store = Store::open(cache, folder.path()).expect("a store");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let store = &store;
                scope.spawn(move || {
                    let task = cache.task().expect("a task");
                    let session = store.session(&task).expect("a session");
                    let mut random = Rng::with_seed(thread);
                    let key = |nth: u64| (nth * 7919 % EACH * THREADS + thread).to_be_bytes();
                    for nth in 0..EACH {
                        session
                            .put(&key(nth), &vec![thread as u8; random.u64(..80) as usize])
                            .expect("room");
                        let one = random.u64(..nth + 1);
                        let value = session.get(&key(one)).expect("a tree").expect("it was put");
                        assert!(value.iter().all(|&byte| u64::from(byte) == thread));
                        if nth % 500 == 0 {
                            let all = session.range(b"").expect("a tree");
                            let keys: Vec<_> = all.map(|entry| entry.expect("one").0).collect();
                            assert!(keys.windows(2).all(|two| two[0] < two[1]), "in order");
                        }
                        if nth % 1000 == 0 && thread == 0 {
                            session.checkpoint().expect("a disk");
                        }
                    }
                    for nth in (0..EACH).step_by(2) {
                        assert!(session.remove(&key(nth)).expect("a tree").is_some());
                    }
                });
            }
        });
        let task = cache.task().expect("a task");
        let session = store.session(&task).expect("a session");
        let before = store.log_len();
        session.checkpoint().expect("a disk");
        assert!(store.log_len() < before.min(16 << 10), "{before}");
        let shape = check(&session).expect("a tree");
        assert_eq!(shape.entries as u64, THREADS * EACH / 2);
        assert!(shape.height > 1 && shape.nodes > 100, "{shape:?}");
    });
}
