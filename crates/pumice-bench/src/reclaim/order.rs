//! Which page comes next.

use pumice_command::random::Random;

use super::job::Pattern;

/// The exponent of YCSB and of most papers.
const THETA: f64 = 0.99;
/// A prime greater than any number of pages, so that multiplying by it only puts them in another order.
const SPREAD: usize = 2_654_435_761;

/// Ranks by Zipf's law (Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994), and pages
/// for them, which lie scattered so that nobody profits from neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    pages: usize,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub fn new(pages: usize) -> Zipf {
        let zeta_of = |count: usize| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum();
        let zeta: f64 = zeta_of(pages);
        let two: f64 = zeta_of(2);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Zipf { pages, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    fn rank(&self, random: &mut Random) -> usize {
        let even = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = even * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.pages as f64 * (self.eta * even - self.eta + 1.0).powf(self.alpha);
        (rank as usize).min(self.pages - 1)
    }

    pub fn page(&self, random: &mut Random) -> usize {
        self.rank(random) * SPREAD % self.pages
    }
}

/// A thread's pages, one after the other.
#[derive(Debug)]
pub enum Order {
    Any { pages: usize, random: Random },
    InTurn { first: usize, pages: usize, next: usize },
    Zipf { zipf: Zipf, random: Random },
}

impl Order {
    /// Of one of so many threads on a region; `next` says how far it came in its share.
    pub fn new(
        pattern: Pattern,
        (thread, threads): (usize, usize),
        seed: u64,
        zipf: &Zipf,
        (frames, next): (usize, usize),
    ) -> Order {
        let pages = zipf.pages;
        let random = Random::new(seed.wrapping_mul(1 << 16) + thread as u64);
        match pattern {
            Pattern::Fill | Pattern::SequentialWrite | Pattern::SequentialRead => {
                let share = pages / threads;
                Order::InTurn { first: thread * share, pages: share, next: next % share }
            }
            Pattern::ZipfWrite => Order::Zipf { zipf: *zipf, random },
            // The pages in use fit twice.
            Pattern::Google => Order::Any { pages: (frames / 2).min(pages), random },
            _ => Order::Any { pages, random },
        }
    }

    pub fn next(&mut self) -> usize {
        match self {
            Order::Any { pages, random } => random.below(*pages),
            Order::InTurn { first, pages, next } => {
                let page = *first + *next;
                *next = if *next + 1 == *pages { 0 } else { *next + 1 };
                page
            }
            Order::Zipf { zipf, random } => zipf.page(random),
        }
    }

    /// How far it came in its share.
    pub fn position(&self) -> usize {
        match self {
            Order::InTurn { next, .. } => *next,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ranks_fall_as_zipf_says() {
        let zipf = Zipf::new(10_000);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 10_000];
        for _ in 0..1_000_000 {
            counts[zipf.rank(&mut random)] += 1;
        }
        // The first comes once in zeta times, the hundredth 100^0.99 times more seldom.
        let first = f64::from(counts[0]) * zipf.zeta / 1e6;
        assert!((first - 1.0).abs() < 0.05, "{first}");
        let around: u32 = counts[90..110].iter().sum();
        let hundredth = f64::from(around) / 20.0 * zipf.zeta / 1e6 * 100_f64.powf(THETA);
        assert!((hundredth - 1.0).abs() < 0.2, "{hundredth}");
    }

    #[test]
    fn every_rank_has_a_page_of_its_own() {
        for pages in [1000, 4096, 65_537] {
            let all: BTreeSet<_> = (0..pages).map(|rank| rank * SPREAD % pages).collect();
            assert_eq!(all.len(), pages);
        }
    }

    #[test]
    fn shares_go_round() {
        let zipf = Zipf::new(100);
        let mut order = Order::new(Pattern::SequentialRead, (1, 4), 0, &zipf, (10, 23));
        assert_eq!([order.next(), order.next(), order.next()], [48, 49, 25]);
        assert_eq!(order.position(), 1);
    }
}
