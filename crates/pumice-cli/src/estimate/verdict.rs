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
    /// How long it ran.
    pub wall_s: f64,
    /// Its processor time in the kernel.
    pub system_s: f64,
    /// Nanoseconds of a fault that brings a small page.
    pub small_ns: Cost,
    /// The same for a huge page.
    pub huge_ns: Cost,
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
        let frames_of_huge = 512.0;
        let seconds = |small_ns: f64, huge_ns: f64| (small * small_ns + huge * huge_ns) / 1e9;
        let (of_small, of_huge) = (given.small_ns, given.huge_ns);
        let faults_s = Range {
            middle: seconds(of_small.middle, of_huge.middle),
            low: seconds(of_small.low, of_huge.low),
            high: seconds(of_small.high, of_huge.high),
        };
        // The same memory in huge pages.
        let in_huge = huge + small / frames_of_huge;
        let with_huge = |huge_ns: f64| in_huge * huge_ns / 1e9;
        let cap = |seconds: f64| seconds.min(given.system_s).min(given.wall_s.max(given.system_s));
        let capped = |range: Range| Range {
            middle: cap(range.middle),
            low: cap(range.low),
            high: cap(range.high),
        };
        let over_huge = Range {
            middle: with_huge(of_huge.middle),
            low: with_huge(of_huge.low),
            high: with_huge(of_huge.high),
        };
        Bounds {
            bytes,
            zeroing_s: bytes as f64 / (given.fill_gb_s.middle * 1e9),
            faults_s,
            huge_alone_s: (faults_s.middle - with_huge(of_huge.middle)).max(0.0),
            bound_s: capped(faults_s),
            over_huge_s: capped(over_huge),
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

    fn given(served_small: u64, wall_s: f64, system_s: f64) -> Given {
        Given {
            counts: Counts { small: served_small, served_small, ..Counts::default() },
            wall_s,
            system_s,
            small_ns: cost(2_000.0),
            huge_ns: cost(512_000.0),
            fill_gb_s: cost(10.0),
        }
    }

    #[test]
    fn faults_times_their_cost() {
        let bounds = Bounds::of(&given(1_000_000, 20.0, 10.0));
        assert_eq!(bounds.bytes, 4_096_000_000);
        assert!((bounds.zeroing_s - 0.4096).abs() < 1e-9);
        assert_eq!(bounds.faults_s, Range { middle: 2.0, low: 1.0, high: 4.0 });
        assert_eq!(bounds.bound_s, bounds.faults_s);
        assert!((bounds.over_huge_s.middle - 1.0).abs() < 1e-9);
        assert!((bounds.huge_alone_s - 1.0).abs() < 1e-9);
        assert_eq!(bounds.verdict(20.0), Verdict::Try);
    }

    #[test]
    fn no_more_than_the_kernel_took() {
        let bounds = Bounds::of(&given(1_000_000, 20.0, 1.5));
        assert_eq!(bounds.bound_s, Range { middle: 1.5, low: 1.0, high: 1.5 });
    }

    #[test]
    fn little_is_said_to_be_little() {
        assert_eq!(Bounds::of(&given(1_000, 10.0, 1.0)).verdict(10.0), Verdict::DontBother);
        assert_eq!(Bounds::of(&given(50_000, 10.0, 1.0)).verdict(10.0), Verdict::TooClose);
        assert_eq!(Bounds::of(&given(0, 0.0, 0.0)).verdict(0.0), Verdict::DontBother);
    }
}
