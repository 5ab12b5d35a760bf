//! The published rule for mapped pages (SPEC E4), as in 2.4, which had no reverse mapping.
//!
//! Pages are looked at from the inactive tail. A mapped one is rolled over and counted. When `vm_mapped_ratio` of them
//! have been met for each page that is to go, or enough, `swap_out` walks the page tables, from where it ended the last
//! time, one space after the other. Pages that were accessed since the last look are marked so, which activates those
//! that had been marked before. Active ones are passed over. The rest are unmapped, as many as make a batch, and are
//! evicted as all others are ([`super::writeout`]). One that is locked, by a guard, is accessed.
//!
//! (In 2.4 what `swap_out` had unmapped went to the inactive list's other end first, and was written when it was met
//! there. Here a page in transit is on no list, and a fault takes it back all the same.)
//!
//! # It ends
//! Pages may all have been accessed whenever they are looked at. So after a turn round all tables in which there
//! was none to unmap, the bit says nothing of pages that are not active, of which [`Policy::refill`] makes some each
//! time, until one has gone; and after a second such turn there is no more to try.
//!
//! [`Policy::refill`]: super::policy::Policy::refill

use crate::page_table::pager::LruPage;

use super::members::Owner;
use super::policy::Policy;
use super::round::Round;
use super::writes::Victim;

/// Pages looked at under one lock.
const LOOKED_AT_ONCE: usize = 64;
/// One in so many pages that are looked at may be mapped before tables are walked, as 2.4.17 has it.
const LOOKED_AT_FOR_MAPPED: usize = 10;
/// Pages in memory, by those of a batch at most.
const BATCH_SHARE: usize = 8;

impl<P: Policy + Send> Round<'_, P> {
    /// Chooses a batch by the rule.
    pub fn choose_by_tables(&mut self, vm_mapped_ratio: usize) {
        let mut state = self.zone.state();
        let batch = self.begin_batch(&mut state, |pages| pages / BATCH_SHARE + 1);
        state.policy.refill(batch);
        let most = state.policy.len();
        drop(state);
        let most_mapped = (batch * vm_mapped_ratio).min(most / LOOKED_AT_FOR_MAPPED);
        self.pass_over_mapped(most_mapped, most);
        self.swap_out(batch);
        if self.victims.is_empty() {
            self.progress.note_idle_turn();
        }
    }

    /// `shrink_cache`, as far as it is about mapped pages, which here are all that there are: those that their owner
    /// unmapped are forgotten on the way.
    fn pass_over_mapped(&mut self, most_mapped: usize, most: usize) {
        let (mut mapped, mut looked_at) = (0, 0);
        let mut tail: Vec<(u32, Owner)> = Vec::with_capacity(LOOKED_AT_ONCE);
        while mapped < most_mapped && looked_at < most {
            let mut state = self.zone.state();
            let many = LOOKED_AT_ONCE.min(most_mapped - mapped).min(most - looked_at);
            for _ in 0..many {
                let Some(frame) = state.policy.roll_over() else { break };
                tail.push((frame, state.frames[frame as usize].owner));
            }
            drop(state);
            if tail.is_empty() {
                break;
            }
            looked_at += tail.len();
            mapped += self.count_mapped(&mut tail);
            self.forget_gone(&mut tail);
        }
        self.zone.state().counts.passed_over += mapped as u64;
    }

    /// How many of these are mapped. Leaves those that are not.
    fn count_mapped(&self, pages: &mut Vec<(u32, Owner)>) -> usize {
        let before = pages.len();
        let mut last = None;
        pages.retain(|&(frame, owner)| {
            let member = if owner.is_none() { return true } else { owner.member() };
            // One lock for pages of one space in a row.
            if last.as_ref().is_none_or(|&(of, _)| of != member) {
                last = None;
                last = self.space(member).map(|space| (member, space.task()));
            }
            // Of a space that is on its way, or has gone, nothing is known.
            let Some((_, task)) = &last else { return false };
            task.mapped(owner.page()) != Some(self.zone.frame(frame))
        });
        before - pages.len()
    }

    fn forget_gone(&mut self, pages: &mut Vec<(u32, Owner)>) {
        if pages.is_empty() {
            return;
        }
        let mut state = self.zone.state();
        for (frame, owner) in pages.drain(..) {
            if state.frames[frame as usize].owner == owner && state.policy.contains(frame) {
                self.notes.slots.extend(state.forget_gone(frame));
            }
        }
    }

    /// `swap_out`: goes round the page tables until there is a batch to unmap, once at most.
    fn swap_out(&mut self, batch: usize) {
        let start = self.zone.state().swap_out_from;
        let (mut at, mut wraps) = (start, 0);
        while self.victims.len() < batch && (wraps == 0 || wraps == 1 && at < start) {
            let next = self.walk_table(at, batch);
            wraps += usize::from(next <= at);
            at = next;
        }
        self.zone.state().swap_out_from = at;
    }

    /// Looks at the next table's pages, from a page of a space on. Where to go on.
    fn walk_table(&mut self, (place, from): (usize, usize), batch: usize) -> (usize, usize) {
        let (mut found, mut next) = self.find_present(place, from);
        // Others are of another zone.
        let state = self.zone.state();
        found.retain(|page| state.number(page.frame).is_some());
        drop(state);
        let mut left = None;
        let huge = self.huge_young(place, found.first());
        for pages in found.chunks(LOOKED_AT_ONCE) {
            left = self.look_at(place, (pages, huge), batch);
            if let Some(page) = left {
                next = page;
                break;
            }
        }
        self.keep_room(found);
        match next {
            0 if left.is_none() && place + 1 < self.known.len() => (place + 1, 0),
            0 if left.is_none() => (0, 0),
            next => (place, next),
        }
    }

    /// The accessed bit of a huge page, if it is one: it is of all its pages, and answers once.
    fn huge_young(&self, place: usize, first: Option<&LruPage>) -> Option<Option<bool>> {
        let (space, page) = (self.space(place)?, first?.page);
        let task = space.task();
        task.is_huge(page).then(|| task.test_and_clear_young(page))
    }

    /// `try_to_swap_out`, of pages of one table or huge page. Returns the first that is left, the batch being full.
    fn look_at(
        &mut self,
        place: usize,
        (pages, huge): (&[LruPage], Option<Option<bool>>),
        batch: usize,
    ) -> Option<usize> {
        let space = self.space(place)?;
        let mut young = [None; LOOKED_AT_ONCE];
        let task = space.task();
        for (young, page) in young.iter_mut().zip(pages) {
            *young = huge.unwrap_or_else(|| task.test_and_clear_young(page.page));
        }
        drop(task);
        let is_last_try = self.progress.is_last_try();
        let mut state = self.zone.state();
        state.counts.walked += pages.len() as u64;
        if !state.members.is_open(place) {
            return None;
        }
        let mut left = None;
        for (&page, is_young) in pages.iter().zip(young) {
            let (Some(nth), Some(is_young)) = (state.number(page.frame), is_young) else {
                continue;
            };
            let number = nth as u32;
            if !state.knows(place, page) {
                // As the look for such pages does, where pages are chosen otherwise.
                state.add_all(place, &[page]);
                continue;
            }
            let frame = &mut state.frames[nth];
            if is_young && frame.is_new() {
                // It came for that.
                frame.note_seen();
            } else if is_young && !is_last_try {
                let name = frame.owner.name();
                state.policy.accessed(number, name);
            }
            let may_go = (!is_young || is_last_try) && !state.policy.is_active(number);
            if !may_go {
                continue;
            }
            if self.victims.len() >= batch {
                left = left.or(Some(page.page));
                continue;
            }
            let Some(shadow) = state.policy.evict_page(number) else { continue };
            let known = std::mem::take(&mut state.frames[nth]);
            // Its bit has been looked at: its value by now is of no account if this is the last try.
            let (owner, slot, is_new) = (known.owner, known.slot, is_last_try);
            self.choose(Victim { frame: number, shadow, owner, slot, is_new });
        }
        left
    }
}
