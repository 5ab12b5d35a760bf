//! `kswapd` spends next to nothing where it can evict nothing. A file of its own: nothing else may run in
//! the process.

#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Zone};
use pumice_frames::sys::thread::process_cpu_time_ns;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_io::Cached;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::Adaptive;
use pumice_paging::reclaim::{Settings, Shrinker, SwapPager};
use pumice_paging::space::{MemMap, VmSpace};
use pumice_paging::swap::Swap;

const FRAMES: usize = 4096;

struct Futile;

// SAFETY: it has no task.
unsafe impl Shrinker for Futile {
    fn count(&self) -> usize {
        FRAMES
    }
    fn scan(&self, _: usize, _: Gfp) -> usize {
        0
    }
}

/// The part of a processor that the process uses for a while.
fn used() -> f64 {
    let (begun, before) = (Instant::now(), process_cpu_time_ns());
    std::thread::sleep(Duration::from_secs(1));
    (process_cpu_time_ns() - before) as f64 / begun.elapsed().as_nanos() as f64
}

#[test]
fn kswapd_does_not_spin() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let swap = Swap::create(file.path(), 1 << 20, Cached::No).expect("a file");
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    let pager = SwapPager::new(swap, Adaptive::new(&mut entries), FRAMES, Settings::of(FRAMES));
    let bytes = (FRAMES * FRAME_SIZE).next_multiple_of(BLOCK_SIZE);
    let zone = Zone::new(bytes, cpu::count(), Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    std::thread::scope(|scope| {
        let kswapd = scope.spawn(|| pager.kswapd(&space));
        let task = space.enter().expect("a task");
        let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
        let region = task.region(at).expect("mapped");
        let nothing_to_do = used();
        let full = (0..2 * FRAMES).find(|&page| region.write(page).is_err());
        // More pages than it likes, and nowhere to put them.
        let stuck = used();
        // A cache that says that it has much, and gives nothing.
        let futile = pager.zone().register_shrinker(Arc::new(Futile));
        let asked = used();
        drop(futile);
        // Nobody told it that they are gone.
        task.unmap(at, 2 * FRAMES * FRAME_SIZE).expect("mapped");
        let unmapped = used();
        pager.stop();
        kswapd.join().expect("no panic").expect("a task");
        assert!(full.is_some(), "swap is full");
        for (used, when) in
            [(nothing_to_do, "idle"), (stuck, "stuck"), (asked, "futile"), (unmapped, "unmapped")]
        {
            eprintln!("{when}: {:.2} % of a processor", 100.0 * used);
            assert!(used < 0.1, "{when}: {used}");
        }
    });
}
