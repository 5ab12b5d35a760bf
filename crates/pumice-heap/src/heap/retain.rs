//! Pages of the demand zone that stay for the next request.
//!
//! A program that asks for much, touches some of it here and there and frees it, over and over, finds the pages it
//! touched still there under other allocators, and would fault them in each time here. So pages that a sparse class
//! has touched stay when they are freed, if its requests do not ask for zeros: a little in all, counted page by page,
//! and not for longer than anything else that is free.

use super::serve::whole_blocks;
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};

/// Frames that may stay.
const MOST_FRAMES: usize = (16 << 20) / FRAME_SIZE;

/// Frames that have stayed. Relaxed: an amount that orders nothing.
#[derive(Debug)]
pub(super) struct Retained(AtomicUsize);

impl Retained {
    pub(super) fn new() -> Retained {
        Retained(AtomicUsize::new(0))
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn add(&self, frames: usize) -> bool {
        let within = |now: usize| Some(now + frames).filter(|&sum| sum <= MOST_FRAMES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    pub(super) fn subtract(&self, frames: usize) {
        let less = |now: usize| Some(now.saturating_sub(frames));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Heap {
    /// Whether the pages of a run of the demand zone that is being freed are to stay. Its blocks
    /// say so from now on.
    pub(super) fn retain(&self, zone: &PoolZone, range: PageRange) -> bool {
        let whole = whole_blocks(range);
        if whole.is_empty() || !self.classes.is_worth_retaining(range.frames) {
            return false;
        }
        let at = zone.block_address(whole.start);
        let touched = self.resident(zone, at, whole.len() * BLOCK_SIZE);
        if !touched.is_some_and(|touched| self.retained.add(touched)) {
            return false;
        }
        let epoch = zone.ledger().epoch();
        for block in whole {
            let word = zone.ledger().block(block).with_zeroed(false).with_ready(false);
            zone.set_owned(block, word.with_epoch(epoch));
        }
        true
    }

    /// Counts what had stayed in blocks of the demand zone that are somebody's now.
    pub(super) fn take_retained(&self, zone: &PoolZone, blocks: core::ops::Range<usize>) {
        let has_pages = |block: usize| !zone.ledger().block(block).zeroed();
        let may_have = zone.kind == ZoneKind::Demand && self.retained.is_any();
        if !may_have || !blocks.clone().any(has_pages) {
            return;
        }
        let at = zone.block_address(blocks.start);
        let resident = self.resident(zone, at, blocks.len() * BLOCK_SIZE);
        self.retained.subtract(resident.unwrap_or(usize::MAX));
    }
}
