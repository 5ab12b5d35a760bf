//! Pages that are not in memory: how they leave, and how a fault brings them back.
//!
//! A [`Pager`](crate::page_table::pager::Pager) is how spaces call reclaim. It is told of pages that came
//! in, in batches, chooses some to go, writes them out, and reads them when a fault meets them. Without one
//! (`MemMap::with_pager`) nothing of this is done, and a fault pays one predicted branch for it.
//!
//! ```text
//!   the pager's thread, a Task of its own         a fault meanwhile
//!   1  begin_swap_out: Present -> InTransit       InTransit -> Present: it stays
//!   2  writes the frame to its slot               (end_swap_out then fails)
//!   3  end_swap_out: InTransit -> Swapped,        claims the word (latch), reads into a frame of
//!      and the frame is free                      its own, Swapped -> Present
//! ```
//!
//! The note of a page's content, a checksum, is made in 3: before, a fault may take the page back and have it
//! written. Until that is done the word is claimed, as if the page were read ([`Task::end_swap_out_noting`]).
//!
//! A page that nobody wrote to since it came in ([`Transit::is_dirty`]) need not be written: its copy is good.
//! A *shadow* is the same but for the number, which is then the pager's to give a meaning: it says where the
//! page is by other means (a file, a table of its own), and the number tells when it was evicted.
//!
//! An access is seen in the entry: guards and faults mark it as they latch it, at no further cost,
//! and [`Task::test_and_clear_young`] asks. [`super::Region::translate`] does not mark.

use super::fault::Walked;
use super::history::Batch;
use super::region::Page;
use super::rss::Counter;
use super::task::Task;
use super::VmSpace;
use crate::page_table::entry::EXCLUSIVE;
use crate::page_table::pager::{Evicted, LruPage, SpaceId};
use crate::page_table::tables::{sharers_in, FrameList, IN_TRANSIT};
use crate::page_table::{Entry, FrameSource, State, TableOps, Tables};
use pumice_frames::addr::Pfn;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// A page on its way out, begun by [`Task::begin_swap_out`], and to be ended or cancelled once, in its space.
///
/// While there is one, no other of the same frame begins ([`IN_TRANSIT`]). So a page's word that says *in transit* with
/// this frame is the one that began this, whatever became of the page, its tables and its frame in between.
#[derive(Debug)]
#[must_use = "a page in transit is ended or cancelled"]
pub(crate) struct Transit {
    page: usize,
    entry: Entry,
}

impl Transit {
    /// Its number and frame.
    pub fn page(&self) -> LruPage {
        LruPage { page: self.page, frame: self.entry.frame() }
    }

    /// Whether it was written since it came in.
    pub fn is_dirty(&self) -> bool {
        self.entry.dirty()
    }

    /// Whether a word is still the one that began this. `protect` may have changed its rights. A thread that asked
    /// whether the page is young when it was there may have taken *accessed* off it since.
    fn is_still(&self, word: Entry) -> bool {
        word.state() == State::InTransit && word.frame() == self.entry.frame()
    }
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Notes that a page came in, for the pager if there is one.
    #[inline]
    pub(super) fn lru_add(&self, page: usize, frame: Pfn) {
        if self.is_paged {
            self.add_to_batch(LruPage { page, frame });
        }
    }

    #[inline(never)]
    fn add_to_batch(&self, page: LruPage) {
        if self.with_batch(|batch| batch.add(page)) {
            self.lru_drain();
        }
    }

    /// Tells the pager of the pages it has not been told of, as happens by itself when a batch is full and
    /// when the task ends.
    #[doc(hidden)]
    pub fn lru_drain(&self) {
        let Some(pager) = self.space.tables.source.pager() else { return };
        // A copy: a policy of the program's is told, which may come back to this task.
        let (pages, len) = self.with_batch(Batch::take);
        if len > 0 {
            // Where it can't be told, walks over the tables find the pages.
            self.let_others_run(|| pager.lru_add(self.space.id(), &pages[..len]));
        }
    }

    /// Whether a page was accessed since this was last asked; `None` if it has no frame. A page of which
    /// somebody has a guard is being accessed. The pages of a huge one have one answer, given once.
    #[doc(hidden)]
    pub fn test_and_clear_young(&self, page: usize) -> Option<bool> {
        let (ptep, entry) = self.present(page)?;
        Some(self.space.tables.ops.ptep_test_and_clear_young(ptep) || entry.latch() != 0)
    }

    /// The frame of a page that is *mapped*: its entry is present, so that there is a guard of it to be had without a
    /// fault. This is what reclaim means by the word. A page in transit is unmapped, though it has its frame still.
    pub fn mapped(&self, page: usize) -> Option<Pfn> {
        let (_, entry) = self.present(page)?;
        let is_huge = self.is_huge(page);
        Some(if is_huge { Pfn(entry.frame().0 + page % F::ENTRIES) } else { entry.frame() })
    }

    /// Whether a page is part of a huge one.
    pub(crate) fn is_huge(&self, page: usize) -> bool {
        let pmd = self.middle(page).map(|middle| self.space.tables.ops.ptep_get(middle.pmdp));
        pmd.is_ok_and(|pmd| pmd.state() == State::Present)
    }

    /// The word that has a page's frame, its own or that of the huge page it is in; `None` if it has none.
    fn present(&self, page: usize) -> Option<(&AtomicU64, Entry)> {
        let ops = &self.space.tables.ops;
        let middle = self.middle(page).ok()?;
        let pmd = ops.ptep_get(middle.pmdp);
        let ptep = match pmd.state() {
            // SAFETY: the VMA is held, and with it its tables.
            State::Table => unsafe { self.space.tables.leaf(pmd) }.entry(page),
            _ => middle.pmdp,
        };
        let entry = ops.ptep_get(ptep);
        (entry.state() == State::Present).then_some((ptep, entry))
    }

    /// Says of the pages that have frames where they are, in the order of their numbers from `page` on, up to the end
    /// of the first table or huge page that there is. Where to go on from; 0 at the end.
    pub(crate) fn scan_present(&self, page: usize, mut found: impl FnMut(LruPage)) -> usize {
        let tables = &self.space.tables;
        let mut page = page;
        while page < Tables::<F, T>::PAGES {
            let slot = page >> (2 * F::TABLE_BITS);
            let Some(next) = tables.next_slot(slot) else { break };
            page = page.max(next << (2 * F::TABLE_BITS));
            let granule = page >> F::TABLE_BITS;
            let end = (granule + 1) << F::TABLE_BITS;
            let pmd = self.middle(page).ok().map(|middle| tables.ops.ptep_get(middle.pmdp));
            match pmd {
                Some(pmd) if pmd.state() == State::Table => {
                    // SAFETY: the VMA is held, and with it its tables.
                    let leaf = unsafe { tables.leaf(pmd) };
                    for page in page..end {
                        let entry = tables.ops.ptep_get(leaf.entry(page));
                        if entry.state() == State::Present {
                            found(LruPage { page, frame: entry.frame() });
                        }
                    }
                }
                Some(huge) if huge.state() == State::Present => {
                    for page in page..end {
                        found(LruPage { page, frame: Pfn(huge.frame().0 + page % F::ENTRIES) });
                    }
                }
                _ => {
                    page = end;
                    continue;
                }
            }
            return if end < Tables::<F, T>::PAGES { end } else { 0 };
        }
        0
    }

    /// Begins to evict a page: `None` if it has no frame of its own, somebody has a guard of it, or it was taken
    /// back from a thread that began before and has not ended that. From here on it can't be written before a fault
    /// brings it back, which ends this.
    ///
    /// Its bytes are for I/O to read: [`FrameSource::bytes`] says where they are, and they can be read until this is
    /// ended or cancelled, even if the frame has another owner by then. Writes by a pointer of [`Task::fault`] may come
    /// meanwhile and are lost; a guard is there for that.
    pub(crate) fn begin_swap_out(&self, page: usize) -> Option<Transit> {
        let walked = self.walk_if_there(page)?;
        let tables = &self.space.tables;
        let old = tables.ops.ptep_get(walked.ptep);
        if old.state() != State::Present || old.latch() != 0 {
            return None;
        }
        // Acquire: pairs with `end_transit`: the word that the earlier one may have met is another's by then.
        let word = tables.source.sharers(old.frame()).fetch_or(IN_TRANSIT, Ordering::Acquire);
        if word & IN_TRANSIT != 0 {
            return None;
        }
        // Before it may be freed: a thread that takes the page back can unmap it, and its frame's block may go.
        tables.source.hold_readable(old.frame());
        // Another version: readers without a guard see that it went.
        let entry = old.with_state(State::InTransit).with_next_version();
        let transit = Transit { page, entry };
        if tables.ops.ptep_cmpxchg(walked.ptep, old, entry).is_err() {
            self.end_transit(&transit);
            return None;
        }
        // Shared frames belong to other spaces, too, and are not evicted. Acquire: pairs with `unshare`.
        let sharers = || sharers_in(tables.source.sharers(entry.frame()).load(Ordering::Acquire));
        if entry.cow() && sharers() > 0 {
            self.cancel_swap_out(transit);
            return None;
        }
        Some(transit)
    }

    /// Others of the same frame may begin: nothing asks about this one's word any more.
    fn end_transit(&self, transit: &Transit) {
        let frame = transit.entry.frame();
        self.space.tables.source.let_go_readable(frame);
        // Release: pairs with the Acquire in `begin_swap_out`.
        self.space.tables.source.sharers(frame).fetch_and(!IN_TRANSIT, Ordering::Release);
    }

    /// Ends it: the page is where `to` says, and its frame is free.
    ///
    /// # Errors
    /// `to` again, if a fault brought the page back or it was unmapped. It is then the caller's.
    pub(crate) fn end_swap_out(&self, transit: Transit, to: Evicted) -> Result<(), Evicted> {
        let out = to.entry(transit.entry);
        let went = self.change_if_still(&transit, |now| out.with_rights(now.rights()));
        self.end_transit(&transit);
        if !went {
            return Err(to);
        }
        self.put_frame(transit.entry.frame(), transit.entry.cow());
        self.count(self.space.paged, -1);
        self.count(Counter::Swap, to.in_swap());
        Ok(())
    }

    /// As [`Task::end_swap_out`], of a page that is read back by what `note` notes of its bytes. It has gone by then,
    /// so nobody can write it, and its word is claimed as by a reader, so nobody reads it before. `note` uses no
    /// task.
    ///
    /// # Errors
    /// As there; nothing is noted.
    pub(crate) fn end_swap_out_noting(
        &self,
        transit: Transit,
        to: Evicted,
        note: impl FnOnce(&Page),
    ) -> Result<(), Evicted> {
        let gone = to.entry(transit.entry).with_latch(EXCLUSIVE);
        let (frame, is_cow) = (transit.entry.frame(), transit.entry.cow());
        let walked = self.walk_if_there(transit.page);
        let claimed = walked.and_then(|walked| {
            let now =
                self.change_word_if_still(&walked, &transit, |now| gone.with_rights(now.rights()))?;
            Some((walked, now))
        });
        let Some((walked, mut now)) = claimed else {
            self.end_transit(&transit);
            return Err(to);
        };
        // SAFETY: a frame, that was the page's, and is this call's until it is put back.
        note(unsafe { self.space.tables.source.bytes(frame).cast().as_ref() });
        self.count(self.space.paged, -1);
        self.count(Counter::Swap, to.in_swap());
        // The VMA is held since the walk, and with it the word.
        while let Err(found) =
            self.space.tables.ops.ptep_cmpxchg(walked.ptep, now, now.with_latch(0))
        {
            if Evicted::of(found) != Some(to) || found.latch() != EXCLUSIVE {
                // `unmap`, which has left to this what was being noted.
                self.give_up_evicted(now);
                break;
            }
            // `protect`.
            now = found;
        }
        self.end_transit(&transit);
        self.put_frame(frame, is_cow);
        Ok(())
    }

    /// Takes a page out to where `to` says, if it is clean and nobody uses it. Whether it went.
    #[doc(hidden)]
    pub fn evict_clean(&self, page: usize, to: Evicted) -> bool {
        let Some(transit) = self.begin_swap_out(page) else { return false };
        if transit.is_dirty() {
            self.cancel_swap_out(transit);
            return false;
        }
        self.end_swap_out(transit, to).is_ok()
    }

    /// Leaves the page where it is.
    pub(crate) fn cancel_swap_out(&self, transit: Transit) {
        let _ = self.change_if_still(&transit, |now| now.with_state(State::Present));
        self.end_transit(&transit);
    }

    /// Changes a page's word, unless it is no more the one that began the transit. Whether it did.
    fn change_if_still(&self, transit: &Transit, change: impl Fn(Entry) -> Entry) -> bool {
        let walked = self.walk_if_there(transit.page);
        walked.is_some_and(|walked| self.change_word_if_still(&walked, transit, change).is_some())
    }

    /// As [`Task::change_if_still`], of a page whose word is there. Returns its word now.
    fn change_word_if_still(
        &self,
        walked: &Walked<'_, F>,
        transit: &Transit,
        change: impl Fn(Entry) -> Entry,
    ) -> Option<Entry> {
        let ops = &self.space.tables.ops;
        let mut now = ops.ptep_get(walked.ptep);
        while transit.is_still(now) {
            let next = change(now);
            match ops.ptep_cmpxchg(walked.ptep, now, next) {
                Ok(()) => return Some(next),
                Err(found) => now = found,
            }
        }
        None
    }

    /// Lets other threads have the frames of pages that this task has evicted: it gathers some of them.
    pub fn give_frames_back(&self) {
        self.with_list(|list| list.flush());
    }

    /// A page's word, if there is a table it is in. A huge page is split.
    pub(super) fn walk_if_there(&self, page: usize) -> Option<Walked<'_, F>> {
        let tables = &self.space.tables;
        let middle = self.middle(page).ok()?;
        let mut pmd = tables.ops.ptep_get(middle.pmdp);
        if pmd.state() == State::Present {
            self.split(middle, pmd).ok()?;
            pmd = tables.ops.ptep_get(middle.pmdp);
        }
        (pmd.state() == State::Table).then(|| {
            // SAFETY: the VMA is held, and with it its tables.
            let leaf = unsafe { tables.leaf(pmd) };
            Walked { ptep: leaf.entry(page), rights: pmd.rights(), leaf, page }
        })
    }

    /// Gives up the place of a page that is gone now.
    pub(super) fn give_up_evicted(&self, entry: Entry) {
        if let Some(from) = Evicted::of(entry) {
            self.count(Counter::Swap, -from.in_swap());
            self.space.free_evicted(entry);
        }
    }
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// Which space this is, for a pager: another may be it when this one is no more.
    #[doc(hidden)]
    pub fn id(&self) -> SpaceId {
        SpaceId(self.tables.root())
    }

    pub(super) fn free_evicted(&self, entry: Entry) {
        if let (Some(from), Some(pager)) = (Evicted::of(entry), self.tables.source.pager()) {
            pager.free(self.id(), from);
        }
    }
}
