//! Guards that are forgotten, regions that go while they are used, callbacks that come back.

use std::cell::RefCell;

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::page_table::{Atomic, Rights};
use pumice::space::{MemMap, VmError, VmSpace};
use pumice::sys::mem::Huge;

fn with_map(work: impl FnOnce(&MemMap<'_>)) {
    let zone = Zone::new(8 << 20, 2, Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    work(&map);
}

#[test]
fn a_guard_that_is_forgotten_keeps_its_page_and_nothing_else() {
    with_map(|map| {
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let task = space.enter().expect("frames");
        let at = task.map(4 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        region.write(0).expect("room")[0] = 7;
        std::mem::forget(region.read(0).expect("there"));
        std::mem::forget(region.write(1).expect("room"));
        assert!(matches!(region.try_write(0), Err(VmError::Busy(_))), "it is still read");
        assert!(matches!(region.try_read(1), Err(VmError::Busy(_))), "it is still written");
        drop(region);
        task.unmap(at, 4 * FRAME_SIZE).expect("mapped");
        assert!(task.region(at).is_err());
        // Others are none the wiser.
        for _ in 0..100 {
            let at = task.map(FRAME_SIZE, Rights::READ_WRITE).expect("room");
            let region = task.region(at).expect("mapped");
            let mut guard = region.write(0).expect("room");
            assert_eq!(*guard, [0; FRAME_SIZE]);
            guard.fill(9);
            drop(guard);
            drop(region);
            task.unmap(at, FRAME_SIZE).expect("mapped");
        }
    });
}

#[test]
fn a_range_that_is_forgotten_keeps_its_pages_and_one_that_is_held_shows_them_when_unmapped() {
    with_map(|map| {
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let (task, other) = (space.enter().expect("room"), space.enter().expect("room"));
        let at = task.map(8 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[5; 8 * FRAME_SIZE]).expect("room");
        let region = task.region(at).expect("mapped");
        std::mem::forget(region.read_range(1..3).expect("there"));
        for page in 0..8 {
            assert_eq!(region.try_write(page).is_err(), (1..3).contains(&page), "{page}");
        }
        let range = region.read_range(0..usize::MAX).expect("there");
        assert_eq!(range.pages(), 0..8);
        other.unmap(at, 8 * FRAME_SIZE).expect("mapped");
        for _ in 0..50 {
            let at = other.map(16 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            other.write_at(at, &[6; 16 * FRAME_SIZE]).expect("room");
            assert!(range.iter().all(|page| *page == [5; FRAME_SIZE]));
            other.unmap(at, 16 * FRAME_SIZE).expect("mapped");
        }
        drop(range);
        assert!(region.read_range(0..8).is_err(), "it is unmapped");
        assert_eq!(space.anon_rss(), 2, "those of the forgotten one");
    });
}

#[test]
fn what_a_guard_shows_outlives_its_region() {
    with_map(|map| {
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let (task, other) = (space.enter().expect("room"), space.enter().expect("room"));
        let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        region.write(0).expect("room").fill(5);
        let guard = region.read(0).expect("there");
        other.unmap(at, 2 * FRAME_SIZE).expect("mapped");
        for _ in 0..50 {
            let at = other.map(8 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            let fresh = other.region(at).expect("mapped");
            (0..8).for_each(|page| fresh.write(page).expect("room").fill(6));
            drop(fresh);
            other.unmap(at, 8 * FRAME_SIZE).expect("mapped");
        }
        assert_eq!(*guard, [5; FRAME_SIZE]);
        assert!(region.read(1).is_err() && region.write(0).is_err());
    });
}

#[test]
fn who_reads_without_a_guard_may_do_anything_meanwhile() {
    with_map(|map| {
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let task = space.enter().expect("frames");
        let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        region.write(0).expect("room").fill(1);
        let mut turns = 0;
        let seen = region.read_optimistic(0, |words| {
            turns += 1;
            if turns < 4 {
                // It is another page by then.
                region.write(0).expect("room").fill(turns + 1);
                let _ = region.read(1).map(|page| page[0]);
                let other = task.map(FRAME_SIZE, Rights::READ_WRITE).expect("room");
                task.unmap(other, FRAME_SIZE).expect("mapped");
            }
            words.load(3)
        });
        assert_eq!(seen, Ok(u64::from_ne_bytes([4; 8])));
        let gone = region.read_optimistic(0, |words| {
            let _ = task.unmap(at, 2 * FRAME_SIZE);
            words.load(0)
        });
        assert!(gone.is_err(), "it was unmapped while it was read");
    });
}

#[test]
fn who_reads_without_a_guard_has_none_however_often_the_page_changes() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        with_map(|map| {
            let space = VmSpace::new(map.frames(), Atomic).expect("frames");
            let task = space.enter().expect("frames");
            let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            let region = task.region(at).expect("mapped");
            // Of a page that nobody has touched, and of one that is there.
            for page in [0, 1, 1] {
                let mut turns = 0;
                let seen = region.read_optimistic(page, |words| {
                    turns += 1;
                    region.write(page).expect("room").fill(turns);
                    words.load(0)
                });
                let _ = seen.expect("mapped");
                let seen = region.entry(page).read_optimistic(|words| {
                    region.write(page).expect("room").fill(9);
                    words.load(0)
                });
                let _ = seen.expect("mapped");
            }
        });
        done.send(()).expect("somebody waits");
    });
    is_done.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
}

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn spaces_end_in_any_order_and_on_any_thread() {
    let zone: &'static Zone = Box::leak(Box::new(Zone::new(8 << 20, 2, Huge::No).expect("a zone")));
    let map: &'static MemMap<'static> =
        Box::leak(Box::new(MemMap::new(zone, Clearer::detect()).expect("frames")));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let space: &'static VmSpace<_, Atomic> =
                    Box::leak(Box::new(VmSpace::new(map.frames(), Atomic).expect("frames")));
                let task: &'static _ = Box::leak(Box::new(space.enter().expect("frames")));
                let at = task.map(FRAME_SIZE, Rights::READ_WRITE).expect("room");
                let region: &'static _ = Box::leak(Box::new(task.region(at).expect("mapped")));
                let guard = region.write(0).expect("room");
                // It ends with the thread, after everything else of it.
                KEPT.with(|kept| kept.borrow_mut().push(Box::new(guard)));
            });
        }
    });
    assert!(zone.free_frames() > 0);
}

#[test]
fn a_region_that_finds_no_tables_takes_no_frames() {
    let zone = Zone::new(2 * 1024 * FRAME_SIZE, 2, Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let other = VmSpace::new(map.frames(), Atomic).expect("frames");
    let (task, beside) = (space.enter().expect("frames"), other.enter().expect("frames"));
    let free = zone.free_frames();
    // More than there are frames, and less; the second level's tables stay.
    for bytes in [1 << 46, 2000 << 30, 1100 << 30] {
        assert!(matches!(task.map(bytes, Rights::READ_WRITE), Err(VmError::OutOfFrames(_))));
    }
    assert!(free - zone.free_frames() <= 8, "{free} {}", zone.free_frames());
    let at = beside.map(1 << 20, Rights::READ_WRITE).expect("room");
    beside.write_at(at, &[1]).expect("a frame");
    let at = task.map(700 << 30, Rights::READ_WRITE).expect("room for 700 pairs");
    task.write_at(at + (699 << 30), &[7]).expect("a frame");
    let mut byte = [1];
    for slot in [0, 1, 350, 698, 699] {
        task.read_at(at + (slot << 30), &mut byte).expect("mapped");
        assert_eq!(byte[0], if slot == 699 { 7 } else { 0 });
    }
}

/// It is hidden, and safe: a guard of another space's page is refused.
#[test]
#[should_panic(expected = "another task's")]
fn a_range_goes_on_from_a_guard_of_its_own_space() {
    let zone = Zone::new(256 * FRAME_SIZE, 1, Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let spaces = [0; 2].map(|_| VmSpace::new(map.frames(), Atomic).expect("frames"));
    let tasks = spaces.each_ref().map(|space| space.enter().expect("frames"));
    let [one, two] = tasks.each_ref().map(|task| {
        let at = task.map(8 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        task.region(at).expect("mapped")
    });
    drop(two.range_from(one.read(0).expect("a frame"), 0..8));
}
