//! A row of the experiment: `bench pft`'s, with more fields.

use pumice_frames::addr::FRAME_SIZE;

use super::locking::Locking;
use super::measure::Job;
use crate::names::named;
use crate::pft::backend::Backend;
use crate::pft::measure::{self as pft, Timed};
use crate::pft::row::{row as pft_row, Round};
use crate::registry::Row;

/// A way to fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultMode {
    pub backend: Backend,
    pub locking: Locking,
    /// Pages that a sequence populates at once at most; 1 is without prefaulting.
    pub prefault_pages: usize,
    /// Of ours: the size that the region asks for.
    pub page_size: PageSize,
}

named! {
    /// Pages that a region of ours asks for.
    pub enum PageSize {
        /// 4 KiB.
        Small = "4k",
        /// 2 MiB, where the zone has them.
        Huge = "2m",
    }
}

/// The medians of `rounds`, of which there is at least one.
pub fn row(way: FaultMode, job: &Job, rounds: &[Round]) -> Row {
    let pages = job.faults() / job.threads;
    let like_pft = pft::Job {
        threads: job.threads,
        bytes: pages * FRAME_SIZE,
        repetitions: 1,
        pages,
        lines: job.lines,
        timed: Timed::Taking,
    };
    pft_row("fault", way.backend, &like_pft, rounds)
        .set("locking", way.locking.name())
        // Whether sequences of faults populate ahead.
        .set("prefault", way.prefault_pages > 1)
        .set("prefault_pages", way.prefault_pages)
        .set("page_size", way.page_size.name())
        .set("pattern", job.pattern.name())
}
