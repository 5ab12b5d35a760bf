//! The heap against real memory.

mod bounds;
mod engines;
mod full;
mod growth;
mod held;
mod nodes;
mod policy;
mod price;
mod realloc;
mod rests;
mod retained;
mod retire;
mod taint;

use super::hints::WithHints;
use super::*;
use crate::scrub::{Left, Need, Outcome, Source, DECAY_PASSES};

fn heap(ready_bytes: usize, pool_max: u64) -> &'static Heap {
    heap_on(Topology::one(), ready_bytes, pool_max)
}

fn heap_on(topology: Topology, ready_bytes: usize, pool_max: u64) -> &'static Heap {
    new_heap(topology, ready_bytes, pool_max, Verify::Yes)
}

/// Whether to look at all memory that is said to be zero, which takes long where it is much.
#[derive(PartialEq)]
enum Verify {
    Yes,
    No,
}

fn new_heap(
    topology: Topology,
    ready_bytes: usize,
    pool_max: u64,
    verify: Verify,
) -> &'static Heap {
    let tree = Tree::private(pool_max, ready_bytes as u64).expect("memory");
    let slot = tree.attach(std::process::id()).expect("a slot");
    let clearer = Clearer::detect();
    let verify = verify == Verify::Yes;
    let config = HeapConfig {
        tree,
        slot,
        verify,
        clearer,
        threads: false,
        topology,
        home: Affinity::UNKNOWN,
        discard: None,
    };
    let heap: &Heap = Box::leak(Box::new(Heap::new(config).expect("address space")));
    heap.populate_ahead();
    heap
}

/// Scrubd's work, done at once.
fn scrub_all(heap: &'static Heap) {
    while heap.age(Order::new(4).expect("small")) == Left::More {
        let mut any = false;
        while let Some(claim) = heap.claim(Order::new(4).expect("small")) {
            // SAFETY: the claim is ours.
            unsafe { claim.at.write_bytes(0, claim.len) };
            heap.finish(claim, Outcome::Zeroed);
            any = true;
        }
        if !any {
            break;
        }
    }
}

use pumice_frames::addr::{Order, BLOCK_SIZE};

std::thread_local! {
    /// Calls of `mincore` by this thread.
    pub(super) static LOOKS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    /// Rests that this thread has trimmed, or tried to.
    pub(super) static TRIMS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

std::thread_local! {
    /// The times that this thread's next touches of new blocks are said to take; the real ones when there is none.
    static TIMES_NS: core::cell::RefCell<Vec<u64>> = const { core::cell::RefCell::new(Vec::new()) };
}

pub(super) fn next_time_ns() -> Option<u64> {
    TIMES_NS.with_borrow_mut(|times| (!times.is_empty()).then(|| times.remove(0)))
}

fn get(heap: &'static Heap, size: usize, content: Content) -> *mut u8 {
    heap.allocate(size, 16, content).expect("memory").as_ptr()
}

fn fill(at: *mut u8, size: usize) {
    // SAFETY: the caller has just allocated `size` bytes there.
    unsafe { at.write_bytes(0xa5, size) };
}

fn free(heap: &'static Heap, at: *mut u8) {
    // SAFETY: the tests use nothing after freeing it.
    unsafe { heap.free(at) }.expect("allocated");
}

fn is_zeroed(at: *mut u8, size: usize) -> bool {
    // SAFETY: the caller has just allocated `size` bytes there.
    unsafe { pumice_frames::clear::is_zero(at, size) }
}

const SIZES: [usize; 7] =
    [64 << 10, 100_000, (1 << 20) + 5, 2 << 20, 3_000_000, (8 << 20) + 16, 33 << 20];

/// Passes enough for all that is free to be given back.
/// Size of a class that the tests make dense.
const DENSE: usize = 8 << 20;

/// Teaches the heap that requests of this size are written to.
fn make_dense(heap: &'static Heap, size: usize) {
    for _ in 0..2 {
        let at = get(heap, size, Content::Any);
        fill(at, size);
        free(heap, at);
    }
}

fn decay_all(heap: &'static Heap) {
    for _ in 0..DECAY_PASSES + 2 {
        heap.decay();
    }
}

#[test]
fn zero_means_zero_however_often_it_goes_round() {
    let heap = heap(0, u64::MAX);
    for round in 0..5 {
        for size in SIZES {
            let at = get(heap, size, Content::Zero);
            assert!(is_zeroed(at, size), "{size} in round {round}");
            assert!(heap.usable_size(at) >= size);
            assert!(heap.usable_size(at) - size < FRAME_SIZE, "under one frame is wasted");
            fill(at, size);
            free(heap, at);
            // SAFETY: the heap must notice.
            assert!(unsafe { heap.free(at) }.is_err(), "a double free");
        }
        if round % 2 == 1 {
            scrub_all(heap);
        }
        heap.decay();
    }
    assert!(heap.slot().get(Event::HotClearedBytes) > 0);
}

#[test]
fn dense_classes_come_to_be_served_from_ready_memory() {
    let heap = heap(0, u64::MAX);
    let size = 16 << 20;
    for _ in 0..6 {
        let at = get(heap, size, Content::Zero);
        fill(at, size);
        free(heap, at);
        scrub_all(heap);
    }
    let hits = heap.slot().get(Event::Hits);
    assert!((1..=5).contains(&hits), "{hits} hits");
    assert!(heap.slot().get(Event::Ozfod) >= (size / FRAME_SIZE) as u64);
}

#[test]
fn sparse_classes_hold_no_memory() {
    let heap = heap(0, u64::MAX);
    let size = 64 << 20;
    for _ in 0..20 {
        let at = get(heap, size, Content::Zero);
        fill(at, 1);
        free(heap, at);
    }
    assert_eq!(heap.slot().pool_bytes(), 0);
    assert_eq!(heap.slot().get(Event::Hits), 0);
}

#[test]
fn ready_memory_is_there_for_the_first_request() {
    let heap = heap(64 << 20, u64::MAX);
    let small = get(heap, 4096, Content::Any);
    // The keeper's work, done at once.
    while heap.populate() == Left::More {}
    assert_eq!(heap.ready_blocks().1, 0);
    let at = get(heap, 32 << 20, Content::Zero);
    assert_eq!(heap.slot().get(Event::Hits), 1);
    free(heap, at);
    free(heap, small);
    decay_all(heap);
    assert!(heap.slot().pool_bytes() >= 64 << 20, "--ready stays");
}

#[test]
fn decay_gives_everything_back() {
    let heap = heap(0, u64::MAX);
    for _ in 0..4 {
        let all: Vec<_> = SIZES.iter().map(|&size| (get(heap, size, Content::Any), size)).collect();
        for (at, size) in all {
            fill(at, size);
            free(heap, at);
        }
    }
    assert!(heap.slot().pool_bytes() > 0);
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
    assert_eq!(heap.decay(), Left::Nothing);
}

#[test]
fn the_limit_passes_requests_on_and_nothing_is_lost() {
    let heap = heap(0, 16 << 20);
    let one = get(heap, 10 << 20, Content::Any);
    assert!(heap.allocate(10 << 20, 16, Content::Any).is_none());
    assert_eq!(heap.slot().get(Event::PassedOn), 1);
    free(heap, one);
    let again = get(heap, 10 << 20, Content::Any);
    free(heap, again);
}

#[test]
fn alignment() {
    let heap = heap(0, u64::MAX);
    for shift in 4..25 {
        let align = 1usize << shift;
        for size in [65_536, 300_000, 5 << 20] {
            match heap.allocate(size, align, Content::Any) {
                Some(at) => {
                    assert_eq!(at.as_ptr() as usize % align, 0);
                    free(heap, at.as_ptr());
                }
                None => assert!(align > BLOCK_SIZE && size < BLOCK_SIZE),
            }
        }
    }
    assert!(heap.allocate(65_536, 3, Content::Any).is_none());
    assert!(heap.allocate(0, 16, Content::Any).is_none());
    assert!(heap.allocate(usize::MAX, 16, Content::Any).is_none());
}

#[test]
fn resizing_keeps_what_was_there() {
    let heap = heap(0, u64::MAX);
    let mut grown = 0;
    for from in SIZES {
        for to in SIZES {
            let at = get(heap, from, Content::Any);
            fill(at, from);
            // SAFETY: the test owns it.
            let stays = unsafe { heap.resize_in_place(at, to) };
            assert!(stays || to > from, "shrinking always works");
            grown += usize::from(stays && to > from);
            if stays {
                let kept = from.min(to);
                // SAFETY: `kept` bytes are there before and after.
                let bytes = unsafe { core::slice::from_raw_parts(at, kept) };
                assert!(bytes.iter().all(|&byte| byte == 0xa5));
                assert!(heap.usable_size(at) >= to);
                fill(at, to);
            }
            free(heap, at);
        }
    }
    assert!(grown > SIZES.len(), "{grown} grew in place");
}

#[test]
fn a_block_that_is_looked_at_keeps_what_is_not_cut_off() {
    let heap = heap(0, u64::MAX);
    let size = 16 << 20;
    for _ in 0..300 {
        let at = get(heap, size, Content::Any);
        fill(at, size);
        let zone = heap.zone_of(at).expect("the heap's");
        let first = zone.pfn(at).expect("a frame").block();
        let blocks = first..first + size / BLOCK_SIZE;
        let sampled = blocks.clone().find(|&block| zone.ledger().block(block).hints().sampled());
        if let Some(block) = sampled.filter(|_| zone.kind == ZoneKind::Ready) {
            let kept = (block - first) * BLOCK_SIZE + BLOCK_SIZE / 2;
            // SAFETY: the test owns it, and `kept` bytes stay.
            let bytes = unsafe {
                assert!(heap.resize_in_place(at, kept));
                core::slice::from_raw_parts(at, kept)
            };
            assert!(bytes.iter().all(|&byte| byte == 0xa5));
            return free(heap, at);
        }
        free(heap, at);
    }
    panic!("no block of ready memory was looked at");
}

#[test]
fn what_cannot_grow_in_place_moves_with_its_pages() {
    let heap = heap(0, u64::MAX);
    for _ in 0..3 {
        let (mut at, mut size) = (get(heap, (16 << 20) + 16, Content::Any), (16 << 20) + 16);
        fill(at, size);
        for _ in 0..3 {
            let wall = get(heap, 70_000, Content::Any);
            // SAFETY: the test owns it.
            let moved = unsafe { heap.relocate(at, size * 2) }.expect("moved");
            assert_ne!(moved.as_ptr(), at);
            at = moved.as_ptr();
            // SAFETY: `size` bytes were there before.
            let bytes = unsafe { core::slice::from_raw_parts(at, size) };
            assert!(bytes.iter().all(|&byte| byte == 0xa5));
            size *= 2;
            assert!(heap.usable_size(at) >= size);
            fill(at, size);
            free(heap, wall);
        }
        free(heap, at);
        let zero = get(heap, size, Content::Zero);
        assert!(is_zeroed(zero, size));
        free(heap, zero);
    }
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}

#[test]
fn a_child_drops_what_it_shares() {
    let heap = heap(0, u64::MAX);
    for _ in 0..3 {
        let at = get(heap, 8 << 20, Content::Any);
        fill(at, 8 << 20);
        free(heap, at);
    }
    let kept = get(heap, 8 << 20, Content::Any);
    fill(kept, 8 << 20);
    // Not a real fork: the child's steps, in this process.
    heap.before_fork();
    let (tree, parent) = (heap.tree(), heap.slot());
    let (share, all) = (parent.pool_bytes(), tree.pool_bytes());
    let child = tree.attach(1).expect("a slot");
    // SAFETY: nobody else uses it.
    unsafe { heap.after_fork_in_child(child) };
    assert_eq!(heap.ready_blocks().0, 0);
    assert_eq!(parent.pool_bytes(), share, "what the child drops is still its parent's");
    // SAFETY: still allocated.
    let bytes = unsafe { core::slice::from_raw_parts(kept, 8 << 20) };
    assert!(bytes.iter().all(|&byte| byte == 0xa5));
    free(heap, kept);
    let at = get(heap, 8 << 20, Content::Zero);
    assert!(is_zeroed(at, 8 << 20), "what is stale was refreshed");
    free(heap, at);
    assert_eq!(tree.pool_bytes(), all + child.pool_bytes());
    assert!(child.pool_bytes() <= 2 * (8 << 20));
}

#[test]
fn threads_never_share_memory() {
    share_among_threads(heap(0, u64::MAX));
}

#[test]
fn threads_never_share_memory_on_many_nodes() {
    share_among_threads(heap_on(Topology::fake(3), 0, u64::MAX));
}

/// Four threads allocate and free at random while helpers work, and look for memory that is not theirs.
fn share_among_threads(heap: &'static Heap) {
    let work = |seed: u64| {
        let mut state = seed;
        let mut held: Vec<(*mut u8, usize)> = Vec::new();
        for turn in 0..600usize {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(seed | 1);
            let size = 65_536 + (state >> 40) as usize % (5 << 20);
            if held.len() < 6 {
                let content = if turn % 2 == 0 { Content::Zero } else { Content::Any };
                let at = get(heap, size, content);
                // SAFETY: `size` bytes were given; first and last word are within them.
                unsafe {
                    at.cast::<u64>().write(seed);
                    at.add(size - 8).cast::<u64>().write_unaligned(seed);
                }
                held.push((at, size));
            } else {
                let (at, size) = held.swap_remove((state >> 33) as usize % held.len());
                // SAFETY: still held.
                unsafe {
                    assert_eq!(at.cast::<u64>().read(), seed);
                    assert_eq!(at.add(size - 8).cast::<u64>().read_unaligned(), seed);
                }
                free(heap, at);
            }
        }
        for (at, _) in held {
            free(heap, at);
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            scope.spawn(move || work(seed));
        }
        scope.spawn(|| {
            for _ in 0..30 {
                scrub_all(heap);
                heap.decay();
            }
        });
    });
    decay_all(heap);
    assert_eq!(heap.slot().pool_bytes(), 0);
}

#[test]
fn free_memory_is_offered_when_the_hand_meets_it_again() {
    let heap = heap(16 << 20, u64::MAX);
    while heap.populate() == Left::More {}
    let at = get(heap, 8 << 20, Content::Any);
    fill(at, 8 << 20);
    free(heap, at);
    let waiting = || {
        let zone = heap.zones.local(0, ZoneKind::Ready);
        (0..zone.ledger().grown())
            .filter(|&block| source::is_to_offer(zone.ledger().block(block)))
            .count()
    };
    assert_eq!(waiting(), 4);
    assert_eq!(heap.offer(), Left::More);
    assert_eq!(waiting(), 4, "just freed");
    assert_eq!(heap.offer(), Left::Nothing);
    assert_eq!(waiting(), 0);
    scrub_all(heap);
    assert_eq!(waiting(), 4, "zeroing has touched it");
    assert_eq!(heap.offer(), Left::Nothing);
    assert_eq!(waiting(), 0);
    let zero = get(heap, 16 << 20, Content::Zero);
    assert!(is_zeroed(zero, 16 << 20));
    free(heap, zero);
}

#[test]
fn zeros_are_wanted_while_fewer_are_there_than_were_asked_for() {
    let heap = heap(16 << 20, u64::MAX);
    assert_eq!(heap.need(), Need::Spare);
    while heap.populate() == Left::More {}
    let at = get(heap, 12 << 20, Content::Zero);
    assert_eq!(heap.need(), Need::Wanted);
    fill(at, 12 << 20);
    free(heap, at);
    assert_eq!(heap.need(), Need::Wanted);
    scrub_all(heap);
    assert_eq!(heap.need(), Need::Spare, "they are there");
    let at = get(heap, 12 << 20, Content::Any);
    free(heap, at);
    assert_eq!(heap.need(), Need::Wanted, "and now they are dirty");
    decay_all(heap);
    assert_eq!(heap.need(), Need::Spare, "long ago");
}

/// The slot's figures after a count: zeroed, unzeroed, absent, in use.
fn split(heap: &'static Heap) -> [usize; 4] {
    heap.publish();
    told_split(heap)
}

/// The slot's figures without a count.
fn told_split(heap: &'static Heap) -> [usize; 4] {
    let split = heap.slot().pool_split().expect("counted");
    let free = split.free;
    [free.zeroed, free.unzeroed, free.absent, split.in_use].map(|bytes| bytes as usize)
}

#[test]
fn what_the_pool_consists_of_is_told() {
    let heap = heap(0, u64::MAX);
    let size = 16 << 20;
    assert_eq!(split(heap), [0; 4]);
    let at = get(heap, size, Content::Zero);
    assert_eq!(split(heap), [0, 0, 0, size], "not touched yet, but the program's");
    fill(at, size);
    free(heap, at);
    assert_eq!(split(heap), [0, size, 0, 0]);
    scrub_all(heap);
    assert_eq!(split(heap), [size, 0, 0, 0]);
    let at = get(heap, size - BLOCK_SIZE, Content::Zero);
    let told = heap.slot().pool_split().expect("counted");
    assert_eq!(told.free.zeroed, BLOCK_SIZE as u64, "what is taken is taken off at once");
    assert_eq!(split(heap), [BLOCK_SIZE, 0, 0, size - BLOCK_SIZE]);
    let small = get(heap, 100 << 10, Content::Any);
    let told = split(heap);
    assert_eq!(told.iter().sum::<usize>() as u64, heap.slot().pool_bytes());
    assert_eq!(told[3], size - BLOCK_SIZE + (100 << 10));
    free(heap, small);
    free(heap, at);
    decay_all(heap);
    let told = split(heap);
    assert_eq!(told[0] + told[3], 0, "{told:?}");
    assert_eq!(told.iter().sum::<usize>() as u64, heap.slot().pool_bytes());
}

#[test]
fn what_is_in_use_is_told_before_anything_is_freed() {
    let heap = heap(0, u64::MAX);
    let small = get(heap, 100 << 10, Content::Any);
    let of_small = [0, 0, BLOCK_SIZE - (100 << 10), 100 << 10];
    assert_eq!(told_split(heap), of_small, "a block, of which little is in use");
    let large = get(heap, 5 << 20, Content::Any);
    assert_eq!(told_split(heap)[3], (5 << 20) + (100 << 10));
    // SAFETY: it is this test's.
    if unsafe { heap.resize_in_place(large, 7 << 20) } {
        assert_eq!(told_split(heap)[3], (7 << 20) + (100 << 10));
    }
    assert_eq!(told_split(heap), split(heap), "as it is counted");
    free(heap, large);
    free(heap, small);
}

#[test]
fn nothing_is_told_that_nobody_keeps_right() {
    let heap = heap(0, u64::MAX);
    let at = get(heap, 4 << 20, Content::Any);
    assert!(heap.slot().pool_split().is_some());
    heap.end_helpers();
    free(heap, at);
    heap.publish();
    assert_eq!(heap.slot().pool_split(), None);
}
