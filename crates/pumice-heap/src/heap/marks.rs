//! Marks on a zone's mappings, frame by frame.

use core::ops::Range;

use super::bits::Bits;
use super::serve::whole_blocks;
use pumice_frames::addr::{PageRange, BLOCK_FRAMES};

/// Marks on a zone's mappings.
#[derive(Debug)]
pub(super) struct Marks {
    /// Frames that are holes.
    pub(super) holes: Bits,
    /// Blocks that are a mapping's from end to end...
    pub(super) blocks: Bits,
    /// ... and frames that are in other blocks.
    pub(super) frames: Bits,
    /// Frames that are the kernel's again, for good: see [`super::Heap::surrender`].
    pub(super) lost: Bits,
    /// First frames of runs that are freed later: see [`super::taint`].
    pub(super) owed: Bits,
}

impl Marks {
    pub(super) fn new(blocks: usize) -> Marks {
        let frames = blocks * BLOCK_FRAMES;
        Marks {
            holes: Bits::new(frames),
            blocks: Bits::new(blocks),
            frames: Bits::new(frames),
            lost: Bits::new(frames),
            owed: Bits::new(frames),
        }
    }

    /// Has memory for all marks, so that none can fail.
    pub(super) fn make(&self) -> bool {
        self.blocks.set(0..0) && self.frames.set(0..0)
    }

    /// Has memory, if that can be had, for the marks on runs that the kernel has no room to reset: there is none then.
    pub(super) fn prepare(&self) {
        let Marks { holes, frames, lost, owed, .. } = self;
        let _ = [holes, frames, lost, owed].into_iter().all(|bits| bits.set(0..0));
    }

    /// Gives back the marks on the blocks from `kept` on.
    ///
    /// # Safety
    /// Nobody asks about them any more, and nobody else calls this.
    pub(super) unsafe fn cut(&self, kept: usize) {
        let Marks { holes, blocks, frames, lost, owed } = self;
        // SAFETY: as the caller promises.
        unsafe {
            blocks.cut(kept);
            [holes, frames, lost, owed].into_iter().for_each(|bits| bits.cut(kept * BLOCK_FRAMES));
        }
    }

    #[inline]
    pub(super) fn is_mapping(&self, frame: usize) -> bool {
        self.blocks.get(frame / BLOCK_FRAMES) || self.frames.get(frame)
    }

    /// Marks a run as a mapping; `false` without memory for that.
    pub(super) fn set(&self, run: PageRange) -> bool {
        let (blocks, rest) = marked(run);
        // All memory first: none is marked where not all can be.
        let has_room = rest.is_empty() || self.frames.set(0..0);
        has_room
            && (blocks.is_empty() || self.blocks.set(blocks))
            && (rest.is_empty() || self.frames.set(rest))
    }

    /// Marks frames as somebody else's.
    pub(super) fn set_frames(&self, frames: Range<usize>) -> bool {
        self.frames.set(frames)
    }

    /// Takes such marks off again.
    pub(super) fn clear_frames(&self, frames: Range<usize>) {
        self.frames.clear(frames);
    }

    pub(super) fn clear(&self, run: PageRange) {
        let (blocks, rest) = marked(run);
        self.blocks.clear(blocks);
        self.frames.clear(rest);
    }
}

/// A run's whole blocks, and its frames after them.
fn marked(run: PageRange) -> (Range<usize>, Range<usize>) {
    let blocks = whole_blocks(run);
    let rest = if blocks.is_empty() { run.start.0 } else { blocks.end * BLOCK_FRAMES };
    (blocks, rest..run.end().0)
}
