//! Spaces over a real zone: the effect of each call, and that no frame is lost.

use std::vec::Vec;

use super::disk::Disk;
use super::*;
use crate::page_table::pager::Evicted;
use crate::page_table::{Emulated, Rights};
use pumice_frames::addr::{BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{BlockState, Zone};
use pumice_frames::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;

fn zone() -> Zone {
    Zone::new(64 << 20, 4, Huge::No).expect("address space")
}

/// Frames that are not free, by asking each.
pub(super) fn taken(zone: &Zone) -> usize {
    // SAFETY: it is only looked at.
    let ledger = unsafe { zone.ledger() };
    let is_taken = |frame: &usize| ledger.is_allocated(pumice_frames::addr::Pfn(*frame));
    let of = |block: usize| match ledger.block(block).state() {
        BlockState::Whole => BLOCK_FRAMES,
        BlockState::Parts => {
            (0..BLOCK_FRAMES).map(|frame| block * BLOCK_FRAMES + frame).filter(is_taken).count()
        }
        _ => 0,
    };
    (0..ledger.grown()).map(of).sum()
}

/// Runs a test on a space, and sees that every frame comes back.
pub(super) fn with_space<T: TableOps + Default>(test: impl FnOnce(&VmSpace<Frames<'_>, T>)) {
    let zone = zone();
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let before = taken(&zone);
    let space = VmSpace::new(map.frames(), T::default()).expect("frames");
    test(&space);
    drop(space);
    assert_eq!(taken(&zone), before, "frames were lost, or freed twice");
    drop(map);
    assert_eq!(taken(&zone), 0);
}

pub(super) fn byte(task: &Task<'_, Frames<'_>, impl TableOps>, address: usize) -> Result<u8> {
    let mut byte = [0];
    task.read_at(address, &mut byte).map(|()| byte[0])
}

fn reading_maps_the_zero_page<T: TableOps + Default>() {
    with_space::<T>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(10 * PAGE, Rights::READ_WRITE).expect("room");
        assert_eq!(byte(&task, at + 5), Ok(0));
        assert_eq!(space.rss(), 0, "the zero page is nobody's");
        task.write_at(at + PAGE - 1, &[1, 2]).expect("mapped");
        assert_eq!(space.anon_rss(), 2);
        assert_eq!((byte(&task, at + PAGE - 1), byte(&task, at + PAGE)), (Ok(1), Ok(2)));
        assert_eq!(byte(&task, at + 10 * PAGE - 1), Ok(0));
    });
}

#[test]
fn reading_maps_the_zero_page_and_writing_replaces_it() {
    reading_maps_the_zero_page::<Atomic>();
    reading_maps_the_zero_page::<Emulated>();
}

#[test]
fn misuse_is_an_error_that_says_where() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(3 * PAGE, Rights::READ).expect("room");
        let region = Some(Extent { start: at, bytes: 3 * PAGE });
        let place = |address| Place { address, region };
        let denied = VmError::Denied(place(at + 8), Access::Write);
        assert_eq!(task.write_at(at + 8, &[1]), Err(denied));
        assert_eq!(denied.to_string().matches(&format!("{at:#x}")).count(), 1, "{denied}");
        let beyond = at + 3 * PAGE;
        assert_eq!(byte(&task, beyond), Err(VmError::Unmapped(place(beyond))));
        let nowhere = Place { address: 7, region: None };
        assert_eq!(byte(&task, 7), Err(VmError::Unmapped(nowhere)));
        for address in [usize::MAX - 4, 1 << 46, 1 << 47] {
            assert!(task.fault(address, Access::Read).is_err());
        }
        assert!(matches!(task.read_at(usize::MAX, &mut [0; 2]), Err(VmError::BadRange(_))));
        let bad = Extent { start: at + 1, bytes: PAGE };
        assert_eq!(task.unmap(at + 1, PAGE), Err(VmError::Unaligned(bad)));
        assert!(matches!(task.unmap(at, 0), Err(VmError::BadRange(_))));
        assert!(matches!(task.unmap(at, usize::MAX - PAGE + 1), Err(VmError::BadRange(_))));
        assert!(matches!(task.map(0, Rights::READ), Err(VmError::BadRange(_))));
        assert!(matches!(task.map(1 << 47, Rights::READ), Err(VmError::OutOfAddresses(_))));
        let region = task.region(at).expect("mapped");
        assert!(matches!(region.read(3), Err(VmError::Unmapped(_))));
        assert!(matches!(region.read(usize::MAX), Err(VmError::Unmapped(_))));
        assert!(matches!(region.write(0), Err(VmError::Denied(..))));
        assert_eq!(region.translate(usize::MAX), None);
    });
}

#[test]
fn parts_can_be_unmapped_and_protected() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let pages = 3 * BLOCK_FRAMES + 100;
        let at = task.map(pages * PAGE, Rights::READ_WRITE).expect("room");
        for page in (0..pages).step_by(7) {
            task.write_at(at + page * PAGE, &[page as u8]).expect("mapped");
        }
        let rss = space.anon_rss();
        assert!(rss >= pages / 7);
        task.unmap(at + 500 * PAGE, 600 * PAGE).expect("aligned");
        assert!(space.anon_rss() < rss);
        for page in 0..pages {
            let is_gone = (500..1100).contains(&page);
            assert_eq!(byte(&task, at + page * PAGE).is_err(), is_gone, "{page}");
        }
        assert!(task.protect(at, 501 * PAGE, Rights::READ).is_err());
        task.protect(at, 500 * PAGE, Rights::READ).expect("mapped");
        assert!(matches!(task.write_at(at + PAGE, &[1]), Err(VmError::Denied(..))));
        assert_eq!(byte(&task, at + 7 * PAGE), Ok(7));
        task.protect(at + PAGE, PAGE, Rights::READ_WRITE).expect("mapped");
        task.write_at(at + PAGE, &[1]).expect("allowed again");
        task.unmap(at, pages * PAGE).expect("aligned");
        assert_eq!(space.rss(), 0);
        assert!(byte(&task, at).is_err());
    });
}

#[test]
fn addresses_and_tables_are_used_again() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let mut seen = std::collections::BTreeSet::new();
        let (rounds, bytes) = (1100, 1 << 29);
        for _ in 0..rounds {
            let at = task.map(bytes, Rights::READ_WRITE).expect("room");
            task.unmap(at, bytes).expect("aligned");
            seen.insert(at);
        }
        assert!(seen.len() < rounds, "addresses come round");
        for _ in 0..100 {
            let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
            task.write_at(at, &[1]).expect("mapped");
            task.unmap(at, PAGE).expect("aligned");
        }
    });
}

#[test]
fn a_guard_keeps_its_page_beyond_unmap() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(4 * PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        let mut held = region.write(1).expect("mapped");
        held[9] = 9;
        let read = region.read(2).expect("mapped");
        assert!(matches!(region.try_read(1), Err(VmError::Busy(_))));
        assert!(matches!(region.try_write(2), Err(VmError::Busy(_))));
        assert!(region.try_read(2).is_ok());
        task.unmap(at, 4 * PAGE).expect("aligned");
        assert!(region.read(1).is_err() && region.read(2).is_err());
        held[10] = held[9] + 1;
        assert_eq!((held[10], read[0]), (10, 0));
        assert_eq!(space.anon_rss(), 1);
        drop((held, read));
        assert_eq!(space.rss(), 0);
        assert_eq!(region.translate(1), None);
    });
}

#[test]
fn fork_shares_until_one_side_writes() {
    with_space::<Atomic>(|parent| {
        let task = parent.enter().expect("frames");
        let at = task.map(600 * PAGE, Rights::READ_WRITE).expect("room");
        let all: Vec<u8> = (0..600 * PAGE).map(|index| (index / 1000) as u8).collect();
        task.write_at(at, &all).expect("mapped");
        let taken_before = taken(parent.tables.source.zone());
        let child = task.fork().expect("frames");
        let copied = taken(parent.tables.source.zone()) - taken_before;
        assert!(copied < 50, "tables only, not {copied} frames");
        assert_eq!((parent.anon_rss(), child.anon_rss()), (600, 600));
        let kid = child.enter().expect("frames");
        let mut seen = vec![0; all.len()];
        kid.read_at(at, &mut seen).expect("mapped");
        assert!(seen == all);
        kid.write_at(at, &[77]).expect("mapped");
        task.write_at(at + PAGE, &[88]).expect("mapped");
        assert_eq!((byte(&task, at), byte(&kid, at)), (Ok(all[0]), Ok(77)));
        assert_eq!((byte(&task, at + PAGE), byte(&kid, at + PAGE)), (Ok(88), Ok(all[PAGE])));
        // Grandchildren, and what is unmapped on one side.
        let grandchild = kid.fork().expect("frames");
        kid.unmap(at, 600 * PAGE).expect("aligned");
        assert_eq!(child.anon_rss(), 0);
        let third = grandchild.enter().expect("frames");
        assert_eq!((byte(&third, at), byte(&task, at)), (Ok(77), Ok(all[0])));
        drop((third, kid));
        drop((grandchild, child));
        // Alone again: writing takes no copy.
        let before = taken(parent.tables.source.zone());
        task.write_at(at, &all).expect("mapped");
        assert_eq!(taken(parent.tables.source.zone()), before);
    });
}

#[test]
fn fork_gives_up_on_a_page_that_stays_held() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        let held = region.write(0).expect("mapped");
        assert!(matches!(task.fork(), Err(VmError::Busy(_))));
        drop(held);
        assert!(task.fork().is_ok());
    });
}

#[test]
fn a_sequence_of_faults_prefaults() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(512 * PAGE, Rights::READ_WRITE).expect("room");
        space.set_prefault(8);
        let mut seen = Vec::new();
        for page in 0..32 {
            task.fault(at + page * PAGE, Access::Write).expect("mapped");
            seen.push(space.anon_rss());
        }
        assert_eq!(seen[0], 1);
        assert_eq!(*seen.last().expect("some"), 32 + 7, "batches of 8 at most");
        space.set_prefault(1);
        task.fault(at + 100 * PAGE, Access::Write).expect("mapped");
        task.fault(at + 101 * PAGE, Access::Write).expect("mapped");
        assert_eq!(space.anon_rss(), 41);
    });
}

#[test]
fn optimistic_reads_see_what_was_written() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        assert_eq!(region.read_optimistic(0, |words| words.load(3)), Ok(0));
        region.write(0).expect("mapped")[24..32].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(region.read_optimistic(0, |words| words.load(3)), Ok(7));
        // While a guard writes, the reader takes a guard itself; here it would wait for ever, and
        // with a guard that reads it need not.
        let _held = region.read(0).expect("mapped");
        assert_eq!(region.read_optimistic(0, |words| words.load(3)), Ok(7));
    });
}

#[test]
fn threads_count_exactly_and_leave_their_counts() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(4096 * PAGE, Rights::READ_WRITE).expect("room");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let task = space.enter().expect("frames");
                    for page in 0..4096 {
                        task.fault(at + page * PAGE, Access::Write).expect("mapped");
                    }
                });
            }
        });
        assert_eq!(space.anon_rss(), 4096);
        task.unmap(at, 1000 * PAGE).expect("aligned");
        assert_eq!((space.rss(), space.swap_rss()), (3096, 0));
    });
}

#[test]
fn large_regions_walk_by_two_loads_and_are_given_back() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let bytes = (5 << 30) + 3 * PAGE - 1;
        let at = task.map(bytes, Rights::READ_WRITE).expect("room");
        let last = at + bytes - 1;
        task.write_at(last, &[5]).expect("mapped");
        let region = task.region(at).expect("mapped");
        assert!(region.is_side_by_side());
        let page = region.translate(region.pages() - 1).expect("present");
        // SAFETY: the page is there, and nobody else uses the space.
        assert_eq!(unsafe { page.add(PAGE - 2).read() }, 5);
        assert_eq!(region.translate(0), None);
        drop(region);
        let error = task.unmap(at, bytes);
        assert!(matches!(error, Err(VmError::Unaligned(_))));
        task.unmap(at, bytes.next_multiple_of(PAGE)).expect("aligned");
    });
}

#[test]
fn a_huge_page_comes_whole_and_is_split_for_parts() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        space.set_prefault(1);
        let pages = 5 * BLOCK_FRAMES + 10;
        let at = task.map_huge(pages * PAGE, Rights::READ_WRITE).expect("room");
        let granule = |index: usize| at + index * BLOCK_FRAMES * PAGE;
        for index in 0..4 {
            let first = task.fault(granule(index), Access::Write).expect("mapped");
            let last = granule(index) + (BLOCK_FRAMES - 1) * PAGE;
            let last = task.fault(last, Access::Read).expect("mapped");
            assert_eq!(last.as_ptr() as usize - first.as_ptr() as usize, (BLOCK_FRAMES - 1) * PAGE);
            assert_eq!(space.anon_rss(), (index + 1) * BLOCK_FRAMES);
            for page in 0..BLOCK_FRAMES {
                // SAFETY: the huge page is there, and nobody else uses the space.
                unsafe { first.as_ptr().add(page * PAGE).write(page as u8) };
            }
        }
        // Read first, and not filled: small pages.
        assert_eq!(byte(&task, granule(4)), Ok(0));
        task.write_at(granule(4), &[1]).expect("mapped");
        task.write_at(granule(5), &[1]).expect("mapped");
        assert_eq!(space.anon_rss(), 4 * BLOCK_FRAMES + 2);

        let region = task.region(at).expect("mapped");
        let before = region.translate(7).expect("present");
        assert_eq!(region.fault(7, Access::Write), Ok(before));
        assert_eq!(region.read(7).expect("mapped")[0], 7);
        assert_eq!(region.translate(7), Some(before), "no byte was moved");
        // Whole, then in part, then what is left.
        task.protect(granule(1), BLOCK_FRAMES * PAGE, Rights::READ).expect("mapped");
        assert!(matches!(task.fault(granule(1), Access::Write), Err(VmError::Denied(..))));
        task.protect(granule(1) + 9 * PAGE, PAGE, Rights::READ_WRITE).expect("mapped");
        assert!(task.fault(granule(1), Access::Write).is_err());
        task.write_at(granule(1) + 9 * PAGE, &[99]).expect("allowed again");
        assert_eq!(byte(&task, granule(1) + 8 * PAGE), Ok(8));
        task.unmap(granule(2) + PAGE, PAGE).expect("aligned");
        assert!(byte(&task, granule(2) + PAGE).is_err());
        assert_eq!(byte(&task, granule(2) + 2 * PAGE), Ok(2));
        assert_eq!(space.anon_rss(), 4 * BLOCK_FRAMES + 1);
        let child = task.fork().expect("frames");
        let kid = child.enter().expect("frames");
        kid.write_at(granule(3), &[77]).expect("mapped");
        assert_eq!((byte(&task, granule(3)), byte(&kid, granule(3))), (Ok(0), Ok(77)));
        assert_eq!(byte(&kid, granule(3) + 9 * PAGE), Ok(9));
        drop(kid);
        task.unmap(granule(3), BLOCK_FRAMES * PAGE).expect("aligned");
        task.unmap(granule(0), BLOCK_FRAMES * PAGE).expect("aligned");
        assert_eq!(space.anon_rss(), 2 * BLOCK_FRAMES + 1);
    });
}

#[test]
fn a_huge_page_is_unmapped_whole_and_dropped_whole() {
    with_space::<Emulated>(|space| {
        let task = space.enter().expect("frames");
        let bytes = BLOCK_FRAMES * PAGE;
        let at = task.map_huge(2 * bytes, Rights::READ_WRITE).expect("room");
        let young = |task: &Task<'_, _, _>| task.test_and_clear_young(at / PAGE + 3);
        assert_eq!(young(&task), None);
        task.fault(at, Access::Write).expect("mapped");
        assert_eq!((young(&task), young(&task)), (Some(true), Some(false)));
        let mut found = 0;
        task.scan_present(at / PAGE, |_| found += 1);
        assert_eq!(found, BLOCK_FRAMES, "a pager that was not told of them meets its pages");
        task.fault(at + bytes, Access::Write).expect("mapped");
        task.unmap(at, bytes).expect("aligned");
        assert_eq!(space.anon_rss(), BLOCK_FRAMES);
    });
}

#[test]
fn without_a_free_block_pages_come_one_by_one() {
    let zone = Zone::new(4 << 20, 1, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let task = space.enter().expect("frames");
    space.set_prefault(1);
    let at = task.map_huge(8 << 20, Rights::READ_WRITE).expect("room");
    for granule in 0..4 {
        task.fault(at + granule * BLOCK_FRAMES * PAGE, Access::Write).expect("mapped");
    }
    assert_eq!(space.anon_rss(), BLOCK_FRAMES + 3, "one of the zone's blocks has the tables");
    drop(task);
    drop(space);
    drop(map);
    assert_eq!(taken(&zone), 0);
}

/// As [`with_space`], with a pager; no slot may be in use at the end.
pub(super) fn with_pager(test: impl FnOnce(&VmSpace<Frames<'_>>, &Disk)) {
    let (zone, disk) = (zone(), Disk::default());
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames").with_pager(&disk);
    let before = taken(&zone);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    test(&space, &disk);
    drop(space);
    assert_eq!((taken(&zone), disk.used()), (before, 0), "frames or slots were lost");
    drop(map);
    assert_eq!(taken(&zone), 0);
}

#[test]
fn pages_leave_and_come_back() {
    with_pager(|space, disk| {
        space.set_prefault(1);
        let task = space.enter().expect("frames");
        let at = task.map(4 * PAGE, Rights::READ_WRITE).expect("room");
        let first = at / PAGE;
        task.write_at(at, &[1]).expect("mapped");
        task.write_at(at + PAGE, &[2]).expect("mapped");
        assert_eq!(byte(&task, at + 2 * PAGE), Ok(0));
        assert!(!disk.swap_out(&task, first + 2, Evicted::Swapped), "the zero page stays");
        assert!(!disk.swap_out(&task, first + 3, Evicted::Swapped), "nothing is there");
        assert!(disk.swap_out(&task, first, Evicted::Swapped));
        assert!(disk.swap_out(&task, first + 1, Evicted::Shadow));
        assert_eq!((space.anon_rss(), space.swap_rss(), disk.used()), (0, 1, 2));
        task.protect(at, PAGE, Rights::READ).expect("mapped");
        assert!(matches!(task.write_at(at, &[3]), Err(VmError::Denied(..))));
        disk.fails.store(true, Ordering::Relaxed);
        assert!(matches!(byte(&task, at), Err(VmError::ReadFailed(_))));
        disk.fails.store(false, Ordering::Relaxed);
        assert_eq!((byte(&task, at), byte(&task, at + PAGE)), (Ok(1), Ok(2)));
        assert_eq!((space.anon_rss(), space.swap_rss(), disk.used()), (2, 0, 0));
        let transit = task.begin_swap_out(first).expect("present");
        assert!(!transit.is_dirty(), "nobody wrote since it came in");
        assert_eq!(byte(&task, at), Ok(1));
        let out = task.end_swap_out(transit, Evicted::Swapped(9));
        assert_eq!(out, Err(Evicted::Swapped(9)), "the read brought it back");
        let region = task.region(at).expect("mapped");
        let held = region.read(1).expect("mapped");
        assert!(task.begin_swap_out(first + 1).is_none(), "a guard keeps it");
        drop(held);
        // Pages in swap are unmapped, and dropped, and a child's too; those that can't be shared are read for it.
        assert!(disk.swap_out(&task, first, Evicted::Swapped));
        assert!(disk.swap_out(&task, first + 1, Evicted::Shadow));
        let child = task.fork().expect("frames");
        assert_eq!((space.swap_rss(), child.swap_rss(), child.anon_rss()), (1, 1, 1));
        assert!(task.begin_swap_out(first + 1).is_none(), "it is the child's too");
        let kid = child.enter().expect("frames");
        assert_eq!(byte(&kid, at), Ok(1));
        assert_eq!((space.swap_rss(), child.swap_rss(), disk.used()), (1, 0, 1));
        assert_eq!(byte(&task, at), Ok(1));
        drop(kid);
        assert_eq!(disk.used(), 0);
        assert!(disk.swap_out(&task, first, Evicted::Swapped));
        drop(task.fork().expect("frames"));
        assert_eq!(byte(&task, at), Ok(1), "the child's end leaves it");
        drop(child);
        assert!(disk.swap_out(&task, first, Evicted::Swapped));
        assert!(disk.swap_out(&task, first + 1, Evicted::Shadow));
        task.unmap(at, PAGE).expect("aligned");
        assert_eq!((space.swap_rss(), disk.used()), (0, 1));
    });
}

#[test]
fn what_comes_in_is_told_in_batches_and_what_is_used_is_young() {
    with_pager(|space, disk| {
        let task = space.enter().expect("frames");
        space.set_prefault(8);
        let at = task.map(200 * PAGE, Rights::READ_WRITE).expect("room");
        for page in 0..100 {
            task.fault(at + page * PAGE, Access::Write).expect("mapped");
        }
        assert_eq!(disk.told().len(), history::BATCH_PAGES);
        task.lru_drain();
        let told = disk.told();
        assert_eq!(told.len(), space.anon_rss());
        for (index, told) in told.iter().enumerate() {
            assert_eq!(told.page, at / PAGE + index);
            let frame = space.tables.source.bytes(told.frame);
            assert_eq!(task.fault(told.page * PAGE, Access::Read), Ok(frame));
        }
        let young = |page: usize| task.test_and_clear_young(at / PAGE + page);
        assert_eq!((young(3), young(3), young(150)), (Some(true), Some(false), None));
        assert_eq!(byte(&task, at + 3 * PAGE), Ok(0));
        assert_eq!(young(3), Some(true));
    });
}

#[test]
fn a_space_that_can_not_be_made_keeps_nothing() {
    let zone = Zone::new(2 << 20, 1, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let source = map.frames();
    let mut all: Vec<_> = core::iter::from_fn(|| source.get_run(1)).collect();
    let mut spaces = 0;
    while let Some(frame) = all.pop() {
        let before = taken(&zone);
        let made = VmSpace::new(source, Atomic).and_then(|space| {
            let task = space.enter()?;
            let at = task.map(BLOCK_FRAMES * PAGE, Rights::READ_WRITE)?;
            task.write_at(at, &[1])?;
            task.fork().map(drop)
        });
        spaces += usize::from(made.is_ok());
        assert_eq!(taken(&zone), before, "{made:?}");
        source.put_run(frame);
        if spaces > 2 {
            break;
        }
    }
    assert!(spaces > 2);
    all.into_iter().for_each(|frame| source.put_run(frame));
    drop(map);
    assert_eq!(taken(&zone), 0);
}

#[test]
fn without_frames_there_is_an_error() {
    let zone = Zone::new(4 << 20, 1, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let task = space.enter().expect("frames");
    let at = task.map(8 << 20, Rights::READ_WRITE).expect("room");
    let error = (0..2048).find_map(|page| task.fault(at + page * PAGE, Access::Write).err());
    assert!(matches!(error, Some(VmError::OutOfFrames(_))), "{error:?}");
    let resident = space.anon_rss();
    assert!(resident > 900, "{resident}");
    task.unmap(at, 8 << 20).expect("aligned");
    assert_eq!(space.anon_rss(), 0);
}

#[test]
fn optimistic_reads_are_seen_by_reclaim() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        drop(region.write(0).expect("mapped"));
        let page = at / PAGE;
        for _ in 0..3 {
            task.test_and_clear_young(page);
            assert_eq!(task.test_and_clear_young(page), Some(false));
            assert_eq!(region.read_optimistic(0, |words| words.load(3)), Ok(0));
            assert_eq!(task.test_and_clear_young(page), Some(true));
        }
    });
}
