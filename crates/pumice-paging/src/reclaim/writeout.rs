//! How pages that were chosen go: clean ones at once, the rest when they are written.
//!
//! Pages that go together are written together, as far as their backing has places beside each other. A reclaimer
//! keeps its requests until they are done, and then ends each page's transit. The page has gone, or a fault has taken
//! it back meanwhile: then it stays, and its place is given up. A page that is written in place is held for reading
//! meanwhile, and goes then if it is still clean and nobody uses it.

mod ending;

use std::vec::Drain;

use rustix::io::Errno;

use crate::backing::{Place, Refusal};
use crate::space::region::Page;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::engine::Direction;
use pumice_io::{Bytes, Request};

use super::members::{AnyTask, Attached};
use super::policy::Policy;
use super::progress::Outcome;
use super::round::{Known, Round};
use super::shrinker::Ask;
use super::writes::{Leaving, Notes, Victim, Way, Write, Writes, MANY_FAILURES, MOST_FAILURES};
use ending::{end_in_place, end_in_transit, give_up_write_back};

impl<P: Policy + Send> Round<'_, P> {
    /// Begins to evict pages of one space. Returns how many frames became free: those of pages that need not be
    /// written.
    pub fn begin_all(&mut self, victims: &[Victim]) -> usize {
        let Some(&Victim { owner, .. }) = victims.first() else { return 0 };
        let Some(space) = self.space(owner.member()).cloned() else {
            // One that has come or gone since.
            victims.iter().for_each(|&victim| self.notes.stays(victim));
            return 0;
        };
        let task = space.task();
        let mut freed = 0;
        let mut gone = std::mem::take(&mut self.gone);
        gone.clear();
        if space.backing().writes_in_place() {
            // The clean pages of files, which are most: their places are known, and nothing is noted.
            let to = &mut |victim: &Victim| {
                let frame = self.zone.frame(victim.frame);
                let outgoing = victim.outgoing(space.id, task.bytes(frame));
                (frame, space.backing().drop_clean(&outgoing))
            };
            task.evict_at_once(victims, to, &mut gone);
            freed += gone.iter().filter(|&&has_gone| has_gone).count();
        }
        let has_gone = |nth: usize| gone.get(nth) == Some(&true);
        for (_, &victim) in victims.iter().enumerate().filter(|&(nth, _)| !has_gone(nth)) {
            let is_young = task.test_and_clear_young(victim.owner.page()) == Some(true);
            if is_young && !victim.is_new {
                self.notes.stays_used(victim);
            } else if space.backing().writes_in_place() {
                freed += self.begin_in_place(&space, &task, victim);
            } else {
                freed += self.begin(&space, &task, victim);
            }
        }
        self.gone = gone;
        self.notes.clean += freed as u64;
        self.known[owner.member()].note_freed(freed);
        freed
    }

    /// Whether the request's flags allow writing pages of a space.
    fn may_write(&self, space: &Attached) -> bool {
        self.direct.is_none_or(|gfp| gfp.contains(space.backing().needs()))
    }

    /// Begins a page's transit, which is ended at once if it is clean. Returns frames that are free by it.
    fn begin(&mut self, space: &Attached, task: &AnyTask<'_>, victim: Victim) -> usize {
        let page = victim.owner.page();
        let Some(transit) = task.begin_swap_out(page) else {
            // Somebody has a guard, or several spaces share the frame; or it was unmapped.
            match task.test_and_clear_young(page) {
                Some(_) => self.notes.stays(victim),
                None => self.notes.give_up_slot(victim),
            }
            return 0;
        };
        if transit.page().frame != self.zone.frame(victim.frame) {
            // The page came back in another frame, by which the policy knows it.
            task.cancel_swap_out(transit);
            self.notes.give_up_slot(victim);
            return 0;
        }
        let outgoing = victim.outgoing(space.id, task.bytes(transit.page().frame));
        let clean = if transit.is_dirty() { None } else { space.backing().drop_clean(&outgoing) };
        let may_write = self.may_write(space) && !space.backing().writes_in_place();
        match clean {
            Some(to) => {
                if task.end_swap_out(transit, to).is_ok() {
                    return 1;
                }
                self.notes.rescued += 1;
                self.notes.give_up_slot(victim);
                self.notes.stays(victim.without_slot());
            }
            None if !may_write => {
                // Written in place, it has become dirty a moment ago.
                task.cancel_swap_out(transit);
                self.notes.stays(victim);
            }
            None => {
                self.notes.give_up_slot(victim);
                let way = Way::Transit(transit);
                self.dirty.push(Leaving { victim: victim.without_slot(), way });
            }
        }
        0
    }

    /// Begins to write a page back if it is dirty, else to evict it. Returns how many frames became free.
    fn begin_in_place(&mut self, space: &Attached, task: &AnyTask<'_>, victim: Victim) -> usize {
        let page = victim.owner.page();
        if !self.may_write(space) || !task.is_dirty(page) {
            return self.begin(space, task, victim);
        }
        if !space.backing().hold(space.id, page) {
            // It is being unmapped, or will be looked at again.
            self.notes.stays(victim);
            return 0;
        }
        match task.begin_write_back(page) {
            Some(begun) if begun.page().frame == self.zone.frame(victim.frame) => {
                self.dirty.push(Leaving { victim, way: Way::Held(begun) });
                return 0;
            }
            Some(begun) => give_up_write_back(space, task, begun),
            None => {}
        }
        space.backing().let_go(space.id, page);
        self.begin(space, task, victim)
    }

    /// Begins to write the pages of the batch that are dirty. Returns how many frames are free, of earlier ones.
    pub fn write_out(&mut self) -> usize {
        let mut dirty = std::mem::take(&mut self.dirty);
        let (mut freed, mut member) = (0, None);
        while let Some(first) = dirty.first() {
            if member.replace(first.member()) != Some(first.member()) {
                // Slots that are free make room for this very batch.
                self.release_slots();
            }
            let rest = dirty.chunk_by(|one, next| one.member() == next.member()).next();
            let rest = rest.unwrap_or_default();
            match self.place(rest) {
                Ok(place) => {
                    let pages = place.pages.clamp(1, rest.len());
                    freed += self.write(place, dirty.drain(..pages));
                }
                Err(Refusal::NotNow) => {
                    self.progress.note_refused();
                    self.stay(dirty.drain(..1));
                }
                Err(Refusal::Stopped) => {
                    self.progress.note_stopped();
                    self.stay(dirty.drain(..1));
                }
                Err(refusal) => {
                    let pages = rest.len();
                    self.stay(dirty.drain(..pages));
                    if refusal == Refusal::Full {
                        self.progress.exhaust();
                    }
                    self.progress.note_failure();
                    self.notes.errors += 1;
                }
            }
        }
        self.dirty = dirty;
        freed
    }

    /// Where pages go. If there is no room, the swap caches of all zones are freed.
    fn place(&mut self, pages: &[Leaving]) -> Result<Place, Refusal> {
        let member = pages[0].member();
        let space = self.space(member).cloned().ok_or(Refusal::Failed)?;
        let task = space.task();
        let outgoing = &mut self.writes.outgoing;
        outgoing.clear();
        outgoing.extend(pages.iter().map(|leaving| {
            let at = task.bytes(self.zone.frame(leaving.victim.frame));
            leaving.victim.outgoing(space.id, at)
        }));
        drop(task);
        // SAFETY: the frames are the pages', and stay, until their transits end, or are held. If a fault takes a page
        // back, its transit does not end, and the place is given up.
        let place = unsafe { space.backing().place(&self.writes.outgoing) };
        if place != Err(Refusal::Full) {
            return place;
        }
        self.free_swap_cache(&space);
        // SAFETY: as above.
        let place = unsafe { space.backing().place(&self.writes.outgoing) };
        if place == Err(Refusal::Full) {
            space.backing().stays_full();
        }
        place
    }

    /// Frees all swap caches that there are of a space's backing: the slots of this batch's pages that stay, of
    /// which no zone knows at the moment, and those that zones know of. (Of a batch that another reclaimer has in hand,
    /// they are had a moment later.)
    fn free_swap_cache(&mut self, space: &Attached) {
        let Some(caches) = space.backing().swap_caches() else { return };
        let Notes { stay, slots, .. } = &mut self.notes;
        slots.extend(stay.iter_mut().filter_map(|(victim, _)| victim.take_slot()));
        self.release_slots();
        caches.free_all();
    }

    /// Begins to write pages, the first of those that were asked about last. Returns how many frames are free, of
    /// earlier ones, if it has to wait for a turn.
    fn write(&mut self, place: Place, pages: Drain<'_, Leaving>) -> usize {
        let mut freed = 0;
        while self.writes.queue.room() == 0 {
            freed += self.complete(true);
        }
        let Writes { queue, spare, outgoing, .. } = &mut self.writes;
        let mut write = spare.pop().unwrap_or_default();
        write.pages.clear();
        write.pages.extend(pages);
        let (pages, member) = (write.pages.len(), write.pages[0].member());
        write.outgoing.clear();
        write.outgoing.extend(&outgoing[..pages]);
        // Frames beside each other go as one run, which the kernel looks up at once.
        let frames = write.outgoing.iter().map(|page| page.at);
        let bytes = match pages {
            1 => Bytes::Run { at: write.outgoing[0].at, len: place.bytes.min(FRAME_SIZE) },
            _ => Bytes::of_frames(frames, &mut write.pieces),
        };
        let Place { file, offset, .. } = place;
        let request = Request { file, direction: Direction::Write, bytes, offset, token: 0 };
        // SAFETY: the frames stay as in `place`, the file as its backing says, and the queue has the list.
        let asked = unsafe { queue.submit(request, (place, write)) };
        self.writes.pages += pages;
        self.known[member].begin_leaving(pages);
        match asked {
            Ok(()) => self.notes.writes += 1,
            Err((errno, write)) => {
                self.end_write(write, Err(errno));
            }
        }
        freed
    }

    /// Takes note of writes that are done, and if it is to wait, of one at least.
    pub fn reap(&mut self, is_to_wait: bool) {
        let freed = self.complete(is_to_wait);
        self.note(freed);
    }

    /// Ends the transit of pages whose writes are done. Returns how many frames are free.
    fn complete(&mut self, is_to_wait: bool) -> usize {
        let Writes { queue, engines, depth, .. } = &mut self.writes;
        if let Err(errno) = if is_to_wait { queue.reap() } else { queue.poll() } {
            self.notes.errors += 1;
            self.progress.note_failure();
            // It is no use: it goes, and with it, once the kernel is done, all that was asked of it.
            engines.replace(queue, *depth as u32, errno);
        }
        let mut freed = 0;
        while let Some((write, result)) = self.writes.queue.pop() {
            freed += self.end_write(write, result);
        }
        freed
    }

    /// A request is over. Returns how many frames are free.
    fn end_write(
        &mut self,
        (place, mut write): (Place, Write),
        result: Result<(), Errno>,
    ) -> usize {
        let (count, member) = (write.pages.len(), write.pages[0].member());
        self.writes.pages -= count;
        let known = &mut self.known[member];
        known.end_leaving(count);
        // It is known for as long as pages are in flight.
        let space = known.space.clone().expect("a space with pages in flight");
        space.backing().written(&place, &write.outgoing, result);
        let task = space.task();
        let mut freed = 0;
        for (nth, (leaving, page)) in write.pages.drain(..).zip(&write.outgoing).enumerate() {
            let went = match leaving.way {
                Way::Transit(transit) => {
                    let backing = space.backing();
                    let to = result.ok().map(|()| backing.evicted(&place, nth, page));
                    let note = &mut |bytes: &Page| backing.note_content(&place, nth, bytes);
                    end_in_transit(&task, transit, to, Some(note))
                }
                Way::Held(begun) => end_in_place(&space, &task, begun, page, result.is_ok()),
            };
            if went {
                freed += 1;
            } else {
                self.notes.rescued += u64::from(result.is_ok());
                space.backing().give_up(&place, nth);
                self.notes.stays(leaving.victim);
            }
        }
        self.known[member].note_freed(freed);
        match result {
            Ok(()) => self.notes.pswpout += count as u64,
            Err(_) => {
                self.progress.note_failure();
                self.notes.errors += 1;
            }
        }
        self.writes.keep(write);
        freed
    }

    /// Pages of one space are back to where they were before.
    fn stay(&mut self, pages: Drain<'_, Leaving>) {
        let first = pages.as_slice().first();
        let space = first.and_then(|leaving| self.space(leaving.member()).cloned());
        let task = space.as_ref().map(|space| space.task());
        for leaving in pages {
            if let (Some(task), Some(space)) = (&task, &space) {
                match leaving.way {
                    Way::Transit(transit) => task.cancel_swap_out(transit),
                    Way::Held(begun) => {
                        give_up_write_back(space, task, begun);
                        space.backing().let_go(space.id, leaving.victim.owner.page());
                    }
                }
            }
            self.notes.stays(leaving.victim);
        }
    }

    pub fn release_slots(&mut self) {
        let mut slots = std::mem::take(&mut self.notes.slots);
        for of_space in slots.chunk_by(|one, next| one.0 == next.0) {
            if let Some(space) = self.space(of_space[0].0) {
                space.backing().release(&mut of_space.iter().map(|&(_, slot)| slot));
            }
        }
        slots.clear();
        self.notes.slots = slots;
    }

    /// Records the outcome of pages, and wakes threads that wait for `freed` frames, or for nothing.
    pub fn note(&mut self, freed: usize) {
        self.known.iter_mut().for_each(Known::give_frames_back);
        let Notes { stay, slots, pswpout, writes, clean, rescued, errors } = &mut self.notes;
        let mut state = self.zone.state();
        state.counts.pswpout += std::mem::take(pswpout);
        state.counts.writes += std::mem::take(writes);
        state.counts.clean += std::mem::take(clean);
        state.counts.rescued += std::mem::take(rescued);
        state.counts.errors += std::mem::take(errors);
        for (victim, is_used) in stay.drain(..) {
            slots.extend(state.stays(victim.owner, victim.frame, victim.slot, victim.shadow));
            if is_used && state.policy.contains(victim.frame) {
                state.policy.accessed(victim.frame, victim.owner.name());
            }
        }
        let failures = self.progress.take_failures();
        state.failures += failures;
        self.told.set(&mut state, self.writes.pages);
        self.note_freed(freed);
        if self.direct.is_some() {
            state.counts.direct += freed as u64;
            if state.kswapd.is_asleep() {
                // It may have waited for what has been written now.
                self.zone.wake.notify_one();
            }
        }
        let is_idle = self.writes.pages == 0;
        // The thread that asked for a frame does not pause.
        let pause = self.direct.is_none().then_some(self.settings.pause);
        let is_over = match self.progress.end_batch(freed, is_idle, pause) {
            Outcome::Freed => {
                state.failures = 0;
                self.zone.tell(&mut state, freed);
                false
            }
            Outcome::PutOff => {
                // The condition for these writes takes its time.
                if is_idle && self.direct.is_none() {
                    state.kswapd.get_stuck();
                }
                self.progress.is_put_off_too_long()
            }
            Outcome::Fruitless => {
                // A round in which all pages had been accessed says nothing yet.
                failures > 0 && state.failures > MOST_FAILURES
                    || self.progress.has_tried_all(state.policy.len())
            }
        };
        let has_lost_pages = state.has_lost_pages(self.zone.free());
        // All of these are other reclaimers', and free frames, or fail, when the device has written them.
        let waits_for_others = is_over && is_idle && state.leaving > 0 && self.direct.is_none();
        if waits_for_others {
            self.progress.end_series();
            state.kswapd.get_stuck();
        }
        drop(state);
        if is_over && is_idle && !waits_for_others {
            let asked = self.progress.end_series();
            // Once: a page that several spaces have is found in each, and again.
            let finds_more = has_lost_pages && self.progress.may_sweep() && self.sweep_all();
            if !finds_more && !self.shrink_caches(Ask::LastResort) {
                self.progress.end();
                let mut state = self.zone.state();
                state.failures = state.failures.min(MANY_FAILURES);
                if self.direct.is_none() {
                    let asked = asked.unwrap_or(state.requests.last_refused());
                    self.zone.refuse(&mut state, asked);
                }
            }
        }
        self.release_slots();
    }
}
