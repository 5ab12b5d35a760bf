//! The memory that a helper has claimed within blocks in parts, for readers that must know.
//!
//! In a ledger word a claimed frame looks like an allocated one. The owner of an allocation need not tell them apart.
//! But `munmap` may name memory that is not mapped, so a reader that asks about any frame at all must not take a claim
//! for a run. One area is claimed at a time, and is written here:
//!
//! ```text
//!          begin            set                  change            end
//!  Nothing ------> Changing ----> Area (cleared) ------> Changing ----> Nothing
//!           \------------------ (nothing found, or a join) -------------^
//! ```
//! While it says *Changing* the words may or may not have the claim. That is two locked steps of the helper's, which a
//! reader waits for, or a request that gives back the rest of a block ([`super::Ledger::empty_rest`]). While it says
//! *Area* the frames of the area are the helper's. Each claim has a number, so that a reader that finds the same value
//! before and after it read a word knows that no claim came and went between.

use core::ops::Range;
use core::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::spin_loop;
use crate::sys::thread;

const NOTHING: u64 = 0;
const CHANGING: u64 = 1;
const AREA: u64 = 2;

/// A value: its statement, and the number of its claim.
///
/// ```text
///   63         44 43                14 13   9 8     4 3  2 1    0
///  +-------------+--------------------+------+-------+----+------+
///  |    claim    |        word        | from | count |    | what |
///  +-------------+--------------------+------+-------+----+------+
/// ```
/// `count` is one less than the number of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value(u64);

impl Value {
    const CLAIM: u32 = 44;

    const fn what(self) -> u64 {
        self.0 & 3
    }

    /// The same claim, saying something else.
    const fn saying(self, what: u64) -> Value {
        Value(self.0 >> Self::CLAIM << Self::CLAIM | what)
    }

    const fn next_claim(self) -> Value {
        Value((self.0 >> Self::CLAIM).wrapping_add(1) << Self::CLAIM)
    }

    const fn area(self, word: usize, from: u32, count: u32) -> Value {
        let place = (word as u64) << 14 | (from as u64) << 9 | (count as u64 - 1) << 4;
        Value(self.saying(AREA).0 | place)
    }

    /// The frames of `word` that are claimed.
    const fn frames_in(self, word: usize) -> u32 {
        let at = (self.0 >> 14) as usize & ((1 << 30) - 1);
        if self.what() != AREA || at != word {
            return 0;
        }
        super::word::span((self.0 >> 9) as u32 & 31, ((self.0 >> 4) as u32 & 31) + 1)
    }
}

/// How often a reader looks at a claim that changes before it sleeps between looks...
const LOOKS: u32 = 1000;
/// ... and for how long.
const PAUSE: Duration = Duration::from_micros(20);

/// See the module's top.
#[derive(Debug)]
pub(super) struct Working(AtomicU64);

impl Working {
    pub(super) fn new() -> Working {
        Working(AtomicU64::new(NOTHING))
    }

    /// Begins a claim; false while there is another.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        let old = Value(self.0.load(Ordering::Relaxed));
        // Acquire: pairs with `end`. The word's change by the claim comes after this in the helper's order, and
        // carries it to readers: that step is a release.
        old.what() == NOTHING
            && self
                .0
                .compare_exchange(
                    old.0,
                    old.saying(CHANGING).0,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Names the claimed area; the caller has begun the claim.
    #[inline]
    pub(super) fn set(&self, word: usize, frames: Range<u32>) {
        let own = Value(self.0.load(Ordering::Relaxed));
        // Release: a thread that reads this reads the claim in the word, too.
        let area = own.area(word, frames.start, frames.end - frames.start);
        self.0.store(area.0, Ordering::Release);
    }

    /// Says that the claim is about to end.
    #[inline]
    pub(super) fn change(&self) {
        let own = Value(self.0.load(Ordering::Relaxed));
        // Relaxed: the release of the frames is a release step after it.
        self.0.store(own.saying(CHANGING).0, Ordering::Relaxed);
    }

    /// Ends the claim.
    #[inline]
    pub(super) fn end(&self) {
        let own = Value(self.0.load(Ordering::Relaxed));
        // Release: a thread that reads this reads words without the claim.
        self.0.store(own.next_claim().0, Ordering::Release);
    }

    /// Reads ledger word `word`: its value, and the frames that a helper has claimed in it.
    pub(super) fn look(&self, word: &AtomicU64, index: usize) -> (u64, u32) {
        let mut looks = 0u32;
        loop {
            // Acquire, both: the second look must not move before the word's load, nor that before
            // the first. A word with a claim was stored after Changing, which the second look then
            // sees or something later.
            let before = Value(self.0.load(Ordering::Acquire));
            let value = word.load(Ordering::Acquire);
            let after = Value(self.0.load(Ordering::Relaxed));
            if before == after && before.what() != CHANGING {
                return (value, before.frames_in(index));
            }
            looks += 1;
            match cfg!(any(loom, shuttle)) || looks < LOOKS {
                true => spin_loop(),
                // The helper may be of a lower scheduling class, on this processor.
                false => thread::sleep(PAUSE),
            }
        }
    }

    /// Whether a helper has claimed frames in a word, or is about to.
    pub(super) fn is_in(&self, index: usize) -> bool {
        let now = Value(self.0.load(Ordering::Relaxed));
        now.what() == CHANGING || now.frames_in(index) != 0
    }

    /// In a fork's child, where nobody works: the area that was claimed.
    pub(super) fn forget(&self) -> Option<(usize, Range<u32>)> {
        let now = Value(self.0.load(Ordering::Relaxed));
        self.0.store(now.next_claim().0, Ordering::Relaxed);
        let word = (now.0 >> 14) as usize & ((1 << 30) - 1);
        let frames = now.frames_in(word);
        let from = frames.trailing_zeros();
        (frames != 0).then(|| (word, from..from + frames.count_ones()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_claimed() {
        let (working, word) = (Working::new(), AtomicU64::new(5));
        assert_eq!(working.look(&word, 3), (5, 0));
        assert!(working.begin());
        assert!(!working.begin() && working.is_in(3) && working.is_in(9));
        working.set(3, 4..32);
        assert_eq!(working.look(&word, 3), (5, u32::MAX << 4));
        assert_eq!(working.look(&word, 2), (5, 0));
        assert!(working.is_in(3) && !working.is_in(2) && !working.begin());
        working.change();
        working.end();
        assert_eq!(working.look(&word, 3), (5, 0));
        assert_eq!(working.forget(), None);
    }

    #[test]
    fn a_child_learns_what_was_claimed() {
        let working = Working::new();
        assert!(working.begin());
        working.set((1 << 30) - 1, 0..32);
        assert_eq!(working.forget(), Some(((1 << 30) - 1, 0..32)));
        assert!(working.begin());
        assert_eq!(working.forget(), None);
        assert!(working.begin());
    }
}
