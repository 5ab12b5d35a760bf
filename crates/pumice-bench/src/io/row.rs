//! A row of the table, and an object of the JSON file.

use pumice_frames::addr::FRAME_SIZE;
use serde::Serialize;

use super::job::Answer;
use pumice_command::json_lines::Samples;
use pumice_command::statistics::median;
use pumice_command::table::{thousands, Table};

/// What a row is of.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub op: &'static str,
    pub backend: &'static str,
    pub threads: usize,
    pub file_bytes: u64,
    /// 0 for what has no memory of its own.
    pub frames_bytes: u64,
}

/// Medians over the rounds, but for the longest wait, which is that of all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub op: &'static str,
    pub backend: &'static str,
    pub threads: usize,
    pub file_bytes: u64,
    pub frames_bytes: u64,
    pub mb_s: f64,
    /// Of one processor, as `top` has it: the process and `kswapd`; the whole machine.
    pub cpu_percent: f64,
    pub machine_percent: f64,
    /// Accesses a second: chunks of 1 MiB of a sequence, else pages.
    pub iops: f64,
    /// Pages read from the device.
    pub in_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Processor time for each page read from the device at random, and for each gigabyte of a sequence: of the
    /// process, and of the machine.
    pub cpu_us_per_page: Option<f64>,
    pub machine_us_per_page: Option<f64>,
    pub cpu_s_per_gb: Option<f64>,
    pub machine_s_per_gb: Option<f64>,
    pub hits_percent: Option<f64>,
    pub kept_percent: Option<f64>,
    /// Pages read from the device (of a sequence: bytes), by fio's, and by those of the kernel's mapping.
    pub times_fio: Option<f64>,
    pub times_mmap: Option<f64>,
    /// Pages in memory a second, by those that are read without a guard: the median of the rounds' ratios, for what a
    /// machine does from one round to the next is more than the difference.
    pub times_unguarded: Option<f64>,
    /// By how much the last round was faster than the first, and the fastest than the slowest.
    pub drift_percent: Option<f64>,
    pub spread_percent: Option<f64>,
    pub samples: Samples,
}

impl Row {
    /// Of the rounds, of which there is at least one.
    pub fn new(case: &Case, rounds: &[Answer]) -> Row {
        let all = |of: fn(&Answer) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
        let middle = |of: fn(&Answer) -> f64| median(&all(of));
        let is_random = case.op.starts_with("random");
        let is_sequence = matches!(case.op, "out" | "rewrite" | "in");
        let has_come = is_random && rounds.iter().all(|round| round.pages_in > 0);
        let per_page = |of: fn(&Answer) -> f64| has_come.then(|| middle(of));
        let per_gb = |of: fn(&Answer) -> f64| is_sequence.then(|| middle(of));
        let is_scan = case.op == "scan";
        let share = |more: f64, less: f64| (rounds.len() > 1).then(|| 100.0 * (more / less - 1.0));
        let rates = all(|round| round.bytes as f64 / 1e6 / round.seconds);
        let (fastest, slowest) =
            rates.iter().fold((0.0_f64, f64::INFINITY), |(most, least), &rate| {
                (most.max(rate), least.min(rate))
            });
        let percent = |round: &Answer| 100.0 * round.cpu_s / round.seconds;
        let iops = |round: &Answer| round.accesses as f64 / round.seconds;
        Row {
            op: case.op,
            backend: case.backend,
            threads: case.threads,
            file_bytes: case.file_bytes,
            frames_bytes: case.frames_bytes,
            mb_s: median(&rates),
            cpu_percent: middle(percent),
            machine_percent: middle(|round| 100.0 * round.machine_cpu_s / round.seconds),
            iops: middle(iops),
            in_per_s: middle(|round| round.pages_in as f64 / round.seconds),
            p50_us: middle(|round| round.p50_us),
            p99_us: middle(|round| round.p99_us),
            max_us: all(|round| round.max_us).into_iter().fold(0.0, f64::max),
            cpu_us_per_page: per_page(|round| round.cpu_s * 1e6 / round.pages_in as f64),
            machine_us_per_page: per_page(|it| it.machine_cpu_s * 1e6 / it.pages_in as f64),
            cpu_s_per_gb: per_gb(|round| round.cpu_s * 1e9 / round.bytes as f64),
            machine_s_per_gb: per_gb(|round| round.machine_cpu_s * 1e9 / round.bytes as f64),
            hits_percent: is_scan.then(|| middle(|round| round.hits_percent)),
            kept_percent: is_scan.then(|| middle(|round| round.kept_percent)),
            times_fio: None,
            times_mmap: None,
            times_unguarded: None,
            drift_percent: share(rates[rates.len() - 1], rates[0]),
            spread_percent: share(fastest, slowest),
            samples: Samples::from([
                ("mb_s", rates),
                ("cpu_percent", all(percent)),
                ("iops", all(iops)),
                ("p99_us", all(|round| round.p99_us)),
            ]),
        }
    }

    /// What is compared: what came from the device, for a cache may have a part of it.
    fn rate(&self) -> f64 {
        match self.op.starts_with("random") {
            true => self.in_per_s * FRAME_SIZE as f64 / 1e6,
            false => self.mb_s,
        }
    }

    /// Beside the others of the same operation.
    pub fn beside(&mut self, others: &[Row]) {
        let of = |backend: &str| {
            let peer = others.iter().find(|row| row.backend == backend)?;
            (peer.rate() > 0.0).then(|| self.rate() / peer.rate())
        };
        let (fio, mmap) = (of("fio"), of("mmap"));
        self.times_fio = fio;
        self.times_mmap = mmap;
        self.times_unguarded = others.iter().find(|row| row.backend == "unguarded").map(|peer| {
            let rounds = self.samples["mb_s"].iter().zip(&peer.samples["mb_s"]);
            median(&rounds.map(|(ours, theirs)| ours / theirs).collect::<Vec<f64>>())
        });
    }

    const COLUMNS: [(&'static str, usize); 16] = [
        ("op", 12),
        ("backend", 10),
        ("thr", 3),
        ("MB/s", 8),
        ("CPU %", 6),
        ("mach %", 6),
        ("iops", 11),
        ("in/s", 8),
        ("p99 us", 8),
        ("CPU us/in", 9),
        ("CPU s/GB", 8),
        ("hits %", 11),
        ("x fio", 6),
        ("x mmap", 6),
        ("x unguarded", 11),
        ("spread %", 8),
    ];

    /// Prints the headings.
    pub fn begin_table() -> Table {
        Table::begin(&Row::COLUMNS)
    }

    /// What the table shows.
    pub fn cells(&self) -> Vec<String> {
        let some = |value: Option<f64>, decimals: usize| {
            value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
        };
        let hits = match (self.hits_percent, self.kept_percent) {
            (Some(hits), Some(kept)) => format!("{hits:.1}/{kept:.1}"),
            _ => String::new(),
        };
        vec![
            self.op.to_owned(),
            self.backend.to_owned(),
            self.threads.to_string(),
            thousands(self.mb_s),
            format!("{:.1}", self.cpu_percent),
            format!("{:.1}", self.machine_percent),
            thousands(self.iops),
            thousands(self.in_per_s),
            some((self.p99_us > 0.0).then_some(self.p99_us), 1),
            some(self.cpu_us_per_page, 2),
            some(self.cpu_s_per_gb, 3),
            hits,
            some(self.times_fio, 2),
            some(self.times_mmap, 2),
            some(self.times_unguarded, 2),
            some(self.spread_percent, 1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Row::new(&case, &[round(pages_in), round(pages_in * 2), round(pages_in)])
    }

    #[test]
    fn rounds_become_a_row() {
        let mut row = row("random", "direct", 1000);
        assert_eq!((row.iops, row.in_per_s, row.cpu_percent), (1000.0, 500.0, 25.0));
        assert_eq!((row.cpu_us_per_page, row.cpu_s_per_gb), (Some(500.0), None));
        assert_eq!((row.drift_percent, row.spread_percent), (Some(0.0), Some(100.0)));
        row.beside(&[self::row("random", "fio", 2000)]);
        assert_eq!((row.times_fio, row.times_mmap), (Some(0.5), None));
    }

    #[test]
    fn pages_in_memory_are_compared_round_by_round() {
        let rates = |backend, rates: [u64; 3]| {
            let case = Case { op: "resident", backend, threads: 2, file_bytes: 0, frames_bytes: 0 };
            Row::new(&case, &rates.map(round))
        };
        let unguarded = rates("unguarded", [100, 300, 1000]);
        let mut row = rates("shared", [80, 150, 700]);
        row.beside(&[unguarded, row.clone()]);
        assert_eq!((row.times_unguarded, row.times_fio), (Some(0.7), None));
    }

    #[test]
    fn sequences_are_compared_by_their_bytes() {
        let mut row = row("in", "direct", 1000);
        row.beside(&[self::row("in", "mmap", 500)]);
        assert_eq!((row.times_mmap, row.cpu_us_per_page), (Some(2.0), None));
        assert!(row.cpu_s_per_gb.is_some_and(|seconds| (seconds - 61.0).abs() < 0.1));
    }
}
