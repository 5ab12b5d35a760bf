//! Tests of the pages that new blocks come in: times are given, and pages counted.

use super::*;

const MS: u64 = 1_000_000;
const CHEAP: u64 = MS / 5;
const SMALL: u64 = MS;
const DEAR: u64 = 7 * MS;

fn heap_of_dense() -> &'static Heap {
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    TIMES_NS.set(vec![CHEAP; 8]);
    make_dense(heap, DENSE);
    // Runs are held here that nobody touches.
    heap.held.note_late(usize::MAX / BLOCK_SIZE);
    // All that is ready is in use from here on, so that more comes in new blocks.
    get(heap, DENSE, Content::Any);
    TIMES_NS.take();
    heap
}

/// Gets a run of new blocks, if the touches of it took so long: where it is, and the pages of each block that are
/// there. All times are used up.
fn get_new(heap: &'static Heap, size: usize, times_ns: &[u64]) -> (*mut u8, Vec<usize>) {
    TIMES_NS.set(times_ns.to_vec());
    let at = get(heap, size, Content::Zero);
    assert_eq!(TIMES_NS.take(), [], "times that nobody took");
    let zone = heap.zone_of(at).expect("the heap's");
    assert_eq!(zone.kind, ZoneKind::Ready);
    let blocks = (0..size / BLOCK_SIZE).map(|block| at.wrapping_add(block * BLOCK_SIZE));
    let pages = blocks.map(|block| heap.resident(zone, block, BLOCK_SIZE));
    let pages = pages.map(|pages| pages.expect("mincore")).collect();
    (at, pages)
}

fn pages_of_new(heap: &'static Heap, size: usize, times_ns: &[u64]) -> Vec<usize> {
    get_new(heap, size, times_ns).1
}

/// Gets a run in which nothing is tried, and touches it.
fn touch_new(heap: &'static Heap, size: usize) {
    let (at, pages) = get_new(heap, size, &[]);
    assert!(pages.iter().all(|&pages| pages == 0), "{pages:?}");
    fill(at, size);
}

/// One page, or all of them where it is a huge one.
fn is_touched(pages: usize) -> bool {
    pages == 1 || pages == BLOCK_FRAMES
}

#[test]
fn a_cheap_page_is_all_that_is_touched_of_a_run() {
    let heap = heap_of_dense();
    for _ in 0..3 {
        touch_new(heap, DENSE);
        let pages = pages_of_new(heap, DENSE, &[CHEAP]);
        assert!(is_touched(pages[0]), "{pages:?}");
        assert_eq!(pages[1..], [0; 3]);
    }
}

#[test]
fn nothing_is_tried_where_nobody_touches_what_is_new() {
    let heap = heap_of_dense();
    for size in [DENSE, BLOCK_SIZE] {
        TIMES_NS.set(vec![CHEAP; 8]);
        make_dense(heap, size);
        let left = TIMES_NS.with_borrow(Vec::len);
        (0..40).for_each(|_| _ = get(heap, size, Content::Any));
        // Memory that was touched before shows once that new memory is.
        assert!(left - TIMES_NS.take().len() <= 1, "{size}");
    }
}

#[test]
fn dear_ones_are_followed_by_small_ones_until_both_are_tried_again() {
    let heap = heap_of_dense();
    touch_new(heap, DENSE);
    let pages = pages_of_new(heap, DENSE, &[DEAR, SMALL]);
    assert!(is_touched(pages[0]), "{pages:?}");
    assert_eq!(pages[1..], [BLOCK_FRAMES, 1, 1], "the try, and then small pages");
    // 16 in all, of which two have come. Then nothing shows yet that new memory is touched, and it goes on.
    for _ in 0..4 {
        assert_eq!(pages_of_new(heap, DENSE, &[]), [1; 4]);
    }
    for _ in 0..3 {
        let (at, pages) = get_new(heap, DENSE, &[]);
        // A block that is to be looked at has none.
        assert!(pages.iter().all(|&pages| pages <= 1), "{pages:?}");
        fill(at, DENSE);
    }
    let pages = pages_of_new(heap, DENSE, &[CHEAP]);
    assert_eq!(pages[0], 1, "{pages:?}");
    assert!(pages[1..].iter().any(|&pages| is_touched(pages)), "{pages:?}");
}

#[test]
fn what_is_dear_in_any_pages_comes_in_huge_ones() {
    let heap = heap_of_dense();
    touch_new(heap, DENSE);
    let (at, pages) = get_new(heap, DENSE, &[DEAR, DEAR, DEAR, DEAR]);
    assert!(is_zeroed(at, DENSE));
    assert!(is_touched(pages[0]) && is_touched(pages[2]), "{pages:?}");
    assert_eq!([pages[1], pages[3]], [BLOCK_FRAMES; 2], "tried");
}

#[test]
fn runs_of_a_block_learn_as_well() {
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    make_dense(heap, BLOCK_SIZE);
    while heap.zones.local(0, ZoneKind::Ready).ledger().held_blocks() > 0 {
        get(heap, BLOCK_SIZE, Content::Any);
    }
    // No block of the first 64 is looked at closer.
    touch_new(heap, BLOCK_SIZE);
    pages_of_new(heap, BLOCK_SIZE, &[DEAR]);
    touch_new(heap, BLOCK_SIZE);
    assert_eq!(pages_of_new(heap, BLOCK_SIZE, &[SMALL]), [BLOCK_FRAMES]);
    assert_eq!(pages_of_new(heap, BLOCK_SIZE, &[]), [1]);
}

#[test]
fn under_a_filter_nothing_is_touched_or_timed() {
    let heap = heap_of_dense();
    touch_new(heap, DENSE);
    heap.go_quiet();
    TIMES_NS.set(vec![DEAR]);
    let at = get(heap, DENSE, Content::Any);
    assert_eq!(TIMES_NS.take(), [DEAR]);
    free(heap, at);
}
