//! Three levels of tables, and where their frames come from.
//!
//! ```text
//!  38       30 29       21 20       12 11        0
//! +-----------+-----------+-----------+-----------+
//! |    pgd    |    pmd    |    pte    |  offset   |   an address, 512 GiB of them
//! +-----------+-----------+-----------+-----------+
//! ```
//!
//! A table of the middle level is two frames side by side: the entries, and for each of them the
//! number of the VMA whose 2 MiB they are. So a walk finds the VMA on its way, and there is no tree of
//! them to be kept right while others look.
//!
//! Tables of the upper two levels live as long as the space; a table of pages goes when its VMA does
//! (`space` says when nobody is in it any more).

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use super::entry::{Entry, Rights};
use super::ops::TableOps;
use super::pager::Pager;
use crate::addr::Pfn;
use crate::frame::Gfp;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::pair::Pair;

/// Where frames come from, and where they are. A small value that is passed around.
///
/// # Safety
/// Runs that are got read as zeros and are nobody else's until they are put. `words` and `bytes` are where a
/// frame is, for as long as the source is there; `words` has [`FrameSource::TABLE_BITS`] worth of
/// atomics for each frame, side by side for the frames of a run. Numbers that follow each other say nothing of
/// addresses but within a run, and where [`FrameSource::are_side_by_side`] says so.
pub unsafe trait FrameSource: Copy + Send + Sync {
    /// A table has 2 to this power of entries: 9, less in models.
    const TABLE_BITS: u32;
    /// Entries of a table.
    const ENTRIES: usize = 1 << Self::TABLE_BITS;

    /// A thread's own list of frames.
    type List: FrameList;

    /// A list for a thread.
    fn list(self) -> Self::List;
    /// A frame as words.
    fn words(self, frame: Pfn) -> NonNull<AtomicU64>;
    /// A frame as memory.
    fn bytes(self, frame: Pfn) -> NonNull<u8>;
    /// Whether frames whose numbers follow each other, from `first` on, lie so in memory too. Those of two zones don't.
    fn are_side_by_side(self, first: Pfn, frames: usize) -> bool;
    /// Gets a run of frames.
    fn get_run(self, frames: usize) -> Option<Pfn>;
    /// Gets frames for a huge page, as many as a table has entries: side by side, the first one's number a
    /// multiple of that, zeroed already, each to be put back by itself.
    fn get_zeroed_block(self, gfp: Gfp) -> Option<Pfn> {
        let _ = gfp;
        None
    }
    /// Puts back the run that starts with this frame.
    fn put_run(self, first: Pfn);
    /// How many spaces have a frame beyond the first.
    fn sharers(&self, frame: Pfn) -> &AtomicU32;
    /// The frame that is always zero.
    fn zero_page(self) -> Pfn;
    /// Who keeps pages that are not in memory, if anybody does.
    fn pager(&self) -> Option<&dyn Pager> {
        None
    }
    /// A frame is going to be read that may be freed meanwhile: its address stays readable until
    /// [`FrameSource::let_go_readable`].
    fn hold_readable(self, _frame: Pfn) {}
    /// Ends one [`FrameSource::hold_readable`].
    fn let_go_readable(self, _frame: Pfn) {}
    /// How many frames are free in the zone of this one; it may take a microsecond and more.
    fn free_frames(self, zone_of: Pfn) -> usize {
        let _ = zone_of;
        usize::MAX
    }
}

/// Single frames for one thread. It waits for nothing: where there are none, or only such as are kept back, its owner
/// may have some reclaimed.
pub trait FrameList {
    /// What requests from now on may do.
    fn set_gfp(&mut self, _gfp: Gfp) {}
    /// Gets a frame that reads as zeros.
    fn get_zeroed(&mut self) -> Option<Pfn>;
    /// Gets a frame whose content is unknown.
    fn get_any(&mut self) -> Option<Pfn>;
    /// As [`FrameList::get_any`], if there is one at once: what is fetched ahead of need waits for nobody.
    fn get_any_at_once(&mut self) -> Option<Pfn> {
        None
    }
    /// Gets frames that lie side by side and read as zeros, `most` at most: the first, and how many.
    fn get_zeroed_run(&mut self, most: usize) -> Option<(Pfn, usize)> {
        debug_assert!(most > 0);
        self.get_zeroed().map(|frame| (frame, 1))
    }
    /// Puts back the last ones of what [`FrameList::get_zeroed_run`] returned last, not written.
    fn put_zeroed_run(&mut self, first: Pfn, frames: usize) {
        (first.0..first.0 + frames).for_each(|frame| self.put_zeroed(Pfn(frame)));
    }
    /// Puts a frame back.
    fn put(&mut self, frame: Pfn);
    /// Puts back a frame that was got zeroed and not written.
    fn put_zeroed(&mut self, frame: Pfn);
    /// Lets others have what was put back.
    fn flush(&mut self) {}
}

/// One table.
#[derive(Debug)]
pub struct Table<F> {
    words: NonNull<AtomicU64>,
    source: PhantomData<F>,
}

impl<F> Clone for Table<F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Table<F> {}

// SAFETY: it refers to words that are atomic, as a shared reference to them would. That they are still a
// table's is what its users see to, on whatever thread.
unsafe impl<F> Send for Table<F> {}

impl<F: FrameSource> Table<F> {
    /// The table in a frame.
    ///
    /// # Safety
    /// There is one, for as long as the entries that are taken from it are used.
    #[inline]
    pub unsafe fn at(source: F, frame: Pfn) -> Table<F> {
        Table { words: source.words(frame), source: PhantomData }
    }

    /// The entry of a page, or of a granule: the low bits of the number count.
    #[inline]
    pub fn entry<'t>(self, number: usize) -> &'t AtomicU64 {
        // SAFETY: a table has that many words, and is there as `at` was promised.
        unsafe { self.words.add(number & (F::ENTRIES - 1)).as_ref() }
    }

    /// The entries of a page with an even number and of the one after it.
    #[inline]
    pub fn pair<'t>(self, number: usize) -> &'t Pair {
        debug_assert!(number % 2 == 0);
        let first = core::ptr::from_ref(self.entry(number & !1));
        // SAFETY: as above; a table's words are aligned as a frame is, and an even number of them, so the pair is
        // within it and aligned. It is nothing but two of these words.
        unsafe { &*first.cast() }
    }
}

/// Tables of the middle level that lie side by side, for slots of the first level that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct MiddleRow<F> {
    /// Where granule 0 would have its entry if the row began with the first slot. Between two tables of entries
    /// there is one of numbers of VMAs.
    origin: *const AtomicU64,
    source: PhantomData<F>,
}

// SAFETY: as for `Table`.
unsafe impl<F> Send for MiddleRow<F> {}

impl<F: FrameSource> MiddleRow<F> {
    /// The row that begins with a table, of a slot.
    fn new(first: Table<F>, slot: usize) -> MiddleRow<F> {
        let origin = first.words.as_ptr().cast_const().wrapping_sub(2 * F::ENTRIES * slot);
        MiddleRow { origin, source: PhantomData }
    }

    /// What the row says of a granule.
    ///
    /// # Safety
    /// The granule's slot is one of the row's.
    #[inline(always)]
    pub unsafe fn middle<'t>(self, granule: usize) -> Middle<'t> {
        // Its slot's tables are as many words beyond the origin as two for each granule before them.
        let pmdp = self.origin.wrapping_add(granule + (granule & !(F::ENTRIES - 1)));
        // SAFETY: as the caller promises; there is an entry and a number for a granule.
        unsafe { Middle { pmdp: &*pmdp, vma: &*pmdp.add(F::ENTRIES) } }
    }
}

/// What the middle level says of a granule.
#[derive(Clone, Copy, Debug)]
pub struct Middle<'t> {
    /// The entry.
    pub pmdp: &'t AtomicU64,
    /// The number of the VMA, 0 for none.
    pub vma: &'t AtomicU64,
}

/// A space's tables.
#[derive(Debug)]
pub struct Tables<F: FrameSource, T> {
    pgd: Table<F>,
    pgd_frame: Pfn,
    /// Where frames come from.
    pub source: F,
    /// How entries are changed.
    pub ops: T,
}

// SAFETY: all that is behind the pointers is atomic.
unsafe impl<F: FrameSource, T: Send> Send for Tables<F, T> {}
// SAFETY: as above.
unsafe impl<F: FrameSource, T: Sync> Sync for Tables<F, T> {}

impl<F: FrameSource, T: TableOps> Tables<F, T> {
    /// Pages that have an address.
    pub const PAGES: usize = 1 << (3 * F::TABLE_BITS);
    /// Granules: what an entry of the middle level is for.
    pub const GRANULES: usize = 1 << (2 * F::TABLE_BITS);

    /// Empty tables; `None` without a frame for the first.
    pub fn new(source: F, ops: T) -> Option<Tables<F, T>> {
        let pgd_frame = source.get_run(1)?;
        // SAFETY: the frame is zeroed, which is an empty table, and lives as long as this.
        let pgd = unsafe { Table::at(source, pgd_frame) };
        Some(Tables { pgd, pgd_frame, source, ops })
    }

    /// The frame of the first level: no two spaces have the same at a time.
    pub fn root(&self) -> Pfn {
        self.pgd_frame
    }

    /// The entry of the first level for `slot`.
    pub fn pgdp(&self, slot: usize) -> &AtomicU64 {
        self.pgd.entry(slot)
    }

    /// What the middle level says of a granule below [`Tables::GRANULES`]; `None` if nothing was ever
    /// mapped near it.
    #[inline]
    pub fn middle(&self, granule: usize) -> Option<Middle<'_>> {
        let slot = granule >> F::TABLE_BITS;
        let table = self.middle_table(slot)?;
        // SAFETY: this one is there.
        Some(unsafe { MiddleRow::new(table, slot).middle(granule) })
    }

    /// The table of the middle level in a slot of the first.
    #[inline]
    pub fn middle_table(&self, slot: usize) -> Option<Table<F>> {
        let pgd = self.ops.ptep_get(self.pgdp(slot));
        // SAFETY: tables of the middle level live as long as the space.
        (pgd != Entry::new()).then(|| unsafe { Table::at(self.source, pgd.frame()) })
    }

    /// The tables of the middle level of these slots, if all are there, side by side in memory.
    pub fn middle_row(&self, slots: Range<usize>) -> Option<MiddleRow<F>> {
        let frame = |slot| {
            let pgd = self.ops.ptep_get(self.pgdp(slot));
            (pgd != Entry::new()).then(|| pgd.frame().0)
        };
        let first = frame(slots.start)?;
        let start = slots.start;
        let count = slots.len();
        let in_a_row =
            slots.into_iter().all(|slot| frame(slot) == Some(first + 2 * (slot - start)))
                && self.source.are_side_by_side(Pfn(first), 2 * count);
        let first = in_a_row.then(|| self.middle_table(start)).flatten()?;
        Some(MiddleRow::new(first, start))
    }

    /// Sees to it that the slots of the first level have tables, side by side if they have none yet.
    /// `None` without frames.
    pub fn populate_middle(&self, slots: Range<usize>) -> Option<()> {
        let (slot, count) = (slots.start, slots.len());
        let is_empty = |slot| self.ops.ptep_get(self.pgdp(slot)) == Entry::new();
        if count > 1 && (slot..slot + count).all(is_empty) {
            if let Some(first) = self.source.get_run(2 * count) {
                for index in 0..count {
                    self.install_middle(slot + index, Pfn(first.0 + 2 * index), index == 0);
                }
            }
        }
        for slot in slot..slot + count {
            if is_empty(slot) {
                let table = self.source.get_run(2)?;
                if !self.install_middle(slot, table, true) {
                    self.source.put_run(table);
                }
            }
        }
        Some(())
    }

    fn install_middle(&self, slot: usize, table: Pfn, starts_run: bool) -> bool {
        // *Accessed* marks the first table of a run, by which the run is put back.
        let entry = Entry::table(table, Rights::empty()).with_accessed(starts_run);
        self.ops.pgd_test_and_populate(self.pgdp(slot), entry)
    }

    /// The table of pages that an entry of the middle level names.
    ///
    /// # Safety
    /// As [`Table::at`].
    #[inline]
    pub unsafe fn leaf(&self, pmd: Entry) -> Table<F> {
        // SAFETY: as the caller promises.
        unsafe { Table::at(self.source, pmd.frame()) }
    }
}

impl<F: FrameSource, T> Drop for Tables<F, T> {
    /// Puts back the tables of the upper two levels; those of pages are their owner's.
    fn drop(&mut self) {
        // Relaxed: nobody else has it any more. The frames of a run go together, so its first entry is
        // dealt with last.
        for slot in (0..F::ENTRIES).rev() {
            let pgd = Entry::from(self.pgd.entry(slot).load(Ordering::Relaxed));
            if pgd != Entry::EMPTY && pgd.accessed() {
                self.source.put_run(pgd.frame());
            }
        }
        self.source.put_run(self.pgd_frame);
    }
}
