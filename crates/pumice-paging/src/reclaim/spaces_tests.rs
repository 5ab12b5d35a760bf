//! Several spaces on one zone, which come and go while their pages do.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rustix::io::Errno;

use super::policy::table;
use super::testing::{beside, fill, is_filled, zone_of, Scratch, FRAMES};
use super::watched::Watched;
use super::{Adaptive, Paging, Policy, Settings, SwapPager, ZoneReclaim};
use crate::backing::{Backing, Came, Outgoing, Place, Refusal};
use crate::page_table::pager::{Evicted, Page, ReadResult, SpaceId};
use crate::page_table::{Atomic, FrameSource, Rights};
use crate::space::{MemMap, VmSpace};
use crate::swap::backing::SwapBacking;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Zone};
use pumice_io::engine::{self, Direction};
use pumice_io::fake::{FakeEngine, Faults};
use pumice_io::{AnyEngine, BlockFile, Bytes, Cached, Engines, Queues, Request};

/// Writes pages of a region, and reads and writes them at random: each is as it was left.
pub(super) fn use_pages<F: FrameSource>(space: &VmSpace<F>, pages: usize, steps: usize, seed: u64) {
    let task = space.enter().expect("a task");
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
    let region = task.region(at).expect("mapped");
    let mut versions = vec![0; pages];
    let mut random = Rng::with_seed(seed);
    for step in 0..pages + steps {
        let page = if step < pages { step } else { random.usize(..pages) };
        if step < pages || random.bool() {
            let mut guard = region.write(page).expect("a frame");
            assert!(is_filled(&guard, page, versions[page]), "page {page}");
            versions[page] += 1;
            fill(&mut guard, page ^ seed as usize, 0);
            fill(&mut guard, page, versions[page]);
        } else {
            let guard = region.read(page).expect("a frame");
            assert!(is_filled(&guard, page, versions[page]), "page {page}");
        }
    }
    drop(region);
    task.unmap(at, pages * FRAME_SIZE).expect("mapped");
}

fn on_a_zone<P: Policy + Send>(policy: P, work: impl FnOnce(&Zone, &Arc<ZoneReclaim<P>>)) {
    let reclaim = Arc::new(ZoneReclaim::new(policy, FRAMES, Settings::of(FRAMES)));
    let zone = zone_of(FRAMES);
    beside(&reclaim, || reclaim.kswapd(), || work(&zone, &reclaim));
}

#[test]
fn one_reclaim_takes_pages_of_several_spaces_to_several_places() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    on_a_zone(Adaptive::new(&mut entries), |zone, reclaim| {
        let scratch = [Scratch::new("several-0"), Scratch::new("several-1")];
        let pagers = scratch.each_ref().map(|scratch| {
            let swap = SwapBacking::new(scratch.swap(3 * FRAMES), &Engines::default());
            Paging::on(reclaim.clone(), Box::new(swap))
        });
        let map = MemMap::new(zone, Clearer::detect()).expect("tables").with_pager(&pagers[0]);
        let sources = [map.frames(), map.frames_of(&pagers[1]), map.frames()];
        std::thread::scope(|scope| {
            for (seed, source) in (1..).zip(sources) {
                let pager = &pagers[(seed as usize + 1) % 2];
                scope.spawn(move || {
                    let space = VmSpace::new(source, Atomic).expect("frames");
                    let work = || use_pages(&space, FRAMES, 2 * FRAMES, seed);
                    pager.attach(&space, work).expect("a task");
                });
            }
        });
        for pager in &pagers {
            let (_, taken) = pager.swap().usage();
            assert_eq!(taken, 0, "all is unmapped");
        }
        let counts = reclaim.counts();
        assert!(counts.pswpout > FRAMES as u64 && counts.pswpin > FRAMES as u64, "{counts:?}");
        assert_eq!(counts.errors, 0);
    });
}

/// With pages in flight, in batches and on the lists.
#[test]
fn spaces_come_and_go() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    on_a_zone(Adaptive::new(&mut entries), |zone, reclaim| {
        let scratch = Scratch::new("come-and-go");
        let swap = SwapBacking::new(scratch.swap(8 * FRAMES), &Engines::default());
        let pager = &Paging::on(reclaim.clone(), Box::new(swap));
        let map = &MemMap::new(zone, Clearer::detect()).expect("tables").with_pager(pager);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let space = VmSpace::new(map.frames(), Atomic).expect("frames");
                let work = || use_pages(&space, 2 * FRAMES, 2 * FRAMES, 1);
                pager.attach(&space, work).expect("a task");
            });
            for seed in 2..4 {
                scope.spawn(move || {
                    for round in 0..24 {
                        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
                        let pages = 1 + (round * 97 * seed as usize) % FRAMES;
                        let work = || use_pages(&space, pages, pages / 2, seed);
                        pager.attach(&space, work).expect("a task");
                    }
                });
            }
        });
        assert_eq!(pager.swap().usage().1, 0, "all is unmapped");
        assert_eq!(reclaim.counts().errors, 0);
    });
}

#[test]
fn a_panic_detaches() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    on_a_zone(Adaptive::new(&mut entries), |zone, reclaim| {
        let scratch = Scratch::new("panic");
        let swap = SwapBacking::new(scratch.swap(2 * FRAMES), &Engines::default());
        let pager: SwapPager<_> = Paging::on(reclaim.clone(), Box::new(swap));
        let map = MemMap::new(zone, Clearer::detect()).expect("tables").with_pager(&pager);
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let fails = || -> () {
            use_pages(&space, FRAMES + FRAMES / 2, 100, 3);
            panic!("on purpose");
        };
        let attached = catch_unwind(AssertUnwindSafe(|| pager.attach(&space, fails)));
        assert!(attached.is_err());
        drop(space);
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        pager.attach(&space, || use_pages(&space, 2 * FRAMES, 100, 4)).expect("a task");
    });
}

#[test]
fn pages_that_must_not_be_written_yet_are_waited_for() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    on_a_zone(Adaptive::new(&mut entries), |zone, reclaim| {
        let scratch = Scratch::new("log");
        let swap = SwapBacking::new(scratch.swap(2 * FRAMES), &Engines::default());
        let (is_durable, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
        let watch = || {
            // Relaxed: a flag.
            if !is_durable.load(Ordering::Relaxed) {
                refused.fetch_add(1, Ordering::Relaxed);
                return Err(Refusal::NotNow);
            }
            Ok(())
        };
        let pager = Paging::on(reclaim.clone(), Box::new(Watched { swap: &swap, watch }));
        let map = MemMap::new(zone, Clearer::detect()).expect("tables").with_pager(&pager);
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let work = || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while refused.load(Ordering::Relaxed) < 2 * FRAMES / 32 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    is_durable.store(true, Ordering::Relaxed);
                });
                use_pages(&space, FRAMES + FRAMES / 2, 100, 9);
            });
        };
        pager.attach(&space, work).expect("a task");
        assert_eq!(reclaim.counts().errors, 0);
        let refused = refused.load(Ordering::Relaxed);
        assert!(refused < 100 * FRAMES, "{refused}: it does not try all the time");
    });
}

/// A file in which each page has its place.
pub(super) struct InPlace {
    file: BlockFile,
    readers: Queues,
    held: AtomicIsize,
    dirty_again: AtomicUsize,
    /// Requests for writing.
    pub placed: AtomicUsize,
    fails: AtomicBool,
}

impl InPlace {
    pub fn new(scratch: &Scratch) -> InPlace {
        let mut file = BlockFile::open(&scratch.0, Cached::No).expect("a file");
        file.reserve(64 << 20).expect("room");
        InPlace {
            file,
            readers: Queues::new(Engines::default(), 1),
            held: AtomicIsize::new(0),
            dirty_again: AtomicUsize::new(0),
            placed: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        }
    }

    fn offset(page: usize) -> u64 {
        // Regions are 2 MiB apart, and the first is not far.
        (page % (1 << 14) * FRAME_SIZE) as u64
    }
}

// SAFETY: it knows of no task.
unsafe impl Backing for InPlace {
    fn needs(&self) -> Gfp {
        Gfp::IO | Gfp::FS
    }
    fn writes_in_place(&self) -> bool {
        true
    }
    fn hold(&self, _: SpaceId, page: usize) -> bool {
        let may_go = page % 17 != 3;
        self.held.fetch_add(isize::from(may_go), Ordering::Relaxed);
        may_go
    }
    fn let_go(&self, _: SpaceId, _: usize) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
    fn dirty_again(&self, _: SpaceId, _: usize) {
        self.dirty_again.fetch_add(1, Ordering::Relaxed);
    }
    fn read(&self, _: SpaceId, page: usize, _: Evicted, into: &mut Page) -> ReadResult {
        let mut queue = self.readers.take();
        let (file, direction) = (self.file.reference(), Direction::Read);
        let bytes = Bytes::Run { at: NonNull::from(&mut *into).cast(), len: FRAME_SIZE };
        let request = Request { file, direction, bytes, offset: InPlace::offset(page), token: 0 };
        // SAFETY: the bytes are borrowed until the queue is empty.
        unsafe { queue.submit(request, ()) }.expect("room");
        queue.drain(|(), went| went.expect("it was written")).expect("a queue");
        self.readers.give(queue);
        Ok(())
    }
    fn came_in(&self, _: SpaceId, _: usize, from: Evicted, _: Rights) -> Came {
        let Evicted::Shadow(note) = from else { panic!("{from:?}") };
        Came { note: Some(note), slot: 0 }
    }
    fn free(&self, _: SpaceId, _: Evicted) {}
    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        Some(Evicted::Shadow(page.note))
    }
    unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        let first = pages[0].page;
        if self.fails.load(Ordering::Relaxed) && first % 5 == 0 {
            return Err(if first % 2 == 0 { Refusal::Failed } else { Refusal::NotNow });
        }
        let beside = |&(nth, page): &(usize, &Outgoing)| page.page == first + nth;
        let run = pages.iter().enumerate().take_while(beside).count();
        self.placed.fetch_add(1, Ordering::Relaxed);
        let (file, offset) = (self.file.reference(), InPlace::offset(first));
        Ok(Place { file, offset, pages: run, bytes: run * FRAME_SIZE, tag: 0 })
    }
    fn written(&self, _: &Place, _: &[Outgoing], _: Result<(), Errno>) {}
    fn evicted(&self, _: &Place, _: usize, _: &Outgoing) -> Evicted {
        panic!("it goes when it is clean")
    }
    fn give_up(&self, _: &Place, _: usize) {}
    fn release(&self, _: &mut dyn Iterator<Item = u32>) {}
}

/// Written where they were before, by requests that fail at times, beside pages that go to swap.
#[test]
fn pages_that_are_written_in_place_are_not_written_to_meanwhile() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    on_a_zone(Adaptive::new(&mut entries), |zone, reclaim| {
        let scratch = [Scratch::new("in-place"), Scratch::new("beside")];
        let faults = Faults { error: 20, short: 9, late: 4, ..Faults::default() };
        let make = move |depth| -> AnyEngine {
            Box::new(FakeEngine::new(engine::best(depth), faults, 11))
        };
        reclaim.set_engines(&Engines::new(make));
        let backing = InPlace { fails: AtomicBool::new(true), ..InPlace::new(&scratch[0]) };
        let files = Paging::on(reclaim.clone(), &backing);
        let swap = SwapBacking::new(scratch[1].swap(3 * FRAMES), &Engines::default());
        let swap = Paging::on(reclaim.clone(), Box::new(swap));
        let map = MemMap::new(zone, Clearer::detect()).expect("tables");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let space = VmSpace::new(map.frames_of(&files), Atomic).expect("frames");
                let work = || use_pages(&space, FRAMES * 5 / 4, 4 * FRAMES, 5);
                files.attach(&space, work).expect("a task");
            });
            scope.spawn(|| {
                let space = VmSpace::new(map.frames_of(&swap), Atomic).expect("frames");
                let work = || use_pages(&space, FRAMES, 2 * FRAMES, 6);
                swap.attach(&space, work).expect("a task");
            });
        });
        assert_eq!(files.backing().held.load(Ordering::Relaxed), 0);
        assert!(files.backing().dirty_again.load(Ordering::Relaxed) > 0);
        assert_eq!(swap.swap().usage().1, 0);
    });
}
