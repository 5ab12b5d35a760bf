//! Tests of which memory stays, which goes, and which sizes become known.

use super::bounds::{faults, held_in_demand};
use super::*;
use pumice_frames::frame::ledger::Want;

/// Touches one page in `step`.
fn touch(at: *mut u8, size: usize, step: usize) {
    for offset in (0..size).step_by(step * FRAME_SIZE) {
        // SAFETY: the caller has just allocated `size` bytes there.
        unsafe { at.add(offset).write(1) };
    }
}

/// Pages of an allocation that are resident.
fn resident(heap: &Heap, at: *mut u8, size: usize) -> usize {
    let zone = heap.zone_of(at).expect("the heap's");
    heap.resident(zone, at, size).expect("mincore")
}

#[test]
fn advice_on_a_mapping_does_not_hide_what_was_touched() {
    let heap = heap(0, u64::MAX);
    let size = 16 << 20;
    for effect in [Effect::Taints, Effect::AsksForHuge, Effect::Taints] {
        let at = get(heap, size, Content::Any);
        // As NumPy does with every large array.
        heap.note(at as usize + FRAME_SIZE, size - FRAME_SIZE, effect);
        fill(at, size);
        free(heap, at);
    }
    let at = get(heap, size, Content::Any);
    assert!(heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready, "its class is dense");
}

#[test]
fn pages_that_turn_out_to_be_of_use_move_to_the_ready_zone() {
    let heap = heap(0, u64::MAX);
    let size = (32 << 20) + 5 * FRAME_SIZE;
    let at = get(heap, size, Content::Any);
    assert!(heap.zone_of(at).expect("the heap's").kind != ZoneKind::Ready);
    heap.note(at as usize + FRAME_SIZE, size / 2, Effect::AsksForHuge);
    fill(at, size);
    free(heap, at);
    assert!(heap.slot().pool_bytes() >= 32 << 20, "they stay");
    let at = get(heap, size, Content::Zero);
    assert!(heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready, "its class is dense");
    let there = resident(heap, at, size) * FRAME_SIZE;
    assert!(there >= 30 << 20, "all but what is looked at, {} MiB", there >> 20);
    assert!(is_zeroed(at, size));
    free(heap, at);
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}

/// Requests for zeros of which one in five is filled find its pages, and find them cleared.
#[test]
fn zeros_that_are_now_and_then_filled_stay_for_the_next() {
    let heap = heap(0, u64::MAX);
    let size = (4 << 20) + 3 * FRAME_SIZE;
    let (mut before, mut after) = (0, 0);
    for turn in 0..600 {
        if turn == 100 {
            before = faults();
        }
        if turn == 500 {
            after = faults();
        }
        let at = get(heap, size, Content::Zero);
        // To look has all of it faulted in.
        assert!((100..500).contains(&turn) || is_zeroed(at, size), "turn {turn}");
        match turn % 5 {
            0 => fill(at, size),
            1 => touch(at, size, 3),
            // SAFETY: allocated a moment ago.
            _ => unsafe { at.add(size - 1).write(1) },
        }
        free(heap, at);
    }
    let fills = (80 * size / FRAME_SIZE) as i64;
    assert!(after - before < fills / 4, "{} of {fills}", after - before);
}

/// Many runs within a block at a time, a few of whose pages are touched, at random: each has its own pages alone.
#[test]
fn zeros_within_a_block_do_not_gather_pages() {
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    let (size, pages) = (1 << 20, 256);
    let mut random = fastrand::Rng::with_seed(5);
    let mut some = || {
        let at = get(heap, size, Content::Zero);
        for _ in 0..12 {
            // SAFETY: allocated a moment ago.
            unsafe { at.add(random.usize(..pages) * FRAME_SIZE).write(1) };
        }
        at
    };
    let mut held: Vec<_> = (0..100).map(|_| some()).collect();
    for nth in 0..2000 {
        free(heap, held[nth % 100]);
        held[nth % 100] = some();
    }
    let there: usize = held.iter().map(|&at| resident(heap, at, size)).sum();
    assert!(there < 100 * 12 * 2, "{there} pages");
    held.into_iter().for_each(|at| free(heap, at));
}

#[test]
fn what_is_touched_here_and_there_stays_for_the_next() {
    // To look for zeros has all of it faulted in.
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    let size = 32 << 20;
    let get_and_free = |content, step| {
        let at = get(heap, size, content);
        let before = resident(heap, at, size);
        touch(at, size, step);
        free(heap, at);
        before
    };
    for _ in 0..4 {
        get_and_free(Content::Any, 16);
    }
    assert_eq!(get_and_free(Content::Any, 16), size / FRAME_SIZE / 16, "the pages are there");
    assert_eq!(
        get_and_free(Content::Zero, 16),
        0,
        "zeros begin with nothing: pages here and there go"
    );
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0, "and it does not stay for long");
    assert!(!heap.retained.is_any());
}

#[test]
fn little_stays_of_what_is_touched_here_and_there() {
    let heap = heap(0, u64::MAX);
    let size = 32 << 20;
    for count in [2, 10, 10, 10, 10] {
        // All at once, so that none can use another's pages.
        let all: Vec<_> = (0..count).map(|_| get(heap, size, Content::Any)).collect();
        all.iter().for_each(|&at| touch(at, size, 5));
        all.iter().for_each(|&at| free(heap, at));
    }
    let in_use = 10 * size / FRAME_SIZE / 5;
    let held = held_in_demand(heap);
    assert!(held > in_use / 2 && held <= in_use + in_use / 4, "{held} frames, {in_use} in use");
    // Zeros can't use the pages that are there: they go, as much as there would be too much.
    let all: Vec<_> = (0..8).map(|_| get(heap, size + size / 2, Content::Zero)).collect();
    for &at in &all {
        touch(at, size + size / 2, 5);
    }
    all.iter().for_each(|&at| free(heap, at));
    let all: Vec<_> = (0..8).map(|_| get(heap, size + size / 2, Content::Zero)).collect();
    all.iter().for_each(|&at| touch(at, size + size / 2, 5));
    let (held, in_use) = (held_in_demand(heap), 8 * 3 * size / 2 / FRAME_SIZE / 5);
    assert!(held <= in_use + (40 << 20) / FRAME_SIZE, "{held} frames, {in_use} in use");
    all.iter().for_each(|&at| free(heap, at));
}

/// Six runs of 64 KiB to 64 MiB at a time, of which every sixteenth page is written, or pages at random.
fn sparse_requests(heap: &'static Heap, requests: usize, is_random: bool) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut held: Vec<*mut u8> = Vec::new();
    for _ in 0..requests {
        if held.len() == 6 {
            free(heap, held.swap_remove(random.usize(..6)));
        }
        let base = (64 << 10) << random.usize(..10);
        let size = base + random.usize(..base);
        let at = get(heap, size, Content::Any);
        let skip = if is_random { random.usize(..16) * FRAME_SIZE } else { 0 };
        touch(at.wrapping_add(skip), size - skip, 16);
        held.push(at);
    }
    held.into_iter().for_each(|at| free(heap, at));
}

/// Calls, not time: memory touched here and there is seldom counted, and seldom faulted in.
#[test]
fn what_is_touched_here_and_there_is_seldom_counted() {
    let heap = heap(0, u64::MAX);
    sparse_requests(heap, 400, false);
    let (looks, faults) = (LOOKS.get(), faults());
    sparse_requests(heap, 1000, false);
    let (looks, faults) = (LOOKS.get() - looks, bounds::faults() - faults);
    assert!(looks < 500, "{looks} looks for 1000 requests");
    // 150 pages are touched for each.
    assert!(faults < 30_000, "{faults} faults for 1000 requests");
}

/// Where each request touches other pages, more stay than its class touches, but not more than may.
#[test]
fn pages_touched_at_random_are_counted_in_time() {
    let heap = heap(0, u64::MAX);
    for _ in 0..10 {
        sparse_requests(heap, 100, true);
        let held = held_in_demand(heap);
        assert!(held <= (64 << 20) / FRAME_SIZE, "{held} frames");
    }
}

#[test]
fn free_memory_does_not_add_to_the_most_there_was() {
    let heap = heap(0, u64::MAX);
    let sizes: Vec<usize> = (1..24).map(|number| (number * 3 + 2) << 20).collect();
    // Known to be dense, all of them: more than are served on a guess.
    for &size in &sizes {
        for _ in 0..8 {
            let at = get(heap, size, Content::Any);
            fill(at, size);
            free(heap, at);
        }
    }
    decay_all(heap);
    let (mut in_use, mut most) = (0, 0);
    let mut held: Vec<(*mut u8, usize)> = Vec::new();
    let mut peak = 0;
    for round in 0..300_usize {
        if held.len() == 6 {
            let (at, size) = held.swap_remove(round * 7 % 6);
            free(heap, at);
            in_use -= size;
        }
        let size = sizes[round * 11 % sizes.len()];
        let at = get(heap, size, Content::Any);
        touch(at, size, 1);
        held.push((at, size));
        in_use += size;
        most = most.max(in_use);
        peak = peak.max(heap.slot().pool_bytes() as usize);
    }
    // Each has a block at its end that is not all its own.
    let allowed = most + most / 32 + (6 + 2) * BLOCK_SIZE;
    assert!(peak <= allowed, "{} MiB held, {} in use", peak >> 20, most >> 20);
    assert!(heap.slot().get(Event::Hits) > 100, "and it is reused");
}

#[test]
fn what_has_not_been_touched_is_not_counted_as_there() {
    let heap = heap(0, u64::MAX);
    let size = 32 << 20;
    let zone = heap.zones.local(0, ZoneKind::Ready);
    let held = || -> usize {
        let frames = |block| heap.resident(zone, zone.block_address(block), BLOCK_SIZE);
        (0..zone.ledger().grown()).map(|block| frames(block).expect("mincore") * FRAME_SIZE).sum()
    };
    let touch_and_free = |at| {
        fill(at, size);
        free(heap, at);
    };
    (0..3).for_each(|_| touch_and_free(get(heap, size, Content::Zero)));
    touch_and_free(get(heap, size, Content::Zero));
    assert_eq!(held(), size, "one at a time: it stays");
    // Each is got before the last one goes, and touched after.
    let mut last = get(heap, size, Content::Zero);
    fill(last, size);
    for _ in 0..4 {
        let next = get(heap, size, Content::Zero);
        free(heap, last);
        fill(next, size);
        assert!(held() <= size + (2 << 20), "{} MiB", held() >> 20);
        last = next;
    }
    // Touched before the last one goes: two are needed, and stay.
    for round in 0..4 {
        let next = get(heap, size, Content::Any);
        // A block is looked at.
        let there = resident(heap, next, size) + BLOCK_FRAMES;
        assert!(round < 2 || there >= size / FRAME_SIZE, "{there}");
        fill(next, size);
        free(heap, last);
        last = next;
    }
    assert_eq!(held(), 2 * size);
}

#[test]
fn what_is_likely_to_be_written_is_served_from_ready_memory_at_once() {
    let heap = heap(0, u64::MAX);
    for _ in 0..3 {
        let at = get(heap, 20 << 20, Content::Any);
        fill(at, 20 << 20);
        free(heap, at);
    }
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    assert!(is_ready(get(heap, 25 << 20, Content::Any)), "a size like it");
    assert!(!is_ready(get(heap, 200 << 20, Content::Any)), "one that is not");
    scrub_all(heap);
    assert!(!is_ready(get(heap, 29 << 20, Content::Zero)), "zeros, of which there are too few");
}

#[test]
fn the_first_long_requests_come_in_huge_pages_as_far_as_the_budget_goes() {
    let heap = heap(0, u64::MAX);
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let short = get(heap, 2 << 20, Content::Any);
    let zeros = get(heap, 6 << 20, Content::Zero);
    assert!(
        !is_ready(short) && !is_ready(zeros),
        "it could not be looked at, it may be left as it is"
    );
    let first = get(heap, 16 << 20, Content::Any);
    assert!(is_ready(first));
    let second = get(heap, 10 << 20, Content::Any);
    assert!(!is_ready(second), "both may be left as they are");
    // It was looked at.
    free(heap, first);
    assert!(!is_ready(get(heap, 16 << 20, Content::Any)));
}

#[test]
fn a_table_that_doubles_is_served_from_ready_memory_before_it_is_known() {
    let heap = heap(0, u64::MAX);
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let mut table = get(heap, 2 << 20, Content::Zero);
    for size in [4, 8, 16, 32, 64].map(|mib| mib << 20) {
        fill(table, size / 2);
        let larger = get(heap, size, Content::Zero);
        assert_eq!(is_ready(larger), size > 8 << 20, "{size}");
        assert!(is_zeroed(larger, size));
        free(heap, table);
        table = larger;
    }
    let sparse = get(heap, 1 << 30, Content::Zero);
    assert!(!is_ready(sparse), "one that is much larger may be of another kind");
    free(heap, sparse);
    free(heap, table);
}

#[test]
fn small_runs_that_are_all_free_go_back_too() {
    let heap = heap(0, u64::MAX);
    let held: Vec<_> = (0..3000)
        .map(|_| {
            let at = get(heap, 70_000, Content::Any);
            fill(at, 70_000);
            at
        })
        .collect();
    held.into_iter().for_each(|at| free(heap, at));
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}

#[test]
fn what_was_freed_in_parts_and_cleared_goes_back_too() {
    let heap = heap(0, u64::MAX);
    let zone = heap.zones.local(0, ZoneKind::Ready);
    zone.grow(8).expect("room");
    let held: Vec<_> = (0..100)
        .map(|_| {
            let run = zone.ledger().get_run(0, 18, 1, Want::Dirty).expect("there");
            let at = zone.address(run.range.start);
            fill(at, 70_000);
            at
        })
        .collect();
    held.into_iter().for_each(|at| free(heap, at));
    zone.ledger().join_all_aside();
    scrub_all(heap);
    let ready = |&block: &usize| zone.ledger().block(block).ready();
    assert!((0..zone.ledger().grown()).any(|block| ready(&block)), "what is cleared is there");
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
    let held: usize = (0..zone.ledger().grown())
        .map(|block| heap.resident(zone, zone.block_address(block), BLOCK_SIZE).expect("mincore"))
        .sum();
    assert_eq!(held, 0);
}

#[test]
fn memory_that_is_held_and_hardly_touched_comes_in_small_pages() {
    for size in [3 << 20, 8 << 20, 40 << 20] {
        let heap = heap(0, u64::MAX);
        for _ in 0..20 {
            let at = get(heap, size, Content::Any);
            fill(at, size);
            free(heap, at);
        }
        let held: Vec<_> = (0..100).map(|_| get(heap, size, Content::Any)).collect();
        held.iter().for_each(|&at| touch(at, 1, 1));
        let pages: usize = held.iter().map(|&at| resident(heap, at, size)).sum();
        // Memory that was there, and some huge pages. One is touched now and then to know its price.
        assert!(pages < 2 * size / FRAME_SIZE + 16 * BLOCK_FRAMES, "{pages} of {size} bytes");
        held.into_iter().for_each(|at| free(heap, at));
    }
}

#[test]
fn a_class_is_known_while_its_second_sample_is_in_use() {
    let heap = heap(0, u64::MAX);
    let size = 3 << 20;
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let new = || {
        let at = get(heap, size, Content::Any);
        fill(at, size);
        at
    };
    let (first, second) = (new(), new());
    free(heap, first);
    let (before, third) = (faults(), new());
    assert!(is_ready(third), "it is dense");
    assert!(faults() - before < 20, "a huge page, or pages that were there, and a tail");
    free(heap, second);
    free(heap, third);
}

#[test]
fn what_is_filled_late_is_ready_all_the_same_in_the_end() {
    for size in [3 << 20, 8 << 20] {
        let heap = heap(0, u64::MAX);
        let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
        let mut ready = 0;
        for _ in 0..8 {
            let all: Vec<_> = (0..30).map(|_| get(heap, size, Content::Any)).collect();
            ready = all.iter().filter(|&&at| is_ready(at)).count();
            all.iter().for_each(|&at| fill(at, size));
            all.into_iter().for_each(|at| free(heap, at));
        }
        assert!(ready > 27, "{ready} of 30 of {size} bytes");
    }
}

#[test]
fn what_is_filled_at_once_is_new_if_none_is_there() {
    let heap = heap(0, u64::MAX);
    let is_ready = |at: *mut u8| heap.zone_of(at).expect("the heap's").kind == ZoneKind::Ready;
    let take = |_| {
        let at = get(heap, 3 << 20, Content::Any);
        fill(at, 3 << 20);
        at
    };
    (0..5).for_each(|nth| free(heap, take(nth)));
    let held: Vec<_> = (0..130).map(take).collect();
    let ready = held.iter().filter(|&&at| is_ready(at)).count();
    // All but one in 2, 4 and so on, and what the class is looked at for.
    assert!(ready > 110, "{ready} of 130");
    held.into_iter().for_each(|at| free(heap, at));
}
