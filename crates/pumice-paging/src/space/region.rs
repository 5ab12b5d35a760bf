//! A region that a thread holds, and the ways to its bytes.
//!
//! | way | cost | guarantee |
//! |---|---|---|
//! | [`Region::translate`] | two loads | where the page was a moment ago |
//! | [`Region::read_optimistic`] | four loads | words that were on the page together at one instant |
//! | [`Region::read`], [`Region::write`] | two atomic operations | the page, in place, until the guard goes |
//! | [`Region::read_range`] | two for each page, one walk | the same, of pages in a row |
//! | [`Task::read_at`], [`Task::write_at`] | a guard for each page | a copy, each page of it whole |
//!
//! A huge page is translated by one load. A guard and an optimistic read of a page of it split it first.
//!
//! Bytes that are read without a guard may be written meanwhile. They are read as volatile words
//! and believed only if the page's word says afterwards that there was no guard for writing (a sequence
//! lock, as vmcache has it: Leis et al., SIGMOD 2023).

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::crowd::Joined;
use super::error::Trap;
use super::fault::{Latch, Walked};
use super::task::Task;
use super::{Access, Extent, Place, Result, VmError};
pub use crate::page_table::pager::Page;

use crate::page_table::entry::{CROWDED, EXCLUSIVE};
use crate::page_table::tables::{MiddleRow, Table};
use crate::page_table::{Entry, FrameSource, Middle, State, TableOps, Tables};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::sys::lock::Backoff;
use pumice_io::sync::atomic::{fence, AtomicU64, Ordering};

/// Optimistic reads of a page before a guard is taken.
const OPTIMISTIC_TRIES: usize = 8;

/// A region, held by a thread: its tables stay. Pages are counted from its start. An access to a part that is unmapped
/// meanwhile is an error.
pub struct Region<'t, F: FrameSource, T: TableOps> {
    task: &'t Task<'t, F, T>,
    /// The place in the thread's record.
    place: u8,
    first_page: usize,
    pages: usize,
    /// Its tables of the middle level, if all of them lie side by side.
    middle: Option<MiddleRow<F>>,
    source: F,
}

impl<F: FrameSource, T: TableOps> fmt::Debug for Region<'_, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({})", self.extent())
    }
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Holds the region that an address lies in.
    ///
    /// # Errors
    /// [`VmError::Unmapped`], and [`VmError::TooManyHeld`] if the thread holds seven.
    pub fn region(&self, address: usize) -> Result<Region<'_, F, T>> {
        let tables = &self.space.tables;
        let granule = (address / FRAME_SIZE) >> F::TABLE_BITS;
        let inside = granule < Tables::<F, T>::GRANULES;
        let middle = if inside { tables.middle(granule) } else { None };
        let held = match middle {
            Some(middle) => self.hold_region(middle)?,
            None => None,
        };
        let vma = held.and_then(|(place, id)| Some((place, self.space.vma(id)?)));
        let Some((place, vma)) = vma else {
            return Err(self.error(Trap::Unmapped, address, Access::Read));
        };
        // A region has its last granule to itself, beyond its end too.
        if address / FRAME_SIZE >= vma.first_page() + vma.pages() {
            self.let_go_region(place);
            return Err(self.error(Trap::Unmapped, address, Access::Read));
        }
        let granules = vma.granules::<F>();
        let slots = granules.start >> F::TABLE_BITS..((granules.end - 1) >> F::TABLE_BITS) + 1;
        let middle = tables.middle_row(slots);
        let (first_page, pages) = (vma.first_page(), vma.pages());
        Ok(Region { task: self, place, first_page, pages, middle, source: tables.source })
    }

    /// Copies the bytes at an address, each page of them as it was at one instant.
    ///
    /// # Errors
    /// As [`Task::fault`], for the first page that can't be read; those before it are copied.
    pub fn read_at(&self, address: usize, into: &mut [u8]) -> Result<()> {
        self.check_end(address, into.len())?;
        let mut done = 0;
        while done < into.len() {
            let at = address + done;
            let offset = at % FRAME_SIZE;
            let len = (FRAME_SIZE - offset).min(into.len() - done);
            let guard = self.latch(at, Access::Read)?;
            // SAFETY: the page is latched for reading, and the piece lies within it.
            unsafe {
                let from = guard.bytes.as_ptr().add(offset);
                from.copy_to_nonoverlapping(into[done..].as_mut_ptr(), len);
            }
            self.end_read(guard.ptep);
            done += len;
        }
        Ok(())
    }

    /// Writes bytes at an address, each page of them at one instant.
    ///
    /// # Errors
    /// As [`Task::fault`], for the first page that can't be written; those before it are written.
    pub fn write_at(&self, address: usize, from: &[u8]) -> Result<()> {
        self.check_end(address, from.len())?;
        let mut done = 0;
        while done < from.len() {
            let at = address + done;
            let offset = at % FRAME_SIZE;
            let len = (FRAME_SIZE - offset).min(from.len() - done);
            let guard = self.latch(at, Access::Write)?;
            // SAFETY: the page is latched for writing, and the piece lies within it.
            unsafe {
                let into = guard.bytes.as_ptr().add(offset);
                into.copy_from_nonoverlapping(from[done..].as_ptr(), len);
            }
            self.end_write(guard.ptep);
            done += len;
        }
        Ok(())
    }

    fn check_end(&self, address: usize, bytes: usize) -> Result<()> {
        match address.checked_add(bytes) {
            Some(_) => Ok(()),
            None => Err(VmError::BadRange(Extent { start: address, bytes })),
        }
    }

    /// Latches the page at an address. The thread asks nothing else of the space until it lets go.
    fn latch(&self, address: usize, access: Access) -> Result<Latched<'_>> {
        let walked = self.walk(address / FRAME_SIZE);
        let latched = walked.and_then(|walked| self.latch_walked(&walked, access, Latch::Wait));
        latched.map_err(|trap| self.error(trap, address, access))
    }

    #[inline]
    fn latch_walked<'w>(
        &'w self,
        walked: &Walked<'w, F>,
        access: Access,
        latch: Latch,
    ) -> core::result::Result<Latched<'w>, Trap> {
        let entry = match self.settle(walked, access, latch) {
            Err(Trap::Crowded) => return self.latch_in_crowd(walked, latch),
            settled => settled?,
        };
        if access == Access::Write {
            latch_before_writes();
        }
        let bytes = self.space.tables.source.bytes(entry.frame());
        Ok(Latched { ptep: walked.ptep, bytes })
    }

    /// A guard for reading of a page that has very many.
    #[cold]
    #[inline(never)]
    fn latch_in_crowd<'w>(
        &'w self,
        walked: &Walked<'w, F>,
        latch: Latch,
    ) -> core::result::Result<Latched<'w>, Trap> {
        let latched = |ptep, entry: Entry| Latched {
            ptep,
            bytes: self.space.tables.source.bytes(entry.frame()),
        };
        let mut backoff = Backoff::default();
        loop {
            match self.join_crowd(walked)? {
                Joined::Crowd(readers, entry) => return Ok(latched(readers, entry)),
                Joined::Full => drop(self.wait(walked, latch, &mut backoff)?),
                Joined::Changed => backoff.wait(),
            }
            match self.settle(walked, Access::Read, latch) {
                Err(Trap::Crowded) => {}
                settled => return Ok(latched(walked.ptep, settled?)),
            }
        }
    }
}

/// A reader without a guard that sees a guard's write sees its latch, too. A latch by
/// compare-and-swap alone lets stores after it be seen before it, but for processors like x86's.
#[inline(always)]
fn latch_before_writes() {
    // Release: pairs with the fence in `Region::read_optimistic`.
    fence(Ordering::Release);
}

/// A page whose word is latched.
pub(super) struct Latched<'w> {
    ptep: &'w AtomicU64,
    bytes: NonNull<u8>,
}

impl<'t, F: FrameSource, T: TableOps> Region<'t, F, T> {
    /// Its first address.
    pub fn start(&self) -> usize {
        self.first_page * FRAME_SIZE
    }

    /// How many pages were mapped.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Its addresses, as they were mapped.
    #[doc(hidden)]
    pub fn extent(&self) -> Extent {
        Extent { start: self.start(), bytes: self.pages * FRAME_SIZE }
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn is_side_by_side(&self) -> bool {
        self.middle.is_some()
    }

    /// The thread's part in the space.
    #[doc(hidden)]
    pub fn task(&self) -> &'t Task<'t, F, T> {
        self.task
    }

    #[inline(always)]
    fn middle(&self, page: usize) -> Option<Middle<'_>> {
        if page >= self.pages {
            return None;
        }
        let page = self.first_page + page;
        match self.middle {
            // SAFETY: the page is the region's, of whose granules all have their slot in the row.
            Some(row) => Some(unsafe { row.middle(page >> F::TABLE_BITS) }),
            None => self.task.space.tables.middle(page >> F::TABLE_BITS),
        }
    }

    /// A page's word, if it has one yet.
    #[inline(always)]
    pub(super) fn look(&self, page: usize) -> Option<Walked<'_, F>> {
        let tables = &self.task.space.tables;
        let middle = self.middle(page)?;
        let pmd = tables.ops.ptep_get(middle.pmdp);
        if pmd.state() != State::Table {
            return None;
        }
        // SAFETY: the region is held, and with it its tables.
        let leaf = unsafe { Table::at(self.source, pmd.frame()) };
        let page = self.first_page + page;
        Some(Walked { ptep: leaf.entry(page), rights: pmd.rights(), leaf, page })
    }

    /// Where a page's frame is, if it can be read as it is: two dependent loads, the word of the
    /// 2 MiB and that of the page (in a region of more than 1 GiB three, where other regions came before it).
    ///
    /// Nothing keeps it there: bytes read at the pointer are the page's if the page was neither unmapped nor replaced
    /// meanwhile. The memory itself can always be read.
    #[doc(hidden)]
    #[inline]
    pub fn translate(&self, page: usize) -> Option<NonNull<u8>> {
        let Some(walked) = self.look(page) else { return self.translate_huge(page) };
        self.translate_entry(walked.ptep)
    }

    #[inline(always)]
    pub(super) fn translate_entry(&self, ptep: &AtomicU64) -> Option<NonNull<u8>> {
        let entry = self.task.space.tables.ops.ptep_get(ptep);
        entry.can_read().then(|| self.source.bytes(entry.frame()))
    }

    /// The same where there is no table of pages.
    fn translate_huge(&self, page: usize) -> Option<NonNull<u8>> {
        let pmd = self.task.space.tables.ops.ptep_get(self.middle(page)?.pmdp);
        let index = (self.first_page + page) % F::ENTRIES;
        pmd.can_read().then(|| self.source.bytes(Pfn(pmd.frame().0 + index)))
    }

    /// Makes a page present and ready for such an access, as [`Task::fault`].
    ///
    /// # Errors
    /// As [`Task::fault`].
    #[inline]
    pub fn fault(&self, page: usize, access: Access) -> Result<NonNull<u8>> {
        let settled = match self.look(page) {
            Some(walked) => {
                self.task.settle(&walked, access, Latch::None).map(|entry| entry.frame())
            }
            None => self.fault_without_table(page, access),
        };
        let at = settled.map(|frame| self.source.bytes(frame));
        at.map_err(|trap| self.error(trap, page, access))
    }

    #[cold]
    #[inline(never)]
    fn fault_without_table(&self, page: usize, access: Access) -> core::result::Result<Pfn, Trap> {
        let middle = self.middle(page).ok_or(Trap::Unmapped)?;
        if let Some(frame) = self.task.fault_huge(middle, self.first_page + page, access)? {
            return Ok(frame);
        }
        let walked = self.task.walk_from(middle, self.first_page + page)?;
        self.task.settle(&walked, access, Latch::None).map(|entry| entry.frame())
    }

    /// Reads a page's eight-byte words without a guard: `read` is called with something to load
    /// them from, again if somebody wrote to the page meanwhile, and its last result is returned. Pages that were never
    /// touched are faulted in for reading.
    ///
    /// The bytes that `read` sees may be torn when it will be called again: it must not rely on them before this
    /// returns. It may use the page by other ways meanwhile, and the last words it is given may be a copy.
    ///
    /// # Errors
    /// As [`Task::fault`].
    #[inline(always)]
    pub fn read_optimistic<R>(
        &self,
        page: usize,
        mut read: impl FnMut(Words<'_>) -> R,
    ) -> Result<R> {
        match self.read_optimistic_at_once(page, &mut read) {
            Some(result) => Ok(result),
            None => self.read_copied(page, read),
        }
    }

    /// As [`Region::read_optimistic`], of a page that stays in memory and unchanged during the call.
    #[doc(hidden)]
    #[inline(always)]
    pub fn read_optimistic_at_once<R>(
        &self,
        page: usize,
        read: impl FnMut(Words<'_>) -> R,
    ) -> Option<R> {
        self.read_entry_optimistic(self.look(page)?.ptep, read)
    }

    #[inline(always)]
    pub(super) fn read_entry_optimistic<R>(
        &self,
        ptep: &AtomicU64,
        mut read: impl FnMut(Words<'_>) -> R,
    ) -> Option<R> {
        for _ in 0..OPTIMISTIC_TRIES {
            let before = self.task.space.tables.ops.ptep_get(ptep);
            if !before.can_read() || before.latch() == EXCLUSIVE {
                return None;
            }
            let result = read(Words::of(&self.source.bytes(before.frame())));
            // Acquire: the loads of the words come before the load of the entry below.
            fence(Ordering::Acquire);
            // Relaxed: the fence orders it.
            let after = Entry::from(ptep.load(Ordering::Relaxed));
            if before.is_same_content(after) {
                if !after.accessed() {
                    self.mark_accessed(ptep, after);
                }
                return Some(result);
            }
        }
        None
    }

    /// Reclaim is to know that a page is used: once in each of its rounds.
    #[cold]
    #[inline(never)]
    fn mark_accessed(&self, ptep: &AtomicU64, entry: Entry) {
        // Where it changes meanwhile, the next reader marks it.
        let _ = self.task.space.tables.ops.ptep_cmpxchg(ptep, entry, entry.with_accessed(true));
    }

    /// A guard that shares a page with others that read it, and keeps it in place. Waits for one that
    /// writes: if it is the calling thread's own, for ever.
    ///
    /// # Errors
    /// As [`Task::fault`].
    #[inline(always)]
    pub fn read(&self, page: usize) -> Result<ReadGuard<'_, F, T>> {
        let latched = self.guard(page, Access::Read, Latch::Wait)?;
        Ok(ReadGuard { latched, task: self.task })
    }

    /// A guard that has a page alone, and keeps it in place. Waits for all others: a thread that asks
    /// for a page of which it has a guard itself waits for ever.
    ///
    /// # Errors
    /// As [`Task::fault`].
    #[inline(always)]
    pub fn write(&self, page: usize) -> Result<WriteGuard<'_, F, T>> {
        let latched = self.guard(page, Access::Write, Latch::Wait)?;
        Ok(WriteGuard { latched, task: self.task })
    }

    /// As [`Region::read`], without waiting.
    ///
    /// # Errors
    /// [`VmError::Busy`], and as [`Task::fault`].
    pub fn try_read(&self, page: usize) -> Result<ReadGuard<'_, F, T>> {
        let latched = self.guard(page, Access::Read, Latch::Try)?;
        Ok(ReadGuard { latched, task: self.task })
    }

    /// As [`Region::write`], without waiting.
    ///
    /// # Errors
    /// [`VmError::Busy`], and as [`Task::fault`].
    pub fn try_write(&self, page: usize) -> Result<WriteGuard<'_, F, T>> {
        let latched = self.guard(page, Access::Write, Latch::Try)?;
        Ok(WriteGuard { latched, task: self.task })
    }

    #[inline(always)]
    fn guard(&self, page: usize, access: Access, latch: Latch) -> Result<Latched<'_>> {
        match self.guard_at_once(page, access) {
            Some(latched) => Ok(latched),
            None => self.guard_fully(page, access, latch),
        }
    }

    /// A guard of a page that can be used as it is, and that no other guard excludes.
    #[inline(always)]
    fn guard_at_once(&self, page: usize, access: Access) -> Option<Latched<'_>> {
        self.latch_at_once(self.look(page)?.ptep, access)
    }

    #[inline(always)]
    fn latch_at_once<'r>(&'r self, ptep: &'r AtomicU64, access: Access) -> Option<Latched<'r>> {
        let ops = &self.task.space.tables.ops;
        let entry = ops.ptep_get(ptep);
        let held = match access {
            Access::Read if entry.can_read() && entry.latch() < CROWDED => entry.held_for_reading(),
            Access::Write if entry.can_write() && entry.latch() == 0 => entry.held_for_writing(),
            _ => return None,
        };
        ops.ptep_cmpxchg(ptep, entry, held).ok()?;
        if access == Access::Write {
            latch_before_writes();
        }
        Some(Latched { ptep, bytes: self.source.bytes(entry.frame()) })
    }

    /// A guard for reading of a page that is there and that nobody writes to, by its word in the region's tables.
    #[inline(always)]
    pub(super) fn read_entry_at_once<'r>(
        &'r self,
        ptep: &'r AtomicU64,
    ) -> Option<ReadGuard<'r, F, T>> {
        let latched = self.latch_at_once(ptep, Access::Read)?;
        Some(ReadGuard { latched, task: self.task })
    }

    #[cold]
    #[inline(never)]
    fn guard_fully(&self, page: usize, access: Access, latch: Latch) -> Result<Latched<'_>> {
        let walked = self.walk(page);
        let latched = walked.and_then(|walked| self.task.latch_walked(&walked, access, latch));
        latched.map_err(|trap| self.error(trap, page, access))
    }

    /// The guard of a page whose word has just been latched for writing.
    #[inline]
    pub(super) fn held_for_writing<'r>(
        &'r self,
        walked: &Walked<'r, F>,
        frame: Pfn,
    ) -> WriteGuard<'r, F, T> {
        latch_before_writes();
        let latched = Latched { ptep: walked.ptep, bytes: self.source.bytes(frame) };
        WriteGuard { latched, task: self.task }
    }

    #[inline]
    pub(super) fn walk(&self, page: usize) -> core::result::Result<Walked<'_, F>, Trap> {
        match self.look(page) {
            Some(walked) => Ok(walked),
            None => self.walk_slowly(page),
        }
    }

    #[cold]
    #[inline(never)]
    fn walk_slowly(&self, page: usize) -> core::result::Result<Walked<'_, F>, Trap> {
        let middle = self.middle(page).ok_or(Trap::Unmapped)?;
        self.task.walk_from(middle, self.first_page + page)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, trap: Trap, page: usize, access: Access) -> VmError {
        let address = page.saturating_add(self.first_page).saturating_mul(FRAME_SIZE);
        trap.at(Place { address, region: Some(self.extent()) }, access)
    }
}

impl<F: FrameSource, T: TableOps> Drop for Region<'_, F, T> {
    fn drop(&mut self) {
        self.task.let_go_region(self.place);
    }
}

/// A page as words, which others may be writing.
#[derive(Clone, Copy, Debug)]
pub struct Words<'p> {
    words: &'p NonNull<u8>,
}

impl<'p> Words<'p> {
    /// Words of a page.
    pub const COUNT: usize = FRAME_SIZE / size_of::<u64>();

    #[inline]
    pub(super) fn of(bytes: &'p NonNull<u8>) -> Words<'p> {
        Words { words: bytes }
    }

    /// The word of this number, modulo [`Words::COUNT`], in the processor's byte order.
    #[inline]
    pub fn load(self, index: usize) -> u64 {
        let word = self.words.as_ptr().cast::<u64>().wrapping_add(index % Self::COUNT);
        // SAFETY: the word lies within a frame, whose memory stays readable under any owner. Volatile:
        // it is loaded once, whole. The page's entry says, behind a fence, whether it is good.
        unsafe { word.read_volatile() }
    }
}

/// See [`Region::read`].
pub struct ReadGuard<'r, F: FrameSource, T: TableOps> {
    pub(super) latched: Latched<'r>,
    pub(super) task: &'r Task<'r, F, T>,
}

impl<F: FrameSource, T: TableOps> Deref for ReadGuard<'_, F, T> {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        // SAFETY: a frame, which stays this page's and is not written while it is latched.
        unsafe { self.latched.bytes.cast().as_ref() }
    }
}

impl<F: FrameSource, T: TableOps> Drop for ReadGuard<'_, F, T> {
    #[inline]
    fn drop(&mut self) {
        self.task.end_read(self.latched.ptep);
    }
}

impl<F: FrameSource, T: TableOps> fmt::Debug for ReadGuard<'_, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadGuard({:p})", self.latched.bytes)
    }
}

/// See [`Region::write`].
pub struct WriteGuard<'r, F: FrameSource, T: TableOps> {
    latched: Latched<'r>,
    task: &'r Task<'r, F, T>,
}

impl<F: FrameSource, T: TableOps> Deref for WriteGuard<'_, F, T> {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        // SAFETY: a frame, which stays this page's and is this guard's alone while it is latched.
        unsafe { self.latched.bytes.cast().as_ref() }
    }
}

impl<F: FrameSource, T: TableOps> DerefMut for WriteGuard<'_, F, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Page {
        // SAFETY: as above.
        unsafe { self.latched.bytes.cast().as_mut() }
    }
}

impl<F: FrameSource, T: TableOps> Drop for WriteGuard<'_, F, T> {
    #[inline]
    fn drop(&mut self) {
        self.task.end_write(self.latched.ptep);
    }
}

impl<F: FrameSource, T: TableOps> fmt::Debug for WriteGuard<'_, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteGuard({:p})", self.latched.bytes)
    }
}
