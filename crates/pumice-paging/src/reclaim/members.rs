//! The spaces whose pages reclaim of a zone may evict, by place, and its records of each.
//!
//! The zone's state has them, under its lock; [`super::spaces`] says how they come and go.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::backing::{Backing, SwapCaches};
use crate::page_table::pager::{Evicted, LruPage, SpaceId};
use crate::page_table::{FrameSource, TableOps};
use crate::space::region::Page;
use crate::space::runs::{Accessed, Near};
use crate::space::write_back::{WriteBack, WriteFailed};
use crate::space::{Task, Transit};
use pumice_frames::addr::Pfn;
use pumice_io::sync::{Mutex, MutexGuard};

use super::writes::Victim;

/// The owner of a frame's page: which member of the zone's spaces, and the page's number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(u64);

impl Owner {
    const PAGE_BITS: u32 = 40;

    pub fn new(member: usize, page: usize) -> Owner {
        debug_assert!(page < 1 << Self::PAGE_BITS);
        Owner((member as u64 + 1) << Self::PAGE_BITS | page as u64)
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Its place among the spaces; it is somebody's.
    pub fn member(self) -> usize {
        (self.0 >> Self::PAGE_BITS) as usize - 1
    }

    /// Its name for policies.
    pub fn name(self) -> u64 {
        self.0
    }

    pub fn page(self) -> usize {
        (self.0 & ((1 << Self::PAGE_BITS) - 1)) as usize
    }
}

/// The meaning of a page's accessed bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// The page is not in memory: it was unmapped.
    Gone,
    /// It was used once: it came for that, or was read ahead before (SPEC E3: a page that is only read ahead is not
    /// marked).
    FirstUse,
    Use,
}

/// A page whose accessed bit is looked at, and its meaning if it is set; then what was seen.
pub(super) struct LookedAt {
    pub frame: u32,
    pub owner: Owner,
    pub seen: Seen,
}

/// The slot of a page in the swap cache that was a member's.
pub(super) type CachedSlot = (usize, u32);

/// A space as reclaim uses it: a [`Task`] of any kind that may use the reserve.
pub(super) trait PagedTask {
    fn mapped(&self, page: usize) -> Option<Pfn>;
    fn is_huge(&self, page: usize) -> bool;
    fn test_and_clear_young(&self, page: usize) -> Option<bool>;
    /// Notes the accessed bits of these pages, and takes them off.
    fn scan_young(&self, looked_at: &mut [LookedAt]);
    /// Evicts those of these pages in one step that can go so, and says what became of each.
    fn evict_at_once(
        &self,
        victims: &[Victim],
        to: &mut dyn FnMut(&Victim) -> (Pfn, Option<Evicted>),
        gone: &mut Vec<bool>,
    );
    fn begin_swap_out(&self, page: usize) -> Option<Transit>;
    fn end_swap_out(&self, transit: Transit, to: Evicted) -> Result<(), Evicted>;
    fn end_swap_out_noting(
        &self,
        transit: Transit,
        to: Evicted,
        note: &mut dyn FnMut(&Page),
    ) -> Result<(), Evicted>;
    fn cancel_swap_out(&self, transit: Transit);
    fn is_dirty(&self, page: usize) -> bool;
    fn begin_write_back(&self, page: usize) -> Option<WriteBack>;
    fn end_write_back(&self, begun: WriteBack, went: Result<(), WriteFailed>);
    fn give_frames_back(&self);
    fn scan_present(&self, from: usize, found: &mut dyn FnMut(LruPage)) -> usize;
    fn bytes(&self, frame: Pfn) -> NonNull<u8>;
}

impl<F: FrameSource, T: TableOps> PagedTask for Task<'_, F, T> {
    fn mapped(&self, page: usize) -> Option<Pfn> {
        self.mapped(page)
    }
    fn is_huge(&self, page: usize) -> bool {
        self.is_huge(page)
    }
    fn test_and_clear_young(&self, page: usize) -> Option<bool> {
        self.test_and_clear_young(page)
    }
    fn scan_young(&self, looked_at: &mut [LookedAt]) {
        let mut near = Near::NONE;
        for LookedAt { owner, seen, .. } in looked_at {
            match self.test_and_clear_young_near(&mut near, owner.page()) {
                Some(true) => {}
                Some(false) => *seen = Seen::Nothing,
                None => *seen = Seen::Gone,
            }
        }
    }
    fn evict_at_once(
        &self,
        victims: &[Victim],
        to: &mut dyn FnMut(&Victim) -> (Pfn, Option<Evicted>),
        gone: &mut Vec<bool>,
    ) {
        let mut near = Near::NONE;
        for victim in victims {
            let accessed = if victim.is_new { Accessed::IsNothing } else { Accessed::Counts };
            let (frame, to) = to(victim);
            let page = LruPage { page: victim.owner.page(), frame };
            gone.push(self.evict_at_once(&mut near, page, accessed, || to));
        }
    }
    fn begin_swap_out(&self, page: usize) -> Option<Transit> {
        self.begin_swap_out(page)
    }
    fn end_swap_out(&self, transit: Transit, to: Evicted) -> Result<(), Evicted> {
        self.end_swap_out(transit, to)
    }
    fn end_swap_out_noting(
        &self,
        transit: Transit,
        to: Evicted,
        note: &mut dyn FnMut(&Page),
    ) -> Result<(), Evicted> {
        self.end_swap_out_noting(transit, to, note)
    }
    fn cancel_swap_out(&self, transit: Transit) {
        self.cancel_swap_out(transit);
    }
    fn is_dirty(&self, page: usize) -> bool {
        self.is_dirty(page)
    }
    fn begin_write_back(&self, page: usize) -> Option<WriteBack> {
        self.begin_write_back(page)
    }
    fn end_write_back(&self, begun: WriteBack, went: Result<(), WriteFailed>) {
        // SAFETY: reclaim ends what it began in this space, of a page whose region its backing holds.
        unsafe { self.end_write_back(begun, went) };
    }
    fn give_frames_back(&self) {
        self.give_frames_back();
    }
    fn scan_present(&self, from: usize, found: &mut dyn FnMut(LruPage)) -> usize {
        self.scan_present(from, found)
    }
    fn bytes(&self, frame: Pfn) -> NonNull<u8> {
        self.space().frames().bytes(frame)
    }
}

pub(super) type AnyTask<'s> = Box<dyn PagedTask + Send + 's>;
pub(super) type FreeFrames<'s> = Box<dyn Fn() -> usize + Send + Sync + 's>;

/// A space that reclaim works on.
pub(super) struct Attached {
    pub id: SpaceId,
    /// Where the zone's first frame is.
    pub zone_at: usize,
    pub task: Mutex<AnyTask<'static>>,
    pub backing: &'static dyn Backing,
    /// How many frames of the zone are free.
    pub free_frames: FreeFrames<'static>,
}

impl Attached {
    /// The task, for one reclaimer at a time. Nobody waits for anything but memory while they have it.
    #[inline]
    pub fn task(&self) -> MutexGuard<'_, AnyTask<'static>> {
        self.task.lock()
    }

    pub fn backing(&self) -> &dyn Backing {
        self.backing
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attached({:?})", self.id)
    }
}

#[derive(Debug)]
pub(super) struct Member {
    space: Arc<Attached>,
    /// Nobody is told of it any more.
    is_leaving: bool,
}

/// A reclaimer has the member.
pub(super) struct InUse;

/// Spaces by place.
#[derive(Debug, Default)]
pub(super) struct Members {
    places: Vec<Option<Member>>,
    /// Goes up when one comes or goes.
    pub changes: u64,
}

impl Members {
    /// Where a space is, unless it is leaving.
    pub fn find(&self, space: SpaceId) -> Option<usize> {
        let is_it = |place: &Option<Member>| {
            place.as_ref().is_some_and(|member| member.space.id == space && !member.is_leaving)
        };
        self.places.iter().position(is_it)
    }

    /// Whether a place's pages may be chosen.
    pub fn is_open(&self, place: usize) -> bool {
        matches!(self.places.get(place), Some(Some(member)) if !member.is_leaving)
    }

    /// The space at a place, unless it is leaving.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&Arc<Attached>> {
        let member = self.places.get(place)?.as_ref().filter(|member| !member.is_leaving);
        member.map(|member| &member.space)
    }

    /// Frames that are free on the zone, as any of the spaces knows; `None` if there is none.
    pub fn free_frames(&self) -> Option<usize> {
        let mut members = self.places.iter().flatten().filter(|member| !member.is_leaving);
        members.next().map(|member| (member.space.free_frames)())
    }

    /// Whether there are spaces on a zone whose first frame is elsewhere.
    pub fn are_of_other_zone(&self, zone_at: usize) -> bool {
        self.places.iter().flatten().any(|member| member.space.zone_at != zone_at)
    }

    /// Whether there is no space whose pages may go.
    pub fn is_empty(&self) -> bool {
        !(0..self.len()).any(|place| self.is_open(place))
    }

    /// Places there are, some of them empty.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether a place's pages go to the backing whose swap caches these are.
    pub fn is_backed_by(&self, place: usize, caches: &SwapCaches) -> bool {
        let member = self.places.get(place).and_then(Option::as_ref);
        let its = member.and_then(|member| member.space.backing.swap_caches());
        its.is_some_and(|its| std::ptr::eq(its, caches))
    }

    /// Takes a member's page out of the swap cache.
    pub fn release(&self, place: usize, slot: u32) {
        self.release_all(place, &mut std::iter::once(slot));
    }

    /// As [`Members::release`], of many.
    pub fn release_all(&self, place: usize, slots: &mut dyn Iterator<Item = u32>) {
        if let Some(Some(member)) = self.places.get(place) {
            member.space.backing().release(slots);
        }
    }

    pub fn add(&mut self, space: Arc<Attached>) -> usize {
        self.changes += 1;
        let member = Some(Member { space, is_leaving: false });
        match self.places.iter().position(Option::is_none) {
            Some(place) => {
                self.places[place] = member;
                place
            }
            None => {
                self.places.push(member);
                self.places.len() - 1
            }
        }
    }

    /// Nobody is told of the member at a place any more.
    pub fn close(&mut self, place: usize) {
        self.changes += 1;
        if let Some(Some(member)) = self.places.get_mut(place) {
            member.is_leaving = true;
        }
    }

    /// Takes the member at a place out. `Err`: a reclaimer has it.
    pub fn remove(&mut self, place: usize) -> Result<Option<Member>, InUse> {
        let member = self.places[place].as_mut();
        match member.is_none_or(|member| Arc::get_mut(&mut member.space).is_some()) {
            true => Ok(self.places[place].take()),
            false => Err(InUse),
        }
    }
}
