//! Runs of whole blocks, with a tail in the next one, and blocks that become whole again.
//!
//! Whole blocks are claimed in their block words alone.

use core::ops::Range;

use super::block::{BlockState, BlockWord, ROOM_ALL};
use super::ledger::{Backing, Geometry, Ledger};
use super::runs::{Dirt, Run};
use super::word::Word;
use crate::addr::{PageRange, Pfn};
use crate::sync::atomic::Ordering;

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// Gets a run of `blocks` whole blocks followed by `tail` frames, the first block's number a
    /// multiple of `align`; every whole block must satisfy `fits` (all are free).
    pub fn get_blocks(
        &self,
        blocks: usize,
        tail: usize,
        align: usize,
        fits: impl Fn(BlockWord) -> bool,
    ) -> Option<Run> {
        debug_assert!(blocks > 0 && tail < G::FRAMES_PER_BLOCK && align.is_power_of_two());
        let grown = self.grown();
        let needed = blocks + usize::from(tail > 0);
        let mut start = 0;
        if !self.may_have(blocks) {
            return None;
        }
        // A run may have no more pristine blocks than there is room for: they would be claimed in vain.
        let mut room = self.backing.room();
        while start + needed <= grown {
            let unfit = |block: &usize| {
                let word = self.block(*block);
                word.state() != BlockState::Free || !fits(word)
            };
            let last_unfit = match (start..start + blocks).rev().find(unfit) {
                Some(block) => block,
                None => match self.pristine_beyond(start..start + blocks, room) {
                    Some(block) => block,
                    None => match self.claim_blocks(start, blocks, tail) {
                        Some(run) => return Some(run),
                        None => {
                            room = self.backing.room();
                            start
                        }
                    },
                },
            };
            start = (last_unfit + 1).next_multiple_of(align);
        }
        None
    }

    /// The last of the first pristine blocks that are too many where there is room for so many only, if they are.
    fn pristine_beyond(&self, blocks: Range<usize>, room: usize) -> Option<usize> {
        if room >= blocks.len() {
            return None;
        }
        let pristine = |block: &usize| self.block(*block).is_pristine();
        blocks.rev().filter(pristine).nth(room)
    }

    /// Gets all frames of a free block that is zeroed, each as a run of its own: its first frame.
    pub fn get_frames_of_block(&self) -> Option<Pfn> {
        let (block, word) = (0..self.grown()).find_map(|block| {
            let taken = self.take_block(block, |word| word.zeroed() && !self.is_stale(word));
            Some((block, taken?))
        })?;
        if word.hidden() {
            self.show(block..block + 1);
        }
        for word in &self.words[self.words_of(block)] {
            // Release: as in `open_words`.
            word.store(Word(0).allocate(G::MASK, G::MASK).0, Ordering::Release);
        }
        let parts = BlockWord::new()
            .with_state(BlockState::Parts)
            .with_ready(word.ready())
            .with_tainted(word.tainted())
            .with_epoch(self.epoch());
        self.set_block(block, parts);
        Some(Self::block_start(block))
    }

    fn claim_blocks(&self, start: usize, blocks: usize, tail: usize) -> Option<Run> {
        let whole = self.extend_blocks(start, start, blocks, tail)?;
        let range = PageRange {
            start: Self::block_start(start),
            frames: blocks * G::FRAMES_PER_BLOCK + tail,
        };
        Some(Run { range, dirt: whole })
    }

    /// Claims blocks `from..from + blocks` and the `tail` frames after them for the run that
    /// starts with block `first`, the end first (see [`Ledger::claim_span`]).
    pub(super) fn extend_blocks(
        &self,
        first: usize,
        from: usize,
        blocks: usize,
        tail: usize,
    ) -> Option<Dirt> {
        let end = from + blocks;
        if end > self.grown() || self.pristine_beyond(from..end, self.backing.room()).is_some() {
            return None;
        }
        let dirt = if tail == 0 { Dirt::NONE } else { self.claim_tail(end, tail)? };
        let give_up = |claimed: Range<usize>| {
            self.unclaim_blocks(claimed);
            self.release_span(end, 0, tail, &dirt);
            self.note_change();
            None
        };
        let (mut pristine, mut is_hidden) = (0, false);
        for block in (from..end).rev() {
            let word = self.block(block);
            is_hidden |= word.hidden();
            pristine += usize::from(word.is_pristine());
            let whole = word
                .with_state(BlockState::Whole)
                .with_first(block == first)
                .with_last(block + 1 == end && tail == 0);
            let free = word.state() == BlockState::Free;
            if !(free && self.swap_block(block, word, whole)) {
                return give_up(block + 1..end);
            }
        }
        if pristine > 0 && !self.backing.charge(pristine) {
            return give_up(from..end);
        }
        self.count_free_blocks(0, blocks);
        self.count_held_blocks(0, blocks - pristine);
        if is_hidden {
            self.show(from..end);
        }
        Some(dirt)
    }

    /// The first one first: the rest never seems to go on into the memory that follows it.
    #[inline]
    fn unclaim_blocks(&self, blocks: Range<usize>) {
        for block in blocks {
            let word = self.block(block).with_state(BlockState::Free);
            self.set_block(block, word.with_first(false).with_last(false));
        }
    }

    fn claim_tail(&self, block: usize, tail: usize) -> Option<Dirt> {
        if block >= self.grown() {
            return None;
        }
        let word = self.block(block);
        match word.state() {
            // The blocks before it have the pages that stayed there, too.
            BlockState::Free if self.split(block, word, tail, tail) => {
                Some(self.dirt_of_split(word, tail))
            }
            BlockState::Parts => self.claim_span(block, 0, tail).ok(),
            _ => None,
        }
    }

    /// Turns all blocks in parts that are free altogether back into free ones; says whether there
    /// were any. A put leaves this for later: it costs sixteen locked operations.
    pub fn join_all(&self) -> bool {
        !self.is_joined() && (0..self.grown()).filter(|&block| self.join(block)).count() > 0
    }

    /// As [`Ledger::join_all`], for helpers: a thread that asks whether a frame is allocated is told that it is not.
    pub fn join_all_aside(&self) {
        for block in 0..self.grown() {
            if self.block(block).state() == BlockState::Parts && self.working.begin() {
                self.join(block);
                self.working.end();
            }
        }
    }

    /// Turns a block in parts back into a free one, if all its frames are free.
    pub fn join(&self, block: usize) -> bool {
        self.join_with(block, |_| 0)
    }

    /// As [`Ledger::join`]. Its word has, from now on, the number about its pages that `of_pages` gives for
    /// the frames that are dirty, if any are ([`BlockWord::of_pages`]).
    pub fn join_with(&self, block: usize, of_pages: impl FnOnce(&Dirt) -> u32) -> bool {
        // A block that never was in parts has words that say nothing; one that was says
        // "allocated" when it is not (invariant 3).
        if self.block(block).state() != BlockState::Parts {
            return false;
        }
        // A put that comes after the look at the words counts as a change: before it, the block's word says that
        // something is known. SeqCst: see "The hint that must not get lost" in `block`.
        self.update_hints(block, |word| word.with_room(word.room().min(ROOM_ALL)));
        let words = &self.words[self.words_of(block)];
        if words.iter().any(|word| Word(word.load(Ordering::SeqCst)).free(G::MASK) != G::MASK) {
            return false;
        }
        let Ok(dirt) = self.claim_span(block, 0, G::FRAMES_PER_BLOCK) else { return false };
        // Every frame is ours: from here on the words say allocated, and no run ends in them.
        for word in words {
            word.store(Word(0).allocate(G::MASK, 0).0, Ordering::Release);
        }
        let is_there = !dirt.is_clean() && self.backing.is_huge();
        let of_pages = if dirt.is_clean() { 0 } else { of_pages(&dirt) };
        let mut old = self.block(block);
        loop {
            let free = BlockWord::new()
                .with_state(BlockState::Free)
                .with_zeroed(dirt.is_clean())
                .with_ready(old.ready() || is_there && !old.trimmed())
                .with_trimmed(old.trimmed() && !dirt.is_clean())
                .with_of_pages(of_pages)
                .with_epoch(old.epoch());
            // Others may still change hints of a block in parts.
            if self.swap_block(block, old, free) {
                self.count_free_blocks(1, 0);
                self.count_held_blocks(usize::from(!free.is_pristine()), 0);
                // Split for a run that then could not be had, and never touched.
                if free.is_pristine() {
                    self.backing.uncharge(1);
                }
                self.note_change();
                return true;
            }
            old = self.block(block);
        }
    }
}
