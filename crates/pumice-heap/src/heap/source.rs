//! The work that scrubd and the keeper find in a heap.

use super::hints::{WithHints, OLDEST};
use super::{count_ready, is_free, Heap, PoolZone, ZoneKind, GROW_MIN};
use crate::scrub::{Claim, Left, Need, Outcome, Source};
use crate::stats::Event;
use pumice_frames::addr::{Order, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{AreaClaim, BlockState, BlockWord};
use pumice_frames::sync::atomic::Ordering;
use pumice_frames::sys::mem::Memory;

/// A claim's token: this bit for one of frames within a block, which carries their place; a claim of
/// a whole block carries the block's number. Both carry the node.
const AREA: u64 = 1 << 63;
const NODE_SHIFT: u32 = 57;
const NODE_MASK: u64 = 0x3f;
const PLACE: u64 = (1 << NODE_SHIFT) - 1;

/// A process that frees less than this in all its life needs no helpers: starting them would cost it more than they
/// save, and it keeps little.
const HELP_FRAMES: usize = (16 << 20) / FRAME_SIZE;

fn token(node: usize, place: u64) -> u64 {
    (node as u64) << NODE_SHIFT | place
}

fn node_of(token: u64) -> usize {
    (token >> NODE_SHIFT & NODE_MASK) as usize
}

fn area_place(area: AreaClaim) -> u64 {
    AREA | (area.block as u64) << 20 | (area.from as u64) << 10 | area.frames as u64
}

fn area_of(token: u64) -> AreaClaim {
    AreaClaim {
        block: ((token & PLACE) >> 20) as usize,
        from: (token >> 10 & 0x3ff) as usize,
        frames: (token & 0x3ff) as usize,
    }
}

impl Heap {
    /// Tells the helpers of memory that was freed and kept: `frames` of either zone, among them `blocks` whole ones in
    /// the ready zone that are dirty.
    pub(super) fn notice_freed(&'static self, frames: usize, blocks: usize) {
        // Relaxed: an amount that orders nothing.
        let before = self.freed_frames.fetch_add(frames, Ordering::Relaxed);
        let (now, step) = (before + frames, GROW_MIN / FRAME_SIZE);
        if now < HELP_FRAMES {
            // Some hundred times at most in a process's life.
            self.publish_free();
            return;
        }
        let is_much = now / step != before / step || before < HELP_FRAMES;
        if blocks > 0 || is_much {
            self.scrubber.freed(self, Order::BLOCK);
        }
    }

    /// Decays one zone; whether free memory is left in it that could.
    fn decay_zone(&self, zone: &PoolZone, keep: usize) -> bool {
        let ledger = zone.ledger();
        ledger.join_all_aside();
        // Blocks that a fork has made costly to write go at once.
        self.drop_free_blocks(zone, 0, |word| ledger.is_stale(word));
        let free = |block: &usize| is_free(ledger.block(*block));
        let held =
            (0..ledger.grown()).filter(free).filter(|&block| !ledger.block(block).is_pristine());
        let surplus = held.count().saturating_sub(keep);
        let left = core::cell::Cell::new(surplus);
        let old = |word: BlockWord| {
            word.hints().age() == OLDEST && left.replace(left.get().saturating_sub(1)) > 0
        };
        self.drop_free_blocks(zone, 0, old);
        let mut any = false;
        for block in 0..ledger.grown() {
            let word = ledger.block(block);
            if is_free(word) && !word.is_pristine() {
                any = true;
                ledger.mark_block(
                    block,
                    word,
                    word.with_hints(|it| it.with_age((it.age() + 1).min(OLDEST))),
                );
            }
        }
        any && surplus > 0
    }

    /// Lets the kernel take a block's pages when it is short of memory: a dirty block's content is
    /// nothing to anybody, a zeroed one's is the same before and after.
    fn offer_block(&self, zone: &PoolZone, block: usize) {
        if let Some(word) = zone.ledger().claim_block(block, is_to_offer) {
            // SAFETY: the block is claimed.
            let _ = unsafe { zone.memory().offer(zone.block_address(block), BLOCK_SIZE) };
            zone.ledger().release_block(block, word.with_hints(|it| it.with_offered(true)));
        }
    }
}

/// Whether a block is free, with pages that have not been offered yet.
pub(super) fn is_to_offer(word: BlockWord) -> bool {
    is_free(word) && !word.is_pristine() && !word.hints().offered()
}

// SAFETY: a claim is of blocks and areas that the ledger has taken from all others.
unsafe impl Source for Heap {
    fn age(&self, stop: Order) -> Left {
        let mut left = Left::Nothing;
        for zone in self.zones.all_of(ZoneKind::Ready) {
            for block in 0..zone.ledger().grown() {
                let word = zone.ledger().block(block);
                if is_dirty_free(zone, word) {
                    zone.ledger().mark_block(block, word, word.with_hints(|it| it.with_cold(true)));
                    left = Left::More;
                } else if stop < Order::BLOCK && dirty_parts(word) {
                    zone.ledger().settle_dirty_hint(block);
                    left = Left::More;
                }
            }
        }
        left
    }

    fn claim(&self, stop: Order) -> Option<Claim> {
        let zones = || self.zones.all_of(ZoneKind::Ready);
        let claim = match zones().find_map(claim_cold_block) {
            None if stop < Order::BLOCK => zones().find_map(|zone| claim_area(zone, stop))?,
            block => block?,
        };
        // The kernel may have taken pages of it, which then come back as scrubd writes them.
        self.zones.prefer(claim.node);
        Some(claim)
    }

    fn prefer(&self, node: usize) {
        self.zones.prefer(node);
    }

    fn finish(&self, claim: Claim, outcome: Outcome) {
        let zone = self.zones.local(node_of(claim.token), ZoneKind::Ready);
        let zeroed = outcome == Outcome::Zeroed;
        if claim.token & AREA != 0 {
            let content = if zeroed { Want::Zeroed } else { Want::Dirty };
            zone.ledger().release_area(area_of(claim.token), content);
            return;
        }
        let block = (claim.token & PLACE) as usize;
        let word = zone.ledger().block(block);
        // Clearing wrote each page, of a block too that was freed in parts and only partly there.
        let word = word.with_zeroed(zeroed).with_ready(zeroed || word.ready());
        zone.ledger()
            .release_block(block, word.with_hints(|it| it.with_cold(false).with_offered(false)));
        if zeroed {
            zone.add_ready_blocks(1);
        }
    }

    fn publish(&self) {
        self.publish_free();
    }

    fn is_at_home(&self) -> bool {
        self.slot().owner().is_here()
    }

    fn unhelped(&self) {
        self.keep_nothing_free();
    }

    fn look_for_pins(&self) {
        if self.is_recycling() && self.pins.are_possible() {
            self.stop_recycling();
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
        let zone = self.zones.local(self.ahead.node(), ZoneKind::Ready);
        let pristine = |block: &usize| zone.ledger().block(*block).is_pristine();
        if !(0..zone.ledger().grown()).any(|block| pristine(&block)) && zone.grow(left).is_err() {
            self.ahead.stop();
            return Left::Nothing;
        }
        let claim = |block| zone.ledger().claim_block(block, BlockWord::is_pristine);
        let claimed = (0..zone.ledger().grown())
            .filter(pristine)
            .find_map(|block| Some((block, claim(block)?)));
        let Some((block, word)) = claimed else {
            // Over the limit, or all taken meanwhile.
            self.ahead.stop();
            return Left::Nothing;
        };
        let at = zone.block_address(block);
        self.zones.prefer(zone.node);
        // SAFETY: the block is claimed, and committed.
        let populated = unsafe { zone.memory().populate(at, BLOCK_SIZE) }.is_ok();
        let epoch = zone.ledger().epoch();
        zone.ledger().release_block(block, word.with_ready(populated).with_epoch(epoch));
        if !populated {
            self.ahead.stop();
            return Left::Nothing;
        }
        self.slot().add(Event::PopulatedBytes, BLOCK_SIZE as u64);
        zone.add_ready_blocks(1);
        self.offer_block(zone, block);
        self.ahead.done(1);
        self.left_to_populate()
    }

    fn need(&self) -> Need {
        // Relaxed, here and below: amounts that order nothing.
        let asked = self.zeros_asked.load(Ordering::Relaxed);
        let there: usize = self.zones.all_of(ZoneKind::Ready).map(PoolZone::ready_blocks).sum();
        match there < asked {
            true => Need::Wanted,
            false => Need::Spare,
        }
    }

    fn offer(&self) -> Left {
        let mut left = Left::Nothing;
        for zone in self.zones.all() {
            for block in 0..zone.ledger().grown() {
                let word = zone.ledger().block(block);
                if !is_to_offer(word) {
                    continue;
                }
                if word.hints().age() > 0 {
                    if self.scrubber.is_waited_for() {
                        return Left::More;
                    }
                    self.offer_block(zone, block);
                } else {
                    zone.ledger().mark_block(block, word, word.with_hints(|it| it.with_age(1)));
                    left = Left::More;
                }
            }
        }
        // Memory that is taken again within a pass is not worth two calls.
        let rests = |word: BlockWord| {
            word.hints().age() > 0 || word.hints().offered() || word.is_pristine()
        };
        for zone in self.zones.all() {
            zone.ledger().hide_free(|word| rests(word) && !self.scrubber.is_waited_for());
        }
        left
    }

    fn decay(&self) -> Left {
        let forget = |asked: usize| Some(asked - asked.div_ceil(4));
        let _ = self.zeros_asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, forget);
        let is_ahead_open = self.is_ahead_open();
        let mut is_any_left = is_ahead_open;
        for zone in self.zones.all() {
            let keep = if zone.kind == ZoneKind::Ready { self.ahead.keep_on(zone.node) } else { 0 };
            is_any_left |= self.decay_zone(zone, keep);
            if zone.kind == ZoneKind::Ready {
                // The hint is put right.
                zone.set_ready_blocks(count_ready(zone));
            }
        }
        self.recount_retained();
        match is_any_left {
            true => Left::More,
            false => Left::Nothing,
        }
    }
}

/// Whether a block of a ready zone is free as a whole, and dirty. Clearing a trimmed one would fault it in.
fn is_dirty_free(zone: &PoolZone, word: BlockWord) -> bool {
    is_free(word) && !word.zeroed() && !word.trimmed() && !zone.ledger().is_stale(word)
}

fn dirty_parts(word: BlockWord) -> bool {
    word.state() == BlockState::Parts && word.dirty() && word.ready()
}

/// Claims a block that has long been free.
fn claim_cold_block(zone: &PoolZone) -> Option<Claim> {
    let cold = |word: BlockWord| is_dirty_free(zone, word) && word.hints().cold();
    let block = (0..zone.ledger().grown()).find(|&block| {
        cold(zone.ledger().block(block)) && zone.ledger().claim_block(block, cold).is_some()
    })?;
    let at = zone.block_address(block);
    let token = token(zone.node, block as u64);
    Some(Claim { at, len: BLOCK_SIZE, node: zone.node, token })
}

/// Claims frames of order `stop` and higher within a block.
fn claim_area(zone: &PoolZone, stop: Order) -> Option<Claim> {
    let area = (0..zone.ledger().grown())
        .filter(|&block| dirty_parts(zone.ledger().block(block)))
        .find_map(|block| zone.ledger().claim_dirty_area(block, stop))?;
    let at = zone.block_address(area.block).wrapping_add(area.from * FRAME_SIZE);
    let token = token(zone.node, area_place(area));
    Some(Claim { at, len: area.frames * FRAME_SIZE, node: zone.node, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_nodes_and_areas() {
        for node in [0, 1, 63] {
            for (block, from, frames) in [(70_000, 511, 512), (0, 0, 1), ((1 << 36) - 1, 511, 1)] {
                let area = AreaClaim { block, from, frames };
                let token = token(node, area_place(area));
                assert_eq!((node_of(token), area_of(token)), (node, area));
                assert!(token & AREA != 0);
            }
            let token = token(node, 70_000);
            assert_eq!((node_of(token), token & PLACE, token & AREA), (node, 70_000, 0));
        }
    }
}
