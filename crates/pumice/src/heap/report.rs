//! What the pool consists of, for those who watch: see [`crate::stats::PoolSplit`].

use super::Heap;
use crate::addr::FRAME_SIZE;
use crate::frame::FreeFrames;
use crate::stats::FreeBytes;

impl Heap {
    /// Counts free memory and writes it down in the process's slot: about a nanosecond for each
    /// block, and ten for one in parts. Not once the helpers have ended: nobody would keep it right.
    pub(super) fn publish_free(&self) {
        if self.slot().pool_split().is_none() {
            return;
        }
        let mut sum = FreeFrames::default();
        self.zones.all().for_each(|zone| sum += zone.ledger.count_free());
        let bytes = |frames: usize| (frames * FRAME_SIZE) as u64;
        self.slot().set_free(FreeBytes {
            zeroed: bytes(sum.zeroed),
            unzeroed: bytes(sum.dirty),
            absent: bytes(sum.absent),
        });
    }
}
