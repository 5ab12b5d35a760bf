//! The rows of a load: medians, and ratios to the better of glibc's two settings, and to the best of all peers.
//!
//! A ratio's interval is the 95 % of a bootstrap that draws whole rounds, since all runs of one round had the same
//! weather. Which peer is the better one is part of each draw.

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

/// The rounds of a load under all allocators.
#[derive(Debug)]
pub struct Measured {
    /// One for each allocator that runs it.
    pub all: Vec<Rounds>,
    /// Rounds that were repeated, since the host had to bring memory.
    pub repeated: usize,
    /// Rounds that are here although it had to, each time.
    pub cold: usize,
    /// Before each round's turns: the most nanoseconds for a fresh page.
    pub probes_ns: Vec<f64>,
    /// How long a round took, with its probes.
    pub round_s: f64,
}

impl Measured {
    /// The rounds under an allocator, if it runs the load.
    pub fn of(&self, allocator: Allocator) -> Option<&Rounds> {
        self.all.iter().find(|rounds| rounds.allocator == allocator)
    }
}

/// The fields of the ratios, with the ends of their intervals.
pub const TIME: [&str; 3] = ["time_ratio", "time_ratio_low", "time_ratio_high"];
pub const CPU: [&str; 3] = ["cpu_ratio", "cpu_ratio_low", "cpu_ratio_high"];
pub const MEMORY: [&str; 3] = ["memory_ratio", "memory_ratio_low", "memory_ratio_high"];
/// Of pumice to the best of all others.
pub const TO_BEST: [&str; 3] = ["time_to_best", "time_to_best_low", "time_to_best_high"];
/// Of pumice with mappings to pumice without, within rounds.
pub const MMAP_TIME: [&str; 3] = ["mmap_time", "mmap_time_low", "mmap_time_high"];
pub const MMAP_CPU: [&str; 3] = ["mmap_cpu", "mmap_cpu_low", "mmap_cpu_high"];

/// The rows of a load: medians, and ratios to the better of glibc's settings, one of which is among them.
pub fn rows(load: &str, measured: &Measured) -> Vec<Row> {
    let glibc: Vec<_> = measured.all.iter().filter(|one| one.allocator.is_glibc()).collect();
    let row = |one: &Rounds| {
        let whole = |figure: fn(&Spent) -> f64| middle(&one.spent, figure) as u64;
        let ratio = |figure| to_better(one, &glibc, figure);
        let row = Row::of(json!({
            "load": load,
            "allocator": one.allocator.name(),
            "rounds": one.spent.len(),
            "repeated_rounds": measured.repeated,
            "cold_rounds": measured.cold,
            "round_s": measured.round_s,
            // The most memory that one process of the tree had resident.
            "peak_kib": whole(|spent| spent.peak_kib),
            // Page faults without I/O, and with it.
            "minor_faults": whole(|spent| spent.minor_faults),
            "major_faults": whole(|spent| spent.major_faults),
        }));
        // From start to end, and processor time of the whole tree.
        let row = row
            .sampled("wall_s", one.figures(|spent| spent.wall_s))
            .sampled("cpu_s", one.figures(|spent| spent.cpu_s))
            .sampled("probe_ns", measured.probes_ns.clone())
            .median("system_s", &one.figures(|spent| spent.system_s))
            .interval(TIME, ratio(|spent| spent.wall_s))
            .interval(CPU, ratio(|spent| spent.cpu_s))
            .interval(MEMORY, ratio(|spent| spent.peak_kib));
        beside_others(row, one, measured)
    };
    measured.all.iter().map(row).collect()
}

/// With the ratios that only rows of pumice have.
fn beside_others(row: Row, one: &Rounds, measured: &Measured) -> Row {
    match (one.allocator, measured.of(Allocator::Pumice)) {
        (Allocator::Pumice, _) => {
            let peers: Vec<_> =
                measured.all.iter().filter(|one| !one.allocator.is_pumice()).collect();
            let time_s = |peer: &&&Rounds| middle(&peer.spent, |spent| spent.wall_s);
            let best = peers.iter().min_by(|one, other| time_s(one).total_cmp(&time_s(other)));
            let name = best.map(|best| best.allocator.name());
            row.interval(TO_BEST, to_better(one, &peers, |spent| spent.wall_s)).set("best", name)
        }
        (Allocator::PumiceMmap, Some(without)) => {
            let within =
                |figure| Ratio::within_rounds(&one.figures(figure), &without.figures(figure));
            row.interval(MMAP_TIME, within(|spent| spent.wall_s))
                .interval(MMAP_CPU, within(|spent| spent.cpu_s))
        }
        _ => row,
    }
}

fn to_better(one: &Rounds, peers: &[&Rounds], figure: fn(&Spent) -> f64) -> Ratio {
    let peers: Vec<_> = peers.iter().map(|peer| peer.figures(figure)).collect();
    Ratio::to_better(&one.figures(figure), &peers)
}

/// Of at least one value.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::field::{float, number, text};

    fn measured(all: &[(Allocator, f64)]) -> Measured {
        let rounds = |&(allocator, wall_s): &(Allocator, f64)| {
            let spent = Spent { wall_s, cpu_s: 1.0, peak_kib: 8.0, ..Spent::default() };
            Rounds { allocator, spent: vec![spent; 3] }
        };
        let probes_ns = vec![500.0; 3];
        let all = all.iter().map(rounds).collect();
        Measured { all, repeated: 2, cold: 1, probes_ns, round_s: 1.0 }
    }

    #[test]
    fn glibc_is_compared_with_itself() {
        let measured = measured(&[
            (Allocator::Glibc, 2.0),
            (Allocator::GlibcHuge, 1.0),
            (Allocator::Pumice, 0.5),
        ]);
        let rows = rows("load", &measured);
        let ratios: Vec<_> = rows.iter().map(|row| float(row, TIME[0])).collect();
        assert_eq!(ratios, [2.0, 1.0, 0.5]);
        let repeated = ["repeated_rounds", "cold_rounds"].map(|field| float(&rows[0], field));
        assert_eq!(repeated, [2.0, 1.0]);
    }

    #[test]
    fn pumice_is_compared_with_the_best_and_mappings_with_none() {
        let measured = measured(&[
            (Allocator::Glibc, 2.0),
            (Allocator::Tcmalloc, 0.4),
            (Allocator::Pumice, 0.5),
            (Allocator::PumiceMmap, 0.25),
        ]);
        let rows = rows("load", &measured);
        assert_eq!((float(&rows[2], TO_BEST[0]), &*text(&rows[2], "best")), (1.25, "tcmalloc"));
        assert_eq!([MMAP_TIME, MMAP_CPU].map(|fields| float(&rows[3], fields[0])), [0.5, 1.0]);
        assert_eq!(number(&rows[1], TO_BEST[0]), None);
    }

    #[test]
    fn a_geometric_mean() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-9);
    }
}
