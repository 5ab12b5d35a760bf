//! The share of their memory that requests of a size have been seen to touch.
//!
//! A program may ask for 128 MiB and touch one page of it. The kernel serves that in 10 µs and 4 KiB; having it all
//! ready would take milliseconds and 128 MiB. So every size class starts unknown, and is served as the kernel would do
//! it, or from memory that is there in any case. The pages that were resident when it was freed decide. Classes
//! that touch more than about a quarter are *dense* and get ready memory. Now and then, at random, one of their blocks
//! goes out unpopulated, to look again.
//!
//! A request without zeros is most likely to be written. Where nothing is known of its class but those next to it are
//! dense, it is taken for dense as well, within limits ([`super::held`]): a guess that is wrong costs a huge page for
//! each page that is touched. So is one that is long enough to be looked at, within narrower limits.
//!
//! Zeros may be asked for because they cost nothing until they are touched. So a request for zeros is taken for dense
//! only if requests for zeros of a quarter and of an eighth of its size were touched whole, as with a table that
//! doubles.
//!
//! A program may also hold what it asks for and hardly touch it: nobody looks at that. [`super::held`] looks there.

use core::ops::Range;

use super::serve::{CLEARED_PER_FAULT, SAMPLE_BLOCKS};
use super::Content;
use pumice_frames::addr::BLOCK_FRAMES;
use pumice_frames::sync::atomic::{AtomicU64, Ordering};

/// Classes for each doubling of the size.
const PER_DOUBLING: usize = 8;
/// Classes: up to 2^36 frames (256 TiB).
pub(super) const CLASSES: usize = 36 * PER_DOUBLING;

/// From this share on, in 256ths, a class is dense.
const DENSE_SHARE: u64 = 64;
/// A class whose recent share is below this is not, also if its mean is higher.
const LEAST_DENSE_SHARE: u64 = 16;
/// The mean share that a class touches is over about so many samples.
const MEAN_OF: u64 = 32;
/// The bits of a mean's fraction, and where they begin in a word.
const MEAN_BITS: u32 = 16;
const MEAN: u32 = 48;
const BLOCKS: u32 = 32;
/// A class that is known is looked at again once in this many requests, on average: a program may take turns.
const LOOK_AGAIN: u64 = 64;
/// The same of a sparse class of which much is known: the pages that stay for its requests are dropped for a look.
const LOOK_AGAIN_SPARSE: u64 = 256;
/// Every request of a class is a sample until there is one, and so are as many as this, until there are as many.
const ENOUGH_SAMPLES: u64 = 2;
/// The same of a sparse class, whose samples cost little.
const ENOUGH_SAMPLES_SPARSE: u64 = 4;
/// A class that is taken for dense because its neighbours are is looked at once in this many requests.
const LOOK_AT_LIKELY: u64 = 16;
/// Requests that the first growth of a run lets be served as if they were to grow...
const CREDIT_OF_GROWTH: u64 = 2;
/// ... and the most of them.
const MOST_CREDIT: u64 = 16;
/// How far neighbours are looked for: two doublings.
const NEIGHBOURS: usize = 2 * PER_DOUBLING;
/// From this share on, in 255ths, a class touches the whole of it.
const WHOLE_SHARE: u64 = 250;

/// The knowledge about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Density {
    /// Nothing yet.
    Unknown,
    /// Nothing, but its neighbours are dense.
    Likely,
    /// It touches little of its memory.
    Sparse,
    /// It touches a quarter and more.
    Dense,
}

/// One class in a word, written by everyone: a lost sample costs nothing.
///
/// ```text
///  63     48 47      32 31     24 23      16  15  14          0
/// +---------+----------+---------+----------+----+-------------+
/// |  mean   |  blocks  |  share  | samples  | z  |   requests  |
/// +---------+----------+---------+----------+----+-------------+
/// ```
/// `share` follows each sample half-way, and `mean` slowly, as does `blocks`: the share of whole blocks, which may be
/// another, if it is the beginning that is touched. Before the first sample `mean` is a credit: the requests that are
/// likely to grow when they are full. `z`: the last request asked for zeros.
#[derive(Debug)]
struct Class(AtomicU64);

const ZERO: u64 = 1 << 15;

const fn share_in(word: u64) -> u64 {
    word >> 24 & 0xff
}

/// Of late, or on average: a class that is now this and now that is served best from memory that is there. One that
/// was dense for long, and touched next to nothing each time since, is not.
const fn is_dense(word: u64) -> bool {
    let is_dense_on_average = mean_in(word, MEAN) >= DENSE_SHARE << (MEAN_BITS - 8);
    share_in(word) >= DENSE_SHARE || is_dense_on_average && share_in(word) >= LEAST_DENSE_SHARE
}

/// Before the first sample.
const fn credit_in(word: u64) -> u64 {
    mean_in(word, MEAN)
}

const fn with_credit(word: u64, credit: u64) -> u64 {
    let credit = if credit > MOST_CREDIT { MOST_CREDIT } else { credit };
    word & !(((1 << MEAN_BITS) - 1) << MEAN) | credit << MEAN
}

const fn samples_in(word: u64) -> u64 {
    word >> 16 & 0xff
}

/// All classes.
#[derive(Debug)]
pub(super) struct Classes {
    classes: [Class; CLASSES],
    /// A bit for each doubling of the size: see [`Classes::set_held`].
    held: AtomicU64,
}

impl Classes {
    pub(super) fn new() -> Classes {
        let classes = [const { Class(AtomicU64::new(0)) }; CLASSES];
        Classes { classes, held: AtomicU64::new(0) }
    }

    fn class(&self, frames: usize) -> &AtomicU64 {
        &self.classes[class_of(frames)].0
    }

    /// The knowledge about requests for this many frames.
    #[inline]
    pub(super) fn density(&self, frames: usize) -> Density {
        // Relaxed, here and below: a guess that orders nothing.
        let word = self.class(frames).load(Ordering::Relaxed);
        if self.is_held(frames) {
            Density::Sparse
        } else if samples_in(word) == 0 {
            Density::Unknown
        } else if is_dense(word) {
            Density::Dense
        } else {
            Density::Sparse
        }
    }

    /// As [`Classes::density`], for a request with this content.
    #[inline]
    pub(super) fn density_for(&self, frames: usize, content: Content) -> Density {
        let is_likely = || match content {
            Content::Any => self.has_dense_neighbours(frames),
            Content::Zero => self.follows_whole_zeros(frames),
        };
        match self.density(frames) {
            Density::Unknown if is_likely() => Density::Likely,
            density => density,
        }
    }

    /// Notes that requests of about this size are held and hardly touched: they are sparse, whatever is touched of
    /// those that are freed.
    pub(super) fn set_held(&self, frames: usize) {
        self.held.fetch_or(held_bit(frames), Ordering::Relaxed);
    }

    /// Notes that no others are than those with these bits.
    pub(super) fn set_all_held(&self, bits: u64) {
        self.held.store(bits, Ordering::Relaxed);
    }

    /// Whether there are any such.
    pub(super) fn is_any_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
    }

    pub(super) fn is_held(&self, frames: usize) -> bool {
        self.held.load(Ordering::Relaxed) & held_bit(frames) != 0
    }

    /// The words of those of some classes of which something is known.
    fn known(&self, classes: Range<usize>) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let words = self.classes[classes].iter().map(|class| class.0.load(Ordering::Relaxed));
        words.filter(|&word| samples_in(word) > 0)
    }

    /// Whether the nearest classes of which something is known are dense.
    #[cold]
    fn has_dense_neighbours(&self, frames: usize) -> bool {
        let own = class_of(frames);
        let below = self.known(own.saturating_sub(NEIGHBOURS)..own).next_back();
        let above = self.known(own + 1..CLASSES.min(own + 1 + NEIGHBOURS)).next();
        let mut nearest = below.into_iter().chain(above).peekable();
        nearest.peek().is_some() && nearest.all(is_dense)
    }

    /// Whether a class goes on with what those of a quarter and of an eighth of its size began: they asked for zeros,
    /// and touched all of them. The half may be in use yet.
    #[cold]
    fn follows_whole_zeros(&self, frames: usize) -> bool {
        let own = class_of(frames);
        let word = |doublings: usize| {
            let below = own.checked_sub(doublings * PER_DOUBLING)?;
            self.known(below..below + 1).next()
        };
        let is_whole = |word: u64| word & ZERO != 0 && share_in(word) >= WHOLE_SHARE;
        word(1).is_none_or(is_whole)
            && [2, 3].into_iter().all(|doublings| word(doublings).is_some_and(is_whole))
    }

    /// Notes the content that a request of a class asks for.
    #[inline]
    pub(super) fn note_content(&self, frames: usize, content: Content) {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let zero = if content == Content::Zero { ZERO } else { 0 };
        if word & ZERO != zero {
            class.store(word & !ZERO | zero, Ordering::Relaxed);
        }
    }

    /// Whether freed memory of a class is likely to be asked for again as it is, or to be cleared, and has enough pages
    /// to be worth counting them.
    pub(super) fn is_worth_retaining(&self, frames: usize) -> bool {
        let word = self.class(frames).load(Ordering::Relaxed);
        let is_asked_for = mean_in(word, MEAN) > 0 && (word & ZERO == 0 || self.is_held(frames));
        let is_worth_it = is_asked_for || self.is_clearing_cheaper(frames);
        is_worth_it && self.density(frames) == Density::Sparse
    }

    /// Whether a request of a sparse class may get blocks in which pages stayed.
    pub(super) fn may_have_retained(&self, frames: usize, content: Content) -> bool {
        content == Content::Any || self.is_clearing_cheaper(frames)
    }

    /// Whether requests of a class touch more on average than one page for each that could be cleared in the time of a
    /// fault.
    pub(super) fn is_clearing_cheaper(&self, frames: usize) -> bool {
        let mean = mean_in(self.class(frames).load(Ordering::Relaxed), MEAN) as usize;
        mean * CLEARED_PER_FAULT >= 1 << MEAN_BITS
    }

    /// The frames of a whole block that a request of a class is likely to touch.
    pub(super) fn touched_of_block(&self, frames: usize) -> usize {
        if self.is_held(frames) {
            // The mean is of those that are freed, and says nothing of the others: all of it may be touched.
            return BLOCK_FRAMES;
        }
        let mean = mean_in(self.class(frames).load(Ordering::Relaxed), BLOCKS);
        ((BLOCK_FRAMES * mean as usize) >> MEAN_BITS).max(1)
    }

    /// The frames behind the whole blocks of a run that are likely to be touched.
    pub(super) fn touched_of_tail(&self, frames: usize) -> usize {
        let (blocks, tail) = (frames / BLOCK_FRAMES, frames % BLOCK_FRAMES);
        if self.is_held(frames) {
            return tail;
        }
        let word = self.class(frames).load(Ordering::Relaxed);
        let of = |frames: usize, mean| (frames * mean_in(word, mean) as usize) >> MEAN_BITS;
        of(frames, MEAN).saturating_sub(of(blocks * BLOCK_FRAMES, BLOCKS)).min(tail)
    }

    /// Counts a request of a class of this density, and says whether it is one to look at.
    #[inline]
    pub(super) fn is_sample(&self, frames: usize, density: Density) -> bool {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let requests = word.wrapping_add(1) & (ZERO - 1);
        class.store(word & !(ZERO - 1) | requests, Ordering::Relaxed);
        match density {
            // To look at a long run costs little, so that is done at once.
            Density::Likely => {
                requests % LOOK_AT_LIKELY == u64::from(frames >= SAMPLE_BLOCKS * BLOCK_FRAMES)
            }
            _ => {
                let is_sparse = density == Density::Sparse;
                let enough = if is_sparse { ENOUGH_SAMPLES_SPARSE } else { ENOUGH_SAMPLES };
                let is_new = samples_in(word) < enough && requests <= enough;
                let is_well_known = is_sparse && samples_in(word) >= MEAN_OF;
                let one_in = if is_well_known { LOOK_AGAIN_SPARSE } else { LOOK_AGAIN };
                samples_in(word) == 0 || is_new || scattered(requests) % one_in == 0
            }
        }
    }

    /// Learns that `touched` of `frames` frames were resident when they were freed.
    pub(super) fn learn(&self, frames: usize, touched: usize, looked_at: usize) {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let sample = (touched * 255 / looked_at.max(1)).min(255) as u64;
        let (share, samples) = (share_in(word), samples_in(word));
        let share = if samples == 0 { sample } else { (share + sample).div_ceil(2) };
        let samples = (samples + 1).min(255);
        let known = word & !(0xffff << 16) | share << 24 | samples << 16;
        class.store(with_mean(known, MEAN, touched, looked_at), Ordering::Relaxed);
    }

    /// Notes that a run which was handed out for a class without a sample has grown for the first time, with `touched`
    /// of its frames resident. That is no sample: it may be long before the rest is touched.
    pub(super) fn note_growth(&self, frames: usize, touched: usize) {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let is_full = touched * 256 >= frames * DENSE_SHARE as usize;
        if samples_in(word) == 0 && is_full {
            class.store(with_credit(word, credit_in(word) + CREDIT_OF_GROWTH), Ordering::Relaxed);
        }
    }

    /// As [`Classes::note_growth`], of a run that was handed out because it was likely to grow.
    pub(super) fn note_again(&self, frames: usize) {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        if samples_in(word) == 0 {
            class.store(with_credit(word, credit_in(word) + 1), Ordering::Relaxed);
        }
    }

    /// Whether a request of a class without a sample is likely to grow when it is full: as often as runs of the class
    /// did, and a little. Each answer counts.
    pub(super) fn is_growing(&self, frames: usize) -> bool {
        let class = self.class(frames);
        let word = class.load(Ordering::Relaxed);
        let is_growing = samples_in(word) == 0 && credit_in(word) > 0;
        if is_growing {
            class.store(with_credit(word, credit_in(word) - 1), Ordering::Relaxed);
        }
        is_growing
    }

    /// Learns that `touched` frames of `blocks` whole blocks were, which is a part of the last sample.
    pub(super) fn learn_of_blocks(&self, frames: usize, touched: usize, blocks: usize) {
        let class = self.class(frames);
        let known = class.load(Ordering::Relaxed);
        let word = with_mean(known, BLOCKS, touched, blocks * BLOCK_FRAMES);
        class.store(word, Ordering::Relaxed);
    }
}

const fn mean_in(word: u64, at: u32) -> u64 {
    word >> at & ((1 << MEAN_BITS) - 1)
}

/// The word with a mean that has one more sample: `touched` of so many.
fn with_mean(word: u64, at: u32, touched: usize, looked_at: usize) -> u64 {
    let most = (1 << MEAN_BITS) - 1;
    let sample = (touched * most / looked_at.max(1)).min(most) as i64;
    let mean = mean_in(word, at) as i64;
    let mean = mean + (sample - mean) / samples_in(word).clamp(1, MEAN_OF) as i64;
    word & !((most as u64) << at) | (mean as u64) << at
}

/// A number that says nothing of `number`, the same each time (the finalizer of SplitMix64, Steele et al., OOPSLA
/// 2014).
pub(super) const fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 27
}

/// The bit of all classes of a doubling.
pub(super) fn held_bit(frames: usize) -> u64 {
    1 << (class_of(frames) / PER_DOUBLING)
}

/// The class of a number of frames: its leading bit and the three bits after it.
pub(super) fn class_of(frames: usize) -> usize {
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
        for sample in 0..100 {
            let touched = if sample % 3 == 0 { 900 } else { 10 };
            classes.learn(1000, touched, 1000);
            assert!(sample < 40 || classes.density(1000) == Density::Dense, "on average");
        }
        (0..6).for_each(|_| classes.learn(1000, 1, 1000));
        assert_eq!(classes.density(1000), Density::Sparse, "its past does not count for long");
    }

    #[test]
    fn neighbours_speak_for_what_is_written() {
        let classes = Classes::new();
        assert_eq!(classes.density_for(1000, Content::Any), Density::Unknown);
        classes.learn(1500, 1500, 1500);
        assert_eq!(classes.density_for(1000, Content::Any), Density::Likely);
        assert_eq!(classes.density(1000), Density::Unknown, "but not for zeros");
        assert_eq!(classes.density_for(300_000, Content::Any), Density::Unknown, "nor from afar");
        classes.learn(700, 1, 700);
        assert_eq!(classes.density_for(1000, Content::Any), Density::Unknown, "both must agree");
        let look = |_: &u64| classes.is_sample(1000, Density::Likely);
        assert_eq!((0..LOOK_AT_LIKELY * 3).filter(look).count(), 3);
        classes.learn(1000, 1, 1000);
        assert_eq!(classes.density_for(1000, Content::Any), Density::Sparse, "its own counts most");
    }

    #[test]
    fn zeros_are_likely_to_be_written_where_a_table_doubles() {
        let classes = Classes::new();
        let learn = |frames, touched, content| {
            classes.note_content(frames, content);
            classes.learn(frames, touched, frames);
        };
        learn(1024, 1024, Content::Zero);
        assert_eq!(classes.density_for(4096, Content::Zero), Density::Unknown, "once");
        learn(512, 512, Content::Any);
        assert_eq!(classes.density_for(4096, Content::Zero), Density::Unknown, "not zeros");
        learn(512, 512, Content::Zero);
        assert_eq!(classes.density_for(4096, Content::Zero), Density::Likely);
        assert_eq!(classes.density_for(3000, Content::Zero), Density::Unknown, "not by doubling");
        assert_eq!(classes.density_for(8192, Content::Zero), Density::Unknown, "too much at once");
        learn(2048, 1000, Content::Zero);
        assert_eq!(
            classes.density_for(4096, Content::Zero),
            Density::Unknown,
            "the half was not touched whole"
        );
    }

    #[test]
    fn what_is_sparse_is_worth_retaining_unless_all_of_it_would_be_cleared() {
        let classes = Classes::new();
        assert!(!classes.is_worth_retaining(1000), "not known");
        classes.learn(1000, 30, 1000);
        assert!(classes.is_worth_retaining(1000));
        classes.note_content(1000, Content::Zero);
        assert!(!classes.is_worth_retaining(1000), "zeros are asked for, and little is touched");
        classes.note_content(2000, Content::Zero);
        classes.learn(2000, 200, 2000);
        assert!(classes.is_worth_retaining(2000), "faults cost more");
        classes.learn(5000, 5000, 5000);
        assert!(!classes.is_worth_retaining(5000), "dense");
        classes.learn(30_000, 1, 30_000);
        assert!(classes.is_worth_retaining(30_000), "a page is a fault");
        classes.learn(70_000, 0, 70_000);
        assert!(!classes.is_worth_retaining(70_000), "nothing");
    }

    #[test]
    fn growth_says_little() {
        let classes = Classes::new();
        assert!(!classes.is_growing(1000));
        classes.note_growth(1000, 1000);
        assert_eq!(classes.density(1000), Density::Unknown);
        assert!(classes.is_growing(1000) && classes.is_growing(1000));
        assert!(!classes.is_growing(1000), "as often as runs grew, and a little");
        classes.note_again(1000);
        assert!(classes.is_growing(1000) && !classes.is_growing(1000));
        classes.note_growth(2000, 3);
        assert!(!classes.is_growing(2000), "it was not full");
        (0..100).for_each(|_| classes.note_growth(1000, 900));
        assert_eq!((0..100).filter(|_| classes.is_growing(1000)).count(), MOST_CREDIT as usize);
        classes.note_growth(1000, 1000);
        classes.learn(1000, 1, 1000);
        assert_eq!(classes.density(1000), Density::Sparse, "a sample says all");
        classes.note_growth(1000, 1000);
        assert!(!classes.is_growing(1000));
        (0..3).for_each(|_| classes.learn(1000, 1, 1000));
        assert_eq!(classes.density(1000), Density::Sparse);
    }

    #[test]
    fn known_classes_are_seldom_looked_at() {
        let classes = Classes::new();
        assert!(classes.is_sample(64, Density::Unknown));
        classes.learn(64, 64, 64);
        classes.learn(64, 64, 64);
        let looked: Vec<u64> =
            (0..LOOK_AGAIN * 100).filter(|_| classes.is_sample(64, Density::Dense)).collect();
        assert!((70..130).contains(&looked.len()), "{}", looked.len());
        // Each kind of what a program does in turns is looked at.
        for turn in [2, 3, 4, 7, 8, 64] {
            for kind in 0..turn.min(8) {
                let is_kind = |request: &&u64| *request % turn == kind || turn == 64;
                assert!(looked.iter().filter(is_kind).count() > 4, "{kind} of {turn}");
            }
        }
    }

    #[test]
    fn the_mean_is_what_is_touched() {
        let classes = Classes::new();
        for sample in 0..200 {
            let touched = if sample % 3 == 0 { 2000 } else { 20 };
            classes.learn(10_000, touched, 10_000);
            classes.learn_of_blocks(10_000, touched, 19);
        }
        let touched = classes.touched_of_block(10_000);
        assert!((25..50).contains(&touched), "{touched}");
        for _ in 0..300 {
            classes.learn(10_000, 10_000, 10_000);
            classes.learn_of_blocks(10_000, 19 * BLOCK_FRAMES, 19);
        }
        assert!((500..=BLOCK_FRAMES).contains(&classes.touched_of_block(10_000)));
    }
}
