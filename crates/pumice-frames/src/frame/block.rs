//! One block word: the state of 512 frames together, in 64 bits.
//!
//! The words lie side by side, so that a search reads eight blocks from a cache line. Everything in a word beyond the
//! state is a *hint*: written only when it changes, wrong for a moment at worst in the direction that costs a look,
//! and put right by the thread that finds it wrong. An exact count here would cost every get and put a locked
//! operation and a cache miss.
//!
//! # Writers
//! A [`BlockState::Whole`] or [`BlockState::Claimed`] word belongs to the owner of the memory, which stores plainly.
//! All others change it by compare-and-swap.
//!
//! # The hint that must not get lost
//! A reserver that finds a block exhausted clears its hints and *then* looks at the words again;
//! a put changes a word and *then* looks at the hints. Both steps of both are sequentially
//! consistent, so at least one of the two sees the other. (That is the store-buffering pattern;
//! acquire and release alone would lose a put.)

use bitfield_struct::bitfield;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// Not part of the zone (yet, or any more); can't be touched.
    Absent = 0,
    /// Free as a whole; the words below mean nothing.
    Free = 1,
    /// Its frames are given out one by one or in runs; the words below decide.
    Parts = 2,
    /// Allocated as a whole.
    Whole = 3,
    /// Claimed by a thread that changes its state or works on its memory.
    Claimed = 4,
}

impl BlockState {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> BlockState {
        match bits {
            1 => BlockState::Free,
            2 => BlockState::Parts,
            3 => BlockState::Whole,
            4 => BlockState::Claimed,
            _ => BlockState::Absent,
        }
    }
}

/// A block word's value.
#[bitfield(u64, new = false, default = false)]
#[derive(PartialEq, Eq, Default)]
pub struct BlockWord {
    /// The block's state.
    #[inline]
    #[bits(3)]
    pub state: BlockState,
    /// Free: all of it reads as zeros. Parts: a hint that it has zeroed free frames. Whole: it
    /// read as zeros when it was allocated.
    #[inline]
    pub zeroed: bool,
    /// Parts: a hint that it has free frames that are not zeroed.
    #[inline]
    pub dirty: bool,
    /// Its pages are there: touching it takes no fault.
    #[inline]
    pub ready: bool,
    /// Whole: the first block of its run.
    #[inline]
    pub first: bool,
    /// Whole: its run ends with this block.
    #[inline]
    pub last: bool,
    /// Somebody set attributes on its pages; they must be reset before it is used again.
    #[inline]
    pub tainted: bool,
    /// Parts: no run longer than `2^room - 1` frames is free here; 15 when not known.
    #[inline]
    #[bits(4)]
    pub room: u8,
    /// 1 + the processor that reserved it; 0 for none.
    #[inline]
    #[bits(8)]
    pub reserver: u8,
    /// The fork epoch in which it was last written.
    #[inline]
    #[bits(16)]
    pub epoch: u16,
    /// Core dumps may leave it out: see `hidden`.
    #[inline]
    pub hidden: bool,
    /// Hints of the zone's user. The ledger hands them on with the word, and reads none. They are 0 again where the
    /// ledger begins a word anew, as when a block is freed.
    #[inline]
    #[bits(7)]
    pub payload: u8,
    /// Parts: the zone's user gave a part of it back ([`super::Ledger::empty_rest`]). Free frames that are zeroed have
    /// no page, and get small ones. Free: it was so, and not all of it is there.
    #[inline]
    pub trimmed: bool,
    /// A number of the zone's user about the block's pages, which the ledger does not read either. It goes with them:
    /// allocating and freeing the block as a whole leave it as it is, and it is 0 once they are gone.
    #[inline]
    #[bits(18)]
    pub of_pages: u32,
}

/// [`BlockWord::room`] of a block of which nothing is known.
pub const ROOM_UNKNOWN: u8 = 15;

/// The same of one in which any run may be free, though it was looked at since something came free there.
pub const ROOM_ALL: u8 = 14;

impl BlockWord {
    /// All fields 0.
    #[inline]
    pub const fn new() -> BlockWord {
        BlockWord(0)
    }

    /// A block that has just become part of the zone: zero, and not there.
    pub const FRESH: BlockWord = BlockWord::new().with_state(BlockState::Free).with_zeroed(true);

    /// A block that is no part of the zone any more, or could not become one: growing may claim it. One whose word is 0
    /// is being added, or is out of the zone for good.
    pub const REMOVED: BlockWord = BlockWord::new().with_first(true);

    /// Such a block, claimed. No other word that is claimed has a first frame.
    pub const CLAIMED_REMOVED: BlockWord = BlockWord::REMOVED.with_state(BlockState::Claimed);

    /// Whether the block is free and holds no page: it costs nothing.
    #[inline]
    pub const fn is_pristine(self) -> bool {
        matches!(self.state(), BlockState::Free) && self.zeroed() && !self.ready()
    }

    /// The word once the block's pages are gone.
    #[inline]
    #[must_use]
    pub const fn emptied(self) -> BlockWord {
        self.with_zeroed(true).with_ready(false).with_trimmed(false).with_of_pages(0)
    }

    /// Whether a run of `frames` may be free in this block.
    #[inline]
    pub const fn may_have_run(self, frames: usize) -> bool {
        frames < 1 << self.room()
    }

    /// The largest [`BlockWord::room`] that says that no run of `frames` is here.
    #[inline]
    pub const fn room_without(frames: usize) -> u8 {
        frames.ilog2() as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_an_upper_bound() {
        for failed in 1usize..=512 {
            let word = BlockWord::new().with_room(BlockWord::room_without(failed));
            for frames in failed.next_power_of_two()..=512 {
                assert_eq!(word.may_have_run(frames), frames < 1 << failed.ilog2());
            }
            assert!(!word.may_have_run(failed), "{failed}");
        }
        assert!(BlockWord::new().with_room(ROOM_UNKNOWN).may_have_run(512));
        assert!(BlockWord::new().with_room(ROOM_ALL).may_have_run(512));
    }

    #[test]
    fn states_survive_the_word() {
        for state in [
            BlockState::Absent,
            BlockState::Free,
            BlockState::Parts,
            BlockState::Whole,
            BlockState::Claimed,
        ] {
            assert_eq!(BlockWord::new().with_state(state).state(), state);
        }
    }
}
