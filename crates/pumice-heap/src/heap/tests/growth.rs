//! Tests of the pages in which runs grow.

use super::*;
use crate::heap::classes::Density;
use crate::heap::growth::Way;

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
fn what_is_not_full_goes_on_in_small_pages_until_it_is() {
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
    assert!(is_huge(heap, at, 32 * MIB - 1), "all of it is full");
    touch_little(at, 24 * MIB..32 * MIB);
    let at = grow(heap, at, 40 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 40 * MIB - 1));
    touch_little(at, 32 * MIB..40 * MIB);
    assert_eq!(resident(heap, at.wrapping_add(32 * MIB), 8 * MIB), 4);
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
    // And the pages that were touched.
    let most = (24 + 16) * MIB / FRAME_SIZE + 40 * 4;
    assert!(beyond <= most, "{beyond} frames, {most} at most");
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

/// Where too much is held, what a run gains comes in small pages, and no page of it is copied.
#[test]
fn a_guess_that_was_wrong_goes_on_in_small_pages() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 16 * MIB, Content::Any);
    assert!(heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready);
    let at = grow(heap, at, 1024 * MIB).expect("it grows");
    touch_little(at, 16 * MIB..1024 * MIB);
    let beyond = resident(heap, at.wrapping_add(16 * MIB), 1008 * MIB);
    assert!(beyond <= 2 * BLOCK_FRAMES, "{beyond} frames");
    let zone = heap.zone_of(at).expect("the heap's");
    let first = zone.pfn(at).expect("a frame").block();
    free(heap, at);
    let any = (first..first + 512).any(|block| zone.ledger().block(block).tainted());
    assert!(!any, "the next owner has not asked for that");
    let at = get(heap, 16 * MIB, Content::Any);
    let at = grow(heap, at, 32 * MIB).expect("the other half may be filled");
    free(heap, at);
}

/// The kernel has few mappings for a process.
#[test]
fn what_goes_on_in_small_pages_by_steps_is_a_few_mappings() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, 64 * MIB);
    let mut at = get(heap, 16 * MIB, Content::Any);
    let zone = heap.zone_of(at).expect("the heap's");
    assert!(zone.kind == ZoneKind::Ready);
    let held: Vec<_> = (0..2).map(|_| get(heap, 64 * MIB, Content::Any)).collect();
    for step in 1..200 {
        at = grow(heap, at, 16 * MIB + step * 80 * 1024).expect("it grows");
    }
    let mut lengths = [0; 16];
    // SAFETY: the test owns it.
    let mappings = unsafe { pumice_frames::sys::mem::mappings(at, 31 * MIB, &mut lengths) };
    assert!(mappings.is_some_and(|count| count <= 6), "{mappings:?}");
    held.into_iter().chain([at]).for_each(|at| free(heap, at));
}

/// Also by steps that a block is a multiple of, of which one in many may be of huge pages.
#[test]
fn what_goes_on_in_small_pages_by_parts_of_blocks_is_a_few_mappings() {
    for (step, zone) in [(64, ZoneKind::Ready), (256, ZoneKind::Ready), (64, ZoneKind::Demand)] {
        let heap = heap(0, u64::MAX);
        let mut at = match zone {
            ZoneKind::Ready => get(heap, 16 * MIB, Content::Any),
            ZoneKind::Demand => full(heap, 16 * MIB),
        };
        fill(at, 16 * MIB);
        assert_eq!(heap.zone_of(at).expect("the heap's").kind, zone);
        let mut size = 16 * MIB;
        while size < 80 * MIB {
            at = grow(heap, at, size + step * 1024).expect("it grows");
            // SAFETY: the test owns it.
            unsafe { at.add(size).write(1) };
            size += step * 1024;
        }
        let mut lengths = [0; 64];
        // SAFETY: the test owns it.
        let mappings = unsafe { pumice_frames::sys::mem::mappings(at, size, &mut lengths) };
        assert!(mappings.is_some_and(|count| count <= 6), "{step} {zone:?}: {mappings:?}");
        free(heap, at);
    }
}

/// Many vectors that are full grow beside each other: nothing is ready for copies, and no page of the gain is touched.
#[test]
fn short_vectors_side_by_side_are_moved_where_nothing_is_ready() {
    let heap = heap(0, u64::MAX);
    let mut all: Vec<_> = (0..40).map(|_| full(heap, 4 * MIB)).collect();
    for step in 1..4 {
        for at in &mut all {
            *at = grow(heap, *at, 4 * MIB + step * 1536 * 1024).expect("it grows");
        }
    }
    let there: usize = all.iter().map(|&at| resident(heap, at, 4 * MIB + 3 * 1536 * 1024)).sum();
    let held = 40 * 4 * MIB / FRAME_SIZE;
    assert!(there >= held && there <= held + held / 8, "{there} of {held}");
    all.into_iter().for_each(|at| free(heap, at));
}

/// A vector in the ready zone that is full grows as it did, whatever else is held.
#[test]
fn what_is_held_elsewhere_has_no_run_copied() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, 40 * MIB);
    let at = get(heap, 40 * MIB, Content::Any);
    assert!(heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready);
    fill(at, 40 * MIB);
    let held: Vec<_> = (0..8).map(|_| get(heap, 40 * MIB, Content::Any)).collect();
    let beside = get(heap, 2 * MIB, Content::Any);
    let at = grow(heap, at, 60 * MIB).expect("it grows");
    fill(at, 60 * MIB);
    let at = grow(heap, at, 90 * MIB).expect("and again");
    assert!(!is_zeroed(at, FRAME_SIZE));
    [at, beside].into_iter().chain(held).for_each(|at| free(heap, at));
}

/// From one block's middle to the next one's: each step is as if it were the only one.
#[test]
fn steps_from_block_to_block_are_looked_at() {
    let heap = heap(0, u64::MAX);
    let mut at = full(heap, 8 * MIB + 600 * 1024);
    let mut size = 8 * MIB + 600 * 1024;
    at = grow(heap, at, 2 * size).expect("it grows");
    size *= 2;
    let before = resident(heap, at, size);
    for _ in 0..40 {
        at = grow(heap, at, size + 2 * MIB).expect("it grows");
        touch_little(at, size..size + 2 * MIB);
        size += 2 * MIB;
    }
    let gained = resident(heap, at, size) - before;
    assert!(gained < 8 * BLOCK_FRAMES, "{gained} frames where 40 were touched");
}

/// A log behind an index of which little is used.
#[test]
fn a_full_end_does_not_vouch_for_the_rest() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 64 * MIB, Content::Zero);
    touch_little(at, 0..60 * MIB);
    fill(at.wrapping_add(60 * MIB), 4 * MIB);
    let at = grow(heap, at, 68 * MIB).expect("it grows");
    assert!(!is_huge(heap, at, 0) && !is_huge(heap, at, 68 * MIB - 1));
}

#[test]
fn a_program_that_wants_no_huge_pages_gets_none() {
    let heap = heap(0, u64::MAX);
    let at = full(heap, 8 * MIB);
    let at = grow(heap, at, 13 * MIB).expect("it grows");
    let way = |mib| {
        let (zone, range) = heap.run_at(at).expect("a run");
        heap.way_to_grow(zone, range, mib * MIB / FRAME_SIZE)
    };
    fill(at, 13 * MIB);
    assert_eq!((way(14), way(20)), (Way::Within, Way::Huge));
    heap.note(at as usize, 13 * MIB, Effect::Taints);
    assert_eq!((way(14), way(20)), (Way::Small, Way::Small));
    free(heap, at);
}

/// A run that is cut stays a witness, and what is cut off counts no more.
#[test]
fn what_is_cut_off_by_a_page_still_counts() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, 8 * MIB);
    let mut all = Vec::new();
    for _ in 0..100 {
        let at = get(heap, 8 * MIB, Content::Any);
        // SAFETY: the test owns it.
        assert!(unsafe { heap.resize_in_place(at, 8 * MIB - FRAME_SIZE) });
        touch_little(at, 0..6 * MIB);
        all.push(at);
    }
    let pages: usize = all.iter().map(|&at| resident(heap, at, 8 * MIB - FRAME_SIZE)).sum();
    assert!(pages < 128 * MIB / FRAME_SIZE, "{pages}");
    for &at in &all {
        // SAFETY: as above.
        assert!(unsafe { heap.resize_in_place(at, 64 * 1024) });
    }
    assert!(heap.held.unseen() < 100 * 64 * 1024 / FRAME_SIZE, "{}", heap.held.unseen());
    all.into_iter().for_each(|at| free(heap, at));
    assert_eq!(heap.held.unseen(), 0);
}

/// Programs that fill some memory late get no more of other memory on a guess.
#[test]
fn what_is_filled_late_pays_for_no_guess() {
    let heap = heap(0, u64::MAX);
    heap.held.note_late(usize::MAX / 1024);
    let all: Vec<_> = (0..40).map(|nth| get(heap, (16 + nth % 8) * MIB, Content::Any)).collect();
    let is_ready = |&at: &*mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let ready = all.iter().copied().filter(|at| is_ready(at)).count();
    assert!(ready <= 2, "{ready}");
    all.into_iter().for_each(|at| free(heap, at));
}

/// A filter may end the program for a look.
#[test]
fn nobody_looks_when_calls_are_forbidden() {
    let heap = heap(0, u64::MAX);
    let at = full(heap, 8 * MIB);
    let at = grow(heap, at, 16 * MIB).expect("it grows");
    fill(at, 16 * MIB);
    heap.go_quiet();
    assert_eq!(heap.classes.density(16 * MIB / FRAME_SIZE), Density::Unknown);
    let zone = heap.zone_of(at).expect("the heap's");
    let (_, range) = heap.run_at(at).expect("a run");
    assert_eq!(heap.written_eighths(zone, range), None);
    free(heap, at);
    assert_eq!(heap.classes.density(16 * MIB / FRAME_SIZE), Density::Unknown);
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
