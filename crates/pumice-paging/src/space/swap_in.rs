//! Pages that come back from swap, and the ones after them that are read along with them.
//!
//! Where a thread's faults meet pages of swap in a row, the next ones are read by the same fault, as far as they are in
//! swap and there are frames at hand: twice as many each time, up to what `VmSpace::set_page_cluster` says. (The
//! kernel's `swap_vma_readahead` in `mm/swap_state.c` goes by addresses too.) A fault out of order reads its own page
//! only.
//!
//! A page that is read is claimed in its word, so it is read once, and other threads that meet it wait. Its slot stays
//! its own until the read is over, also if it is unmapped meanwhile: else the read could get another page's bytes,
//! which looks like a device that loses bytes.

use core::ptr::NonNull;

use super::error::Trap;
use super::fault::{Latch, Walked};
use super::file::Noted;
use super::history::SwapAhead;
use super::rss::Counter;
use super::task::Task;
use super::Access;
use crate::page_table::entry::EXCLUSIVE;
use crate::page_table::pager::{Evicted, Incoming, LruPage, Page, Pager, ReadFailed, ReadResult};
use crate::page_table::tables::FrameList;
use crate::page_table::{Entry, FrameSource, Rights, State, TableOps};
use pumice_frames::addr::Pfn;
use pumice_frames::sys::lock::Backoff;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Pages that one fault reads at most, whatever is set, its own among them: 128 KiB, which takes the device hardly
/// longer than one.
pub const READ_AHEAD: usize = 32;
/// Pages that the second fault of a sequence reads.
const FIRST_WINDOW: usize = 4;

/// A page that this thread reads, and everybody else waits for.
#[derive(Clone, Copy)]
pub(super) struct Claim<'t> {
    pub ptep: &'t AtomicU64,
    pub page: usize,
    pub claimed: Entry,
    pub from: Evicted,
}

/// The use of a page that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nobody has asked for it yet.
    None,
    /// Somebody has, and is going to use it: that is its first use, and not that it has come.
    Soon,
    /// It is used.
    Now(Rights),
}

impl Use {
    /// The rights of the use; none, if no thread has asked for it.
    pub(super) fn rights(self) -> Rights {
        match self {
            Use::None => Rights::empty(),
            Use::Soon => Rights::READ,
            Use::Now(rights) => rights,
        }
    }
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// A fault has met a page that is not in memory. Returns its word afterwards.
    #[cold]
    #[inline(never)]
    pub(super) fn swap_in(
        &self,
        walked: &Walked<'_, F>,
        entry: Entry,
        (access, latch): (Access, Latch),
        backoff: &mut Backoff,
    ) -> Result<Entry, Trap> {
        let tables = &self.space.tables;
        let (Some(pager), Some(from)) = (tables.source.pager(), Evicted::of(entry)) else {
            return Err(Trap::NotResident);
        };
        if entry.latch() != 0 {
            // Another thread reads it.
            return self.wait(walked, latch, backoff);
        }
        // First: getting a frame may call others' code, such as a shrinker, which may wait for a thread that waits for
        // this page.
        let frame = self.get_any().or_else(|| self.get_reserved()).ok_or(Trap::OutOfFrames)?;
        let claimed = entry.with_latch(EXCLUSIVE);
        if let Err(found) = tables.ops.ptep_cmpxchg(walked.ptep, entry, claimed) {
            self.with_list(|list| list.put(frame));
            return Ok(found);
        }
        let claim = Claim { ptep: walked.ptep, page: walked.page, claimed, from };
        let read = match self.read(pager, walked, claim, frame) {
            Ok(()) => Ok(frame),
            Err(ReadFailed) => {
                self.with_list(|list| list.put(frame));
                Err(Trap::ReadFailed)
            }
        };
        self.come_in(claim, read, Use::Now(access.needs()))
    }

    /// Reads a page, and others if it is one of a sequence.
    fn read(
        &self,
        pager: &dyn Pager,
        walked: &Walked<'_, F>,
        claim: Claim<'_>,
        frame: Pfn,
    ) -> ReadResult {
        let SwapAhead { next, window } = self.swap_ahead.get();
        // Some in between may have been there.
        let is_next = (next..next + window.max(1)).contains(&claim.page) && next != 0;
        // Relaxed: a setting.
        let most = 1 << self.space.page_cluster.load(Ordering::Relaxed);
        let window = if is_next { (window * 2).max(FIRST_WINDOW).min(most) } else { 1 };
        self.swap_ahead.set(SwapAhead { next: claim.page + 1, window });
        if window > 1 {
            return self.read_ahead(pager, walked, (claim, frame), window);
        }
        // SAFETY: the frame is this thread's alone until it is installed.
        let into = unsafe { &mut *self.bytes_of(frame).as_ptr() };
        pager.swap_in(self.space.id(), claim.page, claim.from, into)
    }

    fn bytes_of(&self, frame: Pfn) -> NonNull<Page> {
        self.space.tables.source.bytes(frame).cast()
    }

    #[inline(never)]
    fn read_ahead(
        &self,
        pager: &dyn Pager,
        walked: &Walked<'_, F>,
        first: (Claim<'_>, Pfn),
        window: usize,
    ) -> ReadResult {
        let ops = &self.space.tables.ops;
        let mut claims = [first; READ_AHEAD];
        let mut len = 1;
        // A table's pages are of one VMA, which is held.
        let table_end = (walked.page | (F::ENTRIES - 1)) + 1;
        for page in walked.page + 1..(walked.page + window).min(table_end) {
            let ptep = walked.leaf.entry(page);
            let entry = ops.ptep_get(ptep);
            let Some(from) = Evicted::of(entry) else { continue };
            if entry.state() != State::Swapped || entry.latch() != 0 {
                continue;
            }
            let Some(frame) = self.with_list(|list| list.get_any_at_once()) else { break };
            let claimed = entry.with_latch(EXCLUSIVE);
            if ops.ptep_cmpxchg(ptep, entry, claimed).is_err() {
                self.with_list(|list| list.put(frame));
                continue;
            }
            claims[len] = (Claim { ptep, page, claimed, from }, frame);
            len += 1;
        }
        let mut incoming = claims.map(|(Claim { page, from, .. }, frame)| {
            let into = self.bytes_of(frame);
            Incoming { page, from, into, result: Ok(()) }
        });
        let incoming = &mut incoming[..len];
        // SAFETY: the frames are this thread's alone until they are installed.
        unsafe { pager.swap_in_all(self.space.id(), incoming) };
        for (&(claim, frame), incoming) in claims[1..len].iter().zip(&incoming[1..]) {
            let read = incoming.result.map(|()| frame).map_err(|ReadFailed| {
                self.with_list(|list| list.put(frame));
                Trap::ReadFailed
            });
            // A thread that wants the page asks again, and is told its error.
            let _ = self.come_in(claim, read, Use::None);
            self.swap_ahead.set(SwapAhead { next: claim.page + 1, window });
        }
        incoming[0].result
    }

    /// Puts a page where it belongs that was read into a frame, or gives its claim up. Returns its word then.
    pub(super) fn come_in(
        &self,
        claim: Claim<'_>,
        read: Result<Pfn, Trap>,
        used: Use,
    ) -> Result<Entry, Trap> {
        match self.come_in_held(claim, read, (used, Noted::Clean))? {
            Ok(frame) => {
                // Another version: readers without a guard must not take it for the page that went.
                self.end_write(claim.ptep);
                self.lru_add(claim.page, frame);
                Ok(self.space.tables.ops.ptep_get(claim.ptep))
            }
            Err(found) => {
                if let Ok(frame) = read {
                    self.with_list(|list| list.put(frame));
                }
                Ok(found)
            }
        }
    }

    /// As [`Task::come_in`], but that the page is held for writing then, and not noted in the batch of those that came;
    /// dirty if it is not as it is elsewhere. `Err` with its word where the claim was lost: the frame is the caller's.
    pub(super) fn come_in_held(
        &self,
        claim: Claim<'_>,
        read: Result<Pfn, Trap>,
        (used, noted): (Use, Noted),
    ) -> Result<Result<Pfn, Entry>, Trap> {
        let (pager, ops) = (self.space.tables.source.pager(), &self.space.tables.ops);
        let Claim { ptep, page, claimed, from } = claim;
        let mut now = claimed;
        loop {
            let next = match read {
                // Still held: it is neither to go again nor to be copied before the pager knows where it came from.
                Ok(frame) => {
                    let back = now.with_state(State::Present).with_frame(frame);
                    back.with_accessed(matches!(used, Use::Now(_)))
                        .with_dirty(noted == Noted::Dirty)
                }
                Err(_) => now.with_latch(0),
            };
            match ops.ptep_cmpxchg(ptep, now, next) {
                Ok(()) => {
                    let frame = read?;
                    self.count(self.space.paged, 1);
                    self.count(Counter::Swap, -from.in_swap());
                    if let Some(pager) = pager {
                        pager.swapped_in(
                            self.space.id(),
                            LruPage { page, frame },
                            from,
                            used.rights(),
                        );
                    }
                    return Ok(Ok(frame));
                }
                // `protect`, which leaves the claim.
                Err(found) if found.latch() == EXCLUSIVE && Evicted::of(found) == Some(from) => {
                    now = found;
                }
                // `unmap`, which has left to this what was being read.
                Err(found) => {
                    self.give_up_evicted(claimed);
                    return Ok(Err(found));
                }
            }
        }
    }
}
