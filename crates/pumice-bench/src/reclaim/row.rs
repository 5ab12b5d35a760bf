//! A row of the table, and an object of the JSON file.

use pumice_frames::addr::FRAME_SIZE;
use serde::Serialize;

use super::job::{Answer, Pattern};
use pumice_command::json_lines::Samples;
use pumice_command::statistics::median;
use pumice_command::table::{thousands, Table};

/// Who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Backend {
    #[serde(rename = "pumice")]
    Pumice,
    #[serde(rename = "kernel-swap")]
    Kernel,
    /// Both, on a device of compressed memory each.
    #[serde(rename = "pumice-zram")]
    PumiceZram,
    #[serde(rename = "kernel-zram")]
    KernelZram,
    #[serde(rename = "device")]
    Device,
}

impl Backend {
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Pumice => "pumice",
            Backend::Kernel => "kernel-swap",
            Backend::PumiceZram => "pumice-zram",
            Backend::KernelZram => "kernel-zram",
            Backend::Device => "device",
        }
    }

    /// Whether the kernel pages.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Backend::Kernel | Backend::KernelZram)
    }
}

/// What a row is of.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub pattern: Pattern,
    pub backend: Backend,
    pub threads: usize,
    pub region_pages: usize,
    pub frames: usize,
}

/// Medians over the rounds, but for the longest wait, which is that of all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub pattern: &'static str,
    pub backend: Backend,
    pub threads: usize,
    pub region_bytes: usize,
    pub frames_bytes: usize,
    /// The region, by the frames; 0 for the device.
    pub times: usize,
    pub accesses_per_s: f64,
    /// Pages read from swap, and written to it.
    pub in_per_s: f64,
    pub out_per_s: f64,
    /// Processor time for each page brought in, its victim's way out included: of the process and its helpers, and
    /// of the whole machine.
    pub cpu_us_per_page: Option<f64>,
    pub machine_us_per_page: Option<f64>,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// By how much the last round was faster than the first, and the fastest than the slowest.
    pub drift_percent: Option<f64>,
    pub spread_percent: Option<f64>,
    /// Of a file that was read meanwhile.
    pub file_mb_per_s: Option<f64>,
    /// Of guards on pages that are there.
    pub hit_ns: Option<f64>,
    /// How many times the kernel's accesses.
    pub times_kernel: Option<f64>,
    pub samples: Samples,
}

impl Row {
    /// Of the rounds, of which there is at least one.
    pub fn new(case: &Case, rounds: &[Answer]) -> Row {
        let is = |pattern: Pattern| case.pattern == pattern;
        let all = |of: fn(&Answer) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
        let middle = |of: fn(&Answer) -> f64| median(&all(of));
        let rates = all(|round| round.accesses as f64 / round.seconds);
        // Filling brings nothing in but by chance.
        let has_come = !is(Pattern::Fill) && rounds.iter().all(|round| round.pages_in > 0);
        let per_page = |of: fn(&Answer) -> f64| has_come.then(|| middle(of));
        let share = |more: f64, less: f64| (rounds.len() > 1).then(|| 100.0 * (more / less - 1.0));
        let (fastest, slowest) =
            rates.iter().fold((0.0_f64, f64::INFINITY), |(most, least), &rate| {
                (most.max(rate), least.min(rate))
            });
        let samples = Samples::from([
            ("accesses_per_s", rates.clone()),
            ("cpu_us_per_page", if has_come { all(cpu_us_per_page) } else { Vec::new() }),
            ("p99_us", all(|round| round.p99_us)),
            ("max_us", all(|round| round.max_us)),
        ]);
        Row {
            pattern: case.pattern.name(),
            backend: case.backend,
            threads: case.threads,
            region_bytes: case.region_pages * FRAME_SIZE,
            frames_bytes: case.frames * FRAME_SIZE,
            times: case.region_pages.checked_div(case.frames).unwrap_or(0),
            accesses_per_s: median(&rates),
            in_per_s: middle(|round| round.pages_in as f64 / round.seconds),
            out_per_s: middle(|round| round.pages_out as f64 / round.seconds),
            cpu_us_per_page: per_page(cpu_us_per_page),
            machine_us_per_page: per_page(|round| {
                round.machine_cpu_s * 1e6 / round.pages_in as f64
            }),
            p50_us: middle(|round| round.p50_us),
            p99_us: middle(|round| round.p99_us),
            max_us: all(|round| round.max_us).into_iter().fold(0.0, f64::max),
            drift_percent: share(rates[rates.len() - 1], rates[0]),
            spread_percent: share(fastest, slowest),
            file_mb_per_s: is(Pattern::Google)
                .then(|| middle(|round| round.file_bytes as f64 / 1e6 / round.seconds)),
            hit_ns: case.pattern.is_hit().then(|| middle(|round| round.hit_ns)),
            times_kernel: None,
            samples,
        }
    }

    /// Beside the kernel's.
    #[must_use]
    pub fn beside(self, kernel: &Row) -> Row {
        Row { times_kernel: Some(self.accesses_per_s / kernel.accesses_per_s), ..self }
    }

    const COLUMNS: [(&'static str, usize); 15] = [
        ("pattern", 16),
        ("backend", 11),
        ("region", 6),
        ("thr", 3),
        ("accesses/s", 11),
        ("in/s", 8),
        ("CPU us/in", 9),
        ("machine's", 9),
        ("p50 us", 8),
        ("p99 us", 8),
        ("max us", 9),
        ("drift %", 7),
        ("spread %", 8),
        ("MB/s or ns", 10),
        ("x kernel", 8),
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
        let wait = |us: f64| if us > 0.0 { format!("{us:.1}") } else { String::new() };
        vec![
            self.pattern.to_owned(),
            self.backend.name().to_owned(),
            if self.times > 0 { format!("{}x", self.times) } else { String::new() },
            self.threads.to_string(),
            thousands(self.accesses_per_s),
            thousands(self.in_per_s),
            some(self.cpu_us_per_page, 1),
            some(self.machine_us_per_page, 1),
            wait(self.p50_us),
            wait(self.p99_us),
            wait(self.max_us),
            some(self.drift_percent, 1),
            some(self.spread_percent, 1),
            some(self.file_mb_per_s.or(self.hit_ns), 1),
            some(self.times_kernel, 2),
        ]
    }
}

fn cpu_us_per_page(round: &Answer) -> f64 {
    round.cpu_s * 1e6 / round.pages_in as f64
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let row = Row::new(&case, &[round(100), round(120), round(110)]);
        assert_eq!((row.accesses_per_s, row.times, row.max_us), (55.0, 4, 120.0));
        assert_eq!(row.cpu_us_per_page, Some(500.0));
        assert_eq!(row.drift_percent.map(f64::round), Some(10.0));
        assert_eq!(row.spread_percent.map(f64::round), Some(20.0));
        let kernel = Row::new(&Case { backend: Backend::Kernel, ..case }, &[round(55)]);
        assert_eq!((kernel.drift_percent, kernel.file_mb_per_s), (None, None));
        assert_eq!(row.beside(&kernel).times_kernel, Some(2.0));
    }
}
