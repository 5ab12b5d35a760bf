//! Memory that grows by being moved: untouched pages stay untouched.

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
        let at = get(heap, size, Content::Zero);
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

/// Memory is ready for the copies.
#[test]
fn dense_runs_of_some_blocks_are_left_to_be_copied() {
    let heap = heap(0, u64::MAX);
    let earlier = get(heap, 32 << 20, Content::Any);
    fill(earlier, 32 << 20);
    free(heap, earlier);
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
    let (at, to) = (get(heap, len, Content::Zero), get(heap, 2 * len, Content::Zero));
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

/// MiB of a heap's zones that are resident.
fn held_mib(heap: &'static Heap) -> usize {
    let of = |zone: &PoolZone| {
        let held = |block| heap.resident(zone, zone.block_address(block), BLOCK_SIZE);
        (0..zone.ledger().grown()).filter_map(held).sum::<usize>()
    };
    (heap.zones.all().map(of).sum::<usize>() * FRAME_SIZE) >> 20
}

/// Where a run is cut within its block, the rest has no room for another one of its size.
#[test]
fn runs_within_a_block_that_shrink_need_the_memory_of_what_is_left() {
    const COUNT: usize = 200;
    for (from, to) in [
        (1 << 20, 300_000),
        (512 << 10, 200 << 10),
        (1900 << 10, 700 << 10),
        (1500 << 10, 1_000_000),
    ] {
        let heap = heap(0, u64::MAX);
        let cut = |at: *mut u8| {
            fill(at, from);
            // SAFETY: the test owns it.
            match unsafe { heap.shrink_elsewhere(at, to, 16) } {
                Some(new) => new.as_ptr(),
                None => {
                    // SAFETY: as above.
                    assert!(unsafe { heap.resize_in_place(at, to) });
                    at
                }
            }
        };
        let all: Vec<_> = (0..COUNT).map(|_| cut(get(heap, from, Content::Any))).collect();
        let kept = (COUNT * to) >> 20;
        assert!(held_mib(heap) < kept * 5 / 4 + 12, "{} of {kept}, {from} to {to}", held_mib(heap));
        // SAFETY: the test owns them.
        let is_kept = |at: &*mut u8| (0..to).all(|byte| unsafe { at.add(byte).read() } == 0xa5);
        assert!(all.iter().all(is_kept));
        all.into_iter().for_each(|at| free(heap, at));
    }
}

#[test]
fn a_run_within_a_block_that_is_hardly_touched_shrinks_where_it_stands() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 1 << 20, Content::Zero);
    touch(at, &[3]);
    // SAFETY: the test owns it.
    unsafe {
        assert!(heap.shrink_elsewhere(at, 300_000, 16).is_none());
        assert!(heap.resize_in_place(at, 300_000));
    }
    assert_eq!(resident(at, 300_000), [3]);
    free(heap, at);
}

/// A run that goes on elsewhere when it grows says nothing of those that stay.
#[test]
fn vectors_of_a_size_leave_requests_of_that_size_unpopulated() {
    const SIZE: usize = 1 << 20;
    for vectors in [1, 20, 40] {
        let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
        for _ in 0..vectors {
            let at =
                grow_vector(heap, (get(heap, SIZE, Content::Any), SIZE), 3 * SIZE, |_| 3 * SIZE);
            free(heap, at);
        }
        let before = held_mib(heap);
        let all: Vec<_> = (0..300).map(|_| get(heap, SIZE, Content::Any)).collect();
        all.iter().for_each(|&at| touch(at, &[0]));
        // Guesses among them.
        let more = held_mib(heap).saturating_sub(before);
        assert!(more < 100, "{more} MiB after {vectors} vectors");
        all.into_iter().for_each(|at| free(heap, at));
    }
}

/// The first size of a vector that grows, and its last.
const FIRST: usize = 64 << 10;
const FULL: usize = 6_000_000;

/// Fills a vector that grows as `realloc` does, and frees it: whether it began in the ready zone.
fn fill_vector(heap: &'static Heap, full: usize, next: impl FnMut(usize) -> usize) -> bool {
    let at = get(heap, FIRST, Content::Any);
    let is_ready = heap.zone_of(at).is_some_and(|zone| zone.kind == ZoneKind::Ready);
    free(heap, grow_vector(heap, (at, FIRST), full, next));
    is_ready
}

/// Fills a vector that grows as `realloc` does.
fn grow_vector(
    heap: &'static Heap,
    (mut at, mut size): (*mut u8, usize),
    full: usize,
    mut next: impl FnMut(usize) -> usize,
) -> *mut u8 {
    fill(at, size);
    while size < full {
        let new = next(size);
        // SAFETY: the test owns it, and goes on with the new one.
        unsafe {
            if !heap.resize_in_place(at, new) {
                let moved = heap.relocate(at, new).map(NonNull::as_ptr);
                at = moved.unwrap_or_else(|| {
                    let copy = get(heap, new, Content::Any);
                    copy.copy_from_nonoverlapping(at, size);
                    free(heap, at);
                    copy
                });
            }
            fill(at.add(size), new - size);
        }
        size = new;
    }
    at
}

#[test]
fn vectors_that_grow_are_soon_at_home_in_memory_that_stays() {
    let by_half = |size| size + size / 2;
    let by_as_much = |size| size + FIRST;
    let ways: [&dyn Fn(usize) -> usize; 2] = [&by_half, &by_as_much];
    for next in ways {
        let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
        (0..4).for_each(|_| _ = fill_vector(heap, FULL, next));
        let given_back = heap.slot().get(Event::GivenBackBytes);
        let rounds = 200;
        let ready = (0..rounds).filter(|_| fill_vector(heap, FULL, next)).count();
        assert!(ready >= rounds * 9 / 10, "{ready} rounds");
        let given_back = (heap.slot().get(Event::GivenBackBytes) - given_back) as usize;
        assert!(given_back < rounds * FULL / 20, "{given_back} bytes went back");
    }
}

/// The second vector has the memory of the first, and no other beside it.
#[test]
fn vectors_that_grow_one_after_the_other_need_the_memory_of_one() {
    for step in [200 << 10, 700 << 10, 1 << 20, BLOCK_SIZE, 5 << 20] {
        let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
        for round in 0..4 {
            let mut most = 0;
            let next = |size: usize| {
                let held = heap.zones.all().map(|zone| zone.budget().blocks()).sum::<usize>();
                most = held.max(most);
                size + step
            };
            fill_vector(heap, 60 << 20, next);
            assert!(most < 40, "{most} blocks of 30, steps of {step}, round {round}");
        }
    }
}

#[test]
fn a_run_may_grow_to_exactly_a_block() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, FIRST, Content::Any);
    fill(at, FIRST);
    // SAFETY: the test owns it, up to the size that it has.
    unsafe {
        assert!(heap.resize_in_place(at, BLOCK_SIZE), "the block is the run's alone");
        fill(at, BLOCK_SIZE);
        assert_eq!(heap.usable_size(at), BLOCK_SIZE);
        assert!(heap.resize_in_place(at, BLOCK_SIZE + FRAME_SIZE));
        fill(at, BLOCK_SIZE + FRAME_SIZE);
        assert!(heap.resize_in_place(at, BLOCK_SIZE));
        assert!(heap.resize_in_place(at, FIRST));
    }
    // SAFETY: as above.
    assert!((0..FIRST).all(|byte| unsafe { at.add(byte).read() } == 0xa5));
    free(heap, at);
    assert!(is_zeroed(get(heap, BLOCK_SIZE, Content::Zero), BLOCK_SIZE));
}

/// The parts of an allocation, as calls on mappings see them.
fn is_all_mapped(heap: &'static Heap, at: *mut u8, size: usize) -> bool {
    let mut all = true;
    heap.parts(at as usize, size, |_, part| {
        all &= part == Part::Mapped;
        all
    });
    all
}

#[test]
fn no_mark_of_a_hole_outlives_the_run() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    for way in 0..3 {
        let at = get(heap, DENSE, Content::Any);
        fill(at, DENSE);
        // SAFETY: the test owns it, and uses no part that is gone.
        unsafe {
            heap.unmap(at as usize + DENSE / 2, DENSE / 4);
            assert!(!is_all_mapped(heap, at, DENSE));
            assert!(heap.relocate(at, 2 * DENSE).is_none(), "a part is not there");
            assert!(way == 0 || heap.resize_in_place(at, DENSE / 4));
            assert!(way < 2 || heap.resize_in_place(at, DENSE));
        }
        assert!(way < 2 || is_all_mapped(heap, at, DENSE));
        free(heap, at);
        let all: Vec<_> = (0..6).map(|_| get(heap, DENSE, Content::Zero)).collect();
        for &at in &all {
            assert!(is_all_mapped(heap, at, DENSE) && is_zeroed(at, DENSE));
            fill(at, DENSE);
        }
        all.into_iter().for_each(|at| free(heap, at));
    }
}

#[test]
fn what_is_sealed_is_its_owners_for_good() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    for (from, len) in [(0, 2 * BLOCK_SIZE), (BLOCK_SIZE, FRAME_SIZE)] {
        let at = get(heap, DENSE, Content::Any);
        fill(at, DENSE);
        heap.note_sealed(at as usize + from, len);
        assert!(heap.has(at), "its owner may free it");
        // SAFETY: the test owns it.
        assert!(unsafe { heap.relocate(at, 2 * DENSE) }.is_none());
        free(heap, at);
        let sealed = at as usize + from..at as usize + from + len;
        for _ in 0..40 {
            let other = get(heap, BLOCK_SIZE, Content::Any) as usize;
            assert!(other >= sealed.end || other + BLOCK_SIZE <= sealed.start);
        }
    }
}
