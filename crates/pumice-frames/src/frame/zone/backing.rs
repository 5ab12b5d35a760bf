//! The memory of a zone as the ledger sees it, and the budget that says how much of it there may be.

use core::ops::Range;

use super::super::block::BlockWord;
use super::super::ledger::Backing;
use crate::addr::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::mem::{Dump, Huge, Memory};

/// A limit on the blocks that a zone may hold.
///
/// # Safety
/// No page lies at [`Budget::pages_end`] or behind it: that memory is taken for zeros. And it is asked while a thread's
/// list of frames is being filled: it uses no task of a space or cache whose thread may be the caller, and not this
/// zone.
pub unsafe trait Budget: Sync {
    /// As [`Backing::charge`].
    fn charge(&self, blocks: usize) -> bool;
    /// As [`Backing::uncharge`].
    fn uncharge(&self, blocks: usize);

    /// For how many more blocks [`Budget::charge`] would say yes, now.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// The frame of a free block, by its word, from which on no page is there.
    fn pages_end(&self, _word: BlockWord) -> usize {
        BLOCK_FRAMES
    }

    /// As [`Backing::forget_pages`].
    fn forget_pages(&self, _word: BlockWord) {}
}

/// No limit.
// SAFETY: it does nothing.
unsafe impl Budget for () {
    fn charge(&self, _blocks: usize) -> bool {
        true
    }
    fn uncharge(&self, _blocks: usize) {}
}

// SAFETY: as that one.
unsafe impl<T: Budget + ?Sized> Budget for &T {
    fn charge(&self, blocks: usize) -> bool {
        (**self).charge(blocks)
    }
    fn uncharge(&self, blocks: usize) {
        (**self).uncharge(blocks);
    }
    fn room(&self) -> usize {
        (**self).room()
    }
    fn pages_end(&self, word: BlockWord) -> usize {
        (**self).pages_end(word)
    }
    fn forget_pages(&self, word: BlockWord) {
        (**self).forget_pages(word);
    }
}

/// The memory of a zone, as the ledger sees it.
#[derive(Debug)]
pub struct ZoneMemory<M, L> {
    pub(super) base: usize,
    pub(super) huge: Huge,
    /// Whether core dumps leave free blocks out. Relaxed: hidden blocks are shown before it ends.
    pub(super) hides: AtomicBool,
    pub(super) memory: M,
    pub(super) budget: L,
}

impl<M: Memory, L: Budget> ZoneMemory<M, L> {
    pub(super) fn at(&self, block: usize) -> *mut u8 {
        (self.base + block * BLOCK_SIZE) as *mut u8
    }

    pub(super) fn set_dumped(&self, blocks: Range<usize>, dump: Dump) -> bool {
        let (at, len) = (self.at(blocks.start), blocks.len() * BLOCK_SIZE);
        // SAFETY: the advice is given inside the reservation, and changes no content.
        self.hides.load(Ordering::Relaxed)
            && unsafe { self.memory.set_dumped(at, len, dump) }.is_ok()
    }

    pub(super) fn set_huge(&self, at: *mut u8, len: usize) {
        if self.huge == Huge::Yes {
            // SAFETY: the advice is given inside the reservation. A kernel without huge pages
            // refuses it; small ones do.
            let _ = unsafe { self.memory.set_huge(at, len, Huge::Yes) };
        }
    }
}

impl<M: Memory, L: Budget> Backing for ZoneMemory<M, L> {
    fn refresh(&self, block: usize, word: BlockWord, kept: usize) -> bool {
        let at = self.at(block);
        if !word.tainted() {
            // One that nobody may have a part of is emptied as a whole.
            let end = if kept == 0 { BLOCK_FRAMES } else { self.budget.pages_end(word) };
            let len = end.saturating_sub(kept) * FRAME_SIZE;
            // SAFETY: the caller has claimed the block.
            return len == 0
                || unsafe { self.memory.discard(at.add(kept * FRAME_SIZE), len) }.is_ok();
        }
        // SAFETY: the caller has claimed the block.
        let done = unsafe { self.memory.reset(at, BLOCK_SIZE) }.is_ok();
        self.set_huge(at, BLOCK_SIZE);
        done
    }

    fn is_huge(&self) -> bool {
        self.huge == Huge::Yes
    }

    fn charge(&self, blocks: usize) -> bool {
        self.budget.charge(blocks)
    }

    fn uncharge(&self, blocks: usize) {
        self.budget.uncharge(blocks);
    }

    fn room(&self) -> usize {
        self.budget.room()
    }

    fn forget_pages(&self, word: BlockWord) {
        self.budget.forget_pages(word);
    }

    fn hide(&self, blocks: Range<usize>) {
        self.set_dumped(blocks, Dump::No);
    }

    fn show(&self, blocks: Range<usize>) -> bool {
        self.set_dumped(blocks, Dump::Yes)
    }
}
