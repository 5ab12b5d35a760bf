//! Caches over real files: all that is written is there, in memory and in the file, whatever goes wrong.

mod bytes;
mod faults;
mod flushes;
mod frames;
mod lengths;
mod logs;
mod races;
mod ranges;
mod scan;
mod scan_io;
mod stopped;
mod use_of;
mod used;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::*;
use pumice_paging::space::region::Page;
use tempfile::TempPath;

/// A path that is nobody else's, gone with this.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch::in_folder(&std::env::temp_dir(), name)
    }

    fn in_folder(folder: &Path, name: &str) -> Scratch {
        let prefix = format!("pumice-cache-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make_in(folder, |_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }
}

/// A number that looks random, and follows from another.
fn mix(state: u64) -> u64 {
    fastrand::Rng::with_seed(state).u64(..)
}

/// Fills a page as it is when it was written for the `version`th time: words that say where and when, and a sum of
/// them.
fn fill(page: &mut Page, nth: usize, version: u8) {
    if version == 0 {
        return page.fill(0);
    }
    let mut sum = 0u64;
    let (words, last) = page.split_at_mut(FRAME_SIZE - 8);
    for (at, word) in words.chunks_exact_mut(8).enumerate() {
        let value = mix((nth as u64) << 20 | u64::from(version) << 12 | at as u64);
        sum = sum.rotate_left(1) ^ value;
        word.copy_from_slice(&value.to_le_bytes());
    }
    last.copy_from_slice(&sum.to_le_bytes());
}

#[track_caller]
fn check(page: &Page, nth: usize, version: u8) {
    let mut expected = [0; FRAME_SIZE];
    fill(&mut expected, nth, version);
    assert!(*page == expected, "page {nth} is not as it was written the {version}th time");
}

/// The file's pages, read plainly.
fn plainly(path: &Path) -> Vec<Page> {
    let bytes = fs::read(path).expect("the file");
    assert_eq!(bytes.len() % FRAME_SIZE, 0);
    bytes.chunks_exact(FRAME_SIZE).map(|page| page.try_into().expect("a page")).collect()
}

fn settings(frames: usize) -> Settings {
    Settings { huge: pumice_frames::sys::mem::Huge::No, ..Settings::new(frames) }
}

/// A cache with one file, as a thread of it sees that.
fn with_file(
    settings: &Settings,
    scratch: &Scratch,
    work: impl FnOnce(&Cache<'_>, &CacheTask<'_>, &File, &View<'_, '_>),
) {
    run(settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        work(cache, &task, &file, &view);
    })
    .expect("a cache");
}

/// Threads write to and read pages of a file at random, each its own versions; at the end all is there.
fn survives(name: &str, settings: &Settings, pages: usize, (threads, times): (usize, usize)) {
    let scratch = Scratch::new(name);
    let versions: Vec<AtomicU8> = (0..pages).map(|_| AtomicU8::new(0)).collect();
    run(settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        {
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            view.set_len((pages * FRAME_SIZE) as u64).expect("room on the device");
        }
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (file, versions) = (file.clone(), &versions);
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    let mut ahead = Vec::new();
                    for time in 0..times {
                        let random = mix((thread << 32 | time) as u64);
                        let page = random as usize % pages;
                        match random >> 60 {
                            0..6 => {
                                let mut guard = view.write(page).expect("there");
                                let version = &versions[page];
                                let old = version.load(Ordering::Relaxed);
                                check(&guard, page, old);
                                fill(&mut guard, page, old.wrapping_add(1).max(1));
                                version.store(old.wrapping_add(1).max(1), Ordering::Relaxed);
                            }
                            6 => {
                                ahead.clear();
                                ahead.extend((0..16).map(|n| (page + n * n) % pages));
                                assert!(view.prefetch(&ahead) <= ahead.len());
                            }
                            7 if random >> 52 & 15 == 0 => {
                                view.sync_range(page..page + 1).expect("the device is there");
                            }
                            _ => {
                                let guard = view.read(page).expect("there");
                                check(&guard, page, versions[page].load(Ordering::Relaxed));
                            }
                        }
                    }
                });
            }
        });
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for (page, version) in versions.iter().enumerate() {
            check(&view.read(page).expect("there"), page, version.load(Ordering::Relaxed));
        }
        view.sync().expect("the device is there");
        let counts = cache.counts();
        assert_eq!(counts.dirty, 0, "{counts:?}");
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, versions[nth].load(Ordering::Relaxed));
        }
        assert!(counts.read > 0 && counts.written > 0 && counts.resident > 0, "{counts:?}");
    })
    .expect("a cache");
    // Another cache finds it, too.
    run(settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new().read_only()).expect("the file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for (page, version) in versions.iter().enumerate().rev() {
            check(&view.read(page).expect("there"), page, version.load(Ordering::Relaxed));
        }
        assert!(matches!(view.write(0), Err(CacheError::ReadOnly(_))));
    })
    .expect("a cache");
}

#[test]
fn nothing_is_lost_in_four_times_the_memory() {
    survives("four", &settings(512), 2048, (4, 6000));
}

#[test]
fn nothing_is_lost_in_sixteen_times_the_memory() {
    survives("sixteen", &settings(512), 8192, (3, 6000));
}

#[test]
fn nothing_is_lost_where_pages_are_written_back_all_the_time() {
    let settings = Settings {
        dirty_background: 4,
        dirty_most: 16,
        dirty_age: Duration::from_millis(4),
        ..settings(512)
    };
    survives("background", &settings, 1000, (4, 4000));
}

#[test]
fn a_file_that_is_opened_twice_is_one() {
    let scratch = Scratch::new("twice");
    let link = Scratch::new("twice-link");
    run(&settings(512), |cache| {
        let one = cache.open(&scratch.0, &Options::new()).expect("a file");
        fs::hard_link(&scratch.0, &link.0).expect("a link");
        let other = cache.open(&link.0, &Options::new().existing()).expect("the file");
        let task = cache.task().expect("room");
        let (one, other) = (task.view(&one).expect("room"), task.view(&other).expect("room"));
        one.set_len(FRAME_SIZE as u64).expect("room");
        fill(&mut one.write(0).expect("there"), 0, 1);
        check(&other.read(0).expect("there"), 0, 1);
        assert_eq!(other.translate(0), one.translate(0));
    })
    .expect("a cache");
}

#[test]
fn what_is_asked_for_arrives() {
    let scratch = Scratch::new("arrives");
    const PAGES: usize = 3000;
    let mut bytes = vec![0; PAGES * FRAME_SIZE];
    for (nth, page) in bytes.chunks_exact_mut(FRAME_SIZE).enumerate() {
        fill(page.try_into().expect("a page"), nth, 1);
    }
    fs::write(&scratch.0, &bytes).expect("a file");
    run(&settings(1024), |cache| {
        let file = cache.open(&scratch.0, &Options::new().read_only()).expect("the file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        let order: Vec<usize> = (0..PAGES).map(|nth| nth * 7 % PAGES).collect();
        let (mut asked, mut arrived, mut came) = (0, Vec::new(), vec![0; PAGES]);
        while asked < PAGES || arrived.len() < asked {
            let batch = &order[asked..PAGES.min(asked + 100)];
            asked += view.request(batch);
            let before = arrived.len();
            view.arrived(1, &mut arrived).expect("it goes on");
            for &page in &arrived[before..] {
                came[page] += 1;
                check(&view.read(page).expect("there"), page, 1);
            }
        }
        assert!(came.iter().all(|&times| times == 1));
        let before = cache.counts();
        view.advise(0..PAGES, Advice::DontNeed);
        assert_eq!(cache.counts().resident, 0);
        view.advise(0..64, Advice::WillNeed);
        check(&view.read(63).expect("there"), 63, 1);
        let now = cache.counts();
        assert_eq!((now.read - before.read, now.read_requests - before.read_requests), (64, 1));
        // A page past the end is not read, and no error before somebody wants it.
        assert_eq!(view.request(&[PAGES, 0, usize::MAX]), 3);
        arrived.clear();
        view.arrived(9, &mut arrived).expect("it goes on");
        arrived.sort_unstable();
        assert_eq!(arrived, [0, PAGES, usize::MAX]);
        assert!(matches!(
            view.read(PAGES),
            Err(CacheError::PastEnd { page: PAGES, pages: PAGES, .. })
        ));
    })
    .expect("a cache");
}

#[test]
fn sequences_are_read_ahead_by_few_requests() {
    let scratch = Scratch::new("ahead");
    const PAGES: usize = 4000;
    let mut bytes = vec![0; PAGES * FRAME_SIZE];
    for (nth, page) in bytes.chunks_exact_mut(FRAME_SIZE).enumerate() {
        fill(page.try_into().expect("a page"), nth, 1);
    }
    fs::write(&scratch.0, &bytes).expect("a file");
    with_file(&settings(1024), &scratch, |cache, _, _, view| {
        let orders: [&dyn Fn(usize) -> usize; 3] =
            [&|nth| nth, &|nth| PAGES - 1 - nth, &|nth| nth * 3 % (PAGES - 1)];
        for (which, order) in orders.iter().enumerate() {
            let before = cache.counts();
            for nth in 0..PAGES {
                let page = order(nth);
                check(&view.read(page).expect("there"), page, 1);
            }
            let now = cache.counts();
            let (read, ahead) = (now.read - before.read, now.read_ahead - before.read_ahead);
            let requests = now.read_requests - before.read_requests;
            assert!(ahead * 10 > read * 8, "order {which}: {read} read, {ahead} of them ahead");
            assert!(which == 2 || requests < read / 2, "order {which}: {requests} for {read}");
        }
        view.advise(0..0, Advice::Random);
        let before = cache.counts().read_ahead;
        (0..500).for_each(|page| check(&view.read(page).expect("there"), page, 1));
        assert_eq!(cache.counts().read_ahead, before);
    });
}

#[test]
fn who_wants_what_another_thread_reads_does_not_wait_for_that_thread() {
    let scratch = Scratch::new("another");
    fs::write(&scratch.0, vec![7; 64 * FRAME_SIZE]).expect("a file");
    with_file(&settings(512), &scratch, |cache, _, file, view| {
        // This thread asks, and looks for nothing afterwards.
        assert_eq!(view.prefetch(&[3, 4, 5, 9]), 4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                assert_eq!(view.read(4).expect("there")[100], 7);
                view.write(9).expect("there")[0] = 1;
            });
        });
        assert_eq!(view.read(9).expect("there")[0], 1);
    });
}

#[test]
fn a_file_that_is_closed_is_read_again_and_leaves_its_addresses() {
    let scratch = Scratch::new("closed");
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let mut starts = Vec::new();
        for round in 1..4 {
            let file = cache.open(&scratch.0, &Options::new()).expect("a file");
            {
                let view = task.view(&file).expect("room");
                view.write_or_grow(5).expect("room")[0] = round;
                assert_eq!(view.read(5).expect("there")[0], round);
                starts.push(view.region.start());
            }
            task.close(file).expect("the device is there");
            assert_eq!(cache.counts().resident, 0);
            let mut bytes = fs::read(&scratch.0).expect("the file");
            assert_eq!((bytes.len(), bytes[5 * FRAME_SIZE]), (6 * FRAME_SIZE, round));
            bytes[3 * FRAME_SIZE] = 40 + round;
            fs::write(&scratch.0, bytes).expect("the file");
            let file = cache.open(&scratch.0, &Options::new()).expect("a file");
            assert_eq!(task.view(&file).expect("room").read(3).expect("there")[0], 40 + round);
            task.close(file).expect("the device is there");
        }
        assert!(starts.iter().all(|start| *start == starts[0]), "{starts:?}");
    })
    .expect("a cache");
}

#[test]
fn file_systems_in_memory_are_gone_through_and_say_so() {
    let folder = Path::new("/dev/shm");
    if !folder.is_dir() {
        eprintln!("skipped: no /dev/shm");
        return;
    }
    let scratch = Scratch::in_folder(folder, "memory");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        assert!(matches!(file.way(), pumice_io::Way::Buffered(_)), "{:?}", file.way());
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for page in 0..2000 {
            fill(&mut view.write_or_grow(page).expect("room"), page, 1);
        }
        view.set_len((1999 * FRAME_SIZE + 5) as u64).expect("shorter");
        view.sync().expect("the device is there");
        assert_eq!(
            fs::metadata(&scratch.0).expect("the file").len() as usize,
            1999 * FRAME_SIZE + 5
        );
        for page in 0..1999 {
            check(&view.read(page).expect("there"), page, 1);
        }
    })
    .expect("a cache");
}
