//! Memory with attributes, where the kernel has no room for another mapping.

use super::*;
use pumice_frames::addr::FRAME_SIZE;

/// In use, of all the memory.
fn in_use(heap: &'static Heap) -> usize {
    split(heap)[3]
}

fn owe(heap: &'static Heap, at: *mut u8) {
    let (zone, run) = heap.run_at(at).expect("allocated");
    heap.note(at as usize, run.bytes(), Effect::Taints);
    heap.owe(zone, run);
}

#[test]
fn what_is_owed_is_freed_later() {
    for size in [100 << 10, 5 << 20] {
        let heap = heap(0, u64::MAX);
        let (at, other) = (get(heap, size, Content::Any), get(heap, size, Content::Any));
        fill(at, size);
        owe(heap, at);
        assert_eq!((in_use(heap), heap.owed.count()), (2 * size, 1));
        free(heap, other);
        assert_eq!((in_use(heap), heap.owed.count()), (0, 0));
        let zero = get(heap, size, Content::Zero);
        assert!(is_zeroed(zero, size));
        free(heap, zero);
    }
}

#[test]
fn what_is_mapped_again_is_not_owed() {
    let heap = heap(0, u64::MAX);
    let (at, other) = (get(heap, 1 << 20, Content::Any), get(heap, 1 << 20, Content::Any));
    owe(heap, at);
    assert_eq!(heap.occupy(at as usize + FRAME_SIZE, FRAME_SIZE, true), Ok(()));
    fill(at.wrapping_add(FRAME_SIZE), FRAME_SIZE);
    free(heap, other);
    assert_eq!((in_use(heap), heap.owed.count()), (1 << 20, 0));
    // SAFETY: mapped above.
    unsafe {
        assert_eq!(at.add(FRAME_SIZE).read(), 0xa5);
        heap.unmap(at as usize + FRAME_SIZE, FRAME_SIZE);
    }
    assert_eq!(in_use(heap), 0);
}

#[test]
fn what_is_mapped_anew_is_fresh() {
    for size in [100 << 10, 5 << 20] {
        let heap = heap(0, u64::MAX);
        let at = get(heap, size, Content::Any);
        fill(at, size);
        let (zone, run) = heap.run_at(at).expect("allocated");
        assert!(heap.map_run_anew(zone, run));
        assert!(heap.has(at) && !zone.marks.lost.any(run.start.0..run.end().0));
        assert!(is_zeroed(at, size));
        free(heap, at);
        assert_eq!(in_use(heap), 0);
    }
}
