//! The thread that takes pages out.
//!
//! A round: look which pages were accessed, have the policy choose a batch, begin to take them out, and write those
//! of which there is no good copy ([`super::writeout`]). Several rounds' writes are in flight at a time; when one is
//! done, its pages' frames are free. Accessed bits are looked at round robin, [`SCANNED_PER_PAGE`] for each page that
//! goes, so that all are looked at some times while the memory turns over once.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::page_table::pager::LruPage;
use crate::sync::current_thread;

use super::policy::Policy;
use super::spaces::Attached;
use super::writeout::{Leaving, Notes, Victim, Writes};
use super::zone::{Owner, ZoneReclaim};

/// `SWAP_CLUSTER_MAX`: pages chosen at a time, and written by one request at most.
pub(super) const BATCH: usize = 32;
/// Pages in flight at most. More of them does not get them out any sooner, and what is read meanwhile waits behind
/// them: with 4,096, one read of a thousand took 12 ms and more, with 128 it took 2 to 4, as the device does by
/// itself.
const MOST_LEAVING: usize = 128;
/// Accessed bits looked at for each page that goes.
const SCANNED_PER_PAGE: usize = 4;
/// Rounds from one look for pages that nobody told of to the next. A look is at 2 MiB.
const ROUNDS_PER_SWEEP: usize = 16;
/// How long nothing is tried after a round in which nothing went.
const PAUSE: Duration = Duration::from_millis(20);

/// A space as a reclaimer knows it.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub space: Option<Arc<Attached>>,
    /// Pages of it in flight: it is known until there are none.
    pub leaving: usize,
    /// Frames of it have gone that its task still has.
    pub has_frames: bool,
}

/// What a page's accessed bit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// It was used once: it came for that, or was read ahead before (SPEC E3: what is only read ahead is not marked).
    FirstUse,
    Use,
}

/// A reclaimer's own.
pub(super) struct Round<'r, P> {
    pub zone: &'r ZoneReclaim<P>,
    /// Spaces by place, and how many changes there were when they were looked at.
    pub known: Vec<Known>,
    changes: Option<u64>,
    pub writes: Writes,
    victims: Vec<Victim>,
    pub dirty: Vec<Leaving>,
    pub notes: Notes,
    /// Where the scan of accessed bits goes on, and what it found.
    hand: usize,
    looked_at: Vec<(u32, Owner, Seen)>,
    /// Where the look for pages that nobody told of goes on, what it found, and rounds since.
    sweep_from: (usize, usize),
    found: Vec<LruPage>,
    since_sweep: usize,
    /// Rounds in a row by which nothing became free, writes that failed meanwhile, whether there was nothing more to
    /// try, and how many had asked for frames when the first of them began, if one has.
    pub fruitless: usize,
    pub failures: usize,
    pub has_failed: bool,
    pub asked: Option<u64>,
    /// Whether pages must not be written yet, and rounds in a row in which that was so and nothing went.
    pub is_put_off: bool,
    pub put_off: usize,
}

impl<P: Policy + Send> ZoneReclaim<P> {
    /// Takes pages of spaces that are attached out as it is needed, until [`ZoneReclaim::stop`]. One thread does this
    /// for a zone.
    pub fn kswapd(&self) {
        let mut round = Round::new(self);
        self.state().kswapd = Some(current_thread().id());
        while round.wait() {
            round.scan();
            round.sweep_now_and_then();
            round.take_out();
        }
        while round.writes.in_flight() > 0 {
            round.reap(true);
        }
        round.forget_all();
    }
}

impl<'r, P: Policy + Send> Round<'r, P> {
    fn new(zone: &'r ZoneReclaim<P>) -> Round<'r, P> {
        Round {
            zone,
            known: Vec::new(),
            changes: None,
            writes: Writes::new(&zone.engines()),
            victims: Vec::with_capacity(BATCH),
            dirty: Vec::with_capacity(BATCH),
            notes: Notes::default(),
            hand: 0,
            looked_at: Vec::with_capacity(BATCH * SCANNED_PER_PAGE),
            sweep_from: (0, 0),
            found: Vec::new(),
            since_sweep: 0,
            fruitless: 0,
            failures: 0,
            has_failed: false,
            asked: None,
            is_put_off: false,
            put_off: 0,
        }
    }

    /// Waits until there is something to do. `false`: no more.
    fn wait(&mut self) -> bool {
        let zone = self.zone;
        loop {
            let mut state = zone.state();
            if state.is_stopped {
                return false;
            }
            let leaving = self.writes.pages();
            let is_short = state.is_short(leaving);
            if is_short && !state.is_stuck && leaving < MOST_LEAVING {
                self.asked.get_or_insert(state.asked);
                drop(state);
                self.meet_spaces();
                return true;
            }
            if leaving > 0 {
                drop(state);
                self.reap(true);
                self.meet_spaces();
                continue;
            }
            if self.changes != Some(state.members.changes) {
                drop(state);
                self.meet_spaces();
                continue;
            }
            state.is_kswapd_asleep = true;
            if is_short {
                // Nothing could go: no sooner than in a while, or a swap that is full would take a processor.
                let waited = zone.wake.wait_timeout(state, PAUSE);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.is_stuck = false;
            } else {
                state = zone.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_kswapd_asleep = false;
        }
    }

    /// Lets go of spaces that leave, and takes note of new ones. None is being worked on but those that pages are in
    /// flight of.
    fn meet_spaces(&mut self) {
        let state = self.zone.state();
        if self.changes == Some(state.members.changes) {
            return;
        }
        self.known.resize_with(state.members.len().max(self.known.len()), Known::default);
        let mut are_waiting = false;
        for (place, known) in self.known.iter_mut().enumerate() {
            if known.leaving == 0 {
                known.space = state.members.get(place).cloned();
            } else {
                // It is not another's before this one is done with it.
                are_waiting |= !state.members.is_open(place);
            }
        }
        self.changes = (!are_waiting).then_some(state.members.changes);
        self.zone.let_go.notify_all();
    }

    fn forget_all(&mut self) {
        let _state = self.zone.state();
        self.known.clear();
        self.zone.let_go.notify_all();
    }

    /// The space of a page that was chosen, or is looked at.
    pub fn space(&self, place: usize) -> Option<&Arc<Attached>> {
        self.known.get(place)?.space.as_ref()
    }

    /// Tells the policy what was accessed.
    fn scan(&mut self) {
        let mut looked_at = std::mem::take(&mut self.looked_at);
        looked_at.clear();
        let mut state = self.zone.state();
        for _ in 0..(BATCH * SCANNED_PER_PAGE).min(state.frames.len()) {
            self.hand = (self.hand + 1) % state.frames.len();
            let frame = &mut state.frames[self.hand];
            let (owner, is_new) = (frame.owner, frame.is_new);
            if !owner.is_none() && state.policy.contains(self.hand as u32) {
                let seen = if is_new { Seen::FirstUse } else { Seen::Use };
                looked_at.push((self.hand as u32, owner, seen));
            }
        }
        drop(state);
        for of_space in looked_at.chunk_by_mut(|one, next| one.1.member() == next.1.member()) {
            let Some(space) = self.space(of_space[0].1.member()) else {
                of_space.iter_mut().for_each(|looked_at| looked_at.2 = Seen::Nothing);
                continue;
            };
            let task = space.task();
            for (_, owner, seen) in of_space {
                if task.test_and_clear_young(owner.page()) != Some(true) {
                    *seen = Seen::Nothing;
                }
            }
        }
        if looked_at.iter().any(|&(_, _, seen)| seen != Seen::Nothing) {
            let mut state = self.zone.state();
            for &(frame, owner, seen) in looked_at.iter() {
                if state.frames[frame as usize].owner == owner && state.policy.contains(frame) {
                    match seen {
                        Seen::Nothing => {}
                        Seen::FirstUse => state.frames[frame as usize].is_new = false,
                        Seen::Use => state.policy.accessed(frame),
                    }
                }
            }
        }
        self.looked_at = looked_at;
    }

    /// Meets pages that are in memory and that the policy does not know, as 2.4's `swap_out` goes round page tables:
    /// those in the batches of threads that sleep, and those whose frame is said to be another page's by a thread
    /// that told late.
    fn sweep_now_and_then(&mut self) {
        self.since_sweep += 1;
        if self.since_sweep >= ROUNDS_PER_SWEEP {
            self.since_sweep = 0;
            self.sweep();
        }
    }

    /// Looks at the next 2 MiB that have a table, of one space after the other. Returns how many pages were found.
    fn sweep(&mut self) -> usize {
        let (place, from) = self.sweep_from;
        let mut found = std::mem::take(&mut self.found);
        let next = match self.space(place) {
            Some(space) => space.task().scan_present(from, &mut |page| found.push(page)),
            None => 0,
        };
        self.sweep_from = match next {
            0 if place + 1 < self.known.len() => (place + 1, 0),
            0 => (0, 0),
            next => (place, next),
        };
        let (mut many, mut state) = (0, self.zone.state());
        let is_open = state.members.is_open(place);
        for page in found.drain(..).filter(|_| is_open) {
            if !state.knows(place, page) {
                many += 1;
                self.notes.copies.extend(state.add(place, page));
            }
        }
        drop(state);
        self.found = found;
        many
    }

    /// Looks at all there are until some are found. Returns whether any were.
    pub fn sweep_all(&mut self) -> bool {
        self.sweep_from = (0, 0);
        loop {
            if self.sweep() > 0 {
                return true;
            }
            if self.sweep_from == (0, 0) {
                return false;
            }
        }
    }

    /// Takes a batch out, or begins to.
    fn take_out(&mut self) {
        self.choose();
        self.has_failed |= self.victims.is_empty();
        // Beside each other where they are, so that they are written together.
        let mut victims = std::mem::take(&mut self.victims);
        victims.sort_unstable_by_key(|victim| victim.owner);
        let mut freed = 0;
        for of_space in victims.chunk_by(|one, next| one.owner.member() == next.owner.member()) {
            freed += self.begin_all(of_space);
        }
        victims.clear();
        self.victims = victims;
        freed += self.write_out();
        self.note(freed);
        // What is done by now, and what waits for the kernel to take it.
        self.reap(false);
    }

    /// Has the policy choose a batch.
    fn choose(&mut self) {
        let mut state = self.zone.state();
        let batch = BATCH.min(state.policy.len() / 8 + 1);
        while self.victims.len() < batch {
            let Some((frame, shadow)) = state.policy.evict() else { return };
            let known = std::mem::take(&mut state.frames[frame as usize]);
            if !known.owner.is_none() {
                let (owner, copy, is_new) = (known.owner, known.copy, known.is_new);
                self.victims.push(Victim { frame, shadow, owner, copy, is_new });
            }
        }
    }
}
