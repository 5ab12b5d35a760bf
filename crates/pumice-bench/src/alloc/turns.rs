//! In which order the allocators take their turns in a round.
//!
//! A program leaves things behind that the next one meets: free pages in one piece or in
//! many, memory that a virtual machine's host has or has not taken back. So nobody may always
//! follow the same neighbour. E. J. Williams, *Experimental designs balanced for the estimation of
//! residual effects of treatments*, 1949: over as many rounds as there are participants (twice as
//! many where their number is odd) each goes at each place, and after each other, equally often.

/// The participants `0..count` in the order of this round.
pub fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    let is_mirrored = count % 2 == 1 && round / count.max(1) % 2 == 1;
    (0..count).map(move |place| {
        let place = if is_mirrored { count - 1 - place } else { place };
        // 0, 1, n - 1, 2, n - 2, ...
        let first = if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 };
        (first + round) % count
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_goes_everywhere_and_follows_each_other_equally_often() {
        for count in 1..9 {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            let (mut places, mut pairs) = (BTreeMap::new(), BTreeMap::new());
            for round in 0..rounds {
                let order: Vec<_> = order(count, round).collect();
                for (place, &who) in order.iter().enumerate() {
                    *places.entry((place, who)).or_insert(0) += 1;
                }
                for pair in order.windows(2) {
                    *pairs.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            let each = rounds / count;
            assert_eq!(places.len(), count * count);
            assert!(places.values().all(|&times| times == each));
            assert_eq!(pairs.len(), count * (count - 1));
            assert!(pairs.values().all(|&times| times == each));
        }
    }
}
