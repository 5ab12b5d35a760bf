//! Write-back: a page is written to where it lies on the device, and stays in memory.
//!
//! ```text
//!   the writer, a Task of its own                    others meanwhile
//!   1  begin_write_back: dirty -> clean, and held     readers read it; writers wait
//!      as by one reader more, in one step
//!   2  writes the frame to its place                  unmap dooms the page: the frame stays
//!   3  end_write_back: one reader less, dirty again    a write now makes it dirty, for the next time
//!      if that failed
//! ```
//!
//! So the bytes do not change while the device reads them, and no page is being written twice at a time: a clean page
//! is not written, and it becomes dirty by a guard only, which nobody gets before the first write is over. A page on
//! its way out by [`Task::begin_swap_out`] has neither: a fault takes it back in between. That is good for swap, where
//! each write goes to a new slot, and not for pages that have one place: these are cleaned first, and go then.

use super::fault::{Latch, Walked};
use super::task::Task;
use crate::page_table::entry::MAX_READERS;
use crate::page_table::pager::LruPage;
use crate::page_table::{Entry, FrameSource, State, TableOps};
use pumice_frames::sys::lock::Backoff;
use pumice_io::sync::atomic::AtomicU64;

/// A page that is being written back, begun by [`Task::begin_write_back`], and to be ended once, in its space.
#[derive(Debug)]
#[must_use = "write-back is ended"]
pub struct WriteBack {
    page: LruPage,
}

impl WriteBack {
    /// Its number and frame.
    pub fn page(&self) -> LruPage {
        self.page
    }
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Whether a page is in memory and was dirty a moment ago.
    pub(crate) fn is_dirty(&self, page: usize) -> bool {
        let walked = self.walk_if_there(page);
        let entry = walked.map(|walked| self.space.tables.ops.ptep_get(walked.ptep));
        let is_there = |entry: &Entry| matches!(entry.state(), State::Present | State::InTransit);
        entry.is_some_and(|entry| is_there(&entry) && entry.dirty())
    }

    /// Begins to write a page back: `None` if it is not in memory, clean, or held by a guard for writing. One that is
    /// dirty does not leave: it is taken back, as by a fault.
    ///
    /// From here to [`Task::end_write_back`], which any task of the space may call, its region is not unmapped, or
    /// somebody holds it ([`super::Region`]).
    pub(crate) fn begin_write_back(&self, page: usize) -> Option<WriteBack> {
        match self.look_to_write_back(page) {
            Look::Begun(begun) => Some(begun),
            Look::Held(_) | Look::Nothing => None,
        }
    }

    /// As [`Task::begin_write_back`], by the page's word.
    pub(super) fn begin_write_back_at(&self, ptep: &AtomicU64, page: usize) -> Option<WriteBack> {
        match self.look_at_word(ptep, page) {
            Seen::Begun(begun) => Some(begun),
            Seen::Held | Seen::Nothing => None,
        }
    }

    fn look_to_write_back(&self, page: usize) -> Look<'_, F> {
        let Some(walked) = self.walk_if_there(page) else { return Look::Nothing };
        match self.look_at_word(walked.ptep, page) {
            Seen::Begun(begun) => Look::Begun(begun),
            Seen::Held => Look::Held(walked),
            Seen::Nothing => Look::Nothing,
        }
    }

    /// One word says all: a page that is dirty is begun, or held.
    fn look_at_word(&self, ptep: &AtomicU64, page: usize) -> Seen {
        let ops = &self.space.tables.ops;
        let mut entry = ops.ptep_get(ptep);
        loop {
            let is_there = matches!(entry.state(), State::Present | State::InTransit);
            if !is_there || !entry.dirty() {
                return Seen::Nothing;
            }
            if entry.latch() >= MAX_READERS {
                return Seen::Held;
            }
            let begun = entry.with_state(State::Present).with_dirty(false);
            match ops.ptep_cmpxchg(ptep, entry, begun.with_latch(entry.latch() + 1)) {
                Ok(()) => {
                    let page = LruPage { page, frame: entry.frame() };
                    return Seen::Begun(WriteBack { page });
                }
                Err(found) => entry = found,
            }
        }
    }

    /// As [`Task::begin_write_back`]; waits for a guard for writing, if it may: for the caller's own, for ever.
    ///
    /// # Errors
    /// The page has such a guard, which was not to be waited for.
    pub(crate) fn wait_to_write_back(
        &self,
        page: usize,
        may_wait: bool,
    ) -> Result<Option<WriteBack>, StillHeld> {
        let mut backoff = Backoff::default();
        loop {
            match self.look_to_write_back(page) {
                Look::Begun(begun) => return Ok(Some(begun)),
                Look::Nothing => return Ok(None),
                Look::Held(_) if !may_wait => return Err(StillHeld),
                // It waits as faults do, and never fails then.
                Look::Held(walked) => {
                    let _ = self.wait(&walked, Latch::Wait, &mut backoff);
                }
            }
        }
    }

    /// Ends it: the page is as it was written, or dirty again.
    ///
    /// # Safety
    /// It was begun in this space, and [`Task::begin_write_back`] says what holds since.
    pub(crate) unsafe fn end_write_back(&self, begun: WriteBack, went: Result<(), WriteFailed>) {
        let Some(walked) = self.walk_if_there(begun.page.page) else { return };
        let ops = &self.space.tables.ops;
        if went.is_err() {
            let mut entry = ops.ptep_get(walked.ptep);
            while entry.state() == State::Present && !entry.dirty() {
                match ops.ptep_cmpxchg(walked.ptep, entry, entry.with_dirty(true)) {
                    Ok(()) => break,
                    Err(found) => entry = found,
                }
            }
        }
        self.end_read(walked.ptep);
    }
}

/// The state in which a page was found that may have to be written back.
enum Look<'w, F: FrameSource> {
    Begun(WriteBack),
    /// By a guard for writing, or by as many readers as there can be.
    Held(Walked<'w, F>),
    /// Not in memory, or clean.
    Nothing,
}

/// As [`Look`], without the walk.
enum Seen {
    Begun(WriteBack),
    Held,
    Nothing,
}

/// A page has a guard for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillHeld;

/// A page could not be written back; the writer knows why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteFailed;
