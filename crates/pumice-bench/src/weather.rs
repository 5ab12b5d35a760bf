//! The weather of a measurement: the times of calibration loops, and the load of others on the machine.
//!
//! The loops run before the first experiment, between any two, and after the last. They do the same each time, so
//! differences are the machine's doing: its clock, its host, other programs.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::cpu::usage_of;
use crate::names::named;
use crate::registry::field::samples;
use crate::registry::{Entry, Row, Scale};
use crate::spent::machine_ticks;
use pumice_command::costs::Costs;
use pumice_command::statistics::median;

/// Repetitions of the loop that computes.
const LOOPS: usize = 5;
/// Of the other two, each of which takes three measurements.
const REPETITIONS: usize = 2;
/// Steps of it: some milliseconds.
const STEPS: u64 = 4_000_000;
/// From here on a difference is said to be there.
const UNSTEADY: f64 = 0.10;
const NOISY: f64 = 0.30;
/// Of all processors, by others.
const BUSY: f64 = 0.10;

/// The times of the loops: less is better.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Weather {
    /// Milliseconds of each time that the loop computed.
    pub compute_ms: Vec<f64>,
    /// Nanoseconds: zeroing 4 KiB of memory that is there, and a fault that brings a small page; the best
    /// of several times, since where the memory lies differs each time.
    pub zero_ns: f64,
    pub fault_ns: f64,
}

impl Weather {
    /// Runs the loops: half a second.
    pub fn measure() -> Weather {
        let compute_ms = (0..LOOPS).map(|_| compute_ms()).collect();
        let mut costs = Costs::default();
        for _ in 0..REPETITIONS {
            // Without memory for it there is nothing to say.
            let _ = costs.measure();
        }
        Weather {
            compute_ms,
            zero_ns: costs.fill_gb_s.cost().map_or(0.0, |cost| 4096.0 / cost.high),
            fault_ns: costs.small_ns.cost().map_or(0.0, |cost| cost.low),
        }
    }

    /// The three as one list, of those that were measured.
    fn figures(&self) -> [Option<f64>; 3] {
        let compute = (!self.compute_ms.is_empty()).then(|| median(&self.compute_ms));
        [compute, Some(self.zero_ns), Some(self.fault_ns)].map(|one| one.filter(|&it| it > 0.0))
    }

    /// How far the loops are apart in two weathers: the most, as a share of the lesser.
    pub fn drift(&self, other: &Weather) -> f64 {
        let apart = |(one, other): (Option<f64>, Option<f64>)| {
            Some((one? / other?).max(other? / one?) - 1.0)
        };
        let pairs = self.figures().into_iter().zip(other.figures());
        pairs.filter_map(apart).fold(0.0, f64::max)
    }
}

fn compute_ms() -> f64 {
    let started = Instant::now();
    let mut word = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
    }
    black_box(word);
    started.elapsed().as_secs_f64() * 1e3
}

/// Processor time so far, in ticks: everybody's, what the host took, and ours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticks {
    all: f64,
    busy: f64,
    stolen: f64,
    ours: f64,
}

impl Ticks {
    /// Now. Figures that cannot be read count as nothing.
    pub fn now() -> Ticks {
        let [user, nice, system, idle, waiting, interrupts, soft, stolen] = machine_ticks();
        let busy = user + nice + system + interrupts + soft;
        Ticks { all: busy + idle + waiting + stolen, busy, stolen, ours: our_ticks() }
    }

    /// The shares of all processors that others and the host had since.
    fn shares_since(&self, before: &Ticks) -> (f64, f64) {
        let all = self.all - before.all;
        if all <= 0.0 {
            return (0.0, 0.0);
        }
        let others = (self.busy - before.busy) - (self.ours - before.ours);
        ((others / all).clamp(0.0, 1.0), ((self.stolen - before.stolen) / all).clamp(0.0, 1.0))
    }
}

/// Of this process and of all children that were waited for.
fn our_ticks() -> f64 {
    let used = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(|who| usage_of(who).total_s());
    // SAFETY: a plain library call.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    used.iter().sum::<f64>() * per_second as f64
}

/// How far an experiment's figures can be trusted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    pub level: Level,
    /// Between the rounds of a row: half the middle half's width, of the median; the median row's.
    /// Null where no row has rounds.
    pub spread: Option<f64>,
    /// How far the loops before are from those after, as a share.
    pub drift: f64,
    /// The shares of all processors that others, and the host, had meanwhile.
    pub others: f64,
    pub stolen: f64,
}

named! {
    /// In a word.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Level {
        /// Nothing was measured, so nothing is known.
        #[default]
        Unknown = "unknown",
        Quiet = "quiet",
        Unsteady = "unsteady",
        Noisy = "noisy",
    }
}

impl Noise {
    /// Of an experiment's rows between two weathers.
    pub fn of(entry: &Entry, rows: &[Row], weather: &[Weather; 2], ticks: [Ticks; 2]) -> Noise {
        let (others, stolen) = ticks[1].shares_since(&ticks[0]);
        let spread = row_spread(entry, rows);
        let drift = weather[0].drift(&weather[1]);
        let worst = spread.unwrap_or(0.0).max(drift);
        let level = match rows.len() {
            0 => Level::Unknown,
            _ if worst > NOISY || others.max(stolen) > 2.0 * BUSY => Level::Noisy,
            _ if worst > UNSTEADY || others.max(stolen) > BUSY => Level::Unsteady,
            _ => Level::Quiet,
        };
        Noise { level, spread, drift, others, stolen }
    }

    /// A sentence or two.
    pub fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut words = match self.level {
            Level::Unknown => return "Nothing was measured.".to_owned(),
            Level::Quiet => "Quiet: ".to_owned(),
            Level::Unsteady => "Unsteady: ".to_owned(),
            Level::Noisy => "Noisy: ".to_owned(),
        };
        if let Some(spread) = self.spread {
            words += &format!(
                "rounds of the same row lie {} around their median, and ",
                percent(spread)
            );
        }
        words +=
            &format!("the calibration loops before and after differ by {}.", percent(self.drift));
        if self.others > BUSY {
            words += &format!(
                " Other programs had {} of the processors meanwhile.",
                percent(self.others)
            );
        }
        if self.stolen > BUSY {
            words += &format!(" The host kept {} of them to itself.", percent(self.stolen));
        }
        if self.level == Level::Noisy {
            let least = self.spread.unwrap_or(0.0).max(self.drift);
            words +=
                &format!(" Differences below {} mean nothing here.", percent(least.max(UNSTEADY)));
        }
        words
    }
}

/// The median row's spread.
fn row_spread(entry: &Entry, rows: &[Row]) -> Option<f64> {
    let figures = entry.figures.iter().filter(|figure| figure.scale == Scale::Ratio);
    let spreads: Vec<f64> = figures
        .flat_map(|figure| rows.iter().map(|row| samples(row, figure.field)))
        .filter_map(|rounds| spread(&rounds))
        .collect();
    (!spreads.is_empty()).then(|| median(&spreads))
}

/// Half the width of the middle half (of all, where there are fewer than four), by the median.
pub fn spread(rounds: &[f64]) -> Option<f64> {
    let middle = Some(rounds).filter(|rounds| rounds.len() >= 2).map(median)?;
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = if sorted.len() < 4 { 0 } else { sorted.len() / 4 };
    let width = sorted[sorted.len() - 1 - cut] - sorted[cut];
    (middle.abs() > 0.0).then(|| width / 2.0 / middle.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::processes::FRAME;
    use serde_json::json;

    fn weather(ms: f64) -> Weather {
        Weather { compute_ms: vec![ms; 3], zero_ns: 100.0, fault_ns: 1000.0 }
    }

    fn rows(rounds: &[f64]) -> Vec<Row> {
        vec![Row::of(json!({"operation": "get", "ns": 10.0, "samples": {"ns": rounds}}))]
    }

    #[test]
    fn the_loops_are_measured() {
        let measured = Weather::measure();
        assert_eq!(measured.compute_ms.len(), LOOPS);
        assert!(measured.zero_ns > 0.0 && measured.fault_ns > 0.0);
    }

    #[test]
    fn drift_is_the_most_of_the_three() {
        assert!((weather(10.0).drift(&weather(12.0)) - 0.2).abs() < 1e-9);
        assert!((weather(12.0).drift(&weather(10.0)) - 0.2).abs() < 1e-9);
        assert_eq!(weather(10.0).drift(&Weather::default()), 0.0);
    }

    #[test]
    fn noise_is_told_from_quiet() {
        let none = [Ticks::default(); 2];
        let of = |rounds: &[f64], after: f64| {
            Noise::of(&FRAME, &rows(rounds), &[weather(10.0), weather(after)], none)
        };
        assert_eq!(of(&[10.0, 10.1, 9.9], 10.1).level, Level::Quiet);
        assert_eq!(of(&[10.0, 10.1, 9.9], 12.0).level, Level::Unsteady);
        let noisy = of(&[10.0, 30.0, 9.0], 10.0);
        assert_eq!(noisy.level, Level::Noisy);
        assert!(noisy.words().contains("mean nothing"), "{}", noisy.words());
        let nothing = Noise::of(&FRAME, &[], &[weather(1.0), weather(1.0)], none);
        assert_eq!(nothing.level, Level::Unknown);
    }

    #[test]
    fn others_are_whoever_else_was_busy() {
        let before = Ticks { all: 1000.0, busy: 100.0, stolen: 0.0, ours: 50.0 };
        let after = Ticks { all: 1200.0, busy: 250.0, stolen: 10.0, ours: 150.0 };
        let (others, stolen) = after.shares_since(&before);
        assert!((others - 0.25).abs() < 1e-9 && (stolen - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_spread_is_of_the_middle_half() {
        assert_eq!(spread(&[1.0]), None);
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.1));
        assert_eq!(spread(&[1.0, 9.0, 10.0, 10.0, 11.0, 90.0]), Some(0.1));
    }
}
