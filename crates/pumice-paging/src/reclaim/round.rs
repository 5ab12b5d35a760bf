//! A round of a reclaimer, `kswapd` or a thread that reclaims for itself.
//!
//! A round: look which pages were accessed, have the policy choose a batch, begin their eviction, and write those
//! without a good copy ([`super::writeout`]). Several rounds' writes are in flight at a time; when one is done, its
//! pages' frames are free. Accessed bits are looked at round robin, some for each page that goes, so that all are
//! looked at some times while the memory turns over once.

use std::sync::Arc;

use crate::page_table::pager::LruPage;
use pumice_frames::frame::Gfp;

use super::members::{Attached, LookedAt, Seen};
use super::policy::Policy;
use super::progress::Progress;
use super::settings::Settings;
use super::writes::{Leaving, Notes, Victim, Writes};
use super::zone::{State, ZoneReclaim, SCANNED_PER_PAGE};

/// Batches from one look for pages that nobody told of to the next. A look is at 2 MiB: with that, all of a region that
/// is eight times as large as memory is seen while the memory turns over once.
const BATCHES_PER_SWEEP: usize = 16;

/// Pages in memory, by those of a batch at most: a page that goes before it must is memory lost. A batch is whole from
/// 16,384 pages on.
const BATCH_SHARE: usize = 512;
/// Pages by whose last use the policy judges others, for each page that goes; and looks at such pages in a row.
const JUDGED_PER_PAGE: usize = 8;
const MOST_LOOKS: usize = 4;

/// A space as a reclaimer knows it.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub space: Option<Arc<Attached>>,
    /// Pages of it in flight: it is known until there are none.
    leaving: usize,
    /// Frames of it have gone that its task still has.
    has_frames: bool,
}

impl Known {
    /// Pages are in flight from now on.
    pub fn begin_leaving(&mut self, pages: usize) {
        self.leaving += pages;
    }

    /// Pages are in flight no more.
    pub fn end_leaving(&mut self, pages: usize) {
        self.leaving -= pages;
    }

    /// So many frames have gone, which its task has.
    pub fn note_freed(&mut self, frames: usize) {
        self.has_frames |= frames > 0;
    }

    /// Has its task give back frames that have gone, if it has any.
    pub fn give_frames_back(&mut self) {
        if let (Some(space), true) = (&self.space, std::mem::take(&mut self.has_frames)) {
            space.task().give_frames_back();
        }
    }
}

/// Pages that the policy chooses at a time, of so many.
fn batch_of(pages: usize) -> usize {
    pages / BATCH_SHARE + 1
}

/// A page whose accessed bit is to be looked at, and its meaning if it is set.
fn to_look_at<P: Policy>(state: &State<P>, page: u32) -> Option<LookedAt> {
    let frame = state.frames[page as usize];
    let seen = if frame.is_new() { Seen::FirstUse } else { Seen::Use };
    let owner = frame.owner;
    (!owner.is_none()).then_some(LookedAt { frame: page, owner, seen })
}

/// The zone's count of pages in flight; when it goes there are none.
pub(super) struct Told<'r, P: Policy> {
    zone: &'r ZoneReclaim<P>,
    leaving: usize,
}

impl<P: Policy> Told<'_, P> {
    pub fn set(&mut self, state: &mut State<P>, leaving: usize) {
        state.leaving = state.leaving + leaving - self.leaving;
        self.leaving = leaving;
    }
}

impl<P: Policy> Drop for Told<'_, P> {
    fn drop(&mut self) {
        if self.leaving > 0 {
            self.zone.state().leaving -= self.leaving;
        }
    }
}

/// A reclaimer's own.
pub(super) struct Round<'r, P: Policy> {
    pub zone: &'r ZoneReclaim<P>,
    /// The flags of the request; `None`: `kswapd`, which may do all.
    pub direct: Option<Gfp>,
    /// As they were when this round began.
    pub settings: Settings,
    /// Before the spaces: a thread that unwinds waits here for what is in flight.
    pub writes: Writes,
    /// Spaces by place, and how many changes there were when they were looked at.
    pub known: Vec<Known>,
    changes: Option<u64>,
    /// Pages in flight that the zone knows of.
    pub told: Told<'r, P>,
    /// Frames freed in all, and pages looked at.
    freed: usize,
    pub chosen: usize,
    pub victims: Vec<Victim>,
    pub dirty: Vec<Leaving>,
    pub notes: Notes,
    /// Findings of the scan of accessed bits, and of the look for pages that were never reported.
    looked_at: Vec<LookedAt>,
    /// Which of the pages went that were to go at once.
    pub gone: Vec<bool>,
    pub found: Vec<LruPage>,
    oldest: Vec<u32>,
    pub progress: Progress,
}

impl<'r, P: Policy + Send> Round<'r, P> {
    pub fn new(zone: &'r ZoneReclaim<P>, writes: Writes, gfp: Gfp) -> Round<'r, P> {
        let settings = zone.settings();
        let batch = settings.swap_cluster_max;
        Round {
            zone,
            direct: Some(gfp),
            settings,
            known: Vec::new(),
            changes: None,
            writes,
            told: Told { zone, leaving: 0 },
            freed: 0,
            chosen: 0,
            victims: Vec::with_capacity(batch),
            dirty: Vec::with_capacity(batch),
            notes: Notes::default(),
            looked_at: Vec::with_capacity(batch * SCANNED_PER_PAGE.max(JUDGED_PER_PAGE)),
            gone: Vec::with_capacity(batch),
            found: Vec::new(),
            oldest: Vec::with_capacity(batch * JUDGED_PER_PAGE),
            progress: Progress::default(),
        }
    }

    /// Whether no space has come or gone since it met them.
    pub fn has_met_all(&self, state: &State<P>) -> bool {
        self.changes == Some(state.members.changes)
    }

    /// Lets go of spaces that leave, and takes note of new ones. None is being worked on but those that pages are in
    /// flight of.
    pub fn meet_spaces(&mut self) {
        let state = self.zone.state();
        if self.has_met_all(&state) {
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

    /// Ends all that is in flight, and lets go of all spaces, before something that may take its time.
    pub fn let_go_of_all(&mut self) {
        while self.writes.in_flight() > 0 {
            self.reap(true);
        }
        self.release_slots();
        let state = self.zone.state();
        self.known.clear();
        self.changes = None;
        drop(state);
        self.zone.let_go.notify_all();
    }

    /// Lets go of all spaces; nothing is in flight. Its writers are for the next.
    pub fn end(mut self) -> Writes {
        let state = self.zone.state();
        self.known.clear();
        drop(state);
        self.zone.let_go.notify_all();
        self.writes
    }

    /// Frames freed in all.
    pub fn freed(&self) -> usize {
        self.freed
    }

    /// More frames are free.
    pub fn note_freed(&mut self, frames: usize) {
        self.freed += frames;
    }

    /// The space of a page that was chosen, or is looked at.
    pub fn space(&self, place: usize) -> Option<&Arc<Attached>> {
        self.known.get(place)?.space.as_ref()
    }

    /// Reports accessed pages to the policy: some, round robin, and those that it is about to judge. Where some of
    /// these were accessed, others are judged then, which are looked at too.
    fn scan(&mut self) {
        let mut state = self.zone.state();
        let batch = self.settings.swap_cluster_max.min(batch_of(state.policy.len()));
        let frames = state.frames.len();
        for _ in 0..(batch * SCANNED_PER_PAGE).min(frames) {
            state.hand = if state.hand + 1 < frames { state.hand + 1 } else { 0 };
            self.looked_at.extend(to_look_at(&state, state.hand as u32));
        }
        state.policy.retain_known(&mut self.looked_at, |looked_at| looked_at.frame);
        drop(state);
        self.look();
        for _ in 0..MOST_LOOKS {
            let mut state = self.zone.state();
            state.policy.oldest(batch * JUDGED_PER_PAGE, &mut self.oldest);
            let oldest = self.oldest.drain(..);
            self.looked_at.extend(oldest.filter_map(|page| to_look_at(&state, page)));
            state.policy.retain_known(&mut self.looked_at, |looked_at| looked_at.frame);
            drop(state);
            let looked_at = self.looked_at.len();
            if self.look() <= looked_at / 4 {
                break;
            }
        }
    }

    /// Looks at the accessed bits of the pages that are noted, and reports them. Returns how many were used, other than
    /// for the first time.
    fn look(&mut self) -> usize {
        let mut looked_at = std::mem::take(&mut self.looked_at);
        let is_same = |one: &LookedAt, next: &LookedAt| one.owner.member() == next.owner.member();
        for of_space in looked_at.chunk_by_mut(is_same) {
            match self.space(of_space[0].owner.member()) {
                Some(space) => space.task().scan_young(of_space),
                None => of_space.iter_mut().for_each(|looked_at| looked_at.seen = Seen::Nothing),
            }
        }
        let mut used = 0;
        if looked_at.iter().any(|looked_at| looked_at.seen != Seen::Nothing) {
            let mut state = self.zone.state();
            let seen = looked_at.iter().filter(|looked_at| looked_at.seen != Seen::Nothing);
            for &LookedAt { frame, owner, seen } in seen {
                if state.frames[frame as usize].owner == owner && state.policy.contains(frame) {
                    match seen {
                        Seen::Nothing => {}
                        Seen::Gone => self.notes.slots.extend(state.forget_gone(frame)),
                        Seen::FirstUse => state.frames[frame as usize].note_seen(),
                        Seen::Use => {
                            used += 1;
                            state.policy.accessed(frame, owner.name());
                        }
                    }
                }
            }
        }
        looked_at.clear();
        self.looked_at = looked_at;
        used
    }

    /// Meets pages that are in memory and that the policy does not know, as 2.4's `swap_out` goes round page tables:
    /// those in the batches of threads that sleep, and those whose frame is said to be another page's by a thread
    /// that told late.
    fn sweep_now_and_then(&mut self) {
        let mut state = self.zone.state();
        state.since_sweep += 1;
        if state.since_sweep >= BATCHES_PER_SWEEP {
            state.since_sweep = 0;
            drop(state);
            self.sweep();
        }
    }

    /// Looks at the next 2 MiB that have a table, of one space after the other. Returns how many pages were found.
    fn sweep(&mut self) -> usize {
        let (place, from) = self.zone.state().sweep_from;
        let (found, next) = self.find_present(place, from);
        let (mut many, mut state) = (0, self.zone.state());
        state.sweep_from = match next {
            0 if place + 1 < self.known.len() => (place + 1, 0),
            0 => (0, 0),
            next => (place, next),
        };
        let is_open = state.members.is_open(place);
        for &page in found.iter().filter(|_| is_open) {
            // Others are of another zone.
            if state.number(page.frame).is_some() && !state.knows(place, page) {
                many += 1;
                state.add_all(place, &[page]);
            }
        }
        drop(state);
        self.keep_room(found);
        many
    }

    /// The pages that are in memory of the next table of a space from a page on, and the page at which the one after it
    /// begins; 0 for none. [`Round::keep_room`] takes the list back.
    pub fn find_present(&mut self, place: usize, from: usize) -> (Vec<LruPage>, usize) {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let next = match self.space(place) {
            Some(space) => space.task().scan_present(from, &mut |page| found.push(page)),
            None => 0,
        };
        (found, next)
    }

    /// A list of [`Round::find_present`] is over, and its room is for the next.
    pub fn keep_room(&mut self, found: Vec<LruPage>) {
        self.found = found;
    }

    /// A page is to go.
    pub fn choose(&mut self, victim: Victim) {
        self.victims.push(victim);
    }

    /// Looks at all there are until some are found. Returns whether any were.
    pub fn sweep_all(&mut self) -> bool {
        self.zone.state().sweep_from = (0, 0);
        loop {
            if self.sweep() > 0 {
                return true;
            }
            if self.zone.state().sweep_from == (0, 0) {
                return false;
            }
        }
    }

    /// Takes a batch out, or begins to.
    pub fn take_out(&mut self) {
        match self.settings.vm_mapped_ratio.unwrap_or(P::VM_MAPPED_RATIO) {
            0 => {
                self.scan();
                self.sweep_now_and_then();
                self.choose_batch();
                if self.victims.is_empty() {
                    self.progress.exhaust();
                }
            }
            ratio => self.choose_by_tables(ratio),
        }
        // Beside each other where they are, so that they are written together.
        let mut victims = std::mem::take(&mut self.victims);
        victims.sort_unstable_by_key(|victim| victim.owner);
        // Frames of which it is said that they have the same page: one has it at most, and the others are met again.
        let notes = &mut self.notes;
        victims.dedup_by(|other, first| {
            let is_double = other.owner == first.owner;
            if is_double {
                notes.stays(*other);
            }
            is_double
        });
        self.progress.note_chosen(victims.len());
        let mut freed = 0;
        for of_space in victims.chunk_by(|one, next| one.owner.member() == next.owner.member()) {
            freed += self.begin_all(of_space);
        }
        victims.clear();
        self.victims = victims;
        freed += self.write_out();
        self.note(freed);
        if self.writes.in_flight() > 0 {
            // Ends requests that are done by now, and hands over those that wait for the kernel to take them.
            self.reap(false);
        }
    }

    /// So many pages are to be chosen now, as `batch` says of those in memory.
    pub fn begin_batch(&mut self, state: &mut State<P>, batch: impl Fn(usize) -> usize) -> usize {
        let pages = state.policy.len();
        let batch = self.settings.swap_cluster_max.min(batch(pages));
        self.chosen += batch;
        state.shrinkers.note_scanned(batch, pages, &self.settings);
        batch
    }

    /// Has the policy choose a batch.
    fn choose_batch(&mut self) {
        let mut state = self.zone.state();
        let batch = self.begin_batch(&mut state, batch_of);
        // A policy that says the same frame again and again does not keep this from ending.
        for _ in 0..state.frames.len() {
            if self.victims.len() >= batch {
                return;
            }
            let Some((frame, shadow)) = state.policy.evict() else { return };
            let known = std::mem::take(&mut state.frames[frame as usize]);
            if !known.owner.is_none() {
                let (owner, mut slot, is_new) = (known.owner, known.slot, known.is_new());
                if slot != 0 && self.space(owner.member()).is_none() {
                    // It comes or goes. The page stays, and nobody else knows of its slot.
                    state.members.release(owner.member(), std::mem::take(&mut slot));
                }
                self.choose(Victim { frame, shadow, owner, slot, is_new });
            }
        }
    }
}
