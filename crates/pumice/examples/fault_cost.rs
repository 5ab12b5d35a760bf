//! Faults that nothing else is mixed with, for `ci/fault-cost` to look at under Valgrind.
//!
//! Prints where memory is that only faults of one thread, or only page tables, are written to, and where
//! the marks are between which the faults lie. The space and what spaces share are not on the stack, so that writes
//! there are somebody else's too.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice::addr::{BLOCK_FRAMES, FRAME_SIZE};
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::page_table::{Atomic, Rights};
use pumice::space::{Access, Frames, MemMap, Task, VmSpace};
use pumice::sys::mem::Huge;

/// Whole tables, so that their cost is shared out fairly.
const FAULTS: usize = 8 * BLOCK_FRAMES;

static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
fn faults_to_count(task: &Task<'_, Frames<'_>, Atomic>, at: usize) {
    for page in 0..FAULTS {
        black_box(task.fault(at + page * FRAME_SIZE, Access::Write).is_ok());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Large, so that a search of all its blocks is seen.
    let zone: &Zone = Box::leak(Box::new(Zone::new(4 << 30, 2, Huge::No)?));
    let map: &MemMap<'_> = Box::leak(Box::new(MemMap::new(zone, Clearer::detect())?));
    let space: &VmSpace<Frames<'_>> = Box::leak(Box::new(VmSpace::new(map.frames(), Atomic)?));
    space.set_prefault(1);
    let task = space.enter()?;
    let at = task.map((FAULTS + BLOCK_FRAMES) * FRAME_SIZE, Rights::READ_WRITE)?;
    // The first fault of a thread sets up what later ones find.
    task.fault(at + FAULTS * FRAME_SIZE, Access::Write)?;
    let stack = core::ptr::from_ref(&task) as usize;
    let zone = zone.addresses();
    println!("faults {FAULTS}");
    println!("begin {:x} end {:x}", BEGIN.as_ptr() as usize, END.as_ptr() as usize);
    println!("zone {:x} {:x}", zone.start, zone.end);
    println!("stack {:x} {:x}", stack - (1 << 20), stack + (1 << 16));
    BEGIN.store(1, Ordering::Relaxed);
    faults_to_count(&task, at);
    END.store(1, Ordering::Relaxed);
    assert_eq!(space.anon_rss(), FAULTS + 1);
    Ok(())
}
