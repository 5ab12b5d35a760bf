//! Caches that give frames back: in proportion, as requests allow, and with other calls meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::spaces_tests::use_pages;
use super::testing::with_space as with_space_by;
use super::testing::{beside_kswapd, fill, is_filled, zone_of, Pager, Scratch, Space, FRAMES};
use super::{Settings, Shrinker};
use crate::page_table::{Atomic, Rights};
use crate::space::{Frames, MemMap, Region, Task, VmError, VmSpace};
use pumice_frames::addr::{Order, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Zone};

/// Frames of a zone, which nobody needs.
struct Slab<'z> {
    zone: &'z Zone,
    frames: Mutex<Vec<usize>>,
    needs: Gfp,
    asked: AtomicUsize,
    /// Flags of the requests for which it was asked: of any, and of all.
    any: Mutex<Gfp>,
    all: Mutex<Gfp>,
}

impl<'z> Slab<'z> {
    fn new(zone: &'z Zone, frames: usize) -> Slab<'z> {
        let clearer = Clearer::detect();
        let get = |_| {
            let at = zone.get(0, Gfp::KERNEL, Order::FRAME, &clearer).expect("room");
            at.as_ptr() as usize
        };
        Slab {
            zone,
            frames: Mutex::new((0..frames).map(get).collect()),
            needs: Gfp::IO | Gfp::FS,
            asked: AtomicUsize::new(0),
            any: Mutex::new(Gfp::empty()),
            all: Mutex::new(Gfp::all()),
        }
    }

    fn len(&self) -> usize {
        self.frames.lock().expect("no panic").len()
    }
}

// SAFETY: it has no task.
unsafe impl Shrinker for Slab<'_> {
    fn needs(&self) -> Gfp {
        self.needs
    }
    fn count(&self) -> usize {
        self.len()
    }
    fn scan(&self, frames: usize, gfp: Gfp) -> usize {
        self.asked.fetch_add(frames, Ordering::Relaxed);
        *self.any.lock().expect("no panic") |= gfp;
        let mut all = self.all.lock().expect("no panic");
        *all = *all & gfp;
        drop(all);
        let mut ours = self.frames.lock().expect("no panic");
        let kept = ours.len().saturating_sub(frames);
        // SAFETY: nobody uses them.
        let put = |at| unsafe { self.zone.put(at as *mut u8) }.expect("ours");
        ours.drain(kept..).map(put).count()
    }
}

impl Drop for Slab<'_> {
    fn drop(&mut self) {
        self.scan(usize::MAX, Gfp::KERNEL);
    }
}

/// Gives what it is told to give.
struct Odd<F>(F);

// SAFETY: it has no task.
unsafe impl<F: Fn(usize) -> usize + Send + Sync> Shrinker for Odd<F> {
    fn count(&self) -> usize {
        1 << 20
    }
    fn scan(&self, frames: usize, _: Gfp) -> usize {
        (self.0)(frames)
    }
}

/// A space on a zone, with swap for so many pages.
fn with_space(name: &str, swap_pages: usize, work: impl FnOnce(&Zone, &Pager, &Space<'_>)) {
    let scratch = Scratch::new(&format!("shrink-{name}"));
    let pager = scratch.pager(swap_pages);
    with_space_by(&pager, |zone, space| {
        pager.attach(space, || work(zone, &pager, space)).expect("a task");
    });
}

fn with_region(
    space: &Space<'_>,
    pages: usize,
    work: impl FnOnce(&Task<'_, Frames<'_>, Atomic>, &Region<'_, Frames<'_>, Atomic>),
) {
    let task = space.enter().expect("a task");
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
    let region = task.region(at).expect("mapped");
    work(&task, &region);
    drop(region);
    task.unmap(at, pages * FRAME_SIZE).expect("mapped");
}

fn write(region: &Region<'_, Frames<'_>, Atomic>, page: usize) -> Result<(), VmError> {
    region.write(page).map(|mut guard| fill(&mut guard, page, 1))
}

fn check(region: &Region<'_, Frames<'_>, Atomic>, pages: usize) {
    for page in 0..pages {
        assert!(is_filled(&region.read(page).expect("there"), page, 1), "{page}");
    }
}

/// No page can go: swap has room for none of them.
#[test]
fn a_zone_whose_memory_is_all_in_caches_is_served() {
    for has_kswapd in [false, true] {
        with_space(&format!("all-{has_kswapd}"), 1, |zone, pager, space| {
            let slab = Slab::new(zone, FRAMES - 64);
            let (taken, pages) = (slab.len(), FRAMES / 2);
            pager.zone().with_shrinker(&slab, || {
                beside_kswapd(has_kswapd, pager, || {
                    with_region(space, pages, |_, region| {
                        (0..pages).for_each(|page| write(region, page).expect("the slab gives"));
                        check(region, pages);
                        let given = taken - slab.len();
                        let high = pager.zone().settings().watermarks.high;
                        assert!((pages - 64..pages + high + 256).contains(&given), "{given}");
                        assert_eq!(pager.counts().shrunk, given as u64);
                    });
                });
            });
        });
    }
}

/// The zone is short, there is no page to take, and somebody was refused frames once.
#[test]
fn kswapd_rests_where_there_is_nothing_to_take() {
    with_space("rests", 1, |zone, pager, space| {
        let _slab = Slab::new(zone, FRAMES - 96);
        let asked = AtomicUsize::new(0);
        let gives_nothing = Odd(|_| {
            asked.fetch_add(1, Ordering::Relaxed);
            0
        });
        pager.zone().with_shrinker(&gives_nothing, || {
            beside_kswapd(true, pager, || {
                with_region(space, FRAMES, |_, region| {
                    let refused = (0..FRAMES).find(|&page| write(region, page).is_err());
                    assert!(refused.is_some(), "there is room for none of them");
                });
                asked.store(0, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(400));
                // Its pauses are 20 ms and more; without them it would be ten thousands.
                let asked = asked.load(Ordering::Relaxed);
                assert!(asked < 400, "{asked}");
            });
        });
    });
}

#[test]
fn a_little_pressure_does_not_empty_a_cache_and_much_does() {
    for has_kswapd in [false, true] {
        with_space(&format!("share-{has_kswapd}"), 8 * FRAMES, |zone, pager, space| {
            let slab = Slab::new(zone, FRAMES / 2);
            let taken = slab.len();
            pager.zone().with_shrinker(&slab, || {
                beside_kswapd(has_kswapd, pager, || {
                    with_region(space, 4 * FRAMES, |_, region| {
                        let room = FRAMES / 2 + FRAMES / 8;
                        (0..room).for_each(|page| write(region, page).expect("pages go"));
                        // As much of it as of the pages, a batch more or less.
                        let (given, counts) = (taken - slab.len(), pager.counts());
                        let gone = (counts.pswpout + counts.clean) as usize;
                        assert!(given < gone + gone / 2 + 256, "{given} beside {gone}");
                        assert!(gone < given + given / 2 + 256, "{given} beside {gone}");
                        assert!(given < taken / 2, "{given}");
                        (room..4 * FRAMES).for_each(|page| write(region, page).expect("pages go"));
                        assert!(slab.len() < taken / 8, "{}", slab.len());
                        check(region, 4 * FRAMES);
                    });
                });
            });
        });
    }
}

#[test]
fn pressure_on_caches_can_be_set() {
    let given = [0, 100, 400].map(|percent| {
        let mut given = 0;
        with_space(&format!("percent-{percent}"), 8 * FRAMES, |zone, pager, space| {
            let settings = pager.zone().settings();
            let settings = Settings { cache_pressure_percent: percent, ..settings };
            pager.zone().set_settings(settings);
            let slab = Slab::new(zone, FRAMES / 2);
            pager.zone().with_shrinker(&slab, || {
                with_region(space, FRAMES, |_, region| {
                    let pages = FRAMES / 2 + FRAMES / 4;
                    (0..pages).for_each(|page| write(region, page).expect("pages go"));
                    given = FRAMES / 2 - slab.len();
                });
            });
        });
        given
    });
    assert_eq!(given[0], 0);
    assert!(given.is_sorted() && given[1] < given[2], "{given:?}");
}

#[test]
fn requests_say_what_may_be_asked_for_them() {
    with_space("gfp", 1, |zone, pager, space| {
        let cache = Slab::new(zone, FRAMES / 2);
        let mut simple = Slab::new(zone, FRAMES / 4);
        simple.needs = Gfp::empty();
        let reclaim = pager.zone();
        let fill_up = |region: &Region<'_, Frames<'_>, Atomic>, next: &mut usize| {
            let from = *next;
            while *next < FRAMES && write(region, *next).is_ok() {
                *next += 1;
            }
            *next - from
        };
        reclaim.with_shrinker(&cache, || {
            with_region(space, FRAMES, |task, region| {
                let mut next = 0;
                for gfp in [Gfp::NOWAIT, Gfp::NOIO, Gfp::NOFS] {
                    let _scope = task.gfp_scope(gfp);
                    fill_up(region, &mut next);
                    assert_eq!(cache.asked.load(Ordering::Relaxed), 0, "{gfp:?}");
                }
                reclaim.with_shrinker(&simple, || {
                    {
                        let _scope = task.gfp_scope(Gfp::NOWAIT);
                        assert_eq!(fill_up(region, &mut next), 0);
                    }
                    let _scope = task.gfp_scope(Gfp::NOIO);
                    assert!(fill_up(region, &mut next) >= FRAMES / 4 - 32);
                    assert_eq!(*simple.any.lock().expect("no panic") & Gfp::KERNEL, Gfp::NOIO);
                    assert_eq!(cache.asked.load(Ordering::Relaxed), 0);
                });
                assert!(fill_up(region, &mut next) >= FRAMES / 2 - 32, "it can do all again");
                assert!(cache.all.lock().expect("no panic").contains(Gfp::KERNEL));
                check(region, next);
            });
        });
    });
}

/// Its memory is a region of the space that asks, which it unmaps in parts; others map, unmap and fork meanwhile.
struct Mapped<'s> {
    space: &'s Space<'s>,
    at: Vec<usize>,
    left: AtomicUsize,
}

impl Mapped<'_> {
    const PAGES: usize = 64;
}

// SAFETY: it makes a task for each call.
unsafe impl Shrinker for Mapped<'_> {
    fn count(&self) -> usize {
        self.left.load(Ordering::Relaxed) * Self::PAGES
    }
    fn scan(&self, _: usize, _: Gfp) -> usize {
        let fewer = |left: usize| left.checked_sub(1);
        let Ok(left) = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) else {
            return 0;
        };
        let task = self.space.enter().expect("there is a reserve for this");
        let more = task.map(FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
        task.write_at(more, &[1]).expect("there is a reserve for this");
        task.unmap(more, FRAME_SIZE).expect("mapped");
        // The second half, so that a table is needed where there is none.
        task.unmap(self.at[left - 1], Self::PAGES * FRAME_SIZE).expect("mapped");
        Self::PAGES
    }
}

#[test]
fn a_cache_that_unmaps_what_it_has_in_the_space_that_asks() {
    for has_kswapd in [false, true] {
        with_space(&format!("unmaps-{has_kswapd}"), 4 * FRAMES, |_, pager, space| {
            let task = space.enter().expect("a task");
            let map = |_| {
                let at = task.map(Mapped::PAGES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
                (0..Mapped::PAGES).for_each(|page| {
                    task.write_at(at + page * FRAME_SIZE, &[1]).expect("room");
                });
                at
            };
            let at: Vec<usize> = (0..FRAMES / 2 / Mapped::PAGES).map(map).collect();
            let left = AtomicUsize::new(at.len());
            let cache = Mapped { space, at, left };
            pager.zone().with_shrinker(&cache, || {
                beside_kswapd(has_kswapd, pager, || {
                    std::thread::scope(|scope| {
                        for seed in 1..3 {
                            scope.spawn(move || use_pages(space, FRAMES / 2, FRAMES, seed));
                        }
                        scope.spawn(move || {
                            let task = space.enter().expect("a task");
                            for _ in 0..20 {
                                // Without frames there is no child.
                                drop(task.fork());
                                let at = task.map(512 * FRAME_SIZE, Rights::READ_WRITE);
                                let at = at.expect("addresses");
                                let _ = task.write_at(at, &[1]);
                                let _ = task.unmap(at, 256 * FRAME_SIZE);
                                let _ = task.unmap(at, 512 * FRAME_SIZE);
                            }
                        });
                    });
                });
            });
            assert!(cache.left.into_inner() < cache.at.len(), "it was asked");
        });
    }
}

/// None is called before it is registered, or after that has ended.
#[test]
fn caches_come_and_go_while_they_are_asked() {
    with_space("come-and-go", 4 * FRAMES, |_, pager, space| {
        beside_kswapd(true, pager, || {
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !is_done.load(Ordering::Relaxed) {
                            let (is_there, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
                            let odd = Odd(|_| {
                                assert!(is_there.load(Ordering::SeqCst));
                                calls.fetch_add(1, Ordering::SeqCst);
                                std::thread::yield_now();
                                assert!(is_there.load(Ordering::SeqCst));
                                calls.fetch_sub(1, Ordering::SeqCst);
                                0
                            });
                            pager.zone().with_shrinker(&odd, std::thread::yield_now);
                            is_there.store(false, Ordering::SeqCst);
                            assert_eq!(calls.load(Ordering::SeqCst), 0);
                        }
                    });
                }
                use_pages(space, 2 * FRAMES, FRAMES, 7);
                is_done.store(true, Ordering::Relaxed);
            });
        });
    });
}

#[test]
fn a_cache_that_ends_its_own_registration() {
    let scratch = Scratch::new("shrink-itself");
    let pager: &'static Pager = Box::leak(Box::new(scratch.pager(4 * FRAMES)));
    let zone = zone_of(FRAMES);
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(pager);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let registration = Arc::new(Mutex::new(None));
    let calls = Arc::new(AtomicUsize::new(0));
    let (own, seen) = (registration.clone(), calls.clone());
    let cache = Odd(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        drop(own.lock().expect("no panic").take());
        0
    });
    let registered = pager.zone().register_shrinker(Arc::new(cache));
    *registration.lock().expect("no panic") = Some(registered);
    pager.attach(&space, || use_pages(&space, 2 * FRAMES, 100, 3)).expect("a task");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(Arc::strong_count(&calls), 1, "it is gone");
}

#[test]
fn one_that_panics_is_asked_once_and_others_go_on() {
    for has_kswapd in [false, true] {
        with_space(&format!("panic-{has_kswapd}"), 1, |zone, pager, space| {
            let slab = Slab::new(zone, FRAMES - 64);
            let calls = AtomicUsize::new(0);
            let panics = Odd(|_| {
                calls.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            });
            pager.zone().with_shrinker(&panics, || {
                pager.zone().with_shrinker(&slab, || {
                    beside_kswapd(has_kswapd, pager, || {
                        with_region(space, FRAMES / 2, |_, region| {
                            (0..FRAMES / 2).for_each(|page| write(region, page).expect("served"));
                            check(region, FRAMES / 2);
                        });
                    });
                });
            });
            // kswapd may be asking it in the moment in which it panics for the first time.
            let most = 1 + usize::from(has_kswapd);
            let calls = calls.load(Ordering::Relaxed);
            assert!((1..=most).contains(&calls), "{calls}");
        });
    }
}

/// They report frames, and none is there: that ends in an error, and not in a loop.
#[test]
fn ones_that_give_nothing_are_not_believed() {
    for (has_kswapd, gives) in [(false, 0), (true, 0), (false, 7), (true, 7)] {
        with_space(&format!("lies-{has_kswapd}-{gives}"), 1, |_, pager, space| {
            let calls = AtomicUsize::new(0);
            let lies = Odd(|_| {
                calls.fetch_add(1, Ordering::Relaxed);
                gives
            });
            pager.zone().with_shrinker(&lies, || {
                beside_kswapd(has_kswapd, pager, || {
                    with_region(space, FRAMES, |_, region| {
                        let written = (0..FRAMES).take_while(|&page| write(region, page).is_ok());
                        let written = written.count();
                        assert!((FRAMES / 2..FRAMES).contains(&written), "{written}");
                        check(region, written);
                    });
                });
            });
            let calls = calls.load(Ordering::Relaxed);
            assert!((1..200).contains(&calls), "{calls}");
        });
    }
}

/// `kswapd` is in one that does not return. Pages go for threads that need frames, and spaces come and go.
#[test]
fn one_that_takes_long_holds_nobody_up() {
    with_space("long", 4 * FRAMES, |_, pager, space| {
        let (entered, leave) = (Barrier::new(2), Barrier::new(2));
        let is_first = AtomicBool::new(true);
        let slow = Odd(|_| {
            if is_first.swap(false, Ordering::Relaxed) {
                entered.wait();
                leave.wait();
            }
            0
        });
        pager.zone().with_shrinker(&slow, || {
            beside_kswapd(true, pager, || {
                std::thread::scope(|scope| {
                    let busy = scope.spawn(|| use_pages(space, FRAMES, FRAMES, 1));
                    entered.wait();
                    // There is another thread, whichever is held up.
                    use_pages(space, FRAMES, FRAMES, 2);
                    let frames = space.frames();
                    let other = VmSpace::new(frames, Atomic).expect("frames");
                    let work = || use_pages(&other, FRAMES, 100, 3);
                    pager.attach(&other, work).expect("a task");
                    leave.wait();
                    busy.join().expect("no panic");
                });
            });
        });
    });
}
