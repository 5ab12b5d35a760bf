//! Pages of files: operations of a space that a page cache needs and anonymous memory does not.
//!
//! A region of a file is as any other, but that its pages begin as shadows (number 0): they are elsewhere, and the
//! pager knows where. So a fault finds nothing new, and frames for them need not be zeroed. This adds reads that begin
//! and end at different times ([`Task::begin_fill_all`]), so that one thread can have many pages on their way; a guard
//! that says whether its page was clean; and pages that are forgotten, as where a file is cut off.

use core::ops::Range;

use super::error::Trap;
use super::fault::Walked;
use super::region::{ReadGuard, Region, WriteGuard};
use super::rss::Counter;
use super::swap_in::{Claim, Use};
use super::task::Task;
use super::{Access, Result, VmSpace};
use crate::page_table::pager::{Evicted, ReadFailed, ReadResult};
use crate::page_table::tables::FrameList;
use crate::page_table::{Entry, FrameSource, Rights, State, TableOps, Tables};
use pumice_frames::addr::Pfn;
use pumice_frames::sys::lock::Backoff;

/// A page that is being read, begun by [`Task::begin_fill_all`], and to be ended once, in its space. A thread
/// that wants it waits.
#[derive(Debug)]
#[must_use = "a read is ended"]
pub struct Filling {
    page: usize,
    frame: Pfn,
    claimed: Entry,
    from: Evicted,
}

impl Filling {
    pub(super) fn of(page: usize, frame: Pfn, claimed: Entry, from: Evicted) -> Filling {
        Filling { page, frame, claimed, from }
    }

    pub(super) fn claimed(&self) -> Entry {
        self.claimed
    }

    /// Its number.
    pub fn page(&self) -> usize {
        self.page
    }

    /// The frame it is to be read into, which is nobody else's until the read is ended.
    pub fn frame(&self) -> Pfn {
        self.frame
    }

    /// Where it is.
    pub fn from(&self) -> Evicted {
        self.from
    }
}

/// The frame of a read that another has taken over ([`Task::take_over`]), to be ended when nothing is read into it.
#[derive(Debug)]
#[must_use = "a read is ended"]
pub struct Overtaken {
    page: usize,
    frame: Pfn,
}

impl Overtaken {
    /// The number of its page.
    pub fn page(&self) -> usize {
        self.page
    }
}

/// Whether a read that begins waits for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is done without the page if there is none.
    None,
    /// It waits as a fault does.
    Fault,
}

/// The outcome for a page that was to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// It was not in memory, or clean.
    Clean,
    /// It was in memory and dirty.
    Dirty,
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// An empty space for regions of files.
    ///
    /// # Errors
    /// As [`VmSpace::new`].
    #[doc(hidden)]
    pub fn for_files(frames: F, ops: T) -> Result<VmSpace<F, T>> {
        VmSpace::of(frames, ops, Counter::File)
    }
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Maps `bytes` (rounded up to pages) of a file: as [`Task::map`], but that the pages are where the space's pager
    /// says, under [`Evicted::Shadow`] with number 0.
    ///
    /// # Errors
    /// As [`Task::map`].
    pub(crate) fn map_file(&self, bytes: usize, rights: Rights) -> Result<usize> {
        self.map_granules(bytes, Entry::absent_file(rights), Entry::absent_file(rights))
    }

    /// Ends a read: the page is in memory, or where it was.
    ///
    /// # Safety
    /// It was begun in this space, and taken over in this space only; [`Task::begin_fill_all`] says what holds since.
    /// Nobody uses its frame any more.
    pub(crate) unsafe fn end_fill(&self, filling: Filling, read: ReadResult, used: Use) {
        let Filling { page, frame, claimed, from } = filling;
        let Some(walked) = self.walk_if_there(page) else {
            self.with_list(|list| list.put(frame));
            self.give_up_evicted(claimed);
            return;
        };
        let claim = Claim { ptep: walked.ptep, page, claimed, from };
        let read = read.map(|()| frame).map_err(|ReadFailed| {
            self.with_list(|list| list.put(frame));
            Trap::ReadFailed
        });
        // A thread that wants the page asks for it again, and is told the error.
        let _ = self.come_in(claim, read, used);
    }

    /// Takes a read over that may not end for long, to read the page into another frame. The first keeps its own frame
    /// only. The claim stays, so the page is nobody else's in between. `Err` without a frame.
    pub(crate) fn take_over(
        &self,
        filling: Filling,
    ) -> core::result::Result<(Filling, Overtaken), Filling> {
        match self.with_list(|list| list.get_any_at_once()) {
            Some(frame) => {
                let overtaken = Overtaken { page: filling.page, frame: filling.frame };
                Ok((Filling { frame, ..filling }, overtaken))
            }
            None => Err(filling),
        }
    }

    /// Ends a read that was taken over: its frame is free.
    ///
    /// # Safety
    /// It was begun in this space, and nobody uses its frame any more.
    pub(crate) unsafe fn end_overtaken(&self, overtaken: Overtaken) {
        self.with_list(|list| list.put(overtaken.frame));
    }

    /// Whether somebody reads a page.
    pub(crate) fn is_being_read(&self, page: usize) -> bool {
        let walked = self.walk_if_there(page);
        let entry = walked.map(|walked| self.space.tables.ops.ptep_get(walked.ptep));
        entry.is_some_and(|entry| Evicted::of(entry).is_some() && entry.latch() != 0)
    }

    /// Says of pages that are dirty which they are, in the order of their numbers. A page that is held for writing is,
    /// and a page in transit that will be found dirty.
    pub(crate) fn scan_dirty(&self, pages: Range<usize>, mut found: impl FnMut(usize)) {
        let ops = &self.space.tables.ops;
        self.scan(pages, |page, ptep| {
            let entry = ops.ptep_get(ptep);
            if matches!(entry.state(), State::Present | State::InTransit) && entry.dirty() {
                found(page);
            }
        });
    }

    /// As [`Task::forget`], but only pages that it need not wait for.
    pub(crate) fn forget_idle(&self, pages: Range<usize>) -> usize {
        let mut dirty = 0;
        self.scan(pages, |page, _| {
            dirty += usize::from(matches!(self.try_forget(page), Some(Forgotten::Dirty)));
        });
        dirty
    }

    /// Forgets pages, in memory or not: they are as they were when their region was mapped. Waits for those who have
    /// guards of them, or read them; `waits` is called each time, with the first of these. How many were dirty.
    pub(crate) fn forget(&self, pages: Range<usize>, mut waits: impl FnMut(usize)) -> usize {
        let mut dirty = 0;
        let mut later = [0; 64];
        let mut start = pages.start;
        while start < pages.end {
            let end = pages.end.min((start | (F::ENTRIES - 1)) + 1);
            let mut len;
            let mut backoff = Backoff::default();
            loop {
                len = 0;
                self.scan(start..end, |page, _| {
                    if len < later.len() {
                        match self.try_forget(page) {
                            Some(Forgotten::Dirty) => dirty += 1,
                            Some(Forgotten::Clean) => {}
                            None => {
                                later[len] = page;
                                len += 1;
                            }
                        }
                    }
                });
                if len == 0 {
                    break;
                }
                waits(later[0]);
                backoff.wait();
                if backoff.waits() > 64 && !cfg!(any(loom, shuttle)) {
                    pumice_frames::sys::thread::sleep(core::time::Duration::from_micros(50));
                }
            }
            start = end;
        }
        dirty
    }

    /// Forgets a page: `None` if somebody has a guard of it, reads it, or writes what its frame was.
    fn try_forget(&self, page: usize) -> Option<Forgotten> {
        let ops = &self.space.tables.ops;
        let Some(walked) = self.walk_if_there(page) else { return Some(Forgotten::Clean) };
        loop {
            let entry = ops.ptep_get(walked.ptep);
            match entry.state() {
                State::Shadow if entry.latch() != 0 => return None,
                State::Shadow if entry.number() == 0 => return Some(Forgotten::Clean),
                State::Shadow => {
                    let forgotten = entry.with_number(0).with_next_version();
                    if ops.ptep_cmpxchg(walked.ptep, entry, forgotten).is_ok() {
                        return Some(Forgotten::Clean);
                    }
                }
                State::Present if entry.latch() != 0 => return None,
                State::Present => {
                    // Its word has changed, or the frame's page before is still written: it is waited for.
                    let transit = self.begin_swap_out(page)?;
                    let was_dirty = transit.is_dirty();
                    if self.end_swap_out(transit, Evicted::Shadow(0)).is_ok() {
                        return Some(if was_dirty { Forgotten::Dirty } else { Forgotten::Clean });
                    }
                }
                State::InTransit => {
                    let back = entry.with_state(State::Present);
                    let _ = ops.ptep_cmpxchg(walked.ptep, entry, back);
                }
                _ => return Some(Forgotten::Clean),
            }
        }
    }

    /// Goes through the words of pages that have one.
    fn scan(
        &self,
        pages: Range<usize>,
        mut look: impl FnMut(usize, &pumice_io::sync::atomic::AtomicU64),
    ) {
        let tables = &self.space.tables;
        let mut page = pages.start;
        while page < pages.end.min(Tables::<F, T>::PAGES) {
            let end = pages.end.min((page | (F::ENTRIES - 1)) + 1);
            let pmd = self.middle(page).ok().map(|middle| tables.ops.ptep_get(middle.pmdp));
            if let Some(pmd) = pmd.filter(|pmd| pmd.state() == State::Table) {
                // SAFETY: the VMA is held, and with it its tables.
                let leaf = unsafe { tables.leaf(pmd) };
                (page..end).for_each(|page| look(page, leaf.entry(page)));
            }
            page = end;
        }
    }
}

impl<F: FrameSource, T: TableOps> Region<'_, F, T> {
    /// A guard for reading of a page that is there and that nobody writes to.
    #[doc(hidden)]
    #[inline(always)]
    pub fn read_at_once(&self, page: usize) -> Option<ReadGuard<'_, F, T>> {
        self.entry(page).read_at_once()
    }

    /// As [`Region::try_write`], and whether the page was clean before.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    #[inline]
    pub fn try_write_noting(&self, page: usize) -> Result<(WriteGuard<'_, F, T>, Noted)> {
        let ops = &self.task().space.tables.ops;
        loop {
            let walked = self.walk(page).map_err(|trap| self.error(trap, page, Access::Write))?;
            let entry = ops.ptep_get(walked.ptep);
            if entry.can_write() && entry.latch() == 0 {
                if let Some(held) = self.hold_noting(&walked, entry) {
                    return Ok(held);
                }
            } else if entry.can_write() {
                return Err(self.error(Trap::Busy, page, Access::Write));
            } else if Evicted::of(entry).is_some() || entry.state() == State::InTransit {
                // A guard for writing would leave it dirty.
                drop(self.try_read(page)?);
            } else {
                // Not a file's, or not to be written.
                return Ok((self.try_write(page)?, Noted::Dirty));
            }
        }
    }

    /// Holds a page for writing whose word says that it can be held, if that is its word still; and whether it was
    /// clean.
    #[inline]
    pub(super) fn hold_noting<'r>(
        &'r self,
        walked: &Walked<'r, F>,
        entry: Entry,
    ) -> Option<(WriteGuard<'r, F, T>, Noted)> {
        let ops = &self.task().space.tables.ops;
        ops.ptep_cmpxchg(walked.ptep, entry, entry.held_for_writing()).ok()?;
        let noted = if entry.dirty() { Noted::Dirty } else { Noted::Clean };
        Some((self.held_for_writing(walked, entry.frame()), noted))
    }
}

/// The state of a page before its guard for writing was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Clean: as it is on the device.
    Clean,
    /// Dirty.
    Dirty,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::disk::Disk;
    use super::super::runs::Halt;
    use super::super::write_back::WriteFailed;
    use super::super::{MemMap, VmError};
    use super::*;
    use crate::page_table::Atomic;
    use pumice_frames::clear::Clearer;
    use pumice_frames::frame::Zone;
    use pumice_frames::sys::mem::Huge;

    /// Runs a test on a file of 700 pages, the last of a table of 512 among them.
    fn with_file(test: impl FnOnce(&Disk, &Task<'_, super::super::Frames<'_>, Atomic>, usize)) {
        let disk = Disk::file();
        let zone = Zone::new(8 << 20, 1, Huge::No).expect("a zone");
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&disk);
        let space = VmSpace::for_files(map.frames(), Atomic).expect("frames");
        let task = space.enter().expect("a task");
        let at =
            task.map_file(700 * pumice_frames::addr::FRAME_SIZE, Rights::READ_WRITE).expect("room");
        test(&disk, &task, at);
        assert_eq!(space.anon_rss(), 0);
    }

    #[test]
    fn pages_of_a_file_come_and_go_without_being_zeroed() {
        with_file(|disk, task, at| {
            let region = task.region(at).expect("mapped");
            let first = at / pumice_frames::addr::FRAME_SIZE;
            for page in [0, 511, 512, 699] {
                assert!(region.translate(page).is_none());
                let (mut guard, noted) = region.try_write_noting(page).expect("there");
                assert_eq!(noted, Noted::Clean);
                guard[0] = page as u8;
                drop(guard);
                assert_eq!(region.try_write_noting(page).expect("there").1, Noted::Dirty);
            }
            assert!(matches!(region.read(700), Err(VmError::Unmapped(_))));
            assert_eq!(task.space().rss(), 4);
            let mut dirty = Vec::new();
            task.scan_dirty(first..first + 700, |page| dirty.push(page - first));
            assert_eq!(dirty, [0, 511, 512, 699]);
            assert!(!task.evict_clean(first + 511, Evicted::Shadow(7)), "dirty");
            assert!(disk.write_back(task, first + 511, Err(WriteFailed)));
            assert!(!task.evict_clean(first + 511, Evicted::Shadow(7)), "dirty again");
            assert!(disk.write_back(task, first + 511, Ok(())));
            assert!(!disk.write_back(task, first + 511, Ok(())), "clean");
            assert!(task.evict_clean(first + 511, Evicted::Shadow(7)));
            assert_eq!((task.space().rss(), task.space().swap_rss()), (3, 0));
            assert_eq!(region.read(511).expect("in the file")[0], 255);
            assert_eq!(disk.first_word(first + 511) as u8, 255);
        });
    }

    #[test]
    fn who_reads_does_not_stand_against_write_back_and_who_writes_does() {
        with_file(|_, task, at| {
            let region = task.region(at).expect("mapped");
            let first = at / pumice_frames::addr::FRAME_SIZE;
            let held = region.try_write_noting(0).expect("there").0;
            assert!(task.begin_write_back(first).is_none());
            drop(held);
            let held = region.read(0).expect("there");
            let begun = task.begin_write_back(first).expect("dirty");
            assert!(region.try_read(0).is_ok());
            drop(held);
            assert!(matches!(region.try_write_noting(0), Err(VmError::Busy(_))));
            // SAFETY: it was begun by this task, and the region is held.
            unsafe { task.end_write_back(begun, Ok(())) };
            assert_eq!(region.try_write_noting(0).expect("there").1, Noted::Clean);
        });
    }

    #[test]
    fn a_page_that_is_being_filled_is_waited_for_and_filled_once() {
        with_file(|disk, task, at| {
            let region = task.region(at).expect("mapped");
            let first = at / pumice_frames::addr::FRAME_SIZE;
            let begin = |pages| {
                let mut begun = Vec::new();
                let halt =
                    task.begin_fill_all(pages, Patience::None, &mut |filling| begun.push(filling));
                (begun, halt)
            };
            let (mut begun, halt) = begin(first..first + 1);
            assert_eq!(halt, Halt::End);
            let filling = begun.pop().expect("it is not in memory");
            assert!(task.is_being_read(first));
            assert_eq!(begin(first..first + 2).1, Halt::BeingRead);
            assert!(matches!(region.try_read(0), Err(VmError::Busy(_))));
            // SAFETY: it was begun by this task, the region is held, and nothing reads into the frame.
            unsafe { task.end_fill(filling, Err(ReadFailed), Use::None) };
            assert!(region.try_read(0).is_ok());
            assert_eq!(begin(first..first + 2).1, Halt::InMemory);
            assert_eq!(begin(first + 700..first + 701).1, Halt::InMemory, "none at all");
            disk.fill(task, first + 600..first + 601);
            assert!(region.translate(600).is_some());
            // Those of two tables, up to one that is there.
            disk.fill(task, first + 500..first + 620);
            assert!((500..601).all(|page| region.translate(page).is_some()));
            assert!(region.translate(601).is_none() && region.translate(499).is_none());
            assert_eq!(task.space().rss(), 102);
        });
    }

    #[test]
    fn what_is_forgotten_is_as_it_was_at_first() {
        with_file(|disk, task, at| {
            let region = task.region(at).expect("mapped");
            let first = at / pumice_frames::addr::FRAME_SIZE;
            for page in 0..600 {
                region.try_write_noting(page).expect("there").0[0] = 7;
                disk.write_back(task, first + page, Ok(()));
            }
            assert!(task.evict_clean(first + 3, Evicted::Shadow(7)));
            region.try_write_noting(599).expect("there").0[0] = 8;
            assert_eq!(task.forget(first + 2..first + 700, |_| ()), 1);
            assert_eq!(task.space().rss(), 2);
            // It is in the file.
            assert_eq!(region.read(599).expect("there")[0], 7);
            let mut times = 0;
            let held = std::cell::Cell::new(Some(region.read(0).expect("there")));
            let dirty = task.forget(first..first + 1, |page| {
                assert_eq!(page, first);
                times += 1;
                drop(held.take());
            });
            assert_eq!((dirty, times), (0, 1));
        });
    }
}
