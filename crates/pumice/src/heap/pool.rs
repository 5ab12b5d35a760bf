//! The heap's share of the tree's pool.

use crate::addr::BLOCK_SIZE;
use crate::frame::Budget;
use crate::stats::{Slot, Tree};
use crate::sync::atomic::{AtomicPtr, Ordering};

/// Counts blocks in the tree's pool, and keeps within its limit.
#[derive(Debug)]
pub(super) struct Pool {
    tree: &'static Tree,
    /// Changes in a forked child only.
    slot: AtomicPtr<Slot>,
}

impl Pool {
    pub(super) fn new(tree: &'static Tree, slot: &'static Slot) -> Pool {
        Pool { tree, slot: AtomicPtr::new(core::ptr::from_ref(slot).cast_mut()) }
    }

    pub(super) fn slot(&self) -> &'static Slot {
        // SAFETY: only ever a slot that lives as long as the process. Relaxed: see `adopt`.
        unsafe { &*self.slot.load(Ordering::Relaxed) }
    }

    /// In a forked child: counts in a slot of its own from now on, beginning with `blocks`, which
    /// it has whatever the limit says.
    pub(super) fn adopt(&self, slot: &'static Slot, blocks: usize) {
        // Relaxed: the child has one thread yet that may use the heap.
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Relaxed);
        self.tree.force_pool(slot, (blocks * BLOCK_SIZE) as u64);
    }
}

impl Budget for Pool {
    fn charge(&self, blocks: usize) -> bool {
        self.tree.grow_pool(self.slot(), (blocks * BLOCK_SIZE) as u64)
    }

    fn uncharge(&self, blocks: usize) {
        self.tree.shrink_pool(self.slot(), (blocks * BLOCK_SIZE) as u64);
    }
}
