//! `map`, `unmap`, `protect`: the operations under the `mmap_lock`.
//!
//! All of them work granule by granule, and in each either on the word of the 2 MiB or on those of its
//! pages: one atomic operation for each, beside faults that go on.

use core::ops::Range;

use super::error::Trap;
use super::task::{GfpScope, Task};
use super::vma::MapState;
use super::{Access, Extent, Place, Result, VmError, VmSpace};
use crate::page_table::pager::Evicted;
use crate::page_table::tables::{FrameList, Table};
use crate::page_table::{Entry, FrameSource, Middle, Rights, State, TableOps, Tables};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::frame::Gfp;
use pumice_frames::sys::lock::SpinGuard;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Maps `bytes` (rounded up to pages) of anonymous memory: its first address, a multiple of 2 MiB.
    /// It reads as zeros and costs 16 bytes for each 2 MiB until it is touched.
    ///
    /// # Errors
    /// [`VmError::BadRange`] for no bytes, [`VmError::OutOfAddresses`], [`VmError::OutOfRecords`], and
    /// [`VmError::OutOfFrames`] without any for tables.
    pub fn map(&self, bytes: usize, rights: Rights) -> Result<usize> {
        self.map_granules(bytes, Entry::absent(rights), Entry::absent(rights))
    }

    /// As [`Task::map`], with huge pages: the first write to 2 MiB that the region fills brings them all in
    /// at once, if the zone has a free block that is zeroed. An operation that needs a page by itself later, a guard
    /// among others, makes small pages of it, and moves no byte.
    ///
    /// # Errors
    /// As [`Task::map`].
    pub fn map_huge(&self, bytes: usize, rights: Rights) -> Result<usize> {
        self.map_granules(bytes, Entry::absent_huge(rights), Entry::absent(rights))
    }

    /// Maps granules, those that are filled as `whole`, and the last, if it is not, as `part`.
    pub(super) fn map_granules(&self, bytes: usize, whole: Entry, part: Entry) -> Result<usize> {
        let pages = bytes.div_ceil(FRAME_SIZE);
        if pages == 0 {
            return Err(VmError::BadRange(Extent { start: 0, bytes }));
        }
        let space = self.space;
        let (mut state, _scope) = self.lock_map();
        self.free_retired(&mut state);
        let granules = pages.div_ceil(F::ENTRIES);
        let first = match space.find_room(&mut state, granules) {
            Some(first) => first,
            None => {
                // This thread may be the last that was in a region which is unmapped.
                self.let_go();
                self.free_retired(&mut state);
                let found = space.find_room(&mut state, granules);
                found.ok_or(VmError::OutOfAddresses(bytes))?
            }
        };
        let last = first + granules - 1;
        let slots = first >> F::TABLE_BITS..(last >> F::TABLE_BITS) + 1;
        let first_page = first << F::TABLE_BITS;
        let address = first_page * FRAME_SIZE;
        let no_frames = || VmError::OutOfFrames(Place { address, region: None });
        space.tables.populate_middle(slots).ok_or_else(no_frames)?;
        let id = space.add_vma(&mut state, first_page, pages)?;
        for granule in first..first + granules {
            let middle = space.tables.middle(granule).expect("populated above");
            // Release: a thread that reads the number finds the record as it was written.
            middle.vma.store(id, Ordering::Release);
            let is_filled = (granule + 1) << F::TABLE_BITS <= first_page + pages;
            let absent = if is_filled { whole } else { part };
            let done = space.tables.ops.ptep_cmpxchg(middle.pmdp, Entry::EMPTY, absent);
            debug_assert!(done.is_ok(), "found free, under the lock");
        }
        Ok(address)
    }

    /// Unmaps whole pages: their frames go, or are left to the last guard of each. Pages that are unmapped already are
    /// left alone. When it returns, no access to them begins any more.
    ///
    /// # Errors
    /// [`VmError::Unaligned`], [`VmError::BadRange`]; [`VmError::OutOfFrames`] where a part of 2 MiB
    /// that has no table yet needs one to say so. Pages before it are unmapped then.
    pub fn unmap(&self, start: usize, bytes: usize) -> Result<()> {
        let pages = self.pages(start, bytes)?;
        let (mut state, _scope) = self.lock_map();
        let result = self.change(&mut state, pages, Change::Unmap);
        self.let_go();
        self.free_retired(&mut state);
        result
    }

    /// Changes the rights of whole pages. Guards that are there keep what they have.
    ///
    /// # Errors
    /// As [`Task::unmap`], and [`VmError::Unmapped`] for the first page that is. Pages before it have changed then.
    pub fn protect(&self, start: usize, bytes: usize, rights: Rights) -> Result<()> {
        let pages = self.pages(start, bytes)?;
        let (mut state, _scope) = self.lock_map();
        self.change(&mut state, pages, Change::Protect(rights))
    }

    /// State that mapping threads share. While it is locked reclaim calls into no cache for this task: that could want
    /// to unmap what it has in this space.
    ///
    /// # Panics
    /// In a policy's method: reclaim calls those for threads that have locked it.
    pub(super) fn lock_map(&self) -> (SpinGuard<'_, MapState>, GfpScope<'_, '_, F, T>) {
        #[cfg(not(loom))]
        pumice_io::sync::in_policy::refuse();
        let scope = self.gfp_scope(Gfp::NOFS);
        (self.space.mmap_lock.lock(), scope)
    }

    /// The pages of a range that a caller has given.
    fn pages(&self, start: usize, bytes: usize) -> Result<Range<usize>> {
        let extent = Extent { start, bytes };
        if start % FRAME_SIZE != 0 || bytes % FRAME_SIZE != 0 {
            return Err(VmError::Unaligned(extent));
        }
        let end = start.checked_add(bytes).map(|end| end / FRAME_SIZE);
        match end {
            Some(end) if bytes > 0 && end <= Tables::<F, T>::PAGES => Ok(start / FRAME_SIZE..end),
            _ => Err(VmError::BadRange(extent)),
        }
    }

    fn change(&self, state: &mut MapState, pages: Range<usize>, change: Change) -> Result<()> {
        let granules = pages.start >> F::TABLE_BITS..((pages.end - 1) >> F::TABLE_BITS) + 1;
        for granule in granules {
            let own = granule << F::TABLE_BITS..(granule + 1) << F::TABLE_BITS;
            let part = own.start.max(pages.start)..own.end.min(pages.end);
            let error = |at: Stop| at.trap.at(self.place(at.page * FRAME_SIZE), Access::Write);
            self.change_granule(state, granule, part, change).map_err(error)?;
        }
        Ok(())
    }

    /// Changes pages of one granule.
    fn change_granule(
        &self,
        state: &mut MapState,
        granule: usize,
        part: Range<usize>,
        change: Change,
    ) -> core::result::Result<(), Stop> {
        let nothing = change.on_nothing(part.start);
        let Some(middle) = self.space.tables.middle(granule) else { return nothing };
        // Relaxed: only the lock's holder writes it.
        let id = middle.vma.load(Ordering::Relaxed);
        let Some(vma) = self.space.vma(id) else { return nothing };
        let own = vma.pages_in::<F>(granule);
        let inside = part.start..part.end.min(own.end);
        if !inside.is_empty() {
            match change {
                Change::Unmap => {
                    let gone = self.unmap_part(middle, &inside, &own)?;
                    if gone > 0 && vma.unmap(gone) == 0 {
                        self.space.retire(state, id);
                    }
                }
                Change::Protect(rights) => self.protect_part(middle, &inside, &own, rights)?,
            }
        }
        if part.end > own.end {
            change.on_nothing(own.end.max(part.start))?;
        }
        Ok(())
    }

    /// Unmaps pages of a granule: how many were mapped.
    fn unmap_part(
        &self,
        middle: Middle<'_>,
        part: &Range<usize>,
        own: &Range<usize>,
    ) -> core::result::Result<usize, Stop> {
        Ok(match self.change_middle(middle, part, own, Entry::gone)? {
            Changed::Not(leaf) => part.clone().filter(|&page| self.zap(leaf.entry(page))).count(),
            Changed::From(pmd) => {
                if pmd.state() == State::Present {
                    self.give_up_block(pmd.frame());
                }
                part.len()
            }
            Changed::Nothing => 0,
        })
    }

    /// Changes the word of the middle level, of which `part` is to be changed and which has `own`. Where that is not
    /// all, or there is a table, the words of the pages are the caller's to change.
    #[inline]
    fn change_middle(
        &self,
        middle: Middle<'_>,
        part: &Range<usize>,
        own: &Range<usize>,
        change: impl Fn(Entry) -> Entry,
    ) -> core::result::Result<Changed<F>, Stop> {
        let tables = &self.space.tables;
        loop {
            let pmd = tables.ops.ptep_get(middle.pmdp);
            match pmd.state() {
                // SAFETY: only the lock's holder frees tables.
                State::Table => return Ok(Changed::Not(unsafe { tables.leaf(pmd) })),
                State::Absent | State::Present if part == own => {
                    if tables.ops.ptep_cmpxchg(middle.pmdp, pmd, change(pmd)).is_ok() {
                        return Ok(Changed::From(pmd));
                    }
                }
                State::Absent | State::Present => self.add_table(middle, pmd, part.start)?,
                _ => return Ok(Changed::Nothing),
            }
        }
    }

    /// Unmaps a page, if it is mapped (`zap_pte`).
    fn zap(&self, ptep: &AtomicU64) -> bool {
        let ops = &self.space.tables.ops;
        let mut entry = ops.ptep_get(ptep);
        loop {
            let next = match entry.state() {
                State::Gone | State::Doomed => return false,
                // The last guard gives the frame up.
                State::Present | State::Zero if entry.latch() != 0 => {
                    entry.with_state(State::Doomed)
                }
                _ => entry.gone(),
            };
            match ops.ptep_cmpxchg(ptep, entry, next) {
                Ok(()) => {
                    // Of one that is being read, the reader gives up the rest.
                    let is_being_read = Evicted::of(entry).is_some() && entry.latch() != 0;
                    if next.state() == State::Gone && !is_being_read {
                        self.give_up(entry);
                    }
                    return true;
                }
                Err(found) => entry = found,
            }
        }
    }

    fn protect_part(
        &self,
        middle: Middle<'_>,
        part: &Range<usize>,
        own: &Range<usize>,
        rights: Rights,
    ) -> core::result::Result<(), Stop> {
        let unmapped = match self.change_middle(middle, part, own, |pmd| pmd.with_rights(rights))? {
            Changed::Not(leaf) => {
                part.clone().find(|&page| !self.set_rights(leaf.entry(page), rights))
            }
            Changed::From(_) => None,
            Changed::Nothing => Some(part.start),
        };
        unmapped.map_or(Ok(()), |page| Change::Protect(rights).on_nothing(page))
    }

    /// Sets the rights of a page; `false` if it is unmapped.
    fn set_rights(&self, ptep: &AtomicU64, rights: Rights) -> bool {
        let ops = &self.space.tables.ops;
        let mut entry = ops.ptep_get(ptep);
        loop {
            let next = match entry.state() {
                State::Gone | State::Doomed => return false,
                State::Untouched => Entry::absent(rights).with_version(entry.version()),
                _ => entry.with_rights(rights),
            };
            match ops.ptep_cmpxchg(ptep, entry, next) {
                Ok(()) => return true,
                Err(found) => entry = found,
            }
        }
    }

    fn add_table(
        &self,
        middle: Middle<'_>,
        pmd: Entry,
        page: usize,
    ) -> core::result::Result<(), Stop> {
        let added = match pmd.state() {
            State::Present => self.split(middle, pmd),
            _ => self.populate(middle, pmd, page),
        };
        added.map_err(|trap| Stop { trap, page })
    }

    fn free_retired(&self, state: &mut MapState) {
        self.space.free_retired(state, &mut |pmd| {
            if pmd.state() == State::Closed {
                self.with_list(|list| list.put(pmd.frame()));
            }
        });
    }
}

/// How a word of the middle level was changed.
enum Changed<F: FrameSource> {
    /// It was so before.
    From(Entry),
    /// It has this table, whose words are to be changed.
    Not(Table<F>),
    /// Nothing is mapped.
    Nothing,
}

/// Operations on pages.
#[derive(Clone, Copy, Debug)]
enum Change {
    Unmap,
    Protect(Rights),
}

impl Change {
    /// Where nothing is mapped: nothing to unmap, and nothing that could have rights.
    fn on_nothing(self, page: usize) -> core::result::Result<(), Stop> {
        match self {
            Change::Unmap => Ok(()),
            Change::Protect(_) => Err(Stop { trap: Trap::Unmapped, page }),
        }
    }
}

/// Where a change ended early.
#[derive(Clone, Copy, Debug)]
struct Stop {
    trap: Trap,
    page: usize,
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// Gives everything back. No task is left, and nobody holds anything.
    pub(super) fn put_everything(&mut self) {
        let source = self.tables.source;
        let mut list = source.list();
        let mut tables = source.list();
        self.crowds.get_mut().frames().for_each(|frame| tables.put(frame));
        let ops = &self.tables.ops;
        let mut put = |entry: Entry| {
            let is_own = entry.has_frame() && entry.frame() != source.zero_page();
            if is_own && (!entry.cow() || self.unshare(entry.frame())) {
                list.put(entry.frame());
            }
            self.free_evicted(entry);
        };
        for slot in self.tables.slots() {
            for granule in slot << F::TABLE_BITS..(slot + 1) << F::TABLE_BITS {
                let Some(middle) = self.tables.middle(granule) else { continue };
                let pmd = ops.ptep_get(middle.pmdp);
                if pmd.state() == State::Present {
                    let frames = pmd.frame().0..pmd.frame().0 + F::ENTRIES;
                    frames.for_each(|frame| tables.put(Pfn(frame)));
                }
                if !matches!(pmd.state(), State::Table | State::Closed) {
                    continue;
                }
                // SAFETY: nobody has freed it, and nobody else can any more.
                let leaf = unsafe { self.tables.leaf(pmd) };
                for page in 0..F::ENTRIES {
                    put(ops.ptep_get(leaf.entry(page)));
                }
                tables.put(pmd.frame());
            }
        }
    }
}
