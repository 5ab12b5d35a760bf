//! `fork`: a space with the same regions and pages, each frame shared until one side writes to it.
//!
//! The child is nobody's while it is made. In the parent, faults go on. Each page is shared at an instant, under a
//! latch for reading. So `fork` waits for a page that is being written, and nobody copies or frees the frame between
//! its count going up and its entry saying that it is shared. A write to the parent beside the call is in the child or
//! not, page by page.
//!
//! Nothing is read for it: of a page in swap both entries name the slot, which counts them ([`Pager::share`]). Only
//! where a pager can't do that, pages come in first.
//!
//! [`Pager::share`]: crate::page_table::pager::Pager::share

use super::error::Trap;
use super::fault::{Latch, Walked};
use super::rss::Counter;
use super::task::Task;
use super::{Access, Result, VmError, VmSpace};
use crate::page_table::entry::{EXCLUSIVE, MAX_READERS};
use crate::page_table::pager::Evicted;
use crate::page_table::tables::Table;
use crate::page_table::{Entry, FrameSource, Rights, State, TableOps};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::lock::Backoff;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Waits for a guard that writes before `fork` gives up: four seconds, since the page's holder may wait for a frame to
/// copy it to. It may be the caller's own.
const MAX_WAITS: u32 = 1 << 12;

impl<F: FrameSource, T: TableOps + Default> Task<'_, F, T> {
    /// A copy of the space: the same addresses, rights and contents. Frames are shared, and the first write to a page
    /// copies it.
    ///
    /// # Errors
    /// [`VmError::Busy`] if a page stays held for writing, also by the calling thread itself;
    /// [`VmError::OutOfFrames`] and [`VmError::OutOfRecords`] without memory for the child's tables;
    /// [`VmError::ReadFailed`] of a page that has to be read, since its pager does not share it.
    pub fn fork(&self) -> Result<VmSpace<F, T>> {
        let parent = self.space;
        let mut child = VmSpace::new(parent.tables.source, T::default())?;
        // Relaxed: settings.
        child.set_prefault(parent.prefault_pages.load(Ordering::Relaxed));
        child.set_fetch_ahead(parent.fetch_ahead.load(Ordering::Relaxed));
        child.set_page_cluster(parent.page_cluster.load(Ordering::Relaxed));
        let locked = self.lock_map();
        // On an error the child, as far as it came, is dropped and gives back what it has.
        let shared = self.share_with(&mut child);
        drop(locked);
        shared.map(|()| child)
    }

    fn share_with(&self, child: &mut VmSpace<F, T>) -> Result<()> {
        let parent = self.space;
        for slot in parent.tables.slots() {
            let no_frames = |granule: usize| {
                VmError::OutOfFrames(self.place((granule << F::TABLE_BITS) * FRAME_SIZE))
            };
            for granule in slot << F::TABLE_BITS..(slot + 1) << F::TABLE_BITS {
                let Some(from) = parent.tables.middle(granule) else { continue };
                // Relaxed: only the lock's holder writes it. A region that is retired has none.
                let id = from.vma.load(Ordering::Relaxed);
                let Some(vma) = parent.vma(id) else { continue };
                if child.tables.middle(granule).is_none() {
                    let last = (vma.granules::<F>().end - 1) >> F::TABLE_BITS;
                    let populated = child.tables.populate_middle(slot..last.max(slot) + 1);
                    populated.ok_or_else(|| no_frames(granule))?;
                }
                if granule == vma.granules::<F>().start {
                    let mut state = child.mmap_lock.lock();
                    child.copy_vma(&mut state, id, vma)?;
                }
                let to = child.tables.middle(granule).ok_or_else(|| no_frames(granule))?;
                let mut pmd = parent.tables.ops.ptep_get(from.pmdp);
                // Frames are shared one by one. Only the lock's holder changes it otherwise.
                while pmd.state() == State::Present {
                    self.split(from, pmd).map_err(|_| no_frames(granule))?;
                    pmd = parent.tables.ops.ptep_get(from.pmdp);
                }
                // Relaxed: the child is handed on whole.
                to.vma.store(id, Ordering::Relaxed);
                if pmd.state() != State::Table {
                    to.pmdp.store(pmd.into(), Ordering::Relaxed);
                    continue;
                }
                let frame = child.tables.source.get_run(1).ok_or_else(|| no_frames(granule))?;
                let table = Entry::table(frame, pmd.rights());
                to.pmdp.store(table.into(), Ordering::Relaxed);
                // SAFETY: a table that is in its place is there; the parent's region is not
                // retired while the lock is held.
                let (old, new) = unsafe { (parent.tables.leaf(pmd), child.tables.leaf(table)) };
                self.share_table(child, granule, old, new)?;
            }
        }
        Ok(())
    }

    fn share_table(
        &self,
        child: &VmSpace<F, T>,
        granule: usize,
        old: Table<F>,
        new: Table<F>,
    ) -> Result<()> {
        let (mut resident, mut swapped) = (0, 0);
        let mut result = Ok(());
        for page in granule << F::TABLE_BITS..(granule + 1) << F::TABLE_BITS {
            let ptep = old.entry(page);
            match self.share_page(&Walked { ptep, rights: Rights::empty(), leaf: old, page }) {
                Ok(entry) => {
                    resident += i64::from(entry.has_frame());
                    swapped += Evicted::of(entry).map_or(0, Evicted::in_swap);
                    // Relaxed: the child is handed on whole.
                    new.entry(page).store(entry.into(), Ordering::Relaxed);
                }
                Err(trap) => {
                    result = Err(self.error(trap, page * FRAME_SIZE, Access::Write));
                    break;
                }
            }
        }
        child.count_inherited(resident, swapped).ok_or(VmError::OutOfRecords("thread"))?;
        result
    }

    /// Shares what a page has: the child's entry for it.
    fn share_page(&self, walked: &Walked<'_, F>) -> core::result::Result<Entry, Trap> {
        let tables = &self.space.tables;
        let ptep = walked.ptep;
        let mut backoff = Backoff::default();
        loop {
            let entry = tables.ops.ptep_get(ptep);
            match entry.state() {
                State::Present if entry.latch() < MAX_READERS => {
                    let held = entry.with_latch(entry.latch() + 1);
                    if tables.ops.ptep_cmpxchg(ptep, entry, held).is_err() {
                        continue;
                    }
                    // Relaxed: the entry, changed below with release, is what tells of it.
                    tables.source.sharers(entry.frame()).fetch_add(1, Ordering::Relaxed);
                    let mut now = held;
                    while let Err(found) = tables.ops.ptep_cmpxchg(
                        ptep,
                        now,
                        now.with_latch(now.latch() - 1).with_cow(true),
                    ) {
                        now = found;
                    }
                    let childs = entry.with_latch(0).with_cow(true).with_accessed(false);
                    // Dirty: a copy that the pager has is one of the parent's page.
                    return Ok(childs.with_dirty(true));
                }
                State::Present => {
                    self.wait(walked, Latch::Wait, &mut backoff)?;
                    if backoff.waits() > MAX_WAITS {
                        return Err(Trap::Busy);
                    }
                }
                State::InTransit => {
                    let back = entry.with_state(State::Present);
                    let _ = tables.ops.ptep_cmpxchg(ptep, entry, back);
                }
                State::Swapped | State::Shadow => {
                    if let Some(childs) = self.share_evicted(ptep, entry) {
                        return Ok(childs);
                    }
                    self.swap_in(walked, entry, (Access::Read, Latch::Wait), &mut backoff)?;
                }
                State::Zero => return Ok(entry.with_latch(0)),
                State::Doomed => return Ok(entry.gone()),
                _ => return Ok(entry),
            }
        }
    }

    /// Has the child's entry name what the parent's does of a page that is not in memory: the child's. `None` if it
    /// can't be, or the page is on its way in.
    fn share_evicted(&self, ptep: &AtomicU64, entry: Entry) -> Option<Entry> {
        let tables = &self.space.tables;
        let (pager, from) = (tables.source.pager()?, Evicted::of(entry)?);
        if entry.latch() != 0 {
            return None;
        }
        // Held, so that it is neither read nor freed before the pager has counted it.
        let mut now = entry.with_latch(EXCLUSIVE);
        tables.ops.ptep_cmpxchg(ptep, entry, now).ok()?;
        let is_shared = pager.share(self.space.id(), from);
        while let Err(found) = tables.ops.ptep_cmpxchg(ptep, now, now.with_latch(0)) {
            now = found;
        }
        is_shared.then_some(entry)
    }
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// Counts pages that came with `fork`, in a record that no thread has yet.
    fn count_inherited(&self, resident: i64, swapped: i64) -> Option<()> {
        let record = super::rss::TaskRecord::take(&self.records)?;
        record.count(Counter::Anon, resident);
        record.count(Counter::Swap, swapped);
        record.leave();
        Some(())
    }
}
