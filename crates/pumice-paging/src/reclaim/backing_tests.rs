//! Faults of a backing that reclaim must bear: it may be full by others' swap caches, and its engine may panic.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use fastrand::Rng;
use rustix::io::Errno;

use super::policy::table;
use super::round::Round;
use super::testing::{self, fill, is_filled, zone_of, Scratch, Space, FRAMES};
use super::watched::Watched;
use super::writes::Writes;
use super::{Adaptive, Paging, Settings, SwapPager, ZoneReclaim};
use crate::page_table::pager::{Evicted, LruPage, Pager};
use crate::page_table::{Atomic, Rights};
use crate::space::{MemMap, VmError, VmSpace};
use crate::swap::backing::SwapBacking;
use crate::swap::Swap;
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Gfp;
use pumice_io::engine::{self, Engine};
use pumice_io::{AnyEngine, Completion, Engines, Request};

/// Slots of the swap that two tests fill.
const SLOTS: usize = 512;

/// Half of the slots are kept by pages of a space, as if they had come back and were unmapped, of which nobody says so.
fn keep_half(swap: &Swap, pager: &dyn Pager, of: &Space<'_>) {
    for page in 0..SLOTS / 2 {
        let slot = swap.get().expect("a slot");
        let frame = LruPage { page, frame: Pfn(page) };
        pager.swapped_in(of.id(), frame, Evicted::Swapped(slot.0), Rights::READ);
    }
    assert_eq!(swap.usage().1 as usize, SLOTS / 2);
}

/// Writes pages until memory and swap are full.
fn fill_up(space: &Space<'_>) {
    testing::with_region(space, 2 * FRAMES, |_, region| {
        let full = (0..2 * FRAMES).find(|&page| region.write(page).is_err());
        assert!(full.is_some(), "memory and swap are full");
        assert_eq!(space.swap_rss(), SLOTS, "all of swap is used");
    });
}

/// SPEC E7: memory and swap add up. Slots that pages of another space keep, or have kept that are unmapped, are had.
#[test]
fn copies_that_others_keep_are_given_up_where_swap_is_full() {
    let scratch = Scratch::new("slots");
    let pager = scratch.pager(SLOTS);
    let zone = zone_of(FRAMES);
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
    let [other, space] = [0, 1].map(|_| VmSpace::new(map.frames(), Atomic).expect("frames"));
    let work = || {
        keep_half(pager.swap(), &pager, &other);
        fill_up(&space);
    };
    pager.attach(&other, || pager.attach(&space, work)).expect("a task").expect("a task");
}

/// As above, where what keeps the slots is on the same zone or on another, and has but a reference to the swap.
#[test]
fn copies_are_given_up_by_all_who_have_a_reference_to_the_swap() {
    let scratch = Scratch::new("references");
    let swap = SwapBacking::new(scratch.swap(SLOTS), &Engines::default());
    let mut entries = [(); 2].map(|()| table::<Adaptive<'_>>(FRAMES));
    let reclaim = entries.each_mut().map(|entries| {
        Arc::new(ZoneReclaim::new(Adaptive::new(entries), FRAMES, Settings::of(FRAMES)))
    });
    for kept_on in [0, 1] {
        let pagers = [kept_on, 0].map(|nth| Paging::on(Arc::clone(&reclaim[nth]), &swap));
        let zones = [(); 2].map(|()| zone_of(FRAMES));
        let maps =
            zones.each_ref().map(|zone| MemMap::new(zone, Clearer::detect()).expect("tables"));
        let sources = [maps[kept_on].frames_of(&pagers[0]), maps[0].frames_of(&pagers[1])];
        let [other, space] = sources.map(|frames| VmSpace::new(frames, Atomic).expect("frames"));
        let work = || {
            keep_half(swap.swap(), &pagers[0], &other);
            fill_up(&space);
        };
        let attached = pagers[0].attach(&other, || pagers[1].attach(&space, work));
        attached.expect("a task").expect("a task");
        drop((other, space));
        assert_eq!(swap.swap().usage().1, 0, "no slot is lost");
    }
}

/// A reclaimer meets pages of a space that came since it last looked at the spaces. Their frames may be another's by
/// then, when it meets that page, or while it has theirs in hand.
#[test]
fn copies_of_a_space_that_comes_meanwhile_are_given_up() {
    /// So many that a batch is several.
    const PAGES: usize = 32;
    for is_in_hand in [false, true] {
        let scratch = Scratch::new(&format!("meanwhile-{is_in_hand}"));
        let swap = SwapBacking::new(scratch.swap(FRAMES), &Engines::default());
        let mut entries = table::<Adaptive<'_>>(FRAMES);
        let reclaim = ZoneReclaim::new(Adaptive::new(&mut entries), FRAMES, Settings::of(FRAMES));
        let reclaim = Arc::new(reclaim);
        let late_pager = Paging::on(Arc::clone(&reclaim), &swap);
        let zone = zone_of(FRAMES);
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
        let late = VmSpace::new(map.frames_of(&late_pager), Atomic).expect("frames");
        let comes = |page: usize, frame: Pfn, slot: u32| {
            let page = LruPage { page, frame };
            late_pager.swapped_in(late.id(), page, Evicted::Swapped(slot), Rights::empty());
            page
        };
        let slot = || swap.swap().get().expect("a slot").0;
        // A frame that nobody has.
        let unused = Pfn(FRAMES - 1);
        let watch = || {
            comes(2, unused, slot());
            Ok(())
        };
        let pager = Paging::on(Arc::clone(&reclaim), Box::new(Watched { swap: &swap, watch }));
        let early = VmSpace::new(map.frames_of(&pager), Atomic).expect("frames");
        let attached = pager.attach(&early, || {
            let mut round = Round::new(&reclaim, Writes::new(&Engines::default(), 1), Gfp::KERNEL);
            round.meet_spaces();
            let task = early.enter().expect("a task");
            let at = task.map(PAGES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
            let write = || {
                for page in 0..PAGES {
                    task.write_at(at + page * FRAME_SIZE, b"dirty").expect("a frame");
                }
                task.lru_drain();
            };
            let attached = late_pager.attach(&late, || {
                if is_in_hand {
                    late_pager.lru_add(late.id(), &[comes(1, unused, slot())]);
                    write();
                    round.reclaim_directly();
                    assert!(reclaim.counts().pswpout > 0, "it has written the other's");
                } else {
                    write();
                    let mut frame = None;
                    task.scan_present(0, |page| frame = Some(page.frame));
                    comes(1, frame.expect("it is there"), slot());
                    assert!(round.sweep_all());
                    round.release_slots();
                }
            });
            attached.expect("a task");
            round.end();
            task.unmap(at, PAGES * FRAME_SIZE).expect("mapped");
        });
        attached.expect("a task");
        assert_eq!(swap.swap().usage().1, 0, "a slot is lost, in hand: {is_in_hand}");
    }
}

/// An engine that panics, in one of so many calls of its method.
struct Panicking {
    engine: AnyEngine,
    panics: Call,
    calls: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Submit,
    Wait,
    Next,
}

impl Panicking {
    fn come_to(&self, call: Call) {
        if call == self.panics && self.calls.fetch_add(1, Ordering::Relaxed) % 32 == 0 {
            // A panic of which nothing is printed.
            resume_unwind(Box::new(call));
        }
    }
}

// SAFETY: as the engine inside.
unsafe impl Engine for Panicking {
    fn depth(&self) -> usize {
        self.engine.depth()
    }
    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        self.come_to(Call::Submit);
        // SAFETY: forwarded with the caller's promise.
        unsafe { self.engine.submit(request) }
    }
    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        self.come_to(Call::Wait);
        self.engine.wait(least)
    }
    fn next(&mut self) -> Option<Completion> {
        self.come_to(Call::Next);
        self.engine.next()
    }
}

/// Pages stay, slots are not lost, and both background reclaim and direct reclaim go on.
#[test]
fn an_engine_of_swap_that_panics_has_failed() {
    const FEW: usize = FRAMES / 2;
    for panics in [Call::Submit, Call::Wait, Call::Next] {
        let scratch = Scratch::new(&format!("panics-{panics:?}"));
        let mut entries = table::<Adaptive<'_>>(FEW);
        let policy = Adaptive::new(&mut entries);
        let zone = zone_of(FEW);
        let calls = Arc::new(AtomicUsize::new(0));
        let of_engines = Arc::clone(&calls);
        let pager = SwapPager::new(scratch.swap(2 * FEW), policy, FEW, Settings::of(FEW));
        let pager = pager.with_engines(move |depth| {
            let (engine, calls) = (engine::best(depth), Arc::clone(&of_engines));
            Box::new(Panicking { engine, panics, calls })
        });
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        std::thread::scope(|scope| {
            let kswapd = scope.spawn(|| pager.kswapd(&space));
            let user = scope.spawn(|| use_pages_insisting(&space, FEW * 5 / 4, 1));
            let ended = user.join();
            assert!(!kswapd.is_finished());
            pager.stop();
            kswapd.join().expect("no panic").expect("a task");
            ended.expect("pages are as they were left");
        });
        assert!(calls.load(Ordering::Relaxed) > 32, "{panics:?}: it was hardly called");
        assert_eq!(pager.swap().usage().1, 0, "{panics:?}: slots are lost");
    }
}

/// Writes and reads pages, again where that fails.
fn use_pages_insisting(space: &VmSpace<crate::space::Frames<'_>>, pages: usize, seed: u64) {
    let task = space.enter().expect("a task");
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
    let region = task.region(at).expect("mapped");
    let mut versions = vec![0; pages];
    let mut random = Rng::with_seed(seed);
    for step in 0..3 * pages {
        let page = if step < pages { step } else { random.usize(..pages) };
        let is_writing = step < pages || random.usize(..5) == 0;
        let mut tries = 0;
        loop {
            let did = if is_writing {
                region.write(page).map(|mut guard| {
                    assert!(is_filled(&guard, page, versions[page]), "page {page}");
                    versions[page] += 1;
                    fill(&mut guard, page, versions[page]);
                })
            } else {
                let read = region.read(page);
                read.map(|guard| assert!(is_filled(&guard, page, versions[page]), "page {page}"))
            };
            match did {
                Ok(()) => break,
                Err(VmError::ReadFailed(_) | VmError::OutOfFrames(_)) => tries += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(tries < 1000, "page {page}");
        }
    }
    drop(region);
    task.unmap(at, pages * FRAME_SIZE).expect("mapped");
}
