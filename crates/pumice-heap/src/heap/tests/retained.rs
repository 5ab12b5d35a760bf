//! Pages that stay in free memory: how many there are, and what free memory says of them.

use super::bounds::held_in_demand;
use super::*;
use pumice_frames::frame::BlockState;

const KIB: usize = 1 << 10;

fn unverified() -> &'static Heap {
    new_heap(Topology::one(), 0, u64::MAX, Verify::No)
}

fn touch(at: *mut u8, page: usize) {
    // SAFETY: the callers name pages of memory that they have.
    unsafe { at.add(page * FRAME_SIZE).write(1) };
}

/// With one thread the heap's sums are exact: a sum that is too small lets more stay than may, one that is too large
/// has all of it dropped.
#[test]
fn the_heap_knows_the_pages_of_free_blocks() {
    for kib in [4096, 3000, 2300] {
        let heap = unverified();
        let get = || {
            let at = get(heap, kib * KIB, Content::Any);
            (0..60).for_each(|page| touch(at, page));
            touch(at, kib / 4 - 1);
            at
        };
        for round in 0..6 {
            let held: Vec<_> = (0..100).map(|_| get()).collect();
            held.into_iter().for_each(|at| free(heap, at));
            // It splits a block behind which pages stayed.
            let last = get();
            heap.may_reuse_retained(kib / 4);
            let believed = heap.retained.sums();
            heap.recount_retained();
            assert_eq!(believed, heap.retained.sums(), "{kib} KiB, round {round}");
            free(heap, last);
        }
    }
}

/// Each request touches pages of its own, so that blocks fill up with the pages of others.
#[test]
fn pages_that_are_touched_at_random_stay_within_the_limit() {
    let (runs, kib) = (600, 4096);
    let touched = kib / 4 * 15 / 100;
    let heap = unverified();
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..6 {
        let mut get = || {
            let at = get(heap, kib * KIB, Content::Any);
            (0..touched).for_each(|_| touch(at, random.usize(..kib / 4)));
            at
        };
        let held: Vec<_> = (0..runs).map(|_| get()).collect();
        let there = held_in_demand(heap);
        // A request touches some pages twice. And some pages are expected where there are none, or the other way round.
        let limit = runs * touched * 9 / 8 + runs * touched / 16;
        assert!(there < limit, "round {round}: {there} frames, {limit} at most");
        held.into_iter().for_each(|at| free(heap, at));
    }
}

/// Whether frames of a block that have pages hold zeros.
fn is_zero(heap: &Heap, zone: &PoolZone, block: usize, from: usize) -> bool {
    (from..BLOCK_FRAMES).all(|frame| {
        let at = zone.block_address(block).wrapping_add(frame * FRAME_SIZE);
        heap.resident(zone, at, FRAME_SIZE) == Some(0) || is_zeroed(at, FRAME_SIZE)
    })
}

/// Checks the promises of free blocks: how many said that they have pages up to a frame.
fn check_free(heap: &Heap) -> usize {
    let zone = heap.zones.local(0, ZoneKind::Demand);
    let free_blocks = (0..zone.ledger().grown())
        .map(|block| (block, zone.ledger().block(block)))
        .filter(|(_, word)| word.state() == BlockState::Free);
    let mut ends = 0;
    for (block, word) in free_blocks {
        let from = if word.zeroed() { 0 } else { hints::pages_end(word) };
        ends += usize::from(from % BLOCK_FRAMES > 0);
        assert!(is_zero(heap, zone, block, from), "block {block} from {from}: {word:?}");
    }
    ends
}

/// Runs at random, of which the beginning, the end, the middle or some pages are touched: free blocks are right about
/// their pages, also where some were moved, resized, offered, dropped or shared with a child since.
#[test]
fn free_blocks_are_right_about_their_pages() {
    let mut ends = 0;
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed + 77);
        let heap = heap(0, if seed % 3 == 2 { 60 << 20 } else { u64::MAX });
        let mut held: Vec<(*mut u8, usize)> = Vec::new();
        for step in 0..1000 {
            let what = random.u8(..100);
            if held.is_empty() || what < 40 && held.len() < 14 {
                let size = match random.u8(..6) {
                    0 => random.usize(16..500) * FRAME_SIZE,
                    1 => 3000 * KIB,
                    2 => (4 << 20) - FRAME_SIZE,
                    _ => random.usize(2 << 20..7 << 20),
                };
                let content = if random.u8(..3) == 0 { Content::Zero } else { Content::Any };
                if let Some(at) = heap.allocate(size, 16, content) {
                    held.push((at.as_ptr(), size));
                }
            }
            let Some(pick) = (!held.is_empty()).then(|| random.usize(..held.len())) else {
                continue;
            };
            let (at, size) = held[pick];
            let pages = size / FRAME_SIZE;
            match what {
                0..60 => {
                    let (from, to, step) = match random.u8(..16) {
                        0 => (0, pages, 1),
                        1..4 => (pages - pages / 16, pages, 1),
                        4..6 => (0, pages, 37),
                        6..8 => (random.usize(..pages), pages, 16),
                        _ => (0, pages / 16, 1),
                    };
                    (from..to).step_by(step).for_each(|page| touch(at, page));
                }
                60..85 => {
                    free(heap, at);
                    held.swap_remove(pick);
                }
                85..90 => {
                    let new = random.usize(FRAME_SIZE * 16..size * 2);
                    // SAFETY: the memory is this test's.
                    if unsafe { heap.resize_in_place(at, new) } {
                        held[pick].1 = new;
                    }
                }
                90..93 => {
                    let new = size + random.usize(1..size);
                    // SAFETY: as that.
                    if let Some(moved) = unsafe { heap.relocate(at, new) } {
                        held[pick] = (moved.as_ptr(), new);
                    }
                }
                93 => heap.zones.all().for_each(|zone| zone.ledger().advance_epoch()),
                94..96 => {
                    heap.decay();
                }
                96..98 => {
                    Source::offer(heap);
                }
                98 => held.drain(..).for_each(|(at, _)| free(heap, at)),
                _ => {}
            }
            if step % 25 == 0 {
                ends += check_free(heap);
            }
        }
        held.drain(..).for_each(|(at, _)| free(heap, at));
        ends += check_free(heap);
    }
    assert!(ends > 100, "{ends} blocks with pages up to a frame");
}
