//! As many addresses as there are, and who keeps them from others.

use super::{Access, MemMap, VmError, VmSpace};
use crate::addr::FRAME_SIZE;
use crate::clear::Clearer;
use crate::frame::Zone;
use crate::page_table::{Atomic, Rights};
use crate::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;

fn taken(zone: &Zone) -> usize {
    zone.ledger.capacity() * crate::addr::BLOCK_FRAMES - zone.free_frames()
}

/// 128 TiB of addresses: regions that are larger than any memory, and pages at all of their ends.
#[test]
fn regions_of_many_tebibytes_have_addresses() {
    const TIB: usize = 1 << 40;
    // 16 bytes for each 2 MiB, in runs where they can be had.
    let zone = Zone::new(160 << 20, 2, Huge::No).expect("address space");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    space.set_prefault(1);
    let task = space.enter().expect("frames");
    // What comes before is no whole number of tables.
    let small = task.map(PAGE, Rights::READ_WRITE).expect("room");
    let large = task.map(TIB, Rights::READ_WRITE).expect("room");
    let larger = task.map(4 * TIB + PAGE, Rights::READ_WRITE).expect("room");
    assert!(large >= small + PAGE && larger >= large + TIB && larger + 4 * TIB > 5 * TIB);
    for (at, bytes) in [(small, PAGE), (large, TIB), (larger, 4 * TIB + PAGE)] {
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
    kid.read_at(larger + 4 * TIB + 5, &mut byte).expect("the child's, too");
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
    let expected = [
        small,
        large,
        large + TIB / 2,
        large + TIB - PAGE,
        larger,
        larger + 2 * TIB,
        larger + 4 * TIB,
    ];
    assert_eq!(seen, expected);
    task.unmap(larger, 4 * TIB + PAGE).expect("aligned");
    task.unmap(large, TIB).expect("aligned");
    // A second one of that size comes where there is room, also when the search has come round.
    for _ in 0..3 {
        let at = task.map(4 * TIB, Rights::READ_WRITE).expect("room");
        task.write_at(at + 4 * TIB - 1, &[1]).expect("mapped");
        task.unmap(at, 4 * TIB).expect("aligned");
    }
    assert!(matches!(task.map(128 * TIB, Rights::READ), Err(VmError::OutOfAddresses(_))));
    task.unmap(small, PAGE).expect("aligned");
    drop(task);
    drop(space);
    drop(map);
    assert_eq!(taken(&zone), 0);
}
