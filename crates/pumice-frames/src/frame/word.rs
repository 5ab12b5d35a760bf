//! One ledger word: up to 32 frames in 64 bits.
//!
//! ```text
//!   63            32 31             0
//!  +----------------+----------------+
//!  |   zeroed/last  |   allocated    |
//!  +----------------+----------------+
//! ```
//! Bit `i` of the low half says that frame `i` is allocated (or claimed). Bit `i` of the high
//! half says of a free frame that it is *zeroed*, of an allocated one that it is the *last of its
//! run*. One word holds both, so that choosing a frame by its content and claiming it are one
//! step: two separate bitmaps would hand out frames that somebody dirtied in between.
//!
//! Memory that is claimed to be worked on looks like an allocated run: of two allocated frames side by side, the first
//! not a last one, both are of one run.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A word's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Frames that are allocated.
    #[inline]
    pub const fn allocated(self) -> u32 {
        self.0 as u32
    }

    /// Frames that are free, of those in `mask`.
    #[inline]
    pub const fn free(self, mask: u32) -> u32 {
        !self.allocated() & mask
    }

    /// Free frames that are zeroed. A frame outside the geometry is never marked.
    #[inline]
    pub const fn free_zeroed(self) -> u32 {
        (self.0 >> 32) as u32 & !self.allocated()
    }

    /// Free frames that are not zeroed, of those in `mask`.
    #[inline]
    pub const fn free_dirty(self, mask: u32) -> u32 {
        !(self.0 >> 32) as u32 & self.free(mask)
    }

    /// Allocated frames that are the last of their run.
    #[inline]
    pub const fn last(self) -> u32 {
        (self.0 >> 32) as u32 & self.allocated()
    }

    /// With the frames in `frames` allocated, and those in `last` the last of their runs.
    #[inline]
    #[must_use]
    pub const fn allocate(self, frames: u32, last: u32) -> Word {
        Word((self.0 & !((frames as u64) << 32)) | frames as u64 | (last as u64) << 32)
    }

    /// With the frames in `frames` free, and those in `zeroed` marked so.
    #[inline]
    #[must_use]
    pub const fn release(self, frames: u32, zeroed: u32) -> Word {
        Word((self.0 & !(frames as u64 | (frames as u64) << 32)) | (zeroed as u64) << 32)
    }
}

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Word(allocated {:08x}, zeroed/last {:08x})", self.allocated(), self.0 >> 32)
    }
}

/// Frames `from..from + count` of a word; `count` is 1 to 32.
#[inline]
pub const fn span(from: u32, count: u32) -> u32 {
    (u32::MAX >> (32 - count)) << from
}

/// Starts of runs of `count` set bits in `bits`: bit `i` is set if `i..i + count` all are.
#[inline]
pub const fn run_starts(bits: u32, count: u32) -> u32 {
    let mut starts = bits;
    let mut have = 1;
    while have < count {
        let step = if have < count - have { have } else { count - have };
        starts &= starts >> step;
        have += step;
    }
    starts
}

/// Applies `change` by compare-and-swap until it takes or declines (`None`); the word before, or
/// the one it declined.
///
/// Acquire and release: a thread that gets a frame sees what its last owner wrote into it (and that scrubd has zeroed
/// it); see [`super::block`] for why put needs SeqCst.
#[inline]
pub fn update(
    word: &AtomicU64,
    success: Ordering,
    change: impl Fn(Word) -> Option<Word>,
) -> Result<Word, Word> {
    let mut current = Word(word.load(Ordering::Relaxed));
    loop {
        let Some(next) = change(current) else { return Err(current) };
        match word.compare_exchange_weak(current.0, next.0, success, Ordering::Relaxed) {
            Ok(_) => return Ok(current),
            Err(actual) => current = Word(actual),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans() {
        assert_eq!(span(0, 32), u32::MAX);
        assert_eq!(span(31, 1), 1 << 31);
        assert_eq!(span(4, 3), 0b111_0000);
    }

    proptest! {
        #[test]
        fn run_starts_agrees_with_looking(bits: u32, count in 1u32..=32) {
            let mut expected = 0;
            for start in 0..=(32 - count) {
                if bits & span(start, count) == span(start, count) {
                    expected |= 1 << start;
                }
            }
            prop_assert_eq!(run_starts(bits, count), expected);
        }

        #[test]
        fn allocate_and_release_touch_their_frames_only(value: u64, frames: u32, zeroed: u32) {
            let word = Word(value);
            let zeroed = zeroed & frames;
            let taken = word.allocate(frames, zeroed);
            prop_assert_eq!(taken.allocated(), word.allocated() | frames);
            prop_assert_eq!((taken.0 >> 32) as u32 & frames, zeroed);
            prop_assert_eq!((taken.0 ^ value) >> 32 & !u64::from(frames), 0);
            let given = word.release(frames, zeroed);
            prop_assert_eq!(given.free(frames), frames);
            prop_assert_eq!(given.free_zeroed() & frames, zeroed);
            prop_assert_eq!((given.0 ^ value) & !(u64::from(frames) | u64::from(frames) << 32), 0);
        }
    }
}
