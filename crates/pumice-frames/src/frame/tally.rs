//! The free memory, counted by looking at every block word, and at the words of blocks in parts.

use super::block::{BlockState, BlockWord};
use super::ledger::{Backing, Geometry, Ledger};
use super::word::Word;
use crate::sync::atomic::Ordering;

/// Free frames of blocks that are charged for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeFrames {
    /// There and zero.
    pub zeroed: usize,
    /// There, and dirty.
    pub dirty: usize,
    /// Of blocks in parts: not there.
    pub absent: usize,
}

impl core::ops::AddAssign for FreeFrames {
    fn add_assign(&mut self, other: FreeFrames) {
        self.zeroed += other.zeroed;
        self.dirty += other.dirty;
        self.absent += other.absent;
    }
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// Counts free frames. Others change them meanwhile, so it is exact where nobody does. Memory that a helper has
    /// claimed counts as it did before the claim.
    pub fn count_free(&self) -> FreeFrames {
        let mut sum = FreeFrames::default();
        for block in 0..self.grown() {
            let word = self.block(block);
            match word.state() {
                BlockState::Free | BlockState::Claimed if !word.zeroed() => {
                    sum.dirty += G::FRAMES_PER_BLOCK;
                }
                BlockState::Free | BlockState::Claimed if word.ready() => {
                    sum.zeroed += G::FRAMES_PER_BLOCK;
                }
                BlockState::Parts => sum += self.count_free_in(block, word.ready()),
                _ => {}
            }
        }
        sum
    }

    /// Frames of grown blocks that are free, whatever is in them.
    pub fn free_frames(&self) -> usize {
        let free_in = |block: usize| match self.block(block).state() {
            BlockState::Free | BlockState::Claimed => G::FRAMES_PER_BLOCK,
            BlockState::Parts => {
                let FreeFrames { zeroed, dirty, .. } = self.count_free_in(block, true);
                zeroed + dirty
            }
            _ => 0,
        };
        (0..self.grown()).map(free_in).sum()
    }

    /// Free frames of blocks in parts that others of the same block are in use beside, and the number of such blocks.
    /// Zeroed frames of blocks of which `are_zeros_absent` says that they have no page do not count.
    pub fn count_rests(&self, are_zeros_absent: impl Fn(BlockWord) -> bool) -> (usize, usize) {
        let (mut frames, mut blocks) = (0, 0);
        for block in 0..self.grown() {
            let word = self.block(block);
            if word.state() != BlockState::Parts {
                continue;
            }
            let FreeFrames { zeroed, dirty, .. } = self.count_free_in(block, true);
            if zeroed + dirty < G::FRAMES_PER_BLOCK {
                frames += if are_zeros_absent(word) { dirty } else { zeroed + dirty };
                blocks += 1;
            }
        }
        (frames, blocks)
    }

    fn count_free_in(&self, block: usize, is_there: bool) -> FreeFrames {
        let mut sum = FreeFrames::default();
        for word in &self.words[self.words_of(block)] {
            // Relaxed: nothing is done with the frames.
            let word = Word(word.load(Ordering::Relaxed));
            let zeroed = (word.free_zeroed() & G::MASK).count_ones() as usize;
            sum.dirty += word.free_dirty(G::MASK).count_ones() as usize;
            match is_there {
                true => sum.zeroed += zeroed,
                false => sum.absent += zeroed,
            }
        }
        sum
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::addr::{BLOCK_FRAMES, BLOCK_SIZE};
    use crate::frame::block::BlockWord;
    use crate::frame::ledger::Want;
    use crate::frame::Zone;
    use crate::sys::mem::Huge;

    #[test]
    fn what_is_free_is_counted() {
        let zone = Zone::new(8 * BLOCK_SIZE, 1, Huge::No).expect("addresses");
        zone.grow(4).expect("memory");
        assert_eq!(zone.ledger.count_free(), FreeFrames::default(), "nothing is charged for");
        let run = zone.ledger.get_run(0, 100, 1, Want::Dirty).expect("free");
        let rest = BLOCK_FRAMES - 100;
        let absent = FreeFrames { absent: rest, ..FreeFrames::default() };
        assert_eq!(zone.ledger.count_free(), absent);
        zone.ledger.put_range(run.range, |_, word| word);
        let dirty = FreeFrames { dirty: 100, ..absent };
        assert_eq!(zone.ledger.count_free(), dirty);
        let block = zone.ledger.get_blocks(1, 0, 1, |_| true).expect("free");
        assert_eq!(zone.ledger.count_free(), dirty);
        zone.ledger.put_range(block.range, |_, word| word.with_ready(true).with_zeroed(false));
        assert_eq!(zone.ledger.count_free().dirty, 100 + BLOCK_FRAMES);
        let index = block.range.start.block();
        let word = zone.ledger.claim_block(index, |_| true).expect("free");
        assert_eq!(zone.ledger.count_free().dirty, 100 + BLOCK_FRAMES, "claimed is as it was");
        zone.ledger.release_block(index, word.with_zeroed(true));
        assert_eq!(zone.ledger.count_free(), FreeFrames { zeroed: BLOCK_FRAMES, ..dirty });
        zone.ledger.claim_block(index, |_| true).expect("free");
        zone.ledger.release_block(index, BlockWord::FRESH);
        assert_eq!(zone.ledger.count_free(), dirty);
    }
}
