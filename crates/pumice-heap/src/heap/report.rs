//! The composition of the pool, for observers: see [`crate::stats::PoolSplit`].

use super::mapping::has_lost;
use super::Heap;
use crate::stats::FreeBytes;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::frame::{BlockState, FreeFrames};

impl Heap {
    /// Allocations in use, mappings not among them, and their bytes. It looks at every block.
    pub fn handed_out(&self) -> (usize, usize) {
        let (mut count, mut frames) = (0, 0);
        for zone in self.zones.all() {
            let mut next = 0;
            while next < zone.ledger().grown() * BLOCK_FRAMES {
                let block = next / BLOCK_FRAMES;
                let is_in_use = match zone.ledger().block(block).state() {
                    BlockState::Whole => true,
                    BlockState::Parts => zone.ledger().is_allocated(Pfn(next)),
                    _ => {
                        next = (block + 1) * BLOCK_FRAMES;
                        continue;
                    }
                };
                let run = is_in_use.then(|| zone.ledger().run_at(Pfn(next))).flatten();
                let is_lost = run.is_some_and(|run| has_lost(zone, run));
                if run.is_some() && !is_lost && !zone.marks.is_mapping(next) {
                    count += 1;
                    frames += run.map_or(0, |run| run.frames);
                }
                next += run.map_or(1, |run| run.frames.max(1));
            }
        }
        (count, frames * FRAME_SIZE)
    }

    /// Counts free memory and writes it down in the process's slot: about a nanosecond for each
    /// block, and ten for one in parts. Not once the helpers have ended: nobody would keep it right.
    pub(super) fn publish_free(&self) {
        if self.slot().pool_split().is_none() {
            return;
        }
        let mut sum = FreeFrames::default();
        self.zones.all().for_each(|zone| sum += zone.ledger().count_free());
        let bytes = |frames: usize| (frames * FRAME_SIZE) as u64;
        self.slot().set_free(FreeBytes {
            zeroed: bytes(sum.zeroed),
            unzeroed: bytes(sum.dirty),
            absent: bytes(sum.absent),
        });
    }
}
