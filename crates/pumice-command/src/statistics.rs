//! The median of several values, and how sure it is.

use std::fmt;

use serde::Serialize;

use crate::random::Random;

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle value, or the mean of the two; of at least one value.
pub fn median(values: &[f64]) -> f64 {
    let values = sorted(values);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// The 95 % interval of the median: the values whose ranks lie 0.98 times the root of the count
/// around the middle (a sign test's).
pub fn interval(values: &[f64]) -> (f64, f64) {
    let values = sorted(values);
    let middle = values.len() as f64 / 2.0;
    let reach = 0.98 * (values.len() as f64).sqrt();
    let low = (middle - reach).floor().max(0.0) as usize;
    let high = ((middle + reach).ceil() as usize).min(values.len() - 1);
    (values[low], values[high])
}

/// A ratio and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Itself: a median, or a ratio of medians.
    pub median: f64,
    /// The interval's lower end,
    pub low: f64,
    /// and its upper one.
    pub high: f64,
}

/// With two decimals, or as many as the format asks for.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(2);
        write!(f, "{:.decimals$} [{:.decimals$}, {:.decimals$}]", self.median, self.low, self.high)
    }
}

/// Draws of a bootstrap.
const DRAWS: usize = 2000;

impl Ratio {
    /// The median of one ratio a round, and its [`interval`]. Of one value at least.
    pub fn of(ratios: &[f64]) -> Ratio {
        let (low, high) = interval(ratios);
        Ratio { median: median(ratios), low, high }
    }

    /// The values of one side by those of the other, each pair of the same round.
    pub fn within_rounds(ours: &[f64], theirs: &[f64]) -> Ratio {
        Ratio::of(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }

    /// The ratio of our median to the least of the peers' medians. The interval is that of a bootstrap over whole
    /// rounds ([`ratio_interval`]); each draw chooses its better peer. All have as many rounds, one at least.
    pub fn to_better(ours: &[f64], peers: &[Vec<f64>]) -> Ratio {
        let of_rounds = |chosen: &[usize]| {
            let better = peers.iter().map(|peer| median_of(peer, chosen));
            let better = better.fold(f64::INFINITY, f64::min);
            median_of(ours, chosen) / better.max(f64::MIN_POSITIVE)
        };
        let all: Vec<_> = (0..ours.len()).collect();
        let draws: Vec<f64> =
            draws(ours.len(), ours.len() as u64).map(|drawn| of_rounds(&drawn)).collect();
        let draws = sorted(&draws);
        Ratio {
            median: of_rounds(&all),
            low: draws[DRAWS / 40],
            high: draws[DRAWS - 1 - DRAWS / 40],
        }
    }
}

/// The median of the values of these rounds.
fn median_of(values: &[f64], rounds: &[usize]) -> f64 {
    median(&rounds.iter().map(|&round| values[round]).collect::<Vec<_>>())
}

/// Rounds that are drawn anew, again and again.
fn draws(rounds: usize, seed: u64) -> impl Iterator<Item = Vec<usize>> {
    let mut random = Random::new(seed);
    (0..DRAWS).map(move |_| (0..rounds).map(|_| random.below(rounds)).collect())
}

/// The ratio of the medians of values that were had in the same rounds, and what it may be: the ratios of rounds that
/// are drawn from these anew, again and again (B. Efron, 1979). `None` where the lower median may be nothing.
pub fn ratio_interval(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
    let rounds = ours.len().min(theirs.len());
    if rounds < 2 {
        return None;
    }
    let of = |drawn: Vec<usize>| (median_of(ours, &drawn), median_of(theirs, &drawn));
    let drawn = draws(rounds, 1).map(of).filter(|&(_, their)| their > 0.0);
    let ratios: Vec<f64> = drawn.map(|(our, their)| our / their).collect();
    let their = median(theirs);
    if their <= 0.0 || ratios.len() < DRAWS * 39 / 40 {
        return None;
    }
    let ratios = sorted(&ratios);
    let (low, high) = (ratios[ratios.len() / 40], ratios[ratios.len() * 39 / 40]);
    Some(Ratio { median: median(ours) / their, low, high })
}

/// Student's t for 95 %, by degrees of freedom from 1 on.
const T: [f64; 20] = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
];

/// The 95 % interval of the mean by Student's t, which holds for few values too, if the causes of their spread are much
/// the same each time. Of one value nothing is known.
pub fn mean_interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.len() < 2 {
        return (f64::NEG_INFINITY, f64::INFINITY);
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let t = T.get(values.len() - 2).copied().unwrap_or(1.98);
    let reach = t * (variance / count).sqrt();
    (mean - reach, mean + reach)
}

/// Student's t for 99 %, by degrees of freedom from 1 on.
const T_99: [f64; 20] = [
    63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012,
    2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
];

/// How much less sure a median of many is than their mean, for a normal distribution: the root of half of pi.
/// Of one or two values they are the same.
pub const MEDIAN_TO_MEAN: f64 = 1.2533;

/// How far the 99 % interval of the difference of two means reaches to either side, where the two may vary
/// by different amounts (B. L. Welch, Biometrika 1947). `None` with fewer than two values of either, or where all of
/// either are the same: how much they vary is not known then.
pub fn welch_99(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let error = |values: &[f64]| {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        squares / (count - 1.0) / count
    };
    if ours.len() < 2 || theirs.len() < 2 {
        return None;
    }
    let (one, other) = (error(ours), error(theirs));
    if one == 0.0 || other == 0.0 {
        return None;
    }
    let of = |error: f64, values: &[f64]| error.powi(2) / (values.len() as f64 - 1.0);
    let freedom = (one + other).powi(2) / (of(one, ours) + of(other, theirs));
    // Rounded down, so that the interval is not too narrow; all but that of many values from the table on.
    let t = T_99.get(freedom.max(1.0) as usize - 1).copied().unwrap_or(2.831);
    Some(t * (one + other).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn the_mean_of_few_is_less_sure() {
        let (low, high) = mean_interval(&[1.0, 2.0, 3.0]);
        assert!((low + 0.4843).abs() < 1e-3 && (high - 4.4843).abs() < 1e-3, "{low} {high}");
        let many: Vec<_> = (0..100).map(|index| f64::from(index % 3)).collect();
        let (low, high) = mean_interval(&many);
        assert!(low > 0.8 && high < 1.2, "{low} {high}");
        assert_eq!(mean_interval(&[1.0]), (f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn a_ratio_is_as_sure_as_the_rounds_are_alike() {
        let theirs: Vec<_> = (0..40).map(|index| 10.0 + f64::from(index % 3)).collect();
        let ours: Vec<_> = theirs.iter().map(|value| value / 2.0).collect();
        let alike = ratio_interval(&ours, &theirs).expect("they are far from nothing");
        assert_eq!(alike, Ratio { median: 0.5, low: 0.5, high: 0.5 });
        let noisy: Vec<_> = (0..40).map(|index| 5.0 + 3.0 * f64::from(index * 7 % 5 - 2)).collect();
        let unsure = ratio_interval(&noisy, &theirs).expect("as above");
        assert!(unsure.low < unsure.median && unsure.median < unsure.high, "{unsure:?}");
        let nothing: Vec<_> = (0..40).map(|index| f64::from(index % 2) - 0.5).collect();
        assert_eq!(ratio_interval(&ours, &nothing), None);
        assert_eq!(ratio_interval(&[1.0], &[2.0]), None);
    }

    #[test]
    fn the_better_peer_counts() {
        let ours: Vec<_> = (0..20).map(|round| 2.0 + f64::from(round) / 100.0).collect();
        let [better, worse] = [0.5, 3.0].map(|factor| ours.iter().map(|it| it * factor).collect());
        let ratio = Ratio::to_better(&ours, &[worse, better]);
        assert!((ratio.median - 2.0).abs() < 1e-9, "{ratio}");
        // Variation that all share in a round does not make the interval wider.
        assert!((ratio.high - ratio.low).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn one_round_is_its_own_interval() {
        let ratio = Ratio::to_better(&[3.0], &[vec![2.0]]);
        assert_eq!(ratio, Ratio { median: 1.5, low: 1.5, high: 1.5 });
        assert_eq!(format!("{ratio:.3}"), "1.500 [1.500, 1.500]");
        assert_eq!(ratio.to_string(), "1.50 [1.50, 1.50]");
    }

    #[test]
    fn the_interval_holds_the_median() {
        let values: Vec<_> = (0..100).map(f64::from).collect();
        assert_eq!(median(&values), 49.5);
        assert_eq!(interval(&values), (40.0, 60.0));
        assert_eq!(interval(&[3.0]), (3.0, 3.0));
    }
}
