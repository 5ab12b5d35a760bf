//! As many addresses as there are, and the threads that keep them from others.

use super::{Access, MemMap, VmError, VmSpace};
use crate::page_table::{Atomic, Rights};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;

fn taken(zone: &Zone) -> usize {
    zone.capacity_frames() - zone.free_frames()
}

/// 128 TiB of addresses: regions that are larger than any memory, and pages at all of their ends.
#[test]
fn regions_of_many_tebibytes_have_addresses() {
    const TIB: usize = 1 << 40;
    // 16 bytes for each 2 MiB, in runs where they can be had.
    let zone = Zone::new(64 << 20, 2, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    space.set_prefault(1);
    let task = space.enter().expect("frames");
    // The pages before are no whole number of tables.
    let small = task.map(PAGE, Rights::READ_WRITE).expect("room");
    let large = task.map(TIB + PAGE, Rights::READ_WRITE).expect("room");
    assert!(large >= small + PAGE);
    for (at, bytes) in [(small, PAGE), (large, TIB + PAGE)] {
        let region = task.region(at).expect("mapped");
        let (half, last) = (bytes / 2 / PAGE, bytes / PAGE - 1);
        for (nth, page) in [0, half, last].into_iter().enumerate() {
            region.write(page).expect("frames")[5] = nth as u8 + 1;
            assert_eq!(task.fault(at + page * PAGE, Access::Read).ok(), region.translate(page));
        }
        assert!(matches!(region.read(last + 1), Err(VmError::Unmapped(_))));
        let mut byte = [0];
        task.read_at(at + last * PAGE + 5, &mut byte).expect("mapped");
        assert!(byte[0] > 0);
    }
    let child = task.fork().expect("frames");
    let kid = child.enter().expect("frames");
    let mut byte = [0];
    kid.read_at(large + TIB + 5, &mut byte).expect("the child's, too");
    assert_eq!(byte, [3]);
    drop(kid);
    drop(child);
    let mut seen = Vec::new();
    let mut from = 0;
    loop {
        from = task.scan_present(from, |page| seen.push(page.page * PAGE));
        if from == 0 {
            break;
        }
    }
    assert_eq!(seen, [small, large, large + TIB / 2, large + TIB]);
    task.unmap(large, TIB + PAGE).expect("aligned");
    assert!(matches!(task.map(128 * TIB, Rights::READ), Err(VmError::OutOfAddresses(_))));
    task.unmap(small, PAGE).expect("aligned");
    drop(task);
    drop(space);
    drop(map);
    assert_eq!(taken(&zone), 0);
}

/// Threads that sleep, each the last in a region that others have unmapped, keep its addresses; there are others.
#[test]
fn idle_threads_leave_addresses_for_others() {
    const BYTES: usize = 300 << 30;
    let zone = Zone::new(64 << 20, 2, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    let task = space.enter().expect("frames");
    let mut idle = Vec::new();
    for _ in 0..2 {
        let at = task.map(BYTES, Rights::READ_WRITE).expect("room");
        let sleeper = space.enter().expect("frames");
        sleeper.write_at(at + BYTES / 2, &[7]).expect("mapped");
        idle.push((at, sleeper));
        task.unmap(at, BYTES).expect("aligned");
    }
    for (at, sleeper) in &idle {
        let error = sleeper.write_at(at + BYTES / 2, &[8]).expect_err("unmapped");
        assert!(matches!(error, VmError::Unmapped(_)), "{error}");
    }
    // A thread that was told so is in no region any more.
    let at = task.map(BYTES, Rights::READ_WRITE).expect("room");
    task.unmap(at, BYTES).expect("aligned");
}
