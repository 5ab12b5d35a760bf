//! Tests of how much stays, and of how much is faulted in, where little of much memory is touched: counts, not times.

use super::*;

/// Frames of the demand zone that are resident.
pub(super) fn held_in_demand(heap: &'static Heap) -> usize {
    let zone = heap.zones.local(0, ZoneKind::Demand);
    let held = |block| heap.resident(zone, zone.block_address(block), BLOCK_SIZE).expect("mincore");
    (0..zone.ledger().grown()).map(held).sum()
}

/// Page faults of this thread so far.
pub(super) fn faults() -> i64 {
    // SAFETY: all of a `rusage` may be zero, and the kernel fills it.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `usage` is one.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt
}

/// Gets memory and writes to pages of it, at random.
fn get_and_touch(heap: &'static Heap, size: usize, pages: usize, content: Content) -> *mut u8 {
    let at = get(heap, size, content);
    for _ in 0..pages {
        let page = fastrand::usize(..size / FRAME_SIZE);
        // SAFETY: within the memory.
        unsafe { at.add(page * FRAME_SIZE).write(1) };
    }
    at
}

/// Replaces one of these after the other.
fn replace(heap: &'static Heap, held: &mut [*mut u8], times: usize, new: impl Fn() -> *mut u8) {
    for _ in 0..times {
        let place = &mut held[fastrand::usize(..held.len())];
        free(heap, *place);
        *place = new();
    }
}

/// A request leaves the pages of those before it under its own, and its own under those after it.
#[test]
fn pages_under_live_requests_are_bounded_as_those_in_free_blocks_are() {
    fastrand::seed(1);
    let heap = heap(0, u64::MAX);
    let new = || get_and_touch(heap, 40 << 20, 200, Content::Any);
    let mut held: Vec<_> = (0..16).map(|_| new()).collect();
    replace(heap, &mut held, 1500, new);
    let (there, live) = (held_in_demand(heap), 16 * 200);
    assert!(there <= live + live / 8 + (40 << 20) / FRAME_SIZE, "{there} frames, {live} touched");
    held.iter().for_each(|&at| free(heap, at));
    decay_all(heap);
    assert_eq!(held_in_demand(heap), 0);
}

/// Helpers are woken by it: else it never decays.
#[test]
fn memory_that_stays_is_told_of_as_freed() {
    let heap = heap(0, u64::MAX);
    let size = 40 << 20;
    let get_and_free = || {
        let before = heap.freed_frames.load(Ordering::Relaxed);
        free(heap, get_and_touch(heap, size, 1000, Content::Any));
        heap.freed_frames.load(Ordering::Relaxed) - before
    };
    let told = (0..8).map(|_| get_and_free()).filter(|&frames| frames == size / FRAME_SIZE);
    assert!(told.count() >= 4);
    assert!(held_in_demand(heap) > 0);
}

/// Runs within a block, tails, and both after an attribute was set on them.
#[test]
fn zeros_of_which_little_is_touched_are_not_written() {
    fastrand::seed(2);
    let heap = new_heap(Topology::one(), 0, u64::MAX, Verify::No);
    for size in [512 << 10, 1 << 20, 3 << 20, 42_000 << 10] {
        for is_guarded in [false, true] {
            let new = || {
                let at = get_and_touch(heap, size, 2, Content::Zero);
                if is_guarded {
                    heap.note(at as usize, FRAME_SIZE, Effect::Taints);
                }
                at
            };
            let mut held: Vec<_> = (0..32).map(|_| new()).collect();
            replace(heap, &mut held, 100, new);
            let before = faults();
            replace(heap, &mut held, 300, new);
            // Two pages, and sometimes a page table.
            let faults = faults() - before;
            assert!(faults < 300 * 6, "{faults} faults, {size} bytes, guarded {is_guarded}");
            held.iter().for_each(|&at| free(heap, at));
        }
    }
}

/// As a vector that grows in small steps and shrinks in others, again and again.
#[test]
fn growing_in_place_keeps_to_the_limit() {
    let heap = heap(0, u64::MAX);
    let (step, most) = (64 << 10, 200 << 20);
    let mut held = Vec::new();
    for _ in 0..5 {
        let (mut at, mut size) = (get(heap, step, Content::Any), step);
        fill(at, size);
        while size < most {
            // SAFETY: the heap's, and used at its new address only.
            let is_longer = unsafe { heap.resize_in_place(at, size + step) };
            if !is_longer {
                // SAFETY: as above.
                let moved = unsafe { heap.relocate(at, size + step) }.map(|at| at.as_ptr());
                let new = moved.unwrap_or_else(|| get(heap, size + step, Content::Any));
                if moved.is_none() {
                    free(heap, at);
                }
                at = new;
            }
            fill(at.wrapping_add(size), step);
            size += step;
        }
        held.push(heap.held_blocks() * (BLOCK_SIZE >> 20));
        while size > 3 * step {
            size -= 3 * step;
            // SAFETY: as above.
            assert!(unsafe { heap.resize_in_place(at, size) });
        }
        free(heap, at);
    }
    assert!(held.iter().all(|&mib| mib <= 240), "{held:?} MiB");
}

/// To look whether zeros are zeros faults pages in.
fn unverified() -> &'static Heap {
    new_heap(Topology::one(), 0, u64::MAX, Verify::No)
}

/// Writes to the first pages of a new request.
fn get_and_fill(heap: &'static Heap, size: usize, pages: usize, content: Content) -> *mut u8 {
    let at = get(heap, size, content);
    // SAFETY: within the memory.
    (0..pages).for_each(|page| unsafe { at.add(page * FRAME_SIZE).write(1) });
    at
}

/// A tail takes a block in which something may have stayed, and leaves its own pages there.
#[test]
fn pages_of_tails_are_bounded_too() {
    fastrand::seed(3);
    for kib in [3900, 6000] {
        let heap = unverified();
        let new = || {
            let pages = if fastrand::u8(..3) == 0 { kib / 4 * 3 / 100 } else { 20 };
            get_and_touch(heap, kib << 10, pages, Content::Any)
        };
        let mut held: Vec<_> = (0..64).map(|_| new()).collect();
        replace(heap, &mut held, 3000, new);
        let (there, live) = (held_in_demand(heap), 64 * 40);
        assert!(there <= live + (44 << 20) / FRAME_SIZE, "{there} frames, {kib} KiB");
    }
}

/// The first fifth: more of the whole block than of the run.
#[test]
fn a_beginning_that_is_touched_stays_for_the_next() {
    let heap = unverified();
    let (kib, pages) = (3000, 150);
    let mut held: Vec<_> =
        (0..64).map(|_| get_and_fill(heap, kib << 10, pages, Content::Any)).collect();
    let turn = |held: &mut [*mut u8]| {
        for place in held {
            let new = get_and_fill(heap, kib << 10, pages, Content::Any);
            free(heap, core::mem::replace(place, new));
        }
    };
    (0..10).for_each(|_| turn(&mut held));
    let before = faults();
    (0..20).for_each(|_| turn(&mut held));
    let faults = faults() - before;
    assert!(faults < 20 * 64 * 15, "{faults} faults");
    let there = held_in_demand(heap);
    assert!(there < 64 * pages + (34 << 20) / FRAME_SIZE, "{there} frames");
}

/// Faults cost more than to clear memory that is there.
#[test]
fn zeros_of_which_a_fifth_is_touched_are_written() {
    for kib in [64, 128, 1024] {
        let heap = unverified();
        let turn = || {
            let pages = kib / 4 / 5;
            free(heap, get_and_fill(heap, kib << 10, pages, Content::Zero));
        };
        (0..100).for_each(|_| turn());
        let before = faults();
        (0..500).for_each(|_| turn());
        let faults = faults() - before;
        assert!(faults < 500 * kib as i64 / 40, "{faults} faults, {kib} KiB");
    }
}

/// Requests of a size that take turns, one to be filled and some of which a page is touched.
#[test]
fn a_period_of_a_program_is_not_taken_for_all_of_it() {
    for (kib, period, content) in
        [(1000, 2, Content::Zero), (20_000, 2, Content::Any), (300, 4, Content::Zero)]
    {
        let heap = unverified();
        let turn = |number: usize| {
            let pages = if number % period == 1 { kib / 4 } else { 1 };
            free(heap, get_and_fill(heap, kib << 10, pages, content));
        };
        (0..1000).for_each(turn);
        let before = faults();
        (0..1000).for_each(turn);
        let (faults, all) = (faults() - before, 1000 / period * kib / 4);
        assert!(faults < all as i64 / 2, "{faults} faults, {kib} KiB, one of {period}");
    }
}

/// Blocks in parts that nobody has put together yet are free, too.
#[test]
fn free_parts_do_not_count_as_in_use() {
    let heap = unverified();
    let all = 64 << 20;
    for size in [100 << 10, 100 << 10, all, all, all] {
        let held: Vec<_> = (0..all / size)
            .map(|_| get_and_fill(heap, size, size / FRAME_SIZE, Content::Any))
            .collect();
        held.iter().for_each(|&at| free(heap, at));
    }
    let held = heap.held_blocks() * BLOCK_SIZE;
    assert!(held <= all + all / 8 + 4 * BLOCK_SIZE, "{} MiB", held >> 20);
}

/// A large request of a size that is new gets what others have left.
#[test]
fn what_is_there_is_for_sizes_that_are_not_known_too() {
    let heap = unverified();
    for _ in 0..4 {
        free(heap, get_and_fill(heap, 256 << 20, (256 << 20) / FRAME_SIZE, Content::Any));
    }
    let before = faults();
    let held: Vec<_> = (0..8)
        .map(|_| get_and_fill(heap, 30 << 20, (30 << 20) / FRAME_SIZE, Content::Any))
        .collect();
    let faults = faults() - before;
    // Each is looked at, by one block.
    assert!(faults < 9 * BLOCK_FRAMES as i64, "{faults} faults");
    held.iter().for_each(|&at| free(heap, at));
}

/// A cache of buffers of many sizes, replaced one by one at random: there are always rests beside them, whatever goes
/// back.
#[test]
fn what_is_replaced_at_random_is_seldom_faulted_in_again() {
    fastrand::seed(4);
    let heap = unverified();
    let new = || {
        let size = fastrand::usize(64 << 10..512 << 10);
        let at = get(heap, size, Content::Any);
        fill(at, size);
        at
    };
    let mut held: Vec<_> = (0..300).map(|_| new()).collect();
    replace(heap, &mut held, 3000, new);
    let (before, started) = (faults(), std::time::Instant::now());
    replace(heap, &mut held, 3000, new);
    let faults = faults() - before;
    // In an eighth of a second no more goes back than rests may come to: a sixteenth of the memory in use, and 8 MiB.
    let eighths = started.elapsed().as_millis() as i64 / 125 + 1;
    let most_rests = (300 * (288 << 10) / 16 + (8 << 20)) / FRAME_SIZE as i64;
    assert!(faults < 3000 * 8 + eighths * most_rests, "{faults} faults");
    held.iter().for_each(|&at| free(heap, at));
}

/// Buffers a little shorter than whole blocks, of which a page here and there is touched.
#[test]
fn pages_of_tails_stay() {
    let heap = unverified();
    let size = (4 << 20) - FRAME_SIZE;
    let turn = || {
        let at = get(heap, size, Content::Any);
        // SAFETY: within the memory.
        (0..size).step_by(5 * FRAME_SIZE).for_each(|byte| unsafe { at.add(byte).write(1) });
        free(heap, at);
    };
    (0..100).for_each(|_| turn());
    let before = faults();
    (0..200).for_each(|_| turn());
    let faults = faults() - before;
    assert!(faults < 200 * 10, "{faults} faults");
}

/// Behind whole blocks whose pages stay there may be pages as well, and next to them memory that has none.
#[test]
fn zeros_beside_pages_that_stay_are_zeros() {
    fastrand::seed(5);
    let heap = heap(0, u64::MAX);
    let new = || {
        let size = match fastrand::u8(..4) {
            // Within a block: it may come to lie behind a tail.
            0 => fastrand::usize(16..400) * FRAME_SIZE,
            _ => fastrand::usize(2 << 20..7 << 20),
        };
        // The heap looks whether all of it is zero.
        let content = if fastrand::u8(..3) == 0 { Content::Zero } else { Content::Any };
        let at = get(heap, size, content);
        // The beginning, the end, a page here and there, or all.
        let (from, to, step) = match fastrand::u8(..16) {
            0 => (0, size, 1),
            1..4 => (size - size / 16, size, FRAME_SIZE),
            4..6 => (0, size, 37 * FRAME_SIZE),
            _ => (0, size / 16, FRAME_SIZE),
        };
        for byte in (from..to).step_by(step) {
            // SAFETY: within the memory.
            unsafe { at.add(byte).write(1) };
        }
        at
    };
    let mut held: Vec<_> = (0..12).map(|_| new()).collect();
    replace(heap, &mut held, 4000, new);
    held.iter().for_each(|&at| free(heap, at));
}

/// Runs of which the beginning is touched: the kernel is seldom asked for what lies behind it.
#[test]
fn tails_that_are_hardly_touched_are_seldom_looked_at() {
    let heap = unverified();
    let turn = || free(heap, get_and_fill(heap, 3000 << 10, 40, Content::Any));
    (0..300).for_each(|_| turn());
    let (looks, faults_before) = (LOOKS.get(), faults());
    (0..1000).for_each(|_| turn());
    let (looks, faults) = (LOOKS.get() - looks, faults() - faults_before);
    assert!(looks < 200 && faults < 2000, "{looks} looks, {faults} faults");
}
