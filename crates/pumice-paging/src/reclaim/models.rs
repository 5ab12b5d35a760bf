//! Faults, `kswapd`, `unmap` and `fork` together under many random interleavings (shuttle): the reclaim that programs
//! have, over a device that is late, goes out of order, and fails.
//!
//! All randomness is shuttle's, so that the output of a failure repeats it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::counts::Counts;
use super::paging::SwapPager;
use super::policy::{table, Policy};
use super::settings::Settings;
use super::shrinker::Shrinker;
use super::{Adaptive, Page, TwoList};
use crate::page_table::{Atomic, Rights};
use crate::space::models::{add, set, word, Model, Shared, FRAMES, PAGE};
use crate::space::{Access, VmError};
use crate::swap::{Swap, SwapError};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::frame::Gfp;
use pumice_io::fake::late::{Device, Faults, Late};
use pumice_io::Cached;

const ITERATIONS: usize = 2000;
/// Pages of the region, in tables of four.
const PAGES: usize = 10;
/// The last of them are unmapped.
const KEPT: usize = 8;
/// Frames that are free when faults begin.
const ROOM: usize = 20;
const SLOTS: u64 = 16;
/// Times that an access is tried: a device that fails now and then, and a child that shares the frames, end before.
const TRIES: usize = 5000;

/// A swap area, of which the file is only the header's.
pub(super) fn swap(slots: u64) -> Swap {
    let file = tempfile::NamedTempFile::new().expect("a file");
    Swap::create(file.path(), (slots + 1) * FRAME_SIZE as u64, Cached::Yes).expect("room")
}

/// Does it again while the device fails, or memory is short because of that.
pub(super) fn insist<R>(mut what: impl FnMut() -> crate::space::Result<R>) -> R {
    for _ in 0..TRIES {
        match what() {
            Ok(done) => return done,
            Err(VmError::ReadFailed(..) | VmError::OutOfFrames(_) | VmError::OutOfRecords(_)) => {
                thread::yield_now()
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never went");
}

/// A cache that gives nothing, and whether it is there.
struct Cache(AtomicBool);

// SAFETY: it has no task.
unsafe impl Shrinker for Cache {
    fn count(&self) -> usize {
        64
    }
    fn scan(&self, _: usize, _: Gfp) -> usize {
        // Relaxed: one of shuttle's threads runs at a time.
        for _ in 0..2 {
            let is_there = self.0.load(Ordering::Relaxed);
            // A panic in here is no failure.
            if !is_there {
                std::process::abort();
            }
            thread::yield_now();
        }
        0
    }
}

/// Two threads count in pages, caches come and go, a third unmaps some and makes children, `kswapd` evicts pages.
fn scenario<P: Policy + Send + 'static>(policy: P, faults: Faults) -> Counts {
    let bytes = vec![0; (SLOTS as usize + 1) * FRAME_SIZE];
    let device = Arc::new(Device { bytes: Mutex::new(bytes), faults: Mutex::new(faults) });
    let engines = Arc::clone(&device);
    let pager =
        SwapPager::new(swap(SLOTS), policy, FRAMES, Settings::of(FRAMES).with_most_pages(5));
    let pager = pager.with_engines(move |_| Box::new(Late::new(&engines)));
    let pager: &'static SwapPager<P> = Box::leak(Box::new(pager));
    let model = Model::paged_by(pager);
    let shared = Shared::<Atomic>::over(model);
    let task = shared.enter();
    let at = task.map(PAGES * PAGE, Rights::READ_WRITE).expect("room");
    // Records of as many threads as the model has room for stay.
    drop((task, (0..3).map(|_| shared.enter()).collect::<Vec<_>>()));
    let kept = model.keep_all_but(ROOM);
    let space = shared.space;
    let kswapd = thread::spawn(move || pager.kswapd(space).expect("room"));
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..KEPT).map(|_| AtomicU64::new(0)).collect());
    let adders: Vec<_> = (0..2)
        .map(|adder| {
            let (task, counts) = (shared.enter(), Arc::clone(&counts));
            thread::spawn(move || {
                for turn in 0..4 * KEPT {
                    let page = (turn * 3 + adder) % KEPT;
                    insist(|| add(&task, at + page * PAGE));
                    // Relaxed: read when this thread has ended.
                    counts[page].fetch_add(1, Ordering::Relaxed);
                    let _ = task.fault(at + (KEPT + turn % 2) * PAGE, Access::Write);
                    // By itself that comes after 64 pages.
                    if turn % 3 == 0 {
                        task.lru_drain();
                    }
                }
            })
        })
        .collect();
    let cache = thread::spawn(move || {
        for _ in 0..3 {
            let cache = Cache(AtomicBool::new(true));
            pager.zone().with_shrinker(&cache, thread::yield_now);
            cache.0.store(false, Ordering::Relaxed);
        }
    });
    let mapper = shared.enter();
    let mapper = thread::spawn(move || {
        mapper.unmap(at + KEPT * PAGE, (PAGES - KEPT) * PAGE).expect("aligned");
        // Without frames for its tables there is no child.
        let Ok(child) = mapper.fork() else { return };
        let Ok(kid) = child.enter() else { return };
        for page in 0..KEPT {
            // Pages that it shares do not go, so there may be no frame for it.
            let Ok(seen) = word(&kid, at + page * PAGE) else { continue };
            assert!(seen <= 2 * 4, "the child saw {seen}");
            if page % 2 == 0 && set(&kid, at + page * PAGE, 1000).is_ok() {
                assert!(word(&kid, at + page * PAGE).is_ok_and(|seen| seen == 1000));
            }
        }
        assert!(kid.fault(at + KEPT * PAGE, Access::Read).is_err());
    });
    adders.into_iter().for_each(|adder| adder.join().expect("no panic"));
    mapper.join().expect("no panic");
    cache.join().expect("no panic");
    *device.faults.lock().expect("no panic") = Faults::default();
    let task = shared.enter();
    for (page, count) in counts.iter().enumerate() {
        let seen = insist(|| word(&task, at + page * PAGE));
        assert_eq!(seen, count.load(Ordering::Relaxed), "page {page}");
    }
    task.unmap(at, PAGES * PAGE).expect("aligned");
    drop(task);
    pager.stop();
    kswapd.join().expect("no panic");
    let error = pager.take_error();
    assert!(!matches!(error, Some(SwapError::Checksum { .. })), "{error:?}");
    assert!(faults.error > 0 || error.is_none(), "{error:?}");
    assert_eq!(pager.swap().usage().1, 0, "slots were lost");
    model.give_back(kept);
    shared.end();
    pager.counts()
}

fn check<P: Policy + Send + 'static>(make: fn(&'static mut [Page]) -> P, faults: Faults) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let counts = Arc::clone(&all);
    let scenario = move || {
        let policy = make(Box::leak(table::<P>(FRAMES).into_boxed_slice()));
        let one = scenario(policy, faults);
        counts.lock().expect("no panic").push(one);
    };
    shuttle::check_random(scenario, ITERATIONS);
    // It has been about something.
    let all = all.lock().expect("no panic");
    let sum = |of: fn(&Counts) -> u64| all.iter().map(of).sum::<u64>();
    let (out, back) = (sum(|counts| counts.pswpout), sum(|counts| counts.pswpin));
    let (rescued, waits) = (sum(|counts| counts.rescued), sum(|counts| counts.allocstall));
    let errors = sum(|counts| counts.errors);
    eprintln!("{out} out, {back} in, {rescued} rescued, {waits} waits, {errors} errors");
    assert!([out, back, rescued, waits].iter().all(|&count| count > ITERATIONS as u64 / 10));
    assert_eq!(errors > 0, faults.error > 0);
}

const FAULTY: Faults = Faults { error: 6, short: 5 };

#[test]
fn shuttle_fault_kswapd_unmap_fork() {
    check(TwoList::new, Faults::default());
}

#[test]
fn shuttle_fault_kswapd_unmap_fork_adaptive() {
    check(Adaptive::new, Faults::default());
}

#[test]
fn shuttle_fault_kswapd_unmap_fork_on_a_faulty_device() {
    check(TwoList::new, FAULTY);
    check(Adaptive::new, FAULTY);
}
