//! Devices that fail, and are short and late.

use super::*;
use crate::io::engine;
use crate::io::fake::{FakeEngine, Faults};
use crate::io::Engines;

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
    run(&settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
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
        // In the end all goes: what failed is tried again.
        let failed = (0..1000).take_while(|_| view.sync().is_err()).count();
        assert!(failed < 1000 && file.dirty() == 0, "{failed} times, {} dirty", file.dirty());
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, versions[nth]);
        }
        // What is dirty at the end is written by who makes caches, who may be told of an error.
    })
    .expect("a cache");
}

#[test]
fn an_error_is_told_once_to_each_who_syncs() {
    let scratch = Scratch::new("once");
    let is_failing = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let fails = is_failing.clone();
    let engines = Engines::new(move |depth| {
        Box::new(Failing { engine: engine::best(depth), done: Vec::new(), fails: fails.clone() })
    });
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
fn what_could_not_be_made_durable_is_told_until_the_file_is_closed() {
    let scratch = Scratch::new("not-durable");
    run(&settings(512), |cache| {
        let one = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        task.view(&one).expect("room").write_or_grow(0).expect("room")[0] = 1;
        one.inner.note_sync_error(rustix::io::Errno::IO);
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

/// Fails all writes when it is told to.
struct Failing {
    engine: crate::io::AnyEngine,
    done: Vec<crate::io::Completion>,
    fails: Arc<std::sync::atomic::AtomicBool>,
}

impl crate::io::Engine for Failing {
    fn depth(&self) -> usize {
        self.engine.depth()
    }

    unsafe fn submit(
        &mut self,
        request: crate::io::Request,
    ) -> std::result::Result<(), rustix::io::Errno> {
        if self.fails.load(Ordering::SeqCst) && request.direction == engine::Direction::Write {
            let result = Err(rustix::io::Errno::IO);
            self.done.push(crate::io::Completion { token: request.token, result });
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.engine.submit(request) }
    }

    fn wait(&mut self, least: usize) -> std::result::Result<(), rustix::io::Errno> {
        self.engine.wait(least.saturating_sub(self.done.len()))
    }

    fn next(&mut self) -> Option<crate::io::Completion> {
        self.done.pop().or_else(|| self.engine.next())
    }
}
