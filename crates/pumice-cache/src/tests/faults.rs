//! Devices that fail, and are short and late.

use rustix::io::Errno;

use super::*;
use pumice_io::engine;
use pumice_io::fake::{FakeEngine, Faults};
use pumice_io::Engines;

fn engines(faults: Faults, seed: u64) -> Engines {
    let made = AtomicU64::new(0);
    Engines::new(move |depth| {
        let nth = made.fetch_add(1, Ordering::Relaxed);
        Box::new(FakeEngine::new(engine::best(depth), faults, seed.wrapping_add(nth << 32)))
    })
}

fn seed() -> u64 {
    let seed = std::env::var("PUMICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("PUMICE_SEED={seed}");
    seed
}

#[test]
fn what_is_short_or_late_is_whole_in_the_end() {
    let faults = Faults { short: 5, late: 4, ..Faults::default() };
    let settings = Settings { engines: engines(faults, seed()), ..settings(512) };
    survives("short", &settings, 2000, (3, 4000));
}

#[test]
fn errors_reach_who_asks_and_nothing_is_lost_by_them() {
    let scratch = Scratch::new("errors");
    const PAGES: usize = 1600;
    let faults = Faults { error: 40, no_space: 60, short: 9, late: 5 };
    let settings = Settings { engines: engines(faults, seed()), ..settings(512) };
    let mut versions = vec![0u8; PAGES];
    with_file(&settings, &scratch, |_, _, file, view| {
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
        let mut errors = 0;
        for round in 0..8000 {
            let random = mix(round);
            let page = random as usize % PAGES;
            if random >> 62 == 0 {
                view.prefetch(&[page, page + 1, page + 2, page / 2]);
            }
            let result = if random >> 63 == 0 {
                view.write(page).map(|mut guard| {
                    check(&guard, page, versions[page]);
                    versions[page] = versions[page] % 200 + 1;
                    fill(&mut guard, page, versions[page]);
                })
            } else {
                view.read(page).map(|guard| check(&guard, page, versions[page]))
            };
            match result {
                Ok(()) => {}
                Err(CacheError::Read { .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
            if round % 1000 == 999 {
                errors += usize::from(view.sync().is_err());
            }
        }
        assert!(errors > 0);
        // In the end all goes: writes that failed are tried again.
        let failed = (0..1000).take_while(|_| view.sync().is_err()).count();
        assert!(failed < 1000 && file.dirty() == 0, "{failed} times, {} dirty", file.dirty());
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, versions[nth]);
        }
        // The thread that makes caches writes the pages that are dirty at the end, and may be told of an error.
    });
}

#[test]
fn an_error_is_told_once_to_each_who_syncs() {
    let scratch = Scratch::new("once");
    let is_failing = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let engines = failing(&is_failing, 0..u64::MAX);
    let settings = Settings { engines, ..settings(512) };
    run(&settings, |cache| {
        let one = cache.open(&scratch.0, &Options::new()).expect("a file");
        let other = one.clone();
        let task = cache.task().expect("room");
        let (one, other) = (task.view(&one).expect("room"), task.view(&other).expect("room"));
        one.write_or_grow(0).expect("room")[0] = 1;
        is_failing.store(true, Ordering::SeqCst);
        let error = one.sync().expect_err("it fails");
        assert!(matches!(error, CacheError::Write { page: 0, .. }), "{error}");
        is_failing.store(false, Ordering::SeqCst);
        assert_eq!(cache.counts().dirty, 1, "kept");
        assert!(other.sync().is_err(), "the other has not been told");
        assert_eq!((one.sync(), other.sync()), (Ok(()), Ok(())));
        assert_eq!(fs::read(&scratch.0).expect("the file")[0], 1);
    })
    .expect("a cache");
}

#[test]
fn a_bad_block_keeps_no_others_from_being_written() {
    let scratch = Scratch::new("bad-block");
    let is_failing = Arc::new(std::sync::atomic::AtomicBool::new(true));
    const BAD: u64 = 7;
    let engines = failing(&is_failing, BAD * 4096..(BAD + 1) * 4096);
    for by_hand in [true, false] {
        let settings = Settings { engines: engines.clone(), dirty_age: SHORT, ..settings(512) };
        run(&settings, |cache| {
            let file = cache.open(&scratch.0, &Options::new()).expect("a file");
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            for page in 0..64 {
                view.write_or_grow(page).expect("room")[0] = page as u8 + u8::from(by_hand);
            }
            if by_hand {
                let error = view.sync().expect_err("one is bad");
                assert!(matches!(error, CacheError::Write { page: 7, .. }), "{error}");
            }
            while file.dirty() > 1 {
                std::thread::sleep(SHORT);
            }
            let there = fs::read(&scratch.0).expect("the file");
            for page in (0..64).filter(|&page| page != BAD as usize) {
                assert_eq!(there[page * FRAME_SIZE], page as u8 + u8::from(by_hand), "{page}");
            }
            is_failing.store(false, Ordering::SeqCst);
            let _ = view.sync();
            assert_eq!((view.sync(), file.dirty()), (Ok(()), 0));
            is_failing.store(true, Ordering::SeqCst);
        })
        .expect("a cache");
    }
}

/// Has the kernel say things, first things first, in answer to calls.
fn say(
    calls: &std::sync::Mutex<std::collections::VecDeque<Option<Errno>>>,
    what: &[Option<Errno>],
) {
    calls.lock().expect("no panic").extend(what);
}

/// Two threads sync; the kernel says once that bytes it had taken are lost.
#[test]
fn a_sync_that_fails_is_told_to_all_who_wait_and_pages_stay() {
    let scratch = Scratch::new("lost");
    let ended = run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for page in 0..20 {
            fill(&mut view.write_or_grow(page).expect("room"), page, 1);
        }
        // One that is interrupted is begun anew.
        say(&file.inner.data.fails.sync, &[Some(Errno::INTR), None, Some(Errno::IO)]);
        view.sync().expect("the device is there");
        let held = (0..10).map(|page| view.write(page).expect("there")).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            let syncing: Vec<_> = (0..2)
                .map(|_| {
                    let file = file.clone();
                    scope.spawn(move || {
                        let task = cache.task().expect("room");
                        let view = task.view(&file).expect("room");
                        view.sync()
                    })
                })
                .collect();
            // Both wait: one for the guards, the other for the first.
            std::thread::sleep(Duration::from_millis(20));
            for (page, mut guard) in held.into_iter().enumerate() {
                fill(&mut guard, page, 2);
            }
            for syncing in syncing {
                let error = syncing.join().expect("no panic").expect_err("it is lost");
                assert!(matches!(error, CacheError::Sync { errno: Errno::IO, .. }), "{error}");
            }
        });
        assert!(file.inner.data.fails.sync.lock().expect("no panic").is_empty(), "it was asked");
        assert_eq!((cache.counts().resident, file.dirty()), (20, 0), "none was dropped");
        // Pages that are made dirty after that are kept, and written too.
        fill(&mut view.write(15).expect("there"), 15, 2);
        assert!(matches!(view.sync(), Err(CacheError::Sync { .. })));
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            let version = if nth < 10 || nth == 15 { 2 } else { 1 };
            check(page, nth, version);
            check(&view.read(nth).expect("in memory"), nth, version);
        }
        assert_eq!(cache.counts().read, 0);
    });
    assert!(matches!(ended, Err(CacheError::Sync { .. })), "{ended:?}");
}

#[test]
fn a_length_that_can_not_be_changed_stays_what_it_was() {
    let scratch = Scratch::new("refused");
    const PAGES: usize = 1100;
    with_file(&settings(512), &scratch, |_, _, file, view| {
        let fails = &file.inner.data.fails.set_len;
        for page in 0..20 {
            fill(&mut view.write_or_grow(page).expect("room"), page, 1);
        }
        for len in [3, 19 * FRAME_SIZE + 5, 30 * FRAME_SIZE] {
            say(fails, &[Some(Errno::NOSPC)]);
            let error = view.set_len(len as u64).expect_err("no room");
            assert!(matches!(error, CacheError::Resize { errno: Errno::NOSPC, .. }), "{error}");
            assert_eq!((view.pages(), file.dirty()), (20, 20), "as it was");
            (0..20).for_each(|page| check(&view.read(page).expect("there"), page, 1));
        }
        // Longer in memory, of which a sync of the first pages has to tell the device.
        fill(&mut view.write_or_grow(PAGES - 1).expect("room"), PAGES - 1, 1);
        say(fails, &[Some(Errno::IO)]);
        let error = view.sync_range(0..1).expect_err("the length");
        assert!(matches!(error, CacheError::Sync { errno: Errno::IO, .. }), "{error}");
        assert_eq!((view.pages(), file.dirty()), (PAGES, 1), "kept");
        assert!(fails.lock().expect("no panic").is_empty(), "it was asked");
        // That says nothing of what the device had taken, so the next one may go.
        view.sync().expect("the device is there");
        let in_file = plainly(&scratch.0);
        assert_eq!(in_file.len(), PAGES);
        (0..20).chain([PAGES - 1]).for_each(|page| check(&in_file[page], page, 1));
    });
}

/// The device is full when half of the blocks are there.
#[test]
fn blocks_that_can_not_be_had_leave_the_file_as_long_and_as_large_as_it_was() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("half-allocated");
    with_file(&settings(512), &scratch, |_, _, file, view| {
        let there = || {
            let there = fs::metadata(&scratch.0).expect("the file");
            (there.len(), there.blocks() * 512)
        };
        view.write_at(0, &[7; 3 * FRAME_SIZE + 5]).expect("room");
        view.sync().expect("the device is there");
        let before = there();
        // One page is longer in memory than the file is on the device.
        view.write_or_grow(9).expect("room")[0] = 8;
        for fails in [&file.inner.data.fails.allocate, &file.inner.data.fails.set_len] {
            say(fails, &[Some(Errno::NOSPC)]);
            let error = view.allocate(4 << 20).expect_err("no room");
            assert!(matches!(error, CacheError::Resize { errno: Errno::NOSPC, .. }), "{error}");
            assert_eq!((view.pages(), there()), (10, before));
        }
        view.allocate(0).expect("nothing to do");
        view.allocate(4 << 20).expect("room");
        let (len, bytes) = there();
        assert_eq!((view.len(), len), (4 << 20, 4 << 20));
        assert!(bytes >= len || bytes <= before.1 + FRAME_SIZE as u64, "all of them, or it can't");
        view.sync().expect("the device is there");
        let in_file = fs::read(&scratch.0).expect("the file");
        assert_eq!(
            [0, 3 * FRAME_SIZE + 4, 3 * FRAME_SIZE + 5, 9 * FRAME_SIZE].map(|at| in_file[at]),
            [7, 7, 0, 8]
        );
    });
}

#[test]
fn what_could_not_be_made_durable_is_told_until_the_file_is_closed() {
    let scratch = Scratch::new("not-durable");
    run(&settings(512), |cache| {
        let one = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        task.view(&one).expect("room").write_or_grow(0).expect("room")[0] = 1;
        one.inner.note_sync_error(Errno::IO);
        let other = one.clone();
        for file in [&one, &one, &other] {
            let error = task.view(file).expect("room").sync().expect_err("nobody knows");
            assert!(matches!(error, CacheError::Sync { .. }), "{error}");
        }
        assert_eq!(one.dirty(), 0, "it is written");
        drop(other);
        assert!(matches!(task.close(one), Err(CacheError::Sync { .. })));
        let again = cache.open(&scratch.0, &Options::new()).expect("a file");
        let view = task.view(&again).expect("room");
        assert_eq!((view.sync(), view.read(0).expect("in the file")[0]), (Ok(()), 1));
    })
    .expect("a cache");
}

const SHORT: Duration = Duration::from_millis(2);

fn failing(
    is_failing: &Arc<std::sync::atomic::AtomicBool>,
    there: std::ops::Range<u64>,
) -> Engines {
    let fails = is_failing.clone();
    Engines::new(move |depth| {
        let (fails, there) = (fails.clone(), there.clone());
        Box::new(Failing { engine: engine::best(depth), done: Vec::new(), fails, there })
    })
}

/// Fails all writes to a place when it is told to.
struct Failing {
    engine: pumice_io::AnyEngine,
    done: Vec<pumice_io::Completion>,
    fails: Arc<std::sync::atomic::AtomicBool>,
    there: std::ops::Range<u64>,
}

// SAFETY: as the engine inside, which is not asked for the requests that fail.
unsafe impl pumice_io::Engine for Failing {
    fn depth(&self) -> usize {
        self.engine.depth()
    }

    unsafe fn submit(&mut self, request: pumice_io::Request) -> std::result::Result<(), Errno> {
        let end = request.offset + request.bytes.len() as u64;
        let is_there = request.offset < self.there.end && self.there.start < end;
        let is_write = request.direction == engine::Direction::Write;
        if self.fails.load(Ordering::SeqCst) && is_write && is_there {
            let result = Err(Errno::IO);
            self.done.push(pumice_io::Completion { token: request.token, result });
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.engine.submit(request) }
    }

    fn wait(&mut self, least: usize) -> std::result::Result<(), Errno> {
        self.engine.wait(least.saturating_sub(self.done.len()))
    }

    fn next(&mut self) -> Option<pumice_io::Completion> {
        self.done.pop().or_else(|| self.engine.next())
    }
}

#[test]
fn blocks_that_were_had_stay_where_more_can_not_be_had() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("promised");
    with_file(&settings(512), &scratch, |_, _, file, view| {
        view.write_at(0, &[7; 3 * FRAME_SIZE]).expect("room");
        view.sync().expect("the device is there");
        // Longer than on the device.
        view.write_or_grow(99).expect("room")[0] = 8;
        view.allocate(100 * FRAME_SIZE as u64).expect("room");
        let blocks = || fs::metadata(&scratch.0).expect("the file").blocks();
        let before = blocks();
        say(&file.inner.data.fails.allocate, &[Some(Errno::NOSPC)]);
        view.allocate(4 << 20).expect_err("no room");
        assert!(blocks() >= before, "{} of {before}", blocks());
    });
}

/// As NFS: a file that gets blocks becomes longer by that.
#[test]
fn where_there_are_no_blocks_beyond_the_end_the_file_is_longer_if_it_gets_them_and_else_is_not() {
    let scratch = Scratch::new("as-nfs");
    with_file(&settings(512), &scratch, |_, _, file, view| {
        let len = || fs::metadata(&scratch.0).expect("the file").len();
        view.write_at(0, &[7; 3 * FRAME_SIZE + 5]).expect("room");
        view.sync().expect("the device is there");
        let before = len();
        let allocate = &file.inner.data.fails.allocate;
        // Half of it is there then, and the file so long.
        say(allocate, &[Some(Errno::OPNOTSUPP), Some(Errno::NOSPC)]);
        let error = view.allocate(4 << 20).expect_err("no room");
        assert!(matches!(error, CacheError::Resize { errno: Errno::NOSPC, .. }), "{error}");
        assert_eq!((view.len(), len()), (before, before));
        // One page is longer in memory than the file is on the device.
        view.write_or_grow(9).expect("room")[0] = 8;
        say(allocate, &[Some(Errno::OPNOTSUPP), Some(Errno::INTR), None, Some(Errno::NOSPC)]);
        view.allocate(8 << 20).expect_err("no room");
        assert_eq!(view.len(), 10 * FRAME_SIZE as u64);
        assert!((before..=view.len()).contains(&len()), "{}", len());
        say(allocate, &[Some(Errno::OPNOTSUPP), None]);
        view.allocate(4 << 20).expect("room");
        assert!(allocate.lock().expect("no panic").is_empty(), "it was asked");
        assert_eq!((view.len(), len()), (4 << 20, 4 << 20));
        view.sync().expect("the device is there");
        let in_file = fs::read(&scratch.0).expect("the file");
        assert_eq!(
            [0, 3 * FRAME_SIZE + 4, 3 * FRAME_SIZE + 5, 9 * FRAME_SIZE].map(|at| in_file[at]),
            [7, 7, 0, 8]
        );
    });
}

/// The call in which an engine panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Submit,
    Wait,
    Next,
    Drop,
}

struct Panicking {
    engine: pumice_io::AnyEngine,
    call: Call,
    /// Panics to come.
    left: Arc<AtomicU64>,
}

impl Panicking {
    fn come_to(&self, call: Call) {
        let less = |left: u64| left.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if call == self.call && self.left.fetch_update(relaxed, relaxed, less).is_ok() {
            // A payload that panics again.
            std::panic::panic_any(Bomb);
        }
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

// SAFETY: as the engine inside.
unsafe impl pumice_io::Engine for Panicking {
    fn depth(&self) -> usize {
        self.engine.depth()
    }

    unsafe fn submit(&mut self, request: pumice_io::Request) -> std::result::Result<(), Errno> {
        self.come_to(Call::Submit);
        // SAFETY: the caller's promise.
        unsafe { self.engine.submit(request) }
    }

    fn wait(&mut self, least: usize) -> std::result::Result<(), Errno> {
        self.come_to(Call::Wait);
        self.engine.wait(least)
    }

    fn next(&mut self) -> Option<pumice_io::Completion> {
        self.come_to(Call::Next);
        self.engine.next()
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        self.come_to(Call::Drop);
    }
}

#[test]
fn an_engine_that_panics_loses_nothing() {
    const PAGES: usize = 900;
    for call in [Call::Submit, Call::Wait, Call::Next, Call::Drop] {
        let scratch = Scratch::new("panicking");
        let left = Arc::new(AtomicU64::new(0));
        let to_come = left.clone();
        let engines = Engines::new(move |depth| {
            let (engine, left) = (engine::best(depth), to_come.clone());
            Box::new(Panicking { engine, call, left })
        });
        let settings = Settings { engines, ..settings(512) };
        run(&settings, |cache| {
            let file = cache.open(&scratch.0, &Options::new()).expect("a file");
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
            for version in 1..4 {
                left.store(3, Ordering::Relaxed);
                for page in 0..PAGES {
                    // A read of the page's old content may fail by it.
                    let guard = (0..9).find_map(|_| view.write(page).ok());
                    fill(&mut guard.expect("in the end"), page, version);
                }
                // The next sync tries again.
                let synced = (0..9).any(|_| view.sync().is_ok());
                assert!(synced && file.dirty() == 0, "{call:?}");
                left.store(0, Ordering::Relaxed);
                assert_eq!(view.sync(), Ok(()));
                let written = fs::read(&scratch.0).expect("the file");
                for (page, bytes) in written.chunks(FRAME_SIZE).enumerate() {
                    check(bytes.try_into().expect("a page"), page, version);
                }
            }
        })
        .expect("a cache");
    }
}

/// A log that panics when the last handle goes.
struct LastWord;

impl WriteAhead for LastWord {
    fn position(&self, _: usize, _: &[u8; FRAME_SIZE]) -> u64 {
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn wanted(&self, _: u64) {}
}

impl Drop for LastWord {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn a_log_whose_end_panics_takes_no_thread_along() {
    let scratch = Scratch::new("last-word");
    let work = |cache: &Cache<'_>| {
        let task = cache.task().expect("room");
        let file = {
            let rule = Arc::new(LastWord);
            cache.open(&scratch.0, &Options::new().write_ahead(rule)).expect("a file")
        };
        task.view(&file).expect("room").write_at(0, b"it").expect("room");
        task.close(file).expect("no panic");
    };
    run(&settings(64), work).expect("no panic");
}
