//! Tests of memory that is held and hardly touched.

use super::bounds::faults;
use super::*;

const SIZE: usize = 4 << 20;

fn filled(heap: &'static Heap) -> *mut u8 {
    let at = get(heap, SIZE, Content::Any);
    fill(at, SIZE);
    at
}

fn resident(heap: &Heap, at: *mut u8) -> usize {
    heap.resident(heap.zone_of(at).expect("the heap's"), at, SIZE).expect("mincore")
}

/// The memory that a program fills and frees beside it costs no faults each time.
#[test]
fn what_is_filled_does_not_vouch_for_what_is_held() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    let (mut held, before) = (Vec::new(), faults());
    for _ in 0..200 {
        let full = filled(heap);
        let at = get(heap, SIZE, Content::Any);
        // SAFETY: allocated a moment ago.
        unsafe { at.write(1) };
        held.push(at);
        free(heap, full);
    }
    let pages: usize = held.iter().map(|&at| resident(heap, at)).sum();
    assert!(pages < (64 << 20) / FRAME_SIZE, "{pages}");
    assert!(faults() - before < 20_000, "{}", faults() - before);
    held.into_iter().for_each(|at| free(heap, at));
    assert_eq!(heap.held.unseen(), 0);
    assert!(!heap.classes.is_any_held());
}

#[test]
fn bursts_that_are_filled_at_once_are_ready_each_time() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    for _ in 0..3 {
        let all: Vec<_> = (0..60).map(|_| filled(heap)).collect();
        let is_ready =
            |&&at: &&*mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
        assert_eq!(all.iter().filter(is_ready).count(), 60);
        all.into_iter().for_each(|at| free(heap, at));
    }
}

/// The program has given a part of it back, or has forbidden itself to read it.
#[test]
fn what_nobody_can_look_at_is_not_held_against_a_size() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    let forbid = |at: *mut u8| {
        use rustix::mm::{mprotect, MprotectFlags};
        heap.note(at as usize, SIZE, Effect::Taints);
        // SAFETY: the test does not touch it any more.
        unsafe { mprotect(at.cast(), SIZE, MprotectFlags::empty()) }.expect("mprotect");
    };
    let all: Vec<_> = (0..60).map(|_| filled(heap)).collect();
    all.iter().for_each(|&at| forbid(at));
    let next = get(heap, SIZE, Content::Any);
    assert!(heap.zone_of(next).expect("the heap's").kind == ZoneKind::Ready);
    all.into_iter().for_each(|at| free(heap, at));
    free(heap, next);
}

/// A program may write anywhere in its pages, and anything.
#[test]
fn a_line_somewhere_in_each_page_is_enough() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    for content in [Content::Zero, Content::Any] {
        for turn in 0..3 {
            let some = |nth: usize| {
                let at = get(heap, SIZE, content);
                assert!(is_ready(at), "{content:?}, turn {turn}, {nth}");
                for page in 0..SIZE / FRAME_SIZE {
                    let offset = page * FRAME_SIZE + (page + nth) % 64 * 64;
                    // SAFETY: allocated a moment ago.
                    unsafe { at.add(offset).write(1 + turn) };
                }
                at
            };
            let all: Vec<_> = (0..60).map(some).collect();
            all.into_iter().for_each(|at| free(heap, at));
        }
    }
}

/// NumPy advises the kernel to use huge pages: a touched page has all of its huge page there.
#[test]
fn one_page_in_eight_is_all_where_huge_pages_are_asked_for() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let some = |_| {
        let at = get(heap, SIZE, Content::Zero);
        assert!(is_ready(at));
        heap.note(at as usize + FRAME_SIZE, SIZE - FRAME_SIZE, Effect::AsksForHuge);
        for page in (0..SIZE / FRAME_SIZE).step_by(8) {
            // SAFETY: allocated a moment ago.
            unsafe { at.add(page * FRAME_SIZE).write(1) };
        }
        at
    };
    let all: Vec<_> = (0..60).map(some).collect();
    all.into_iter().for_each(|at| free(heap, at));
}
