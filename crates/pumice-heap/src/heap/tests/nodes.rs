//! A heap on a machine of several memory nodes, none of which is there.

use super::*;
use pumice_frames::sys::fake::FakeNodes;

fn heap_of(nodes: usize, ready_bytes: usize, pool_max: u64) -> (&'static Heap, &'static FakeNodes) {
    let told: &'static FakeNodes = Box::leak(Box::default());
    (heap_on(Topology::told(nodes, told), ready_bytes, pool_max), told)
}

fn zone_at(heap: &'static Heap, at: *mut u8) -> (usize, ZoneKind) {
    let zone = heap.zones.of(at as usize).expect("the heap's");
    (zone.node, zone.kind)
}

#[test]
fn requests_are_served_where_they_are_made() {
    for nodes in [2, 3, 8] {
        let (heap, told) = heap_of(nodes, 0, u64::MAX);
        for size in [64 << 10, 300_000, 3_000_000, DENSE, DENSE] {
            for node in 0..nodes {
                told.move_to(node);
                let at = get(heap, size, Content::Zero);
                assert!(is_zeroed(at, size) && heap.owns(at));
                assert_eq!(zone_at(heap, at).0, node, "{size} bytes on {node} of {nodes}");
                fill(at, size);
                free(heap, at);
            }
        }
        decay_all(heap);
        assert_eq!(heap.slot().pool_bytes(), 0);
    }
}

#[test]
fn what_is_freed_goes_back_to_where_it_was() {
    let (heap, told) = heap_of(2, 0, u64::MAX);
    make_dense(heap, DENSE);
    let at = get(heap, DENSE, Content::Any);
    assert_eq!(zone_at(heap, at), (0, ZoneKind::Ready));
    fill(at, DENSE);
    told.move_to(1);
    free(heap, at);
    let other = get(heap, DENSE, Content::Any);
    assert_eq!(zone_at(heap, other), (1, ZoneKind::Ready));
    told.move_to(0);
    assert_eq!(get(heap, DENSE, Content::Any), at);
    free(heap, at);
    free(heap, other);
}

#[test]
fn what_grows_stays_on_its_node() {
    let (heap, told) = heap_of(2, 0, u64::MAX);
    let at = get(heap, DENSE, Content::Zero);
    told.move_to(1);
    // SAFETY: the test owns it.
    assert!(unsafe { heap.resize_in_place(at, 2 * DENSE) });
    // SAFETY: as above; it is used at its new address only.
    let moved = unsafe { heap.relocate(at, 4 * DENSE) }.expect("moved").as_ptr();
    assert_eq!(zone_at(heap, moved), (0, ZoneKind::Demand));
    free(heap, moved);
}

#[test]
fn a_node_without_room_turns_to_the_next() {
    let (heap, told) = heap_of(3, 0, u64::MAX);
    let most = heap.zones.local(0, ZoneKind::Demand).ledger().capacity() * BLOCK_SIZE / 8 * 5;
    told.move_to(1);
    let all: Vec<_> = (0..3).map(|_| get(heap, most, Content::Any)).collect();
    let nodes: Vec<_> = all.iter().map(|&at| zone_at(heap, at).0).collect();
    assert_eq!(nodes, [1, 2, 0]);
    assert!(heap.allocate(most, 16, Content::Any).is_none(), "no more addresses");
    for at in all {
        free(heap, at);
    }
}

#[test]
fn a_pool_that_is_full_serves_what_other_nodes_have() {
    let (heap, told) = heap_of(2, 0, 3 * DENSE as u64 / 2);
    make_dense(heap, DENSE);
    let at = get(heap, DENSE, Content::Any);
    fill(at, DENSE);
    free(heap, at);
    told.move_to(1);
    assert_eq!(get(heap, DENSE, Content::Any), at);
    assert!(heap.allocate(DENSE, 16, Content::Any).is_none());
    free(heap, at);
}

#[test]
fn every_node_is_scrubbed_with_pages_of_its_own() {
    let (heap, told) = heap_of(3, 0, u64::MAX);
    let small = 600_000;
    make_dense(heap, DENSE);
    make_dense(heap, small);
    let mut all = Vec::new();
    for node in 0..3 {
        told.move_to(node);
        let kept = get(heap, small, Content::Any);
        assert_eq!(zone_at(heap, kept).0, node);
        for size in [DENSE, DENSE, small] {
            let at = get(heap, size, Content::Any);
            fill(at, size);
            all.push(at);
        }
    }
    all.into_iter().for_each(|at| free(heap, at));
    assert_eq!(heap.ready_blocks().0, 0);
    scrub_all(heap);
    let preferred = told.preferred();
    for node in 0..3 {
        let blocks = 2 * DENSE / BLOCK_SIZE;
        assert!(preferred.iter().filter(|&&it| it == node).count() >= blocks, "{preferred:?}");
        assert!(heap.zones.local(node, ZoneKind::Ready).ready_blocks() >= blocks);
        told.move_to(node);
        let before = heap.slot().get(Event::HotClearedBytes);
        let at = get(heap, DENSE, Content::Zero);
        assert_eq!(zone_at(heap, at).0, node);
        assert_eq!(heap.slot().get(Event::HotClearedBytes), before, "it was zero");
        free(heap, at);
    }
}

#[test]
fn memory_is_populated_on_the_node_that_asked_first() {
    let told: &'static FakeNodes = Box::leak(Box::default());
    told.move_to(1);
    let heap = heap_on(Topology::told(2, told), 4 * DENSE, u64::MAX);
    told.move_to(0);
    while heap.populate() == Left::More {}
    assert_eq!(told.preferred(), vec![1; 4 * DENSE / BLOCK_SIZE]);
    assert_eq!(heap.ready_blocks(), (4 * DENSE / BLOCK_SIZE, 0));
    let elsewhere = get(heap, DENSE, Content::Zero);
    assert_eq!(zone_at(heap, elsewhere), (0, ZoneKind::Demand), "nothing is known of it");
    assert_eq!(heap.slot().get(Event::Hits), 0);
    told.move_to(1);
    let at = get(heap, DENSE, Content::Zero);
    assert_eq!(zone_at(heap, at), (1, ZoneKind::Ready));
    assert_eq!(heap.slot().get(Event::Hits), 1);
    free(heap, at);
    free(heap, elsewhere);
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 4 * DENSE as u64, "--ready stays");
}

#[test]
fn a_child_adopts_every_node() {
    let (heap, told) = heap_of(3, 0, u64::MAX);
    make_dense(heap, DENSE);
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for node in 0..3 {
        told.move_to(node);
        for all in [&mut kept, &mut freed] {
            let at = get(heap, DENSE, Content::Any);
            fill(at, DENSE);
            all.push(at);
        }
    }
    freed.into_iter().for_each(|at| free(heap, at));
    // Memory that a thread of the parent had claimed is nobody's in the child.
    heap.age(Order::BLOCK);
    heap.claim(Order::BLOCK).expect("something is dirty");
    heap.before_fork();
    let slot = Tree::private(u64::MAX, 0).expect("memory").attach(1).expect("a slot");
    // SAFETY: nobody else uses it.
    unsafe { heap.after_fork_in_child(slot) };
    for zone in heap.zones.all() {
        let held = (0..zone.ledger().grown()).filter(|&block| {
            let word = zone.ledger().block(block);
            is_free(word) && !word.is_pristine() || zone.ledger().has_more_claims_than(0)
        });
        assert_eq!(held.count(), 0, "node {} holds what it shares", zone.node);
    }
    for (node, at) in kept.into_iter().enumerate() {
        assert_eq!(zone_at(heap, at).0, node);
        free(heap, at);
        told.move_to(node);
        let zero = get(heap, DENSE, Content::Zero);
        assert!(is_zeroed(zero, DENSE));
        free(heap, zero);
    }
    decay_all(heap);
    assert_eq!(slot.pool_bytes(), 0);
}

#[test]
fn what_other_nodes_have_free_does_not_add_to_the_most_there_was() {
    let (heap, told) = heap_of(3, 0, u64::MAX);
    make_dense(heap, DENSE);
    for round in 0..9 {
        told.move_to(round % 3);
        let at = get(heap, DENSE, Content::Any);
        fill(at, DENSE);
        free(heap, at);
        assert!(heap.slot().pool_bytes() <= 3 * DENSE as u64 / 2, "in round {round}");
    }
    told.move_to(2);
    let at = get(heap, DENSE, Content::Any);
    assert!(heap.slot().get(Event::Hits) > 0, "what is near stays");
    free(heap, at);
}

#[test]
fn everything_free_is_offered_and_goes_when_a_heap_retires() {
    let (heap, told) = heap_of(3, 0, u64::MAX);
    make_dense(heap, DENSE);
    let on = |node| {
        told.move_to(node);
        let at = get(heap, DENSE, Content::Any);
        fill(at, DENSE);
        at
    };
    let all: Vec<_> = (0..3).map(on).collect();
    all.into_iter().for_each(|at| free(heap, at));
    let offered = || {
        let words = heap
            .zones
            .all()
            .flat_map(|zone| (0..zone.ledger().grown()).map(|block| zone.ledger().block(block)));
        words.filter(|word| is_free(*word) && word.hints().offered()).count()
    };
    assert_eq!((heap.offer(), heap.offer()), (Left::More, Left::Nothing));
    assert_eq!(offered(), 3 * DENSE / BLOCK_SIZE);
    heap.retire(Calls::OfFree);
    assert_eq!(heap.slot().pool_bytes(), 0);
    assert!(heap.zones.all().all(|zone| zone.ledger().free_blocks() == 0));
}

#[test]
fn unmapping_goes_from_one_node_into_the_next() {
    let told: &'static FakeNodes = Box::leak(Box::default());
    let heap = new_heap(Topology::told(2, told), 0, u64::MAX, Verify::No);
    told.move_to(1);
    make_dense(heap, DENSE);
    decay_all(heap);
    // All of the first node's last zone, and the beginning of the other's first.
    told.move_to(0);
    let zone = heap.zones.local(0, ZoneKind::Demand);
    let all = heap.map(zone.ledger().capacity() * BLOCK_SIZE).expect("room").as_ptr() as usize;
    told.move_to(1);
    let first = heap.map(DENSE).expect("room").as_ptr() as usize;
    let border = zone.addresses().end;
    assert_eq!((all, first), (zone.addresses().start, border));
    assert!(!heap.contains(border - FRAME_SIZE, 2 * FRAME_SIZE));
    assert!(heap.overlaps((border - 1) as *const u8, 2));
    let parts = |from: usize, to: usize| {
        let mut parts = Vec::new();
        heap.parts(from, to - from, |range, part| {
            parts.push((range, part));
            true
        });
        parts
    };
    let (from, to) = (border - 3 * FRAME_SIZE, border + 2 * FRAME_SIZE);
    assert_eq!(parts(from, to), [(from..border, Part::Mapped), (border..to, Part::Mapped)]);
    // SAFETY: both are this test's.
    unsafe { core::ptr::write_bytes(from as *mut u8, 0xa5, to - from) };
    // SAFETY: as above.
    assert!(unsafe { heap.renew(from, to - from) });
    assert!(is_zeroed(from as *mut u8, to - from));
    heap.note(from, border - from, Effect::Taints);
    assert!(heap.is_tainted(border - 1, 1) && !heap.is_tainted(border, FRAME_SIZE));
    // SAFETY: as above; nothing uses it.
    unsafe { heap.unmap(from, to - from) };
    assert_eq!(
        parts(from - FRAME_SIZE, to + FRAME_SIZE),
        [
            (from - FRAME_SIZE..from, Part::Mapped),
            (from..border, Part::Hole),
            (border..to, Part::Hole),
            (to..to + FRAME_SIZE, Part::Mapped),
        ]
    );
    assert_eq!(heap.occupy(from, to - from, false), Ok(()), "it can be mapped again");
    assert_eq!(parts(from, to), [(from..border, Part::Mapped), (border..to, Part::Mapped)]);
    let end = heap.zones.addresses().end;
    // SAFETY: as above.
    unsafe { heap.unmap(all, end - all) };
    let holes = [(all..border, Part::Hole), (border..first + DENSE, Part::Hole)];
    assert_eq!(parts(all, first + DENSE), holes);
    assert_eq!(
        parts(end - 1, end + 1),
        [(end - 1..end, Part::Hole), (end..end + 1, Part::Outside)]
    );
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}
