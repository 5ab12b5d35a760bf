//! In which order the allocators take their turns in a round.
//!
//! A program leaves things behind that the next one meets: free pages in one piece or in
//! many, memory that a virtual machine's host has or has not taken back. So nobody may always
//! follow the same neighbour. E. J. Williams, *Experimental designs balanced for the estimation of
//! residual effects of treatments*, 1949: over as many rounds as there are participants (twice as
//! many where their number is odd) each goes at each place, and after each other, equally often.
//! The first of a round follows the probe of [`cold`](super::cold), and each is first equally often.

/// The participants `0..count` in the order of this round.
pub fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    // An odd number is balanced by the mirror image of each order: that is the next round.
    let (start, is_mirrored) = match count % 2 {
        0 => (round, false),
        _ => (round / 2, round % 2 == 1),
    };
    (0..count).map(move |place| {
        let place = if is_mirrored { count - 1 - place } else { place };
        // 0, 1, n - 1, 2, n - 2, ...
        let first = if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 };
        (first + start) % count
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Range;

    use super::*;

    type Times = BTreeMap<(usize, usize), usize>;

    /// How often each was at each place, and followed each other.
    fn times(count: usize, rounds: Range<usize>) -> [Times; 2] {
        let [mut places, mut pairs] = [Times::new(), Times::new()];
        for round in rounds {
            let order: Vec<_> = order(count, round).collect();
            for (place, &who) in order.iter().enumerate() {
                *places.entry((place, who)).or_insert(0) += 1;
            }
            for pair in order.windows(2) {
                *pairs.entry((pair[0], pair[1])).or_insert(0) += 1;
            }
        }
        [places, pairs]
    }

    #[test]
    fn each_goes_everywhere_and_follows_each_other_equally_often() {
        for count in 1..9 {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            // Wherever in the cycle a load begins.
            for first in 0..rounds {
                let [places, pairs] = times(count, first..first + rounds);
                let each = rounds / count;
                assert_eq!(places.len(), count * count);
                assert!(places.values().all(|&times| times == each));
                assert_eq!(pairs.len(), count * (count - 1));
                assert!(pairs.values().all(|&times| times == each));
            }
        }
    }

    #[test]
    fn any_number_of_rounds_is_nearly_balanced() {
        for (count, apart) in [(2, 1), (4, 1), (6, 1), (8, 1), (3, 2), (5, 2), (7, 2)] {
            for rounds in 1..30 {
                let [_, pairs] = times(count, 1..1 + rounds);
                let most = pairs.values().max().copied().unwrap_or(0);
                let is_missing = pairs.len() < count * (count - 1);
                let least = pairs.values().min().filter(|_| !is_missing).copied().unwrap_or(0);
                assert!(most - least <= apart, "{count} by {rounds} rounds: {pairs:?}");
            }
        }
    }
}
