//! The arithmetic: the most that ready memory could save a program, and whether that is worth anything.
//!
//! After M. Dillon's for DragonFly's idle page zeroing (2010): faults times page size by bandwidth
//! bounds the saving of pre-zeroing. Ready memory saves the whole fault, so here faults are multiplied by the cost of
//! one. No fault takes time that the kernel did not take, so a program's time in the kernel is a bound of its own.
//!
//! The kernel must find memory that a program has never had, with pumice and without: unless it is populated ahead
//! (`--ready`), the program's peak is touched for the first time under `pumice run` too, in huge pages at best. So
//! that is not in the bound.
//!
//! A page that the kernel zeroed a moment ago is in the cache, so a program that writes all of it is the faster
//! for it. Where all of each page is written, less is saved than the fault: that is the lower end of the range.
//!
//! The time of several threads is spread over the processors that they keep busy, unless one of them has most of
//! the faults.
//!
//! Huge pages save looking addresses up in page tables besides. Where the processor counts how often that happens, the
//! saving is known. Where it does not, it lies between nothing (memory is used in order) and the gain of a chain of
//! random accesses, for as much of the program's own time as goes to such memory.

use serde::Serialize;

use super::spaces::{Counts, ThreadFaults};
use pumice_command::costs::Cost;

/// Less than this share of a program's time is not worth looking at.
const NOTHING: f64 = 0.01;
/// Processors have the translations of so much memory in small pages at hand: 2,048 entries.
const TLB_BYTES: f64 = (8 << 20) as f64;
/// Where faults should take this share of a program's time in the kernel and more, they may have taken all of it:
/// memory that the host of a virtual machine has to find first makes them several times as dear.
const MAINLY_FAULTS: f64 = 0.25;
/// From this share on it is worth trying.
const SOMETHING: f64 = 0.03;

/// The input of the arithmetic. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The program's faults.
    pub counts: Counts,
    /// Its processor time outside of the kernel.
    pub user_s: f64,
    /// Its processor time in the kernel.
    pub system_s: f64,
    /// How long it ran.
    pub wall_s: f64,
    /// The most memory it had.
    pub resident_bytes: u64,
    /// Bytes that are touched for the first time, at least, in served memory.
    pub first_bytes: u64,
    /// Faults there of the thread that has most of them.
    pub busiest: ThreadFaults,
    /// Nanoseconds of a fault that brings a small page.
    pub small_ns: Cost,
    /// The same for a huge page, where there are any.
    pub huge_ns: Option<Cost>,
    /// The time saved of each where all of the page is written then.
    pub small_written_ns: Cost,
    /// The same for a huge page.
    pub huge_written_ns: Option<Cost>,
    /// Nanoseconds from one line to the next at random, in small and in huge pages.
    pub steps_ns: Option<(Cost, Cost)>,
    /// Reads whose translation was not at hand, where they were counted.
    pub tlb_misses: Option<u64>,
    /// Zeroing, in GB/s.
    pub fill_gb_s: Cost,
}

/// Seconds: the middle, and a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Range {
    /// The most likely.
    pub middle: f64,
    /// With faults as cheap as they were seen to be.
    pub low: f64,
    /// With faults as dear as they were.
    pub high: f64,
}

impl Range {
    fn of(one: Cost, other: Cost, seconds: impl Fn(f64, f64) -> f64) -> Range {
        Range {
            middle: seconds(one.middle, other.middle),
            low: seconds(one.low, other.low),
            high: seconds(one.high, other.high),
        }
    }

    /// Nowhere more than another.
    fn within(self, other: Range) -> Range {
        Range {
            middle: self.middle.min(other.middle),
            low: self.low.min(other.low),
            high: self.high.min(other.high),
        }
    }

    fn and(self, other: Range) -> Range {
        Range {
            middle: self.middle + other.middle,
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }

    fn at_most(self, most: f64) -> Range {
        Range { middle: self.middle.min(most), low: self.low.min(most), high: self.high.min(most) }
    }

    /// Without another, but not less than nothing: the most of it without the least of the other.
    fn without(self, other: Range) -> Range {
        Range {
            middle: (self.middle - other.middle).max(0.0),
            low: (self.low - other.high).max(0.0),
            high: (self.high - other.low).max(0.0),
        }
    }

    fn times(self, share: f64) -> Range {
        Range { middle: self.middle * share, low: self.low * share, high: self.high * share }
    }
}

/// The result of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Bytes that the kernel zeroed in memory that `pumice run` would serve.
    pub bytes: u64,
    /// Zeroing those, alone.
    pub zeroing_s: f64,
    /// The faults of all that is served for sure, and of heaps, of which some would be.
    pub faults_s: Range,
    /// The time that these may have taken in this run: their part of the time in the kernel, if that went to faults.
    pub kernel_s: Option<f64>,
    /// The time saved of these where all of each page is written.
    pub written_s: Range,
    /// Touching for the first time what the program has at its most: in `faults_s`, and not saved unless it is
    /// populated ahead.
    pub first_s: Range,
    /// The part of all these seconds that it runs longer for them; less than 1 where threads share them.
    pub spread: f64,
    /// The time that huge pages alone would save of these.
    pub huge_alone_s: f64,
    /// The part of the program's own time that huge pages save: least, most, and half of that where it is not counted.
    pub translation_s: Range,
    /// Where they were counted.
    pub tlb_misses: Option<u64>,
    /// The most that `pumice run` saves of the time that a program runs with glibc as it is.
    pub bound_s: Range,
    /// The same where glibc uses huge pages already.
    pub over_huge_s: Range,
}

/// The part of the time in the kernel that `served_s` is of all that its faults should take.
fn kernel_time_of(given: &Given, served_s: f64) -> Option<f64> {
    let counts = &given.counts;
    let huge_ns = given.huge_ns.map_or(0.0, |huge| huge.middle);
    // A page of a file that is there already is neither zeroed nor copied.
    let small = (counts.small + counts.copied) as f64 + counts.file as f64 / 2.0;
    let all_s = (small * given.small_ns.middle + counts.huge as f64 * huge_ns) / 1e9;
    let is_mainly = all_s > 0.0 && all_s >= MAINLY_FAULTS * given.system_s;
    is_mainly.then(|| given.system_s * (served_s / all_s).min(1.0))
}

/// The time to touch a program's peak memory for the first time, in whichever pages are cheapest.
fn first_touches(given: &Given) -> Range {
    let of = |cost: Cost, page_bytes: f64| {
        let pages = given.first_bytes as f64 / page_bytes;
        Range::of(cost, cost, |ns, _| pages * ns / 1e9)
    };
    let small = of(given.small_ns, 4096.0);
    given.huge_ns.map_or(small, |huge| of(huge, f64::from(2 << 20)).within(small))
}

/// The time that a program runs longer for its faults: the share of its busiest thread, or the share of each
/// processor that it keeps busy.
fn spread(given: &Given, faults_s: f64) -> f64 {
    let huge_ns = given.huge_ns.map_or(0.0, |huge| huge.middle);
    let busiest = &given.busiest;
    let busiest_s =
        (busiest.small as f64 * given.small_ns.middle + busiest.huge as f64 * huge_ns) / 1e9;
    let processors = (given.user_s + given.system_s) / given.wall_s;
    match faults_s > 0.0 && processors > 1.0 {
        true => (busiest_s / faults_s).max(1.0 / processors).min(1.0),
        false => 1.0,
    }
}

/// The time that huge pages save in memory of which `small_bytes` came in small ones.
fn translation(given: &Given, small_bytes: f64) -> Range {
    let Some((small, huge)) = given.steps_ns else { return Range::default() };
    let served = small_bytes.min(given.resident_bytes as f64);
    if served <= TLB_BYTES || small.middle <= huge.middle {
        return Range::default();
    }
    let share = served / given.resident_bytes as f64;
    if let Some(misses) = given.tlb_misses {
        let saved_s = misses as f64 * share * (small.middle - huge.middle) / 1e9;
        let saved_s = saved_s.min(given.user_s);
        return Range { middle: saved_s, low: saved_s, high: saved_s };
    }
    let most =
        given.user_s * share * (1.0 - TLB_BYTES / served) * (1.0 - huge.middle / small.middle);
    Range { middle: most / 2.0, low: 0.0, high: most }
}

/// In words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Not worth it.
    DontBother,
    /// It may be noise.
    TooClose,
    /// Worth a try.
    Try,
}

impl Bounds {
    /// Does the arithmetic.
    pub fn of(given: &Given) -> Bounds {
        let counts = &given.counts;
        let small = (counts.served_small + counts.heap_small) as f64;
        let huge = (counts.served_huge + counts.heap_huge) as f64;
        let bytes = (small * 4096.0 + huge * f64::from(2 << 20)) as u64;
        let faults = |small_ns: f64, huge_ns: f64| (small * small_ns + huge * huge_ns) / 1e9;
        let faults_s = Range::of(given.small_ns, given.huge_ns.unwrap_or_default(), faults);
        // The same memory in huge pages, where there are any.
        let in_huge = |huge_ns: Cost| {
            let all = huge + small / 512.0;
            Range::of(huge_ns, huge_ns, |huge_ns, _| all * huge_ns / 1e9)
        };
        let in_huge_s = given.huge_ns.map_or(faults_s, in_huge);
        let translation_s = translation(given, small * 4096.0);
        // Where it is not counted, translation is said beside the bound: it would make it much too great for all
        // programs that use their memory in order.
        let certain =
            Range { middle: translation_s.low, low: translation_s.low, high: translation_s.low };
        let written_s =
            Range::of(given.small_written_ns, given.huge_written_ns.unwrap_or_default(), faults);
        let first_s = first_touches(given);
        let spread = spread(given, faults_s.middle);
        let kernel_s = kernel_time_of(given, faults_s.middle);
        let widest = Range {
            low: written_s.low.min(faults_s.low),
            high: faults_s.high.max(kernel_s.unwrap_or(0.0)),
            ..faults_s
        };
        let bound = |range: Range| range.at_most(given.system_s).without(first_s).times(spread);
        let bound_s = bound(widest).and(certain);
        Bounds {
            bytes,
            zeroing_s: bytes as f64 / (given.fill_gb_s.middle * 1e9),
            faults_s,
            written_s,
            first_s,
            spread,
            kernel_s,
            huge_alone_s: (faults_s.middle - in_huge_s.middle).max(0.0),
            translation_s,
            tlb_misses: given.tlb_misses,
            bound_s,
            over_huge_s: bound(in_huge_s).within(bound_s),
        }
    }

    /// Of the program's time, at most.
    pub fn share(&self, wall_s: f64) -> f64 {
        match wall_s > 0.0 {
            true => (self.bound_s.high / wall_s).min(1.0),
            false => 0.0,
        }
    }

    /// The verdict on the program.
    pub fn verdict(&self, wall_s: f64) -> Verdict {
        match self.share(wall_s) {
            share if share < NOTHING => Verdict::DontBother,
            share if share < SOMETHING => Verdict::TooClose,
            _ => Verdict::Try,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(middle: f64) -> Cost {
        Cost { middle, low: middle / 2.0, high: middle * 2.0 }
    }

    fn given(served_small: u64, system_s: f64) -> Given {
        Given {
            counts: Counts { small: served_small, served_small, ..Counts::default() },
            user_s: 0.0,
            system_s,
            wall_s: 20.0,
            resident_bytes: 1 << 30,
            first_bytes: 0,
            busiest: ThreadFaults { small: served_small, huge: 0 },
            steps_ns: None,
            tlb_misses: None,
            small_ns: cost(2_000.0),
            huge_ns: Some(cost(512_000.0)),
            small_written_ns: cost(1_600.0),
            huge_written_ns: Some(cost(256_000.0)),
            fill_gb_s: cost(10.0),
        }
    }

    #[test]
    fn faults_times_their_cost() {
        let bounds = Bounds::of(&given(1_000_000, 10.0));
        assert_eq!(bounds.bytes, 4_096_000_000);
        assert!((bounds.zeroing_s - 0.4096).abs() < 1e-9);
        assert_eq!(bounds.faults_s, Range { middle: 2.0, low: 1.0, high: 4.0 });
        assert_eq!(bounds.bound_s, Range { low: 0.8, ..bounds.faults_s }, "if all is written");
        assert!((bounds.over_huge_s.middle - 1.0).abs() < 1e-9);
        assert!((bounds.huge_alone_s - 1.0).abs() < 1e-9);
        assert_eq!(bounds.verdict(20.0), Verdict::Try);
    }

    #[test]
    fn where_there_are_no_huge_pages_they_save_nothing() {
        let bounds = Bounds::of(&Given { huge_ns: None, ..given(1_000_000, 10.0) });
        assert_eq!((bounds.huge_alone_s, bounds.over_huge_s.high), (0.0, bounds.bound_s.high));
    }

    #[test]
    fn no_more_than_the_kernel_took() {
        let bounds = Bounds::of(&given(1_000_000, 1.5));
        assert_eq!(bounds.bound_s, Range { middle: 1.5, low: 0.8, high: 1.5 });
    }

    #[test]
    fn what_is_touched_for_the_first_time_is_not_saved() {
        // A quarter of all that is touched: 512 blocks.
        let bounds = Bounds::of(&Given { first_bytes: 1 << 30, ..given(1 << 20, 10.0) });
        let first_s = 512.0 * 0.000_512;
        let expected = Range { middle: first_s, low: first_s / 2.0, high: first_s * 2.0 };
        assert_eq!(bounds.first_s, expected);
        let all_s = (1 << 20) as f64 * 2e-6;
        assert!((bounds.bound_s.high - (2.0 * all_s - first_s / 2.0)).abs() < 1e-9, "{bounds:?}");
        assert!((bounds.bound_s.middle - (all_s - first_s)).abs() < 1e-9, "{bounds:?}");
        let once = Bounds::of(&Given { first_bytes: 1 << 40, ..given(1 << 20, 10.0) });
        assert_eq!(once.bound_s, Range::default(), "and never less than nothing");
        let small = Given { huge_ns: None, first_bytes: 4096, ..given(1, 10.0) };
        assert_eq!(
            Bounds::of(&small).bound_s.middle,
            0.0,
            "in small pages, if there are no others"
        );
    }

    #[test]
    fn threads_share_what_faults_take() {
        let of = |busiest, user_s| {
            let busiest = ThreadFaults { small: busiest, huge: 0 };
            Bounds::of(&Given { busiest, user_s, ..given(1_000_000, 10.0) }).spread
        };
        assert_eq!(of(250_000, 0.0), 1.0, "one processor at most was busy");
        assert_eq!(of(250_000, 30.0), 0.5, "two were");
        assert_eq!(of(750_000, 30.0), 0.75, "but one thread has most");
    }

    #[test]
    fn faults_may_be_dearer_than_they_were_measured() {
        let counts = Counts { small: 1_000_000, served_small: 500_000, ..Counts::default() };
        let bounds = Bounds::of(&Given { counts, ..given(0, 6.0) });
        assert_eq!(bounds.kernel_s, Some(3.0), "half of all faults, and of the time");
        assert_eq!(bounds.bound_s, Range { middle: 1.0, low: 0.4, high: 3.0 });
        let bounds = Bounds::of(&Given { counts, ..given(0, 9.0) });
        assert_eq!(bounds.kernel_s, None, "its system calls took most of it");
        assert_eq!(bounds.bound_s.high, 2.0);
    }

    #[test]
    fn translation_is_bounded_or_counted() {
        let steps_ns = Some((cost(100.0), cost(60.0)));
        // 1 GiB of small pages, all that there is.
        let given = Given { user_s: 10.0, steps_ns, ..given(1 << 18, 0.0) };
        let bounds = Bounds::of(&given);
        let most = 10.0 * (1.0 - 8.0 / 1024.0) * 0.4;
        assert!((bounds.translation_s.high - most).abs() < 1e-9, "{bounds:?}");
        assert_eq!((bounds.translation_s.low, bounds.bound_s.high), (0.0, 0.0));
        let counted = Bounds::of(&Given { tlb_misses: Some(1_000_000), ..given });
        assert!((counted.translation_s.low - 0.04).abs() < 1e-9, "{counted:?}");
        assert_eq!(counted.translation_s.low, counted.translation_s.high);
        assert_eq!(counted.bound_s.high, counted.translation_s.high);
        let few =
            Given { counts: Counts { small: 9, served_small: 9, ..Counts::default() }, ..given };
        assert_eq!(Bounds::of(&few).translation_s, Range::default());
    }

    #[test]
    fn little_is_said_to_be_little() {
        assert_eq!(Bounds::of(&given(1_000, 1.0)).verdict(10.0), Verdict::DontBother);
        assert_eq!(Bounds::of(&given(50_000, 1.0)).verdict(10.0), Verdict::TooClose);
        assert_eq!(Bounds::of(&given(0, 0.0)).verdict(0.0), Verdict::DontBother);
    }
}
