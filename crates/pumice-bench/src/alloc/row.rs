//! The rows of a load: medians, and ratios to the better of glibc's two settings.
//!
//! A ratio's interval is the 95 % of a bootstrap that draws whole rounds, since what ran in one
//! round had the same weather. Which setting of glibc is the better one is part of each draw.

use serde_json::json;

use super::allocator::Allocator;
use super::measure::Spent;
use crate::harness::{figures, middle};
use crate::registry::Row;
use pumice_command::statistics::Ratio;

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
        figures(&self.spent, figure)
    }
}

/// The fields of the ratios, with the ends of their intervals.
pub const TIME: [&str; 3] = ["time_ratio", "time_ratio_low", "time_ratio_high"];
pub const CPU: [&str; 3] = ["cpu_ratio", "cpu_ratio_low", "cpu_ratio_high"];
pub const MEMORY: [&str; 3] = ["memory_ratio", "memory_ratio_low", "memory_ratio_high"];

/// The rows of a load: medians, and ratios to the better of glibc's settings, one of which is among them.
pub fn rows(load: &str, measured: &[Rounds]) -> Vec<Row> {
    let glibc: Vec<&Rounds> = measured.iter().filter(|one| one.allocator.is_glibc()).collect();
    let row = |one: &Rounds| {
        let whole = |figure: fn(&Spent) -> f64| middle(&one.spent, figure) as u64;
        let ratio = |figure| {
            let peers: Vec<_> = glibc.iter().map(|peer| peer.figures(figure)).collect();
            Ratio::to_better(&one.figures(figure), &peers)
        };
        let row = Row::of(json!({
            "load": load,
            "allocator": one.allocator.name(),
            "rounds": one.spent.len(),
            // The most memory that one process of the tree had resident.
            "peak_kib": whole(|spent| spent.peak_kib),
            // Page faults without I/O, and with it.
            "minor_faults": whole(|spent| spent.minor_faults),
            "major_faults": whole(|spent| spent.major_faults),
        }));
        // From start to end, and processor time of the whole tree.
        row.sampled("wall_s", one.figures(|spent| spent.wall_s))
            .sampled("cpu_s", one.figures(|spent| spent.cpu_s))
            .interval(TIME, ratio(|spent| spent.wall_s))
            .interval(CPU, ratio(|spent| spent.cpu_s))
            .interval(MEMORY, ratio(|spent| spent.peak_kib))
    };
    measured.iter().map(row).collect()
}

/// Of at least one value.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::field::float;

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
        let ratios: Vec<_> =
            rows("load", &measured).iter().map(|row| float(row, TIME[0])).collect();
        assert_eq!(ratios, [2.0, 1.0, 0.5]);
    }

    #[test]
    fn a_geometric_mean() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-9);
    }
}
