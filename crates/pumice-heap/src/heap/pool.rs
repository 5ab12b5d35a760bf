//! The heap's share of the tree's pool.

use super::hints::{self, WithHints};
use crate::stats::{CounterSlot, Tree};
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::frame::{BlockWord, Budget};
use pumice_frames::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Blocks that are room enough for any request.
const MANY: usize = 512;

/// Counts blocks in the tree's pool, and keeps within its limit.
#[derive(Debug)]
pub(super) struct Pool {
    tree: &'static Tree,
    /// Changes in a forked child only.
    slot: AtomicPtr<CounterSlot>,
    /// Blocks of the zone that are charged for, in any process's share.
    blocks: AtomicUsize,
    /// Blocks that a forked child has from its parent, in whose share they are.
    inherited: AtomicUsize,
    /// Frames that were expected ([`super::retain`]) in free blocks that went into parts since somebody asked.
    parted: AtomicUsize,
}

impl Pool {
    pub(super) fn new(tree: &'static Tree, slot: &'static CounterSlot) -> Pool {
        let slot = AtomicPtr::new(core::ptr::from_ref(slot).cast_mut());
        let (blocks, inherited) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Pool { tree, slot, blocks, inherited, parted: AtomicUsize::new(0) }
    }

    pub(super) fn tree(&self) -> &'static Tree {
        self.tree
    }

    pub(super) fn slot(&self) -> &'static CounterSlot {
        // SAFETY: only ever a slot that lives as long as the process. Relaxed: see `adopt`.
        unsafe { &*self.slot.load(Ordering::Relaxed) }
    }

    /// Blocks of the zone that are charged for.
    pub(super) fn blocks(&self) -> usize {
        // Relaxed: an amount that orders nothing.
        self.blocks.load(Ordering::Relaxed)
    }

    /// The frames that were expected in the free blocks that went into parts since the last call.
    pub(super) fn take_parted(&self) -> usize {
        // Relaxed: an amount that orders nothing.
        match self.parted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.parted.swap(0, Ordering::Relaxed),
        }
    }

    /// In a forked child: counts in a slot of its own from now on. The blocks it has are its
    /// parent's too until either writes to them, and are in the parent's share.
    pub(super) fn adopt(&self, slot: &'static CounterSlot) {
        // Relaxed: the child has one thread yet that may use the heap.
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        self.inherited.store(self.blocks(), Ordering::Relaxed);
    }
}

// SAFETY: it only counts, in shared statistics. A free block's word has the end of its pages where they were freed as a
// tail ([`super::retain`]), else none.
unsafe impl Budget for Pool {
    fn charge(&self, blocks: usize) -> bool {
        let bytes = (blocks * BLOCK_SIZE) as u64;
        let charged = self.tree.grow_pool(self.slot(), bytes);
        if charged {
            self.slot().add_absent(bytes);
            // Relaxed, here and below: an amount that orders nothing.
            self.blocks.fetch_add(blocks, Ordering::Relaxed);
        }
        charged
    }

    fn room(&self) -> usize {
        let room = || (self.tree.pool_room() / BLOCK_SIZE as u64) as usize;
        match room() {
            // The shares of processes that are gone may be a part of it.
            few if few < MANY => {
                self.tree.sweep_if_due(self.slot());
                room()
            }
            many => many,
        }
    }

    fn pages_end(&self, word: BlockWord) -> usize {
        hints::pages_end(word)
    }

    fn forget_pages(&self, word: BlockWord) {
        self.parted.fetch_add(word.expected(), Ordering::Relaxed);
    }

    fn uncharge(&self, blocks: usize) {
        self.blocks.fetch_sub(blocks, Ordering::Relaxed);
        let inherited = self.inherited.load(Ordering::Relaxed);
        let take = |inherited: usize| Some(inherited - inherited.min(blocks));
        let taken = match inherited {
            0 => 0,
            _ => self
                .inherited
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .map_or(0, |inherited| inherited.min(blocks)),
        };
        self.tree.shrink_pool(self.slot(), ((blocks - taken) * BLOCK_SIZE) as u64);
    }
}
