//! Which block a processor takes single frames from: its reservation, and the search for the next.
//!
//! A block in parts that nobody has reserved comes before a whole one, which could still serve a run.

use super::block::BlockState;
use super::ledger::{Backing, Geometry, Ledger, Take, Want};
use super::word::Word;
use crate::addr::Pfn;
use crate::sync::atomic::{AtomicU64, Ordering};

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// Gets many frames, one by one of the kind that is wanted and then of the other, with one operation for each word
    /// that they are in. They fill `into` from its start: how many there are.
    pub fn get_many(&self, cpu: usize, want: Want, into: &mut [Pfn]) -> usize {
        let mut many = 0;
        while many < into.len() {
            let Some((first, mut bits, is_zeroed)) = self.get_word(cpu, want) else { break };
            while bits != 0 && many < into.len() {
                into[many] = Pfn(first + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                many += 1;
            }
            if bits != 0 {
                // The rest of the last word.
                let content = if is_zeroed { Want::Zeroed } else { Want::Dirty };
                let put = self.put_word(first, bits, content);
                debug_assert_eq!(put, Ok(()));
            }
        }
        many
    }

    /// The rest of the reserved block, then other blocks, then the other kind of frame.
    #[cold]
    #[inline(never)]
    pub(super) fn get_elsewhere(
        &self,
        cpu: usize,
        want: Want,
        take: Take,
    ) -> Option<(usize, u32, bool)> {
        for kind in [want, want.other()] {
            let slot = self.cpu(cpu).of(kind);
            let mut from = 0;
            let mut found = None;
            if let Some(word) = slot.load(Ordering::Relaxed).checked_sub(1) {
                from = word / G::WORDS_PER_BLOCK;
                found = self.claim_in_block(word, kind, take);
                if found.is_none() {
                    self.retire(from, kind);
                }
            }
            if let Some((word, bits)) = found.or_else(|| self.reserve(cpu, kind, from, take)) {
                slot.store(word + 1, Ordering::Relaxed);
                return Some((Self::first_of(word), bits, kind == Want::Zeroed));
            }
            slot.store(0, Ordering::Relaxed);
        }
        // Without belief in hints: the last resort finds everything there is.
        [want, want.other()].into_iter().find_map(|kind| {
            let (word, bits) = (0..self.grown())
                .filter(|&block| self.block(block).state() == BlockState::Parts)
                .find_map(|block| self.claim_in_block(block * G::WORDS_PER_BLOCK, kind, take))?;
            Some((Self::first_of(word), bits, kind == Want::Zeroed))
        })
    }

    /// Claims frames in the block of word `from`, looking at that word first and going round.
    pub(super) fn claim_in_block(
        &self,
        from: usize,
        want: Want,
        take: Take,
    ) -> Option<(usize, u32)> {
        let first = from & !(G::WORDS_PER_BLOCK - 1);
        (0..G::WORDS_PER_BLOCK).find_map(|step| {
            let word = first + ((from + step) & (G::WORDS_PER_BLOCK - 1));
            self.claim_bits(word, want, take).map(|bits| (word, bits))
        })
    }

    /// Ends the reservation of a block in which nothing of this kind was found.
    fn retire(&self, block: usize, want: Want) {
        self.update_hints(block, |word| {
            let word = want.with_hint(word, false).with_reserver(0);
            if word.zeroed() || word.dirty() {
                word
            } else {
                word.with_room(0)
            }
        });
        // Processors that looked for the other kind while the block was reserved have passed over its frames of that
        // kind.
        if want.other().hinted(self.block(block)) {
            self.note_opened();
        }
        let words = &self.words[self.words_of(block)];
        // SeqCst: see "The hint that must not get lost" in `block`.
        let freed = |word: &AtomicU64| want.candidates::<G>(Word(word.load(Ordering::SeqCst))) != 0;
        if words.iter().any(freed) {
            self.note_free(block, want);
        }
    }

    /// Reserves a block with frames of this kind, searching from block `from` and going round,
    /// and claims from it.
    fn reserve(&self, cpu: usize, want: Want, from: usize, take: Take) -> Option<(usize, u32)> {
        // Acquire: pairs with `note_change`.
        let now = self.changes.load(Ordering::Acquire) + 1;
        let found_none = &self.found_none[want as usize];
        if found_none.load(Ordering::Relaxed) == now {
            return None;
        }
        let grown = self.grown();
        let order = (from..grown).chain(0..from.min(grown));
        let reserver = (cpu % self.cpus.len() + 1) as u8;
        // Blocks in parts that nobody has, then whole ones.
        if let Some(found) = self.reserve_open(want, order.clone(), reserver, take) {
            return Some(found);
        }
        for block in order.clone() {
            let word = self.block(block);
            let fits = word.state() == BlockState::Free && word.zeroed() == (want == Want::Zeroed);
            if fits && self.split(block, word, 0, 0) {
                self.update_hints(block, |word| word.with_reserver(reserver));
                // A stale block became zeroed when it was split: then it is of the other kind.
                if let Some(found) = self.claim_in_block(block * G::WORDS_PER_BLOCK, want, take) {
                    return Some(found);
                }
                self.retire(block, want);
            }
        }
        // Frames from blocks that others have reserved.
        let shared = order
            .filter(|&block| {
                let word = self.block(block);
                word.state() == BlockState::Parts && want.hinted(word)
            })
            .find_map(|block| self.claim_in_block(block * G::WORDS_PER_BLOCK, want, take));
        if shared.is_none() {
            found_none.store(now, Ordering::Relaxed);
        }
        shared
    }

    /// Reserves one of the blocks in parts that nobody has.
    fn reserve_open(
        &self,
        want: Want,
        mut order: impl Iterator<Item = usize>,
        reserver: u8,
        take: Take,
    ) -> Option<(usize, u32)> {
        let now = self.opened() + 1;
        // Relaxed, as for `found_none`: a processor that believes it in vain takes a whole block.
        let found_none = &self.found_none_open[want as usize];
        if found_none.load(Ordering::Relaxed) == now {
            return None;
        }
        let found = order.find_map(|block| {
            let word = self.block(block);
            let is_open = word.state() == BlockState::Parts && word.reserver() == 0;
            if !(is_open && want.hinted(word)) {
                return None;
            }
            if !self.swap_block(block, word, word.with_reserver(reserver)) {
                return None;
            }
            let found = self.claim_in_block(block * G::WORDS_PER_BLOCK, want, take);
            if found.is_none() {
                self.retire(block, want);
            }
            found
        });
        if found.is_none() {
            found_none.store(now, Ordering::Relaxed);
        }
        found
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::ledger::{Native, Storage};
    use super::*;
    use crate::addr::BLOCK_FRAMES;

    const BLOCKS: usize = 64;

    fn ledger() -> Ledger<Native> {
        let ledger = Ledger::new(Storage::leaked(BLOCKS), ());
        let blocks = ledger.claim_growth(BLOCKS).expect("room");
        ledger.grow(blocks, false);
        ledger
    }

    #[test]
    fn many_frames_are_got_at_once_and_each_once() {
        let ledger = ledger();
        let mut seen = std::collections::BTreeSet::new();
        let mut got = 0;
        for many in (0..).map(|nth| 1 + nth * 7 % 90) {
            let mut frames = vec![Pfn(usize::MAX); many];
            let found = ledger.get_many(0, Want::Dirty, &mut frames);
            assert!(frames[..found].iter().all(|frame| seen.insert(frame.0)));
            assert!(
                frames[..found].windows(2).all(|two| two[0] < two[1]),
                "in order, from one thread"
            );
            got += found;
            if found < many {
                break;
            }
        }
        assert_eq!((got, ledger.free_frames()), (BLOCKS * BLOCK_FRAMES, 0));
    }

    /// A search for open blocks looks at all blocks. If there was one for each block that processors take, a fault
    /// would cost more the more memory there is.
    #[test]
    fn whole_blocks_that_are_taken_frame_by_frame_have_nobody_search_for_open_ones() {
        let ledger = ledger();
        let get = |cpu| ledger.get_frame(cpu, Want::Zeroed).expect("enough").0;
        let first = [get(0), get(1)];
        let before = ledger.opened();
        let is_known = || {
            let found_none = ledger.found_none_open[Want::Zeroed as usize].load(Ordering::Relaxed);
            found_none == ledger.opened() + 1
        };
        assert!(is_known());
        for nth in 0..(BLOCKS - 3) * BLOCK_FRAMES {
            get(nth % 2);
            assert!(is_known(), "after {nth} frames");
        }
        assert_eq!(ledger.opened(), before);
        // A frame that comes free in a block that nobody has is found before whole blocks are.
        ledger.put_zeroed_frame(first[0]).expect("allocated");
        assert!(!is_known());
        let free = ledger.free_blocks();
        while get(0) != first[0] {}
        assert!(free > 0 && ledger.free_blocks() == free);
    }
}
