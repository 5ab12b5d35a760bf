//! Pages that come in, as faulting threads report them to reclaim of their zone.
//!
//! A page that came back from its backing is reported twice: when it is in its frame, where it came from, and in a
//! batch, as every page. The policy is told by the second. Pages that came together are reported under one lock.

use crate::backing::{Backing, Came};
use crate::page_table::pager::{Arrived, LruPage, SpaceId};
use pumice_io::sync::in_policy;

use super::members::Owner;
use super::policy::{Arrival, Policy, Shadow};
use super::zone::{Frame, State, ZoneReclaim};

/// Pages whose backing is asked before the lock is taken.
const AT_ONCE: usize = 64;

/// Pages of a space came from a backing into memory of a zone: tells both.
pub(super) fn came_in_all<P: Policy + Send>(
    zone: &ZoneReclaim<P>,
    backing: &dyn Backing,
    space: SpaceId,
    pages: &[Arrived],
) {
    for pages in pages.chunks(AT_ONCE) {
        let mut came = [Came::default(); AT_ONCE];
        let mut is_any_to_tell = false;
        for (came, &Arrived { page, from, used }) in came.iter_mut().zip(pages) {
            *came = backing.came_in(space, page.page, from, used);
            is_any_to_tell |= is_to_tell(*came, used.is_empty());
        }
        if is_any_to_tell {
            zone.came_in(space, pages, &mut came);
        }
        for came in came.iter().filter(|came| came.slot != 0) {
            backing.release(&mut std::iter::once(came.slot));
        }
    }
}

/// A page that was never in memory, and that a thread has asked for, is as any that is new: the zone need not be told
/// where it came from.
fn is_to_tell(came: Came, is_read_ahead: bool) -> bool {
    is_read_ahead || came != Came::default()
}

impl<P: Policy> ZoneReclaim<P> {
    /// Pages of a space came in. Slots of pages that were in those frames before are given up.
    pub(super) fn lru_add(&self, space: SpaceId, pages: &[LruPage]) {
        if in_policy::is_calling() {
            // Walks over the tables find them.
            return;
        }
        let mut state = self.state();
        let Some(member) = state.members.find(space) else { return };
        state.add_all(member, pages);
        // Once is enough, however long it takes until it runs.
        if state.kswapd.is_waiting() && state.is_short(self.free()) && state.kswapd.call() {
            self.wake.notify_one();
        }
    }

    /// Pages of a space came back from their backing. The slots that are kept are taken out of `came`.
    fn came_in(&self, space: SpaceId, pages: &[Arrived], came: &mut [Came]) {
        if in_policy::is_calling() {
            return;
        }
        let mut state = self.state();
        let member = state.members.find(space);
        let mut is_unstuck = false;
        for (arrived, came) in pages.iter().zip(came) {
            if !is_to_tell(*came, arrived.used.is_empty()) {
                continue;
            }
            state.counts.pswpin += 1;
            state.counts.read_ahead += u64::from(arrived.used.is_empty());
            // Where it was another may go.
            is_unstuck |= came.slot == 0;
            if member.is_some_and(|member| state.note_came(member, arrived, *came)) {
                came.slot = 0;
            }
        }
        if is_unstuck && state.kswapd.get_unstuck() {
            self.wake.notify_one();
        }
    }
}

impl<P: Policy> State<P> {
    /// Records where the page of a frame came from. Whether it was: the frame is one of the zone's.
    fn note_came(
        &mut self,
        member: usize,
        &Arrived { page, used, .. }: &Arrived,
        came: Came,
    ) -> bool {
        let arrival = match (used.is_empty(), came.note) {
            (true, _) => Arrival::ReadAhead,
            (false, Some(note)) => Arrival::Refault(Shadow::from_bits(note)),
            (false, None) => Arrival::Fresh,
        };
        let Some(number) = self.number(page.frame) else { return false };
        let owner = Owner::new(member, page.page);
        let new = Frame::of(owner, came.slot, Some(arrival));
        let old = std::mem::replace(&mut self.frames[number], new);
        self.may_have_slots |= came.slot != 0;
        if let Some((member, slot)) = old.slot() {
            self.members.release(member, slot);
        }
        true
    }
}
