//! Four levels of tables, and where their frames come from.
//!
//! ```text
//!  46       39 38       30 29       21 20       12 11        0
//! +-----------+-----------+-----------+-----------+-----------+
//! |    pgd    |    pud    |    pmd    |    pte    |  offset   |   an address, 128 TiB of them
//! +-----------+-----------+-----------+-----------+-----------+
//! ```
//! A *slot* is the range of one entry of the second level: 1 GiB, one table of the middle level. The second level's
//! table for the first 512 slots is there from the start, and found without the first level, whose table comes with the
//! first region beyond them; so few spaces have a walk of four levels. Half of the first table's entries are used.
//!
//! A table of the middle level is two frames side by side: the entries, and for each of them the
//! number of the VMA whose 2 MiB they are. So a walk finds the VMA on its way, and there is no tree of
//! them to be kept right while others look.
//!
//! Tables of the upper three levels live as long as the space; a table of pages goes when its VMA does
//! (`space` says when nobody is in it any more).

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use super::entry::{Entry, Rights};
use super::ops::TableOps;
use super::pager::Pager;
use pumice_frames::addr::Pfn;
use pumice_frames::frame::Gfp;
use pumice_frames::sys::pair::Pair;
use pumice_io::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// A frame's word, 0 at first: how many spaces have the frame beyond the first ([`sharers_in`]), and
    /// [`IN_TRANSIT`]. It stays when the frame is freed.
    fn sharers(&self, frame: Pfn) -> &AtomicU32;
    /// The frame that is always zero.
    fn zero_page(self) -> Pfn;
    /// The keeper of pages that are not in memory, if there is one.
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
    /// How many frames are free in all zones: as above.
    fn all_free_frames(self) -> usize {
        usize::MAX
    }
}

/// In a frame's word: a page that had the frame is in transit, and the transit has not been ended.
pub const IN_TRANSIT: u32 = 1 << 31;

/// How many spaces have a frame beyond the first, by its word.
pub const fn sharers_in(word: u32) -> u32 {
    word & !IN_TRANSIT
}

/// Single frames for one thread. It waits for nothing: where there are none, or only the reserve is left, its owner
/// may have some reclaimed.
pub trait FrameList {
    /// Sets the flags of requests from now on.
    fn set_gfp(&mut self, _gfp: Gfp) {}
    /// Gets a frame that reads as zeros.
    fn get_zeroed(&mut self) -> Option<Pfn>;
    /// Gets a frame whose content is unknown.
    fn get_any(&mut self) -> Option<Pfn>;
    /// As [`FrameList::get_any`], if there is one at once: fetching ahead of need waits for nobody.
    fn get_any_at_once(&mut self) -> Option<Pfn> {
        None
    }
    /// As [`FrameList::get_any_at_once`], of as many as fill `into`, or fewer: how many, from its start.
    fn get_many_at_once(&mut self, into: &mut [Pfn]) -> usize {
        let mut found = 0;
        while let Some(place) = into.get_mut(found) {
            let Some(frame) = self.get_any_at_once() else { break };
            *place = frame;
            found += 1;
        }
        found
    }
    /// Gets frames that lie side by side and read as zeros, `most` at most: the first, and how many.
    fn get_zeroed_run(&mut self, most: usize) -> Option<(Pfn, usize)> {
        debug_assert!(most > 0);
        self.get_zeroed().map(|frame| (frame, 1))
    }
    /// Puts back the last frames of the last [`FrameList::get_zeroed_run`], not written.
    fn put_zeroed_run(&mut self, first: Pfn, frames: usize) {
        (first.0..first.0 + frames).for_each(|frame| self.put_zeroed(Pfn(frame)));
    }
    /// Puts a frame back.
    fn put(&mut self, frame: Pfn);
    /// Puts back a frame that was got zeroed and not written.
    fn put_zeroed(&mut self, frame: Pfn);
    /// Lets other threads have the frames that were put back.
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

/// Tables of the middle level that lie side by side, for slots that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct MiddleRow<F> {
    /// Where granule 0 would have its entry if the row began with slot 0. Between two tables of entries
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

    /// The row's entry for a granule.
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

/// The middle level's entry for a granule.
#[derive(Clone, Copy, Debug)]
pub struct Middle<'t> {
    /// The entry.
    pub pmdp: &'t AtomicU64,
    /// The number of the VMA, 0 for none.
    pub vma: &'t AtomicU64,
}

/// Pairs of frames, each of which names the next by its first word: the number and one more, 0 at the end.
struct Chain<F: FrameSource> {
    source: F,
    first: Option<Pfn>,
}

impl<F: FrameSource> Chain<F> {
    fn link(&self, pair: Pfn) -> &AtomicU64 {
        // SAFETY: the pair is the chain's, and has words.
        unsafe { self.source.words(pair).as_ref() }
    }

    fn push(&mut self, pair: Pfn) {
        let next = self.first.replace(pair).map_or(0, |next| next.0 as u64 + 1);
        // Relaxed, here and below: the pairs are this thread's.
        self.link(pair).store(next, Ordering::Relaxed);
    }

    /// A pair, which reads as zeros.
    fn pop(&mut self) -> Option<Pfn> {
        let pair = self.first?;
        let next = self.link(pair).load(Ordering::Relaxed);
        self.link(pair).store(0, Ordering::Relaxed);
        self.first = next.checked_sub(1).map(|next| Pfn(next as usize));
        Some(pair)
    }
}

impl<F: FrameSource> Drop for Chain<F> {
    fn drop(&mut self) {
        while let Some(pair) = self.pop() {
            self.source.put_run(pair);
        }
    }
}

/// A space's tables.
#[derive(Debug)]
pub struct Tables<F: FrameSource, T> {
    /// Of the second level, for the first slots.
    pud: Table<F>,
    pud_frame: Pfn,
    /// The entry that names the table of the first level.
    pgd: AtomicU64,
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
    pub const PAGES: usize = Self::GRANULES << F::TABLE_BITS;
    /// Granules: an entry of the middle level is for one.
    pub const GRANULES: usize = Self::SLOTS << F::TABLE_BITS;
    /// Slots: a table of the middle level is for one.
    const SLOTS: usize = 1 << (2 * F::TABLE_BITS - 1);

    /// Empty tables; `None` without a frame for the first.
    pub fn new(source: F, ops: T) -> Option<Tables<F, T>> {
        let pud_frame = source.get_run(1)?;
        // SAFETY: the frame is zeroed, which is an empty table, and lives as long as this.
        let pud = unsafe { Table::at(source, pud_frame) };
        Some(Tables { pud, pud_frame, pgd: AtomicU64::new(0), source, ops })
    }

    /// The address of the first table: no two spaces have the same at a time, also on different zones.
    pub fn root(&self) -> usize {
        self.pud.words.as_ptr() as usize
    }

    /// The entry of the second level for a slot, if its table is there.
    #[inline]
    fn pudp(&self, slot: usize) -> Option<&AtomicU64> {
        debug_assert!(slot < Self::SLOTS);
        if slot < F::ENTRIES {
            return Some(self.pud.entry(slot));
        }
        let pgd = self.pgdp(slot).map(|pgdp| self.ops.ptep_get(pgdp))?;
        // SAFETY: tables of the second level live as long as the space.
        let pud = (pgd != Entry::new()).then(|| unsafe { Table::at(self.source, pgd.frame()) })?;
        Some(pud.entry(slot))
    }

    /// The entry of the first level for a slot, if there is that table.
    #[inline]
    fn pgdp(&self, slot: usize) -> Option<&AtomicU64> {
        let pgd = self.ops.ptep_get(&self.pgd);
        // SAFETY: it lives as long as the space.
        let pgd = (pgd != Entry::new()).then(|| unsafe { Table::at(self.source, pgd.frame()) })?;
        Some(pgd.entry(slot >> F::TABLE_BITS))
    }

    /// The table of the middle level of a slot, by its entry, if it is there.
    #[inline]
    fn pud(&self, slot: usize) -> Option<Entry> {
        let pud = self.ops.ptep_get(self.pudp(slot)?);
        (pud != Entry::new()).then_some(pud)
    }

    /// The slots that have a table of the middle level, in order.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            let slot = self.next_slot(next)?;
            next = slot + 1;
            Some(slot)
        })
    }

    /// The first slot from this one on that has a table of the middle level.
    pub fn next_slot(&self, from: usize) -> Option<usize> {
        let mut slot = from;
        while slot < Self::SLOTS {
            if self.pud(slot).is_some() {
                return Some(slot);
            }
            let is_step = self.pudp(slot).is_some();
            slot = if is_step { slot + 1 } else { (slot | (F::ENTRIES - 1)) + 1 };
        }
        None
    }

    /// The middle level's entry for a granule below [`Tables::GRANULES`]; `None` if nothing was ever
    /// mapped near it.
    #[inline]
    pub fn middle(&self, granule: usize) -> Option<Middle<'_>> {
        let slot = granule >> F::TABLE_BITS;
        let table = self.middle_table(slot)?;
        // SAFETY: this one is there.
        Some(unsafe { MiddleRow::new(table, slot).middle(granule) })
    }

    /// The table of the middle level of a slot.
    #[inline]
    pub fn middle_table(&self, slot: usize) -> Option<Table<F>> {
        let pud = self.pud(slot)?;
        // SAFETY: tables of the middle level live as long as the space.
        Some(unsafe { Table::at(self.source, pud.frame()) })
    }

    /// The tables of the middle level of these slots, if all are there, side by side in memory.
    pub fn middle_row(&self, slots: Range<usize>) -> Option<MiddleRow<F>> {
        let frame = |slot| self.pud(slot).map(|pud| pud.frame().0);
        let first = frame(slots.start)?;
        let start = slots.start;
        let count = slots.len();
        let in_a_row =
            slots.into_iter().all(|slot| frame(slot) == Some(first + 2 * (slot - start)))
                && self.source.are_side_by_side(Pfn(first), 2 * count);
        let first = in_a_row.then(|| self.middle_table(start)).flatten()?;
        Some(MiddleRow::new(first, start))
    }

    /// Sees to it that slots have tables, side by side if they have none yet. `None` without frames: all of the middle
    /// level's that were got are put back then.
    pub fn populate_middle(&self, slots: Range<usize>) -> Option<()> {
        let missing = || slots.clone().filter(|&slot| self.pud(slot).is_none());
        let count = missing().count();
        if count > F::ENTRIES && 2 * count > self.source.all_free_frames() {
            // Others need not be without frames while this finds that out.
            return None;
        }
        let run = (count > 1 && count == slots.len()).then(|| self.source.get_run(2 * count));
        let run = run.flatten();
        // Before any is installed, for what is installed stays.
        let mut pairs = Chain { source: self.source, first: None };
        if run.is_none() {
            for _ in 0..count {
                pairs.push(self.source.get_run(2)?);
            }
        }
        let first_table = slots.start & !(F::ENTRIES - 1);
        let mut tables = (first_table..slots.end).step_by(F::ENTRIES);
        if tables.try_for_each(|slot| self.populate_pud(slot)).is_none() {
            run.into_iter().for_each(|run| self.source.put_run(run));
            return None;
        }
        if let Some(first) = run {
            for (index, slot) in slots.enumerate() {
                self.install_middle(slot, Pfn(first.0 + 2 * index), index == 0);
            }
            return Some(());
        }
        for slot in missing() {
            let pair = pairs.pop()?;
            if !self.install_middle(slot, pair, true) {
                self.source.put_run(pair);
            }
        }
        Some(())
    }

    /// Sees to it that the second level has a table for a slot.
    fn populate_pud(&self, slot: usize) -> Option<()> {
        if self.pudp(slot).is_some() {
            return Some(());
        }
        if self.pgdp(slot).is_none() {
            self.install_one(&self.pgd)?;
        }
        self.install_one(self.pgdp(slot)?)
    }

    /// Installs a table of one frame.
    fn install_one(&self, entry: &AtomicU64) -> Option<()> {
        let table = self.source.get_run(1)?;
        if !self.ops.pgd_test_and_populate(entry, Entry::table(table, Rights::empty())) {
            self.source.put_run(table);
        }
        Some(())
    }

    fn install_middle(&self, slot: usize, table: Pfn, starts_run: bool) -> bool {
        // *Accessed* marks the first table of a run, by which the run is put back.
        let entry = Entry::table(table, Rights::empty()).with_accessed(starts_run);
        self.pudp(slot).is_some_and(|pudp| self.ops.pgd_test_and_populate(pudp, entry))
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
    /// Puts back the tables of the upper three levels; those of pages are their owner's.
    fn drop(&mut self) {
        // Relaxed: nobody else has it any more. The frames of a run go together, so its first entry is
        // dealt with last.
        let there = |word: &AtomicU64| {
            let entry = Entry::from(word.load(Ordering::Relaxed));
            (entry != Entry::EMPTY).then_some(entry)
        };
        let put_middle = |pud: Table<F>| {
            for pud in (0..F::ENTRIES).rev().filter_map(|index| there(pud.entry(index))) {
                if pud.accessed() {
                    self.source.put_run(pud.frame());
                }
            }
        };
        if let Some(pgd) = there(&self.pgd) {
            // SAFETY: it lives until it is put back below.
            let table: Table<F> = unsafe { Table::at(self.source, pgd.frame()) };
            // A run of tables of the middle level may begin in one table, and go on in the next.
            for pud in (0..F::ENTRIES).rev().filter_map(|index| there(table.entry(index))) {
                // SAFETY: as above.
                put_middle(unsafe { Table::at(self.source, pud.frame()) });
                self.source.put_run(pud.frame());
            }
            self.source.put_run(pgd.frame());
        }
        put_middle(self.pud);
        self.source.put_run(self.pud_frame);
    }
}
