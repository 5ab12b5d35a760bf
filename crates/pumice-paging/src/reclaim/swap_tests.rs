//! Regions many times larger than their frames, with a pattern that says what each page should be.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fastrand::Rng;

use super::testing::*;
use super::{Policy, Settings, SwapPager};
use crate::page_table::pager::{Evicted, LruPage, Pager as _, SpaceId};
use crate::page_table::Rights;
use crate::space::VmError;
use crate::swap::SwapError;
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_io::engine;
use pumice_io::fake::{FakeEngine, Faults};

/// Threads write and read pages of a region at random, each its own; nothing may be lost but by errors, of which
/// it returns how many there were.
fn pages_survive<P: Policy + Send>(
    pager: &SwapPager<P>,
    pages: usize,
    threads: usize,
    steps: usize,
) -> usize {
    with_space(pager, |_, space| {
        let errors = AtomicUsize::new(0);
        let kswapd = || pager.kswapd(space).expect("a task");
        beside(pager.zone(), kswapd, || {
            let at = {
                let task = space.enter().expect("a task");
                task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses")
            };
            let versions: Vec<AtomicU32> = (0..pages).map(|_| AtomicU32::new(0)).collect();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (versions, errors) = (&versions, &errors);
                    scope.spawn(move || {
                        let task = space.enter().expect("a task");
                        let region = task.region(at).expect("mapped");
                        let mut random = Rng::with_seed(thread as u64 + 1);
                        for step in 0..steps {
                            // Half of it in order, so that there is something of everything.
                            let any = if step % 2 == 0 {
                                random.usize(..pages / threads)
                            } else {
                                step / 2
                            };
                            let page = any % (pages / threads) * threads + thread;
                            // Relaxed: the page is this thread's.
                            let version = versions[page].load(Ordering::Relaxed);
                            if random.bool() {
                                match region.write(page) {
                                    Ok(mut guard) => {
                                        assert!(is_filled(&guard, page, version), "page {page}");
                                        fill(&mut guard, page, version + 1);
                                        versions[page].store(version + 1, Ordering::Relaxed);
                                    }
                                    Err(error) => count(errors, &error),
                                }
                            } else {
                                match region.read(page) {
                                    Ok(guard) => {
                                        assert!(is_filled(&guard, page, version), "page {page}")
                                    }
                                    Err(error) => count(errors, &error),
                                }
                            }
                        }
                    });
                }
            });
            let task = space.enter().expect("a task");
            for (page, version) in versions.iter().enumerate() {
                let mut tries = 0;
                let good = loop {
                    tries += 1;
                    match task.region(at).expect("mapped").read(page) {
                        Ok(guard) => {
                            break is_filled(&guard, page, version.load(Ordering::Relaxed))
                        }
                        Err(error) => count(&errors, &error),
                    }
                    assert!(tries < 1000, "page {page} can't be read");
                };
                assert!(good, "page {page} at the end");
            }
            task.unmap(at, pages * FRAME_SIZE).expect("mapped");
        });
        errors.into_inner()
    })
}

fn count(errors: &AtomicUsize, error: &VmError) {
    let is_typed = matches!(error, VmError::ReadFailed(_) | VmError::OutOfFrames(_));
    assert!(is_typed, "{error}");
    errors.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn nothing_is_lost_in_four_times_the_memory() {
    let scratch = Scratch::new("adaptive");
    let pager = scratch.pager(5 * FRAMES);
    assert_eq!(pages_survive(&pager, 4 * FRAMES, 4, 3 * FRAMES), 0);
    let counts = pager.counts();
    assert!(counts.pswpout > FRAMES as u64 && counts.pswpin > FRAMES as u64, "{counts:?}");
    assert!(counts.clean > 0, "{counts:?}");
}

#[test]
fn two_lists_lose_nothing_either() {
    let scratch = Scratch::new("two-list");
    let pager = SwapPager::new(scratch.swap(3 * FRAMES), two_list(), FRAMES, Settings::of(FRAMES));
    assert_eq!(pages_survive(&pager, 3 * FRAMES, 2, 4 * FRAMES), 0);
}

/// Each policy by the other's rule for mapped pages.
#[test]
fn nothing_is_lost_whoever_chooses_what_is_unmapped() {
    let settings = |ratio| Settings { vm_mapped_ratio: Some(ratio), ..Settings::of(FRAMES) };
    let scratch = Scratch::new("adaptive-by-tables");
    let pager = SwapPager::new(scratch.swap(3 * FRAMES), adaptive(), FRAMES, settings(100));
    assert_eq!(pages_survive(&pager, 2 * FRAMES, 2, 2 * FRAMES), 0);
    assert!(pager.counts().walked > 0 && pager.counts().pswpout > 0, "{:?}", pager.counts());
    let scratch = Scratch::new("two-list-by-owner");
    let pager = SwapPager::new(scratch.swap(3 * FRAMES), two_list(), FRAMES, settings(0));
    assert_eq!(pages_survive(&pager, 2 * FRAMES, 2, 2 * FRAMES), 0);
    assert_eq!((pager.counts().walked, pager.counts().passed_over), (0, 0));
}

/// Swap and memory add up: the region is larger than swap.
#[test]
fn swap_and_memory_add_up() {
    let scratch = Scratch::new("sum");
    let pager = scratch.pager(FRAMES);
    assert_eq!(pages_survive(&pager, FRAMES + FRAMES * 3 / 4, 2, 4 * FRAMES), 0);
}

#[test]
fn errors_of_the_device_reach_who_asks_and_nobody_else() {
    let scratch = Scratch::new("errors");
    let swap = scratch.swap(5 * FRAMES);
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let faults = Faults { error: 50, no_space: 70, short: 5, late: 3 };
    let made = AtomicU64::new(0);
    let pager =
        SwapPager::new(swap, adaptive(), FRAMES, Settings::of(FRAMES)).with_engines(move |depth| {
            // Each with a seed of its own: one that fails is replaced, and the next is not to fail at the same place.
            let seed = seed.wrapping_add(made.fetch_add(1, Ordering::Relaxed) << 32);
            Box::new(FakeEngine::new(engine::best(depth), faults, seed))
        });
    let errors = pages_survive(&pager, 4 * FRAMES, 3, 3 * FRAMES);
    assert!(errors > 0 && pager.counts().errors >= errors as u64, "{errors} {:?}", pager.counts());
}

#[test]
fn full_swap_ends_in_an_error() {
    let scratch = Scratch::new("full");
    let pager = scratch.pager(256);
    with_kswapd(&pager, 4 * FRAMES, |_, _, region| {
        let mut written = 0;
        let error = loop {
            match region.write(written) {
                Ok(mut guard) => fill(&mut guard, written, 1),
                Err(error) => break error,
            }
            written += 1;
        };
        assert!(matches!(error, VmError::OutOfFrames(_)), "{error}");
        assert!((FRAMES * 3 / 4..=FRAMES + 256).contains(&written), "{written}");
        assert!(matches!(pager.take_error(), Some(SwapError::Full { slots: 256 })));
        // Pages that are there stay there.
        for page in (0..written).rev().take(FRAMES / 2) {
            assert!(is_filled(&region.read(page).expect("there"), page, 1));
        }
    });
}

/// A thread may tell of pages when they are no more and others have their frames.
#[test]
fn pages_that_somebody_told_of_too_late_hide_no_others() {
    let scratch = Scratch::new("late");
    let pager = scratch.pager(5 * FRAMES);
    let pages = 2 * FRAMES;
    with_kswapd(&pager, pages, |_, task, region| {
        let write = |page: usize| fill(&mut region.write(page).expect("a frame"), page, 1);
        (0..FRAMES / 2).for_each(write);
        task.lru_drain();
        let mut late = Vec::new();
        let mut from = 0;
        loop {
            let unmapped = |page: LruPage| LruPage { page: page.page + (1 << 20), ..page };
            from = task.scan_present(from, |page| late.push(unmapped(page)));
            if from == 0 {
                break;
            }
        }
        assert_eq!(late.len(), FRAMES / 2);
        pager.lru_add(SpaceId(0), &late);
        (FRAMES / 2..pages).for_each(write);
        for page in 0..pages {
            assert!(is_filled(&region.read(page).expect("there"), page, 1), "page {page}");
        }
    });
}

/// SPEC E7: a slot is given back at the first write, of a page that is read not before swap is half full.
#[test]
fn a_page_that_comes_to_be_written_gives_its_slot_back() {
    let scratch = Scratch::new("slot");
    let pager = scratch.pager(100);
    with_space(&pager, |_, space| {
        let comes = |page: usize, used: Rights| {
            let slot = pager.swap().get().expect("a slot");
            let frame = LruPage { page, frame: Pfn(page) };
            pager.swapped_in(space.id(), frame, Evicted::Swapped(slot.0), used);
            pager.swap().usage().1
        };
        let work = || {
            assert_eq!(comes(1, Rights::WRITE), 0);
            assert_eq!(comes(2, Rights::READ), 1);
            assert_eq!(comes(3, Rights::WRITE), 1);
            let most = (4..100).map(|page| comes(page, Rights::READ)).max();
            assert_eq!(most, Some(50));
        };
        pager.attach(space, work).expect("a task");
        assert_eq!(
            pager.swap().usage().1,
            0,
            "nobody keeps slots for a space that is not attached"
        );
        assert_eq!(comes(101, Rights::READ), 0, "nor takes any");
    });
}

/// Pages that are read in order are read ahead, and are as they should be; others are not.
#[test]
fn sequences_are_read_ahead() {
    let scratch = Scratch::new("ahead");
    let swap = scratch.swap(8 * FRAMES);
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    // Short, which is no error, and late.
    let faults = Faults { short: 7, late: 5, ..Faults::default() };
    let pager = SwapPager::new(swap, adaptive(), FRAMES, Settings::of(FRAMES))
        .with_engines(move |depth| Box::new(FakeEngine::new(engine::best(depth), faults, seed)));
    let pages = 4 * FRAMES;
    with_kswapd(&pager, pages, |space, _, region| {
        for page in 0..pages {
            fill(&mut region.write(page).expect("frames"), page, 1);
        }
        let mut random = Rng::with_seed(7);
        for _ in 0..FRAMES {
            let page = random.usize(..pages);
            assert!(is_filled(&region.read(page).expect("there"), page, 1), "page {page}");
        }
        let random = pager.counts();
        assert!(random.read_ahead * 20 < random.pswpin, "{random:?}");
        for page in 0..pages {
            assert!(is_filled(&region.read(page).expect("there"), page, 1), "page {page}");
        }
        let ordered = pager.counts();
        let (ahead, all) = (ordered.read_ahead - random.read_ahead, ordered.pswpin - random.pswpin);
        assert!(ahead * 4 > all * 3, "{random:?} {ordered:?}");
        assert_eq!(ordered.errors, 0);
        // As it is told, from one fault to the next: in eights, and then not at all.
        for (page_cluster, of_eight) in [(3, 7), (0, 0)] {
            space.set_page_cluster(page_cluster);
            let before = pager.counts();
            for page in 0..pages {
                assert!(is_filled(&region.read(page).expect("there"), page, 1), "page {page}");
            }
            let after = pager.counts();
            let (ahead, all) = (after.read_ahead - before.read_ahead, after.pswpin - before.pswpin);
            assert!(
                ahead * 8 <= all * of_eight && ahead * 10 >= all * of_eight,
                "{before:?} {after:?}"
            );
        }
    });
}

/// A thread that can evict nothing waits, it does not try all the time.
#[test]
fn kswapd_rests_where_nothing_can_go() {
    let scratch = Scratch::new("rest");
    let pager = &scratch.pager(64);
    with_space(pager, |_, space| {
        let (started, of_thread) = std::sync::mpsc::channel();
        let kswapd = move || {
            started.send(rustix::thread::gettid()).expect("somebody listens");
            pager.kswapd(space).expect("a task");
        };
        beside(pager.zone(), kswapd, || {
            let thread = of_thread.recv().expect("a thread").as_raw_nonzero();
            let task = space.enter().expect("a task");
            let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
            let region = task.region(at).expect("mapped");
            let full = (0..2 * FRAMES).find(|&page| region.write(page).is_err());
            assert!(full.is_some(), "swap is too small for all of it");
            // The time that it ran, in nanoseconds (`Documentation/scheduler/sched-stats.rst`).
            let ran = || {
                let path = format!("/proc/self/task/{thread}/schedstat");
                let text = std::fs::read_to_string(path).ok()?;
                text.split_whitespace().next()?.parse::<u64>().ok()
            };
            match ran() {
                Some(before) => {
                    let start = std::time::Instant::now();
                    std::thread::sleep(std::time::Duration::from_millis(400));
                    let wall = start.elapsed().as_nanos() as u64;
                    let ran = ran().expect("it was there") - before;
                    assert!(ran * 20 < wall, "{ran} ns of {wall}");
                }
                None => eprintln!("skipped: no schedstat"),
            }
        });
    });
}
