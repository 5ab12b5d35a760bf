//! What the rounds of a load say: medians, and ratios to the better of glibc's two settings.
//!
//! A ratio's interval is the 95 % of a bootstrap that draws whole rounds, since what ran in one
//! round had the same weather. Which setting of glibc is the better one is part of each draw.

use std::fmt;

use serde::Serialize;

use super::allocator::Allocator;
use super::measure::Spent;
use pumice_command::json_lines::Samples;
use pumice_command::random::Random;
use pumice_command::statistics::median;

/// Draws of the bootstrap.
const DRAWS: usize = 2000;

/// The rounds of a load under one allocator.
#[derive(Debug)]
pub struct Rounds {
    /// Which.
    pub allocator: Allocator,
    /// As many for each allocator.
    pub spent: Vec<Spent>,
}

impl Rounds {
    /// A figure of each round.
    pub fn figures(&self, figure: fn(&Spent) -> f64) -> Vec<f64> {
        self.spent.iter().map(figure).collect()
    }
}

/// A load under one allocator: medians, and ratios to the better of glibc's settings.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The load's name.
    pub load: &'static str,
    /// Under which.
    pub allocator: Allocator,
    rounds: usize,
    /// From start to end.
    pub wall_s: f64,
    /// Processor time of the whole tree.
    pub cpu_s: f64,
    /// The most memory that one process of the tree had resident.
    pub peak_kib: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    time_ratio: f64,
    time_ratio_low: f64,
    time_ratio_high: f64,
    cpu_ratio: f64,
    cpu_ratio_low: f64,
    cpu_ratio_high: f64,
    memory_ratio: f64,
    memory_ratio_low: f64,
    memory_ratio_high: f64,
    samples: Samples,
}

impl Row {
    /// The ratio of wall time.
    pub fn time(&self) -> Ratio {
        Ratio { value: self.time_ratio, low: self.time_ratio_low, high: self.time_ratio_high }
    }

    /// The ratio of processor time.
    pub fn cpu(&self) -> Ratio {
        Ratio { value: self.cpu_ratio, low: self.cpu_ratio_low, high: self.cpu_ratio_high }
    }

    /// The ratio of peak memory.
    pub fn memory(&self) -> Ratio {
        Ratio { value: self.memory_ratio, low: self.memory_ratio_low, high: self.memory_ratio_high }
    }
}

/// The rows of a load. A setting of glibc is among them.
pub fn rows(load: &'static str, measured: &[Rounds]) -> Vec<Row> {
    let glibc: Vec<&Rounds> = measured.iter().filter(|one| one.allocator.is_glibc()).collect();
    let row = |one: &Rounds| {
        let middle = |figure| median(&one.figures(figure));
        let ratio = |figure| {
            let peers: Vec<_> = glibc.iter().map(|peer| peer.figures(figure)).collect();
            Ratio::to_better(&one.figures(figure), &peers)
        };
        let (time, cpu) = (ratio(|spent| spent.wall_s), ratio(|spent| spent.cpu_s));
        let memory = ratio(|spent| spent.peak_kib);
        Row {
            load,
            allocator: one.allocator,
            rounds: one.spent.len(),
            wall_s: middle(|spent| spent.wall_s),
            cpu_s: middle(|spent| spent.cpu_s),
            peak_kib: middle(|spent| spent.peak_kib) as u64,
            minor_faults: middle(|spent| spent.minor_faults) as u64,
            major_faults: middle(|spent| spent.major_faults) as u64,
            time_ratio: time.value,
            time_ratio_low: time.low,
            time_ratio_high: time.high,
            cpu_ratio: cpu.value,
            cpu_ratio_low: cpu.low,
            cpu_ratio_high: cpu.high,
            memory_ratio: memory.value,
            memory_ratio_low: memory.low,
            memory_ratio_high: memory.high,
            samples: [
                ("wall_s", one.figures(|spent| spent.wall_s)),
                ("cpu_s", one.figures(|spent| spent.cpu_s)),
            ]
            .into(),
        }
    };
    measured.iter().map(row).collect()
}

/// A ratio of medians and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The ratio.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Ratio {
    /// To the peer whose median is least. The same number of rounds for all, one at least.
    fn to_better(ours: &[f64], peers: &[Vec<f64>]) -> Ratio {
        let rounds = ours.len();
        let of_rounds = |chosen: &[usize]| {
            let middle = |values: &[f64]| {
                median(&chosen.iter().map(|&round| values[round]).collect::<Vec<_>>())
            };
            let better = peers.iter().map(|peer| middle(peer)).fold(f64::INFINITY, f64::min);
            middle(ours) / better.max(f64::MIN_POSITIVE)
        };
        let value = of_rounds(&(0..rounds).collect::<Vec<_>>());
        let mut random = Random::new(rounds as u64);
        let mut draws: Vec<f64> = (0..DRAWS)
            .map(|_| of_rounds(&(0..rounds).map(|_| random.below(rounds)).collect::<Vec<_>>()))
            .collect();
        draws.sort_by(f64::total_cmp);
        Ratio { value, low: draws[DRAWS / 40], high: draws[DRAWS - 1 - DRAWS / 40] }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} [{:.3}, {:.3}]", self.value, self.low, self.high)
    }
}

/// Of at least one value.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_peer_counts() {
        let ours: Vec<_> = (0..20).map(|round| 2.0 + f64::from(round) / 100.0).collect();
        let [better, worse] = [0.5, 3.0].map(|factor| ours.iter().map(|it| it * factor).collect());
        let ratio = Ratio::to_better(&ours, &[worse, better]);
        assert!((ratio.value - 2.0).abs() < 1e-9, "{ratio}");
        // What varies alike in a round does not make the interval wider.
        assert!((ratio.high - ratio.low).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn one_round_is_its_own_interval() {
        let ratio = Ratio::to_better(&[3.0], &[vec![2.0]]);
        assert_eq!(ratio, Ratio { value: 1.5, low: 1.5, high: 1.5 });
        assert_eq!(ratio.to_string(), "1.500 [1.500, 1.500]");
    }

    #[test]
    fn glibc_is_compared_with_itself() {
        let round = |allocator, wall_s| {
            let spent = Spent { wall_s, cpu_s: 1.0, peak_kib: 8.0, ..Spent::default() };
            Rounds { allocator, spent: vec![spent; 3] }
        };
        let measured = [
            round(Allocator::Glibc, 2.0),
            round(Allocator::GlibcHuge, 1.0),
            round(Allocator::Pumice, 0.5),
        ];
        let ratios: Vec<_> = rows("load", &measured).iter().map(|row| row.time().value).collect();
        assert_eq!(ratios, [2.0, 1.0, 0.5]);
    }

    #[test]
    fn a_geometric_mean() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-9);
    }
}
