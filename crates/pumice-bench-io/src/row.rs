//! A row of the experiment, and how it is shown.

use pumice_frames::addr::FRAME_SIZE;
use serde_json::json;

use pumice_bench::harness::{figures, middle, with_drift};
use pumice_bench::registry::field::{float, samples, text};
use pumice_bench::registry::Row;
use pumice_bench::team::answer::Answer;
use pumice_command::statistics::Ratio;

/// The subject of a row.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub op: &'static str,
    pub backend: &'static str,
    pub threads: usize,
    pub file_bytes: u64,
    /// 0 for a backend without memory of its own.
    pub frames_bytes: u64,
}

/// Medians over the rounds, of which there is at least one; the longest wait is that of all of them.
pub fn row(case: &Case, rounds: &[Answer]) -> Row {
    let is_random = case.op.starts_with("random");
    let is_sequence = matches!(case.op, "out" | "rewrite" | "in");
    let is_scan = case.op == "scan";
    let is_beside = case.op == "random-beside";
    let has_come = is_random && rounds.iter().all(|round| round.pages_in > 0);
    let per_gb = |of: fn(&Answer) -> f64| is_sequence.then(|| middle(rounds, of));
    let of_scan = |of: fn(&Answer) -> f64| is_scan.then(|| middle(rounds, of));
    let keys = json!({
        "op": case.op,
        "backend": case.backend,
        "threads": case.threads,
        "file_bytes": case.file_bytes,
        "frames_bytes": case.frames_bytes,
        // Of one processor, as `top` has it: of the whole machine. `cpu_percent` is of the process and `kswapd`.
        "machine_percent": middle(rounds, |round| 100.0 * round.machine_cpu_s / round.seconds),
        // Processor time for each gigabyte of a sequence: of the process, and of the machine.
        "cpu_s_per_gb": per_gb(|round| round.cpu_s * 1e9 / round.bytes as f64),
        "machine_s_per_gb": per_gb(|round| round.machine_cpu_s * 1e9 / round.bytes as f64),
        // By the thread that writes beside those that read.
        "beside_mb_s": is_beside.then(|| middle(rounds, |round| round.beside_bytes as f64 / 1e6 / round.seconds)),
        "hits_percent": of_scan(|round| round.hits_percent),
        "kept_percent": of_scan(|round| round.kept_percent),
    });
    let rates = figures(rounds, |round| round.bytes as f64 / 1e6 / round.seconds);
    with_drift(Answer::row(keys, rounds, has_come), &rates)
        .sampled("mb_s", rates)
        .sampled("cpu_percent", figures(rounds, |round| 100.0 * round.cpu_s / round.seconds))
        // Accesses a second: chunks of 1 MiB of a sequence, else pages.
        .sampled("iops", figures(rounds, |round| round.accesses as f64 / round.seconds))
}

/// The rate that is compared: that of pages from the device, for a cache may have a part of them.
fn rate(row: &Row) -> f64 {
    match text(row, "op").starts_with("random") {
        true => float(row, "in_per_s") * FRAME_SIZE as f64 / 1e6,
        false => float(row, "mb_s"),
    }
}

/// Beside the others of the same operation: with `times_fio` and `times_mmap`, pages read from the device (of a
/// sequence: bytes) by fio's and by those of the kernel's mapping; and with `times_unguarded`, pages in memory a second
/// by those that are read without a guard. The latter is the median of the rounds' ratios, for what a machine does from
/// one round to the next is more than the difference.
pub fn beside(row: &Row, others: &[Row]) -> Row {
    let peer = |backend: &str| others.iter().find(|other| text(other, "backend") == backend);
    let of = |backend: &str| {
        let peer = rate(peer(backend)?);
        (peer > 0.0).then(|| rate(row) / peer)
    };
    let of_unguarded =
        |peer: &Row| Ratio::within_rounds(&samples(row, "mb_s"), &samples(peer, "mb_s")).median;
    row.clone()
        .set("times_fio", of("fio"))
        .set("times_mmap", of("mmap"))
        .set("times_unguarded", peer("unguarded").map(of_unguarded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_bench::registry::field;

    fn round(pages_in: u64) -> Answer {
        Answer {
            accesses: 2 * pages_in,
            bytes: 8192 * pages_in,
            seconds: 2.0,
            cpu_s: 0.5,
            pages_in,
            max_us: pages_in as f64,
            ..Answer::default()
        }
    }

    fn row(op: &'static str, backend: &'static str, pages_in: u64) -> Row {
        let case = Case { op, backend, threads: 2, file_bytes: 400, frames_bytes: 100 };
        super::row(&case, &[round(pages_in), round(pages_in * 2), round(pages_in)])
    }

    fn fields<const N: usize>(row: &Row, fields: [&str; N]) -> [Option<f64>; N] {
        fields.map(|field| field::number(row, field))
    }

    #[test]
    fn rounds_become_a_row() {
        let row = row("random", "direct", 1000);
        let rates = fields(&row, ["iops", "in_per_s", "cpu_percent"]);
        assert_eq!(rates, [Some(1000.0), Some(500.0), Some(25.0)]);
        assert_eq!(fields(&row, ["cpu_us_per_page", "cpu_s_per_gb"]), [Some(500.0), None]);
        assert_eq!(fields(&row, ["drift_percent", "spread_percent"]), [Some(0.0), Some(100.0)]);
        let row = beside(&row, &[self::row("random", "fio", 2000)]);
        assert_eq!(fields(&row, ["times_fio", "times_mmap"]), [Some(0.5), None]);
    }

    #[test]
    fn pages_in_memory_are_compared_round_by_round() {
        let rates = |backend, rates: [u64; 3]| {
            let case = Case { op: "resident", backend, threads: 2, file_bytes: 0, frames_bytes: 0 };
            super::row(&case, &rates.map(round))
        };
        let unguarded = rates("unguarded", [100, 300, 1000]);
        let row = rates("shared", [80, 150, 700]);
        let row = beside(&row, &[unguarded, row.clone()]);
        assert_eq!(fields(&row, ["times_unguarded", "times_fio"]), [Some(0.7), None]);
    }

    #[test]
    fn sequences_are_compared_by_their_bytes() {
        let row = beside(&row("in", "direct", 1000), &[row("in", "mmap", 500)]);
        assert_eq!(fields(&row, ["times_mmap", "cpu_us_per_page"]), [Some(2.0), None]);
        assert!((float(&row, "cpu_s_per_gb") - 61.0).abs() < 0.1);
    }
}
