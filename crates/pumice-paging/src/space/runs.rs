//! Pages in a row: one walk for the words of a table, one batch of frames, one message to the pager.
//!
//! A file that is read or written in order comes and goes in runs of pages. Each page still has a word of its own,
//! which changes by one atomic operation as in [`super::file`], [`super::overwrite`] and [`super::swap_out`]. The rest
//! is done once for a run: the walk to the table ([`Near`]), frames, counts, and the pager's record.
//!
//! # Invariants
//! - A table that a walk has found is its granule's table for as long as the task holds the VMA. Each walk of the task
//!   may hold another, also one that fails. So a [`Near`] is empty before its task walks, and nothing else of the task
//!   walks while it is not.
//! - Pages of a run are latched while the pager is told of them, and let go together. Nothing is waited for meanwhile,
//!   and no code of others runs.
//! - A clean page goes from *Present* to *Shadow* in one step where nobody has it. No bytes are read after that, so
//!   there is no transit to end ([`Task::evict_at_once`]).

use core::ops::Range;

use super::fault::Walked;
use super::file::{Filling, Noted, Patience};
use super::swap_in::Use;
use super::task::Task;
use super::write_back::WriteBack;
use crate::page_table::entry::EXCLUSIVE;
use crate::page_table::pager::{Arrived, Evicted, LruPage, ReadResult};
use crate::page_table::tables::{FrameList, Table};
use crate::page_table::{Entry, FrameSource, Rights, State, TableOps};
use pumice_frames::addr::Pfn;
use pumice_frames::frame::Gfp;
use pumice_io::sync::atomic::AtomicU64;

/// Pages of a run that are handled at once at most.
pub(super) const RUN: usize = if cfg!(any(loom, shuttle)) { 4 } else { 64 };

/// The table that the last walk ended in. See the module's top.
pub(crate) struct Near<F> {
    granule: usize,
    leaf: Option<Table<F>>,
}

impl<F: FrameSource> Near<F> {
    /// No table yet.
    pub const NONE: Near<F> = Near { granule: 0, leaf: None };

    /// A page's word, if it is in that table.
    #[inline(always)]
    fn word<'t>(&self, page: usize) -> Option<&'t AtomicU64> {
        let leaf = self.leaf.filter(|_| page >> F::TABLE_BITS == self.granule)?;
        Some(leaf.entry(page))
    }

    /// The word that a walk finds. The table that was known is not used any more: the walk may let go of its VMA.
    fn find<'t>(&mut self, walk: impl FnOnce() -> Option<Walked<'t, F>>) -> Option<&'t AtomicU64> {
        self.leaf = None;
        let walked = walk()?;
        (self.granule, self.leaf) = (walked.page >> F::TABLE_BITS, Some(walked.leaf));
        Some(walked.ptep)
    }
}

/// Why a run of reads ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// All were begun.
    End,
    /// The next page is in memory, or not mapped.
    InMemory,
    /// Somebody reads the next page.
    BeingRead,
    /// There is no frame for the next page.
    NoFrame,
}

/// Pages that have come, and whose words are held.
pub(super) struct Arrivals<'t> {
    len: usize,
    words: [Option<&'t AtomicU64>; RUN],
    pages: [Arrived; RUN],
}

impl<'t> Arrivals<'t> {
    pub fn new() -> Arrivals<'t> {
        let page = LruPage { page: 0, frame: Pfn(0) };
        let none = Arrived { page, from: Evicted::Shadow(0), used: Rights::empty() };
        Arrivals { len: 0, words: [None; RUN], pages: [none; RUN] }
    }

    pub fn is_full(&self) -> bool {
        self.len == RUN
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn add(&mut self, ptep: &'t AtomicU64, page: Arrived) {
        self.words[self.len] = Some(ptep);
        self.pages[self.len] = page;
        self.len += 1;
    }
}

/// Frames for a run.
pub(super) struct RunFrames {
    frames: [Pfn; RUN],
    next: usize,
    len: usize,
}

impl RunFrames {
    pub const NONE: RunFrames = RunFrames { frames: [Pfn(0); RUN], next: 0, len: 0 };

    fn take(&mut self) -> Option<Pfn> {
        let frame = *self.frames[..self.len].get(self.next)?;
        self.next += 1;
        Some(frame)
    }
}

/// A page that was claimed, and its frame.
#[derive(Clone, Copy)]
pub(super) struct Claimed<'t> {
    pub ptep: &'t AtomicU64,
    pub page: usize,
    pub frame: Pfn,
    pub claimed: Entry,
    pub from: Evicted,
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// A page's word, with a table for it. Without patience nobody is waited for, and no code of others runs, where
    /// there is no frame for a table: other pages are claimed.
    #[inline]
    fn walk_near<'t>(
        &'t self,
        near: &mut Near<F>,
        page: usize,
        patience: Patience,
    ) -> Option<&'t AtomicU64> {
        let walk = || {
            let _scope = matches!(patience, Patience::None).then(|| self.gfp_scope(Gfp::NOWAIT));
            self.walk(page).ok()
        };
        near.word(page).or_else(|| near.find(walk))
    }

    /// A page's word, if there is a table for it. A huge page is split.
    #[inline]
    fn walk_near_if_there<'t>(&'t self, near: &mut Near<F>, page: usize) -> Option<&'t AtomicU64> {
        near.word(page).or_else(|| near.find(|| self.walk_if_there(page)))
    }

    /// How many pages from one on can be claimed, of those in its table, as it looks.
    fn count_elsewhere(&self, near: &Near<F>, pages: Range<usize>) -> usize {
        let ops = &self.space.tables.ops;
        let is_free = |page: &usize| {
            let entry = near.word(*page).map(|ptep| ops.ptep_get(ptep));
            entry.is_some_and(|entry| Evicted::of(entry).is_some() && entry.latch() == 0)
        };
        pages.take(RUN).take_while(is_free).count()
    }

    /// Claims a page of a run, to be read or written whole, with a frame for it.
    pub(super) fn claim_next(
        &self,
        near: &mut Near<F>,
        frames: &mut RunFrames,
        (pages, patience): (Range<usize>, Patience),
        needs: Rights,
    ) -> Result<Claimed<'_>, Halt> {
        let page = pages.start;
        let ops = &self.space.tables.ops;
        let ptep = self.walk_near(near, page, patience).ok_or(Halt::InMemory)?;
        let mut entry = ops.ptep_get(ptep);
        let from = Evicted::of(entry).ok_or(Halt::InMemory)?;
        if entry.latch() != 0 {
            return Err(Halt::BeingRead);
        }
        if !entry.rights().contains(needs) {
            return Err(Halt::InMemory);
        }
        if frames.next == frames.len {
            let most = self.count_elsewhere(near, pages).max(1);
            frames.next = 0;
            frames.len = self.with_list(|list| list.get_many_at_once(&mut frames.frames[..most]));
        }
        let frame = match (frames.take(), patience) {
            (Some(frame), _) => frame,
            (None, Patience::Fault) => self.get_any().ok_or(Halt::NoFrame)?,
            (None, Patience::None) => return Err(Halt::NoFrame),
        };
        loop {
            let claimed = entry.with_latch(EXCLUSIVE);
            match ops.ptep_cmpxchg(ptep, entry, claimed) {
                Ok(()) => return Ok(Claimed { ptep, page, frame, claimed, from }),
                // `protect`.
                Err(found) if Evicted::of(found) == Some(from) && found.latch() == 0 => {
                    entry = found;
                }
                Err(_) => {
                    self.with_list(|list| list.put(frame));
                    return Err(Halt::BeingRead);
                }
            }
        }
    }

    /// Frames that a run did not need.
    pub(super) fn put_rest(&self, frames: &mut RunFrames) {
        while let Some(frame) = frames.take() {
            self.with_list(|list| list.put(frame));
        }
    }

    /// Claims pages in a row that are not in memory, with frames to read them into, up to the first that can't be
    /// begun. `patience` is for the first. From here to [`Task::end_fill_all`], which any task of the space may call,
    /// their region is not unmapped, or somebody holds it ([`super::Region`]).
    pub(crate) fn begin_fill_all(
        &self,
        pages: Range<usize>,
        patience: Patience,
        begun: &mut dyn FnMut(Filling),
    ) -> Halt {
        let (mut near, mut frames) = (Near::NONE, RunFrames::NONE);
        let mut halt = Halt::End;
        for page in pages.clone() {
            let patience = if page == pages.start { patience } else { Patience::None };
            let rest = (page..pages.end, patience);
            match self.claim_next(&mut near, &mut frames, rest, Rights::empty()) {
                Ok(Claimed { page, frame, claimed, from, .. }) => {
                    begun(Filling::of(page, frame, claimed, from));
                }
                Err(other) => {
                    halt = other;
                    break;
                }
            }
        }
        self.put_rest(&mut frames);
        halt
    }

    /// As [`Task::end_fill`], of pages of one region that are best in a row.
    ///
    /// # Safety
    /// As there, of each. One region: the words of pages that have come are used when later ones have been walked to.
    pub(crate) unsafe fn end_fill_all(
        &self,
        fillings: &mut dyn Iterator<Item = (Filling, ReadResult, Use)>,
    ) {
        let (mut near, mut came) = (Near::NONE, Arrivals::new());
        for (filling, read, used) in fillings {
            let page = filling.page();
            let word = match read {
                Ok(()) => self.walk_near_if_there(&mut near, page),
                Err(_) => None,
            };
            let Some(ptep) = word else {
                // It may walk, and tell the pager.
                near = Near::NONE;
                self.let_in(&mut came);
                // SAFETY: the caller's promise.
                unsafe { self.end_fill(filling, read, used) };
                continue;
            };
            let (frame, claimed, from) = (filling.frame(), filling.claimed(), filling.from());
            let claim = Claimed { ptep, page, frame, claimed, from };
            if self.install_claimed(&claim, (used, Noted::Clean)) {
                came.add(ptep, claim.arrived(used));
            }
            if came.is_full() {
                near = Near::NONE;
                self.let_in(&mut came);
            }
        }
        self.let_in(&mut came);
    }

    /// Has a claimed page be in its frame, still held. Where it was unmapped its place is given up, and the frame.
    pub(super) fn install_claimed(&self, claim: &Claimed<'_>, (used, noted): (Use, Noted)) -> bool {
        let ops = &self.space.tables.ops;
        let mut now = claim.claimed;
        loop {
            let next = now.with_state(State::Present).with_frame(claim.frame);
            let next =
                next.with_accessed(matches!(used, Use::Now(_))).with_dirty(noted == Noted::Dirty);
            match ops.ptep_cmpxchg(claim.ptep, now, next) {
                Ok(()) => return true,
                // `protect`, which leaves the claim.
                Err(found)
                    if found.latch() == EXCLUSIVE && Evicted::of(found) == Some(claim.from) =>
                {
                    now = found;
                }
                Err(_) => {
                    self.give_up_evicted(claim.claimed);
                    self.with_list(|list| list.put(claim.frame));
                    return false;
                }
            }
        }
    }

    /// Gives up the claim of a page that is not read or written after all.
    pub(super) fn give_up_claim(&self, claim: &Claimed<'_>) {
        self.with_list(|list| list.put(claim.frame));
        let ops = &self.space.tables.ops;
        let mut now = claim.claimed;
        while let Err(found) = ops.ptep_cmpxchg(claim.ptep, now, now.with_latch(0)) {
            if found.latch() != EXCLUSIVE || Evicted::of(found) != Some(claim.from) {
                // It was unmapped.
                self.give_up_evicted(claim.claimed);
                return;
            }
            now = found;
        }
    }

    /// Tells the pager of pages that are in memory and held.
    pub(super) fn tell_of(&self, came: &Arrivals<'_>) {
        let pages = &came.pages[..came.len];
        let in_swap: i64 = pages.iter().map(|page| page.from.in_swap()).sum();
        self.count(self.space.paged, pages.len() as i64);
        self.count(super::rss::Counter::Swap, -in_swap);
        if let Some(pager) = self.space.tables.source.pager() {
            pager.swapped_in_all(self.space.id(), pages);
        }
    }

    /// Lets go of pages that the pager was told of.
    pub(super) fn let_go_of(&self, came: &mut Arrivals<'_>) {
        let len = core::mem::take(&mut came.len);
        // All of them first: a policy that is told may want one.
        came.words[..len].iter().flatten().for_each(|ptep| self.end_write(ptep));
        for arrived in &came.pages[..len] {
            self.lru_add(arrived.page.page, arrived.page.frame);
        }
    }

    fn let_in(&self, came: &mut Arrivals<'_>) {
        if came.len > 0 {
            self.tell_of(came);
            self.let_go_of(came);
        }
    }

    /// As [`Task::begin_write_back`], of pages that are best in a row: whether each was begun.
    pub(crate) fn begin_write_back_all(
        &self,
        pages: &[usize],
        begun: &mut dyn FnMut(usize, Option<WriteBack>),
    ) {
        let mut near = Near::NONE;
        for &page in pages {
            let ptep = self.walk_near_if_there(&mut near, page);
            begun(page, ptep.and_then(|ptep| self.begin_write_back_at(ptep, page)));
        }
    }

    /// As [`Task::end_write_back`], of pages that were written and are best in a row.
    ///
    /// # Safety
    /// As there, of each.
    pub(crate) unsafe fn end_write_back_all(&self, begun: &mut dyn Iterator<Item = WriteBack>) {
        let mut near = Near::NONE;
        for begun in begun {
            if let Some(ptep) = self.walk_near_if_there(&mut near, begun.page().page) {
                self.end_read(ptep);
            }
        }
    }

    /// As [`Task::test_and_clear_young`], of pages that are best in a row.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn test_and_clear_young_near(
        &self,
        near: &mut Near<F>,
        page: usize,
    ) -> Option<bool> {
        let ops = &self.space.tables.ops;
        let ptep = match near.word(page) {
            Some(ptep) => ptep,
            None => {
                *near = Near::NONE;
                if self.is_huge(page) {
                    // Its pages have no words.
                    return self.test_and_clear_young(page);
                }
                near.find(|| self.walk_if_there(page))?
            }
        };
        let entry = ops.ptep_get(ptep);
        (entry.state() == State::Present)
            .then(|| ops.ptep_test_and_clear_young(ptep) || entry.latch() != 0)
    }

    /// Evicts a page in one step, where it is clean and in this frame, no other space has that, and nobody uses it.
    /// Whether it went; if not, nothing has changed. A page that was accessed goes only if that is nothing.
    #[cfg_attr(loom, allow(dead_code))]
    #[inline]
    pub(crate) fn evict_at_once(
        &self,
        near: &mut Near<F>,
        page: LruPage,
        accessed: Accessed,
        to: impl FnOnce() -> Option<Evicted>,
    ) -> bool {
        let ops = &self.space.tables.ops;
        let Some(ptep) = self.walk_near_if_there(near, page.page) else { return false };
        let entry = ops.ptep_get(ptep);
        // Of a page that is not copied on write no other space has the frame.
        let is_alone = entry.state() == State::Present && entry.latch() == 0 && !entry.cow();
        let is_used = entry.accessed() && accessed == Accessed::Counts;
        if !is_alone || entry.dirty() || is_used || entry.frame() != page.frame {
            return false;
        }
        let Some(to) = to() else { return false };
        // Another version: readers without a guard see that it went.
        let gone = to.entry(entry.with_next_version());
        if ops.ptep_cmpxchg(ptep, entry, gone).is_err() {
            return false;
        }
        self.put_frame(entry.frame(), false);
        self.count(self.space.paged, -1);
        self.count(super::rss::Counter::Swap, to.in_swap());
        true
    }
}

impl Claimed<'_> {
    pub fn arrived(&self, used: Use) -> Arrived {
        let page = LruPage { page: self.page, frame: self.frame };
        Arrived { page, from: self.from, used: used.rights() }
    }
}

/// The meaning of a page's accessed bit to a thread that evicts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accessed {
    /// The page was used: it stays.
    Counts,
    /// The page was read ahead, or came to be used once.
    IsNothing,
}
