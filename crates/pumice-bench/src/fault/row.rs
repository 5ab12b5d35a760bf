//! A row of the experiment: `bench pft`'s, and what differs here.

use serde::Serialize;

use super::locking::Locking;
use super::measure::{Job, Pattern};
use crate::pft::backend::Backend;
use crate::pft::measure::{self as pft, Timed};
use crate::pft::row::{Experiment, Round, Row};
use pumice_command::table::{thousands, Table};
use pumice_frames::addr::FRAME_SIZE;

/// Whose faults they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub backend: Backend,
    pub locking: Locking,
    /// Pages that a sequence populates at once at most; 1 is without prefaulting.
    pub prefault_pages: usize,
    /// Of ours: what the region asks for.
    pub page_size: PageSize,
}

/// Pages that a region of ours asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PageSize {
    /// 4 KiB.
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB, where the zone has them.
    #[serde(rename = "2m")]
    Huge,
}

/// Medians over the rounds. The field names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct FaultRow {
    #[serde(flatten)]
    pub row: Row,
    pub locking: Locking,
    /// Whether sequences of faults populate ahead.
    pub prefault: bool,
    pub prefault_pages: usize,
    pub page_size: PageSize,
    pub pattern: Pattern,
}

impl FaultRow {
    /// The medians of `rounds`, of which there is at least one.
    pub fn new(way: Way, job: &Job, rounds: &[Round]) -> FaultRow {
        let pages = job.faults() / job.threads;
        let like_pft = pft::Job {
            threads: job.threads,
            bytes: pages * FRAME_SIZE,
            repetitions: 1,
            pages,
            lines: job.lines,
            timed: Timed::Taking,
        };
        FaultRow {
            row: Row::from_rounds(Experiment::Fault, way.backend, &like_pft, rounds),
            locking: way.locking,
            prefault: way.prefault_pages > 1,
            prefault_pages: way.prefault_pages,
            page_size: way.page_size,
            pattern: job.pattern,
        }
    }

    const COLUMNS: [(&'static str, usize); 14] = [
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
        ("locking", 7),
        ("prefault", 8),
        ("pattern", 9),
    ];

    /// Prints the headings.
    pub fn begin_table() {
        Table::begin(&FaultRow::COLUMNS);
    }

    /// The table whose headings [`FaultRow::begin_table`] printed.
    pub fn table() -> Table {
        Table::resume(&FaultRow::COLUMNS)
    }

    /// What the table shows.
    pub fn cells(&self) -> Vec<String> {
        let row = &self.row;
        vec![
            row.backend.name().to_owned(),
            format!("{:.2}", row.gb),
            row.rep.to_string(),
            row.thr.to_string(),
            row.lines.to_string(),
            format!("{:.4}", row.user_s),
            format!("{:.4}", row.system_s),
            format!("{:.4}", row.wall_s),
            thousands(row.flt_cpu_s),
            thousands(row.flt_wall_s),
            thousands(row.flt_cpu_s_with_filling),
            self.locking.name().to_owned(),
            match (self.page_size, self.prefault) {
                (PageSize::Huge, _) => "2 MiB".to_owned(),
                (_, true) => self.prefault_pages.to_string(),
                (_, false) => "off".to_owned(),
            },
            self.pattern.name().to_owned(),
        ]
    }
}
