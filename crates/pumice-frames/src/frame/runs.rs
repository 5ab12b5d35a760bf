//! Runs of frames: within one block, or whole blocks and a tail at the start of the next.
//!
//! Runs are got in `search` (within a block) and `whole` (whole blocks); the operations on a run that is there are
//! here. A put stores full words plainly: all their frames are the caller's, so nobody else may write them.

use core::ops::Range;

use super::block::{BlockState, BlockWord, ROOM_ALL};
use super::ledger::{Backing, Geometry, Ledger, Want, MAX_WORDS_PER_BLOCK};
use super::word::{self, Word};
use crate::addr::{PageRange, Pfn};
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;

/// Which frames of the part of a run that lies in a block in parts were not zeroed when they
/// were claimed: one mask for each word of that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirt {
    pub(super) masks: [u32; MAX_WORDS_PER_BLOCK],
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

    /// The frame of the block behind the last one of them; 0 if there is none.
    pub fn end<G: Geometry>(&self) -> usize {
        let last = self.masks.iter().rposition(|&mask| mask != 0);
        last.map_or(0, |index| {
            index * G::FRAMES_PER_WORD as usize + self.masks[index].ilog2() as usize + 1
        })
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
    /// The dirty frames in the part that lies in a block in parts. Whole blocks say so in their [`BlockWord::zeroed`].
    pub dirt: Dirt,
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    pub(super) fn block_start(block: usize) -> Pfn {
        Pfn(block * G::FRAMES_PER_BLOCK)
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
            BlockState::Parts if self.starts_run(first, offset) => {
                let frames = self.run_length(first, offset)?;
                Some(PageRange { start: pfn, frames })
            }
            _ => None,
        }
    }

    /// The run that a frame is part of, if it is allocated.
    pub fn run_around(&self, pfn: Pfn) -> Option<PageRange> {
        let per_block = G::FRAMES_PER_BLOCK;
        let (mut block, mut offset) = (pfn.0 / per_block, pfn.0 % per_block);
        if block >= self.grown() {
            return None;
        }
        if self.block(block).state() == BlockState::Parts {
            if !self.is_allocated(pfn) {
                return None;
            }
            while !self.starts_run(block, offset) && offset > 0 {
                offset -= 1;
            }
            block -= usize::from(!self.starts_run(block, offset));
        }
        if self.block(block).state() == BlockState::Whole {
            offset = 0;
            while !self.block(block).first() {
                block = block.checked_sub(1)?;
            }
        }
        let run = self.run_at(Pfn(block * per_block + offset))?;
        (run.end() > pfn).then_some(run)
    }

    /// Whether no run goes on into this frame of a block in parts from the one before it.
    fn starts_run(&self, block: usize, offset: usize) -> bool {
        if offset > 0 {
            let (index, bit) = Self::locate(Pfn(Self::block_start(block).0 + offset - 1));
            let word = Word(self.words[index].load(Ordering::Relaxed));
            return word.allocated() & bit == 0 || word.last() & bit != 0;
        }
        let goes_on = |word: BlockWord| word.state() == BlockState::Whole && !word.last();
        !(block > 0 && goes_on(self.block(block - 1)))
    }

    /// Whether a frame of a block in parts is part of a run, and not only claimed by a helper.
    pub fn is_allocated(&self, pfn: Pfn) -> bool {
        let (index, bit) = Self::locate(pfn);
        let (word, claimed) = self.working.look(&self.words[index], index);
        // After the look: a join ends by changing the state, and leaves words that say "allocated".
        let in_parts = self.block(pfn.0 / G::FRAMES_PER_BLOCK).state() == BlockState::Parts;
        in_parts && Word(word).allocated() & !claimed & bit != 0
    }

    /// Whether a helper may have claimed a frame of a block in parts.
    pub fn is_claimed(&self, pfn: Pfn) -> bool {
        self.working.is_in(Self::locate(pfn).0)
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
        self.put_range_and_rest(range, condition, Want::Dirty);
    }

    /// As [`Ledger::put_range`]. `rest`: the content of its frames in a block in parts.
    pub fn put_range_and_rest(
        &self,
        range: PageRange,
        condition: impl FnMut(usize, BlockWord) -> BlockWord,
        rest: Want,
    ) {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (range.start.0 / per_block, range.start.0 % per_block);
        if self.block(first).state() != BlockState::Whole {
            self.put_frames(first, offset, range.frames, rest);
            return;
        }
        let (blocks, tail) = (range.frames / per_block, range.frames % per_block);
        // The tail last: a run that begins where it was must not seem to go on from the blocks.
        self.put_blocks(first..first + blocks, condition);
        if tail > 0 {
            self.put_frames(first + blocks, 0, tail, rest);
        }
    }

    fn put_blocks(
        &self,
        blocks: Range<usize>,
        mut condition: impl FnMut(usize, BlockWord) -> BlockWord,
    ) {
        let count = blocks.len();
        self.count_free_blocks(count, 0);
        let mut pristine = 0;
        for block in blocks {
            let old = self.block(block);
            let now = condition(block, old);
            let free = BlockWord::new()
                .with_state(BlockState::Free)
                .with_zeroed(now.zeroed())
                .with_ready(now.ready())
                .with_tainted(now.tainted())
                .with_hidden(now.hidden())
                .with_of_pages(now.of_pages())
                .with_epoch(now.epoch());
            pristine += usize::from(free.is_pristine());
            self.set_block(block, free);
        }
        self.count_held_blocks(count - pristine, 0);
        if pristine > 0 {
            self.backing.uncharge(pristine);
        }
        self.note_change();
    }

    /// Frees frames of a run in a block in parts.
    fn put_frames(&self, block: usize, from: usize, frames: usize, content: Want) {
        let zeroed = if content == Want::Zeroed { G::MASK } else { 0 };
        let first_word = self.words_of(block).start;
        let final_word = (from + frames - 1) / G::FRAMES_PER_WORD as usize;
        for (index, piece) in pieces::<G>(from, frames) {
            let word = &self.words[first_word + index];
            if piece == G::MASK && index != final_word {
                // All 32 frames are the caller's: nobody else writes this word now. Release, for
                // the next owner; the last word's SeqCst step comes before the look at the hint.
                word.store(Word(0).release(0, zeroed).0, Ordering::Release);
                continue;
            }
            let released = |word: Word| Some(word.release(piece, piece & zeroed));
            let _ = word::update(word, Ordering::SeqCst, released);
        }
        self.note_free(block, content);
    }

    /// Lengthens a run to `frames` where it stands, if what follows it is free: the run that was
    /// added, with its dirt.
    pub fn extend_run(&self, range: PageRange, frames: usize) -> Option<Run> {
        let per_block = G::FRAMES_PER_BLOCK;
        let (first, offset) = (range.start.0 / per_block, range.start.0 % per_block);
        let added = PageRange { start: range.end(), frames: frames - range.frames };
        let (mut blocks, mut tail) = (range.frames / per_block, range.frames % per_block);
        if self.block(first).state() != BlockState::Whole {
            let is_all = offset == 0 && frames == per_block;
            if offset + frames <= per_block && !is_all {
                let dirt = self.extend_frames(first, offset + range.frames, added.frames)?;
                return Some(Run { range: added, dirt });
            }
            if offset != 0 {
                return None;
            }
            (blocks, tail) = (0, range.frames);
        }
        let (new_blocks, new_tail) = (frames / per_block, frames % per_block);
        let dirt = if tail > 0 && new_blocks == blocks {
            self.extend_frames(first + blocks, tail, added.frames)?
        } else if tail > 0 {
            self.extend_out_of_tail(first, blocks, tail, frames)?
        } else {
            let dirt = self.extend_blocks(first, first + blocks, new_blocks - blocks, new_tail)?;
            let end = first + blocks - 1;
            self.set_block(end, self.block(end).with_last(false));
            dirt
        };
        Some(Run { range: added, dirt })
    }

    /// Lengthens a run of `blocks` whole blocks, maybe none, and a tail so that the tail's block becomes a whole one.
    fn extend_out_of_tail(
        &self,
        first: usize,
        blocks: usize,
        tail: usize,
        frames: usize,
    ) -> Option<Dirt> {
        let per_block = G::FRAMES_PER_BLOCK;
        let (new_blocks, new_tail) = (frames / per_block, frames % per_block);
        let block = first + blocks;
        let rest = self.claim_span(block, tail, per_block - tail).ok()?;
        let more = new_blocks - blocks - 1;
        let Some(dirt) = self.extend_blocks(first, block + 1, more, new_tail) else {
            self.release_span(block, tail, per_block - tail, &rest);
            return None;
        };
        // Every frame of the block is the run's now (invariant 3).
        for word in &self.words[self.words_of(block)] {
            word.store(Word(0).allocate(G::MASK, 0).0, Ordering::Release);
        }
        let ends_here = more == 0 && new_tail == 0;
        let whole = |old: BlockWord| {
            BlockWord::new()
                .with_state(BlockState::Whole)
                .with_first(blocks == 0)
                .with_last(ends_here)
                .with_ready(old.ready())
                .with_tainted(old.tainted())
                .with_payload(old.payload())
                .with_epoch(old.epoch())
        };
        // Others may still change hints of a block in parts.
        let mut old = self.block(block);
        while !self.swap_block(block, old, whole(old)) {
            old = self.block(block);
        }
        Some(dirt)
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
            self.put_frames(first, offset + frames, range.frames - frames, Want::Dirty);
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
            self.put_frames(first + blocks, new_tail, tail - new_tail, Want::Dirty);
            return;
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
                .with_payload(word.payload())
                .with_room(ROOM_ALL)
                .with_epoch(word.epoch());
            // A run may not start in parts: with no whole block left, its first frames are it.
            self.set_block(cut, parts);
            freed.start += 1;
        }
        if keep > 0 && new_tail == 0 {
            self.set_block(cut - 1, self.block(cut - 1).with_last(true));
        }
        self.put_blocks(freed, condition);
        if tail > 0 {
            self.put_frames(first + blocks, 0, tail, Want::Dirty);
        }
    }
}

/// The words that frames `from..from + frames` of a block lie in, and which bits of each.
#[inline]
pub(super) fn pieces<G: Geometry>(
    from: usize,
    frames: usize,
) -> impl DoubleEndedIterator<Item = (usize, u32)> {
    let per_word = G::FRAMES_PER_WORD as usize;
    let end = from + frames;
    (from / per_word..end.div_ceil(per_word)).map(move |index| {
        let start = from.max(index * per_word);
        let stop = end.min((index + 1) * per_word);
        (index, word::span((start % per_word) as u32, (stop - start) as u32))
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::Native;
    use super::*;

    #[test]
    fn dirt_ends_where_its_last_range_does() {
        assert_eq!(Dirt::NONE.end::<Native>(), 0);
        for (from, frames) in [(0, 1), (0, 32), (0, 33), (5, 221), (511, 1), (0, 512)] {
            let dirt = Dirt::all::<Native>(from, frames);
            assert_eq!(dirt.ranges::<Native>().last(), Some(from..from + frames));
            assert_eq!(dirt.end::<Native>(), from + frames);
        }
    }
}
