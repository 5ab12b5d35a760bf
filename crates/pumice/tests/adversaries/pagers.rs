//! Spaces whose pager is another.

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::io::Cached;
use pumice::page_table::Atomic;
use pumice::reclaim::policy::table;
use pumice::reclaim::{Settings, SwapPager, TwoList};
use pumice::space::{MemMap, VmError, VmSpace};
use pumice::swap::Swap;
use pumice::sys::mem::Huge;

const FRAMES: usize = 1024;

fn swap(name: &str) -> Swap {
    let path = std::env::temp_dir().join(format!("pumice-{name}-{}", std::process::id()));
    let swap = Swap::create(&path, (4 * FRAMES * FRAME_SIZE) as u64, Cached::Yes).expect("swap");
    std::fs::remove_file(&path).expect("ours");
    swap
}

#[test]
fn a_space_goes_by_its_own_pager() {
    let mut tables = [(); 2].map(|()| table::<TwoList<'_>>(FRAMES));
    let pagers = tables.each_mut().map(|table| {
        SwapPager::new(swap("own"), TwoList::new(table), FRAMES, Settings::of(FRAMES))
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
