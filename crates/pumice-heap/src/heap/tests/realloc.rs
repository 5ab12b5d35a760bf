//! Memory that grows by being moved: what was never touched stays so.

use super::*;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::mem::{self, Memory};
use rustix::mm::{mprotect, MprotectFlags};

/// The numbers of the resident pages.
fn resident(at: *const u8, len: usize) -> Vec<usize> {
    let mut seen = vec![0; len.div_ceil(FRAME_SIZE)];
    let pages = mem::residence(at, len, &mut seen).expect("mapped");
    (0..pages.len()).filter(|&page| pages[page] & 1 != 0).collect()
}

/// Writes a byte to each of these pages.
fn touch(at: *mut u8, pages: &[usize]) {
    for &page in pages {
        // SAFETY: the caller has allocated so many pages there.
        unsafe { at.add(page * FRAME_SIZE + 7).write(page as u8 | 1) };
    }
}

fn has(at: *const u8, pages: &[usize]) -> bool {
    // SAFETY: as above.
    pages.iter().all(|&page| unsafe { at.add(page * FRAME_SIZE + 7).read() } == page as u8 | 1)
}

#[test]
fn sparse_runs_move_with_their_pages() {
    for size in [2 << 20, (3 << 20) + 1, (5 << 20) + 4097] {
        let heap = heap(0, u64::MAX);
        let at = get(heap, size, Content::Any);
        let last = size / FRAME_SIZE - 1;
        let mut pages = vec![0, 3, last];
        touch(at, &pages);
        // SAFETY: the test owns it.
        let moved = unsafe { heap.relocate(at, 2 * size) }.expect("moved").as_ptr();
        assert!(moved != at && has(moved, &pages), "{size}");
        assert_eq!(resident(moved, 2 * size), pages, "{size}");
        // Beside others, it is moved again.
        let _beside = get(heap, 70_000, Content::Any);
        pages.push(last + 9);
        touch(moved, &pages);
        // SAFETY: the test owns it.
        let again = unsafe { heap.relocate(moved, 5 * size) }.expect("moved").as_ptr();
        assert!(has(again, &pages), "{size}");
        assert_eq!(resident(again, 5 * size), pages, "{size}");
        free(heap, again);
        let zero = get(heap, 5 * size, Content::Zero);
        assert!(is_zeroed(zero, 5 * size), "{size}");
        free(heap, zero);
    }
}

/// A process has few mappings, and such runs may be many.
#[test]
fn sparse_runs_within_a_block_are_left_to_be_copied() {
    let heap = heap(0, u64::MAX);
    for size in [128 << 10, 600 << 10, (2 << 20) - 4096] {
        let at = get(heap, size, Content::Any);
        touch(at, &[0, 3]);
        assert!(heap.is_sparse(at), "{size}");
        // SAFETY: the test owns it.
        assert!(unsafe { heap.relocate(at, 2 * size) }.is_none(), "{size}");
        free(heap, at);
    }
}

#[test]
fn dense_runs_of_some_blocks_are_left_to_be_copied() {
    let heap = heap(0, u64::MAX);
    for size in [64 << 10, 600 << 10, 2 << 20, 5 << 20] {
        let at = get(heap, size, Content::Any);
        fill(at, size);
        assert!(!heap.is_sparse(at));
        // SAFETY: the test owns it.
        assert!(unsafe { heap.relocate(at, 2 * size) }.is_none());
        free(heap, at);
    }
}

#[test]
fn a_copy_of_sparse_memory_is_sparse_and_leaves_no_page_of_zeros() {
    const PAGES: usize = 1500;
    let heap = heap(0, u64::MAX);
    let len = PAGES * FRAME_SIZE - 100;
    let (at, to) = (get(heap, len, Content::Any), get(heap, 2 * len, Content::Zero));
    let pages = [0, 1, 5, 511, 512, 700, 1023, 1025, PAGES - 1];
    touch(at, &pages);
    assert!(heap.is_sparse(at));
    // SAFETY: the test owns both.
    unsafe { heap.copy_sparse(at, to, len) };
    assert!(has(to, &pages));
    assert_eq!(resident(to, 2 * len), pages);
    assert_eq!(resident(at, len), pages);
    // SAFETY: so many bytes are there, and the rest is as it was.
    unsafe { assert_eq!(to.add(len).read(), 0) };
    free(heap, at);
    free(heap, to);
}

#[test]
fn memory_that_may_be_held_is_copied() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 1 << 20, Content::Any);
    touch(at, &[0, 9]);
    heap.stop_recycling();
    // SAFETY: the test owns it.
    assert!(unsafe { heap.relocate(at, 2 << 20) }.is_none() && heap.is_sparse(at));
    free(heap, at);
}

/// A mapping that grows has its attributes everywhere, and each mapping of a run that moves becomes one at its new
/// place.
#[test]
fn runs_with_attributes_or_of_many_mappings_are_left_to_be_copied() {
    const SIZE: usize = 16 << 20;
    let cases =
        [(0, true, true), (1, true, false), (1, false, true), (3, false, true), (20, false, false)];
    for (split, is_known, may_move) in cases {
        let heap = heap(0, u64::MAX);
        let at = get(heap, SIZE, Content::Any);
        fill(at, SIZE);
        for nth in 0..split {
            let piece = at.wrapping_add((2 * nth + 1) * 64 * FRAME_SIZE);
            if is_known {
                heap.note(piece as usize, FRAME_SIZE, Effect::Taints);
            }
            // SAFETY: a piece of the test's own memory, which is read only from here on.
            unsafe { mprotect(piece.cast(), FRAME_SIZE, MprotectFlags::READ) }.expect("mapped");
        }
        // SAFETY: the test owns it.
        let moved = unsafe { heap.relocate(at, 2 * SIZE) };
        assert_eq!(moved.is_some(), may_move, "{split}, {is_known}");
        let now = moved.map_or(at, |at| at.as_ptr());
        // SAFETY: so many bytes are there.
        let bytes = unsafe { core::slice::from_raw_parts(now, SIZE) };
        assert!(bytes.iter().all(|&byte| byte == 0xa5));
        // SAFETY: so many bytes are there. The heap does not know of all the pieces.
        unsafe { mem::Os.commit(now, SIZE) }.expect("mapped");
        free(heap, now);
        let zero = get(heap, 2 * SIZE, Content::Zero);
        assert!(is_zeroed(zero, 2 * SIZE));
    }
}

/// Vectors that grow by turns, beside each other: the places that they leave become larger ones.
#[test]
fn places_that_were_left_are_used_again() {
    const STEP: usize = 2_200_000;
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    let mut all: Vec<_> = (0..6).map(|_| get(heap, STEP, Content::Any)).collect();
    let mut size = STEP;
    while size < 80 << 20 {
        for at in &mut all {
            // SAFETY: the test owns it.
            let is_longer = unsafe { heap.resize_in_place(*at, size + STEP) };
            if !is_longer {
                // SAFETY: as above.
                *at = match unsafe { heap.relocate(*at, size + STEP) } {
                    Some(new) => new.as_ptr(),
                    None => {
                        let new = get(heap, size + STEP, Content::Any);
                        free(heap, *at);
                        new
                    }
                };
            }
            fill(at.wrapping_add(size), STEP);
        }
        size += STEP;
    }
    let grown: usize = heap.zones.all().map(|zone| zone.ledger().grown() * BLOCK_SIZE).sum();
    assert!(grown < 8 * all.len() * size, "{} MiB of addresses", grown >> 20);
}

/// A lock or an attribute stays with memory that shrinks.
#[test]
fn memory_with_attributes_shrinks_where_it_stands() {
    const SIZE: usize = 4 << 20;
    let heap = heap(0, u64::MAX);
    make_dense(heap, SIZE);
    for effect in [None, Some(Effect::Taints), Some(Effect::Locks)] {
        let at = get(heap, SIZE, Content::Any);
        fill(at, SIZE);
        effect.into_iter().for_each(|effect| heap.note(at as usize, FRAME_SIZE, effect));
        // SAFETY: the test owns it.
        let moved = unsafe { heap.shrink_elsewhere(at, 100_000, 16) };
        assert_eq!(moved.is_none(), effect.is_some(), "{effect:?}");
        free(heap, moved.map_or(at, |at| at.as_ptr()));
    }
}
