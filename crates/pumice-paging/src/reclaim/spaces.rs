//! The spaces whose pages a zone's reclaim may take out: they come and go while it works.
//!
//! A space is a member between [`ZoneReclaim::attach`]'s begin and end. Of each, reclaim has a task, which the
//! reclaimers use in turn, and the backing. They look members up by place, under the zone's lock, and keep
//! what they found for as long as they work on its pages: each [`Attached`] is counted. A thread that detaches takes
//! the member's pages off the policy, so that none is chosen any more, and waits until nobody has it: for writes that
//! are in flight, no longer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::backing::{Backing, HasSwapCache, SwapCaches};
use crate::page_table::pager::{Evicted, LruPage, SpaceId};
use crate::page_table::{FrameSource, TableOps};
use crate::space::region::Page;
use crate::space::write_back::{WriteBack, WriteFailed};
use crate::space::{Result, Task, Transit, VmError, VmSpace};
use pumice_frames::addr::Pfn;
use pumice_frames::frame::Gfp;
use pumice_io::sync::{in_policy, Mutex, MutexGuard};

use super::contained::Contained;
use super::policy::Policy;
use super::zone::{State, ZoneReclaim};

/// Frames looked at under one lock when a member goes.
const FORGOTTEN_AT_ONCE: usize = 4096;
/// How long it is waited before it is looked again whether a member can go; who lets go of it wakes who waits.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A space as reclaim uses it: a [`Task`], whatever its kind, that may use the frames that are kept back.
pub(super) trait PagedTask {
    fn mapped(&self, page: usize) -> Option<Pfn>;
    fn is_huge(&self, page: usize) -> bool;
    fn test_and_clear_young(&self, page: usize) -> Option<bool>;
    fn begin_swap_out(&self, page: usize) -> Option<Transit>;
    fn end_swap_out(&self, transit: Transit, to: Evicted) -> core::result::Result<(), Evicted>;
    fn end_swap_out_noting(
        &self,
        transit: Transit,
        to: Evicted,
        note: &mut dyn FnMut(&Page),
    ) -> core::result::Result<(), Evicted>;
    fn cancel_swap_out(&self, transit: Transit);
    fn is_dirty(&self, page: usize) -> bool;
    fn begin_write_back(&self, page: usize) -> Option<WriteBack>;
    fn end_write_back(&self, begun: WriteBack, went: core::result::Result<(), WriteFailed>);
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
    fn begin_swap_out(&self, page: usize) -> Option<Transit> {
        self.begin_swap_out(page)
    }
    fn end_swap_out(&self, transit: Transit, to: Evicted) -> core::result::Result<(), Evicted> {
        self.end_swap_out(transit, to)
    }
    fn end_swap_out_noting(
        &self,
        transit: Transit,
        to: Evicted,
        note: &mut dyn FnMut(&Page),
    ) -> core::result::Result<(), Evicted> {
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
    fn end_write_back(&self, begun: WriteBack, went: core::result::Result<(), WriteFailed>) {
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
type FreeFrames<'s> = Box<dyn Fn() -> usize + Send + Sync + 's>;

/// A space that reclaim works on.
pub(super) struct Attached {
    pub id: SpaceId,
    /// Where the zone's first frame is.
    zone_at: usize,
    task: Mutex<AnyTask<'static>>,
    backing: Contained<'static>,
    /// How many frames of the zone are free.
    free_frames: FreeFrames<'static>,
}

impl Attached {
    /// The task, for one reclaimer at a time. Nobody waits for anything but memory while they have it.
    pub fn task(&self) -> MutexGuard<'_, AnyTask<'static>> {
        self.task.lock()
    }

    pub fn backing(&self) -> Contained<'_> {
        self.backing
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attached({:?})", self.id)
    }
}

#[derive(Debug)]
struct Member {
    space: Arc<Attached>,
    /// Nobody is told of it any more.
    is_leaving: bool,
}

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
    fn are_of_other_zone(&self, zone_at: usize) -> bool {
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
    fn is_backed_by(&self, place: usize, caches: &SwapCaches) -> bool {
        let member = self.places.get(place).and_then(Option::as_ref);
        let its = member.and_then(|member| member.space.backing.swap_caches());
        its.is_some_and(|its| std::ptr::eq(its, caches))
    }

    /// Takes a member's page out of the swap cache.
    pub fn release(&self, place: usize, slot: u32) {
        self.release_all(place, &mut std::iter::once(slot));
    }

    /// As [`Members::release`], of many.
    fn release_all(&self, place: usize, slots: &mut dyn Iterator<Item = u32>) {
        if let Some(Some(member)) = self.places.get(place) {
            member.space.backing().release(slots);
        }
    }

    fn add(&mut self, space: Arc<Attached>) -> usize {
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
}

/// Ends a membership when it is dropped.
struct Membership<'r, P: Policy + Send> {
    zone: &'r ZoneReclaim<P>,
    place: usize,
}

impl<P: Policy + Send> Drop for Membership<'_, P> {
    fn drop(&mut self) {
        self.zone.detach(self.place);
    }
}

impl<P: Policy + Send> HasSwapCache for ZoneReclaim<P> {
    fn free_swap_cache(&self, of: &SwapCaches) {
        let mut state = self.state();
        if !std::mem::take(&mut state.may_have_slots) {
            return;
        }
        let State { frames, members, may_have_slots, .. } = &mut *state;
        // Those of pages that are no more too.
        for frame in frames.iter_mut().filter(|frame| frame.slot != 0) {
            let member = frame.owner.member();
            if members.is_backed_by(member, of) {
                members.release(member, std::mem::take(&mut frame.slot));
            } else {
                *may_have_slots = true;
            }
        }
    }
}

impl<P: Policy + Send> ZoneReclaim<P> {
    /// Takes pages of `space` out too while `work` is done, to `backing`, which is the space's own pager's.
    ///
    /// # Errors
    /// [`VmError::OtherZone`]; as [`VmSpace::enter`].
    pub(super) fn attach<F: FrameSource, T: TableOps, R>(
        &self,
        space: &VmSpace<F, T>,
        backing: &dyn Backing,
        work: impl FnOnce() -> R,
    ) -> Result<R>
    where
        F::List: Send,
    {
        // Before any lock, of which that of caches comes before the zone's.
        in_policy::refuse();
        let task = space.enter()?;
        // It reclaims nothing, not even for itself.
        core::mem::forget(task.gfp_scope(Gfp::MEMALLOC));
        let task: AnyTask<'_> = Box::new(task);
        let frames = space.frames();
        let first = self.frame(0);
        let zone_at = frames.bytes(first).as_ptr() as usize;
        let free_frames: FreeFrames<'_> = Box::new(move || frames.free_frames(first));
        let backing = Contained::new(backing);
        let caches = backing.swap_caches();
        // SAFETY: the lifetimes are shorter than they then say: `Membership` takes the member out when `work` is over,
        // however that ends, and waits until nobody has it.
        let (task, backing, free_frames) = unsafe {
            (
                std::mem::transmute::<AnyTask<'_>, AnyTask<'static>>(task),
                std::mem::transmute::<Contained<'_>, Contained<'static>>(backing),
                std::mem::transmute::<FreeFrames<'_>, FreeFrames<'static>>(free_frames),
            )
        };
        let (id, task) = (space.id(), Mutex::new(task));
        let space = Arc::new(Attached { id, zone_at, task, backing, free_frames });
        let while_attached = || {
            let mut state = self.state();
            if state.members.are_of_other_zone(zone_at) {
                return Err(VmError::OtherZone);
            }
            let place = state.members.add(space);
            self.count_free(&mut state);
            drop(state);
            self.frames_freed.notify_all();
            let _membership = Membership { zone: self, place };
            Ok(work())
        };
        match caches {
            Some(caches) => caches.with(self, while_attached),
            None => while_attached(),
        }
    }

    fn detach(&self, place: usize) {
        let mut state = self.state();
        state.members.changes += 1;
        if let Some(Some(member)) = state.members.places.get_mut(place) {
            member.is_leaving = true;
        }
        let (mut slots, mut next) = (Vec::new(), Some(0));
        while let Some(first) = next {
            next = state.forget_pages(place, first, FORGOTTEN_AT_ONCE, &mut slots);
            // At once: what others write has room there.
            state.members.release_all(place, &mut slots.drain(..));
            if next.is_some() {
                drop(state);
                state = self.state();
            }
        }
        let member = loop {
            // Those who have it look whether it is still there before they wait for anything.
            self.wake.notify_all();
            let member = state.members.places[place].as_mut();
            if member.is_none_or(|member| Arc::get_mut(&mut member.space).is_some()) {
                break state.members.places[place].take();
            }
            state = self.let_go.wait_timeout(state, LOOK_AGAIN).0;
        };
        self.count_free(&mut state);
        drop(state);
        // Its task gives frames back.
        drop(member);
    }
}
