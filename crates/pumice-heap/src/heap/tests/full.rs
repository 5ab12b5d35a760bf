//! A pool that is full refuses at once, and no longer than it is full.

use super::*;

const PIECE: usize = 4 << 20;

/// Fills the pool with pieces, until one is refused.
fn fill_up(heap: &'static Heap) -> Vec<*mut u8> {
    let pieces = std::iter::from_fn(|| heap.allocate(PIECE, 16, Content::Any));
    pieces.map(NonNull::as_ptr).collect()
}

fn is_refused(heap: &'static Heap, blocks: usize) -> bool {
    heap.zones.all().any(|zone| zone.is_refused(blocks))
}

#[test]
fn a_request_that_cannot_be_served_is_remembered() {
    let heap = heap(0, 32 << 20);
    let pieces = fill_up(heap);
    assert_eq!(pieces.len(), 8);
    assert!(is_refused(heap, 2) && is_refused(heap, 100) && !is_refused(heap, 1));
    // One that is smaller is looked for, and remembered too.
    assert!(heap.allocate(BLOCK_SIZE, 16, Content::Zero).is_none());
    assert!(is_refused(heap, 1));
    // Each free ends it.
    for at in pieces {
        free(heap, at);
        assert!(!is_refused(heap, 2));
        let again = get(heap, PIECE, Content::Zero);
        assert!(is_zeroed(again, PIECE));
        assert!(heap.allocate(PIECE, 16, Content::Any).is_none());
        assert!(is_refused(heap, 2));
        free(heap, again);
        assert!(heap.allocate(2 * PIECE, 16, Content::Any).is_none());
        let _kept = get(heap, PIECE, Content::Any);
    }
}

#[test]
fn room_that_others_leave_ends_it() {
    let heap = heap(0, 32 << 20);
    let other = heap.tree().attach(std::process::id()).expect("a slot");
    assert!(heap.tree().grow_pool(other, 16 << 20));
    let pieces = fill_up(heap);
    assert_eq!(pieces.len(), 4);
    assert!(is_refused(heap, 2));
    heap.tree().shrink_pool(other, 16 << 20);
    assert_eq!(fill_up(heap).len(), 4);
    assert!(is_refused(heap, 2));
    pieces.into_iter().for_each(|at| free(heap, at));
}

/// Whole blocks that were broken up are had again when the last of their frames is free, in whatever order that
/// happens, and with refusals between. Nothing is touched, so all sizes stay in one zone.
#[test]
fn blocks_in_parts_are_joined_after_the_last_put() {
    const PART: usize = BLOCK_SIZE / 4;
    let heap = heap(0, 8 << 20);
    for round in 0..5 {
        let get_part = || heap.allocate(PART, 16, Content::Any).map(NonNull::as_ptr);
        let mut parts: Vec<_> = std::iter::from_fn(get_part).collect();
        assert_eq!(parts.len(), 16, "round {round}");
        parts.rotate_left(round);
        while let Some(at) = parts.pop() {
            assert!(heap.allocate(8 << 20, 16, Content::Zero).is_none());
            assert!(heap.allocate(8 << 20, 16, Content::Zero).is_none());
            free(heap, at);
        }
        free(heap, get(heap, 8 << 20, Content::Zero));
    }
}
