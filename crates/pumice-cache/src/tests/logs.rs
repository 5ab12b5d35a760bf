//! The log before the page.

use std::sync::Mutex;

use super::*;
use crate::inner::Change;

/// A log of which somebody else says how far it is durable. The page's first word is the position it needs.
#[derive(Default)]
struct Log {
    durable: AtomicU64,
    wanted: AtomicU64,
}

impl WriteAhead for Log {
    fn position(&self, _: usize, bytes: &Page) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().expect("a word"))
    }

    fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    fn wanted(&self, position: u64) {
        self.wanted.fetch_max(position, Ordering::SeqCst);
    }
}

#[test]
fn no_page_is_written_before_its_log() {
    let scratch = Scratch::new("log");
    let log = Arc::new(Log::default());
    const PAGES: usize = 2000;
    let settings =
        Settings { dirty_background: 10, dirty_age: Duration::from_millis(4), ..settings(512) };
    let written = Mutex::new(vec![0u64; PAGES]);
    run(&settings, |cache| {
        let options = Options::new().write_ahead(log.clone());
        let file = cache.open(&scratch.0, &options).expect("a file");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The log's own thread: a little further each time, and never further than is wanted. The file's bytes
                // are no newer than those that were durable when it was looked at last.
                while !is_over.load(Ordering::Relaxed) {
                    let (durable, wanted) = (log.durable(), log.wanted.load(Ordering::SeqCst));
                    let file = fs::read(&scratch.0).expect("the file");
                    for page in file.chunks_exact(FRAME_SIZE) {
                        let position = u64::from_le_bytes(page[..8].try_into().expect("a word"));
                        assert!(
                            position <= durable,
                            "{position} is written, and {durable} durable"
                        );
                    }
                    log.durable.store(wanted.min(durable + 300).max(durable), Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            let mut position = 0;
            for round in 0..6000 {
                let page = mix(round) as usize % PAGES;
                position += 1;
                let mut guard = view.write_or_grow(page).expect("room");
                guard[..8].copy_from_slice(&u64::to_le_bytes(position));
                drop(guard);
                written.lock().expect("no panic")[page] = position;
                if round % 1500 == 0 {
                    view.sync().expect("the log comes");
                    assert!(log.durable() >= position, "{} of {position}", log.durable());
                }
            }
            view.sync().expect("the log comes");
            is_over.store(true, Ordering::Relaxed);
        });
        let in_file = plainly(&scratch.0);
        for (page, &position) in written.lock().expect("no panic").iter().enumerate() {
            let found = in_file
                .get(page)
                .map_or(0, |page| u64::from_le_bytes(page[..8].try_into().expect("a word")));
            assert_eq!(found, position, "page {page}");
        }
    })
    .expect("a cache");
}

/// A log that is durable once it was asked so often.
struct Slow(AtomicU64);

impl WriteAhead for Slow {
    fn position(&self, _: usize, _: &Page) -> u64 {
        1
    }

    fn durable(&self) -> u64 {
        u64::from(self.0.fetch_add(1, Ordering::SeqCst) >= 1000)
    }

    fn wanted(&self, _: u64) {}
}

#[test]
fn pages_that_waited_for_the_log_are_written_together() {
    let scratch = Scratch::new("together");
    let settings = Settings {
        dirty_background: 4000,
        dirty_most: 4000,
        dirty_age: Duration::from_secs(600),
        ..settings(4096)
    };
    run(&settings, |cache| {
        let options = Options::new().write_ahead(Arc::new(Slow(AtomicU64::new(0))));
        let file = cache.open(&scratch.0, &options).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for page in 0..1000 {
            fill(&mut view.write_or_grow(page).expect("room"), page, 1);
        }
        view.sync().expect("the log comes");
        let counts = cache.counts();
        assert_eq!((counts.written, file.dirty()), (1000, 0));
        assert!(counts.write_requests <= 50, "{counts:?}");
        plainly(&scratch.0).iter().enumerate().for_each(|(nth, page)| check(page, nth, 1));
    })
    .expect("a cache");
}

/// A log that ends, or panics.
#[derive(Default)]
struct Broken {
    has_failed: std::sync::atomic::AtomicBool,
    panics: std::sync::atomic::AtomicBool,
}

impl WriteAhead for Broken {
    fn position(&self, page: usize, _: &Page) -> u64 {
        assert!(!self.panics.load(Ordering::SeqCst), "as it is meant to");
        page as u64
    }

    fn durable(&self) -> u64 {
        1
    }

    fn wanted(&self, _: u64) {}

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}

#[test]
fn a_log_that_fails_is_not_waited_for() {
    for panics in [false, true] {
        let scratch = Scratch::new(if panics { "panics" } else { "fails" });
        let log = Arc::new(Broken::default());
        let settings = Settings { dirty_background: 0, ..settings(512) };
        let ended = run(&settings, |cache| {
            let options = Options::new().write_ahead(log.clone());
            let file = cache.open(&scratch.0, &options).expect("a file");
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            view.set_len(1000 * FRAME_SIZE as u64).expect("room");
            log.panics.store(panics, Ordering::SeqCst);
            log.has_failed.store(!panics, Ordering::SeqCst);
            for page in 0..4 {
                view.write(page).expect("room")[0] = 7;
            }
            for _ in 0..2 {
                let error = view.sync().expect_err("it has failed");
                assert!(matches!(error, CacheError::Log { .. }), "{error}");
            }
            // Pages that are not written stay, and all else goes on.
            for page in 4..1000 {
                assert_eq!(view.read(page).expect("room")[0], 0);
            }
            assert!((0..4).all(|page| view.read(page).expect("in memory")[0] == 7));
            assert_eq!(file.dirty(), if panics { 4 } else { 2 });
        });
        assert!(matches!(ended, Err(CacheError::Log { .. })));
        let in_file = plainly(&scratch.0);
        let first: Vec<u8> = in_file[..4].iter().map(|page| page[0]).collect();
        assert_eq!(first, if panics { [0; 4] } else { [7, 7, 0, 0] });
    }
}

/// A page that the log allows may wait for the file's length, and then goes, though the log has failed.
#[test]
fn a_log_that_has_failed_is_not_blamed_for_what_waits_for_the_length() {
    let scratch = Scratch::new("not-blamed");
    let log = Arc::new(Broken::default());
    let settings = Settings { dirty_background: 10_000, ..settings(512) };
    let ended = run(&settings, |cache| {
        let options = Options::new().write_ahead(log.clone());
        let file = cache.open(&scratch.0, &options).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.set_len(8 * FRAME_SIZE as u64).expect("room");
        log.has_failed.store(true, Ordering::SeqCst);
        let synced = || {
            // As a thread that changes the length has it, until the device has said that there is no room.
            file.inner.set_change(Change::Stopped);
            std::thread::scope(|scope| {
                let syncing = scope.spawn(|| {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    view.sync()
                });
                std::thread::sleep(Duration::from_millis(20));
                assert!(!syncing.is_finished(), "it waits for that");
                file.inner.set_change(Change::Still);
                syncing.join().expect("no panic")
            })
        };
        view.write(0).expect("there")[0] = 7;
        assert_eq!((synced(), file.dirty()), (Ok(()), 0));
        view.write(1).expect("there")[0] = 7;
        view.write(5).expect("there")[0] = 7;
        assert!(matches!(synced(), Err(CacheError::Log { .. })), "page 5 waits for it");
        assert_eq!(file.dirty(), 1, "and page 1 is written");
    });
    assert!(matches!(ended, Err(CacheError::Log { .. })), "{ended:?}");
    let first: Vec<u8> = plainly(&scratch.0).iter().map(|page| page[0]).collect();
    assert_eq!(first, [7, 7, 0, 0, 0, 0, 0, 0]);
}
