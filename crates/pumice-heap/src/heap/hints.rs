//! The heap's own hints in a block word.
//!
//! The ledger carries them in [`BlockWord::payload`] and does not know them. Like its own hints they may be wrong for a
//! moment. They stay while a block is in use, as a whole or in parts, and may go when it is freed.

use bitfield_struct::bitfield;
use pumice_frames::addr::BLOCK_FRAMES;
use pumice_frames::frame::BlockWord;

/// The greatest [`Hints::age`].
pub(super) const OLDEST: u8 = 7;

const OWN_SHIFT: u32 = 9;
const EXPECTED: u32 = (1 << OWN_SHIFT) - 1;

/// See the module's top.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub(super) struct Hints {
    /// Free: scrubd's hand has passed since the block was freed, so it is cold. In use: [`Hints::moved`].
    pub(super) cold: bool,
    /// Free: how often the keeper's hand has passed since the block was freed, up to [`OLDEST`]. In use:
    /// [`Hints::added`].
    #[bits(3)]
    pub(super) age: u8,
    /// Free: offered to the kernel (`MADV_FREE`), which may have refused; not written since. In use:
    /// [`WithHints::grown`].
    pub(super) offered: bool,
    /// Whole: given out unpopulated and without huge pages, to see how much of it is touched.
    pub(super) sampled: bool,
    /// Where the block is tainted: by nothing but advice to use huge pages.
    pub(super) advised: bool,
    __: bool,
}

impl Hints {
    /// Where a block in use is tainted: by nothing but advice to use huge pages, and a move, which makes a mapping of
    /// its own. It says something because each taint of a block sets it or clears it.
    pub(super) const fn moved(self) -> bool {
        self.cold()
    }

    pub(super) const fn with_moved(self, moved: bool) -> Hints {
        self.with_cold(moved)
    }

    pub(super) const fn with_grown(self, grown: bool) -> Hints {
        self.with_offered(grown)
    }

    /// Of a block in use, the share of its request's pages that was counted on top of those that were there, as one of
    /// [`super::retain`]'s levels; 0 where none was.
    pub(super) const fn added(self) -> u8 {
        self.age()
    }

    pub(super) const fn with_added(self, level: u8) -> Hints {
        self.with_age(level)
    }
}

/// Where the pages of a free block end.
pub(super) fn pages_end(word: BlockWord) -> usize {
    match word.own() {
        0 => BLOCK_FRAMES,
        end => end,
    }
}

/// A word with the heap's hints.
pub(super) trait WithHints: Sized {
    /// Frames of a block of the demand zone that are expected to be resident ([`super::retain`]). This and the next lie
    /// in [`BlockWord::of_pages`], and stay when the block is freed.
    fn expected(self) -> usize;

    /// The word with another number of them, [`BLOCK_FRAMES`] at most, in steps of two.
    #[must_use]
    fn with_expected(self, frames: usize) -> Self;

    /// The frames of these that the request which got the block last was expected to touch. Of a free block, where its
    /// pages end, or 0 where that is not known.
    fn own(self) -> usize;

    /// The word with another number of them.
    #[must_use]
    fn with_own(self, frames: usize) -> Self;

    /// The hints.
    fn hints(self) -> Hints;

    /// Of a block in use: it is tainted, and the heap has advised it as its run grew ([`super::growth`]). So its
    /// residence does not tell what was touched.
    fn grown(self) -> bool;

    /// The word with one hint or more changed.
    #[must_use]
    fn with_hints(self, change: impl FnOnce(Hints) -> Hints) -> Self;
}

impl WithHints for BlockWord {
    #[inline]
    fn expected(self) -> usize {
        (self.of_pages() & EXPECTED) as usize * 2
    }

    #[inline]
    fn with_expected(self, frames: usize) -> BlockWord {
        let halves = frames.min(BLOCK_FRAMES).div_ceil(2) as u32;
        self.with_of_pages(self.of_pages() & !EXPECTED | halves)
    }

    #[inline]
    fn own(self) -> usize {
        (self.of_pages() >> OWN_SHIFT) as usize
    }

    #[inline]
    fn with_own(self, frames: usize) -> BlockWord {
        let own = frames.min(BLOCK_FRAMES - 1) as u32;
        self.with_of_pages(self.of_pages() & EXPECTED | own << OWN_SHIFT)
    }

    #[inline]
    fn hints(self) -> Hints {
        Hints::from_bits(self.payload())
    }

    #[inline]
    fn grown(self) -> bool {
        self.tainted() && self.hints().offered()
    }

    #[inline]
    fn with_hints(self, change: impl FnOnce(Hints) -> Hints) -> BlockWord {
        self.with_payload(change(self.hints()).into_bits())
    }
}
