//! Huge pages: one entry of the middle level for a whole granule, of frames side by side.
//!
//! A region asks for them ([`Task::map_huge`]). The first write to a granule that the region fills takes a block of the
//! zone, if a zeroed one is free and memory is not short without it. Otherwise, and if the granule was read first, its
//! pages come one by one as everywhere. That is the whole policy: nothing is cleared, moved or collapsed to make a huge
//! page, so it never costs more than small ones.
//!
//! A huge page has one word, and latches and versions are of pages. So it serves callers that need no word of the
//! page's own ([`Task::fault`], [`super::Region::translate`]), and is *split* for those that do: a guard, an optimistic
//! read, `fork`, swap-out, and `unmap` or `protect` of a part. Splitting makes a table of the same frames and installs
//! it by one compare-and-swap; it moves no byte, so pointers stay good. Nothing puts the pieces together again.
//!
//! The frames of a block are got as single frames, so there is nothing to be told to the ledger when it is
//! split, and each goes back by itself.

use super::error::Trap;
use super::rss::Counter;
use super::task::Task;
use super::Access;
use crate::page_table::tables::{FrameList, Table};
use crate::page_table::{Entry, FrameSource, Middle, State, TableOps};
use pumice_frames::addr::Pfn;
use pumice_io::sync::atomic::Ordering;

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// The frame that a fault for such an access finds in a granule's huge page, or in one it installs.
    /// `None`: it is a matter of small pages. The caller holds the VMA.
    // Each access to a huge page comes this way, and a call would cost a third of it.
    #[inline(always)]
    pub(super) fn fault_huge(
        &self,
        middle: Middle<'_>,
        page: usize,
        access: Access,
    ) -> Result<Option<Pfn>, Trap> {
        let ops = &self.space.tables.ops;
        let mut pmd = ops.ptep_get(middle.pmdp);
        let frame_in = |pmd: Entry| Pfn(pmd.frame().0 + page % F::ENTRIES);
        if pmd.is_ready(access == Access::Write) {
            return Ok(Some(frame_in(pmd)));
        }
        loop {
            let is_present = pmd.state() == State::Present;
            let is_wanted = pmd.wants_huge() && access == Access::Write;
            if !(is_present || is_wanted) {
                return Ok(None);
            }
            if !pmd.rights().contains(access.needs()) {
                return Err(Trap::Denied);
            }
            let used = pmd.with_accessed(true).with_dirty(pmd.dirty() | (access == Access::Write));
            let changed = match (is_present, pmd == used) {
                (true, true) => Ok(pmd),
                (true, false) => ops.ptep_cmpxchg(middle.pmdp, pmd, used).map(|()| used),
                (false, _) => match self.install_huge(middle, pmd, page) {
                    Some(installed) => installed,
                    None => return Ok(None),
                },
            };
            match changed {
                Ok(pmd) => return Ok(Some(frame_in(pmd))),
                Err(found) => pmd = found,
            }
        }
    }

    /// Installs a huge page, if there is a block. Returns the entry, or the one that is there instead.
    #[cold]
    #[inline(never)]
    fn install_huge(
        &self,
        middle: Middle<'_>,
        pmd: Entry,
        page: usize,
    ) -> Option<Result<Entry, Entry>> {
        let tables = &self.space.tables;
        let first = tables.source.get_zeroed_block(self.gfp())?;
        let huge = Entry::used_frame(pmd, first);
        Some(match tables.ops.ptep_cmpxchg(middle.pmdp, pmd, huge) {
            Ok(()) => {
                self.count(Counter::Anon, F::ENTRIES as i64);
                let start = page & !(F::ENTRIES - 1);
                for index in 0..F::ENTRIES {
                    self.lru_add(start + index, Pfn(first.0 + index));
                }
                Ok(huge)
            }
            Err(found) => {
                self.put_block(first);
                Err(found)
            }
        })
    }

    /// Puts a table of small pages in the place of a huge one, unless somebody else changes the entry first.
    #[cold]
    #[inline(never)]
    pub(super) fn split(&self, middle: Middle<'_>, pmd: Entry) -> Result<(), Trap> {
        let tables = &self.space.tables;
        let frame = self.get_zeroed().ok_or(Trap::OutOfFrames)?;
        // SAFETY: the frame is this thread's.
        let leaf: Table<F> = unsafe { Table::at(tables.source, frame) };
        let mut pmd = pmd;
        while pmd.state() == State::Present {
            let mut entry = pmd;
            for index in 0..F::ENTRIES {
                // Relaxed: nobody knows of the table; installing it releases this.
                leaf.entry(index).store(entry.into(), Ordering::Relaxed);
                if index + 1 < F::ENTRIES {
                    entry = entry.with_next_frame();
                }
            }
            let table = Entry::table(frame, pmd.rights());
            match tables.ops.ptep_cmpxchg(middle.pmdp, pmd, table) {
                Ok(()) => return Ok(()),
                Err(found) => pmd = found,
            }
        }
        self.with_list(|list| list.put(frame));
        Ok(())
    }

    /// Gives up a huge page that was unmapped.
    pub(super) fn give_up_block(&self, first: Pfn) {
        self.put_block(first);
        self.count(Counter::Anon, -(F::ENTRIES as i64));
    }

    fn put_block(&self, first: Pfn) {
        self.with_list(|list| {
            (first.0..first.0 + F::ENTRIES).for_each(|frame| list.put(Pfn(frame)));
        });
    }
}
