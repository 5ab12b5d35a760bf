//! A policy of the program's, called while pages come in, that goes back to where it was called from.

use std::cell::Cell;

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::io::Cached;
use pumice::page_table::{Atomic, Rights};
use pumice::reclaim::policy::{table, Tunables};
use pumice::reclaim::{Arrival, Policy, Settings, Shadow, SwapPager, TwoList};
use pumice::space::{Frames, MemMap, Task, VmSpace};
use pumice::swap::Swap;
use pumice::sys::mem::Huge;

const FRAMES: usize = 1024;

thread_local! {
    /// The task of the thread that makes pages come in, and how often a policy went back to it.
    static TASK: Cell<Option<&'static Task<'static, Frames<'static>, Atomic>>> =
        const { Cell::new(None) };
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

/// Goes back to the task that has called it.
struct Returns(TwoList<'static>);

impl Policy for Returns {
    const NAME: &'static str = "returns";

    fn tune(&mut self, tunables: Tunables) {
        self.0.tune(tunables);
    }
    fn table_len(pages: usize) -> usize {
        TwoList::table_len(pages)
    }
    fn batch(pages: usize) -> usize {
        TwoList::batch(pages)
    }
    fn add(&mut self, page: u32, arrival: Arrival) {
        if let Some(task) = TASK.get().filter(|_| TURNS.get() < 100) {
            TURNS.set(TURNS.get() + 1);
            task.lru_drain();
            let _ = task.mapped(usize::MAX / FRAME_SIZE);
        }
        self.0.add(page, arrival);
    }
    fn accessed(&mut self, page: u32) {
        self.0.accessed(page);
    }
    fn forget(&mut self, page: u32) {
        self.0.forget(page);
    }
    fn evict(&mut self) -> Option<(u32, Shadow)> {
        self.0.evict()
    }
    fn evict_page(&mut self, page: u32) -> Shadow {
        self.0.evict_page(page)
    }
    fn put_back(&mut self, page: u32, shadow: Shadow) {
        self.0.put_back(page, shadow);
    }
    fn refill(&mut self, batch: usize) {
        self.0.refill(batch);
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn contains(&self, page: u32) -> bool {
        self.0.contains(page)
    }
}

fn leak<T>(what: T) -> &'static T {
    Box::leak(Box::new(what))
}

#[test]
fn a_policy_that_goes_back_to_its_task_finds_it_as_it_should_be() {
    let path = std::env::temp_dir().join(format!("pumice-adversary-{}", std::process::id()));
    let swap = Swap::create(&path, (4 * FRAMES * FRAME_SIZE) as u64, Cached::Yes).expect("swap");
    std::fs::remove_file(&path).expect("ours");
    let entries = Box::leak(table::<TwoList<'_>>(FRAMES).into_boxed_slice());
    let policy = Returns(TwoList::new(entries));
    let pager: &'static SwapPager<Returns> =
        leak(SwapPager::new(swap, policy, FRAMES, Settings::of(FRAMES)));
    let zone = leak(Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone"));
    let map = leak(MemMap::new(zone, Clearer::detect()).expect("tables"));
    let space = leak(VmSpace::new(map.frames_of(pager), Atomic).expect("frames"));
    let attached =
        pager.attach(space, || {
            let task = leak(space.enter().expect("frames"));
            TASK.set(Some(task));
            let at = task.map(300 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            let region = task.region(at).expect("mapped");
            for page in 0..300 {
                region.write(page).expect("room").fill(page as u8);
            }
            task.lru_drain();
            TASK.set(None);
            assert!(
                (0..300).all(|page| *region.read(page).expect("there") == [page as u8; FRAME_SIZE])
            );
        });
    attached.expect("room");
    assert!(TURNS.get() > 0, "it was about something");
}
