//! Finding and claiming runs of frames within a block.
//!
//! A run is claimed word by word, and rolled back if somebody else took a frame meanwhile; the
//! search then goes on elsewhere.

use super::block::{BlockState, BlockWord};
use super::ledger::{Backing, Geometry, Ledger, Want, MAX_WORDS_PER_BLOCK};
use super::runs::{pieces, Dirt, Run};
use super::word::{self, Word};
use crate::addr::{PageRange, Pfn};
use crate::sync::atomic::Ordering;

/// How many blocks a search for a run looks through for the best fit before it takes any.
const NEAR_BLOCKS: usize = 32;

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
        let has_room = || self.free_blocks() > 0 && self.backing.room() > 0;
        let is_in_vain = || align == 1 && self.is_known_to_have_no_run(frames);
        if self.held_blocks() == 0 && is_in_vain() && !has_room() {
            return None;
        }
        let recent = recent / G::FRAMES_PER_BLOCK;
        let grown = self.grown();
        let order = (recent..grown).chain(0..recent.min(grown));
        // First blocks that are near and broken up already, then whole blocks that are there, then all the rest that
        // is broken up, and only then whole blocks that would cost memory.
        let near = order.clone().take(NEAR_BLOCKS);
        let there = |word: BlockWord| !word.is_pristine();
        let split = |fits: fn(BlockWord) -> bool| {
            self.get_run_by_splitting(order.clone(), frames, want, fits)
        };
        let found = self
            .get_run_among(near, frames, align, want)
            .or_else(|| if self.held_blocks() > 0 { split(there) } else { None })
            .or_else(|| self.get_run_among(order.clone().skip(NEAR_BLOCKS), frames, align, want))
            .or_else(|| if has_room() { split(|_| true) } else { None });
        if let Some(run) = found {
            slot.store(run.range.end().0, Ordering::Relaxed);
            return found;
        }
        // Without belief in hints, once for each change.
        let now = self.found_no_run_now();
        if is_in_vain() {
            return None;
        }
        let parts = |block: &usize| self.block(*block).state() == BlockState::Parts;
        let found =
            order.filter(parts).find_map(|block| self.get_run_in_block(block, frames, align, want));
        if found.is_none() && align == 1 {
            self.found_no_run.store(now + frames, Ordering::Relaxed);
        }
        found
    }

    /// Whether a search of all blocks in parts found no run of so many frames, and nothing has come free since: a frame
    /// that comes free changes its block's hint, and that is counted.
    fn is_known_to_have_no_run(&self, frames: usize) -> bool {
        let now = self.found_no_run_now();
        // Relaxed: a hint.
        let before = self.found_no_run.load(Ordering::Relaxed);
        (now..=now + frames).contains(&before)
    }

    /// [`Ledger::found_no_run`] of a search for no frame that begins now.
    fn found_no_run_now(&self) -> usize {
        (self.changes() + 1) * G::FRAMES_PER_BLOCK
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

    /// Gets a run at the start of a block that is free as a whole and that `fits`, of the wanted
    /// kind if there is one near.
    fn get_run_by_splitting(
        &self,
        blocks: impl Iterator<Item = usize> + Clone,
        frames: usize,
        want: Want,
        fits: impl Fn(BlockWord) -> bool,
    ) -> Option<Run> {
        let free = |block: &usize| {
            let word = self.block(*block);
            word.state() == BlockState::Free && fits(word)
        };
        let liked = |block: &usize| self.block(*block).zeroed() == (want == Want::Zeroed);
        let near = blocks.clone().filter(free).take(NEAR_BLOCKS).filter(liked);
        near.chain(blocks.filter(free)).find_map(|block| {
            let word = self.block(block);
            let split = word.state() == BlockState::Free && self.split(block, word, frames, 0);
            split.then(|| Run {
                range: PageRange { start: Self::block_start(block), frames },
                dirt: self.dirt_of_split(word, frames),
            })
        })
    }

    /// Gets the run that starts at frame `at`, or at the next word if it should not span two, if it
    /// is free and as wanted: the usual case after a run was got just before it.
    #[inline]
    fn get_run_at(&self, at: usize, frames: usize, want: Want) -> Option<Run> {
        let per_word = G::FRAMES_PER_WORD as usize;
        let spans = at % per_word + frames > per_word && fills_words(frames, per_word);
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

    pub(super) fn dirt_of_split(&self, word: BlockWord, frames: usize) -> Dirt {
        // A stale block may have been refreshed; calling it dirty costs clearing, nothing else.
        if word.zeroed() {
            Dirt::NONE
        } else {
            Dirt::all::<G>(0, frames)
        }
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

    /// Where a run of free frames starts in a block: the first place, but one within a word if
    /// runs of that length fill words well.
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
            if found.is_some() && fills_words(frames, per_word) {
                return found;
            }
            let long = find_long_run(free, per_word, G::MASK, frames, align);
            return found.into_iter().chain(long).min();
        }
        find_long_run(free, per_word, G::MASK, frames, align)
    }

    /// Claims frames `from..from + frames` of a block in parts as one run, its end first: frames that are claimed for
    /// a moment and then given up never seem to go on into somebody's run after them.
    pub(super) fn claim_span(&self, block: usize, from: usize, frames: usize) -> Result<Dirt, ()> {
        let mut dirt = Dirt::NONE;
        let first_word = self.words_of(block).start;
        let per_word = G::FRAMES_PER_WORD as usize;
        let final_word = (from + frames - 1) / per_word;
        for (index, piece) in pieces::<G>(from, frames).rev() {
            let last = if index == final_word { 1 << ((from + frames - 1) % per_word) } else { 0 };
            // Acquire: pairs with the puts that freed the frames. Release: see `working`.
            let claimed = word::update(&self.words[first_word + index], Ordering::AcqRel, |word| {
                (word.free(piece) == piece).then(|| word.allocate(piece, last))
            });
            match claimed {
                Ok(before) => dirt.masks[index] = before.free_dirty(piece),
                Err(_) => {
                    let done = ((index + 1) * per_word).min(from + frames);
                    self.release_span(block, done, from + frames - done, &dirt);
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

/// Whether runs of `frames` side by side in one word each leave little of it. One step on one word
/// claims such a run; others lie across words, or they would cost up to twice their memory.
const fn fills_words(frames: usize, per_word: usize) -> bool {
    frames <= per_word && per_word % frames <= per_word / 8
}

/// Finds the first run of free frames that is long enough from an aligned start, word by word.
fn find_long_run(
    free: &[u32],
    per_word: usize,
    mask: u32,
    frames: usize,
    align: usize,
) -> Option<usize> {
    let (mut start, mut length) = (0, 0);
    for (index, &bits) in free.iter().enumerate() {
        let until = if bits == mask { per_word } else { bits.trailing_ones() as usize };
        let aligned = usize::next_multiple_of(start, align);
        if aligned + frames <= start + length + until {
            return Some(aligned);
        }
        if bits == mask {
            length += per_word;
        } else {
            // The free frames at the word's end may go on in the next one.
            length = (!bits & mask).leading_zeros() as usize - (32 - per_word);
            start = (index + 1) * per_word - length;
        }
    }
    None
}
