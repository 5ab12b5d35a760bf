//! Tests of the pages in which runs grow.

use super::*;
use crate::heap::classes::Density;

const MIB: usize = 1 << 20;

/// Touches one page in each block of a part of a run.
fn touch_little(at: *mut u8, part: core::ops::Range<usize>) {
    for offset in part.step_by(BLOCK_SIZE) {
        // SAFETY: it lies in a run of the test's.
        unsafe { at.add(offset).write(1) };
    }
}

/// Grows a run, where it stands or not.
fn grow(heap: &'static Heap, at: *mut u8, size: usize) -> Option<*mut u8> {
    // SAFETY: the test owns it.
    match unsafe { heap.resize_in_place(at, size) } {
        true => Some(at),
        // SAFETY: as above; it is used at its new address only.
        false => unsafe { heap.relocate(at, size) }.map(NonNull::as_ptr),
    }
}

/// Whether a byte of a run lies in a block that the heap has advised.
fn is_huge(heap: &'static Heap, at: *mut u8, byte: usize) -> bool {
    let zone = heap.zone_of(at).expect("the heap's");
    let page = at.wrapping_add(byte / FRAME_SIZE * FRAME_SIZE);
    zone.kind == ZoneKind::Demand
        && zone.ledger().block(zone.pfn(page).expect("a frame").block()).grown()
}

/// A run of the demand zone that is full.
fn full(heap: &'static Heap, size: usize) -> *mut u8 {
    // Huge pages are cheap.
    TIMES_NS.set(vec![200_000; 16]);
    let at = get(heap, size, Content::Zero);
    fill(at, size);
    at
}

/// Frames of a run that are resident.
fn resident(heap: &'static Heap, at: *mut u8, size: usize) -> usize {
    heap.resident(heap.zone_of(at).expect("the heap's"), at, size).expect("mincore")
}

#[test]
fn what_is_full_goes_on_in_huge_pages_and_leaves_no_advice() {
    for is_beside in [false, true] {
        let heap = heap(0, u64::MAX);
        let mut at = full(heap, 8 * MIB);
        let _beside = is_beside.then(|| full(heap, 8 * MIB));
        for mib in [13, 20, 33] {
            at = grow(heap, at, mib * MIB).expect("it grows");
            assert!(is_huge(heap, at, 0) && is_huge(heap, at, mib / 2 * 2 * MIB - 1), "{mib}");
            fill(at, mib * MIB);
        }
        assert!(!is_beside || heap.slot().get(Event::ReallocMoved) > 0);
        let mut lengths = [0; 4];
        // SAFETY: the test owns it.
        let mappings = unsafe { pumice_frames::sys::mem::mappings(at, 32 * MIB, &mut lengths) };
        // One that was moved, and the part by which it has grown since.
        assert!(mappings.is_some_and(|count| count <= 2), "{mappings:?}");
        let zone = heap.zone_of(at).expect("the heap's");
        let first = zone.pfn(at).expect("a frame").block();
        free(heap, at);
        let any = (first..first + 16).any(|block| zone.ledger().block(block).tainted());
        assert!(!any, "the next owner has not asked for that");
    }
}

#[test]
fn what_is_not_full_goes_on_in_small_pages_for_good() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 8 * MIB, Content::Zero);
    touch_little(at, 0..8 * MIB);
    let at = grow(heap, at, 16 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 16 * MIB - 1), "nobody fills it");

    let at = full(heap, 8 * MIB);
    let at = grow(heap, at, 16 * MIB).expect("it grows");
    assert!(is_huge(heap, at, 16 * MIB - 1));
    touch_little(at, 8 * MIB..16 * MIB);
    let at = grow(heap, at, 24 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 24 * MIB - 1), "nobody filled what it gained");
    fill(at, 24 * MIB);
    let at = grow(heap, at, 32 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 32 * MIB - 1));
    touch_little(at, 24 * MIB..32 * MIB);
    assert_eq!(resident(heap, at.wrapping_add(24 * MIB), 8 * MIB), 4);
}

/// Zeros that are read have a page each, which is resident.
#[test]
fn what_was_read_only_is_not_full() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 8 * MIB, Content::Zero);
    assert!(is_zeroed(at, 8 * MIB));
    let at = grow(heap, at, 16 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 16 * MIB - 1));
}

#[test]
fn no_more_is_advised_than_a_run_has_filled() {
    let heap = heap(0, u64::MAX);
    let at = full(heap, 8 * MIB);
    let at = grow(heap, at, 200 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 200 * MIB - 1));
}

/// Programs that fill a vector, let it grow and touch little of the rest.
#[test]
fn runs_that_grow_and_are_hardly_touched_stay_within_the_budget() {
    let heap = heap(0, u64::MAX);
    let mut all = Vec::new();
    for _ in 0..40 {
        let at = full(heap, 8 * MIB);
        let at = grow(heap, at, 16 * MIB).expect("it grows");
        touch_little(at, 8 * MIB..16 * MIB);
        all.push(at);
    }
    let beyond: usize =
        all.iter().map(|&at| resident(heap, at.wrapping_add(8 * MIB), 8 * MIB)).sum();
    let most = (24 + 16) * MIB / FRAME_SIZE;
    assert!(beyond < most, "{beyond} frames, {most} at most");
    all.into_iter().for_each(|at| free(heap, at));
}

/// Advice has made more resident than was touched: that teaches nothing.
#[test]
fn pages_that_advice_has_brought_are_not_taken_for_touched() {
    let heap = heap(0, u64::MAX);
    let at = full(heap, 8 * MIB);
    let mut at = grow(heap, at, 16 * MIB).expect("it grows");
    touch_little(at, 0..16 * MIB);
    for mib in [40, 400] {
        at = grow(heap, at, mib * MIB).expect("it grows");
    }
    touch_little(at, 16 * MIB..400 * MIB);
    free(heap, at);
    assert_eq!(heap.classes.density(400 * MIB / FRAME_SIZE), Density::Sparse);
}

#[test]
fn a_guess_that_was_wrong_grows_no_further() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 16 * MIB, Content::Any);
    assert!(heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready);
    assert_eq!(grow(heap, at, 1024 * MIB), None, "it would be huge pages");
    assert!(heap.is_sparse(at), "no page of it is copied that holds nothing");
    let at = grow(heap, at, 32 * MIB).expect("the other half may be filled");
    assert_eq!(grow(heap, at, 64 * MIB), None, "it is not");
    fill(at, 32 * MIB);
    assert!(grow(heap, at, 64 * MIB).is_some());
}

#[test]
fn huge_pages_that_are_dear_are_not_grown_into() {
    let heap = heap(0, u64::MAX);
    let grown = |times_ns: &[u64]| {
        let at = full(heap, 8 * MIB);
        TIMES_NS.set(times_ns.to_vec());
        let at = grow(heap, at, 16 * MIB).expect("it grows");
        assert_eq!(TIMES_NS.take(), [], "times that nobody took");
        fill(at, 16 * MIB);
        is_huge(heap, at, 16 * MIB - 1)
    };
    assert!(grown(&[200_000]));
    assert!(grown(&[7_000_000]), "it is known afterwards");
    assert!(!grown(&[1_000_000]), "small ones are tried");
    for _ in 0..4 {
        assert!(!grown(&[]));
    }
    assert!(grown(&[200_000]), "sixteen blocks later");
}
