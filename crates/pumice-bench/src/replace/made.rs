//! Traces that are made up, the same each time, for users who have none: each is a way of using memory that some policy
//! is bad at.

use super::trace::Trace;
use pumice_command::random::Random;

/// References of each.
const REFERENCES: usize = 300_000;
/// Pages of which some are far more frequent than others.
const ZIPF_PAGES: usize = 32_768;
/// A scan is so long, and comes after so many references to other pages.
const SCAN: usize = 10_000;
const BETWEEN_SCANS: usize = 20_000;
/// Pages that scans go over in turn.
const SCANNED_PAGES: usize = 8 * SCAN;
/// Pages of the loop.
const LOOP: usize = 6_000;
/// Pages in use at one time, and how long that is; then half of them are others.
const SET: usize = 5_000;
const PHASE: usize = 30_000;

/// All of them.
pub fn traces() -> Vec<Trace> {
    let mut random = Random::new(1);
    let zipf = Zipf::new(ZIPF_PAGES);
    let of_zipf: Vec<u64> = (0..REFERENCES).map(|_| zipf.next(&mut random)).collect();
    let around: Vec<u64> = (0..REFERENCES).map(|now| (now % LOOP) as u64).collect();
    let in_phases: Vec<u64> =
        (0..REFERENCES).map(|now| (now / PHASE * (SET / 2) + random.below(SET)) as u64).collect();
    vec![
        Trace::of("zipf", &of_zipf),
        Trace::of("scans", &with_scans(&of_zipf)),
        Trace::of("loop", &around),
        Trace::of("phases", &in_phases),
    ]
}

fn with_scans(others: &[u64]) -> Vec<u64> {
    let mut pages = Vec::new();
    let mut next = 0;
    for stretch in others.chunks(BETWEEN_SCANS) {
        pages.extend(stretch);
        pages.extend((next..next + SCAN).map(|at| (ZIPF_PAGES + at % SCANNED_PAGES) as u64));
        next += SCAN;
    }
    pages.truncate(REFERENCES);
    pages
}

/// The page of rank k is k times rarer than the first (G. K. Zipf, 1935).
struct Zipf {
    /// The sum of the weights up to each page.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(pages: usize) -> Zipf {
        let weights = (1..=pages).map(|rank| 1.0 / rank as f64);
        let sum = |sum: &mut f64, weight: f64| {
            *sum += weight;
            Some(*sum)
        };
        Zipf { sums: weights.scan(0.0, sum).collect() }
    }

    fn next(&self, random: &mut Random) -> u64 {
        let most = self.sums.last().copied().unwrap_or(0.0);
        // 53 bits: from 0 to 1 without it.
        let share = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        self.sums.partition_point(|&sum| sum <= share * most) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_what_it_is_called() {
        let traces = traces();
        assert!(traces.iter().all(|trace| trace.references.len() == REFERENCES));
        let [zipf, scans, around, phases] = &traces[..] else { panic!("four") };
        let firsts = |trace: &Trace| trace.references.iter().filter(|&&page| page == 0).count();
        // The harmonic number of 32,768 is 10.97.
        assert!(zipf.pages <= ZIPF_PAGES && scans.pages > zipf.pages);
        let most = {
            let mut counts = vec![0; zipf.pages];
            zipf.references.iter().for_each(|&page| counts[page as usize] += 1);
            counts.into_iter().max().unwrap_or(0)
        };
        let share = most as f64 / REFERENCES as f64;
        assert!((share - 1.0 / 10.97).abs() < 0.005, "{share}");
        assert_eq!((around.pages, firsts(around)), (LOOP, REFERENCES / LOOP));
        assert!(phases.pages > 5 * SET && phases.pages <= (REFERENCES / PHASE + 1) * SET / 2);
    }
}
