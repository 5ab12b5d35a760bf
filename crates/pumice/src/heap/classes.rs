//! What requests of a size have been seen to touch.
//!
//! A program may ask for 128 MiB and touch one page of it. The kernel serves that in 10 µs and
//! 4 KiB; having it all ready would take milliseconds and 128 MiB. So every size class starts
//! unknown and is served exactly as the kernel would serve it; what was resident when it was
//! freed says what it is. Classes that touch more than about a quarter are *dense* and get ready
//! memory; now and then one of their blocks goes out unpopulated, to look again.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Classes for each doubling of the size.
const PER_DOUBLING: usize = 8;
/// Classes: up to 2^36 frames (256 TiB).
const CLASSES: usize = 36 * PER_DOUBLING;

/// From this share on, in 256ths, a class is dense.
const DENSE_SHARE: u32 = 64;
/// A class that is known is looked at again once in this many requests.
const LOOK_AGAIN: u32 = 64;
/// A class is known after this many samples; until then every request is one.
const ENOUGH_SAMPLES: u32 = 2;

/// What is known of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Density {
    /// Nothing yet.
    Unknown,
    /// It touches little of what it asks for.
    Sparse,
    /// It touches a quarter and more.
    Dense,
}

/// One class in a word, written by everyone: a lost sample costs nothing.
///
/// ```text
///  31      24 23      16 15             0
/// +----------+----------+----------------+
/// |  share   | samples  |    requests    |
/// +----------+----------+----------------+
/// ```
#[derive(Debug)]
struct Class(AtomicU32);

/// All classes.
#[derive(Debug)]
pub(super) struct Classes {
    classes: [Class; CLASSES],
}

impl Classes {
    pub(super) fn new() -> Classes {
        Classes { classes: [const { Class(AtomicU32::new(0)) }; CLASSES] }
    }

    fn class(&self, frames: usize) -> &AtomicU32 {
        &self.classes[class_of(frames)].0
    }

    /// What is known of requests for this many frames.
    #[inline]
    pub(super) fn density(&self, frames: usize) -> Density {
        // Relaxed, here and below: a guess that orders nothing.
        let word = self.class(frames).load(Ordering::Relaxed);
        if word >> 16 & 0xff == 0 {
            Density::Unknown
        } else if word >> 24 >= DENSE_SHARE {
            Density::Dense
        } else {
            Density::Sparse
        }
    }

    /// Counts a request, and says whether it is one to look at.
    #[inline]
    pub(super) fn is_sample(&self, frames: usize) -> bool {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let requests = word.wrapping_add(1) & 0xffff;
        class.store(word & !0xffff | requests, Ordering::Relaxed);
        word >> 16 & 0xff < ENOUGH_SAMPLES || requests % LOOK_AGAIN == 0
    }

    /// Learns that `touched` of `frames` frames were resident when they were freed.
    pub(super) fn learn(&self, frames: usize, touched: usize, looked_at: usize) {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let sample = (touched * 255 / looked_at.max(1)).min(255) as u32;
        let (share, samples) = (word >> 24, word >> 16 & 0xff);
        let share = if samples == 0 { sample } else { (share + sample).div_ceil(2) };
        let samples = (samples + 1).min(255);
        class.store(share << 24 | samples << 16 | word & 0xffff, Ordering::Relaxed);
    }
}

/// The class of a number of frames: its leading bit and the three bits after it.
fn class_of(frames: usize) -> usize {
    let doubling = frames.max(1).ilog2() as usize;
    let within = if doubling >= 3 { frames >> (doubling - 3) } else { frames << (3 - doubling) };
    (doubling * PER_DOUBLING + within % PER_DOUBLING).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_the_size() {
        let mut last = 0;
        for frames in 1..100_000 {
            let class = class_of(frames);
            assert!(class >= last, "{frames}");
            last = class;
        }
        assert_eq!(class_of(usize::MAX / 4096), CLASSES - 1);
    }

    #[test]
    fn a_class_is_what_it_touches() {
        let classes = Classes::new();
        assert_eq!(classes.density(1000), Density::Unknown);
        classes.learn(1000, 1000, 1000);
        assert_eq!(classes.density(1000), Density::Dense);
        for _ in 0..4 {
            classes.learn(1000, 1, 1000);
        }
        assert_eq!(classes.density(1000), Density::Sparse);
        classes.learn(1000, 900, 1000);
        assert_eq!(classes.density(1000), Density::Dense, "it comes back at once");
    }

    #[test]
    fn known_classes_are_seldom_looked_at() {
        let classes = Classes::new();
        assert!(classes.is_sample(64));
        classes.learn(64, 64, 64);
        classes.learn(64, 64, 64);
        let looked = (0..LOOK_AGAIN * 10).filter(|_| classes.is_sample(64)).count();
        assert_eq!(looked, 10);
    }
}
