//! Tests of the rests of blocks: pages and calls are counted, and no time is taken.

use super::*;
use pumice_frames::frame::BlockState;

const MIB: usize = 1 << 20;

/// Frames of the ready zone that are resident.
fn held_in_ready(heap: &'static Heap) -> usize {
    let zone = heap.zones.local(0, ZoneKind::Ready);
    let held = |block| heap.resident(zone, zone.block_address(block), BLOCK_SIZE).expect("mincore");
    (0..zone.ledger().grown()).map(held).sum()
}

/// The most that may be resident where so many frames are in use.
fn most(frames: usize) -> usize {
    frames + frames / 16 + 12 * MIB / FRAME_SIZE
}

fn get_filled(heap: &'static Heap, size: usize) -> *mut u8 {
    let at = get(heap, size, Content::Any);
    fill(at, size);
    at
}

fn is_filled(at: *mut u8, size: usize) -> bool {
    // SAFETY: the caller has filled `size` bytes there.
    unsafe { core::slice::from_raw_parts(at, size) }.iter().all(|&byte| byte == 0xa5)
}

fn trims() -> usize {
    TRIMS.get()
}

/// A heap that knows that requests of these sizes are written to.
fn heap_of_dense(sizes: &[usize]) -> &'static Heap {
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    sizes.iter().for_each(|&size| make_dense(heap, size));
    heap
}

/// Sizes of which one fits badly into blocks.
const BAD: [usize; 5] = [700_000, MIB + 64, 2 * MIB + 64, 4 * MIB + 64, 3 * MIB + MIB / 2];

#[test]
fn live_memory_is_all_that_is_resident_in_every_round() {
    for size in BAD {
        let heap = heap_of_dense(&[size]);
        let count = 120 * MIB / size;
        let frames = count * frames_for(size);
        let mut before = trims();
        for round in 0..4 {
            let all: Vec<_> = (0..count).map(|_| get_filled(heap, size)).collect();
            let held = held_in_ready(heap);
            assert!(held <= most(frames), "{size}, round {round}: {held} of {frames} frames");
            assert!(all.iter().all(|&at| is_filled(at, size)));
            all.iter().for_each(|&at| free(heap, at));
            let held = held_in_ready(heap);
            assert!(held <= most(frames), "{size}, round {round}: {held} frames when freed");
            if round < 2 {
                before = trims();
            }
        }
        // A block that was trimmed for one serves the next.
        assert!(trims() - before <= count / 8, "{size}: {} trims in two rounds", trims() - before);
        decay_all(heap);
        assert_eq!(heap.slot().pool_bytes(), 0);
    }
}

#[test]
fn sizes_that_fill_blocks_and_few_of_others_are_let_alone() {
    let heap = heap_of_dense(&[2 * MIB, MIB, 2 * MIB + 64, MIB + 64]);
    let before = trims();
    let all: Vec<_> = (0..64).map(|it| get_filled(heap, (1 + it % 2) * MIB)).collect();
    for _ in 0..20 {
        for size in [2 * MIB + 64, MIB + 64] {
            free(heap, get_filled(heap, size));
        }
    }
    assert_eq!(trims(), before);
    all.iter().for_each(|&at| free(heap, at));
}

#[test]
fn others_use_the_rests_and_find_zeros_there() {
    let small = 300_000;
    let heap = heap_of_dense(&[2 * MIB + 64, small]);
    let large: Vec<_> = (0..40).map(|_| get_filled(heap, 2 * MIB + 64)).collect();
    let blocks = heap.held_blocks();
    let new = |content| {
        let at = get(heap, small, content);
        assert!(content == Content::Any || is_zeroed(at, small));
        fill(at, small);
        at
    };
    let mut all: Vec<_> = (0..100).map(|_| new(Content::Zero)).collect();
    assert!(held_in_ready(heap) <= most(40 * 513 + 100 * frames_for(small)));
    for turn in 0..1000 {
        let place = &mut all[fastrand::usize(..100)];
        assert!(is_filled(*place, small));
        free(heap, *place);
        *place = new([Content::Any, Content::Zero][turn % 2]);
    }
    assert!(heap.held_blocks() <= blocks + 2, "{} for {blocks}", heap.held_blocks());
    all.iter().for_each(|&at| free(heap, at));
    assert!(large.iter().all(|&at| is_filled(at, 2 * MIB + 64)));
    large.iter().for_each(|&at| free(heap, at));
}

#[test]
fn runs_that_grow_into_a_rest_keep_their_content() {
    let heap = heap_of_dense(&[2 * MIB + 64]);
    let all: Vec<_> = (0..40).map(|_| get_filled(heap, 2 * MIB + 64)).collect();
    for (&at, more) in all.iter().zip([40_000, MIB, 2 * MIB, 3 * MIB].iter().cycle()) {
        let size = 2 * MIB + more;
        // SAFETY: the test owns it.
        let is_longer = unsafe { heap.resize_in_place(at, size) };
        assert!(is_filled(at, 2 * MIB + 64));
        if is_longer {
            fill(at, size);
        }
    }
    all.iter().for_each(|&at| free(heap, at));
    let zeros = get(heap, 100 * MIB, Content::Zero);
    assert!(is_zeroed(zeros, 100 * MIB));
    free(heap, zeros);
}

#[test]
fn blocks_that_were_trimmed_are_whole_ones_again() {
    let (odd, even) = (2 * MIB + 64, 8 * MIB);
    let heap = heap_of_dense(&[odd, even]);
    // All are filled late.
    heap.held.note_late(usize::MAX / BLOCK_SIZE);
    let zone = heap.zones.local(0, ZoneKind::Ready);
    let trimmed = || {
        let is_trimmed = |&block: &usize| zone.ledger().block(block).trimmed();
        (0..zone.ledger().grown()).filter(is_trimmed).count()
    };
    for content in [Content::Any, Content::Zero] {
        let all: Vec<_> = (0..32).map(|_| get_filled(heap, odd)).collect();
        assert!(trimmed() >= 24);
        all.iter().for_each(|&at| free(heap, at));
        // Clearing would fault in what is not there.
        scrub_all(heap);
        assert!(held_in_ready(heap) <= most(32 * 513));
        let all: Vec<_> = (0..16).map(|_| get(heap, even, content)).collect();
        for &at in &all {
            assert!(content == Content::Any || is_zeroed(at, even));
            fill(at, even);
        }
        assert!(trimmed() <= 2, "{} are left", trimmed());
        assert!(held_in_ready(heap) <= most(16 * 2048));
        all.iter().for_each(|&at| free(heap, at));
        decay_all(heap);
        let word = |block| zone.ledger().block(block);
        let is_free = |block| word(block).state() == BlockState::Free && word(block).is_pristine();
        assert!((0..zone.ledger().grown()).all(is_free));
    }
}

#[test]
fn no_call_is_made_under_a_filter() {
    let heap = heap_of_dense(&[2 * MIB + 64]);
    heap.go_quiet();
    let before = trims();
    let all: Vec<_> = (0..20).map(|_| get_filled(heap, 2 * MIB + 64)).collect();
    assert_eq!(trims(), before);
    all.iter().for_each(|&at| free(heap, at));
}

#[test]
fn threads_that_trim_at_once_keep_what_is_theirs() {
    let heap = heap_of_dense(&BAD);
    let work = || {
        let mut all = Vec::new();
        for turn in 0..300 {
            let size = BAD[fastrand::usize(..BAD.len())] / [1, 1, 4][turn % 3];
            let content = [Content::Any, Content::Zero][turn % 2];
            let at = get(heap, size, content);
            assert!(content == Content::Any || is_zeroed(at, size), "{size}");
            fill(at, size);
            all.push((at, size));
            if all.len() > 24 {
                let (at, size) = all.swap_remove(fastrand::usize(..all.len()));
                assert!(is_filled(at, size), "{size}");
                free(heap, at);
            }
        }
        for (at, size) in all {
            assert!(is_filled(at, size), "{size}");
            free(heap, at);
        }
        trims()
    };
    let trims = std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>()
    });
    assert!(trims > 0);
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}

/// Programs that read into large buffers and cut them to what came, and those that grow and align theirs.
#[test]
fn runs_that_were_resized_or_aligned_leave_no_rests() {
    const KEPT: usize = 60;
    for (from, to) in [
        (2 * MIB + 64, 70_000),
        (2 * MIB, 300_000),
        (2 * MIB, 1_100_000),
        (4 * MIB, 2_200_000),
        (700_000, 1_100_000),
        (2 * MIB - 4096, 2_300_000),
    ] {
        let heap = heap_of_dense(&[from, to]);
        let kept = KEPT * frames_for(to);
        let all: Vec<_> = (0..KEPT)
            .map(|_| {
                let at = get_filled(heap, from);
                // SAFETY: the test owns it.
                let at = unsafe {
                    match heap.shrink_elsewhere(at, to, 16) {
                        Some(new) => new.as_ptr(),
                        None if heap.resize_in_place(at, to) => at,
                        None => {
                            let new = get(heap, to, Content::Any);
                            new.copy_from_nonoverlapping(at, from.min(to));
                            free(heap, at);
                            new
                        }
                    }
                };
                assert!(is_filled(at, from.min(to)));
                fill(at, to);
                at
            })
            .collect();
        let held = held_in_ready(heap);
        assert!(held <= most(kept) + frames_for(from), "{from} to {to}: {held} of {kept} frames");
        assert!(all.iter().all(|&at| is_filled(at, to)));
        all.iter().for_each(|&at| free(heap, at));
    }
    for (align, size) in [(2 * MIB, 65_536), (2 * MIB, 700_000)] {
        let heap = heap_of_dense(&[size]);
        let get = |_| heap.allocate(size, align, Content::Any).expect("memory").as_ptr();
        let all: Vec<_> = (0..KEPT).map(get).collect();
        all.iter().for_each(|&at| fill(at, size));
        let (held, kept) = (held_in_ready(heap), KEPT * frames_for(size));
        assert!(held <= most(kept), "{size} at {align}: {held} of {kept} frames");
        assert!(all.iter().all(|&at| at as usize % align == 0 && is_filled(at, size)));
        all.iter().for_each(|&at| free(heap, at));
    }
}

/// A larger size than the one before: its blocks are there when it is asked for again.
#[test]
fn a_larger_size_is_served_from_its_own_blocks() {
    for (before, size) in [(2_000_000, 2_200_000), (1_000_000, 4_300_000), (2_000_000, 3_500_000)] {
        let heap = heap_of_dense(&[before, size]);
        (0..50).for_each(|_| free(heap, get_filled(heap, before)));
        let given_back = || heap.slot().get(Event::GivenBackBytes) as usize;
        (0..20).for_each(|_| free(heap, get_filled(heap, size)));
        let start = given_back();
        (0..200).for_each(|_| free(heap, get_filled(heap, size)));
        let more = given_back() - start;
        assert!(more <= 20 * size, "{size} after {before}: {more} bytes given back");
    }
}
