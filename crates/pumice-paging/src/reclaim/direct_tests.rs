//! Requests for a frame where there is none: the work of reclaim for each, by its flags.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};

use rustix::io::Errno;

use super::policy::table;
use super::spaces_tests::{use_pages, InPlace};
use super::testing::{self, *};
use super::{Adaptive, Paging, Settings, SwapPager};
use crate::page_table::{Atomic, Rights};
use crate::space::{Access, MemMap, VmError, VmSpace};
use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Pressure, Reclaim, Watermarks};
use pumice_io::engine::{Completion, Direction, Engine, Request};
use pumice_io::AnyEngine;

/// A region of four times the frames, with swap for so many pages and nobody in the background.
fn with_region(
    name: &str,
    swap_pages: usize,
    work: impl FnOnce(&Pager, &ATask<'_, '_>, &ARegion<'_, '_>),
) {
    let scratch = Scratch::new(name);
    let pager = scratch.pager(swap_pages);
    let attached = with_space(&pager, |_, space| {
        pager.attach(space, || {
            testing::with_region(space, 4 * FRAMES, |task, region| work(&pager, task, region));
        })
    });
    attached.expect("a task");
}

#[test]
fn who_asks_reclaims_for_itself() {
    let scratch = Scratch::new("direct");
    let pager = scratch.pager(5 * FRAMES);
    with_space(&pager, |_, space| {
        let work = || {
            std::thread::scope(|scope| {
                for seed in 1..5 {
                    // More than there is memory, also where no two run at a time.
                    scope.spawn(move || use_pages(space, FRAMES + FRAMES / 4, FRAMES, seed));
                }
            });
        };
        pager.attach(space, work).expect("a task");
    });
    let counts = pager.counts();
    assert!(counts.direct > FRAMES as u64, "{counts:?}");
    assert_eq!(pager.swap().usage().1, 0, "all is unmapped");
}

#[test]
fn without_io_clean_pages_go_and_no_others() {
    with_region("noio", 5 * FRAMES, |pager, task, region| {
        let mut next = 0;
        let fill_up = |next: &mut usize| {
            let mut written = 0;
            while let Ok(mut guard) = region.write(*next) {
                fill(&mut guard, *next, 1);
                *next += 1;
                written += 1;
            }
            written
        };
        {
            let _scope = task.gfp_scope(Gfp::NOIO);
            let written = fill_up(&mut next);
            assert!((FRAMES / 2..FRAMES).contains(&written), "{written}");
        }
        assert_eq!(pager.counts().pswpout, 0, "nothing is written for a request without I/O");
        (0..FRAMES / 4).for_each(|_| {
            fill(&mut region.write(next).expect("pages go now"), next, 1);
            next += 1;
        });
        for page in (0..next / 2).chain(0..next / 2) {
            assert!(is_filled(&region.read(page).expect("it comes back"), page, 1), "{page}");
        }
        let before = pager.counts();
        {
            let _scope = task.gfp_scope(Gfp::NOIO);
            assert!(fill_up(&mut next) > 16, "clean pages have gone");
        }
        let after = pager.counts();
        assert_eq!(after.pswpout, before.pswpout);
        assert!(after.clean > before.clean, "{before:?} {after:?}");
        for page in 0..next {
            assert!(is_filled(&region.read(page).expect("it comes back"), page, 1), "{page}");
        }
    });
}

#[test]
fn who_can_not_wait_is_told_at_once_and_scopes_end() {
    with_region("nowait", 5 * FRAMES, |pager, task, region| {
        let mut next = 0;
        {
            let _outer = task.gfp_scope(Gfp::NOWAIT);
            let _inner = task.gfp_scope(Gfp::KERNEL);
            while region.write(next).is_ok() {
                next += 1;
            }
            assert!(matches!(region.write(next), Err(VmError::OutOfFrames(_))));
            assert_eq!((pager.counts().allocstall, pager.counts().pswpout), (0, 0));
            assert!(pager.zone().pressure() >= Pressure::Low);
            let _more = task.gfp_scope(Gfp::MEMALLOC);
            assert!(region.write(next).is_ok(), "a reclaiming thread has the reserve");
        }
        (next..next + FRAMES / 4).for_each(|page| drop(region.write(page).expect("it waits now")));
        assert!(pager.counts().direct > 0);
    });
}

/// Files are not written for a request that may not call into them, swap is; and all is when that ends.
#[test]
fn without_files_pages_go_to_swap_and_those_of_files_only_clean() {
    let scratch = [Scratch::new("nofs-file"), Scratch::new("nofs-swap")];
    let pager = scratch[1].pager(4 * FRAMES);
    let files = Paging::on(Arc::clone(pager.zone()), Box::new(InPlace::new(&scratch[0])));
    let zone = zone_of(FRAMES);
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let spaces = [map.frames_of(&files), map.frames_of(&pager)]
        .map(|frames| VmSpace::new(frames, Atomic).expect("frames"));
    let work = || {
        let tasks = spaces.each_ref().map(|space| space.enter().expect("a task"));
        let map = |task: &ATask<'_, '_>| task.map(4 * FRAMES * FRAME_SIZE, Rights::READ_WRITE);
        let at = tasks.each_ref().map(|task| map(task).expect("addresses"));
        let [file, anonymous] = [0, 1].map(|which| tasks[which].region(at[which]).expect("mapped"));
        let write = |region: &ARegion<'_, '_>, page: usize| {
            fill(&mut region.write(page).expect("a frame"), page, 1);
        };
        let placed = || files.backing().placed.load(Ordering::Relaxed);
        let swapped = || pager.swap().usage().1;
        (0..FRAMES / 4).for_each(|page| write(&file, page));
        {
            let _scopes = tasks.each_ref().map(|task| task.gfp_scope(Gfp::NOFS));
            (0..FRAMES).for_each(|page| write(&anonymous, page));
            assert!(swapped() > 0, "its own have gone");
            // A fault of a file's page may have pages of swap go as well.
            let before = swapped();
            (FRAMES / 4..FRAMES / 2).for_each(|page| write(&file, page));
            assert!(swapped() > before);
            assert_eq!(placed(), 0, "no page of a file is written");
        }
        (FRAMES..2 * FRAMES).for_each(|page| write(&anonymous, page));
        assert!(placed() > 0, "now they are");
        for page in 0..2 * FRAMES {
            assert!(is_filled(&anonymous.read(page).expect("there"), page, 1), "{page}");
            let file = file.read(page % (FRAMES / 2)).expect("there");
            assert!(is_filled(&file, page % (FRAMES / 2), 1), "{page}");
        }
    };
    let attached = files.attach(&spaces[0], || pager.attach(&spaces[1], work));
    attached.expect("a task").expect("a task");
}

/// Huge pages are taken off what is free, and take none of what is kept free: small ones do then.
#[test]
fn huge_pages_are_not_taken_where_memory_is_short() {
    with_region("huge", 5 * FRAMES, |pager, task, region| {
        let free = || pager.zone().free();
        let mut next = 0;
        pager.zone().set_settings(pager.zone().settings());
        // Three blocks, and less than is kept free.
        while free() > 3 * BLOCK_FRAMES + 100 {
            drop(region.write(next).expect("room"));
            next += 1;
        }
        let at = task.map_huge(3 * BLOCK_SIZE, Rights::READ_WRITE).expect("addresses");
        for granule in 0..3 {
            task.fault(at + granule * BLOCK_SIZE, Access::Write).expect("a frame");
        }
        let huge = (0..3).filter(|granule| task.is_huge((at + granule * BLOCK_SIZE) / FRAME_SIZE));
        assert_eq!(huge.count(), 2, "the third would leave less than is kept free");
        assert!((100..BLOCK_FRAMES + 100).contains(&free()), "{}", free());
        assert_eq!(pager.counts().pswpout, 0);
    });
}

/// A request for many frames at a time gets few where free ones lie apart, and no more than these count as taken.
#[test]
fn frames_that_were_not_to_be_had_count_as_free() {
    /// So many that two threads' lists have their share.
    const FRAMES: usize = 4096;
    let scratch = Scratch::new("apart");
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    let watermarks = Watermarks { min: 8, low: 16, high: 32 };
    let settings = Settings { watermarks, ..Settings::of(FRAMES) };
    let policy = Adaptive::new(&mut entries);
    let pager = SwapPager::new(scratch.swap(FRAMES), policy, FRAMES, settings);
    let zone = zone_of(FRAMES);
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let attached = pager.attach(&space, || {
        let task = space.enter().expect("a task");
        let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
        let write = |page: usize| task.write_at(at + page * FRAME_SIZE, b"here").expect("room");
        let free = || pager.zone().free();
        let full = (0..2 * FRAMES).find(|&page| {
            write(page);
            free() < 100
        });
        let full = full.expect("it is full");
        for page in (0..full).step_by(8) {
            task.unmap(at + page * FRAME_SIZE, FRAME_SIZE).expect("mapped");
        }
        task.give_frames_back();
        pager.zone().set_settings(settings);
        let before = free();
        assert!(before > FRAMES / 10, "{before}");
        (full + 1..full + 201).for_each(write);
        let after = free();
        assert!(after + 200 + 64 >= before, "{before} frames before, {after} after");
        // Nor more than there are.
        pager.zone().set_settings(settings);
        assert!(free() + 64 >= after, "{after} were said to be free, {} are", free());
    });
    attached.expect("a task");
    assert_eq!(pager.counts().pswpout, 0);
}

/// Where swap and memory are full, pages come back all the same: into the reserve, until another has gone.
#[test]
fn pages_come_back_though_swap_and_memory_are_full() {
    for has_kswapd in [false, true] {
        with_region(&format!("full-{has_kswapd}"), 512, |pager, _, region| {
            beside_kswapd(has_kswapd, pager, || {
                let mut written = 0;
                while let Ok(mut guard) = region.write(written) {
                    fill(&mut guard, written, 1);
                    drop(guard);
                    written += 1;
                }
                assert!(written > FRAMES, "{written}");
                for round in 0..3 {
                    for page in 0..written {
                        let page = if round == 1 { written - 1 - page } else { page };
                        let guard = region.read(page).expect("it is somewhere");
                        assert!(is_filled(&guard, page, 1), "{page}");
                    }
                }
            });
        });
    }
}

/// A ring that can't be asked any more.
struct Broken<E>(E, u32);

// SAFETY: as the engine inside.
unsafe impl<E: Engine> Engine for Broken<E> {
    fn depth(&self) -> usize {
        self.0.depth()
    }
    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        // SAFETY: forwarded with the caller's promise.
        unsafe { self.0.submit(request) }
    }
    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        self.1 = self.1.saturating_sub(1);
        if self.1 == 0 {
            return Err(Errno::BADFD);
        }
        self.0.wait(least)
    }
    fn next(&mut self) -> Option<Completion> {
        self.0.next()
    }
}

#[test]
fn a_ring_that_fails_for_good_is_replaced_and_nobody_waits_for_it() {
    for waits in [1, 20] {
        with_region(&format!("ring-{waits}"), 5 * FRAMES, |pager, _, region| {
            let make = move |depth| -> AnyEngine {
                Box::new(Broken(pumice_io::engine::best(depth), waits))
            };
            pager.zone().set_engines(&pumice_io::Engines::new(make));
            let written = beside_kswapd(true, pager, || {
                let mut written = 0;
                while written < 2 * FRAMES {
                    match region.write(written) {
                        Ok(mut guard) => fill(&mut guard, written, 1),
                        Err(_) => break,
                    }
                    written += 1;
                }
                // Where rings serve a while before they fail, pages go by one ring after the other; where they never
                // do, by plain calls.
                assert!(written > FRAMES / 2 && pager.counts().errors > 0, "{written}");
                written
            });
            // Others need a frame, which the broken rings may fail to free.
            let there: Vec<_> =
                (0..written).filter_map(|page| Some((page, region.read(page).ok()?))).collect();
            assert!(there.len() > FRAMES / 4, "{} of {written}", there.len());
            for (page, guard) in &there {
                assert!(is_filled(guard, *page, 1), "{page}");
            }
        });
    }
}

/// A device that, once it is told so, holds its next request of a kind up until the test lets it go.
pub(super) struct Gate {
    engine: AnyEngine,
    direction: Direction,
    is_armed: Arc<AtomicBool>,
    holds: bool,
    began: mpsc::Sender<()>,
    may_go_on: Arc<Mutex<mpsc::Receiver<()>>>,
}

/// The other side of it.
pub(super) struct Keeper {
    pub is_armed: Arc<AtomicBool>,
    pub has_begun: mpsc::Receiver<()>,
    pub go_on: mpsc::Sender<()>,
}

impl Gate {
    pub fn engines(direction: Direction) -> (impl Fn(u32) -> AnyEngine + Send + Sync, Keeper) {
        let (began, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let (is_armed, may_go_on) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(may_go_on)));
        let keeper = Keeper { is_armed: Arc::clone(&is_armed), has_begun, go_on };
        let make = move |depth| -> AnyEngine {
            let (is_armed, may_go_on) = (Arc::clone(&is_armed), Arc::clone(&may_go_on));
            let engine = pumice_io::engine::best(depth);
            Box::new(Gate {
                engine,
                direction,
                is_armed,
                holds: false,
                began: began.clone(),
                may_go_on,
            })
        };
        (make, keeper)
    }
}

// SAFETY: as the engine inside.
unsafe impl Engine for Gate {
    fn depth(&self) -> usize {
        self.engine.depth()
    }
    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        // Relaxed: channels say which is armed.
        self.holds |=
            request.direction == self.direction && self.is_armed.swap(false, Ordering::Relaxed);
        // SAFETY: forwarded with the caller's promise.
        unsafe { self.engine.submit(request) }
    }
    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        if self.holds && least == 0 {
            return Ok(());
        }
        if std::mem::take(&mut self.holds) {
            self.began.send(()).expect("somebody waits");
            self.may_go_on.lock().expect("no panic").recv().expect("it is told");
        }
        self.engine.wait(least)
    }
    fn next(&mut self) -> Option<Completion> {
        if self.holds {
            return None;
        }
        self.engine.next()
    }
}

/// A page that is unmapped while it is read keeps its slot until then: else another's bytes would be read, and the
/// device be blamed for it.
#[test]
fn a_page_unmapped_while_it_is_read_is_no_error_of_the_device() {
    let (gates, keeper) = Gate::engines(Direction::Read);
    let scratch = Scratch::new("unmapped");
    let pager = scratch.pager(2 * FRAMES);
    let pager = pager.with_engines(gates);
    with_space(&pager, |_, space| {
        let work = || {
            let task = space.enter().expect("a task");
            let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
            let region = task.region(at).expect("mapped");
            (0..FRAMES + FRAMES / 4)
                .for_each(|page| fill(&mut region.write(page).expect("room"), page, 1));
            let swapped =
                (0..FRAMES).find(|&page| region.translate(page).is_none()).expect("some went");
            keeper.is_armed.store(true, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let task = space.enter().expect("a task");
                    task.fault(at + swapped * FRAME_SIZE, Access::Read).map(drop)
                });
                keeper.has_begun.recv().expect("it reads");
                task.unmap(at + swapped * FRAME_SIZE, FRAME_SIZE).expect("mapped");
                // The thread that gets the slot now writes to it.
                let (page, mut taken) = ([7; FRAME_SIZE], Vec::new());
                while let Ok(slot) = pager.swap().get() {
                    pager.swap().seal(slot, &page);
                    taken.push(slot);
                }
                keeper.go_on.send(()).expect("it waits");
                let read = reader.join().expect("no panic");
                assert!(matches!(read, Err(VmError::Unmapped(_))), "{read:?}");
                assert!(pager.swap().put_all(taken));
            });
            assert!(pager.take_error().is_none(), "nothing is wrong with the device");
            assert_eq!(pager.counts().errors, 0);
            drop(region);
            task.unmap(at, 2 * FRAMES * FRAME_SIZE).expect("mapped");
        };
        pager.attach(space, work).expect("a task");
        assert_eq!((pager.swap().usage().1, space.swap_rss()), (0, 0), "no slot is lost");
    });
}

#[test]
fn what_is_given_back_after_a_count_is_not_counted_twice() {
    with_region("given-back", 5 * FRAMES, |pager, _, _| {
        let zone = pager.zone();
        let count = || zone.set_settings(zone.settings());
        count();
        let before = zone.free();
        for _ in 0..3 {
            assert!(zone.admits(Gfp::ABOVE_LOW, BLOCK_FRAMES));
            count();
            Reclaim::give_back(&**zone, BLOCK_FRAMES);
            assert_eq!(zone.free(), before);
        }
        assert!(zone.admits(Gfp::ABOVE_LOW, BLOCK_FRAMES));
        assert_eq!(zone.free(), before - BLOCK_FRAMES);
        Reclaim::give_back(&**zone, BLOCK_FRAMES);
        assert_eq!(zone.free(), before);
    });
}
