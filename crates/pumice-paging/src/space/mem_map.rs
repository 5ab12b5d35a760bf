//! The common parts of all spaces on a zone: the zone, its zero page, the threads' lists of frames (`List::get_zeroed`:
//! which frame a fault gets), and how often frames are shared.

use core::ptr::NonNull;

use crate::page_table::entry::MAX_NUMBER;
use crate::page_table::pager::Pager;
use crate::page_table::tables::FrameList;
use crate::page_table::FrameSource;
use pumice_frames::addr::{Order, Pfn, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::{Clearer, Warmth};
use pumice_frames::error::{Error, Result};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::zone::ZoneMemory;
use pumice_frames::frame::{Budget, Gfp, Ledger, Native, Pcp, Pressure, Reclaim, Zone};
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::{self, Memory, Os};
use pumice_io::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A zone's frames as spaces use them. The kernel's `mem_map` has a `struct page` for each frame. Here four bytes are
/// needed of it, which are written only where `fork` shares a frame.
#[derive(Debug)]
pub struct MemMap<'z, M: Memory = Os, L: Budget = ()> {
    zone: &'z Zone<M, L>,
    sharers: NonNull<AtomicU32>,
    zero_page: Pfn,
    clearer: Clearer,
    pager: Option<&'z dyn Pager>,
    /// Threads' lists that there are. Relaxed: a bound, which need not be exact.
    lists: AtomicUsize,
}

// SAFETY: `sharers` is a table of atomics that lives as long as this.
unsafe impl<M: Memory, L: Budget + Sync> Send for MemMap<'_, M, L> {}
// SAFETY: as above.
unsafe impl<M: Memory, L: Budget + Sync> Sync for MemMap<'_, M, L> {}

impl<'z, M: Memory, L: Budget> MemMap<'z, M, L> {
    /// Takes a frame for the zero page. Frames that have to be cleared are cleared by `clearer`.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`], also for a zone of more than 1 TiB; [`Error::Os`] without memory for the
    /// table.
    pub fn new(zone: &'z Zone<M, L>, clearer: Clearer) -> Result<MemMap<'z, M, L>> {
        let frames = zone.capacity_frames();
        if frames > MAX_NUMBER {
            return Err(Error::OutOfFrames);
        }
        let zero = zone.get(0, Gfp::KERNEL | Gfp::ZERO, Order::FRAME, &clearer);
        let zero = zero.and_then(|at| zone.pfn(at.as_ptr())).ok_or(Error::OutOfFrames)?;
        let table = mem::map_table(frames.max(1) * size_of::<AtomicU32>());
        match table {
            Ok(table) => {
                let (sharers, pager) = (table.cast(), None);
                let lists = AtomicUsize::new(0);
                Ok(MemMap { zone, sharers, zero_page: zero, clearer, pager, lists })
            }
            Err(errno) => {
                // SAFETY: the frame was got above, and nobody else has it.
                let _ = unsafe { zone.ledger() }.put_zeroed_frame(zero);
                Err(errno.into())
            }
        }
    }

    /// With a pager, which evicts pages of spaces and brings them back.
    #[must_use]
    pub fn with_pager(self, pager: &'z dyn Pager) -> MemMap<'z, M, L> {
        // The old map gives nothing back when it is dropped here: the new one has it all.
        let old = core::mem::ManuallyDrop::new(self);
        let MemMap { zone, sharers, zero_page, clearer, .. } = *old;
        // Spaces, whose tasks have lists, borrow a map: there are none yet.
        let lists = AtomicUsize::new(0);
        MemMap { zone, sharers, zero_page, clearer, pager: Some(pager), lists }
    }

    /// The frames, for [`crate::space::VmSpace::new`].
    pub fn frames(&self) -> Frames<'_, M, L> {
        let base = NonNull::new(self.zone.address(Pfn(0))).expect("a zone is at no null address");
        let reclaim = self.pager.and_then(|pager| pager.zone());
        Frames { base, map: self, pager: self.pager, reclaim }
    }

    /// The frames, for a space with a pager of its own, and so with another backing than other spaces. A zone has one
    /// reclaim, which all pagers of spaces on it share.
    pub fn frames_of<'m>(&'m self, pager: &'m dyn Pager) -> Frames<'m, M, L> {
        Frames { pager: Some(pager), reclaim: pager.zone(), ..self.frames() }
    }

    /// The frames, for a space over several zones that have a pager together: this one's reclaim is its own.
    pub(super) fn frames_in<'m>(
        &'m self,
        pager: &'m dyn Pager,
        reclaim: &'m dyn Reclaim,
    ) -> Frames<'m, M, L> {
        Frames { pager: Some(pager), reclaim: Some(reclaim), ..self.frames() }
    }

    /// The ledger, which names the owner of each frame of the zone.
    fn ledger(&self) -> &'z Ledger<Native, ZoneMemory<M, L>> {
        // SAFETY: a map takes out and gives back frames that it, or its spaces, have got themselves.
        unsafe { self.zone.ledger() }
    }

    /// The zone.
    #[doc(hidden)]
    pub fn zone(&self) -> &'z Zone<M, L> {
        self.zone
    }

    /// Whether there are so many lists that, with [`MOST_LISTED`] frames in each, they would hold more than one in
    /// [`ZONE_TO_LISTS`] of the zone.
    fn is_crowded(&self) -> bool {
        let frames = self.zone.capacity_frames();
        self.lists.load(Ordering::Relaxed) * MOST_LISTED * ZONE_TO_LISTS > frames
    }
}

impl<M: Memory, L: Budget> Drop for MemMap<'_, M, L> {
    fn drop(&mut self) {
        let put = self.ledger().put_zeroed_frame(self.zero_page);
        debug_assert_eq!(put, Ok(()), "the zero page");
        let bytes = self.zone.capacity_frames() * size_of::<AtomicU32>();
        // SAFETY: mapped in `new`; spaces borrow this, so there are none any more.
        let _ = unsafe { mem::unmap(self.sharers.cast(), bytes.max(1)) };
    }
}

/// The frames of a [`MemMap`].
#[derive(Debug)]
pub struct Frames<'m, M: Memory = Os, L: Budget = ()> {
    base: NonNull<u8>,
    map: &'m MemMap<'m, M, L>,
    pager: Option<&'m dyn Pager>,
    /// The reclaim of the zone.
    reclaim: Option<&'m dyn Reclaim>,
}

impl<M: Memory, L: Budget> Clone for Frames<'_, M, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory, L: Budget> Copy for Frames<'_, M, L> {}

#[cfg(test)]
impl<'m, M: Memory, L: Budget> Frames<'m, M, L> {
    pub(super) fn zone(self) -> &'m Zone<M, L> {
        self.map.zone
    }
}

// SAFETY: `base` is an address; the ledger says who owns the memory there.
unsafe impl<M: Memory, L: Budget + Sync> Send for Frames<'_, M, L> {}
// SAFETY: as above.
unsafe impl<M: Memory, L: Budget + Sync> Sync for Frames<'_, M, L> {}

// SAFETY: the ledger gives each frame to one owner, and a frame that is asked for zeroed is cleared if it is not; a
// frame has 512 words.
unsafe impl<'m, M: Memory, L: Budget + Sync> FrameSource for Frames<'m, M, L> {
    const TABLE_BITS: u32 = 9;
    type List = List<'m, M, L>;

    fn list(self) -> List<'m, M, L> {
        self.map.lists.fetch_add(1, Ordering::Relaxed);
        let pcp = Pcp::new(self.map.ledger(), cpu::current(), Want::Zeroed);
        List { pcp, spare: None, frames: self, gfp: Gfp::KERNEL }
    }

    #[inline]
    fn words(self, frame: Pfn) -> NonNull<AtomicU64> {
        self.bytes(frame).cast()
    }

    #[inline]
    fn bytes(self, frame: Pfn) -> NonNull<u8> {
        // A number that is none of the zone's gives an address that nobody may use, and no more than that.
        let at = self.base.as_ptr().wrapping_add((frame.0 & MAX_NUMBER) * FRAME_SIZE);
        // SAFETY: 1 TiB after an address of a process there is no null.
        unsafe { NonNull::new_unchecked(at) }
    }

    fn are_side_by_side(self, first: Pfn, frames: usize) -> bool {
        // A zone is one range of addresses.
        let end = first.0.checked_add(frames);
        end.is_some_and(|end| end <= self.map.zone.capacity_frames())
    }

    fn get_run(self, frames: usize) -> Option<Pfn> {
        let order = Order::new(frames.next_power_of_two().trailing_zeros() as u8)?;
        let MemMap { zone, clearer, .. } = self.map;
        let at = zone.get(0, Gfp::KERNEL | Gfp::ZERO, order, clearer)?;
        zone.pfn(at.as_ptr())
    }

    fn get_zeroed_block(self, _: Gfp) -> Option<Pfn> {
        let zone = self.map.zone;
        // Where this would make memory short, small pages do.
        let admits = |reclaim: &dyn Reclaim| reclaim.admits(Gfp::ABOVE_LOW, BLOCK_FRAMES);
        if !self.reclaim.is_none_or(admits) {
            return None;
        }
        let get = || self.map.ledger().get_frames_of_block();
        let found = get().or_else(|| zone.grow(1).ok().and_then(|_| get()));
        if found.is_none() {
            self.reclaim.into_iter().for_each(|reclaim| reclaim.give_back(BLOCK_FRAMES));
        }
        found
    }

    fn put_run(self, first: Pfn) {
        // SAFETY: the caller has no more use for the run, as the trait says.
        let put = unsafe { self.map.zone.put(self.bytes(first).as_ptr()) };
        debug_assert_eq!(put, Ok(()), "{first:?}");
    }

    #[inline]
    fn sharers(&self, frame: Pfn) -> &AtomicU32 {
        debug_assert!(frame.0 < self.map.zone.capacity_frames());
        // SAFETY: the table has one for each frame of the zone, and no space outlives it.
        unsafe { self.map.sharers.add(frame.0).as_ref() }
    }

    #[inline]
    fn zero_page(self) -> Pfn {
        self.map.zero_page
    }

    #[inline]
    fn pager(&self) -> Option<&dyn Pager> {
        self.pager
    }

    fn hold_readable(self, _frame: Pfn) {
        self.map.zone.hold_readable();
    }

    fn let_go_readable(self, _frame: Pfn) {
        // SAFETY: the caller ends what it began with `hold_readable`.
        unsafe { self.map.zone.let_go_readable() };
    }

    fn free_frames(self, _: Pfn) -> usize {
        self.map.zone.free_frames()
    }

    fn all_free_frames(self) -> usize {
        self.map.zone.free_frames()
    }
}

/// Frames that a list gets at a time, at most.
const LIST_FRAMES: usize = 32;
/// The most that a list holds: frames to give out, as many that were put back, and one zeroed.
const MOST_LISTED: usize = 2 * LIST_FRAMES + 1;
/// No other thread gets at the list of a thread that sleeps. So all lists together hold a 16th of the zone at
/// most, as much as lies below the low watermark by default; where there are too many threads for that, each takes
/// frames and gives them back one by one.
const ZONE_TO_LISTS: usize = 16;

/// A thread's list over a zone.
#[derive(Debug)]
pub struct List<'m, M: Memory = Os, L: Budget = ()> {
    pcp: Pcp<'m, Native, ZoneMemory<M, L>>,
    /// A zeroed frame that was not needed after all.
    spare: Option<Pfn>,
    frames: Frames<'m, M, L>,
    gfp: Gfp,
}

impl<M: Memory, L: Budget + Sync> List<'_, M, L> {
    /// Whether frames may be taken of the zone now. The reserve is for reclaiming threads.
    fn admits(&self, gfp: Gfp, frames: usize) -> bool {
        self.frames.reclaim.is_none_or(|reclaim| reclaim.admits(gfp, frames))
    }

    /// The flags of requests that wait for nothing.
    fn at_once(&self) -> Gfp {
        Gfp::NOWAIT & self.gfp | Gfp::ABOVE_LOW & self.gfp
    }

    /// So many of those that were admitted were not taken of the zone.
    fn give_back(&self, frames: usize) {
        if frames > 0 {
            self.frames.reclaim.into_iter().for_each(|reclaim| reclaim.give_back(frames));
        }
    }

    /// Whether what it gives next has to be asked for.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.spare.is_none() && self.pcp.is_empty()
    }

    /// A frame, and whether it is zeroed. Frames at hand were admitted when they were taken from the zone.
    #[inline]
    fn get_one(&mut self) -> Option<(Pfn, bool)> {
        if self.pcp.is_empty() {
            self.get_more()
        } else {
            self.pcp.get()
        }
    }

    #[cold]
    #[inline(never)]
    fn get_more(&mut self) -> Option<(Pfn, bool)> {
        let zone = self.frames.map.zone;
        let is_short = self.frames.map.is_crowded()
            || self.frames.reclaim.is_some_and(|reclaim| reclaim.pressure() >= Pressure::Low);
        let frames = if is_short { 1 } else { LIST_FRAMES };
        if !self.admits(self.gfp, frames) {
            return None;
        }
        // Where the thread runs now: two that run at the same time take frames from blocks of their own,
        // one after the other, which is what fetching ahead goes by.
        let cpu = cpu::current();
        let found = if is_short {
            // No more than is needed: nobody else gets at what a list has.
            zone.get_frame(cpu, Want::Zeroed)
        } else {
            self.refill(cpu)
        };
        // Of a zone in pieces it is less.
        let taken = usize::from(found.is_some()) + self.pcp.len();
        self.give_back(frames.saturating_sub(taken));
        found
    }

    /// The first of frames that are then at hand.
    fn refill(&mut self, cpu: usize) -> Option<(Pfn, bool)> {
        self.pcp.refill_from(cpu);
        loop {
            if let Some(found) = self.pcp.get() {
                return Some(found);
            }
            self.frames.map.zone.grow(1).ok()?;
        }
    }

    /// A frame that reads as zeros, cleared if necessary.
    #[cold]
    #[inline(never)]
    fn clear(&self, frame: Pfn) -> Pfn {
        let at = self.frames.bytes(frame).as_ptr();
        // SAFETY: the frame is this list's, and nobody else's.
        unsafe { self.frames.map.clearer.clear(at, FRAME_SIZE, Warmth::Hot) };
        frame
    }
}

impl<M: Memory, L: Budget + Sync> FrameList for List<'_, M, L> {
    #[inline]
    fn get_zeroed(&mut self) -> Option<Pfn> {
        if let Some(frame) = self.spare {
            // Seldom: so it is not written each time.
            self.spare = None;
            return Some(frame);
        }
        match self.get_one()? {
            (frame, true) => Some(frame),
            (frame, false) => Some(self.clear(frame)),
        }
    }

    #[inline]
    fn get_zeroed_run(&mut self, most: usize) -> Option<(Pfn, usize)> {
        match self.pcp.get_zeroed_run(most) {
            Some(run) => Some(run),
            // A frame that is fetched ahead of need waits for no thread.
            None => {
                let (frame, is_zeroed) = self.get_one()?;
                Some((if is_zeroed { frame } else { self.clear(frame) }, 1))
            }
        }
    }

    fn put_zeroed_run(&mut self, first: Pfn, frames: usize) {
        if !self.pcp.unget_zeroed_run(first, frames) {
            (first.0..first.0 + frames).for_each(|frame| self.put_zeroed(Pfn(frame)));
        }
    }

    fn get_any(&mut self) -> Option<Pfn> {
        let zone = self.frames.map.zone;
        let admitted = self.admits(self.gfp, 1);
        let found = admitted.then(|| zone.get_frame(cpu::current(), Want::Dirty)).flatten();
        if admitted && found.is_none() {
            self.give_back(1);
        }
        // In a shortage, what this list has, of which the zone does not know.
        let found = found.map(|(frame, _zeroed)| frame).or_else(|| self.spare.take());
        found.or_else(|| {
            let may_ask = admitted || !self.pcp.is_empty();
            may_ask.then(|| self.pcp.get()).flatten().map(|(frame, _zeroed)| frame)
        })
    }

    fn get_any_at_once(&mut self) -> Option<Pfn> {
        if !self.admits(self.at_once(), 1) {
            return None;
        }
        let found = self.frames.map.zone.get_frame(cpu::current(), Want::Dirty);
        if found.is_none() {
            self.give_back(1);
        }
        found.map(|(frame, _zeroed)| frame)
    }

    fn get_many_at_once(&mut self, into: &mut [Pfn]) -> usize {
        if into.len() < 2 || !self.admits(self.at_once(), into.len()) {
            // There may be some.
            for (found, place) in into.iter_mut().enumerate() {
                let Some(frame) = self.get_any_at_once() else { return found };
                *place = frame;
            }
            return into.len();
        }
        let cpu = cpu::current();
        let mut found = self.frames.map.ledger().get_many(cpu, Want::Dirty, into);
        while let Some(place) = into.get_mut(found) {
            // The zone may grow.
            let Some((frame, _zeroed)) = self.frames.map.zone.get_frame(cpu, Want::Dirty) else {
                break;
            };
            *place = frame;
            found += 1;
        }
        self.give_back(into.len() - found);
        found
    }

    fn set_gfp(&mut self, gfp: Gfp) {
        self.gfp = gfp;
    }

    #[inline]
    fn put(&mut self, frame: Pfn) {
        let put = self.pcp.put(frame);
        debug_assert_eq!(put, Ok(()), "{frame:?}");
        if self.frames.map.is_crowded() {
            self.flush();
        }
    }

    #[inline]
    fn put_zeroed(&mut self, frame: Pfn) {
        if let Some(other) = self.spare.replace(frame) {
            let put = self.frames.map.ledger().put_zeroed_frame(other);
            debug_assert_eq!(put, Ok(()), "{other:?}");
        }
    }

    fn flush(&mut self) {
        let flushed = self.pcp.flush();
        debug_assert_eq!(flushed, Ok(()));
    }
}

impl<M: Memory, L: Budget> Drop for List<'_, M, L> {
    fn drop(&mut self) {
        self.frames.map.lists.fetch_sub(1, Ordering::Relaxed);
        if let Some(frame) = self.spare.take() {
            let put = self.frames.map.ledger().put_zeroed_frame(frame);
            debug_assert_eq!(put, Ok(()), "{frame:?}");
        }
    }
}
