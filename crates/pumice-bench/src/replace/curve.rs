//! Hit ratios against the number of frames: on a sample of the pages where a trace has many.
//!
//! A memory of a share of the frames over the same share of the pages, chosen by a hash of their numbers, has about the
//! hit ratio of the whole (SHARDS, Waldspurger, Park, Garthwaite and Ahmad, FAST 2015; for policies that are no stacks
//! Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC 2017).

use pumice_command::random::Random;

use super::trace::{Trace, Whole};

/// Pages of a sample.
const MOST_PAGES: usize = 1 << 15;
/// Points of a curve, and how many of them for each doubling of the frames.
const POINTS: i32 = 21;
const POINTS_PER_DOUBLING: i32 = 2;

/// So many frames of the whole trace, and of what is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub frames: u32,
    pub simulated: u32,
}

impl Point {
    /// So many frames, for a trace of one in so many pages.
    pub fn of(frames: u32, one_in: u32) -> Point {
        Point { frames, simulated: frames.div_ceil(one_in) }
    }
}

/// A trace with the references to some of its pages only, and one in how many of the program's these are.
pub fn sample(trace: Trace) -> (Trace, usize) {
    let one_in = trace.pages.div_ceil(MOST_PAGES).max(1);
    let of_all = one_in * trace.one_in() as usize;
    if one_in == 1 {
        return (trace, of_all);
    }
    let most = u64::MAX / one_in as u64;
    let is_in = |page: &&u32| Random::new(u64::from(**page)).next() <= most;
    let pages: Vec<u64> = trace.references.iter().filter(is_in).map(|&page| page.into()).collect();
    let whole = Whole { references: trace.references.len(), pages: trace.pages, one_in };
    let sampled = Trace::of(&trace.name, &pages);
    let (share, page_bytes) = (trace.share, trace.page_bytes);
    (Trace { share, page_bytes, whole: Some(whole), ..sampled }, of_all)
}

/// From a thousandth of the pages up to all of them, of a trace that is one in so many pages.
pub fn points(pages: usize, one_in: usize) -> Vec<Point> {
    let point = |nth: i32| {
        let share = f64::powf(2.0, -f64::from(nth) / f64::from(POINTS_PER_DOUBLING));
        let simulated = (pages as f64 * share).round() as u32;
        Point { frames: simulated.saturating_mul(one_in as u32), simulated }
    };
    let mut points: Vec<_> = (0..POINTS).rev().map(point).collect();
    points.retain(|point| point.simulated > 0);
    points.dedup();
    points
}

/// The fewest frames with this share of the most hits, of a curve of hit ratios by frames.
pub fn frames_for(share: f64, curve: &[(u32, f64)]) -> Option<u32> {
    let most = curve.iter().map(|&(_, ratio)| ratio).fold(0.0, f64::max);
    curve.iter().find(|&&(_, ratio)| ratio >= share * most).map(|&(frames, _)| frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_rise_to_all_pages() {
        let all = points(1000, 4);
        assert_eq!(all.last(), Some(&Point { frames: 4000, simulated: 1000 }));
        assert!(all.windows(2).all(|two| two[0].frames < two[1].frames) && all.len() > 15);
        assert_eq!(points(1, 1), [Point::of(1, 1)]);
    }

    #[test]
    fn a_sample_has_the_references_of_its_pages() {
        let pages: Vec<u64> = (0..400_000).map(|step| step * 7919 % 130_000).collect();
        let (all, (sampled, one_in)) = (Trace::of("t", &pages), sample(Trace::of("t", &pages)));
        assert_eq!(one_in, 4);
        let whole = Whole { references: 400_000, pages: all.pages, one_in: 4 };
        assert_eq!(sampled.whole, Some(whole));
        let of_all = all.references.len() as f64 / all.pages as f64;
        let of_sample = sampled.references.len() as f64 / sampled.pages as f64;
        assert!((of_all - of_sample).abs() < 0.1 && sampled.pages.abs_diff(all.pages / 4) < 1500);
        assert_eq!(sample(Trace::of("t", &pages[..1000])).1, 1);
    }

    #[test]
    fn the_fewest_frames_are_found() {
        let curve = [(1, 0.1), (2, 0.76), (4, 0.8)];
        assert_eq!(frames_for(0.95, &curve), Some(2));
        assert_eq!(frames_for(1.0, &curve), Some(4));
        assert_eq!(frames_for(0.95, &[]), None);
    }
}
