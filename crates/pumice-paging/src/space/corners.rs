//! Spaces where frames are short, and where what is asked meets what went on meanwhile.

use core::mem::ManuallyDrop;
use std::sync::Barrier;
use std::vec::Vec;

use super::disk::Disk;
use super::runs::Near;
use super::tests::{byte, taken, with_pager, with_space};
use super::*;
use crate::page_table::pager::{Evicted, LruPage, Page, Pager, ReadResult, SpaceId};
use crate::page_table::Rights;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::mem::Huge;
use pumice_frames::sys::thread;

const PAGE: usize = FRAME_SIZE;

fn zone() -> Zone {
    Zone::new(8 << 20, 1, Huge::No).expect("address space")
}

/// Unmapping and counting see all threads, also the one that came in a shortage.
#[test]
fn records_have_no_holes() {
    let zone = zone();
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let mut tasks: Vec<_> = (0..32).map(|_| space.enter().expect("frames")).collect();
    let at = tasks[0].map(PAGE, Rights::READ_WRITE).expect("room");
    let all: Vec<_> = core::iter::from_fn(|| map.frames().get_run(1)).collect();
    assert!(matches!(space.enter(), Err(VmError::OutOfRecords(_))));
    all.into_iter().for_each(|frame| map.frames().put_run(frame));
    tasks.push(space.enter().expect("frames"));
    tasks[32].fault(at, Access::Write).expect("mapped");
    assert_eq!(space.anon_rss(), 1);
}

#[test]
fn in_a_shortage_a_thread_has_its_own_frames() {
    with_pager(|space, disk| {
        let source = space.frames();
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[5]).expect("mapped");
        assert!(disk.swap_out(&task, at / PAGE, Evicted::Swapped));
        let all: Vec<_> = core::iter::from_fn(|| source.get_run(1)).collect();
        assert_eq!(byte(&task, at), Ok(5));
        all.into_iter().for_each(|frame| source.put_run(frame));
    });
}

#[test]
fn a_page_in_transit_goes_though_it_is_seen_to_be_old() {
    let (zone, disk) = (zone(), Disk::default());
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames").with_pager(&disk);
    // It is not dropped, which would free a slot that the disk does not have.
    let space = ManuallyDrop::new(VmSpace::new(map.frames(), Atomic).expect("frames"));
    let task = space.enter().expect("frames");
    let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
    let page = at / PAGE;
    task.fault(at, Access::Write).expect("mapped");
    // As a thread that found it present and clears the bit a little later.
    let clear = || {
        let word = task.walk(page).expect("mapped");
        assert!(space.tables.ops.ptep_test_and_clear_young(word.ptep));
    };
    let transit = task.begin_swap_out(page).expect("present");
    clear();
    task.cancel_swap_out(transit);
    assert_eq!(task.test_and_clear_young(page), Some(false), "it is there");
    task.fault(at, Access::Read).expect("mapped");
    let transit = task.begin_swap_out(page).expect("present");
    clear();
    assert_eq!(task.end_swap_out(transit, Evicted::Swapped(7)), Ok(()));
    let word = space.tables.ops.ptep_get(task.walk(page).expect("mapped").ptep);
    assert_eq!(Evicted::of(word), Some(Evicted::Swapped(7)));
}

#[test]
fn a_child_has_no_copies_elsewhere_and_its_copies_are_of_another_version() {
    with_pager(|space, disk| {
        let task = space.enter().expect("frames");
        let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
        let page = at / PAGE;
        task.write_at(at, &[5]).expect("mapped");
        assert!(disk.swap_out(&task, page, Evicted::Shadow));
        // Read in again, since only slots are shared: clean in the parent.
        let child = task.fork().expect("frames");
        let version = || space.tables.ops.ptep_get(task.walk(page).expect("mapped").ptep).version();
        let before = version();
        task.fault(at, Access::Write).expect("mapped");
        assert_ne!(version(), before, "it has another frame");
        let kid = child.enter().expect("frames");
        let transit = kid.begin_swap_out(page).expect("its own now");
        assert!(transit.is_dirty(), "the pager has nothing of the child's");
        kid.cancel_swap_out(transit);
        assert_eq!(byte(&kid, at), Ok(5));
    });
}

#[test]
fn a_region_ends_where_it_ends() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(3 * PAGE, Rights::READ_WRITE).expect("room");
        for _ in 0..2 * rss::MAX_HELD {
            assert!(matches!(task.region(at + 3 * PAGE), Err(VmError::Unmapped(_))));
        }
        assert!(task.region(at + 3 * PAGE - 1).is_ok());
    });
}

#[test]
fn who_waits_for_a_page_for_long_sleeps() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        let guard = region.write(0).expect("mapped");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let task = space.enter().expect("frames");
                let (from_ns, used_ns) = (thread::now_ns(), thread::cpu_time_ns());
                assert_eq!(byte(&task, at), Ok(3));
                (thread::now_ns() - from_ns, thread::cpu_time_ns() - used_ns)
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
            let mut guard = guard;
            guard[0] = 3;
            drop(guard);
            let (waited_ns, used_ns) = waiter.join().expect("no panic");
            assert!(used_ns < waited_ns / 4, "{used_ns} of {waited_ns}");
        });
    });
}

/// Its rights may be gone before it is written to, or a pager may look at it.
#[test]
fn a_page_with_a_new_frame_is_dirty_at_once() {
    with_pager(|space, disk| {
        let task = space.enter().expect("frames");
        let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
        let is_dirty_once_writable = |page: usize| {
            let walked = task.walk(page).expect("mapped");
            let entry = space.tables.ops.ptep_get(walked.ptep);
            assert!(!entry.dirty() && !entry.can_write());
            assert!(task.make_writable(&walked, entry).expect("frames").can_write());
            let transit = task.begin_swap_out(page).expect("its own now");
            let is_dirty = transit.is_dirty();
            task.cancel_swap_out(transit);
            is_dirty
        };
        assert_eq!(byte(&task, at), Ok(0));
        assert!(is_dirty_once_writable(at / PAGE), "it was the zero page");
        task.write_at(at + PAGE, &[5]).expect("mapped");
        assert!(disk.swap_out(&task, at / PAGE + 1, Evicted::Shadow));
        let child = task.fork().expect("frames");
        assert!(is_dirty_once_writable(at / PAGE + 1), "it was shared");
        drop(child);
    });
}

/// A pager that others meet twice while it is told that a page came.
struct Slow {
    disk: Disk,
    meet: Barrier,
}

// SAFETY: it uses no task in its calls.
unsafe impl Pager for Slow {
    fn lru_add(&self, space: SpaceId, pages: &[LruPage]) {
        self.disk.lru_add(space, pages);
    }
    fn swap_in(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        self.disk.swap_in(space, page, from, into)
    }
    fn swapped_in(&self, space: SpaceId, page: LruPage, from: Evicted, used: Rights) {
        self.meet.wait();
        self.meet.wait();
        self.disk.swapped_in(space, page, from, used);
    }
    fn free(&self, space: SpaceId, from: Evicted) {
        self.disk.free(space, from);
    }
}

#[test]
fn a_page_that_comes_back_stays_until_the_pager_knows() {
    let (zone, slow) = (zone(), Slow { disk: Disk::default(), meet: Barrier::new(2) });
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames").with_pager(&slow);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let task = space.enter().expect("frames");
    let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
    let page = at / PAGE;
    let while_it_comes = |work: fn(&Task<'_, Frames<'_>, Atomic>, usize) -> bool| {
        assert!(slow.disk.swap_out(&task, page, Evicted::Swapped));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| byte(&space.enter().expect("frames"), at));
            slow.meet.wait();
            let did = work(&task, at);
            slow.meet.wait();
            (did, reader.join().expect("no panic"))
        })
    };
    task.write_at(at, &[5]).expect("mapped");
    let (went, read) = while_it_comes(|task, at| task.begin_swap_out(at / PAGE).is_some());
    assert_eq!((went, read), (false, Ok(5)));
    let (went, read) = while_it_comes(|task, at| task.unmap(at, PAGE).is_ok());
    assert!(went && matches!(read, Err(VmError::Unmapped(_))), "{read:?}");
    assert_eq!((space.anon_rss(), space.swap_rss(), slow.disk.used()), (0, 0, 0));
    drop(task);
    drop(space);
    drop(map);
    assert_eq!(taken(&zone), 0);
}

/// A page on its way out may be taken back and unmapped, and its block leave the zone, while it is read.
#[test]
fn memory_that_is_being_written_out_stays_readable() {
    let (zone, disk) = (zone(), Disk::default());
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames").with_pager(&disk);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let reclaimer = space.enter().expect("frames");
    let task = space.enter().expect("frames");
    let bytes = 6 << 20;
    let at = task.map(bytes, Rights::READ_WRITE).expect("room");
    // One in a block that has nothing else.
    let block_of = |frame: Pfn| frame.0 / BLOCK_FRAMES;
    let frame_of = |page: usize| {
        let bytes = task.fault(at + page * PAGE, Access::Write).expect("room");
        zone.pfn(bytes.as_ptr()).expect("a frame")
    };
    // Tables first.
    (0..bytes / PAGE).step_by(512).for_each(|page| {
        frame_of(page);
    });
    let frames: Vec<Pfn> = (0..bytes / PAGE).map(frame_of).collect();
    let whole = |block: usize| frames.iter().filter(|&&frame| block_of(frame) == block).count();
    let page = frames.iter().position(|&frame| whole(block_of(frame)) == BLOCK_FRAMES);
    let page = page.expect("a block of its own");
    let block = block_of(frames[page]);
    let transit = reclaimer.begin_swap_out(at / PAGE + page).expect("present");
    task.fault(at + page * PAGE, Access::Write).expect("it is taken back");
    task.unmap(at, bytes).expect("mapped");
    drop(task);
    let remove = || {
        // SAFETY: a free block is claimed, and given back by its claim.
        let ledger = unsafe { zone.ledger() };
        ledger.join_all();
        let word = ledger.claim_block(block, |_| true).expect("all of it is free");
        // SAFETY: claimed a moment ago.
        unsafe { zone.remove(block, word) };
        ledger.block(block).state()
    };
    assert_eq!(remove(), pumice_frames::frame::BlockState::Free, "it is still read");
    let start = space.frames().bytes(transit.page().frame);
    // SAFETY: it can be read while the transit lasts, whatever is there.
    let _ = unsafe { start.as_ptr().read_volatile() };
    assert!(reclaimer.end_swap_out(transit, Evicted::Swapped(0)).is_err());
    assert_eq!(remove(), pumice_frames::frame::BlockState::Absent);
}

/// Of one frame one write is on its way at a time. (A model of regions that come back says the same of a frame that has
/// become another page's.)
#[test]
fn a_write_ends_no_transit_but_its_own() {
    let zone = Zone::new(8 << 20, 1, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let (reclaimer, task) = (space.enter().expect("frames"), space.enter().expect("frames"));
    let touch = |at: usize| {
        let bytes = task.fault(at, Access::Write).expect("room");
        zone.pfn(bytes.as_ptr()).expect("a frame")
    };
    let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
    let frame = touch(at);
    let old = reclaimer.begin_swap_out(at / PAGE).expect("present");
    assert_eq!(touch(at), frame, "it is taken back");
    assert!(reclaimer.begin_swap_out(at / PAGE).is_none(), "it is still written");
    assert_eq!(reclaimer.end_swap_out(old, Evicted::Swapped(5)), Err(Evicted::Swapped(5)));
    let new = reclaimer.begin_swap_out(at / PAGE).expect("it may begin now");
    assert_eq!(reclaimer.end_swap_out(new, Evicted::Swapped(6)), Ok(()));
}

/// Threads that sleep have no more in their lists than a 16th of the zone, and a frame for each.
#[test]
fn many_sleeping_threads_hold_few_frames() {
    let zone = Zone::new(8 << 20, 1, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let tasks: Vec<_> = (0..60).map(|_| space.enter().expect("frames")).collect();
    let at = tasks[0].map(4 << 20, Rights::READ_WRITE).expect("room");
    space.set_prefault(1);
    for (nth, task) in tasks.iter().enumerate() {
        task.fault(at + nth * PAGE, Access::Write).expect("room");
    }
    // Their pages, the lists, tables and records.
    let used = (8 << 20) / PAGE - zone.free_frames();
    assert!(used < tasks.len() + (8 << 20) / PAGE / 16 + 64, "{used}");
    let first = 64;
    (first..first + 512).for_each(|page| {
        tasks[1].fault(at + page * PAGE, Access::Write).expect("room");
    });
    let before = zone.free_frames();
    tasks[2].unmap(at + first * PAGE, 512 * PAGE).expect("mapped");
    assert!(zone.free_frames() >= before + 511, "what is freed is free");
}

#[test]
fn frames_of_pages_that_went_are_there_for_others() {
    with_pager(|space, disk| {
        let source = space.frames();
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[5]).expect("mapped");
        let all: Vec<_> = core::iter::from_fn(|| source.get_run(1)).collect();
        assert!(disk.swap_out(&task, at / PAGE, Evicted::Swapped));
        task.give_frames_back();
        let frame = source.get_run(1).expect("the page's");
        source.put_run(frame);
        all.into_iter().for_each(|frame| source.put_run(frame));
    });
}

#[test]
fn a_page_is_what_it_is_when_its_entry_is_asked_and_not_when_it_was_looked_up() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let pages = BLOCK_FRAMES + 3;
        let at = task.map_huge(pages * PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        let bytes = |entry: &PageEntry<'_, '_, _, _>| {
            entry.fetch_entry();
            entry.fetch_entry_to_guard();
            entry.fetch(PAGE - 1);
            let by_guard = entry.read().map(|guard| guard[0])?;
            let by_words = entry.read_optimistic(|words| words.load(0).to_ne_bytes()[0])?;
            assert_eq!(by_words, by_guard);
            Ok(by_guard)
        };
        // Of what has no word yet: a huge page, a page that was never touched, and what is no page of the region.
        task.fault(at, Access::Write).expect("frames");
        let [huge, untouched, beyond] = [7, BLOCK_FRAMES + 1, pages].map(|page| region.entry(page));
        assert_eq!([bytes(&huge), bytes(&untouched)], [Ok(0), Ok(0)]);
        assert!(matches!(bytes(&beyond), Err(VmError::Unmapped(_))));
        for page in [7, BLOCK_FRAMES + 1] {
            region.write(page).expect("mapped")[0] = 9;
        }
        assert_eq!([bytes(&huge), bytes(&untouched)], [Ok(9), Ok(9)]);
        let split = region.entry(7);
        assert_eq!(bytes(&split), Ok(9));
        task.unmap(at + 7 * PAGE, PAGE).expect("aligned");
        assert!([&huge, &split]
            .into_iter()
            .all(|entry| matches!(bytes(entry), Err(VmError::Unmapped(_)))));
    });
}

/// A look that fails lets go of the VMA that holds the table of the look before: that table may become a page.
#[test]
fn a_look_that_fails_forgets_the_table_that_was_near() {
    let zone = zone();
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let (task, other) = (space.enter().expect("frames"), space.enter().expect("frames"));
    let [one, two] = [0; 2].map(|_| {
        let at = other.map(PAGE, Rights::READ_WRITE).expect("room");
        other.write_at(at, &[1]).expect("mapped");
        at
    });
    let mut near = Near::NONE;
    assert_eq!(task.test_and_clear_young_near(&mut near, one / PAGE), Some(true));
    other.unmap(two, PAGE).expect("mapped");
    assert_eq!(task.test_and_clear_young_near(&mut near, two / PAGE), None);
    other.unmap(one, PAGE).expect("mapped");
    // All frames that are free, with bytes that look like the word of a page.
    const LIKE_WORDS: u8 = 0x85;
    let at = other.map(1900 * PAGE, Rights::READ_WRITE).expect("room");
    let pages = (0..1900).map(|page| at + page * PAGE);
    let written: Vec<_> =
        pages.take_while(|&page| other.write_at(page, &[LIKE_WORDS; PAGE]).is_ok()).collect();
    assert_eq!(task.test_and_clear_young_near(&mut near, one / PAGE), None);
    let mut bytes = [0; PAGE];
    for page in written {
        other.read_at(page, &mut bytes).expect("mapped");
        assert!(bytes.iter().all(|&byte| byte == LIKE_WORDS), "a byte was changed");
    }
}
