//! A row of the experiment: what it is of, what it says, how it is shown.

use pumice_frames::addr::FRAME_SIZE;
use serde::{Serialize, Serializer};

use super::backend::Backend;
use super::measure::{Job, Spent};
use pumice_command::json_lines::Samples;
use pumice_command::statistics::median;
use pumice_command::table::{thousands, Table};

/// Which experiment a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// one allocation from a full pool
    Burst,
    /// ten, each given back before the next
    Row,
    /// few pages of a large allocation
    Sparse,
    /// `bench fault`'s: pages of one region
    Fault,
}

impl Experiment {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Experiment::Burst => "burst",
            Experiment::Row => "row",
            Experiment::Sparse => "sparse",
            Experiment::Fault => "fault",
        }
    }
}

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

/// Medians over the rounds. The field names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub experiment: Experiment,
    pub backend: Backend,
    /// GiB allocated at a time, by all threads together.
    pub gb: f64,
    /// Times in a row.
    pub rep: usize,
    /// Threads.
    pub thr: usize,
    /// Cache lines written in each page that is touched.
    pub lines: usize,
    pub user_s: f64,
    pub system_s: f64,
    pub wall_s: f64,
    /// Pages touched a second of processor time.
    pub flt_cpu_s: f64,
    /// The same with what the helper thread spent beforehand.
    pub flt_cpu_s_with_filling: f64,
    /// Pages touched a second on the wall.
    pub flt_wall_s: f64,
    /// Allocations that repay populating the pool, against huge pages; null for never.
    #[serde(serialize_with = "repayment")]
    pub pays_after: Repayment,
    /// Megabytes cleared while a request waited.
    pub hot_cleared_mb: f64,
    /// Pages touched of each allocation, where not all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_pages: Option<usize>,
    /// Resident memory of the process with one allocation held, where that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_kb: Option<u64>,
    /// The rates of each round.
    pub samples: Samples,
}

/// How many allocations repay populating the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repayment {
    /// Nothing was invested: a kernel's row.
    Nothing,
    /// So many.
    After(u64),
    /// Each costs more than the kernel's would.
    Never,
}

fn repayment<S: Serializer>(value: &Repayment, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Repayment::Nothing => serializer.serialize_u64(0),
        Repayment::After(count) => serializer.serialize_u64(*count),
        Repayment::Never => serializer.serialize_none(),
    }
}

impl Row {
    /// The medians of `rounds`, of which there is at least one.
    pub fn from_rounds(
        experiment: Experiment,
        backend: Backend,
        job: &Job,
        rounds: &[Round],
    ) -> Row {
        let of = |field: fn(&Round) -> f64| median(&rounds.iter().map(field).collect::<Vec<_>>());
        let cpu_s = of(|round| round.spent.cpu.total_s());
        let system_s = of(|round| round.spent.cpu.system_s).min(cpu_s);
        let wall_s = of(|round| round.spent.wall_s);
        let faults = job.faults() as f64;
        let rates = |seconds: fn(&Round) -> f64| {
            rounds.iter().map(|round| faults / seconds(round)).collect::<Vec<_>>()
        };
        let samples = [
            ("flt_cpu_s", rates(|round| round.spent.cpu.total_s())),
            ("flt_wall_s", rates(|round| round.spent.wall_s)),
        ];
        let all_touched = job.pages * FRAME_SIZE == job.bytes;
        Row {
            experiment,
            backend,
            gb: (job.threads * job.bytes) as f64 / f64::from(1 << 30),
            rep: job.repetitions,
            thr: job.threads,
            lines: job.lines,
            user_s: cpu_s - system_s,
            system_s,
            wall_s,
            flt_cpu_s: faults / cpu_s,
            flt_cpu_s_with_filling: faults
                / of(|round| round.spent.cpu.total_s() + round.filling_s),
            flt_wall_s: faults / wall_s,
            pays_after: Repayment::Nothing,
            hot_cleared_mb: of(|round| round.hot_cleared_mb),
            touched_pages: (!all_touched).then_some(job.pages),
            rss_kb: None,
            samples: samples.into(),
        }
    }

    /// Processor time of all repetitions, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// Works out [`Row::pays_after`]: the same job took `peer_cpu_s` elsewhere, and populating
    /// what one allocation needs took `invested_s` at first.
    pub fn set_pays_after(&mut self, peer_cpu_s: f64, invested_s: f64) {
        let with_filling_s = self.cpu_s() * self.flt_cpu_s / self.flt_cpu_s_with_filling;
        let saved_s = (peer_cpu_s - with_filling_s) / self.rep as f64;
        self.pays_after = if saved_s > 0.0 {
            Repayment::After((invested_s / saved_s).ceil() as u64)
        } else {
            Repayment::Never
        };
    }

    const COLUMNS: [(&'static str, usize); 12] = [
        ("Backend", 10),
        ("Gb", 5),
        ("Rep", 3),
        ("Thr", 3),
        ("CLine", 5),
        ("User", 7),
        ("System", 7),
        ("Wall", 7),
        ("flt/cpu/s", 11),
        ("fault/wsec", 11),
        ("w/ filling", 11),
        ("pays after", 10),
    ];

    /// Prints the headings.
    pub fn begin_table() {
        Table::begin(&Row::COLUMNS);
    }

    /// The table whose headings [`Row::begin_table`] printed.
    pub fn table() -> Table {
        Table::resume(&Row::COLUMNS)
    }

    /// What the table shows.
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.backend.name().to_owned(),
            format!("{:.2}", self.gb),
            self.rep.to_string(),
            self.thr.to_string(),
            self.lines.to_string(),
            format!("{:.4}", self.user_s),
            format!("{:.4}", self.system_s),
            format!("{:.4}", self.wall_s),
            thousands(self.flt_cpu_s),
            thousands(self.flt_wall_s),
            thousands(self.flt_cpu_s_with_filling),
            match self.pays_after {
                Repayment::Nothing => "-".to_owned(),
                Repayment::After(count) => count.to_string(),
                Repayment::Never => "never".to_owned(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTime;
    use crate::pft::measure::Timed;

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
        Row::from_rounds(Experiment::Burst, Backend::Pumice, &job, &[round])
    }

    #[test]
    fn rates_count_pages() {
        let row = row(2.0, 2.0);
        assert_eq!(row.flt_cpu_s, 2.0);
        assert_eq!(row.flt_cpu_s_with_filling, 1.0);
        assert_eq!(row.touched_pages, None);
    }

    #[test]
    fn filling_is_repaid_by_what_each_use_saves() {
        let mut row = row(1.0, 1.0);
        row.set_pays_after(5.0, 9.0);
        assert_eq!(row.pays_after, Repayment::After(3));
        row.set_pays_after(2.0, 9.0);
        assert_eq!(row.pays_after, Repayment::Never);
    }
}
