//! The fault path: `handle_mm_fault` without a lock.
//!
//! Find the granule and hold its VMA, walk, install missing tables, then go by the page's
//! word: each step below is one compare-and-swap from the word that was read, and starts over when the word has
//! changed. The loser gives its frame back, still zeroed.
//!
//! The frame comes from the thread's list (`List::get_zeroed` of [`mem_map`](super::mem_map)), which is filled from the
//! processor's (`Pcp::get` of `pumice_frames::frame`), and that from the block that the processor has reserved
//! (`Ledger::get_bits`, else `Ledger::get_elsewhere` in `frame/reserve.rs`). Of several zones, `zonelist` chooses one
//! first.

use core::ptr::NonNull;
use core::time::Duration;

use super::error::Trap;
use super::history::LastWalk;
use super::rss::Counter;
use super::task::Task;
use super::{Access, Result, VmSpace};
use crate::page_table::entry::{CROWDED, END_WRITE, EXCLUSIVE, ONE_READER};
use crate::page_table::pager::Evicted;
use crate::page_table::tables::{sharers_in, FrameList, Table};
use crate::page_table::{Entry, FrameSource, Middle, Rights, State, TableOps, Tables};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::sys::lock::Backoff;
use pumice_frames::sys::thread;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Polls before a thread that waits for a page sleeps: 50 to 100 µs. A guard lasts less, mostly; a page that another
/// thread reads takes longer. ([`Backoff`] is for locks too, which are held for less, and does not sleep.)
const WAITS_AWAKE: u32 = 192;
/// How long it then sleeps, and up to how many times as long when it finds that it has to go on.
const SLEEP: Duration = Duration::from_micros(50);
const MOST_SLEEPS: u32 = 20;

/// Where the walk has ended: a page's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked<'t, F> {
    pub ptep: &'t AtomicU64,
    /// The rights of a page of which nothing is said.
    pub rights: Rights,
    /// The table it is in.
    pub leaf: Table<F>,
    pub page: usize,
}

/// The hold on a word when it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Latch {
    /// Nothing: a fault.
    None,
    /// A guard, which waits for others if it must.
    Wait,
    /// A guard, which does not.
    Try,
}

type Settled<T> = core::result::Result<T, Trap>;

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Makes the page at an address present and ready for such an access, and says where the byte is.
    ///
    /// The memory at the pointer is the page's until the page is unmapped, its frame is shared by `fork`, or it goes to
    /// swap. Nothing keeps those from happening: a guard does ([`super::Region::read`]).
    ///
    /// # Errors
    /// [`super::VmError`], naming address and region, if nothing is mapped there, the rights are
    /// missing, or frames are.
    #[inline]
    pub fn fault(&self, address: usize, access: Access) -> Result<NonNull<u8>> {
        match self.fault_at_once(address / FRAME_SIZE, access) {
            Some(frame) => {
                let start = self.space.tables.source.bytes(frame);
                // SAFETY: the offset lies within the frame.
                let at = unsafe { start.add(address % FRAME_SIZE) };
                if access == Access::Write {
                    self.fetch_ahead(at);
                }
                Ok(at)
            }
            None => self.fault_fully(address, access),
        }
    }

    /// The most frequent faults: a first write to a page of the table that the last walk ended in, or one
    /// with nothing to do. Does all that [`Task::settle`] would do.
    #[inline]
    fn fault_at_once(&self, page: usize, access: Access) -> Option<Pfn> {
        let ops = &self.space.tables.ops;
        let LastWalk { granule, leaf, rights } = self.last_walk.get();
        let leaf = if page >> F::TABLE_BITS == granule { leaf? } else { return None };
        let ptep = leaf.entry(page);
        let entry = ops.ptep_get(ptep);
        if entry.is_ready(access == Access::Write) {
            return Some(entry.frame());
        }
        let is_first_write = access == Access::Write && entry == Entry::EMPTY && rights.write();
        if !is_first_write {
            return None;
        }
        let frame = self.with_list(|list| list.get_zeroed())?;
        self.fetch_table(leaf, page);
        let new = Entry::used_frame(rights, frame);
        if ops.ptep_cmpxchg(ptep, entry, new).is_err() {
            self.with_list(|list| list.put_zeroed(frame));
            return None;
        }
        self.lru_add(page, frame);
        let more = self.prefault(leaf, page, entry, new);
        self.count(Counter::Anon, 1 + more as i64);
        Some(frame)
    }

    #[cold]
    #[inline(never)]
    fn fault_fully(&self, address: usize, access: Access) -> Result<NonNull<u8>> {
        let page = address / FRAME_SIZE;
        let frame = self.middle(page).and_then(|middle| {
            if let Some(frame) = self.fault_huge(middle, page, access)? {
                return Ok(frame);
            }
            let walked = self.walk_on(middle, page)?;
            self.settle(&walked, access, Latch::None).map(|entry| entry.frame())
        });
        match frame.map(|frame| self.space.tables.source.bytes(frame)) {
            Ok(start) => {
                // SAFETY: the offset lies within the frame.
                let at = unsafe { start.add(address % FRAME_SIZE) };
                if access == Access::Write {
                    self.fetch_ahead(at);
                }
                Ok(at)
            }
            Err(trap) => Err(self.error(trap, address, access)),
        }
    }

    /// Walks to a page's word, with tables for it.
    pub(super) fn walk(&self, page: usize) -> Settled<Walked<'_, F>> {
        self.walk_on(self.middle(page)?, page)
    }

    /// The middle level's entry for a page. Its VMA is held.
    #[inline]
    pub(super) fn middle(&self, page: usize) -> Settled<Middle<'_>> {
        if page >= Tables::<F, T>::PAGES {
            return Err(Trap::Unmapped);
        }
        let middle = self.space.tables.middle(page >> F::TABLE_BITS).ok_or(Trap::Unmapped)?;
        self.hold(middle)?;
        Ok(middle)
    }

    /// The rest of the walk by address, which the next fault may go on from.
    fn walk_on<'t>(&self, middle: Middle<'t>, page: usize) -> Settled<Walked<'t, F>> {
        let granule = page >> F::TABLE_BITS;
        let walked = self.walk_from(middle, page)?;
        let rights = Entry::EMPTY.with_rights(walked.rights);
        self.last_walk.set(LastWalk { granule, leaf: Some(walked.leaf), rights });
        Ok(walked)
    }

    /// The rest of the walk, from the middle level. The caller holds the VMA.
    #[inline]
    pub(super) fn walk_from<'t>(&self, middle: Middle<'t>, page: usize) -> Settled<Walked<'t, F>> {
        let tables = &self.space.tables;
        loop {
            let pmd = tables.ops.ptep_get(middle.pmdp);
            match pmd.state() {
                State::Table => {
                    // SAFETY: the VMA is held, and with it its tables.
                    let leaf = unsafe { tables.leaf(pmd) };
                    let (ptep, rights) = (leaf.entry(page), pmd.rights());
                    return Ok(Walked { ptep, rights, leaf, page });
                }
                State::Absent => self.populate(middle, pmd, page)?,
                State::Present => self.split(middle, pmd)?,
                _ => return Err(Trap::Unmapped),
            }
        }
    }

    /// Installs a table for a granule that has none (`pmd_test_and_populate`).
    #[cold]
    #[inline(never)]
    pub(super) fn populate(&self, middle: Middle<'_>, pmd: Entry, page: usize) -> Settled<()> {
        let tables = &self.space.tables;
        let frame = self.get_zeroed().ok_or(Trap::OutOfFrames)?;
        // SAFETY: the frame is this thread's, and all zeros.
        let leaf = unsafe { Table::at(tables.source, frame) };
        // Acquire: the record is as it was when the number was stored.
        let vma = self.space.vma(middle.vma.load(Ordering::Acquire)).ok_or(Trap::Unmapped);
        let pages = vma.map(|vma| vma.pages_in::<F>(page >> F::TABLE_BITS));
        let end = pages.map_or(F::ENTRIES, |pages| pages.len());
        // Relaxed: nobody knows of the table; installing it releases this.
        for beyond in end..F::ENTRIES {
            let gone = Entry::new().with_state(State::Gone);
            leaf.entry(beyond).store(gone.into(), Ordering::Relaxed);
        }
        if pmd.is_absent_file() {
            let elsewhere = Evicted::Shadow(0).entry(Entry::EMPTY.with_rights(pmd.rights()));
            for page in 0..end {
                leaf.entry(page).store(elsewhere.into(), Ordering::Relaxed);
            }
        }
        let table = Entry::table(frame, pmd.rights());
        if !tables.ops.pmd_test_and_populate(middle.pmdp, pmd, table) {
            let is_zeroed = end == F::ENTRIES && !pmd.is_absent_file();
            self.with_list(|list| if is_zeroed { list.put_zeroed(frame) } else { list.put(frame) });
        }
        Ok(())
    }

    /// Brings a word to where it allows the access, and latches it if that is wanted: the word as it
    /// then is.
    pub(super) fn settle(
        &self,
        walked: &Walked<'_, F>,
        access: Access,
        latch: Latch,
    ) -> Settled<Entry> {
        let ops = &self.space.tables.ops;
        let mut backoff = Backoff::default();
        let mut entry = ops.ptep_get(walked.ptep);
        loop {
            let next = match entry.state() {
                State::Untouched => {
                    let absent = Entry::absent(walked.rights);
                    match self.install(walked, entry, absent, access, latch)? {
                        Ok(installed) => return Ok(installed),
                        Err(found) => Err(found),
                    }
                }
                State::Absent => match self.install(walked, entry, entry, access, latch)? {
                    Ok(installed) => return Ok(installed),
                    Err(found) => Err(found),
                },
                State::Present | State::Zero => {
                    match self.use_mapped(walked, entry, access, latch, &mut backoff)? {
                        Ok(settled) => return Ok(settled),
                        Err(found) => Err(found),
                    }
                }
                State::InTransit => {
                    ops.ptep_cmpxchg(walked.ptep, entry, entry.with_state(State::Present))
                }
                State::Swapped | State::Shadow => {
                    if !entry.rights().contains(access.needs()) {
                        return Err(Trap::Denied);
                    }
                    self.swap_in(walked, entry, (access, latch), &mut backoff).map(Err)?
                }
                State::Gone | State::Doomed | State::Table | State::Closed => {
                    return Err(Trap::Unmapped)
                }
            };
            entry = next.err().unwrap_or_else(|| ops.ptep_get(walked.ptep));
        }
    }

    /// From nothing: the zero page for reading, a frame for writing. `Err` with the entry that is there instead.
    fn install(
        &self,
        walked: &Walked<'_, F>,
        old: Entry,
        absent: Entry,
        access: Access,
        latch: Latch,
    ) -> Settled<core::result::Result<Entry, Entry>> {
        let rights = absent.rights();
        if !rights.contains(access.needs()) {
            return Err(Trap::Denied);
        }
        let ops = &self.space.tables.ops;
        let new = Entry::new().with_rights(rights).with_version(old.version()).with_accessed(true);
        if access == Access::Read {
            let zero = new.with_state(State::Zero).with_frame(self.space.tables.source.zero_page());
            let zero = zero.with_latch(u8::from(latch != Latch::None));
            return Ok(ops.ptep_cmpxchg(walked.ptep, old, zero).map(|()| zero));
        }
        let frame = self.get_zeroed().ok_or(Trap::OutOfFrames)?;
        let new = new.with_state(State::Present).with_dirty(true).with_frame(frame);
        let held = if latch == Latch::None { new } else { new.with_latch(EXCLUSIVE) };
        match ops.ptep_cmpxchg(walked.ptep, old, held) {
            Ok(()) => {
                self.lru_add(walked.page, frame);
                let more = self.prefault(walked.leaf, walked.page, old, new);
                self.count(Counter::Anon, 1 + more as i64);
                Ok(Ok(held))
            }
            Err(found) => {
                self.with_list(|list| list.put_zeroed(frame));
                Ok(Err(found))
            }
        }
    }

    /// A page that is there. `Err` with the word as it has become, to look at again.
    fn use_mapped(
        &self,
        walked: &Walked<'_, F>,
        entry: Entry,
        access: Access,
        latch: Latch,
        backoff: &mut Backoff,
    ) -> Settled<core::result::Result<Entry, Entry>> {
        if !entry.rights().contains(access.needs()) {
            return Err(Trap::Denied);
        }
        let ops = &self.space.tables.ops;
        let is_writing = access == Access::Write;
        if is_writing && !entry.can_write() {
            if entry.latch() != 0 {
                return self.wait(walked, latch, backoff).map(Err);
            }
            return self.make_writable(walked, entry).map(Err);
        }
        let used = entry.with_accessed(true).with_dirty(entry.dirty() | is_writing);
        let next = match latch {
            Latch::None if used == entry => return Ok(Ok(entry)),
            Latch::None => used,
            _ if is_writing && entry.latch() == 0 => used.with_latch(EXCLUSIVE),
            _ if !is_writing && entry.latch() < CROWDED => used.with_latch(entry.latch() + 1),
            _ if !is_writing && entry.latch() != EXCLUSIVE => return Err(Trap::Crowded),
            _ => return self.wait(walked, latch, backoff).map(Err),
        };
        Ok(ops.ptep_cmpxchg(walked.ptep, entry, next).map(|()| next))
    }

    /// Waits for the holders of a page. Returns its word then.
    ///
    /// # Panics
    /// In a policy's method, where nothing is held by the access that waits: the caller's own fault may hold the page,
    /// or the fault of a thread that waits for the policy.
    #[cold]
    #[inline(never)]
    pub(super) fn wait(
        &self,
        walked: &Walked<'_, F>,
        latch: Latch,
        backoff: &mut Backoff,
    ) -> Settled<Entry> {
        if latch == Latch::Try {
            return Err(Trap::Busy);
        }
        #[cfg(not(loom))]
        pumice_io::sync::in_policy::refuse();
        backoff.wait();
        let waits = backoff.waits();
        if waits > WAITS_AWAKE && !cfg!(any(loom, shuttle)) {
            thread::sleep(SLEEP * (waits - WAITS_AWAKE).min(MOST_SLEEPS));
        }
        Ok(self.space.tables.ops.ptep_get(walked.ptep))
    }

    /// Gives a page a frame of its own: in place of the zero page, or of one that `fork` has shared. Its word is then
    /// dirty, for the pager's knowledge of the frame may be of the page as it was when it had that frame before.
    #[cold]
    #[inline(never)]
    pub(super) fn make_writable(&self, walked: &Walked<'_, F>, entry: Entry) -> Settled<Entry> {
        let tables = &self.space.tables;
        if entry.state() == State::Zero {
            let frame = self.get_zeroed().ok_or(Trap::OutOfFrames)?;
            let own = entry.with_state(State::Present).with_frame(frame).with_dirty(true);
            return match tables.ops.ptep_cmpxchg(walked.ptep, entry, own) {
                Ok(()) => {
                    self.count(Counter::Anon, 1);
                    self.lru_add(walked.page, frame);
                    Ok(own)
                }
                Err(found) => {
                    self.with_list(|list| list.put_zeroed(frame));
                    Ok(found)
                }
            };
        }
        let old = entry.frame();
        // Acquire: pairs with `unshare`; the other spaces' use of the frame is over.
        let is_shared = || sharers_in(tables.source.sharers(old).load(Ordering::Acquire)) != 0;
        // Before the page is held: getting a frame may call others' code, such as a shrinker, which may wait for a
        // thread that waits for this page.
        let mut copy = match is_shared() {
            true => Some(self.get_any().ok_or(Trap::OutOfFrames)?),
            false => None,
        };
        // Held alone while it is looked at and copied: else `fork` could share the frame anew between
        // the look at the sharers and the change, and leave the very word that was read.
        let held = entry.with_latch(EXCLUSIVE);
        if let Err(found) = tables.ops.ptep_cmpxchg(walked.ptep, entry, held) {
            copy.into_iter().for_each(|copy| self.with_list(|list| list.put(copy)));
            return Ok(found);
        }
        let own = if is_shared() {
            if let Some(copy) = copy {
                let (from, to) = (tables.source.bytes(old), tables.source.bytes(copy));
                // SAFETY: the copy is this thread's; the other is read by all and written by nobody,
                // since it is shared, and stays while this entry, which is latched, has it.
                unsafe { from.copy_to_nonoverlapping(to, FRAME_SIZE) };
            }
            // None where a fork has shared it since: it is looked at again.
            copy
        } else {
            copy.take().into_iter().for_each(|copy| self.with_list(|list| list.put(copy)));
            Some(old)
        };
        let mut now = held;
        loop {
            let free = now.with_latch(0);
            let next = match own {
                Some(_) if now.state() != State::Present => free,
                // Another version: frames come round again while somebody reads without a guard.
                Some(own) => {
                    free.with_frame(own).with_cow(false).with_dirty(true).with_next_version()
                }
                None => free,
            };
            match tables.ops.ptep_cmpxchg(walked.ptep, now, next) {
                Ok(()) => {
                    let is_copy = own.is_some_and(|own| own != old);
                    if next.state() == State::Doomed {
                        if let (Some(copy), true) = (own, is_copy) {
                            self.with_list(|list| list.put(copy));
                        }
                        self.finish_doomed(walked.ptep, next);
                    } else if is_copy {
                        self.put_frame(old, true);
                        self.lru_add(walked.page, next.frame());
                    }
                    return Ok(next);
                }
                Err(found) => now = found,
            }
        }
    }

    /// Ends a guard for reading.
    #[inline]
    pub(super) fn end_read(&self, ptep: &AtomicU64) {
        let before = self.space.tables.ops.ptep_add(ptep, ONE_READER.wrapping_neg());
        if before.state() == State::Doomed && before.latch() == 1 {
            self.finish_doomed(ptep, before.with_latch(0));
        }
    }

    /// Ends a guard for writing.
    #[inline]
    pub(super) fn end_write(&self, ptep: &AtomicU64) {
        let before = self.space.tables.ops.ptep_add(ptep, END_WRITE);
        if before.state() == State::Doomed {
            let now = Entry::from(u64::from(before).wrapping_add(END_WRITE));
            self.finish_doomed(ptep, now);
        }
    }

    /// Does the work that `unmap` left to the last guard of a page, or that a crowd of readers leaves to the last of
    /// them.
    #[cold]
    #[inline(never)]
    fn finish_doomed(&self, ptep: &AtomicU64, doomed: Entry) {
        if !self.leave_crowd(ptep) {
            self.give_up_doomed(ptep, doomed);
        }
    }

    /// Gives up a page that was unmapped while guards were held, of which there are none any more.
    pub(super) fn give_up_doomed(&self, ptep: &AtomicU64, doomed: Entry) {
        let mut now = doomed;
        // A thread that asks whether the page is young, and saw it before it was doomed, may take *accessed* off it
        // yet.
        while let Err(found) = self.space.tables.ops.ptep_cmpxchg(ptep, now, now.gone()) {
            now = found;
        }
        self.give_up(doomed);
    }

    /// Gives up the frame or the place of an entry that is gone now.
    pub(super) fn give_up(&self, entry: Entry) {
        if entry.has_frame() && entry.frame() != self.space.tables.source.zero_page() {
            self.put_frame(entry.frame(), entry.cow());
            self.count(self.space.paged, -1);
        }
        self.give_up_evicted(entry);
    }
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// Takes this space off those that have a frame. `true`: it was the only one, and has to free it.
    pub(super) fn unshare(&self, frame: Pfn) -> bool {
        let sharers = self.tables.source.sharers(frame);
        let fewer = |word: u32| (sharers_in(word) > 0).then(|| word - 1);
        // AcqRel: this space's use of the frame is over before another finds itself alone; and a space that finds
        // itself alone here may free a frame that others have read. Acquire on failure for that.
        sharers.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_err()
    }
}
