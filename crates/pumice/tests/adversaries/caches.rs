//! Files of a cache that is no more, or another's; guards that are forgotten; a log that panics.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use pumice::cache::{run, CacheError, Options, Settings, WriteAhead};
use pumice::io::engine::best;
use pumice::io::Engines;

use crate::Scratch;

#[test]
fn a_file_outlives_its_cache_and_is_refused_in_others() {
    let scratch = Scratch::new("outlives");
    let file = run(&Settings::new(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        task.view(&file).expect("room").write_at(0, b"mine").expect("room");
        file
    });
    let file = file.expect("a cache");
    assert_eq!(std::fs::read(&scratch.0).expect("there"), b"mine");
    run(&Settings::new(512), |cache| {
        let task = cache.task().expect("room");
        let of_other = task.view(&file).map(|_| ()).expect_err("another cache's");
        assert!(matches!(of_other, CacheError::OtherCache(_)), "{of_other}");
        assert!(task.close(file.clone()).is_err());
    })
    .expect("a cache");
}

/// A page of which a guard for reading is forgotten can be written back, and not be written to.
#[test]
fn a_guard_that_is_forgotten_keeps_no_sync_waiting() {
    let scratch = Scratch::new("forgotten");
    run(&Settings::new(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[3; 9000]).expect("room");
        std::mem::forget(view.read(0).expect("there"));
        view.sync().expect("the device is there");
        assert!(view.try_write(0).is_err(), "somebody reads it");
    })
    .expect("a cache");
    assert_eq!(std::fs::read(&scratch.0).expect("there"), [3; 9000]);
}

/// A page of which a guard for writing is forgotten is not written, and the end of the cache says so; others are.
#[test]
fn a_guard_for_writing_that_is_forgotten_keeps_no_cache_from_its_end() {
    let scratch = Scratch::new("forgotten-mut");
    let ended = run(&Settings::new(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[3; 5 * 4096]).expect("room");
        view.sync().expect("the device is there");
        view.write_at(0, &[4; 5 * 4096]).expect("room");
        std::mem::forget(view.write(2).expect("there"));
    });
    assert!(matches!(ended, Err(CacheError::Held { page: 2, .. })), "{ended:?}");
    let there = std::fs::read(&scratch.0).expect("there");
    let of_page = |page: usize| if page == 2 { 3 } else { 4 };
    assert!(there.iter().enumerate().all(|(at, &byte)| byte == of_page(at / 4096)));
}

/// A way of making engines that panics, whichever call it is: plain calls take its place.
#[test]
fn engines_that_are_not_made_keep_nobody_waiting() {
    for nth in 0..6 {
        let calls = AtomicUsize::new(0);
        let mut settings = Settings::new(512);
        (settings.dirty_background, settings.dirty_most) = (20, 60);
        settings.engines = Engines::new(move |depth| {
            assert!(calls.fetch_add(1, Ordering::Relaxed) != nth, "no engine");
            best(depth)
        });
        let scratch = Scratch::new(&format!("engines-{nth}"));
        let ended = run(&settings, |cache| {
            let file = cache.open(&scratch.0, &Options::new()).expect("a file");
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            for page in 0..1000 {
                view.write_or_grow(page).expect("room")[0] = 1;
            }
            view.sync().expect("the device is there");
            assert!((0..1000).all(|page| view.read(page).expect("there")[0] == 1));
        });
        ended.expect("all is synced");
    }
}

struct Panics;

impl WriteAhead for Panics {
    fn position(&self, _: usize, _: &[u8; 4096]) -> u64 {
        panic!("no position")
    }
    fn durable(&self) -> u64 {
        panic!("nothing is durable")
    }
    fn wanted(&self, _: u64) {
        panic!("not wanted")
    }
}

#[test]
fn a_log_that_panics_has_failed() {
    let scratch = Scratch::new("panics");
    let synced = run(&Settings::new(512), |cache| {
        let options = Options::new().write_ahead(Arc::new(Panics));
        let file = cache.open(&scratch.0, &options).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[3; 9000]).expect("room");
        let error = view.sync().expect_err("the log has failed");
        assert!(matches!(error, CacheError::Log { .. }), "{error}");
        assert_eq!(view.read(1).expect("there")[0], 3);
    });
    assert!(synced.is_err(), "and it is said at the end");
}

/// The payload of its panic panics when it is dropped.
struct PanicsTwice;

struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "and again");
    }
}

impl WriteAhead for PanicsTwice {
    fn position(&self, _: usize, _: &[u8; 4096]) -> u64 {
        std::panic::panic_any(Again)
    }
    fn durable(&self) -> u64 {
        0
    }
    fn wanted(&self, _: u64) {}
}

#[test]
fn a_log_that_panics_with_what_panics_has_failed_for_good() {
    let scratch = Scratch::new("panics-twice");
    let synced = run(&Settings::new(512), |cache| {
        let options = Options::new().write_ahead(Arc::new(PanicsTwice));
        let file = cache.open(&scratch.0, &options).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[3; 9000]).expect("room");
        for _ in 0..3 {
            let sync = || view.sync();
            let synced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(sync));
            assert!(!matches!(synced, Ok(Ok(()))), "nothing was written");
        }
    });
    assert!(synced.is_err(), "and it is said at the end");
    assert_ne!(std::fs::read(&scratch.0).expect("there"), [3; 9000]);
}
