//! VMAs: the records of regions, and the search for room.
//!
//! The holder of the `mmap_lock` does all of it; only a record's extent is read without, by threads
//! that hold the region.

use core::ops::Range;

use super::records::Records;
use super::{Extent, Result, VmError, VmSpace};
use crate::page_table::{Entry, FrameSource, TableOps, Tables};
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::sync::atomic::{fence, AtomicU64, Ordering};

/// Words of a record.
const VMA_WORDS: usize = 4;
pub(super) type Vmas<F> = Records<F, VMA_WORDS>;

/// A VMA's number; 0 is none.
pub(super) type VmaId = u64;

/// A region's record. Relaxed throughout: the lock orders writers, and a reader of the extent has acquired the number
/// that led here, which was stored after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vma<'s>(&'s [AtomicU64; VMA_WORDS]);

const FIRST_PAGE: usize = 0;
const PAGES: usize = 1;
/// Pages that are not unmapped yet.
const MAPPED: usize = 2;
/// The next record of the list it is in: of those free, or of those retired.
const NEXT: usize = 3;

impl Vma<'_> {
    #[inline]
    fn get(self, field: usize) -> usize {
        self.0[field].load(Ordering::Relaxed) as usize
    }

    #[inline]
    fn set(self, field: usize, value: usize) {
        self.0[field].store(value as u64, Ordering::Relaxed);
    }

    #[inline]
    pub fn first_page(self) -> usize {
        self.get(FIRST_PAGE)
    }

    #[inline]
    pub fn pages(self) -> usize {
        self.get(PAGES)
    }

    pub fn mapped(self) -> usize {
        self.get(MAPPED)
    }

    /// Counts pages that were unmapped. Returns how many are left.
    #[inline]
    pub fn unmap(self, pages: usize) -> usize {
        let left = self.mapped() - pages;
        self.set(MAPPED, left);
        left
    }

    /// The pages of it, by number, that lie in a granule.
    pub fn pages_in<F: FrameSource>(self, granule: usize) -> Range<usize> {
        let (start, end) = (self.first_page(), self.first_page() + self.pages());
        let granule = granule << F::TABLE_BITS..(granule + 1) << F::TABLE_BITS;
        granule.start.max(start)..granule.end.min(end)
    }

    pub fn granules<F: FrameSource>(self) -> Range<usize> {
        let first = self.first_page() >> F::TABLE_BITS;
        first..first + self.pages().div_ceil(F::ENTRIES)
    }

    #[inline]
    pub fn extent(self) -> Extent {
        Extent { start: self.first_page() * FRAME_SIZE, bytes: self.pages() * FRAME_SIZE }
    }
}

/// State that mapping threads share.
#[derive(Debug)]
pub(super) struct MapState {
    /// Numbers up to this have been used.
    last_id: VmaId,
    /// The first record that can be used again.
    free: VmaId,
    /// The first of those unmapped whole that somebody may still hold.
    retired: VmaId,
    /// The granule after the region that was mapped last: where the search goes on.
    cursor: usize,
    /// Granules that are searched: twice as many each time that there is no room among them. Tables of the middle
    /// level stay, so addresses are used again before others are.
    limit: usize,
}

impl MapState {
    /// That searches so many granules at first.
    pub fn new(limit: usize) -> MapState {
        // Nothing is ever mapped in the first granule: null is no address.
        MapState { last_id: 0, free: 0, retired: 0, cursor: 1, limit }
    }
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    pub(super) fn vma(&self, id: VmaId) -> Option<Vma<'_>> {
        self.vmas.get(id.checked_sub(1)? as usize).map(Vma)
    }

    /// A new record for a region at these pages.
    pub(super) fn add_vma(
        &self,
        state: &mut MapState,
        first_page: usize,
        pages: usize,
    ) -> Result<VmaId> {
        let id = if state.free != 0 { state.free } else { state.last_id + 1 };
        let record = self.vmas.get_or_add(id as usize - 1);
        let vma = Vma(record.ok_or(VmError::OutOfRecords("region"))?);
        if id == state.free {
            state.free = vma.get(NEXT) as VmaId;
        } else {
            state.last_id = id;
        }
        for (field, value) in [(FIRST_PAGE, first_page), (PAGES, pages), (MAPPED, pages)] {
            vma.set(field, value);
        }
        Ok(id)
    }

    /// In a space that is being forked: the record of the parent's number.
    pub(super) fn copy_vma(&self, state: &mut MapState, id: VmaId, from: Vma<'_>) -> Result<()> {
        while state.last_id < id {
            let vma = self.vmas.get_or_add(state.last_id as usize);
            let vma = Vma(vma.ok_or(VmError::OutOfRecords("region"))?);
            state.last_id += 1;
            vma.set(NEXT, state.free as usize);
            state.free = state.last_id;
        }
        self.unlink_free(state, id);
        if let Some(vma) = self.vma(id) {
            for field in [FIRST_PAGE, PAGES, MAPPED] {
                vma.set(field, from.get(field));
            }
        }
        Ok(())
    }

    fn unlink_free(&self, state: &mut MapState, id: VmaId) {
        let next = |id| self.vma(id).map_or(0, |vma| vma.get(NEXT) as VmaId);
        if state.free == id {
            state.free = next(id);
            return;
        }
        let mut before = state.free;
        while before != 0 && next(before) != id {
            before = next(before);
        }
        if let Some(vma) = self.vma(before) {
            vma.set(NEXT, next(id) as usize);
        }
    }

    /// The first of `granules` that are nobody's, side by side.
    pub(super) fn find_room(&self, state: &mut MapState, granules: usize) -> Option<usize> {
        let all = Tables::<F, T>::GRANULES;
        loop {
            let found = self.find_room_within_limit(state, granules);
            if found.is_some() || state.limit >= all {
                return found;
            }
            state.limit = (2 * state.limit).min(all);
        }
    }

    /// The same, from the cursor on and once round. Less than a whole table of the middle level does not cross into
    /// another; more starts with one.
    fn find_room_within_limit(&self, state: &mut MapState, granules: usize) -> Option<usize> {
        let all = state.limit;
        let per_table = F::ENTRIES;
        let mut start = state.cursor;
        let mut looked_at = 0;
        while looked_at < 2 * all {
            let crosses = start % per_table + granules > per_table;
            let aligned = if crosses { start.next_multiple_of(per_table) } else { start };
            if aligned + granules > all {
                if start <= 1 {
                    return None;
                }
                looked_at += all - start.min(all);
                start = 1;
                continue;
            }
            match self.last_used(aligned..aligned + granules) {
                None => {
                    state.cursor = aligned + granules;
                    return Some(aligned);
                }
                Some(used) => {
                    looked_at += used + 1 - start;
                    start = used + 1;
                }
            }
        }
        None
    }

    /// The last of some granules that is somebody's.
    fn last_used(&self, granules: Range<usize>) -> Option<usize> {
        let slots = granules.start >> F::TABLE_BITS..((granules.end - 1) >> F::TABLE_BITS) + 1;
        slots.rev().find_map(|slot| {
            // Most of a large region's slots have no table.
            self.tables.middle_table(slot)?;
            let own = slot << F::TABLE_BITS..(slot + 1) << F::TABLE_BITS;
            let mut looked_at = own.start.max(granules.start)..own.end.min(granules.end);
            looked_at.rfind(|&granule| {
                let middle = self.tables.middle(granule);
                middle.is_some_and(|m| self.tables.ops.ptep_get(m.pmdp) != Entry::new())
            })
        })
    }

    /// Closes a region of which everything is unmapped, and frees it if nobody holds it.
    pub(super) fn retire(&self, state: &mut MapState, id: VmaId) {
        let Some(vma) = self.vma(id) else { return };
        for granule in vma.granules::<F>() {
            let Some(middle) = self.tables.middle(granule) else { continue };
            // Relaxed: the fence below orders it (a and c in the module's protocol).
            middle.vma.store(0, Ordering::Relaxed);
            let pmd = self.tables.ops.ptep_get(middle.pmdp);
            if pmd.state() == crate::page_table::State::Table {
                let closed = pmd.with_state(crate::page_table::State::Closed);
                let done = self.tables.ops.ptep_cmpxchg(middle.pmdp, pmd, closed);
                debug_assert!(done.is_ok(), "only the lock's holder changes a table's entry");
            }
        }
        vma.set(NEXT, state.retired as usize);
        state.retired = id;
    }

    /// Frees retired regions that nobody holds any more.
    pub(super) fn free_retired(&self, state: &mut MapState, put: &mut impl FnMut(Entry)) {
        if state.retired == 0 {
            return;
        }
        // SeqCst: between a and d in the module's protocol; pairs with that in `Task::hold`.
        fence(Ordering::SeqCst);
        let mut id = core::mem::take(&mut state.retired);
        while let Some(vma) = self.vma(id) {
            let next = vma.get(NEXT) as VmaId;
            if super::rss::TaskRecord::any_holds(&self.records, id) {
                vma.set(NEXT, state.retired as usize);
                state.retired = id;
            } else {
                for granule in vma.granules::<F>() {
                    let Some(middle) = self.tables.middle(granule) else { continue };
                    put(self.tables.ops.ptep_get_and_clear(middle.pmdp));
                }
                vma.set(NEXT, state.free as usize);
                state.free = id;
            }
            id = next;
        }
    }
}
