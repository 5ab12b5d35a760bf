//! A zone whose owner decides about all of its memory: [`OwnedZone`].

use core::ops::{Deref, Range};

use super::{Budget, Zone, ZoneMemory};
use crate::addr::{Pfn, BLOCK_SIZE, FRAME_SIZE};
use crate::frame::block::{BlockState, BlockWord};
use crate::frame::ledger::{Backing, Ledger, Native};
use crate::frame::runs::Run;
use crate::sync::atomic::Ordering;
use crate::sys::mem::{self, Memory, Os};

/// A zone of which one owner, such as a heap, decides which memory is given back, reset, hidden or claimed. Its methods
/// trust their caller: they are safe because [`OwnedZone::new`] is not.
#[derive(Debug)]
pub struct OwnedZone<M: Memory = Os, L: Budget = ()> {
    zone: Zone<M, L>,
}

impl<M: Memory, L: Budget> Deref for OwnedZone<M, L> {
    type Target = Zone<M, L>;

    #[inline]
    fn deref(&self) -> &Zone<M, L> {
        &self.zone
    }
}

impl<M: Memory, L: Budget> OwnedZone<M, L> {
    /// Takes a zone over.
    ///
    /// # Safety
    /// The caller lets no code have this value, or a reference to it, that it would not let discard memory in use: each
    /// method works on frames and blocks that its caller has got or claimed, and nobody checks that.
    pub unsafe fn new(zone: Zone<M, L>) -> OwnedZone<M, L> {
        OwnedZone { zone }
    }

    /// The ledger of each frame's owner.
    #[inline]
    pub fn ledger(&self) -> &Ledger<Native, ZoneMemory<M, L>> {
        &self.zone.ledger
    }

    /// The memory behind the zone.
    pub fn memory(&self) -> &M {
        self.zone.memory()
    }

    /// Calls `clear` with the dirty parts of a run, the first byte and how many: whole blocks by their words, the rest
    /// by its dirt. Returns the bytes in all.
    pub fn clear_run(&self, run: &Run, clear: impl FnMut(*mut u8, usize)) -> usize {
        self.zone.clear_run(run, clear)
    }

    /// Unmaps the parts of tables about blocks that were never part of the zone. Parts that the kernel refuses to
    /// unmap stay.
    ///
    /// # Safety
    /// As [`Ledger::cut_tables`]; nobody else calls this, and the zone is never dropped.
    pub unsafe fn cut_tables(&self) {
        // SAFETY: as the caller promises.
        for (at, len) in unsafe { self.zone.ledger.cut_tables() }.into_iter().flatten() {
            // SAFETY: `within` mapped them, for this zone alone.
            let _ = unsafe { mem::unmap(at, len) };
        }
    }

    /// From now on core dumps leave out new memory and, when [`Ledger::hide_free`] is called, free memory.
    pub fn begin_hiding(&self) {
        self.zone.ledger.backing.hides.store(true, Ordering::Relaxed);
    }

    /// Core dumps hold all memory; no call is made for them any more.
    pub fn end_hiding(&self) {
        self.zone.ledger.show_all();
        self.zone.ledger.backing.hides.store(false, Ordering::Relaxed);
    }

    /// `blocks` that count for the zone are given up where they are.
    pub fn uncharge(&self, blocks: usize) {
        self.zone.ledger.backing.uncharge(blocks);
    }

    /// Whether a thread is in the middle of [`Zone::grow`]. Blocks that it adds again are claimed.
    pub fn is_growing(&self) -> bool {
        (0..self.zone.ledger.grown()).any(|block| self.zone.ledger.is_being_added(block))
    }

    /// In a child that was just forked: the work of the parent's threads is abandoned. Blocks that they were adding are
    /// available to the next growth.
    ///
    /// # Safety
    /// It is such a child, and no other thread of it uses the zone or has used it.
    pub unsafe fn adopt(&self) {
        let ledger = &self.zone.ledger;
        ledger.adopt_claims(|block, word| ledger.backing.refresh(block, word, 0));
        let is_removed = |&block: &usize| ledger.block(block) == BlockWord::REMOVED;
        // Relaxed: there is no other thread that may use the zone.
        let removed = (0..ledger.grown()).filter(is_removed).count();
        self.zone.removed.store(removed, Ordering::Relaxed);
    }

    /// Calls `visit` with each block that the kernel has refused, or that was removed: it is out of the zone for good,
    /// and its addresses have no owner. Growing has [ended](Ledger::end_growth).
    pub fn take_out_removed(&self, visit: impl FnMut(usize)) {
        let ledger = &self.zone.ledger;
        debug_assert!(ledger.is_at_its_end());
        (0..ledger.grown()).filter(|&block| ledger.take_out_removed(block)).for_each(visit);
    }

    /// Gives the pages of blocks that the caller owns back to the kernel. `false` if it refused
    /// (locked memory): they are then as they were.
    pub fn discard(&self, blocks: Range<usize>) -> bool {
        let at = self.zone.ledger.backing.at(blocks.start);
        // SAFETY: the caller owns the blocks and needs nothing in them.
        unsafe { self.zone.memory().discard(at, blocks.len() * BLOCK_SIZE) }.is_ok()
    }

    /// As [`OwnedZone::discard`], for frames in the middle of a block.
    pub fn discard_frames(&self, start: Pfn, frames: usize) -> bool {
        // SAFETY: the caller owns the frames and needs nothing in them.
        unsafe { self.zone.memory().discard(self.zone.address(start), frames * FRAME_SIZE) }.is_ok()
    }

    /// As [`OwnedZone::discard`], and takes every attribute off that somebody set on them.
    pub fn reset(&self, blocks: Range<usize>) -> bool {
        let (at, len) = (self.zone.ledger.backing.at(blocks.start), blocks.len() * BLOCK_SIZE);
        // SAFETY: the caller owns the blocks and needs nothing in them.
        let done = unsafe { self.zone.memory().reset(at, len) }.is_ok();
        self.zone.ledger.backing.set_huge(at, len);
        done
    }

    /// As [`OwnedZone::reset`], for frames in the middle of a block, which the caller owns.
    pub fn reset_frames(&self, start: Pfn, frames: usize) -> bool {
        let (at, len) = (self.zone.address(start), frames * FRAME_SIZE);
        // SAFETY: the caller owns the frames and needs nothing in them.
        let done = unsafe { self.zone.memory().reset(at, len) }.is_ok();
        if done {
            self.zone.ledger.backing.set_huge(at, len);
        }
        done
    }

    /// Stores the word of a block that the caller owns as part of an allocation.
    pub fn set_owned(&self, block: usize, word: BlockWord) {
        debug_assert_eq!(self.zone.ledger.block(block).state(), BlockState::Whole);
        self.zone.ledger.set_block(block, word);
    }
}
