//! Pairs of windows, with work in the background and without, and their result: a median loss, and the interval that
//! holds it in 95 of 100 runs.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{figures, with_interval};
use crate::registry::Row;

/// The work in a window, each figure per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Bytes that the background worked on.
    pub bytes: f64,
    /// Processor time of the background.
    pub cpu: f64,
    /// The neighbours' work, which is compared.
    pub work: f64,
}

impl Window {
    /// Watches for so long. `counts` are bytes, nanoseconds of processor time, and work so far.
    pub fn watch(
        length: Duration,
        counts: impl Fn() -> Result<[u64; 3], String>,
    ) -> Result<Window, String> {
        let (before, start) = (counts()?, Instant::now());
        thread::sleep(length);
        let (after, seconds) = (counts()?, start.elapsed().as_secs_f64());
        let per_second = |index: usize| (after[index] - before[index]) as f64 / seconds;
        Ok(Window { bytes: per_second(0), cpu: per_second(1) / 1e9, work: per_second(2) })
    }
}

/// Windows with the background's work, and without.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub on: Window,
    pub off: Window,
}

impl Pair {
    /// The share of the work that is not done, in percent.
    fn loss_pct(&self) -> f64 {
        100.0 * (1.0 - self.on.work / self.off.work.max(f64::MIN_POSITIVE))
    }
}

/// Measures pairs in alternating order.
pub fn alternate<E>(
    pairs: u32,
    mut measure: impl FnMut(bool) -> Result<Window, E>,
) -> Result<Vec<Pair>, E> {
    let pair = |pair| {
        let first = measure(pair % 2 == 1)?;
        let second = measure(pair % 2 == 0)?;
        Ok(match pair % 2 {
            0 => Pair { on: second, off: first },
            _ => Pair { on: first, off: second },
        })
    };
    (0..pairs).map(pair).collect()
}

/// With the pairs' result: the background's mean speed in so many bytes, under its name and as samples, its mean share
/// of a processor, and the neighbours' loss.
pub fn with_loss(row: Row, pairs: &[Pair], speed: (&str, f64), cpu_field: &str) -> Row {
    let mean = |of: &dyn Fn(&Pair) -> f64| {
        figures(pairs, of).iter().sum::<f64>() / pairs.len().max(1) as f64
    };
    let (speed_field, bytes) = speed;
    let row = row
        .set(speed_field, mean(&|pair| pair.on.bytes / bytes))
        .set(cpu_field, mean(&|pair| pair.on.cpu * 100.0));
    with_interval(
        row,
        ["loss_pct", "loss_low_pct", "loss_high_pct"],
        figures(pairs, Pair::loss_pct),
    )
    .samples(speed_field, figures(pairs, |pair| pair.on.bytes / bytes))
}

#[cfg(test)]
mod tests {
    use pumice_command::statistics::Ratio;

    use super::*;

    fn pair(on: f64, off: f64) -> Pair {
        let window = |work| Window { work, ..Window::default() };
        Pair { on: window(on), off: window(off) }
    }

    #[test]
    fn the_median_lies_in_its_interval() {
        let pairs: Vec<_> = (0..25).map(|i| pair(f64::from(i), 100.0)).collect();
        let estimate = Ratio::of(&figures(&pairs, Pair::loss_pct));
        assert!((estimate.median - 88.0).abs() < 1e-9);
        assert!(estimate.low < estimate.median && estimate.median < estimate.high);
        assert!(estimate.low > 76.0 && estimate.high < 100.0, "{estimate:?}");
    }

    #[test]
    fn one_pair_is_its_own_interval() {
        let estimate = Ratio::of(&figures(&[pair(1.0, 2.0)], Pair::loss_pct));
        assert_eq!(estimate, Ratio { median: 50.0, low: 50.0, high: 50.0 });
    }

    #[test]
    fn windows_with_and_without_go_first_by_turns() {
        let mut order = Vec::new();
        let pairs = alternate(2, |on| {
            order.push(on);
            Ok::<_, ()>(Window { work: f64::from(u8::from(on)), ..Window::default() })
        });
        assert_eq!(order, [false, true, true, false]);
        assert!(pairs.expect("measured").iter().all(|pair| pair.on.work > pair.off.work));
    }
}
