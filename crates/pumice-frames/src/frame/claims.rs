//! Free memory that scrubd, decay or growth works on: claimed, so absent to everyone else.
//!
//! A fork's child takes what is [`BlockState::Claimed`] for work of a thread that it does not have, and frees it
//! ([`Ledger::adopt_claims`]). A signal handler may fork in the middle of any step of its own thread, which goes on in
//! the child. So a thread that signals reach claims in another way: as [`BlockState::Whole`] ([`Ledger::take_block`]),
//! or with signals blocked.

use core::ops::Range;

use super::block::{BlockState, BlockWord, ROOM_UNKNOWN};
use super::ledger::{Backing, Geometry, Ledger, Take, Want};
use super::runs::{pieces, Dirt};
use super::word::{self, Word};
use crate::addr::{Order, Pfn};
use crate::sync::atomic::Ordering;
use crate::sync::spin_loop;

/// How often a thread asks for the one claim that there can be within blocks in parts. That lasts about as long as a
/// helper clears 128 KiB.
const PATIENCE: u32 = 500;

/// A claimed area within a block in parts: dirty frames that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaClaim {
    /// The block.
    pub block: usize,
    /// First frame within it.
    pub from: usize,
    /// How many.
    pub frames: usize,
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// Claims a block in state Free that satisfies `wanted`: its word as it was. A pristine block
    /// is charged for, unless the budget is spent.
    pub fn claim_block(
        &self,
        block: usize,
        wanted: impl Fn(BlockWord) -> bool,
    ) -> Option<BlockWord> {
        self.take_free(block, wanted, |word| word.with_state(BlockState::Claimed))
    }

    /// As [`Ledger::claim_block`], for a thread that signals reach. The block looks like the end of a run without a
    /// beginning: a run in the next block must not seem to go on from it.
    pub fn take_block(
        &self,
        block: usize,
        wanted: impl Fn(BlockWord) -> bool,
    ) -> Option<BlockWord> {
        self.take_free(block, wanted, |word| word.with_state(BlockState::Whole).with_last(true))
    }

    fn take_free(
        &self,
        block: usize,
        wanted: impl Fn(BlockWord) -> bool,
        taken: impl Fn(BlockWord) -> BlockWord,
    ) -> Option<BlockWord> {
        let word = self.block(block);
        let is_wanted = word.state() == BlockState::Free && wanted(word);
        if !(is_wanted && self.swap_block(block, word, taken(word))) {
            return None;
        }
        if word.is_pristine() && !self.backing.charge(1) {
            self.set_block(block, word);
            self.note_change();
            return None;
        }
        self.count_free_blocks(0, 1);
        self.count_held_blocks(0, usize::from(!word.is_pristine()));
        Some(word)
    }

    /// Makes a claimed or taken block free again, as `word` says it is.
    pub fn release_block(&self, block: usize, word: BlockWord) {
        debug_assert!(matches!(self.block(block).state(), BlockState::Claimed | BlockState::Whole));
        self.count_free_blocks(1, 0);
        let word = word.with_state(BlockState::Free).with_last(false);
        self.count_held_blocks(usize::from(!word.is_pristine()), 0);
        self.set_block(block, word);
        if word.is_pristine() {
            self.backing.uncharge(1);
        }
        self.note_change();
    }

    /// Makes a claimed block no part of the zone any more.
    pub(super) fn remove_block(&self, block: usize) {
        self.set_block(block, BlockWord::REMOVED);
    }

    /// Gives a block that this thread adds its word, `false` if it adds it no more: a signal handler may have forked
    /// meanwhile, and the child has [adopted](Ledger::adopt_claims) the block.
    pub(super) fn end_adding(&self, block: usize, word: BlockWord) -> bool {
        let old = self.block(block);
        let is_being_added = old == BlockWord::new() || old == BlockWord::CLAIMED_REMOVED;
        is_being_added && self.swap_block(block, old, word)
    }

    /// Claims a block that was removed, for growing again.
    pub(super) fn claim_removed(&self, block: usize) -> bool {
        self.swap_block(block, BlockWord::REMOVED, BlockWord::CLAIMED_REMOVED)
    }

    /// Takes a block that was removed out of the zone for good.
    pub(super) fn take_out_removed(&self, block: usize) -> bool {
        self.swap_block(block, BlockWord::REMOVED, BlockWord::new())
    }

    /// Whether a thread adds this block, below [`Ledger::grown`] of a zone that grows. Those that it adds again are
    /// claimed.
    pub(super) fn is_being_added(&self, block: usize) -> bool {
        self.block(block) == BlockWord::new()
    }

    /// Takes a free block out of the zone for good: its word as it was.
    pub fn take_out(&self, block: usize) -> Option<BlockWord> {
        let word = self.block(block);
        let is_out =
            word.state() == BlockState::Free && self.swap_block(block, word, BlockWord::new());
        if !is_out {
            return None;
        }
        self.count_free_blocks(0, 1);
        if !word.is_pristine() {
            self.count_held_blocks(0, 1);
            self.backing.uncharge(1);
        }
        Some(word)
    }

    /// Allocates all free frames of a block in parts, each as a run of its own, and calls `visit` with each range of
    /// them.
    pub fn take_rest(&self, block: usize, mut visit: impl FnMut(Range<usize>)) {
        if self.block(block).state() != BlockState::Parts {
            return;
        }
        let mut taken = Dirt::NONE;
        for (mask, index) in taken.masks.iter_mut().zip(self.words_of(block)) {
            for want in [Want::Zeroed, Want::Dirty] {
                *mask |= self.claim_bits(index, want, Take::All).unwrap_or(0);
            }
        }
        let first = Self::block_start(block).0;
        taken.ranges::<G>().for_each(|range| visit(first + range.start..first + range.end));
    }

    /// Allocates a free block where it is, as a run of its own: its word as it was.
    pub fn occupy_block(&self, block: usize) -> Option<BlockWord> {
        let word = self.take_block(block, |_| true)?;
        let whole = word.with_state(BlockState::Whole).with_first(true).with_last(true);
        self.set_block(block, whole);
        self.show(block..block + 1);
        Some(word)
    }

    /// Allocates a free frame of a block in parts where it is, as a run of its own.
    pub fn occupy_frame(&self, pfn: Pfn) -> bool {
        let block = pfn.0 / G::FRAMES_PER_BLOCK;
        let in_parts = self.block(block).state() == BlockState::Parts;
        in_parts && self.claim_span(block, pfn.0 % G::FRAMES_PER_BLOCK, 1).is_ok()
    }

    /// Changes a block's word, unless `change` has no wish to.
    pub fn update_word(&self, block: usize, change: impl Fn(BlockWord) -> Option<BlockWord>) {
        loop {
            let old = self.block(block);
            match change(old) {
                Some(new) if new != old && !self.swap_block(block, old, new) => {}
                _ => return,
            }
        }
    }

    /// Whether more blocks than so many are claimed at this moment.
    pub fn has_more_claims_than(&self, count: usize) -> bool {
        let is_claimed = |block: &usize| self.block(*block).state() == BlockState::Claimed;
        (0..self.grown()).filter(is_claimed).nth(count).is_some()
    }

    /// Changes a free block's marks, if it still is as the caller saw it.
    pub fn mark_block(&self, block: usize, old: BlockWord, new: BlockWord) -> bool {
        debug_assert!(old.state() == BlockState::Free && new.state() == BlockState::Free);
        debug_assert_eq!(old.is_pristine(), new.is_pristine(), "what is held is counted");
        self.swap_block(block, old, new)
    }

    /// Claims the first area of free dirty frames in a block in parts, if it is at least an
    /// aligned area of `order` long; the whole word's worth of neighbours at most. `None` also
    /// while another one is claimed.
    pub fn claim_dirty_area(&self, block: usize, order: Order) -> Option<AreaClaim> {
        let word = self.block(block);
        if word.state() != BlockState::Parts || !word.dirty() {
            return None;
        }
        if !self.working.begin() {
            return None;
        }
        let area = self.find_dirty_area(block, order);
        match area {
            Some(area) => {
                let per_word = G::FRAMES_PER_WORD as usize;
                let from = (area.from % per_word) as u32;
                let index = self.words_of(block).start + area.from / per_word;
                self.working.set(index, from..from + area.frames as u32);
            }
            None => self.working.end(),
        }
        area
    }

    fn find_dirty_area(&self, block: usize, order: Order) -> Option<AreaClaim> {
        let per_word = G::FRAMES_PER_WORD as usize;
        let least = order.frames().min(per_word) as u32;
        let words = self.words_of(block);
        for (index, word) in self.words[words].iter().enumerate() {
            let starts = |word: Word| word::run_starts(word.free_dirty(G::MASK), least);
            let span = |word: Word| {
                let from = starts(word).trailing_zeros();
                let count = (word.free_dirty(G::MASK) >> from).trailing_ones();
                (from, count)
            };
            // Acquire: pairs with the put that freed the frames. Release: see `working`.
            let claimed = word::update(word, Ordering::AcqRel, |word| {
                let (from, count) = (starts(word) != 0).then(|| span(word))?;
                Some(word.allocate(word::span(from, count), 1 << (from + count - 1)))
            });
            if let Ok(before) = claimed {
                let (from, count) = span(before);
                return Some(AreaClaim {
                    block,
                    from: index * per_word + from as usize,
                    frames: count as usize,
                });
            }
        }
        None
    }

    /// Makes a claimed area free again: zeroed, or dirty as before.
    pub fn release_area(&self, area: AreaClaim, content: Want) {
        let mut dirt = Dirt::NONE;
        if content == Want::Dirty {
            dirt = Dirt::all::<G>(area.from, area.frames);
        }
        self.working.change();
        self.release_span(area.block, area.from, area.frames, &dirt);
        self.working.end();
    }

    /// The content of the frames from `from` to the end of a block in parts, if they are free.
    pub fn rest_content(&self, block: usize, from: usize) -> Option<Want> {
        let words = &self.words[self.words_of(block)];
        let mut content = Want::Zeroed;
        for (index, piece) in pieces::<G>(from, G::FRAMES_PER_BLOCK - from) {
            // Relaxed: a look that may be out of date.
            let word = Word(words[index].load(Ordering::Relaxed));
            if word.free(piece) != piece {
                return None;
            }
            if word.free_dirty(piece) != 0 {
                content = Want::Dirty;
            }
        }
        Some(content)
    }

    /// Claims the frames from `from` to the end of a block in parts, if they are free, while `empty` runs. They are
    /// zeroed then if it says so, else as they were. Whether it did. The caller has blocked signals: readers wait, and
    /// a handler may be one.
    pub fn empty_rest(&self, block: usize, from: usize, empty: impl FnOnce() -> bool) -> bool {
        let is_begun = (0..PATIENCE).any(|_| {
            let begun = self.working.begin();
            if !begun {
                spin_loop();
            }
            begun
        });
        if !is_begun {
            return false;
        }
        let frames = G::FRAMES_PER_BLOCK - from;
        let done = self.claim_span(block, from, frames).is_ok_and(|dirt| {
            let done = empty();
            let left = if done { &Dirt::NONE } else { &dirt };
            self.release_span(block, from, frames, left);
            done
        });
        self.working.end();
        done
    }

    /// Whether a block in parts has free dirty frames of `order` together, by a look that may be
    /// out of date; clears the hint if there are no dirty frames at all.
    pub fn settle_dirty_hint(&self, block: usize) {
        let words = self.words_of(block);
        let dirty = |ordering| {
            let free = |word: &crate::sync::atomic::AtomicU64| {
                Word(word.load(ordering)).free_dirty(G::MASK)
            };
            self.words[words.clone()].iter().any(|word| free(word) != 0)
        };
        if dirty(Ordering::Relaxed) {
            return;
        }
        self.update_hints(block, |word| word.with_dirty(false));
        // SeqCst: see "The hint that must not get lost" in `block`.
        if dirty(Ordering::SeqCst) {
            self.update_hints(block, |word| word.with_dirty(true).with_room(ROOM_UNKNOWN));
        }
    }

    /// In a child that was just forked: blocks that threads of the parent had claimed, or were adding, belong to
    /// nobody now. Those in the middle of a split or a join are lost to the child.
    pub(super) fn adopt_claims(&self, refreshed: impl Fn(usize, BlockWord) -> bool) {
        if let Some((word, frames)) = self.working.forget() {
            let (block, index) = (word / G::WORDS_PER_BLOCK, word % G::WORDS_PER_BLOCK);
            let from = index * G::FRAMES_PER_WORD as usize + frames.start as usize;
            let dirt = Dirt::all::<G>(from, frames.len());
            self.release_span(block, from, frames.len(), &dirt);
        }
        // At its end, blocks that are out of the zone may be others' memory.
        let grows = !self.is_at_its_end();
        for block in 0..self.grown() {
            let word = self.block(block);
            if word == BlockWord::CLAIMED_REMOVED || grows && self.is_being_added(block) {
                self.remove_block(block);
            } else if word.state() == BlockState::Claimed && refreshed(block, word) {
                self.release_block(block, BlockWord::FRESH.with_hidden(word.hidden()));
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::ledger::{Native, Storage};
    use super::*;
    use crate::addr::PageRange;
    use std::sync::{Mutex, OnceLock};

    const BLOCKS: usize = 4;

    /// Memory with a signal handler: at one of the calls it forks, and goes on as the child, which takes all that is
    /// free.
    #[derive(Default)]
    struct Interrupted {
        ledger: OnceLock<&'static Ledger<Native, Interrupted>>,
        calls_before: Mutex<Option<usize>>,
        taken: Mutex<Vec<PageRange>>,
    }

    impl Interrupted {
        fn call(&self) {
            {
                let mut before = self.calls_before.lock().expect("no panic");
                let Some(left) = *before else { return };
                *before = left.checked_sub(1);
                if left > 0 {
                    return;
                }
            }
            let ledger = self.ledger.get().expect("set");
            ledger.adopt_claims(|_, _| true);
            ledger.advance_epoch();
            let any_block = || ledger.get_blocks(1, 0, 1, |_| true);
            let any_frame = || ledger.get_run(1, 1, 1, Want::Dirty);
            while let Some(run) = any_block().or_else(any_frame) {
                self.taken.lock().expect("no panic").push(run.range);
            }
        }
    }

    impl Backing for Interrupted {
        fn refresh(&self, _block: usize, _word: BlockWord, _kept: usize) -> bool {
            self.call();
            true
        }

        fn charge(&self, _blocks: usize) -> bool {
            self.call();
            true
        }

        fn show(&self, _blocks: Range<usize>) -> bool {
            self.call();
            true
        }
    }

    fn ledger() -> &'static Ledger<Native, Interrupted> {
        let ledger =
            Box::leak(Box::new(Ledger::new(Storage::leaked(BLOCKS), Interrupted::default())));
        let all = ledger.claim_growth(BLOCKS).expect("room");
        ledger.grow(all, false);
        assert!(ledger.backing.ledger.set(ledger).is_ok());
        ledger
    }

    #[test]
    fn a_rest_that_is_emptied_is_nobodys() {
        let ledger = ledger();
        let run = ledger.get_run(0, 257, 1, Want::Zeroed).expect("free").range;
        let other = ledger.get_run(0, 100, 1, Want::Zeroed).expect("free").range;
        assert_eq!((other.start, ledger.rest_content(0, 257)), (run.end(), None));
        assert!(!ledger.empty_rest(0, 257, || panic!("it is in use")));
        ledger.put_range(other, |_, word| word);
        assert_eq!(ledger.rest_content(0, 257), Some(Want::Dirty));
        // The kernel refuses: it is as it was.
        assert!(!ledger.empty_rest(0, 257, || false));
        assert_eq!(ledger.count_rests(|word| word.trimmed()), (255, 1));
        let readers = std::thread::scope(|scope| {
            let mut readers = Vec::new();
            let done = ledger.empty_rest(0, 257, || {
                assert!(ledger.get_run(0, 255, 1, Want::Zeroed).is_none_or(|run| run
                    .range
                    .start
                    .0
                    >= 512));
                let look = |pfn| move || ledger.is_allocated(pfn);
                readers.extend([256, 257, 511].map(|pfn| scope.spawn(look(Pfn(pfn)))));
                true
            });
            assert!(done);
            readers.into_iter().map(|it| it.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(readers, [true, false, false]);
        assert_eq!(
            (ledger.rest_content(0, 257), ledger.run_at(run.start)),
            (Some(Want::Zeroed), Some(run))
        );
        ledger.update_word(0, |word| Some(word.with_trimmed(true)));
        assert_eq!(ledger.count_rests(|word| word.trimmed()).0, 257);
    }

    /// A step of a request that claims memory, and the frames it ends with.
    type Request = fn(&Ledger<Native, Interrupted>) -> Option<PageRange>;

    #[test]
    fn a_child_of_a_handler_gets_nothing_that_the_interrupted_request_goes_on_with() {
        let frames = Native::FRAMES_PER_BLOCK;
        let requests: [Request; 4] = [
            |ledger| ledger.get_run(0, 100, 1, Want::Zeroed).map(|run| run.range),
            |ledger| ledger.get_blocks(2, 0, 1, |_| true).map(|run| run.range),
            |ledger| ledger.get_blocks(1, 7, 1, |_| true).map(|run| run.range),
            |ledger| {
                let start = Ledger::<Native, Interrupted>::block_start(2);
                let frames = Native::FRAMES_PER_BLOCK;
                ledger.occupy_block(2).map(|_| PageRange { start, frames })
            },
        ];
        let mut interrupted = 0;
        for request in requests {
            for (is_hidden, is_stale, calls) in
                (0..16).map(|it| (it & 1 > 0, it & 2 > 0, it as usize / 4))
            {
                let ledger = ledger();
                for block in 0..BLOCKS {
                    let word = ledger.block(block);
                    let word = word.with_hidden(is_hidden).with_ready(is_stale);
                    let is_free = ledger.claim_block(block, |_| true).is_some();
                    assert!(is_free);
                    ledger.release_block(block, word);
                }
                if is_stale {
                    ledger.advance_epoch();
                }
                *ledger.backing.calls_before.lock().expect("no panic") = Some(calls);
                let own = request(ledger);
                let taken = ledger.backing.taken.lock().expect("no panic").clone();
                interrupted += usize::from(!taken.is_empty());
                let Some(own) = own else { continue };
                for of_child in taken {
                    let overlaps = own.start < of_child.end() && of_child.start < own.end();
                    assert!(!overlaps, "{own:?} {of_child:?}, hidden {is_hidden}, call {calls}");
                }
                assert!(own.frames <= 2 * frames);
            }
        }
        assert!(interrupted >= 8, "{interrupted}");
    }
}
