//! A row of the experiment, and how it is shown.

use pumice_frames::addr::FRAME_SIZE;
use serde_json::json;

use super::job::Pattern;
use crate::harness::{figures, middle, with_drift};
use crate::names::named;
use crate::registry::field::float;
use crate::registry::Row;
use crate::team::answer::Answer;

named! {
    /// The sides.
    pub enum Backend {
        Pumice = "pumice", Kernel = "kernel-swap",
        /// Both, on a device of compressed memory each.
        PumiceZram = "pumice-zram", KernelZram = "kernel-zram",
        Device = "device",
    }
}

impl Backend {
    /// Whether the kernel pages.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Backend::Kernel | Backend::KernelZram)
    }
}

/// The subject of a row.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub pattern: Pattern,
    pub backend: Backend,
    pub threads: usize,
    pub region_pages: usize,
    pub frames: usize,
}

/// Medians over the rounds, of which there is at least one; the longest wait is that of all of them.
pub fn row(case: &Case, rounds: &[Answer]) -> Row {
    let rates = figures(rounds, |round| round.accesses as f64 / round.seconds);
    // Filling brings nothing in but by chance.
    let has_come = case.pattern != Pattern::Fill && rounds.iter().all(|round| round.pages_in > 0);
    let is_google = case.pattern == Pattern::Google;
    let file_mb_per_s = |round: &Answer| round.bytes as f64 / 1e6 / round.seconds;
    let keys = json!({
        "pattern": case.pattern.name(),
        "backend": case.backend.name(),
        "threads": case.threads,
        "region_bytes": case.region_pages * FRAME_SIZE,
        "frames_bytes": case.frames * FRAME_SIZE,
        // The region, by the frames; 0 for the device.
        "times": case.region_pages.checked_div(case.frames).unwrap_or(0),
        // Pages written to swap.
        "out_per_s": middle(rounds, |round| round.pages_out as f64 / round.seconds),
        // Of a file that was read meanwhile.
        "file_mb_per_s": is_google.then(|| middle(rounds, file_mb_per_s)),
        // Of guards on pages that are there.
        "hit_ns": case.pattern.is_hit().then(|| middle(rounds, |round| round.hit_ns)),
        "times_kernel": null,
    });
    let cpu_us_per_page = |round: &Answer| round.cpu_s * 1e6 / round.pages_in as f64;
    let cpu = if has_come { figures(rounds, cpu_us_per_page) } else { Vec::new() };
    // Each page that comes in has a victim, whose way out is in its time.
    with_drift(Answer::row(keys, rounds, has_come), &rates)
        .sampled("accesses_per_s", rates)
        .samples("cpu_us_per_page", cpu)
        .samples("max_us", figures(rounds, |round| round.max_us))
}

/// With `times_kernel`: how many times the kernel's accesses.
pub fn beside(row: Row, kernel: &Row) -> Row {
    let times = float(&row, "accesses_per_s") / float(kernel, "accesses_per_s");
    row.set("times_kernel", times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::field;

    fn round(accesses: u64) -> Answer {
        Answer {
            accesses,
            seconds: 2.0,
            cpu_s: 0.5,
            pages_in: 1000,
            max_us: accesses as f64,
            ..Answer::default()
        }
    }

    #[test]
    fn rounds_become_a_row() {
        let case = Case {
            pattern: Pattern::RandomWrite,
            backend: Backend::Pumice,
            threads: 2,
            region_pages: 400,
            frames: 100,
        };
        let row = row(&case, &[round(100), round(120), round(110)]);
        let all = ["accesses_per_s", "times", "max_us", "cpu_us_per_page"];
        assert_eq!(all.map(|it| float(&row, it)), [55.0, 4.0, 120.0, 500.0]);
        assert_eq!(float(&row, "drift_percent").round(), 10.0);
        assert_eq!(float(&row, "spread_percent").round(), 20.0);
        let kernel = super::row(&Case { backend: Backend::Kernel, ..case }, &[round(55)]);
        for field in ["drift_percent", "file_mb_per_s"] {
            assert_eq!(field::number(&kernel, field), None);
        }
        assert_eq!(float(&beside(row, &kernel), "times_kernel"), 2.0);
    }
}
