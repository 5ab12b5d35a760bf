//! Pages of files that are written whole: nobody needs what was on them.
//!
//! A page that is in memory is held for writing, and written over. One that is not is claimed as by who reads it, but
//! is not read: it gets a frame of unknown content, which is filled before the page's word names it. So the device is
//! not asked, the frame is not zeroed, and nobody sees what was in it; whoever wants the page meanwhile waits.

use super::error::Trap;
use super::file::{Noted, Use};
use super::region::{Page, Region, WriteGuard};
use super::swap_in::Claim;
use super::{Access, Result};
use crate::page_table::entry::EXCLUSIVE;
use crate::page_table::pager::Evicted;
use crate::page_table::tables::FrameList;
use crate::page_table::{FrameSource, Rights, TableOps};
use crate::sys::copy::copy_to_cold;

impl<F: FrameSource, T: TableOps> Region<'_, F, T> {
    /// Makes all of a page what `bytes` are, and returns a guard of it, without waiting for those of others; and
    /// whether the page was clean before. Of a page that is not in memory it is asked, when nobody else gets at it any
    /// more, whether it is there at all.
    ///
    /// # Errors
    /// As [`Region::try_write_noting`]; [`super::VmError::Unmapped`] for a page that is not there.
    pub fn try_overwrite(
        &self,
        page: usize,
        bytes: &Page,
        is_there: impl Fn() -> bool,
    ) -> Result<(WriteGuard<'_, F, T>, Noted)> {
        let (task, ops) = (self.task(), &self.task().space.tables.ops);
        let error = |trap| self.error(trap, page, Access::Write);
        loop {
            let walked = self.walk(page).map_err(error)?;
            let entry = ops.ptep_get(walked.ptep);
            let Some(from) = Evicted::of(entry) else {
                let (mut guard, noted) = self.try_write_noting(page)?;
                guard.copy_from_slice(bytes);
                return Ok((guard, noted));
            };
            if entry.latch() != 0 {
                return Err(error(Trap::Busy));
            }
            if !entry.rights().contains(Rights::WRITE) {
                return Err(error(Trap::Denied));
            }
            let frame = task.get_any().ok_or_else(|| error(Trap::OutOfFrames))?;
            let claimed = entry.with_latch(EXCLUSIVE);
            if ops.ptep_cmpxchg(walked.ptep, entry, claimed).is_err() {
                task.with_list(|list| list.put(frame));
                continue;
            }
            let claim = Claim { ptep: walked.ptep, page: walked.page, claimed, from };
            if !is_there() {
                task.with_list(|list| list.put(frame));
                let _ = task.come_in(claim, Err(Trap::Unmapped), Use::None);
                return Err(error(Trap::Unmapped));
            }
            let mut into = task.space.tables.source.bytes(frame).cast::<Page>();
            // SAFETY: the frame is this thread's alone until it is installed.
            copy_to_cold(bytes, unsafe { into.as_mut() });
            // Dirty at once: it is nowhere else.
            let used = (Use::Now(Rights::READ_WRITE), Noted::Dirty);
            if let Ok(Ok(_)) = task.come_in_held(claim, Ok(frame), used) {
                task.lru_add(walked.page, frame);
                return Ok((self.held_for_writing(&walked, frame), Noted::Clean));
            }
            // It was unmapped.
            task.with_list(|list| list.put(frame));
        }
    }
}
