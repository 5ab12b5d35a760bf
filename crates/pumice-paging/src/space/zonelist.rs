//! Frames of several zones, for spaces over all of them.
//!
//! Frames are numbered from each zone's first on ([`Reclaim::first`]), so a number says whose it is. A request is
//! served from the first of the zones that it may use ([`Gfp::within`]) that has frames above its low watermark. Where
//! none has, `kswapd` of all of these is woken, and the first zone with frames above min serves it (SPEC E6, and the
//! kernel's `get_page_from_freelist`). So a zone is neither filled up nor reclaimed for as long as another one has
//! room, and one that nobody asks for is left alone. Tables of the upper levels and records come from any.
//!
//! Where one zone's numbers end the next one's may begin, at any other address: a range of numbers is a range of memory
//! within one zone only ([`FrameSource::are_side_by_side`]).
//!
//! A zone's reclaim knows only the last report of a shortage, and nobody reports that pages were unmapped. So a thread
//! that passes a zone over says so ([`Reclaim::passed_over`]), and a zone that was passed over often counts its free
//! frames:
//!
//! ```text
//!   a thread's list    ample or unknown --pressure() is Low--> passed over, 1, 2, ... 64 times --> tells the zone
//!                      it ends, having passed over some times -----------------------------------> tells the zone
//!   the zone           told less often than it has blocks  --> short still
//!                      told as often as it has blocks      --> counts, unless somebody has its state: then next time
//! ```
//! Until it tells, a thread writes to nothing but its list; it writes to nothing at all where a zone is not short.

use core::ptr::NonNull;

use super::mem_map::{Frames, List, MemMap};
use crate::page_table::entry::MAX_NUMBER;
use crate::page_table::pager::Pager;
use crate::page_table::tables::FrameList;
use crate::page_table::FrameSource;
use pumice_frames::addr::Pfn;
use pumice_frames::error::{Error, Result};
use pumice_frames::frame::{Budget, Gfp, Pressure, Reclaim};
use pumice_frames::sys::mem::{Memory, Os};
use pumice_io::sync::atomic::{AtomicU32, AtomicU64};

/// Times that a thread passes a zone over because it is short, after which it tells the zone so.
const TOLD_AT_ONCE: u32 = 64;

/// A zone among others.
#[derive(Debug)]
struct Member<'m, M: Memory, L: Budget> {
    first: usize,
    frames: Frames<'m, M, L>,
    reclaim: &'m dyn Reclaim,
}

impl<M: Memory, L: Budget> Clone for Member<'_, M, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory, L: Budget> Copy for Member<'_, M, L> {}

impl<M: Memory, L: Budget> Member<'_, M, L> {
    /// Counts one more request for which it was short. Whether it still is.
    fn is_passed_over(&self, times: &mut u32) -> bool {
        *times += 1;
        if *times < TOLD_AT_ONCE {
            return true;
        }
        self.tell(times);
        self.reclaim.pressure() >= Pressure::Low
    }

    /// Tells the zone how often it was passed over.
    #[cold]
    #[inline(never)]
    fn tell(&self, times: &mut u32) {
        self.reclaim.passed_over(core::mem::take(times) as usize);
    }
}

/// See the module's top.
#[derive(Debug)]
pub struct Zonelist<'m, M: Memory = Os, L: Budget = ()> {
    members: [Option<Member<'m, M, L>>; Gfp::MOST_ZONES],
    pager: &'m dyn Pager,
}

impl<'m, M: Memory, L: Budget + Sync> Zonelist<'m, M, L> {
    /// Of zones, each with its reclaim, in the order in which they are asked: that in which the pager has them. Numbers
    /// of each one's frames come after those of the one before it.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] for no zones, more than [`Gfp::MOST_ZONES`], or numbers that are not so.
    pub fn new(
        zones: &[(&'m MemMap<'m, M, L>, &'m dyn Reclaim)],
        pager: &'m dyn Pager,
    ) -> Result<Zonelist<'m, M, L>> {
        let mut members = [None; Gfp::MOST_ZONES];
        let mut end = 0;
        for (nth, &(map, reclaim)) in zones.iter().enumerate() {
            let Pfn(first) = reclaim.first();
            let place = members.get_mut(nth).filter(|_| first >= end).ok_or(Error::OutOfFrames)?;
            end = first.saturating_add(map.zone().capacity_frames());
            *place = Some(Member { first, frames: map.frames_in(pager, reclaim), reclaim });
        }
        let is_right = !zones.is_empty() && end <= MAX_NUMBER;
        is_right.then_some(Zonelist { members, pager }).ok_or(Error::OutOfFrames)
    }

    /// The frames, for [`crate::space::VmSpace::new`].
    pub fn frames(&self) -> ZonedFrames<'_, M, L> {
        ZonedFrames(self)
    }

    fn members(&self) -> impl Iterator<Item = &Member<'m, M, L>> {
        self.members.iter().map_while(Option::as_ref)
    }

    /// Which zone has a frame, and the frame's number there.
    #[inline]
    fn locate(&self, frame: Pfn) -> (usize, &Member<'m, M, L>, Pfn) {
        let mut found = 0;
        for (nth, member) in self.members().enumerate().skip(1) {
            if member.first <= frame.0 {
                found = nth;
            }
        }
        let member = self.members[found].as_ref().expect("one at least");
        (found, member, Pfn(frame.0.wrapping_sub(member.first)))
    }
}

/// The frames of a [`Zonelist`].
#[derive(Debug)]
pub struct ZonedFrames<'m, M: Memory = Os, L: Budget = ()>(&'m Zonelist<'m, M, L>);

impl<M: Memory, L: Budget> Clone for ZonedFrames<'_, M, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory, L: Budget> Copy for ZonedFrames<'_, M, L> {}

// SAFETY: each zone's frames are its own, and a number names one zone and one frame in it. A run is one zone's.
unsafe impl<'m, M: Memory, L: Budget + Sync> FrameSource for ZonedFrames<'m, M, L> {
    const TABLE_BITS: u32 = 9;
    type List = Lists<'m, M, L>;

    fn list(self) -> Lists<'m, M, L> {
        let mut lists = self.0.members.map(|member| member.map(|member| member.frames.list()));
        lists.iter_mut().flatten().for_each(|list| list.set_gfp(Gfp::ABOVE_LOW));
        Lists { lists, zones: self.0, gfp: Gfp::KERNEL, passed_over: [0; Gfp::MOST_ZONES] }
    }

    #[inline]
    fn words(self, frame: Pfn) -> NonNull<AtomicU64> {
        self.bytes(frame).cast()
    }

    #[inline]
    fn bytes(self, frame: Pfn) -> NonNull<u8> {
        let (_, member, frame) = self.0.locate(frame);
        member.frames.bytes(frame)
    }

    fn are_side_by_side(self, first: Pfn, frames: usize) -> bool {
        let (_, member, first) = self.0.locate(first);
        member.frames.are_side_by_side(first, frames)
    }

    fn get_run(self, frames: usize) -> Option<Pfn> {
        let is_short = |member: &&Member<'m, M, L>| member.reclaim.pressure() >= Pressure::Low;
        let ample = self.0.members().filter(|member| !is_short(member));
        let mut order = ample.chain(self.0.members().filter(is_short));
        order.find_map(|member| Some(Pfn(member.first + member.frames.get_run(frames)?.0)))
    }

    fn get_zeroed_block(self, gfp: Gfp) -> Option<Pfn> {
        let allowed = self.0.members().enumerate().filter(|&(nth, _)| gfp.may_use(nth));
        let mut allowed = allowed.map(|(_, member)| member);
        allowed.find_map(|member| Some(Pfn(member.first + member.frames.get_zeroed_block(gfp)?.0)))
    }

    fn put_run(self, first: Pfn) {
        let (_, member, first) = self.0.locate(first);
        member.frames.put_run(first);
    }

    #[inline]
    fn sharers(&self, frame: Pfn) -> &AtomicU32 {
        let (_, member, frame) = self.0.locate(frame);
        member.frames.sharers(frame)
    }

    #[inline]
    fn zero_page(self) -> Pfn {
        let member = self.0.members[0].as_ref().expect("one at least");
        Pfn(member.first + member.frames.zero_page().0)
    }

    #[inline]
    fn pager(&self) -> Option<&dyn Pager> {
        Some(self.0.pager)
    }

    fn hold_readable(self, frame: Pfn) {
        let (_, member, frame) = self.0.locate(frame);
        member.frames.hold_readable(frame);
    }

    fn let_go_readable(self, frame: Pfn) {
        let (_, member, frame) = self.0.locate(frame);
        member.frames.let_go_readable(frame);
    }

    fn free_frames(self, zone_of: Pfn) -> usize {
        let (_, member, frame) = self.0.locate(zone_of);
        member.frames.free_frames(frame)
    }

    fn all_free_frames(self) -> usize {
        self.0.members().map(|member| member.frames.all_free_frames()).sum()
    }
}

/// A thread's lists, one for each zone. They take frames from above the low watermark, but where there are no such.
#[derive(Debug)]
pub struct Lists<'m, M: Memory = Os, L: Budget = ()> {
    lists: [Option<List<'m, M, L>>; Gfp::MOST_ZONES],
    zones: &'m Zonelist<'m, M, L>,
    gfp: Gfp,
    /// Times that each zone was passed over because it was short, that it has not been told of.
    passed_over: [u32; Gfp::MOST_ZONES],
}

impl<'m, M: Memory, L: Budget + Sync> Lists<'m, M, L> {
    #[inline]
    fn get<R>(
        &mut self,
        get: impl Fn(&mut List<'m, M, L>) -> Option<(Pfn, R)>,
    ) -> Option<(Pfn, R)> {
        let Lists { lists, zones, gfp, passed_over } = self;
        for (nth, (list, member)) in lists.iter_mut().flatten().zip(zones.members()).enumerate() {
            if !gfp.may_use(nth) {
                continue;
            }
            let is_short = list.is_empty() && member.reclaim.pressure() >= Pressure::Low;
            if is_short && member.is_passed_over(&mut passed_over[nth]) {
                continue;
            }
            if let Some((frame, more)) = get(list) {
                return Some((Pfn(member.first + frame.0), more));
            }
        }
        self.get_in_shortage(get)
    }

    #[cold]
    #[inline(never)]
    fn get_in_shortage<R>(
        &mut self,
        get: impl Fn(&mut List<'m, M, L>) -> Option<(Pfn, R)>,
    ) -> Option<(Pfn, R)> {
        let Lists { lists, zones, gfp, .. } = self;
        let allowed = |&nth: &usize| gfp.may_use(nth);
        if gfp.contains(Gfp::KSWAPD_RECLAIM) {
            let zones = zones.members().enumerate().filter(|(nth, _)| allowed(nth));
            zones.for_each(|(_, member)| member.reclaim.wake());
        }
        let zones = lists.iter_mut().flatten().zip(zones.members()).enumerate();
        zones.filter(|(nth, _)| allowed(nth)).find_map(|(_, (list, member))| {
            list.set_gfp(*gfp);
            let found = get(list);
            list.set_gfp(Gfp::ABOVE_LOW);
            found.map(|(frame, more)| (Pfn(member.first + frame.0), more))
        })
    }

    /// The list of a frame's zone, and the frame's number there.
    #[inline]
    fn of(&mut self, frame: Pfn) -> (&mut List<'m, M, L>, Pfn) {
        let (nth, _, frame) = self.zones.locate(frame);
        (self.lists[nth].as_mut().expect("a list for each zone"), frame)
    }
}

impl<M: Memory, L: Budget> Drop for Lists<'_, M, L> {
    fn drop(&mut self) {
        // Threads that come and go are many threads.
        let zones = self.zones.members.iter().flatten().zip(&mut self.passed_over);
        zones.filter(|(_, times)| **times > 0).for_each(|(member, times)| member.tell(times));
    }
}

impl<M: Memory, L: Budget + Sync> FrameList for Lists<'_, M, L> {
    #[inline]
    fn get_zeroed(&mut self) -> Option<Pfn> {
        self.get(|list| Some((list.get_zeroed()?, ()))).map(|(frame, ())| frame)
    }

    #[inline]
    fn get_zeroed_run(&mut self, most: usize) -> Option<(Pfn, usize)> {
        self.get(|list| list.get_zeroed_run(most))
    }

    fn put_zeroed_run(&mut self, first: Pfn, frames: usize) {
        let (list, first) = self.of(first);
        list.put_zeroed_run(first, frames);
    }

    fn get_any(&mut self) -> Option<Pfn> {
        self.get(|list| Some((list.get_any()?, ()))).map(|(frame, ())| frame)
    }

    fn get_any_at_once(&mut self) -> Option<Pfn> {
        self.get(|list| Some((list.get_any_at_once()?, ()))).map(|(frame, ())| frame)
    }

    fn set_gfp(&mut self, gfp: Gfp) {
        self.gfp = gfp;
    }

    #[inline]
    fn put(&mut self, frame: Pfn) {
        let (list, frame) = self.of(frame);
        list.put(frame);
    }

    #[inline]
    fn put_zeroed(&mut self, frame: Pfn) {
        let (list, frame) = self.of(frame);
        list.put_zeroed(frame);
    }

    fn flush(&mut self) {
        self.lists.iter_mut().flatten().for_each(FrameList::flush);
    }
}
