//! Memory that grows by being moved: what was never touched stays so.

use super::*;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::mem;

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
