//! Devices that are flushed before a `sync` waits for that.

use rustix::io::Errno;

use super::super::unflushed::{Why, LEAST};
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

/// A flush is due.
fn make_due(file: &File) {
    let unflushed = &file.inner.unflushed;
    unflushed.add(16 * LEAST);
    unflushed.end(unflushed.begin(Why::Sync), Duration::from_secs(9));
    unflushed.add(LEAST + 1);
    assert!(unflushed.is_due());
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
        make_due(&file);
        file.inner.flush_ahead();
        assert!(fails.lock().expect("no panic").is_empty(), "it was asked");
        let error = view.sync().expect_err("it is lost");
        assert!(matches!(error, CacheError::Sync { errno: Errno::IO, .. }), "{error}");
    });
    assert!(matches!(ended, Err(CacheError::Sync { .. })), "{ended:?}");
}

#[test]
fn a_flush_that_is_not_due_any_more_is_left() {
    let scratch = Scratch::new("not-due");
    with_file(&settings(512), &scratch, |_, _, file, view| {
        make_due(file);
        view.sync().expect("the device is there");
        let fails = &file.inner.data.fails.sync;
        fails.lock().expect("no panic").push_back(None);
        file.inner.flush_ahead();
        assert_eq!(fails.lock().expect("no panic").drain(..).count(), 1, "nobody has asked");
    });
}

/// Files whose devices answer are written, synced and closed meanwhile, as the file itself is written.
#[test]
fn nobody_waits_for_the_device_of_another_file() {
    let (scratch, other) = (Scratch::new("flush-hangs"), Scratch::new("flush-goes-on"));
    with_file(&settings(512), &scratch, |cache, task, file, view| {
        view.set_len((600 * FRAME_SIZE) as u64).expect("room");
        make_due(file);
        let hangs = file.inner.data.fails.sync.lock().expect("no panic");
        cache.files.want_device_flushed();
        while file.inner.flushing.try_lock().is_some() {
            std::thread::yield_now();
        }
        let second = cache.open(&other.0, &Options::new()).expect("a file");
        let beside = task.view(&second).expect("room");
        for page in 0..600 {
            view.overwrite(page, &[1; FRAME_SIZE]).expect("a frame");
            beside.write_at((page * FRAME_SIZE) as u64, &[2; FRAME_SIZE]).expect("a frame");
        }
        beside.sync().expect("the device is there");
        drop(beside);
        task.close(second).expect("nobody else has it");
        assert!(file.inner.flushing.try_lock().is_none(), "it hangs still");
        drop(hangs);
        view.sync().expect("the device is there");
    });
}
