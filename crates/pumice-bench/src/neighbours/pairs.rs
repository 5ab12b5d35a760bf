//! What pairs of windows say: a median, and the interval that holds it in 95 of 100 runs.

/// The same work with something in the background and without, in units per second.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// With it.
    pub on: f64,
    /// Without.
    pub off: f64,
}

impl Pair {
    /// The share of the work that is not done.
    pub fn loss(&self) -> f64 {
        1.0 - self.on / self.off.max(f64::MIN_POSITIVE)
    }
}

/// A median and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Of `1 - on / off`. At least one pair.
    pub fn of_losses(pairs: &[Pair]) -> Estimate {
        let mut losses: Vec<_> = pairs.iter().map(Pair::loss).collect();
        losses.sort_by(f64::total_cmp);
        let count = losses.len();
        let median = (losses[(count - 1) / 2] + losses[count / 2]) / 2.0;
        // Ranks n/2 -+ 0.98 sqrt(n): the normal approximation of the binomial's 95 %.
        let reach = 0.98 * (count as f64).sqrt();
        let low = (count as f64 / 2.0 - reach).floor().max(0.0) as usize;
        let high = ((count as f64 / 2.0 + reach).ceil() as usize).min(count - 1);
        Estimate { median, low: losses[low], high: losses[high] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_its_interval() {
        let pairs: Vec<_> = (0..25).map(|i| Pair { on: f64::from(i), off: 100.0 }).collect();
        let estimate = Estimate::of_losses(&pairs);
        assert!((estimate.median - 0.88).abs() < 1e-9);
        assert!(estimate.low < estimate.median && estimate.median < estimate.high);
        assert!(estimate.low > 0.76 && estimate.high < 1.0, "{estimate:?}");
    }

    #[test]
    fn one_pair_is_its_own_interval() {
        let estimate = Estimate::of_losses(&[Pair { on: 1.0, off: 2.0 }]);
        assert_eq!(estimate, Estimate { median: 0.5, low: 0.5, high: 0.5 });
    }
}
