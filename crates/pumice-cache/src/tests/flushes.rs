//! Devices that are flushed before a `sync` waits for that.

use rustix::io::Errno;

use super::super::unflushed::LEAST;
use super::*;

const PAGES: usize = 4 * LEAST / FRAME_SIZE;

/// Writes all of the file.
fn write_all(view: &View<'_, '_>, byte: u8) {
    let piece = vec![byte; 64 * FRAME_SIZE];
    (0..PAGES).step_by(64).for_each(|page| {
        view.write_at((page * FRAME_SIZE) as u64, &piece).expect("room");
    });
}

#[test]
fn a_file_that_was_synced_is_flushed_ahead_and_another_is_not() {
    let scratch = Scratch::new("flushed-ahead");
    with_file(&settings(1024), &scratch, |cache, _, file, view| {
        (1..4).for_each(|byte| write_all(view, byte));
        assert_eq!(cache.counts().flushed_ahead, 0, "nobody has asked for it to be durable");
        assert!(!file.inner.unflushed.is_due());
        view.sync().expect("the device is there");
        // Twice `LEAST` may be written now, however fast the device is, and more than that is.
        while cache.counts().flushed_ahead == 0 {
            write_all(view, 4);
        }
        view.sync().expect("the device is there");
        assert!(plainly(&scratch.0).iter().all(|page| *page == [4; FRAME_SIZE]));
    });
}

#[test]
fn an_error_of_a_flush_that_nobody_waits_for_reaches_the_next_sync() {
    let scratch = Scratch::new("flush-fails");
    let ended = run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_or_grow(0).expect("room")[0] = 1;
        view.sync().expect("the device is there");
        let fails = &file.inner.data.fails.sync;
        fails.lock().expect("no panic").push_back(Some(Errno::IO));
        file.inner.flush_ahead();
        assert!(fails.lock().expect("no panic").is_empty(), "it was asked");
        let error = view.sync().expect_err("it is lost");
        assert!(matches!(error, CacheError::Sync { errno: Errno::IO, .. }), "{error}");
    });
    assert!(matches!(ended, Err(CacheError::Sync { .. })), "{ended:?}");
}

#[test]
fn one_flush_is_enough_for_all_that_wait_for_an_overdue_one() {
    let scratch = Scratch::new("overdue");
    with_file(&settings(512), &scratch, |_, _, file, _| {
        let unflushed = &file.inner.unflushed;
        unflushed.end(LEAST, Duration::from_secs(1));
        unflushed.add(2 * LEAST + 2);
        assert!(unflushed.is_overdue());
        // The second would get the error.
        let fails = &file.inner.data.fails.sync;
        fails.lock().expect("no panic").extend([None, Some(Errno::IO)]);
        (0..2).for_each(|_| file.inner.flush_overdue());
        assert!(!unflushed.is_due());
        assert_eq!(fails.lock().expect("no panic").drain(..).count(), 1);
    });
}
