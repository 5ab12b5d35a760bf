//! Runs of frames: within one block, or whole blocks and a tail at the start of the next.
//!
//! A run within a block is claimed word by word, and rolled back if somebody else took a frame
//! meanwhile; the search then goes on elsewhere. Whole blocks are claimed in their block words
//! alone. A put stores full words plainly: all their frames are the caller's, so nobody else may
//! write them.

use core::ops::Range;

use super::block::{BlockState, BlockWord};
use super::ledger::{Backing, Geometry, Ledger, Want, MAX_WORDS_PER_BLOCK};
use super::word::{self, Word};
use crate::addr::{PageRange, Pfn};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;

/// How many blocks a search for a run looks through for the best fit before it takes any.
const NEAR_BLOCKS: usize = 32;

/// Which frames of the part of a run that lies in a block in parts were not zeroed when they
/// were claimed: one mask for each word of that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirt {
    masks: [u32; MAX_WORDS_PER_BLOCK],
}

impl Dirt {
    /// None.
    pub const NONE: Dirt = Dirt { masks: [0; MAX_WORDS_PER_BLOCK] };

    /// Whether there is none.
    pub fn is_clean(&self) -> bool {
        self.masks == [0; MAX_WORDS_PER_BLOCK]
    }

    /// Frames `from..from + frames` of a block, all of them.
    pub(super) fn all<G: Geometry>(from: usize, frames: usize) -> Dirt {
        let mut dirt = Dirt::NONE;
        for (index, piece) in pieces::<G>(from, frames) {
            dirt.masks[index] = piece;
        }
        dirt
    }

    /// The dirty frames as ranges within the block, each as long as can be.
    pub fn ranges<G: Geometry>(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let per_word = G::FRAMES_PER_WORD as usize;
        let is_dirty =
            move |frame: usize| self.masks[frame / per_word] & 1 << (frame % per_word) != 0;
        let mut from = 0;
        core::iter::from_fn(move || {
            let end = G::FRAMES_PER_BLOCK;
            while from < end && from % per_word == 0 && self.masks[from / per_word] == 0 {
                from += per_word;
            }
            let start = (from..end).find(|&frame| is_dirty(frame))?;
            from = (start..end).find(|&frame| !is_dirty(frame)).unwrap_or(end);
            Some(start..from)
        })
    }
}

/// A run that was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its frames.
    pub range: PageRange,
    /// What is dirty in the part that lies in a block in parts. Whole blocks say so in their
    /// [`BlockWord::zeroed`].
    pub dirt: Dirt,
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// Gets a run shorter than a block, aligned to `align` frames (a power of two), of the
    /// wanted kind where such a run is at hand.
    pub fn get_run(&self, cpu: usize, frames: usize, align: usize, want: Want) -> Option<Run> {
        debug_assert!((1..G::FRAMES_PER_BLOCK).contains(&frames) && align.is_power_of_two());
        let slot = &self.cpu(cpu).run;
        let recent = slot.load(Ordering::Relaxed);
        if let Some(run) = self.get_run_at(recent.next_multiple_of(align), frames, want) {
            slot.store(run.range.end().0, Ordering::Relaxed);
            return Some(run);
        }
        let recent = recent / G::FRAMES_PER_BLOCK;
        let grown = self.grown();
        let order = (recent..grown).chain(0..recent.min(grown));
        // First what is near and broken up already, then whole blocks, then all the rest.
        let near = order.clone().take(NEAR_BLOCKS);
        let found = self
            .get_run_among(near, frames, align, want)
            .or_else(|| self.get_run_by_splitting(order.clone(), frames, want))
            .or_else(|| self.get_run_among(order.clone().skip(NEAR_BLOCKS), frames, align, want));
        if let Some(run) = found {
            slot.store(run.range.end().0, Ordering::Relaxed);
            return found;
        }
        let parts = |block: &usize| self.block(*block).state() == BlockState::Parts;
        order.filter(parts).find_map(|block| self.get_run_in_block(block, frames, align, want))
    }

    /// Gets a run from one of these blocks, if it is in parts and its hint does not rule it out.
    fn get_run_among(
        &self,
        mut blocks: impl Iterator<Item = usize>,
        frames: usize,
        align: usize,
        want: Want,
    ) -> Option<Run> {
        blocks.find_map(|block| {
            let word = self.block(block);
            if word.state() != BlockState::Parts || !word.may_have_run(frames) {
                return None;
            }
            let run = self.get_run_in_block(block, frames, align, want);
            if run.is_none() && align == 1 {
                // Something may have been put just before; then the hint is only too low until
                // the next put, and the last resort does not read it.
                self.update_hints(block, |word| {
                    word.with_room(word.room().min(BlockWord::room_without(frames)))
                });
            }
            run
        })
    }

    /// Gets a run at the start of a block that is free as a whole, of the wanted kind if there
    /// is one near.
    fn get_run_by_splitting(
        &self,
        blocks: impl Iterator<Item = usize> + Clone,
        frames: usize,
        want: Want,
    ) -> Option<Run> {
        let free = |block: &usize| self.block(*block).state() == BlockState::Free;
        let liked = |block: &usize| self.block(*block).zeroed() == (want == Want::Zeroed);
        let near = blocks.clone().filter(free).take(NEAR_BLOCKS).filter(liked);
        near.chain(blocks.filter(free)).find_map(|block| {
            let word = self.block(block);
            let split = word.state() == BlockState::Free && self.split(block, word, frames);
            split.then(|| Run {
                range: PageRange { start: Self::block_start(block), frames },
                dirt: self.dirt_of_split(word, frames),
            })
        })
    }

    /// Gets the run that starts at frame `at`, or at the next word if it would span words, if it
    /// is free and as wanted: the usual case after a run was got just before it.
    #[inline]
    fn get_run_at(&self, at: usize, frames: usize, want: Want) -> Option<Run> {
        let per_word = G::FRAMES_PER_WORD as usize;
        let spans = at % per_word + frames > per_word;
        let at = if spans { at.next_multiple_of(per_word) } else { at };
        let (block, from) = (at / G::FRAMES_PER_BLOCK, at % G::FRAMES_PER_BLOCK);
        if from + frames > G::FRAMES_PER_BLOCK || block >= self.grown() {
            return None;
        }
        if self.block(block).state() != BlockState::Parts {
            return None;
        }
        let first_word = self.words_of(block).start;
        let fits = pieces::<G>(from, frames).all(|(index, piece)| {
            let word = Word(self.words[first_word + index].load(Ordering::Relaxed));
            let free = if want == Want::Zeroed { word.free_zeroed() } else { word.free(G::MASK) };
            free & piece == piece
        });
        let dirt = if fits { self.claim_span(block, from, frames).ok()? } else { return None };
        Some(Run { range: PageRange { start: Pfn(at), frames }, dirt })
    }

    fn dirt_of_split(&self, word: BlockWord, frames: usize) -> Dirt {
        // A stale block may have been refreshed; calling it dirty costs clearing, nothing else.
        if word.zeroed() {
            Dirt::NONE
        } else {
            Dirt::all::<G>(0, frames)
        }
    }

    pub(super) fn block_start(block: usize) -> Pfn {
        Pfn(block * G::FRAMES_PER_BLOCK)
    }

    fn get_run_in_block(
        &self,
        block: usize,
        frames: usize,
        align: usize,
        want: Want,
    ) -> Option<Run> {
        for zeroed_only in [want == Want::Zeroed, false] {
            // Each conflict means that somebody else got frames here.
            for _attempt in 0..4 {
                let Some(start) = self.find_run(block, frames, align, zeroed_only) else { break };
                if let Ok(dirt) = self.claim_span(block, start, frames) {
                    let start = Pfn(Self::block_start(block).0 + start);
                    return Some(Run { range: PageRange { start, frames }, dirt });
                }
            }
            if !zeroed_only {
                break;
            }
        }
        None
    }

    /// Where a run of free frames starts in a block: in one word if it can, else at a word's
    /// start, else anywhere.
    fn find_run(
        &self,
        block: usize,
        frames: usize,
        align: usize,
        zeroed_only: bool,
    ) -> Option<usize> {
        let per_word = G::FRAMES_PER_WORD as usize;
        let mut free = [0u32; MAX_WORDS_PER_BLOCK];
        let words = &self.words[self.words_of(block)];
        for (free, word) in free.iter_mut().zip(words) {
            let word = Word(word.load(Ordering::Relaxed));
            *free = if zeroed_only { word.free_zeroed() } else { word.free(G::MASK) };
        }
        let free = &free[..words.len()];
        if frames <= per_word {
            let aligned = aligned_starts(align.min(per_word));
            let step = (align / per_word).max(1);
            let found = free.iter().enumerate().step_by(step).find_map(|(index, &bits)| {
                let starts = word::run_starts(bits, frames as u32) & aligned;
                (starts != 0).then(|| index * per_word + starts.trailing_zeros() as usize)
            });
            if found.is_some() {
                return found;
            }
        }
        find_long_run(free, per_word, G::MASK, frames, align)
    }

    /// Claims frames `from..from + frames` of a block in parts as one run.
    pub(super) fn claim_span(
        &self,
        block: usize,
        from: usize,
        frames: usize,
    ) -> core::result::Result<Dirt, ()> {
        let mut dirt = Dirt::NONE;
        let first_word = self.words_of(block).start;
        let per_word = G::FRAMES_PER_WORD as usize;
        let final_word = (from + frames - 1) / per_word;
        for (index, piece) in pieces::<G>(from, frames) {
            let last = if index == final_word { 1 << ((from + frames - 1) % per_word) } else { 0 };
            // Acquire: pairs with the puts that freed the frames.
            let claimed =
                word::update(&self.words[first_word + index], Ordering::Acquire, |word| {
                    (word.free(piece) == piece).then(|| word.allocate(piece, last))
                });
            match claimed {
                Ok(before) => dirt.masks[index] = before.free_dirty(piece),
                Err(_) => {
                    let done = (index * per_word).saturating_sub(from);
                    self.release_span(block, from, done, &dirt);
                    return Err(());
                }
            }
        }
        Ok(dirt)
    }

    /// Frees frames `from..from + frames` of a block in parts; those not in `dirt` are zeroed.
    pub(super) fn release_span(&self, block: usize, from: usize, frames: usize, dirt: &Dirt) {
        if frames == 0 {
            return;
        }
        let first_word = self.words_of(block).start;
        let (mut some_zeroed, mut some_dirty) = (false, false);
        for (index, piece) in pieces::<G>(from, frames) {
            let dirty = dirt.masks[index] & piece;
            some_dirty |= dirty != 0;
            some_zeroed |= piece & !dirty != 0;
            // SeqCst includes release, for the next owner, and see `block` for the hint.
            let _ = word::update(&self.words[first_word + index], Ordering::SeqCst, |word| {
                Some(word.release(piece, piece & !dirty))
            });
        }
        for (kind, some) in [(Want::Zeroed, some_zeroed), (Want::Dirty, some_dirty)] {
            if some {
                self.note_free(block, kind);
            }
        }
    }

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
        while start + needed <= grown {
            let unfit = |block: &usize| {
                let word = self.block(*block);
                word.state() != BlockState::Free || !fits(word)
            };
            let last_unfit = match (start..start + blocks).rev().find(unfit) {
                Some(block) => block,
                None => match self.claim_blocks(start, blocks, tail) {
                    Some(run) => return Some(run),
                    None => start,
                },
            };
            start = (last_unfit + 1).next_multiple_of(align);
        }
        None
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
    /// starts with block `first`.
    fn extend_blocks(&self, first: usize, from: usize, blocks: usize, tail: usize) -> Option<Dirt> {
        let end = from + blocks;
        let mut pristine = 0;
        for block in from..end {
            let word = self.block(block);
            pristine += usize::from(word.is_pristine());
            let whole = word
                .with_state(BlockState::Whole)
                .with_first(block == first)
                .with_last(block + 1 == end && tail == 0);
            let free = word.state() == BlockState::Free;
            if !(free && self.swap_block(block, word, whole)) {
                self.unclaim_blocks(from..block);
                return None;
            }
        }
        if pristine > 0 && !self.backing.charge(pristine) {
            self.unclaim_blocks(from..end);
            return None;
        }
        let dirt = if tail == 0 { Some(Dirt::NONE) } else { self.claim_tail(end, tail) };
        match dirt {
            Some(_) => self.count_free_blocks(0, blocks),
            None => {
                self.unclaim_blocks(from..end);
                self.backing.uncharge(pristine);
            }
        }
        dirt
    }

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
            BlockState::Free if self.split(block, word, tail) => {
                Some(self.dirt_of_split(word, tail))
            }
            BlockState::Parts => self.claim_span(block, 0, tail).ok(),
            _ => None,
        }
    }

    /// The run that starts at `pfn`, if one does.
    #[inline]
    pub fn run_at(&self, pfn: Pfn) -> Option<PageRange> {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (pfn.0 / per_block, pfn.0 % per_block);
        if first >= self.grown() {
            return None;
        }
        match self.block(first).state() {
            BlockState::Whole if offset == 0 && self.block(first).first() => {
                let mut block = first;
                while self.block(block).state() == BlockState::Whole {
                    block += 1;
                    if self.block(block - 1).last() {
                        return Some(PageRange { start: pfn, frames: (block - first) * per_block });
                    }
                }
                let tail = self.run_length(block, 0)?;
                Some(PageRange { start: pfn, frames: (block - first) * per_block + tail })
            }
            BlockState::Parts => {
                let frames = self.run_length(first, offset)?;
                Some(PageRange { start: pfn, frames })
            }
            _ => None,
        }
    }

    /// Frames from `offset` of a block in parts to the end of the run there.
    fn run_length(&self, block: usize, offset: usize) -> Option<usize> {
        let per_word = G::FRAMES_PER_WORD as usize;
        let words = self.words_of(block);
        let mut at = offset;
        while at < G::FRAMES_PER_BLOCK {
            let word = Word(self.words[words.start + at / per_word].load(Ordering::Relaxed));
            let shift = at % per_word;
            let rest = G::MASK >> shift;
            let (allocated, last) = (word.allocated() >> shift, word.last() >> shift);
            let until = if last & rest == 0 { rest } else { last ^ last.wrapping_sub(1) };
            if allocated & until != until {
                return None;
            }
            if last & rest != 0 {
                return Some(at + last.trailing_zeros() as usize + 1 - offset);
            }
            at += per_word - shift;
        }
        None
    }

    /// Puts a run back. `condition` is asked for each whole block what it is now: it is given
    /// the block's number and its word, and says whether it is zeroed and ready.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] if no run starts there.
    pub fn put_run(
        &self,
        pfn: Pfn,
        condition: impl FnMut(usize, BlockWord) -> BlockWord,
    ) -> Result<PageRange> {
        let range = self.run_at(pfn).ok_or(Error::NotAllocated)?;
        self.put_range(range, condition);
        Ok(range)
    }

    /// As [`Ledger::put_run`], for a run whose length the caller has just asked for.
    pub fn put_range(
        &self,
        range: PageRange,
        condition: impl FnMut(usize, BlockWord) -> BlockWord,
    ) {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (range.start.0 / per_block, range.start.0 % per_block);
        if self.block(first).state() != BlockState::Whole {
            self.put_frames(first, offset, range.frames);
            return;
        }
        let (blocks, tail) = (range.frames / per_block, range.frames % per_block);
        if tail > 0 {
            self.put_frames(first + blocks, 0, tail);
        }
        self.put_blocks(first..first + blocks, condition);
    }

    fn put_blocks(
        &self,
        blocks: Range<usize>,
        mut condition: impl FnMut(usize, BlockWord) -> BlockWord,
    ) {
        self.count_free_blocks(blocks.len(), 0);
        let mut pristine = 0;
        for block in blocks {
            let old = self.block(block);
            let now = condition(block, old);
            let free = BlockWord::new()
                .with_state(BlockState::Free)
                .with_zeroed(now.zeroed())
                .with_ready(now.ready())
                .with_tainted(now.tainted())
                .with_epoch(now.epoch());
            pristine += usize::from(free.is_pristine());
            self.set_block(block, free);
        }
        if pristine > 0 {
            self.backing.uncharge(pristine);
        }
    }

    /// Frees frames of a run in a block in parts, with unknown content.
    fn put_frames(&self, block: usize, from: usize, frames: usize) {
        let first_word = self.words_of(block).start;
        let final_word = (from + frames - 1) / G::FRAMES_PER_WORD as usize;
        for (index, piece) in pieces::<G>(from, frames) {
            let word = &self.words[first_word + index];
            if piece == G::MASK && index != final_word {
                // All 32 frames are the caller's: nobody else writes this word now. Release, for
                // the next owner; the last word's SeqCst step comes before the look at the hint.
                word.store(Word(0).0, Ordering::Release);
                continue;
            }
            let _ = word::update(word, Ordering::SeqCst, |word| Some(word.release(piece, 0)));
        }
        self.note_free(block, Want::Dirty);
    }

    /// Turns all blocks in parts that are free altogether back into free ones; says whether there
    /// were any. A put leaves this for later: it costs sixteen locked operations.
    pub fn join_all(&self) -> bool {
        (0..self.grown()).filter(|&block| self.join(block)).count() > 0
    }

    /// Turns a block in parts back into a free one, if all its frames are free.
    pub fn join(&self, block: usize) -> bool {
        // A block that never was in parts has words that say nothing; one that was says
        // "allocated" when it is not (invariant 3).
        if self.block(block).state() != BlockState::Parts {
            return false;
        }
        let words = &self.words[self.words_of(block)];
        if words.iter().any(|word| Word(word.load(Ordering::Relaxed)).free(G::MASK) != G::MASK) {
            return false;
        }
        let Ok(dirt) = self.claim_span(block, 0, G::FRAMES_PER_BLOCK) else { return false };
        // Every frame is ours: from here on the words say allocated, and no run ends in them.
        for word in words {
            word.store(Word(0).allocate(G::MASK, 0).0, Ordering::Release);
        }
        let mut old = self.block(block);
        loop {
            let free = BlockWord::new()
                .with_state(BlockState::Free)
                .with_zeroed(dirt.is_clean())
                .with_ready(old.ready())
                .with_tainted(old.tainted())
                .with_epoch(old.epoch());
            // Others may still change hints of a block in parts.
            if self.swap_block(block, old, free) {
                self.count_free_blocks(1, 0);
                return true;
            }
            old = self.block(block);
        }
    }

    /// Lengthens a run to `frames` where it stands, if what follows it is free: the run that was
    /// added, with its dirt.
    pub fn extend_run(&self, range: PageRange, frames: usize) -> Option<Run> {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (range.start.0 / per_block, range.start.0 % per_block);
        let added = PageRange { start: range.end(), frames: frames - range.frames };
        if self.block(first).state() != BlockState::Whole {
            let dirt = self.extend_frames(first, offset + range.frames, added.frames)?;
            return Some(Run { range: added, dirt });
        }
        let (blocks, tail) = (range.frames / per_block, range.frames % per_block);
        let (new_blocks, new_tail) = (frames / per_block, frames % per_block);
        if tail > 0 {
            // Growing out of a tail would have to make a whole block of it.
            if new_blocks != blocks {
                return None;
            }
            let dirt = self.extend_frames(first + blocks, tail, added.frames)?;
            return Some(Run { range: added, dirt });
        }
        let more = new_blocks - blocks;
        let dirt = self.extend_blocks(first, first + blocks, more, new_tail)?;
        let end = first + blocks - 1;
        self.set_block(end, self.block(end).with_last(false));
        Some(Run { range: added, dirt })
    }

    fn extend_frames(&self, block: usize, from: usize, frames: usize) -> Option<Dirt> {
        if from + frames > G::FRAMES_PER_BLOCK {
            return None;
        }
        let dirt = self.claim_span(block, from, frames).ok()?;
        self.set_last(block, from - 1, false);
        Some(dirt)
    }

    fn set_last(&self, block: usize, frame: usize, is_last: bool) {
        let (index, bit) = Self::locate(Pfn(Self::block_start(block).0 + frame));
        let last = if is_last { bit } else { 0 };
        // Relaxed: the frame is the caller's before and after; neighbours' bits are kept.
        let _ = word::update(&self.words[index], Ordering::Relaxed, |word| {
            Some(word.allocate(bit, last))
        });
    }

    /// Shortens a run to `frames` (at least one); the rest is put back with unknown content.
    pub fn truncate_run(
        &self,
        range: PageRange,
        frames: usize,
        mut condition: impl FnMut(usize, BlockWord) -> BlockWord,
    ) {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (range.start.0 / per_block, range.start.0 % per_block);
        if self.block(first).state() != BlockState::Whole {
            self.set_last(first, offset + frames - 1, true);
            self.put_frames(first, offset + frames, range.frames - frames);
            return;
        }
        let (blocks, tail) = (range.frames / per_block, range.frames % per_block);
        let (keep, new_tail) = (frames / per_block, frames % per_block);
        if keep == blocks {
            // Only the tail shrinks.
            if new_tail == 0 {
                let end = first + blocks - 1;
                self.set_block(end, self.block(end).with_last(true));
            } else {
                self.set_last(first + blocks, new_tail - 1, true);
            }
            self.put_frames(first + blocks, new_tail, tail - new_tail);
            return;
        }
        if tail > 0 {
            self.put_frames(first + blocks, 0, tail);
        }
        let cut = first + keep;
        let mut freed = cut..first + blocks;
        if new_tail > 0 {
            // The block that is cut in two becomes one in parts. It is ours: plain stores.
            let word = condition(cut, self.block(cut));
            self.open_words(cut, new_tail, false);
            let parts = BlockWord::new()
                .with_state(BlockState::Parts)
                .with_dirty(true)
                .with_ready(word.ready())
                .with_tainted(word.tainted())
                .with_room(super::block::ROOM_UNKNOWN)
                .with_epoch(word.epoch());
            // A run may not start in parts: with no whole block left, its first frames are it.
            self.set_block(cut, parts);
            freed.start += 1;
        }
        if keep > 0 && new_tail == 0 {
            self.set_block(cut - 1, self.block(cut - 1).with_last(true));
        }
        self.put_blocks(freed, condition);
    }
}

/// The words that frames `from..from + frames` of a block lie in, and which bits of each.
#[inline]
fn pieces<G: Geometry>(from: usize, frames: usize) -> impl Iterator<Item = (usize, u32)> {
    let per_word = G::FRAMES_PER_WORD as usize;
    let end = from + frames;
    (from / per_word..end.div_ceil(per_word)).map(move |index| {
        let start = from.max(index * per_word);
        let stop = end.min((index + 1) * per_word);
        (index, word::span((start % per_word) as u32, (stop - start) as u32))
    })
}

/// Starts within a word that are multiples of `align` (a power of two, 32 at most).
const fn aligned_starts(align: usize) -> u32 {
    match align {
        1 => u32::MAX,
        2 => 0x5555_5555,
        4 => 0x1111_1111,
        8 => 0x0101_0101,
        16 => 0x0001_0001,
        _ => 1,
    }
}

/// Finds a run that spans words: at a word's start if it can, else wherever enough free frames
/// follow each other.
fn find_long_run(
    free: &[u32],
    per_word: usize,
    mask: u32,
    frames: usize,
    align: usize,
) -> Option<usize> {
    let total = free.len() * per_word;
    let (full, rest) = (frames / per_word, (frames % per_word) as u32);
    let rest_mask = if rest == 0 { 0 } else { word::span(0, rest) };
    if align <= per_word {
        let mut start = 0;
        'word: while start + full < free.len() + usize::from(rest == 0) && full > 0 {
            for (index, &bits) in free.iter().enumerate().skip(start).take(full) {
                if bits != mask {
                    start = index + 1;
                    continue 'word;
                }
            }
            if rest == 0 || free[start + full] & rest_mask == rest_mask {
                return Some(start * per_word);
            }
            start += 1;
        }
    }
    let is_free = |frame: usize| free[frame / per_word] & 1 << (frame % per_word) != 0;
    let mut start = 0;
    while start + frames <= total {
        match (start..start + frames).rev().find(|&frame| !is_free(frame)) {
            Some(taken) => start = (taken + 1).next_multiple_of(align),
            None => return Some(start),
        }
    }
    None
}
