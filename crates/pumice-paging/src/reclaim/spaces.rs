//! The spaces whose pages a zone's reclaim may evict: they come and go while it works.
//!
//! A space is a member between [`ZoneReclaim::attach`]'s begin and end. Of each, reclaim has a task, which the
//! reclaimers use in turn, and the backing. They look members up by place, under the zone's lock, and keep
//! what they found for as long as they work on its pages: each [`Attached`] is counted. A thread that detaches takes
//! the member's pages off the policy, so that none is chosen any more, and waits until nobody has it: for writes that
//! are in flight, no longer.

use std::sync::Arc;
use std::time::Duration;

use crate::backing::{Backing, HasSwapCache, SwapCaches};
use crate::page_table::{FrameSource, TableOps};
use crate::space::{Result, VmError, VmSpace};
use pumice_frames::frame::Gfp;
use pumice_io::sync::{in_policy, Mutex};

use super::members::{AnyTask, Attached, FreeFrames, InUse};
use super::policy::Policy;
use super::zone::{State, ZoneReclaim};

/// Frames looked at under one lock when a member goes.
const FORGOTTEN_AT_ONCE: usize = 4096;
/// The time between two looks whether a member can go. A thread that lets go of it wakes those that wait.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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
    pub(super) fn attach<F: FrameSource<List: Send>, T: TableOps, R>(
        &self,
        space: &VmSpace<F, T>,
        backing: &dyn Backing,
        work: impl FnOnce() -> R,
    ) -> Result<R> {
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
        let caches = backing.swap_caches();
        // SAFETY: the lifetimes are shorter than they then say: `Membership` takes the member out when `work` is over,
        // however that ends, and waits until nobody has it.
        let (task, backing, free_frames) = unsafe {
            (
                std::mem::transmute::<AnyTask<'_>, AnyTask<'static>>(task),
                std::mem::transmute::<&dyn Backing, &'static dyn Backing>(backing),
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
        state.members.close(place);
        let (mut slots, mut next) = (Vec::new(), Some(0));
        while let Some(first) = next {
            next = state.forget_pages(place, first, FORGOTTEN_AT_ONCE, &mut slots);
            // At once: writes of others have room there.
            state.members.release_all(place, &mut slots.drain(..));
            if next.is_some() {
                drop(state);
                state = self.state();
            }
        }
        let member = loop {
            // Threads that have it look whether it is still there before they wait for anything.
            self.wake.notify_all();
            match state.members.remove(place) {
                Ok(member) => break member,
                Err(InUse) => state = self.let_go.wait_timeout(state, LOOK_AGAIN).0,
            }
        };
        self.count_free(&mut state);
        drop(state);
        // Its task gives frames back.
        drop(member);
    }
}
