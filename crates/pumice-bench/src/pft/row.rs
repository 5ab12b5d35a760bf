//! A row of the experiment, and how it is shown.

use pumice_frames::addr::FRAME_SIZE;
use serde_json::{json, Value};

use super::backend::Backend;
use super::measure::{Job, Spent};
use crate::harness::{figures, middle};
use crate::registry::field::float;
use crate::registry::Row;

/// One measurement of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// While the clock ran, the helper thread included.
    pub spent: Spent,
    /// Processor time of the helper thread before, since the last measurement.
    pub filling_s: f64,
    /// Megabytes cleared while a request waited, because the pool was not full.
    pub hot_cleared_mb: f64,
}

/// Medians over the rounds, of which there is at least one.
pub fn row(experiment: &str, backend: Backend, job: &Job, rounds: &[Round]) -> Row {
    let cpu_s = middle(rounds, |round| round.spent.cpu.total_s());
    let system_s = middle(rounds, |round| round.spent.cpu.system_s).min(cpu_s);
    let wall_s = middle(rounds, |round| round.spent.wall_s);
    let with_filling_s = middle(rounds, |round| round.spent.cpu.total_s() + round.filling_s);
    let faults = job.faults() as f64;
    let row = Row::of(json!({
        "experiment": experiment,
        "backend": backend.name(),
        // GiB allocated at a time, by all threads together.
        "gb": (job.threads * job.bytes) as f64 / f64::from(1 << 30),
        // Times in a row.
        "rep": job.repetitions,
        // Threads.
        "thr": job.threads,
        // Cache lines written in each page that is touched.
        "lines": job.lines,
        "user_s": cpu_s - system_s,
        "system_s": system_s,
        "wall_s": wall_s,
        // Pages touched a second of processor time.
        "flt_cpu_s": faults / cpu_s,
        // The same with the helper thread's time beforehand.
        "flt_cpu_s_with_filling": faults / with_filling_s,
        // Pages touched a second on the wall.
        "flt_wall_s": faults / wall_s,
        // Allocations that repay populating the pool, against huge pages; null for never. 0 for a kernel's row, for
        // which nothing was invested.
        "pays_after": 0,
        // Megabytes cleared while a request waited.
        "hot_cleared_mb": middle(rounds, |round| round.hot_cleared_mb),
    }));
    let row = row
        .samples("flt_cpu_s", figures(rounds, |round| faults / round.spent.cpu.total_s()))
        .samples("flt_wall_s", figures(rounds, |round| faults / round.spent.wall_s));
    // Of each allocation, where not all are.
    match job.pages * FRAME_SIZE == job.bytes {
        true => row,
        false => row.set("touched_pages", job.pages),
    }
}

/// Processor time of all repetitions, in seconds.
pub fn cpu_s(row: &Row) -> f64 {
    float(row, "user_s") + float(row, "system_s")
}

/// With `pays_after`: the same job took `peer_cpu_s` elsewhere, and populating what one allocation needs took
/// `invested_s` at first.
pub fn with_repayment(row: Row, peer_cpu_s: f64, invested_s: f64) -> Row {
    let with_filling_s =
        cpu_s(&row) * float(&row, "flt_cpu_s") / float(&row, "flt_cpu_s_with_filling");
    let saved_s = (peer_cpu_s - with_filling_s) / float(&row, "rep");
    // Where nothing is saved, each allocation costs more than the kernel's would.
    let pays_after = match saved_s > 0.0 {
        true => json!((invested_s / saved_s).ceil() as u64),
        false => Value::Null,
    };
    row.set("pays_after", pays_after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTime;
    use crate::pft::measure::Timed;
    use crate::registry::field::text;

    fn row(cpu_s: f64, filling_s: f64) -> Row {
        let job = Job {
            threads: 1,
            bytes: 4 * FRAME_SIZE,
            repetitions: 1,
            pages: 4,
            lines: 1,
            timed: Timed::Taking,
        };
        let cpu = CpuTime { user_s: cpu_s, system_s: 0.0 };
        let spent = Spent { cpu, wall_s: cpu_s };
        let round = Round { spent, filling_s, hot_cleared_mb: 0.0 };
        super::row("burst", Backend::Pumice, &job, &[round])
    }

    #[test]
    fn rates_count_pages() {
        let row = row(2.0, 2.0);
        assert_eq!(float(&row, "flt_cpu_s"), 2.0);
        assert_eq!(float(&row, "flt_cpu_s_with_filling"), 1.0);
        assert!(!row.fields().any(|field| field == "touched_pages"));
    }

    #[test]
    fn filling_is_repaid_by_what_each_use_saves() {
        let row = with_repayment(row(1.0, 1.0), 5.0, 9.0);
        assert_eq!(text(&row, "pays_after"), "3");
        let row = with_repayment(row, 2.0, 9.0);
        assert_eq!(text(&row, "pays_after"), "");
    }
}
