//! The ledger against a model that is plainly right: a vector with an entry for each frame.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

use super::ledger::{Backing, Ledger, Native, Storage, Want};
use super::runs::Run;
use super::{BlockState, BlockWord};
use crate::addr::{Order, PageRange, Pfn, BLOCK_FRAMES};

const BLOCKS: usize = 6;
const FRAMES: usize = BLOCKS * BLOCK_FRAMES;

#[derive(Clone, Debug)]
enum Step {
    Get {
        cpu: usize,
        want: Want,
    },
    GetRun {
        cpu: usize,
        frames: usize,
        align: usize,
        want: Want,
    },
    GetBlocks {
        blocks: usize,
        tail: usize,
        align: usize,
    },
    /// Puts the run of this index among those there are.
    Put(usize),
    Extend(usize, usize),
    Truncate(usize, usize),
    ScrubBlock(usize),
    ScrubArea(usize, u8),
    EmptyRest(usize, usize),
    Join(usize),
    JoinAll,
    Fork,
}

fn want() -> impl Strategy<Value = Want> {
    prop_oneof![Just(Want::Zeroed), Just(Want::Dirty)]
}

fn step() -> impl Strategy<Value = Step> {
    let align = || (0u32..10).prop_map(|shift| 1usize << shift);
    prop_oneof![
        4 => (0usize..3, want()).prop_map(|(cpu, want)| Step::Get { cpu, want }),
        4 => (0usize..3, 1usize..512, align(), want())
            .prop_map(|(cpu, frames, align, want)| Step::GetRun { cpu, frames, align, want }),
        4 => (1usize..4, 0usize..512, 0u32..2)
            .prop_map(|(blocks, tail, shift)| Step::GetBlocks { blocks, tail, align: 1 << shift }),
        8 => any::<prop::sample::Index>().prop_map(|index| Step::Put(index.index(1 << 16))),
        2 => (0usize..1 << 16, 1usize..1200).prop_map(|(run, more)| Step::Extend(run, more)),
        2 => (0usize..1 << 16, 1usize..1200).prop_map(|(run, less)| Step::Truncate(run, less)),
        2 => (0..BLOCKS).prop_map(Step::ScrubBlock),
        2 => (0..BLOCKS, 0u8..6).prop_map(|(block, order)| Step::ScrubArea(block, order)),
        2 => (0..BLOCKS, 1..BLOCK_FRAMES).prop_map(|(block, from)| Step::EmptyRest(block, from)),
        1 => (0..BLOCKS).prop_map(Step::Join),
        1 => Just(Step::JoinAll),
        1 => Just(Step::Fork),
    ]
}

/// Remembers which blocks were refreshed.
#[derive(Debug, Default)]
struct Refreshed(Mutex<Vec<usize>>);

impl Backing for Refreshed {
    fn refresh(&self, block: usize, _word: BlockWord, _kept: usize) -> bool {
        self.0.lock().expect("no panic").push(block);
        true
    }
}

struct Model {
    ledger: Ledger<Native, Refreshed>,
    /// Whether each frame may hold something else than zeros.
    dirty: Vec<bool>,
    /// Start and length of every run.
    runs: BTreeMap<usize, usize>,
}

impl Model {
    fn new() -> Model {
        let ledger = Ledger::new(Storage::leaked(BLOCKS), Refreshed::default());
        let all = ledger.claim_growth(BLOCKS).expect("room");
        ledger.grow(all, false);
        Model { ledger, dirty: vec![false; FRAMES], runs: BTreeMap::new() }
    }

    fn settle_refreshed(&mut self) {
        for block in self.ledger.backing.0.lock().expect("no panic").drain(..) {
            self.dirty[block * BLOCK_FRAMES..][..BLOCK_FRAMES].fill(false);
        }
    }

    /// A run was handed out: it overlaps none, and its word on zeros is true.
    fn take(&mut self, range: PageRange, is_zeroed: impl Fn(usize) -> bool) {
        self.settle_refreshed();
        let (start, end) = (range.start.0, range.end().0);
        assert!(end <= FRAMES);
        let before = self.runs.range(..end).next_back();
        assert!(before.is_none_or(|(&other, &len)| other + len <= start), "{range:?} overlaps");
        for frame in start..end {
            assert!(!(is_zeroed(frame) && self.dirty[frame]), "frame {frame:#x} is not zero");
            self.dirty[frame] = true;
        }
        self.runs.insert(start, range.frames);
    }

    fn take_run(&mut self, run: &Run) {
        let whole =
            if run.range.frames >= BLOCK_FRAMES { run.range.frames / BLOCK_FRAMES } else { 0 };
        let first = run.range.start.block();
        let parts = (first + whole) * BLOCK_FRAMES;
        let dirt: Vec<usize> =
            run.dirt.ranges::<Native>().flatten().map(|frame| parts + frame).collect();
        let zeroed: Vec<bool> =
            (first..first + whole).map(|block| self.ledger.block(block).zeroed()).collect();
        self.take(run.range, |frame| {
            if frame < parts {
                zeroed[frame / BLOCK_FRAMES - first]
            } else {
                !dirt.contains(&frame)
            }
        });
    }

    fn nth_run(&self, index: usize) -> Option<PageRange> {
        let (&start, &frames) = self.runs.iter().nth(index % self.runs.len().max(1))?;
        Some(PageRange { start: Pfn(start), frames })
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Get { cpu, want } => {
                if let Some((pfn, zeroed)) = self.ledger.get_frame(cpu, want) {
                    self.take(PageRange { start: pfn, frames: 1 }, |_| zeroed);
                } else {
                    assert_eq!(self.runs.values().sum::<usize>(), FRAMES, "frames are left");
                }
            }
            Step::GetRun { cpu, frames, align, want } => {
                if let Some(run) = self.ledger.get_run(cpu, frames, align, want) {
                    assert_eq!(run.range.frames, frames);
                    assert_eq!(run.range.start.0 % align, 0);
                    self.take_run(&run);
                }
            }
            Step::GetBlocks { blocks, tail, align } => {
                if let Some(run) = self.ledger.get_blocks(blocks, tail, align, |_| true) {
                    assert_eq!(run.range.start.0 % (align * BLOCK_FRAMES), 0);
                    self.take_run(&run);
                }
            }
            Step::Put(index) => {
                let Some(range) = self.nth_run(index) else { return };
                assert_eq!(self.ledger.run_at(range.start), Some(range));
                let put = self
                    .ledger
                    .put_run(range.start, |_, word| word.with_zeroed(false).with_ready(true));
                assert_eq!(put, Ok(range));
                assert!(self.ledger.put_run(range.start, |_, word| word).is_err(), "a double free");
                self.runs.remove(&range.start.0);
            }
            Step::Extend(index, more) => {
                let Some(range) = self.nth_run(index) else { return };
                if let Some(run) = self.ledger.extend_run(range, range.frames + more) {
                    assert_eq!(run.range.start, range.end());
                    assert_eq!(run.range.frames, more);
                    self.take(run.range, |_| false);
                    self.runs.remove(&run.range.start.0);
                    self.runs.insert(range.start.0, range.frames + more);
                }
            }
            Step::Truncate(index, less) => {
                let Some(range) = self.nth_run(index) else { return };
                if less < range.frames {
                    let keep = range.frames - less;
                    self.ledger.truncate_run(range, keep, |_, word| word.with_zeroed(false));
                    self.runs.insert(range.start.0, keep);
                }
            }
            Step::ScrubBlock(block) => {
                if let Some(word) = self.ledger.claim_block(block, |word| !word.zeroed()) {
                    self.dirty[block * BLOCK_FRAMES..][..BLOCK_FRAMES].fill(false);
                    self.ledger.release_block(block, word.with_zeroed(true));
                }
            }
            Step::ScrubArea(block, order) => {
                let order = Order::new(order).expect("small");
                if let Some(area) = self.ledger.claim_dirty_area(block, order) {
                    assert!(area.frames >= order.frames());
                    let start = block * BLOCK_FRAMES + area.from;
                    self.take(PageRange { start: Pfn(start), frames: area.frames }, |_| false);
                    self.runs.remove(&start);
                    self.dirty[start..][..area.frames].fill(false);
                    self.ledger.release_area(area, Want::Zeroed);
                }
                self.ledger.settle_dirty_hint(block);
            }
            Step::EmptyRest(block, from) => {
                let in_parts = self.ledger.block(block).state() == BlockState::Parts;
                let content = in_parts.then(|| self.ledger.rest_content(block, from)).flatten();
                let done = in_parts && self.ledger.empty_rest(block, from, || true);
                assert_eq!(done, content.is_some());
                if done {
                    let rest = &mut self.dirty[block * BLOCK_FRAMES..][from..BLOCK_FRAMES];
                    assert!(content == Some(Want::Dirty) || rest.iter().all(|&dirty| !dirty));
                    rest.fill(false);
                    assert_eq!(self.ledger.rest_content(block, from), Some(Want::Zeroed));
                }
            }
            Step::Join(block) => {
                let joined = self.ledger.join(block);
                assert!(!joined || self.ledger.block(block).state() == BlockState::Free);
            }
            Step::JoinAll => {
                self.ledger.join_all();
                let in_parts = |block: usize| self.ledger.block(block).state() == BlockState::Parts;
                for block in (0..BLOCKS).filter(|&block| in_parts(block)) {
                    let end = (block + 1) * BLOCK_FRAMES;
                    let last = self.runs.range(..end).next_back();
                    let is_used =
                        last.is_some_and(|(&start, &len)| start + len > end - BLOCK_FRAMES);
                    assert!(is_used, "block {block} is free, and not joined");
                }
            }
            Step::Fork => self.ledger.advance_epoch(),
        }
        let is_held = |&block: &usize| {
            let word = self.ledger.block(block);
            word.state() == BlockState::Free && !word.is_pristine()
        };
        assert_eq!(self.ledger.held_blocks(), (0..BLOCKS).filter(is_held).count());
        self.settle_refreshed();
        for (&start, &frames) in &self.runs {
            let range = PageRange { start: Pfn(start), frames };
            assert_eq!(self.ledger.run_at(Pfn(start)), Some(range));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_ledger_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..120)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        // Everything put back, everything can be had again.
        for start in std::mem::take(&mut model.runs).into_keys() {
            model.ledger.put_run(Pfn(start), |_, word| word.with_zeroed(false)).expect("allocated");
        }
        for block in 0..BLOCKS {
            model.ledger.join(block);
        }
        prop_assert_eq!(model.ledger.free_blocks(), BLOCKS);
        prop_assert!(model.ledger.get_blocks(BLOCKS, 0, 1, |_| true).is_some());
    }
}

#[test]
fn every_frame_can_be_had_one_by_one() {
    let model = Model::new();
    let mut seen = vec![false; FRAMES];
    for turn in 0..FRAMES {
        let (pfn, zeroed) = model.ledger.get_frame(turn, Want::Zeroed).expect("frames are left");
        assert!(zeroed && !std::mem::replace(&mut seen[pfn.0], true));
    }
    assert!(model.ledger.get_frame(0, Want::Zeroed).is_none());
    model.ledger.put_frame(Pfn(77)).expect("allocated");
    assert_eq!(model.ledger.get_frame(0, Want::Zeroed), Some((Pfn(77), false)));
}

/// The other processors find the rest of a block that one had reserved before they split a whole one.
#[test]
fn what_a_reservation_leaves_comes_before_whole_blocks() {
    let model = Model::new();
    let ledger = &model.ledger;
    let get = |cpu, want| ledger.get_frame(cpu, want).expect("frames are left");
    let run = ledger.get_blocks(3, 0, 1, |_| true).expect("room");
    ledger.put_run(run.range.start, |_, word| word.with_zeroed(false)).expect("allocated");
    // A block with a dirty frame that one processor has reserved for zeroed ones: the other splits a dirty block.
    let first: Vec<Pfn> = (0..BLOCK_FRAMES).map(|_| get(0, Want::Zeroed).0).collect();
    ledger.put_zeroed_frame(first[0]).expect("allocated");
    let (again, _) = get(0, Want::Zeroed);
    ledger.put_frame(again).expect("allocated");
    for _ in 0..BLOCK_FRAMES {
        assert_ne!(get(1, Want::Dirty).0, again);
    }
    // It is through with its block, and goes on to the next.
    assert!(get(0, Want::Zeroed).1);
    assert_eq!(get(1, Want::Dirty), (again, false));
}
