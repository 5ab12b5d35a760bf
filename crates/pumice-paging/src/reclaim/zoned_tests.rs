//! Spaces over two zones: requests are served from, and pages go in, the zones that they name, and no others.

use std::ops::Range;
use std::sync::Arc;

use super::policy::table;
use super::spaces_tests::use_pages;
use super::testing::{fill, is_filled, zone_of, Scratch, Stopping};
use super::{Adaptive, Counts, Settings, ZoneReclaim, ZonedPaging};
use crate::page_table::pager::{Evicted, LruPage, Pager};
use crate::page_table::{Atomic, Rights};
use crate::space::{Access, MemMap, Region, Task, VmSpace, ZonedFrames, Zonelist};
use crate::swap::backing::SwapBacking;
use crate::swap::SwapError;
use pumice_frames::addr::{Pfn, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::error::Error;
use pumice_frames::frame::{Gfp, Pressure, Reclaim, Zone};
use pumice_frames::sys::mem::{Huge, Os};
use pumice_io::Engines;

/// Of each zone, a whole number of blocks.
const FRAMES: usize = 1024;
/// Frames that are kept free, and that tables and lists take.
const SPARE: usize = 3 * FRAMES / 16;

/// The first zone, the second, and both.
const A: Gfp = Gfp::KERNEL.within(1);
const B: Gfp = Gfp::KERNEL.within(2);

type Space<'m> = VmSpace<ZonedFrames<'m>, Atomic>;
type ATask<'t, 'm> = Task<'t, ZonedFrames<'m>, Atomic>;
type ARegion<'t, 'm> = Region<'t, ZonedFrames<'m>, Atomic>;

/// Two zones, what reclaims for them, and a space over both.
struct Both<'t, 'm> {
    zones: [&'t Zone; 2],
    reclaim: [Arc<ZoneReclaim<Adaptive<'m>>>; 2],
    space: &'t Space<'m>,
    pager: &'t dyn Pager,
    backing: &'t SwapBacking,
}

impl Both<'_, '_> {
    fn counts(&self) -> [Counts; 2] {
        [self.reclaim[0].counts(), self.reclaim[1].counts()]
    }

    /// Has so many slots kept by what are said to be pages, in frames from `first` on.
    fn keep_slots(&self, slots: usize, first: usize) {
        for page in 0..slots {
            let slot = self.backing.swap().get().expect("a slot");
            let frame = LruPage { page: 1 << 20 | page, frame: Pfn(first + page) };
            let from = Evicted::Swapped(slot.0);
            self.pager.swapped_in(self.space.id(), frame, from, Rights::READ);
        }
        assert_eq!(self.backing.swap().usage().1 as usize, slots);
    }

    /// How many of a region's pages are in each zone.
    fn where_are(&self, task: &ATask<'_, '_>, at: usize, pages: Range<usize>) -> [usize; 2] {
        let mut many = [0; 2];
        for page in pages {
            let byte = task.fault(at + page * FRAME_SIZE, Access::Read).expect("there");
            let byte = byte.as_ptr() as usize;
            let which = self.zones.iter().position(|zone| zone.addresses().contains(&byte));
            many[which.expect("one of them")] += 1;
        }
        many
    }
}

/// Whether there is somebody in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kswapd {
    None,
    EachZone,
}

/// Returns how long each zone's `kswapd` had a processor.
fn on_two_zones(name: &str, kswapd: Kswapd, work: impl FnOnce(&Both<'_, '_>)) -> [u128; 2] {
    on_two_zones_with(name, 16 * FRAMES, kswapd, work)
}

fn on_two_zones_with(
    name: &str,
    slots: usize,
    kswapd: Kswapd,
    work: impl FnOnce(&Both<'_, '_>),
) -> [u128; 2] {
    let scratch = Scratch::new(&format!("zoned-{name}"));
    let backing = SwapBacking::new(scratch.swap(slots), &Engines::default());
    let mut entries = [(); 2].map(|()| table::<Adaptive<'_>>(FRAMES));
    let mut firsts = [0, FRAMES].into_iter();
    let reclaim = entries.each_mut().map(|entries| {
        let reclaim = ZoneReclaim::new(Adaptive::new(entries), FRAMES, Settings::of(FRAMES));
        Arc::new(reclaim.starting_at(Pfn(firsts.next().expect("two"))))
    });
    let pager = ZonedPaging::on(&reclaim, &backing);
    let zones = [(); 2].map(|()| zone_of(FRAMES));
    let zones = zones.each_ref();
    let maps = zones.map(|zone| MemMap::new(zone, Clearer::detect()).expect("tables"));
    let members = [(&maps[0], &*reclaim[0] as &dyn Reclaim), (&maps[1], &*reclaim[1])];
    let zonelist = Zonelist::new(&members, &pager).expect("in order");
    let space = VmSpace::new(zonelist.frames(), Atomic).expect("frames");
    let (pager, backing) = (&pager, &backing);
    let both = Both { zones, reclaim: reclaim.clone(), space: &space, pager, backing };
    let used = pager.attach(&space, || {
        std::thread::scope(|scope| {
            let threads = reclaim.each_ref().map(|zone| {
                scope.spawn(move || {
                    if kswapd == Kswapd::EachZone {
                        zone.kswapd();
                    }
                    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                    used.tv_sec as u128 * 1_000_000_000 + used.tv_nsec as u128
                })
            });
            let stopping = reclaim.each_ref().map(|zone| Stopping(zone));
            work(&both);
            drop(stopping);
            threads.map(|thread| thread.join().expect("no panic"))
        })
    });
    assert_eq!(backing.swap().usage().1, 0, "all is unmapped");
    used.expect("tasks")
}

fn with_region(
    both: &Both<'_, '_>,
    pages: usize,
    work: impl FnOnce(&ATask<'_, '_>, &ARegion<'_, '_>, usize),
) {
    let task = both.space.enter().expect("a task");
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
    let region = task.region(at).expect("mapped");
    work(&task, &region, at);
    drop(region);
    task.unmap(at, pages * FRAME_SIZE).expect("mapped");
}

fn write(region: &ARegion<'_, '_>, pages: Range<usize>) {
    for page in pages {
        fill(&mut region.write(page).expect("a frame"), page, 1);
    }
}

fn check(region: &ARegion<'_, '_>, pages: Range<usize>) {
    for page in pages {
        assert!(is_filled(&region.read(page).expect("there"), page, 1), "{page}");
    }
}

#[test]
fn requests_for_one_zone_leave_the_other_alone() {
    for (zone, gfp) in [(0, A), (1, B)] {
        let other = 1 - zone;
        let used = on_two_zones(&format!("one-{zone}"), Kswapd::EachZone, |both| {
            with_region(both, 4 * FRAMES, |task, region, at| {
                // Tables of the upper levels are there.
                write(region, 0..1);
                let (free, before) = (both.zones[other].free_frames(), both.counts()[other]);
                let _scope = task.gfp_scope(gfp);
                write(region, 1..4 * FRAMES);
                check(region, 0..4 * FRAMES);
                check(region, 0..4 * FRAMES);
                assert!(both.counts()[zone].pswpout > 2 * FRAMES as u64);
                let now = both.counts()[other];
                assert_eq!(now, before, "nothing happened there");
                assert!(both.zones[other].free_frames() + 1 >= free, "it gave nothing");
                assert_eq!(both.reclaim[other].pressure(), Pressure::None);
                let pages = both.where_are(task, at, 3 * FRAMES..3 * FRAMES + 100);
                assert_eq!(pages[zone], 100);
            });
        });
        // It slept all the time.
        assert!(used[other] * 10 < used[zone], "{used:?}");
    }
}

#[test]
fn the_second_zone_is_used_before_the_first_is_reclaimed() {
    for kswapd in [Kswapd::None, Kswapd::EachZone] {
        on_two_zones(&format!("second-{kswapd:?}"), kswapd, |both| {
            with_region(both, 2 * FRAMES, |task, region, at| {
                let pages = 2 * FRAMES - 2 * SPARE;
                write(region, 0..pages);
                assert_eq!(both.counts(), [Counts::default(); 2], "all had room");
                let places = both.where_are(task, at, 0..pages);
                assert!(places.iter().all(|&many| many > FRAMES - 2 * SPARE), "{places:?}");
                check(region, 0..pages);
            });
        });
    }
}

#[test]
fn where_both_are_full_pages_go_in_the_zone_that_is_named() {
    for kswapd in [Kswapd::None, Kswapd::EachZone] {
        on_two_zones(&format!("named-{kswapd:?}"), kswapd, |both| {
            with_region(both, 4 * FRAMES, |task, region, _| {
                let pages = 2 * FRAMES - 2 * SPARE;
                write(region, 0..pages);
                let _scope = task.gfp_scope(A);
                write(region, pages..pages + FRAMES);
                let [a, b] = both.counts();
                assert!(a.pswpout > 0, "{a:?}");
                assert_eq!(b, Counts::default());
                // No zone is within both scopes, and there is no wait for one.
                let nowhere = task.gfp_scope(B);
                assert!(region.write(4 * FRAMES - 1).is_err());
                drop(nowhere);
                check(region, 0..pages + FRAMES);
            });
        });
    }
}

#[test]
fn a_page_comes_back_to_a_zone_that_the_request_names() {
    on_two_zones("comes-back", Kswapd::None, |both| {
        with_region(both, 4 * FRAMES, |task, region, at| {
            {
                let _scope = task.gfp_scope(A);
                write(region, 0..2 * FRAMES);
            }
            // These came when memory was full, and are in swap: no page was used twice, and the first ones stay.
            let gone = FRAMES..FRAMES + FRAMES / 4;
            let _scope = task.gfp_scope(B);
            let before = both.counts();
            check(region, gone.clone());
            assert_eq!(both.where_are(task, at, gone), [0, FRAMES / 4]);
            let now = both.counts();
            assert_eq!(now[0].pswpin, before[0].pswpin);
            // Some were read ahead.
            assert!(now[1].pswpin - before[1].pswpin >= FRAMES as u64 / 4);
            // There they go from again.
            check(region, 0..2 * FRAMES);
            write(region, 2 * FRAMES..4 * FRAMES);
            check(region, 0..4 * FRAMES);
            assert!(both.counts()[1].pswpout > FRAMES as u64);
        });
    });
}

#[test]
fn nothing_is_lost_in_four_times_the_memory_of_both() {
    for kswapd in [Kswapd::None, Kswapd::EachZone] {
        on_two_zones(&format!("lost-{kswapd:?}"), kswapd, |both| {
            std::thread::scope(|scope| {
                for seed in 1..5 {
                    scope.spawn(move || use_pages(both.space, 2 * FRAMES, 2 * FRAMES, seed));
                }
            });
            for counts in both.counts() {
                assert!(counts.pswpout > FRAMES as u64, "{counts:?}");
                assert_eq!(counts.errors, 0);
            }
        });
    }
}

/// A block that is asked for where there is none whole is not one less.
#[test]
fn a_huge_page_that_is_not_to_be_had_takes_nothing() {
    on_two_zones("no-block", Kswapd::None, |both| {
        let task = both.space.enter().expect("a task");
        let _scope = task.gfp_scope(A);
        let at = task.map(FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
        // Pages in all blocks of the zone, and then few of them.
        let many = FRAMES * 3 / 4;
        (0..many).for_each(|page| task.write_at(at + page * FRAME_SIZE, b"here").expect("room"));
        (0..many).filter(|page| page % 32 != 0).for_each(|page| {
            task.unmap(at + page * FRAME_SIZE, FRAME_SIZE).expect("mapped");
        });
        task.give_frames_back();
        let zone = &both.reclaim[0];
        zone.set_settings(zone.settings());
        let before = zone.free();
        assert!(before > 2 * FRAMES / 3, "{before}");
        let huge = task.map_huge(2 * BLOCK_SIZE, Rights::READ_WRITE).expect("addresses");
        for granule in 0..2 {
            task.fault(huge + granule * BLOCK_SIZE, Access::Write).expect("a frame");
        }
        assert_eq!(both.where_are(&task, huge, 0..1), [1, 0]);
        let after = zone.free();
        assert!(after + 2 * 32 + 8 >= before, "{before} frames before, {after} after");
        assert_eq!(zone.pressure(), Pressure::None);
        task.unmap(huge, 2 * BLOCK_SIZE).expect("mapped");
        task.unmap(at, FRAMES * FRAME_SIZE).expect("mapped");
    });
}

/// Nobody says that pages were unmapped. It is found out soon, of each zone that was short, whether one thread asks or
/// one after the other.
#[test]
fn zones_that_have_frames_again_are_asked_again() {
    const ZONES: usize = 3;
    for tasks in [1, 200] {
        let scratch = Scratch::new(&format!("zoned-again-{tasks}"));
        let backing = SwapBacking::new(scratch.swap(FRAMES), &Engines::default());
        let mut entries = [(); ZONES].map(|()| table::<Adaptive<'_>>(FRAMES));
        let mut firsts = (0..ZONES).map(|nth| Pfn(nth * FRAMES));
        let reclaim = entries.each_mut().map(|entries| {
            let reclaim = ZoneReclaim::new(Adaptive::new(entries), FRAMES, Settings::of(FRAMES));
            Arc::new(reclaim.starting_at(firsts.next().expect("one for each")))
        });
        let pager = ZonedPaging::on(&reclaim, &backing);
        let zones = [(); ZONES].map(|()| zone_of(FRAMES));
        let maps =
            zones.each_ref().map(|zone| MemMap::new(zone, Clearer::detect()).expect("tables"));
        let mut each = maps.iter().zip(&reclaim);
        let members = [(); ZONES].map(|()| {
            let (map, reclaim) = each.next().expect("one for each");
            (map, &**reclaim as &dyn Reclaim)
        });
        let zonelist = Zonelist::new(&members, &pager).expect("in order");
        let space = VmSpace::new(zonelist.frames(), Atomic).expect("frames");
        space.set_prefault(1);
        let attached = pager.attach(&space, || {
            {
                let filler = space.enter().expect("a task");
                let at = filler.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
                let mut page = 0;
                for (zone, reclaim) in reclaim.iter().enumerate().take(ZONES - 1) {
                    let _scope = filler.gfp_scope(Gfp::KERNEL.within(1 << zone));
                    while reclaim.pressure() < Pressure::Low {
                        filler.write_at(at + page * FRAME_SIZE, b"full").expect("a frame");
                        page += 1;
                    }
                }
                filler.unmap(at, 2 * FRAMES * FRAME_SIZE).expect("mapped");
            }
            let is_known = |zone: usize| reclaim[zone].pressure() < Pressure::Low;
            assert!((0..ZONES - 1).all(|zone| zones[zone].free_frames() > FRAMES / 2));
            assert!(!(0..ZONES - 1).any(is_known), "nobody said so");
            let at = space.enter().and_then(|task| task.map(400 * FRAME_SIZE, Rights::READ_WRITE));
            let at = at.expect("room");
            // The first of all three, then the first of the other two.
            for (zone, allowed) in [(0, 0b111), (1, 0b110)] {
                let each = 200 / tasks;
                for first in (zone * 200..(zone + 1) * 200).step_by(each) {
                    let task = space.enter().expect("a task");
                    let _scope = task.gfp_scope(Gfp::KERNEL.within(allowed));
                    for page in first..first + each {
                        task.write_at(at + page * FRAME_SIZE, b"new").expect("a frame");
                    }
                }
                assert!(is_known(zone), "zone {zone} was asked, by {tasks}");
                let task = space.enter().expect("a task");
                let last = at + (zone * 200 + 199) * FRAME_SIZE;
                let byte = task.fault(last, Access::Read).expect("there").as_ptr() as usize;
                assert!(zones[zone].addresses().contains(&byte), "zone {zone}, by {tasks}");
            }
        });
        attached.expect("a task");
    }
}

/// SPEC E7: memory and swap add up. Slots that pages of the other zone keep are had, without a page of it going.
#[test]
fn copies_that_pages_of_another_zone_keep_are_given_up_where_swap_is_full() {
    const SLOTS: usize = 512;
    for kswapd in [Kswapd::None, Kswapd::EachZone] {
        for (zone, gfp) in [(0, A), (1, B)] {
            on_two_zones_with(&format!("caches-{kswapd:?}-{zone}"), SLOTS, kswapd, |both| {
                let other = (1 - zone) * FRAMES;
                both.keep_slots(SLOTS / 2, other);
                with_region(both, 4 * FRAMES, |task, region, _| {
                    let _scope = task.gfp_scope(gfp);
                    let full = (0..4 * FRAMES).find(|&page| region.write(page).is_err());
                    assert!(full.is_some(), "memory and swap are full");
                    let used = both.backing.swap().usage().1 as usize;
                    assert_eq!(used, SLOTS, "all of swap is used");
                });
                assert_eq!(both.counts()[1 - zone].pswpout, 0);
            });
        }
    }
}

/// Swap that is full of slots in the swap cache has room: it is an error where there are none left.
#[test]
fn swap_is_said_to_be_full_where_copies_make_no_room() {
    const SLOTS: usize = 512;
    for kswapd in [Kswapd::None, Kswapd::EachZone] {
        on_two_zones_with(&format!("stays-full-{kswapd:?}"), SLOTS, kswapd, |both| {
            both.keep_slots(SLOTS / 2, FRAMES);
            with_region(both, 4 * FRAMES, |task, region, _| {
                let _scope = task.gfp_scope(A);
                let mut pages = 0..4 * FRAMES;
                while both.space.swap_rss() <= SLOTS * 5 / 8 {
                    write(region, pages.next().map(|page| page..page + 1).expect("more"));
                }
                let error = both.backing.take_error();
                assert!(error.is_none(), "slots made room: {error:?}");
                assert!(pages.any(|page| region.write(page).is_err()), "memory and swap are full");
                let error = both.backing.take_error();
                assert!(matches!(error, Some(SwapError::Full { slots: 512 })), "{error:?}");
            });
        });
    }
}

/// Children share frames of both zones, and huge pages are one zone's.
#[test]
fn forks_and_huge_pages_over_two_zones() {
    on_two_zones("forks", Kswapd::EachZone, |both| {
        let task = both.space.enter().expect("a task");
        let bytes = 2 * FRAMES / 2 * FRAME_SIZE;
        let at = task.map_huge(bytes, Rights::READ_WRITE).expect("addresses");
        for page in 0..FRAMES {
            task.write_at(at + page * FRAME_SIZE, &[page as u8]).expect("a frame");
        }
        let child = task.fork().expect("frames for tables");
        let kid = child.enter().expect("a task");
        for page in 0..FRAMES / 2 {
            kid.write_at(at + page * FRAME_SIZE, &[(1 + page) as u8]).expect("a frame");
        }
        for page in 0..FRAMES {
            let mut seen = [[0; 1]; 2];
            task.read_at(at + page * FRAME_SIZE, &mut seen[0]).expect("there");
            kid.read_at(at + page * FRAME_SIZE, &mut seen[1]).expect("there");
            let written = u8::from(page < FRAMES / 2);
            assert_eq!(seen, [[page as u8], [written.wrapping_add(page as u8)]], "{page}");
        }
        drop(kid);
        drop(child);
        task.unmap(at, bytes).expect("mapped");
    });
}

#[test]
fn scopes_name_zones() {
    assert!((0..8).all(|zone| Gfp::KERNEL.may_use(zone)));
    assert!(A.may_use(0) && !A.may_use(1) && !Gfp::KERNEL.may_use(8));
    assert!(A.contains(Gfp::KERNEL) && !Gfp::NOFS.within(3).contains(Gfp::KERNEL));
    on_two_zones("scopes", Kswapd::None, |both| {
        both.space.set_prefault(1);
        with_region(both, 16, |task, region, at| {
            let outer = task.gfp_scope(B);
            {
                let _inner = task.gfp_scope(Gfp::NOIO);
                write(region, 0..8);
            }
            drop(outer);
            assert_eq!(both.where_are(task, at, 0..8), [0, 8], "a scope in it keeps to it");
            write(region, 8..16);
            assert_eq!(both.where_are(task, at, 8..16), [8, 0]);
        });
    });
}

#[test]
fn zones_that_have_the_same_numbers_are_refused() {
    let zones = [(); 2].map(|()| Zone::new(FRAMES * FRAME_SIZE, 1, Huge::No).expect("a zone"));
    let maps = zones.each_ref().map(|zone| MemMap::new(zone, Clearer::detect()).expect("tables"));
    let mut entries = [(); 2].map(|()| table::<Adaptive<'_>>(FRAMES));
    let reclaim = entries.each_mut().map(|entries| {
        Arc::new(ZoneReclaim::new(Adaptive::new(entries), FRAMES, Settings::of(FRAMES)))
    });
    let scratch = Scratch::new("zoned-same");
    let backing = SwapBacking::new(scratch.swap(1), &Engines::default());
    let pager = ZonedPaging::on(&reclaim, &backing);
    let members = [(&maps[0], &*reclaim[0] as &dyn Reclaim), (&maps[1], &*reclaim[1])];
    let refused = Zonelist::new(&members, &pager).err();
    assert_eq!(refused, Some(Error::OutOfFrames));
    assert_eq!(Zonelist::<Os>::new(&[], &pager).err(), Some(Error::OutOfFrames));
}
