//! The arithmetic: what ready memory could save a program at most, and whether that is worth anything.
//!
//! After M. Dillon's for DragonFly's idle page zeroing (2010): faults times page size by bandwidth
//! bounds what pre-zeroing saves. Ready memory saves the whole fault, so here faults are multiplied by
//! what one takes. No fault takes time that the kernel did not take, so a program's time in the kernel
//! is a bound of its own.

use serde::Serialize;

use super::costs::Cost;
use super::spaces::Counts;

/// Less than this share of a program's time is not worth looking at.
const NOTHING: f64 = 0.01;
/// From this share on it is worth trying.
const SOMETHING: f64 = 0.03;

/// What the arithmetic starts from. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The program's faults.
    pub counts: Counts,
    /// Its processor time in the kernel.
    pub system_s: f64,
    /// Nanoseconds of a fault that brings a small page.
    pub small_ns: Cost,
    /// The same for a huge page, where there are any.
    pub huge_ns: Option<Cost>,
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

    fn at_most(self, most: f64) -> Range {
        Range { middle: self.middle.min(most), low: self.low.min(most), high: self.high.min(most) }
    }
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Bytes that the kernel zeroed in what `pumice run` would serve.
    pub bytes: u64,
    /// Zeroing those, alone.
    pub zeroing_s: f64,
    /// The faults of all that is served for sure, and of heaps, of which some would be.
    pub faults_s: Range,
    /// What huge pages alone would save of these.
    pub huge_alone_s: f64,
    /// What ready memory saves at most: of a program with glibc as it is.
    pub bound_s: Range,
    /// The same where glibc uses huge pages already.
    pub over_huge_s: Range,
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
        Bounds {
            bytes,
            zeroing_s: bytes as f64 / (given.fill_gb_s.middle * 1e9),
            faults_s,
            huge_alone_s: (faults_s.middle - in_huge_s.middle).max(0.0),
            bound_s: faults_s.at_most(given.system_s),
            over_huge_s: in_huge_s.at_most(given.system_s),
        }
    }

    /// Of the program's time, at most.
    pub fn share(&self, wall_s: f64) -> f64 {
        match wall_s > 0.0 {
            true => (self.bound_s.high / wall_s).min(1.0),
            false => 0.0,
        }
    }

    /// What to make of it.
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
            system_s,
            small_ns: cost(2_000.0),
            huge_ns: Some(cost(512_000.0)),
            fill_gb_s: cost(10.0),
        }
    }

    #[test]
    fn faults_times_their_cost() {
        let bounds = Bounds::of(&given(1_000_000, 10.0));
        assert_eq!(bounds.bytes, 4_096_000_000);
        assert!((bounds.zeroing_s - 0.4096).abs() < 1e-9);
        assert_eq!(bounds.faults_s, Range { middle: 2.0, low: 1.0, high: 4.0 });
        assert_eq!(bounds.bound_s, bounds.faults_s);
        assert!((bounds.over_huge_s.middle - 1.0).abs() < 1e-9);
        assert!((bounds.huge_alone_s - 1.0).abs() < 1e-9);
        assert_eq!(bounds.verdict(20.0), Verdict::Try);
    }

    #[test]
    fn where_there_are_no_huge_pages_they_save_nothing() {
        let bounds = Bounds::of(&Given { huge_ns: None, ..given(1_000_000, 10.0) });
        assert_eq!((bounds.huge_alone_s, bounds.over_huge_s), (0.0, bounds.bound_s));
    }

    #[test]
    fn no_more_than_the_kernel_took() {
        let bounds = Bounds::of(&given(1_000_000, 1.5));
        assert_eq!(bounds.bound_s, Range { middle: 1.5, low: 1.0, high: 1.5 });
    }

    #[test]
    fn little_is_said_to_be_little() {
        assert_eq!(Bounds::of(&given(1_000, 1.0)).verdict(10.0), Verdict::DontBother);
        assert_eq!(Bounds::of(&given(50_000, 1.0)).verdict(10.0), Verdict::TooClose);
        assert_eq!(Bounds::of(&given(0, 0.0)).verdict(0.0), Verdict::DontBother);
    }
}
