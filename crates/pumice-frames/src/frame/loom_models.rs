//! The ledger's operations under every interleaving (loom), two at a time.
//!
//! Each frame has a cell that only its owner may touch; loom fails on any access that is not
//! ordered after the former owner's. A cell holds 0 when its frame is zeroed. Two frames a word
//! and two words a block keep the number of interleavings within reach; `ci/loom` says how to
//! explore more of them.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::ledger::{Backing, Geometry, Ledger, Storage, Want};
use super::{BlockState, BlockWord};
use crate::addr::{Order, PageRange, Pfn};
use crate::sync::atomic::AtomicU64;

struct Tiny;

impl Geometry for Tiny {
    const FRAMES_PER_WORD: u32 = 2;
    const WORDS_PER_BLOCK: usize = 1;
}

struct Cells(Vec<UnsafeCell<u32>>);

// SAFETY: loom checks every access to a cell.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Backing for Cells {
    fn refresh(&self, block: usize, _word: BlockWord, _kept: usize) -> bool {
        self.fill(PageRange { start: Pfn(block * 2), frames: 2 }, 0);
        true
    }
}

impl Cells {
    fn fill(&self, range: PageRange, value: u32) {
        for cell in &self.0[range.start.0..range.end().0] {
            // SAFETY: loom fails the model if the frame is not the caller's.
            cell.with_mut(|cell| unsafe { *cell = value });
        }
    }

    fn is_zero(&self, range: PageRange) -> bool {
        // SAFETY: loom fails the model if the frame is not the caller's.
        self.0[range.start.0..range.end().0]
            .iter()
            .all(|cell| cell.with(|cell| unsafe { *cell == 0 }))
    }
}

type Model = Ledger<Tiny, Cells>;

fn leak<T>(count: usize, make: impl Fn() -> T) -> &'static [T] {
    Vec::leak((0..count).map(|_| make()).collect())
}

/// A ledger of `blocks` blocks, all free and zeroed.
fn model(blocks: usize) -> Arc<Model> {
    let storage = Storage {
        words: leak(blocks, || AtomicU64::new(0)),
        blocks: leak(blocks, || AtomicU64::new(0)),
        cpus: leak(2, Default::default),
    };
    let cells = Cells((0..2 * blocks).map(|_| UnsafeCell::new(0)).collect());
    let ledger = Ledger::new(storage, cells);
    let all = ledger.claim_growth(blocks).expect("room");
    ledger.grow(all, false);
    Arc::new(ledger)
}

/// Gets a frame, checks what is said of it and writes to it.
fn get(ledger: &Model, cpu: usize, want: Want) -> Option<Pfn> {
    let (start, zeroed) = ledger.get_frame(cpu, want)?;
    let range = PageRange { start, frames: 1 };
    assert!(!zeroed || ledger.backing.is_zero(range), "{start:?} is not zero");
    ledger.backing.fill(range, 7);
    Some(start)
}

fn scrub_block(ledger: &Model, block: usize) {
    if let Some(word) = ledger.claim_block(block, |word| !word.zeroed()) {
        ledger.backing.fill(PageRange { start: Pfn(block * 2), frames: 2 }, 0);
        ledger.release_block(block, word.with_zeroed(true));
    }
}

fn scrub_area(ledger: &Model, block: usize) {
    if let Some(area) = ledger.claim_dirty_area(block, Order::FRAME) {
        let range = PageRange { start: Pfn(block * 2 + area.from), frames: area.frames };
        ledger.backing.fill(range, 0);
        ledger.release_area(area, Want::Zeroed);
    }
}

/// After everything is over: each of `frames` frames can be got once, and no more.
fn assert_free(ledger: &Model, frames: usize) {
    let mut seen = vec![false; frames.max(8)];
    for _ in 0..frames {
        let pfn = get(ledger, 0, Want::Zeroed).expect("a frame was lost");
        assert!(!std::mem::replace(&mut seen[pfn.0], true), "{pfn:?} was given out twice");
    }
    assert!(get(ledger, 1, Want::Zeroed).is_none(), "a frame too many");
}

/// Two things at once, each of which says how many frames it has taken (or, negative, put back);
/// then, of `free` frames before, all the others can still be had.
fn race(
    blocks: usize,
    free: isize,
    prepare: impl Fn(&Model),
    one: fn(&Model) -> isize,
    two: fn(&Model) -> isize,
) -> impl Fn() {
    move || {
        let ledger = model(blocks);
        prepare(&ledger);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || one(&other));
        let taken = two(&ledger) + thread.join().expect("no panic");
        assert_free(&ledger, (free - taken) as usize);
    }
}

/// Gets a frame if it can: a block that somebody has claimed for a moment counts as absent.
fn take(ledger: &Model, cpu: usize, want: Want) -> isize {
    get(ledger, cpu, want).map_or(0, |_| 1)
}

fn take_and_put(ledger: &Model, cpu: usize, want: Want) -> isize {
    if let Some(pfn) = get(ledger, cpu, want) {
        ledger.put_frame(pfn).expect("allocated");
    }
    0
}

fn put(ledger: &Model, frame: usize) -> isize {
    ledger.put_frame(Pfn(frame)).map_or(0, |()| -1)
}

fn take_all(ledger: &Model) {
    while get(ledger, 0, Want::Zeroed).is_some() {}
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn allocate_and_allocate() {
    let one = |ledger: &Model| take(ledger, 0, Want::Zeroed);
    explore(race(1, 2, |_| (), one, |ledger| take(ledger, 1, Want::Dirty)));
    explore(race(1, 1, make_one_taken, one, |ledger| take(ledger, 1, Want::Dirty)));
}

fn make_one_taken(ledger: &Model) {
    assert_eq!(take(ledger, 0, Want::Zeroed), 1);
}

#[test]
fn allocate_and_free() {
    let two = |ledger: &Model| take_and_put(ledger, 1, Want::Zeroed);
    explore(race(1, 0, take_all, |ledger| put(ledger, 0), two));
}

#[test]
fn free_and_free() {
    explore(race(1, 0, take_all, |ledger| put(ledger, 0), |ledger| put(ledger, 1)));
}

#[test]
fn a_double_free_frees_once() {
    explore(race(1, 0, take_all, |ledger| put(ledger, 0), |ledger| put(ledger, 0)));
}

fn make_dirty(ledger: &Model) {
    take_and_put(ledger, 0, Want::Zeroed);
}

#[test]
fn allocate_and_scrub() {
    let one = |ledger: &Model| {
        scrub_area(ledger, 0);
        0
    };
    explore(race(1, 2, make_dirty, one, |ledger| take(ledger, 1, Want::Dirty)));
}

#[test]
fn free_and_scrub() {
    let one = |ledger: &Model| {
        scrub_area(ledger, 0);
        ledger.settle_dirty_hint(0);
        0
    };
    let prepare = |ledger: &Model| {
        take_all(ledger);
        put(ledger, 1);
    };
    explore(race(1, 1, prepare, one, |ledger| put(ledger, 0)));
}

#[test]
fn scrub_and_whole() {
    let prepare = |ledger: &Model| {
        make_dirty(ledger);
        assert!(ledger.join(0));
    };
    let one = |ledger: &Model| {
        scrub_block(ledger, 0);
        0
    };
    explore(race(1, 2, prepare, one, |ledger| {
        if let Some(run) = ledger.get_blocks(1, 0, 1, |_| true) {
            let zeroed = ledger.block(0).zeroed();
            assert!(!zeroed || ledger.backing.is_zero(run.range));
            ledger.backing.fill(run.range, 7);
            ledger.put_range(run.range, |_, word| word.with_zeroed(false));
        }
        0
    }));
}

#[test]
fn reserve_and_steal() {
    // Processor 0 has the only block reserved; processor 1 must find its frame all the same.
    let one = |ledger: &Model| take_and_put(ledger, 0, Want::Zeroed);
    let two = |ledger: &Model| take_and_put(ledger, 1, Want::Zeroed);
    explore(race(1, 1, make_one_taken, one, two));
}

#[test]
fn whole_and_parts() {
    let one = |ledger: &Model| {
        if let Some(run) = ledger.get_blocks(1, 1, 1, |_| true) {
            ledger.backing.fill(run.range, 7);
            ledger.put_range(run.range, |_, word| word.with_zeroed(false));
        }
        0
    };
    explore(race(2, 4, |_| (), one, |ledger| take(ledger, 1, Want::Zeroed)));
}

#[test]
fn join_and_allocate() {
    let one = |ledger: &Model| {
        ledger.join(0);
        0
    };
    explore(race(1, 2, make_dirty, one, |ledger| take_and_put(ledger, 1, Want::Dirty)));
}

#[test]
fn run_and_run() {
    let run = |ledger: &Model| {
        ledger.get_run(0, 1, 1, Want::Zeroed).map_or(0, |run| {
            ledger.backing.fill(run.range, 7);
            1
        })
    };
    explore(race(1, 2, |_| (), run, run));
}

#[test]
fn a_run_is_found_beside_a_block_that_is_being_taken() {
    let prepare = |ledger: &Model| assert!(ledger.split(1, ledger.block(1), 1, 0));
    let one = |ledger: &Model| {
        let put = ledger.put_run(Pfn(2), |_, word| word);
        assert_eq!(put, Ok(PageRange { start: Pfn(2), frames: 1 }));
        -1
    };
    let split = |ledger: &Model| {
        let word = ledger.block(0);
        isize::from(word.state() == BlockState::Free && ledger.split(0, word, 1, 0))
    };
    explore(race(2, 3, prepare, one, split));
    let occupy = |ledger: &Model| ledger.occupy_block(0).map_or(0, |_| 2);
    explore(race(2, 3, prepare, one, occupy));
}

#[test]
fn give_back_and_allocate() {
    let one = |ledger: &Model| {
        if ledger.claim_block(0, |_| true).is_some() {
            ledger.remove_block(0);
            assert!(ledger.claim_removed(0));
            ledger.grow(0..1, false);
        }
        0
    };
    explore(race(2, 4, |_| (), one, |ledger| take(ledger, 1, Want::Zeroed)));
}

/// A ledger of two blocks of two frames, of which none has been added.
fn empty_ledger() -> Arc<Model> {
    let storage = Storage {
        words: leak(2, || AtomicU64::new(0)),
        blocks: leak(2, || AtomicU64::new(0)),
        cpus: leak(2, Default::default),
    };
    let cells = Cells((0..4).map(|_| UnsafeCell::new(0)).collect());
    Arc::new(Ledger::new(storage, cells))
}

#[test]
fn a_search_for_removed_blocks_leaves_those_that_are_being_added() {
    explore(|| {
        let ledger = empty_ledger();
        let first = ledger.claim_growth(1).expect("room for two");
        ledger.remove_block(first.start);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            let added = other.claim_growth(1).expect("room for one more");
            assert_eq!(added, 1..2);
            other.grow(added, false);
        });
        let found: Vec<_> =
            (0..ledger.grown()).filter(|&block| ledger.claim_removed(block)).collect();
        assert_eq!(found, [0]);
        ledger.grow(0..1, false);
        thread.join().expect("no panic");
        assert_free(&ledger, 4);
    });
}

#[test]
fn grow_and_grow() {
    explore(|| {
        let ledger = empty_ledger();
        let other = Arc::clone(&ledger);
        let grow =
            |ledger: &Model| ledger.grow(ledger.claim_growth(1).expect("room for two"), false);
        let thread = thread::spawn(move || grow(&other));
        grow(&ledger);
        thread.join().expect("no panic");
        assert!(ledger.claim_growth(1).is_none());
        assert_eq!(ledger.block(0).state(), BlockState::Free);
        assert_free(&ledger, 4);
    });
}

struct Narrow;

impl Geometry for Narrow {
    const FRAMES_PER_WORD: u32 = 1;
    const WORDS_PER_BLOCK: usize = 2;
}

fn narrow(blocks: usize) -> Arc<Ledger<Narrow, Cells>> {
    let storage = Storage {
        words: leak(2 * blocks, || AtomicU64::new(0)),
        blocks: leak(blocks, || AtomicU64::new(0)),
        cpus: leak(2, Default::default),
    };
    let cells = Cells((0..2 * blocks).map(|_| UnsafeCell::new(0)).collect());
    let ledger = Ledger::new(storage, cells);
    let all = ledger.claim_growth(blocks).expect("room");
    ledger.grow(all, false);
    Arc::new(ledger)
}

/// A run is its owner's and begins where it does, whatever others try beside it.
fn keep_and_put(ledger: &Ledger<Narrow, Cells>, range: PageRange) {
    assert_eq!(ledger.run_at(range.start), Some(range));
    assert_eq!(ledger.run_around(range.start), Some(range));
    ledger.put_range(range, |_, word| word.with_zeroed(false));
}

#[test]
fn run_and_claim_before_it() {
    explore(|| {
        let ledger = narrow(1);
        let runs = [0, 1].map(|_| ledger.get_run(0, 1, 1, Want::Zeroed).expect("free").range);
        let first = runs.iter().find(|run| run.start == Pfn(0)).expect("both are got");
        ledger.put_range(*first, |_, word| word);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            keep_and_put(&other, PageRange { start: Pfn(1), frames: 1 });
            if let Some(run) = other.get_run(1, 1, 1, Want::Dirty) {
                keep_and_put(&other, run.range);
            }
        });
        if let Some(run) = ledger.get_run(0, 2, 1, Want::Dirty) {
            keep_and_put(&ledger, run.range);
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn blocks_and_run_after_them() {
    explore(|| {
        let ledger = narrow(2);
        let run = ledger.get_blocks(1, 1, 1, |_| true).expect("all is free").range;
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || keep_and_put(&other, run));
        if let Some(run) = ledger.get_run(1, 1, 1, Want::Dirty) {
            keep_and_put(&ledger, run.range);
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn claim_and_look() {
    explore(|| {
        let ledger = narrow(1);
        let run = ledger.get_run(0, 1, 1, Want::Zeroed).expect("free").range;
        ledger.put_range(run, |_, word| word.with_zeroed(false));
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            if let Some(area) = other.claim_dirty_area(0, Order::FRAME) {
                other.release_area(area, Want::Zeroed);
            }
            other.join_all_aside();
        });
        assert!(!ledger.is_allocated(Pfn(0)) && !ledger.is_allocated(Pfn(1)));
        thread.join().expect("no panic");
    });
}

#[test]
fn empty_rest_and_look_and_get() {
    explore(|| {
        let ledger = narrow(1);
        let runs = [0, 1].map(|_| ledger.get_run(0, 1, 1, Want::Zeroed).expect("free").range);
        let second = runs.iter().find(|run| run.start == Pfn(1)).expect("both are got");
        ledger.backing.fill(*second, 7);
        ledger.put_range(*second, |_, word| word);
        let other = Arc::clone(&ledger);
        let rest = *second;
        let thread = thread::spawn(move || {
            other.empty_rest(0, 1, || {
                other.backing.fill(rest, 0);
                true
            })
        });
        assert!(!ledger.is_allocated(rest.start));
        let run = ledger.get_run(1, 1, 1, Want::Zeroed);
        if let Some(run) = &run {
            assert!(!run.dirt.is_clean() || ledger.backing.is_zero(run.range));
            ledger.backing.fill(run.range, 7);
        }
        let is_emptied = thread.join().expect("no panic");
        assert!(is_emptied || run.is_some());
    });
}
