//! What scrubd and the keeper find to do in a heap.

use super::{is_free, Heap, PoolZone, GROW_MIN};
use crate::addr::{Order, BLOCK_SIZE, FRAME_SIZE};
use crate::frame::ledger::Want;
use crate::frame::{AreaClaim, BlockState, BlockWord, OLDEST};
use crate::scrub::{Claim, Left, Need, Outcome, Source};
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::sys::mem::Memory;

/// Claims of frames within a block carry their place in the token, above this bit; claims of
/// whole blocks carry the block's number alone.
const AREA: u64 = 1 << 63;

/// A process that frees less than this in all its life needs no helpers: starting them would cost
/// it more than they save, and what it keeps is little.
const HELP_FRAMES: usize = (16 << 20) / FRAME_SIZE;

fn area_token(area: AreaClaim) -> u64 {
    AREA | (area.block as u64) << 20 | (area.from as u64) << 10 | area.frames as u64
}

fn area_of(token: u64) -> AreaClaim {
    AreaClaim {
        block: ((token & !AREA) >> 20) as usize,
        from: (token >> 10 & 0x3ff) as usize,
        frames: (token & 0x3ff) as usize,
    }
}

impl Heap {
    fn is_dirty_free(&self, word: BlockWord) -> bool {
        is_free(word) && !word.zeroed() && !self.ready.ledger.is_stale(word)
    }

    fn dirty_parts(&self, word: BlockWord) -> bool {
        word.state() == BlockState::Parts && word.dirty() && word.ready()
    }

    /// Tells the helpers what was freed and kept: `frames` of either zone, among them `blocks`
    /// whole ones in the ready zone that are dirty.
    pub(super) fn notice_freed(&'static self, frames: usize, blocks: usize) {
        // Relaxed: an amount that orders nothing.
        let before = self.freed_frames.fetch_add(frames, Ordering::Relaxed);
        let (now, step) = (before + frames, GROW_MIN / FRAME_SIZE);
        if now < HELP_FRAMES {
            return;
        }
        let is_much = now / step != before / step || before < HELP_FRAMES;
        if blocks > 0 || is_much {
            self.scrubber.freed(self, Order::BLOCK);
        }
    }

    /// Decays one zone; whether free memory is left in it that could.
    fn decay_zone(&self, zone: &PoolZone, keep: usize) -> bool {
        let ledger = &zone.ledger;
        ledger.join_all_aside();
        // What a fork has made costly to write goes at once.
        self.drop_free_blocks(zone, |word| ledger.is_stale(word));
        let free = |block: &usize| is_free(ledger.block(*block));
        let held =
            (0..ledger.grown()).filter(free).filter(|&block| !ledger.block(block).is_pristine());
        let surplus = held.count().saturating_sub(keep);
        let left = core::cell::Cell::new(surplus);
        let old = |word: BlockWord| {
            word.age() == OLDEST && left.replace(left.get().saturating_sub(1)) > 0
        };
        self.drop_free_blocks(zone, old);
        let mut any = false;
        for block in 0..ledger.grown() {
            let word = ledger.block(block);
            if is_free(word) && !word.is_pristine() {
                any = true;
                ledger.mark_block(block, word, word.with_age((word.age() + 1).min(OLDEST)));
            }
        }
        any && surplus > 0
    }

    /// Lets the kernel take a block's pages when it is short of memory: a dirty block's content is
    /// nothing to anybody, a zeroed one's is the same before and after.
    fn offer_block(&self, zone: &PoolZone, block: usize) {
        if let Some(word) = zone.ledger.claim_block(block, is_to_offer) {
            // SAFETY: the block is claimed.
            let _ = unsafe { zone.memory().offer(zone.block_address(block), BLOCK_SIZE) };
            zone.ledger.release_block(block, word.with_offered(true));
        }
    }
}

/// Whether a block is free, with pages that have not been offered yet.
pub(super) fn is_to_offer(word: BlockWord) -> bool {
    is_free(word) && !word.is_pristine() && !word.offered()
}

impl Source for Heap {
    fn age(&self, stop: Order) -> Left {
        let ledger = &self.ready.ledger;
        let mut left = Left::Nothing;
        for block in 0..ledger.grown() {
            let word = ledger.block(block);
            if self.is_dirty_free(word) {
                ledger.mark_block(block, word, word.with_cold(true));
                left = Left::More;
            } else if stop < Order::BLOCK && self.dirty_parts(word) {
                ledger.settle_dirty_hint(block);
                left = Left::More;
            }
        }
        left
    }

    fn claim(&self, stop: Order) -> Option<Claim> {
        let ledger = &self.ready.ledger;
        let cold = |word: BlockWord| self.is_dirty_free(word) && word.cold();
        for block in 0..ledger.grown() {
            if cold(ledger.block(block)) && ledger.claim_block(block, cold).is_some() {
                let at = self.ready.block_address(block);
                return Some(Claim { at, len: BLOCK_SIZE, token: block as u64 });
            }
        }
        if stop >= Order::BLOCK {
            return None;
        }
        let area = (0..ledger.grown())
            .filter(|&block| self.dirty_parts(ledger.block(block)))
            .find_map(|block| ledger.claim_dirty_area(block, stop))?;
        let at = self.ready.block_address(area.block).wrapping_add(area.from * FRAME_SIZE);
        Some(Claim { at, len: area.frames * FRAME_SIZE, token: area_token(area) })
    }

    fn finish(&self, claim: Claim, outcome: Outcome) {
        let ledger = &self.ready.ledger;
        let zeroed = outcome == Outcome::Zeroed;
        if claim.token & AREA != 0 {
            let content = if zeroed { Want::Zeroed } else { Want::Dirty };
            ledger.release_area(area_of(claim.token), content);
            return;
        }
        let block = claim.token as usize;
        let word = ledger.block(block);
        ledger.release_block(block, word.with_zeroed(zeroed).with_cold(false).with_offered(false));
        if zeroed {
            self.add_ready_blocks(1);
        }
    }

    fn left_to_populate(&self) -> Left {
        match self.ahead.left() {
            0 => Left::Nothing,
            _ => Left::More,
        }
    }

    fn populate(&self) -> Left {
        let left = self.ahead.left();
        if left == 0 {
            return Left::Nothing;
        }
        let zone = &self.ready;
        let pristine = |block: &usize| zone.ledger.block(*block).is_pristine();
        if !(0..zone.ledger.grown()).any(|block| pristine(&block)) && zone.grow(left).is_err() {
            self.ahead.stop();
            return Left::Nothing;
        }
        let claim = |block| zone.ledger.claim_block(block, BlockWord::is_pristine);
        let claimed = (0..zone.ledger.grown())
            .filter(pristine)
            .find_map(|block| Some((block, claim(block)?)));
        let Some((block, word)) = claimed else {
            // Over the limit, or all taken meanwhile.
            self.ahead.stop();
            return Left::Nothing;
        };
        let at = zone.block_address(block);
        // SAFETY: the block is claimed, and committed.
        let populated = unsafe { zone.memory().populate(at, BLOCK_SIZE) }.is_ok();
        let epoch = zone.ledger.epoch();
        zone.ledger.release_block(block, word.with_ready(populated).with_epoch(epoch));
        if !populated {
            self.ahead.stop();
            return Left::Nothing;
        }
        self.slot().add(Event::PopulatedBytes, BLOCK_SIZE as u64);
        self.add_ready_blocks(1);
        self.offer_block(zone, block);
        self.ahead.done(1);
        self.left_to_populate()
    }

    fn need(&self) -> Need {
        // Relaxed, here and below: amounts that order nothing.
        let asked = self.zeros_asked.load(Ordering::Relaxed);
        match self.ready_blocks.load(Ordering::Relaxed) < asked {
            true => Need::Wanted,
            false => Need::Spare,
        }
    }

    fn offer(&self) -> Left {
        let mut left = Left::Nothing;
        for zone in [&self.ready, &self.demand] {
            for block in 0..zone.ledger.grown() {
                let word = zone.ledger.block(block);
                if !is_to_offer(word) {
                    continue;
                }
                if word.age() > 0 {
                    if self.scrubber.is_waited_for() {
                        return Left::More;
                    }
                    self.offer_block(zone, block);
                } else {
                    zone.ledger.mark_block(block, word, word.with_age(1));
                    left = Left::More;
                }
            }
        }
        left
    }

    fn decay(&self) -> Left {
        let forget = |asked: usize| Some(asked - asked.div_ceil(4));
        let _ = self.zeros_asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, forget);
        let demand = self.decay_zone(&self.demand, 0);
        let is_ahead_open = self.is_ahead_open();
        let ready = self.decay_zone(&self.ready, self.ahead.keep());
        let (count, _) = self.ready_blocks();
        // Relaxed: the hint is put right.
        self.ready_blocks.store(count, Ordering::Relaxed);
        if demand || ready || is_ahead_open {
            Left::More
        } else {
            Left::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_areas() {
        let area = AreaClaim { block: 70_000, from: 511, frames: 512 };
        assert_eq!(area_of(area_token(area)), area);
        let small = AreaClaim { block: 0, from: 0, frames: 1 };
        assert_eq!(area_of(area_token(small)), small);
    }
}
