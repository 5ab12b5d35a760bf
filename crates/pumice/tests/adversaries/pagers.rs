//! Spaces whose pager is another.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::page_table::{Atomic, Rights};
use pumice::reclaim::policy::table;
use pumice::reclaim::{Adaptive, Settings, SwapPager, TwoList};
use pumice::space::{MemMap, VmError, VmSpace};
use pumice::sys::mem::Huge;

use crate::swap;

const FRAMES: usize = 1024;

#[test]
fn a_space_goes_by_its_own_pager() {
    let mut tables = [(); 2].map(|()| table::<TwoList<'_>>(FRAMES));
    let pagers = tables.each_mut().map(|table| {
        SwapPager::new(swap(4 * FRAMES), TwoList::new(table), FRAMES, Settings::of(FRAMES))
    });
    let zone = Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let space = VmSpace::new(map.frames_of(&pagers[0]), Atomic).expect("frames");
    let none = VmSpace::new(map.frames(), Atomic).expect("frames");
    assert_eq!(pagers[0].attach(&space, || 7), Ok(7));
    assert_eq!(pagers[1].attach(&space, || 7), Err(VmError::OtherPager));
    assert_eq!(pagers[1].kswapd(&space), Err(VmError::OtherPager));
    assert_eq!(pagers[0].attach(&none, || 7), Err(VmError::OtherPager));
}

/// Spaces on two zones by one pager, whose frames, and first tables, have the same numbers.
#[test]
fn two_zones_of_one_pager_read_nothing_of_each_others_pages() {
    const PAGES: usize = 700;
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    let settings = Settings::of(FRAMES).with_most_pages(200);
    let pager = SwapPager::new(swap(4 * FRAMES), Adaptive::new(&mut entries), FRAMES, settings);
    let zones = [(); 2].map(|()| Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone"));
    let maps = zones.each_ref().map(|zone| MemMap::new(zone, Clearer::detect()).expect("tables"));
    let spaces =
        maps.each_ref().map(|map| VmSpace::new(map.frames_of(&pager), Atomic).expect("room"));
    let own = |of: usize, page: usize| (2 * page + of) as u64;
    let write = |of: usize| {
        let task = spaces[of].enter().expect("room");
        let at = task.map(PAGES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        for page in 0..PAGES {
            let bytes = own(of, page).to_le_bytes();
            task.write_at(at + page * FRAME_SIZE, &bytes).expect("room");
        }
        task.lru_drain();
        std::thread::sleep(Duration::from_millis(200));
        at
    };
    let read = |at: [usize; 2]| {
        let tasks = spaces.each_ref().map(|space| space.enter().expect("room"));
        let mut bytes = [0; 8];
        for round in 0..100 {
            for page in (0..PAGES).filter(|page| (page * 7 + round * 13) % 31 < 4) {
                for of in 0..2 {
                    tasks[of].read_at(at[of] + page * FRAME_SIZE, &mut bytes).expect("there");
                    assert_eq!(u64::from_le_bytes(bytes), own(of, page), "{of}'s page {page}");
                    tasks[of].lru_drain();
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pager.zone().kswapd());
        let went = catch_unwind(AssertUnwindSafe(|| {
            let at = [0, 1].map(|of| pager.attach(&spaces[of], || write(of)).expect("room"));
            // A zone's reclaim is that of one zone.
            let both = pager.attach(&spaces[0], || pager.attach(&spaces[1], || read(at)));
            assert_eq!(both, Ok(Err(VmError::OtherZone)));
        }));
        pager.stop();
        went.expect("no panic");
    });
}
