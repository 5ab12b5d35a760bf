//! Spaces over a real zone: what each call does, and that no frame is lost.

use std::vec::Vec;

use super::*;
use crate::addr::{BLOCK_FRAMES, FRAME_SIZE};
use crate::clear::Clearer;
use crate::frame::{BlockState, Zone};
use crate::page_table::{Emulated, Rights};
use crate::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;

fn zone() -> Zone {
    Zone::new(64 << 20, 4, Huge::No).expect("address space")
}

/// Frames that are not free, by asking each.
fn taken(zone: &Zone) -> usize {
    let ledger = &zone.ledger;
    let is_taken = |frame: &usize| ledger.is_allocated(crate::addr::Pfn(*frame));
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
fn with_space<T: TableOps + Default>(test: impl FnOnce(&VmSpace<Frames<'_>, T>)) {
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

fn byte(task: &Task<'_, Frames<'_>, impl TableOps>, address: usize) -> Result<u8> {
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
        for address in [usize::MAX - 4, 1 << 39, 1 << 47] {
            assert!(task.fault(address, Access::Read).is_err());
        }
        assert!(matches!(task.read_at(usize::MAX, &mut [0; 2]), Err(VmError::BadRange(_))));
        let bad = Extent { start: at + 1, bytes: PAGE };
        assert_eq!(task.unmap(at + 1, PAGE), Err(VmError::Unaligned(bad)));
        assert!(matches!(task.unmap(at, 0), Err(VmError::BadRange(_))));
        assert!(matches!(task.unmap(at, usize::MAX - PAGE + 1), Err(VmError::BadRange(_))));
        assert!(matches!(task.map(0, Rights::READ), Err(VmError::BadRange(_))));
        assert!(matches!(task.map(1 << 40, Rights::READ), Err(VmError::OutOfAddresses(_))));
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
