//! What experiments say of several values: their median, and how sure it is.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn the_interval_holds_the_median() {
        let values: Vec<_> = (0..100).map(f64::from).collect();
        assert_eq!(median(&values), 49.5);
        assert_eq!(interval(&values), (40.0, 60.0));
        assert_eq!(interval(&[3.0]), (3.0, 3.0));
    }
}
