//! Free blocks that core dumps leave out.
//!
//! A block is *hidden* when its pages are marked so that no core dump holds them
//! (`MADV_DONTDUMP`). That is a flag of a mapping, and every change from block to block is another
//! mapping: so runs of blocks are hidden together, by a helper, when they have been free for a
//! while, and there are never more than [`MAX_RANGES`] ranges of hidden blocks. Where getting
//! memory out of the middle of one would make too many, the shorter side of it is shown too.
//!
//! *The word of a hidden block is marked*; a block with a marked word may be in dumps all the same.
//! So the word is marked before the pages, and unmarked after them, and the child of a fork in between
//! finds a marked word at worst. A block is marked only while claimed, and unmarked by its owner, or,
//! free, by a compare-and-swap with the word as it was before its pages were shown.

use core::ops::Range;

use super::block::{BlockState, BlockWord};
use super::ledger::{Backing, Geometry, Ledger};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Ranges of hidden blocks in a zone, but for what threads add in the same moment: each costs the
/// process two mappings.
const MAX_RANGES: usize = 256;
/// The helper stops here, so that requests can break ranges in two.
const MAX_MADE: usize = MAX_RANGES / 2;
/// Blocks that are claimed, or unmarked, together.
const STEP: usize = 64;

/// How many ranges of hidden blocks there are, roughly. Relaxed: a count that orders nothing.
#[derive(Debug)]
pub(super) struct HiddenRanges(AtomicUsize);

impl HiddenRanges {
    pub(super) fn new() -> HiddenRanges {
        HiddenRanges(AtomicUsize::new(0))
    }

    pub(super) fn add(&self, ranges: usize) -> usize {
        self.0.fetch_add(ranges, Ordering::Relaxed)
    }
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    fn is_hidden(&self, block: usize) -> bool {
        self.block(block).hidden()
    }

    /// Hides free blocks that `rests` says will not be wanted soon: runs long enough to be worth a
    /// mapping, and those that join a hidden one.
    pub fn hide_free(&self, rests: impl Fn(BlockWord) -> bool) {
        let grown = self.grown();
        let mut ranges = self.count_hidden_ranges();
        self.hidden_ranges.0.store(ranges, Ordering::Relaxed);
        let least = 1 + grown / MAX_MADE;
        let wanted = |word: BlockWord| {
            let is_plain = word.state() == BlockState::Free && !word.hidden() && !word.tainted();
            is_plain && rests(word)
        };
        let mut next = 0;
        while let Some(start) = (next..grown).find(|&block| wanted(self.block(block))) {
            let end = (start..grown).find(|&block| !wanted(self.block(block))).unwrap_or(grown);
            next = end;
            let joins =
                start > 0 && self.is_hidden(start - 1) || end < grown && self.is_hidden(end);
            if !joins {
                if end - start < least || ranges >= MAX_MADE {
                    continue;
                }
                ranges += 1;
                self.hidden_ranges.add(1);
            }
            self.hide(start..end, &wanted);
        }
    }

    fn count_hidden_ranges(&self) -> usize {
        let starts =
            |&block: &usize| self.is_hidden(block) && (block == 0 || !self.is_hidden(block - 1));
        (0..self.grown()).filter(starts).count()
    }

    fn hide(&self, blocks: Range<usize>, wanted: &impl Fn(BlockWord) -> bool) {
        let claim = |block| self.claim_block(block, wanted).is_some();
        let mut next = blocks.start;
        while next < blocks.end {
            let limit = blocks.end.min(next + STEP);
            let end = (next..limit).find(|&block| !claim(block)).unwrap_or(limit);
            let claimed = next..end;
            // Past one that was taken meanwhile.
            next = end + usize::from(end < limit);
            if claimed.is_empty() {
                continue;
            }
            for block in claimed.clone() {
                self.set_block(block, self.block(block).with_hidden(true));
            }
            self.backing.hide(claimed.clone());
            for block in claimed {
                self.release_block(block, self.block(block));
            }
        }
    }

    /// Has core dumps hold blocks that the caller owns and is about to hand out.
    pub(super) fn show(&self, owned: Range<usize>) {
        let mut next = owned.start;
        while let Some(start) = (next..owned.end).find(|&block| self.is_hidden(block)) {
            let end = (start..owned.end).find(|&block| !self.is_hidden(block)).unwrap_or(owned.end);
            next = end;
            if self.backing.show(start..end) {
                for block in start..end {
                    self.set_block(block, self.block(block).with_hidden(false));
                }
            }
            if start == owned.start && end == owned.end {
                self.settle_ranges(start, end);
            }
        }
    }

    /// After blocks `start..end` were shown: if that broke a range in two, counts it, or shows the
    /// shorter side where there are ranges enough.
    fn settle_ranges(&self, start: usize, end: usize) {
        let grown = self.grown();
        let has_sides =
            start > 0 && self.is_hidden(start - 1) && end < grown && self.is_hidden(end);
        if !has_sides || self.hidden_ranges.add(1) < MAX_RANGES {
            return;
        }
        self.hidden_ranges.0.fetch_sub(1, Ordering::Relaxed);
        let (mut first, mut last) = (start, end);
        while first > 0 && last < grown && self.is_hidden(first - 1) && self.is_hidden(last) {
            (first, last) = (first - 1, last + 1);
        }
        let is_left_shorter = first == 0 || !self.is_hidden(first - 1);
        let side = if is_left_shorter { first..start } else { end..last };
        side.clone().step_by(STEP).for_each(|from| self.show_free(from..side.end.min(from + STEP)));
    }

    /// Shows blocks that the caller does not own.
    fn show_free(&self, blocks: Range<usize>) {
        let mut before = [BlockWord::new(); STEP];
        for (word, block) in before.iter_mut().zip(blocks.clone()) {
            *word = self.block(block);
        }
        if !self.backing.show(blocks.clone()) {
            return;
        }
        for (word, block) in before.into_iter().zip(blocks) {
            if word.state() == BlockState::Free {
                self.swap_block(block, word, word.with_hidden(false));
            }
        }
    }

    /// Shows every block.
    pub(super) fn show_all(&self) {
        for from in (0..self.grown()).step_by(STEP) {
            let blocks = from..self.grown().min(from + STEP);
            if blocks.clone().any(|block| self.is_hidden(block)) {
                self.show_hidden(blocks);
            }
        }
    }

    fn show_hidden(&self, blocks: Range<usize>) {
        let mut next = blocks.start;
        while let Some(start) = (next..blocks.end).find(|&block| self.is_hidden(block)) {
            next = (start..blocks.end).find(|&block| !self.is_hidden(block)).unwrap_or(blocks.end);
            self.show_free(start..next);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::frame::ledger::{Native, Storage};
    use crate::sync::atomic::AtomicBool;

    const BLOCKS: usize = 4096;

    /// The blocks that a core dump would hold.
    struct Dumped(Vec<AtomicBool>);

    impl Dumped {
        fn set(&self, blocks: Range<usize>, dumped: bool) {
            blocks.for_each(|block| self.0[block].store(dumped, Ordering::Relaxed));
        }

        fn get(&self, block: usize) -> bool {
            self.0[block].load(Ordering::Relaxed)
        }

        fn ranges(&self) -> usize {
            let starts = |&block: &usize| !self.get(block) && (block == 0 || self.get(block - 1));
            (0..BLOCKS).filter(starts).count()
        }
    }

    impl Backing for Dumped {
        fn refresh(&self, _block: usize, _word: BlockWord, _kept: usize) -> bool {
            true
        }
        fn hide(&self, blocks: Range<usize>) {
            self.set(blocks, false);
        }
        fn show(&self, blocks: Range<usize>) -> bool {
            self.set(blocks, true);
            true
        }
    }

    fn ledger() -> Ledger<Native, Dumped> {
        let dumped = Dumped((0..BLOCKS).map(|_| AtomicBool::new(true)).collect());
        let ledger = Ledger::new(Storage::leaked(BLOCKS), dumped);
        let all = ledger.claim_growth(BLOCKS).expect("room");
        ledger.grow(all, true);
        ledger.backing.set(0..BLOCKS, false);
        ledger
    }

    fn check(ledger: &Ledger<Native, Dumped>) {
        for block in 0..BLOCKS {
            let (word, dumped) = (ledger.block(block), ledger.backing.get(block));
            assert!(dumped || word.hidden(), "{block}: {word:?}");
            assert!(dumped || word.state() == BlockState::Free, "{block}: {word:?}");
        }
        assert!(ledger.backing.ranges() <= MAX_RANGES);
    }

    #[test]
    fn what_is_handed_out_is_shown_and_what_rests_is_hidden() {
        let ledger = ledger();
        let run = ledger.get_blocks(3, 100, 1, |_| true).expect("free").range;
        check(&ledger);
        assert!((0..4).all(|block| ledger.backing.get(block)) && !ledger.backing.get(4));
        let small =
            ledger.get_run(0, 40, 1, crate::frame::ledger::Want::Dirty).expect("free").range;
        check(&ledger);
        ledger.put_range(small, |_, word| word);
        ledger.put_range(run, |_, word| word);
        ledger.join_all();
        ledger.hide_free(|_| false);
        assert!(ledger.backing.get(0));
        ledger.hide_free(|_| true);
        assert_eq!(ledger.backing.ranges(), 1);
        assert!(!ledger.backing.get(0));
        check(&ledger);
        ledger.show_all();
        assert_eq!(ledger.backing.ranges(), 0);
        assert_eq!(ledger.count_hidden_ranges(), 0);
    }

    #[test]
    fn ranges_are_few_whatever_is_taken() {
        let ledger = ledger();
        // Every other block out of one range.
        let zeroed = ledger.claim_block(0, |_| true).expect("free");
        ledger.release_block(0, zeroed);
        for block in (1..BLOCKS).step_by(2) {
            assert!(ledger.occupy_block(block).is_some());
            check(&ledger);
        }
        // And short gaps are not worth a mapping.
        ledger.hide_free(|_| true);
        check(&ledger);
    }

    #[test]
    fn random_runs_come_and_go() {
        let ledger = ledger();
        let mut runs = Vec::new();
        let mut state = 5u64;
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (state >> 33) as usize;
            if random % 2 == 0 || runs.is_empty() {
                let (blocks, tail) = (1 + random / 2 % 7, random / 16 % 3 * 100);
                let cold = |word: BlockWord| word.payload() as usize == random / 64 % 2;
                runs.extend(ledger.get_blocks(blocks, tail, 1, cold).map(|run| run.range));
            } else {
                let run = runs.swap_remove(random / 2 % runs.len());
                ledger.put_range(run, |_, word| word);
                let block = random / 8 % BLOCKS;
                let word = ledger.block(block);
                if word.state() == BlockState::Free {
                    ledger.mark_block(block, word, word.with_payload(1));
                }
            }
            if step % 100 == 0 {
                ledger.join_all();
                ledger.hide_free(|word| word.payload() > 0 || step % 700 == 0);
                check(&ledger);
            }
        }
    }
}
