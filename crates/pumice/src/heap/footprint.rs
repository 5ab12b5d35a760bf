//! How much memory a process would have without the pool, and keeping to it.
//!
//! Free memory that stays is reused at no cost, but it stands beside what is in use: a program that
//! frees small arrays and makes large ones would have both. So what the ready zones hold never
//! exceeds the most that was ever in use there (but for a little, and for what `--ready` asked for):
//! before a request has pages faulted in beyond that, as much is given back elsewhere.

use super::{is_free, Heap, Kind};
use crate::addr::{BLOCK_FRAMES, BLOCK_SIZE};
use crate::sync::atomic::{AtomicUsize, Ordering};

/// More than the most there was: this share of it...
const SPARE_SHARE: usize = 64;
/// ... but at least this many blocks.
const SPARE_BLOCKS: usize = (2 << 20) / BLOCK_SIZE;

/// Frames of the ready zones in use, now and at most. Relaxed: amounts that order nothing.
#[derive(Debug)]
pub(super) struct Footprint {
    in_use: AtomicUsize,
    peak: AtomicUsize,
}

impl Footprint {
    pub(super) fn new() -> Footprint {
        Footprint { in_use: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// `frames` more are in use.
    pub(super) fn add(&self, frames: usize) {
        let now = self.in_use.fetch_add(frames, Ordering::Relaxed).wrapping_add(frames);
        // What was occupied piece by piece is not counted, but is subtracted.
        if now <= isize::MAX as usize && now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// `frames` fewer are in use.
    pub(super) fn subtract(&self, frames: usize) {
        self.in_use.fetch_sub(frames, Ordering::Relaxed);
    }

    /// Blocks that they may hold, free ones included.
    fn blocks(&self) -> usize {
        let peak = self.peak.load(Ordering::Relaxed).div_ceil(BLOCK_FRAMES);
        peak + (peak / SPARE_SHARE).max(SPARE_BLOCKS)
    }
}

impl Heap {
    /// Before pages are faulted in by who has just been given new blocks on a node: gives back what
    /// would be too much with them.
    #[inline]
    pub(super) fn make_room(&self, node: usize) {
        let may_hold = self.footprint.blocks() + self.ahead.keep();
        if self.held_blocks() > may_hold {
            self.give_back_surplus(may_hold, node);
        }
    }

    /// Blocks that the ready zones hold.
    fn held_blocks(&self) -> usize {
        self.zones.all_of(Kind::Ready).map(|zone| zone.budget().blocks()).sum()
    }

    /// What is farthest from the node goes first.
    #[cold]
    fn give_back_surplus(&self, may_hold: usize, node: usize) {
        for zone in self.zones.by_distance(node, Kind::Ready).rev() {
            zone.ledger.join_all();
            let surplus = self.held_blocks().saturating_sub(may_hold);
            // Not the first ones: requests are served from there.
            let is_held = |block: &usize| {
                let word = zone.ledger.block(*block);
                is_free(word) && !word.is_pristine()
            };
            let mut from = zone.ledger.grown();
            for block in (0..from).rev().filter(is_held).take(surplus) {
                from = block;
            }
            self.drop_free_blocks_from(zone, from, |_| true);
        }
    }
}
