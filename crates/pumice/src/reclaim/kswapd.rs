//! The thread that takes pages out.
//!
//! A round: look which pages were accessed, have the policy choose a batch, begin to take them out, and write those of
//! which swap has no good copy: pages that go together get slots beside each other as far as there are any, and each
//! run of slots is one request. Several rounds' writes are in flight at a time; when one is done, its pages' frames
//! are free. Accessed bits are looked at round robin, [`SCANNED_PER_PAGE`] for each page that goes, so that all are
//! looked at some times while the memory turns over once.

use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Duration;

use crate::io::engine::Piece;
use crate::io::{Bytes, Queue};
use crate::page_table::pager::{Evicted, LruPage};
use crate::page_table::{FrameSource, TableOps};
use crate::space::{Result, Task, Transit, VmSpace};
use crate::swap::{Slot, SwapError};

use super::policy::{Policy, Shadow};
use super::swap_pager::{AnyEngine, State, SwapPager};

/// Writes in flight at most.
const DEPTH: u32 = 64;
/// `SWAP_CLUSTER_MAX`: pages chosen at a time, and written by one request at most.
const BATCH: usize = 32;
/// Pages in flight at most. More of them does not get them out any sooner, and what is read meanwhile waits behind
/// them: with 4,096, one read of a thousand took 12 ms and more, with 128 it took 2 to 4, as the device does by itself.
const MOST_LEAVING: usize = 128;
/// Accessed bits looked at for each page that goes.
const SCANNED_PER_PAGE: usize = 4;
/// Rounds from one look for pages that nobody told of to the next. A look is at 2 MiB.
const ROUNDS_PER_SWEEP: usize = 16;
/// How long nothing is tried after a round in which nothing went.
const PAUSE: Duration = Duration::from_millis(20);

/// A page that the policy chose.
#[derive(Clone, Copy)]
struct Victim {
    frame: u32,
    shadow: Shadow,
    page: usize,
    copy: u32,
    is_new: bool,
}

/// A page on its way out.
#[derive(Clone, Copy)]
struct Leaving {
    victim: Victim,
    transit: Transit,
}

/// Pages that are being written, to slots from `first` on.
struct Write {
    first: Slot,
    pages: Vec<Leaving>,
    pieces: Vec<Piece>,
}

/// What a batch leaves to be noted, under one lock.
#[derive(Default)]
struct Notes {
    /// They stay, and whether they were used.
    stay: Vec<(Victim, bool)>,
    /// Slots that hold nothing any more.
    slots: Vec<Slot>,
    pswpout: u64,
    writes: u64,
    clean: u64,
    rescued: u64,
    error: Option<SwapError>,
}

/// The thread's own.
struct Round<'r, 's, P, F: FrameSource, T: TableOps> {
    pager: &'r SwapPager<P>,
    task: Task<'s, F, T>,
    queue: Queue<AnyEngine>,
    /// By the requests' tokens, and those of which none is in flight.
    writes: Vec<Write>,
    vacant: Vec<usize>,
    /// Pages in flight.
    leaving: usize,
    victims: Vec<Victim>,
    dirty: Vec<Leaving>,
    notes: Notes,
    /// Where the scan of accessed bits goes on, and what it found.
    hand: usize,
    looked_at: Vec<(u32, usize, bool)>,
    /// Where the look for pages that nobody told of goes on, what it found, and rounds since.
    sweep_from: usize,
    found: Vec<LruPage>,
    since_sweep: usize,
    /// Rounds in a row by which nothing became free, whether anything failed meanwhile, and how many had asked for
    /// frames when the first of them began, if one has.
    fruitless: usize,
    has_failed: bool,
    asked: Option<u64>,
}

impl<P: Policy + Send> SwapPager<P> {
    /// Takes pages of `space` out as it is needed, until [`SwapPager::stop`]. One thread does this for a space.
    ///
    /// # Errors
    /// As [`VmSpace::enter`].
    pub fn kswapd<F: FrameSource, T: TableOps>(&self, space: &VmSpace<F, T>) -> Result<()> {
        let queue = Queue::new((self.make_engine)(DEPTH), DEPTH as usize);
        let depth = queue.room();
        let write = |_| Write {
            first: Slot(0),
            pages: Vec::with_capacity(BATCH),
            pieces: Vec::with_capacity(BATCH),
        };
        let mut round = Round {
            pager: self,
            task: space.enter()?,
            queue,
            writes: (0..depth).map(write).collect(),
            vacant: (0..depth).collect(),
            leaving: 0,
            victims: Vec::with_capacity(BATCH),
            dirty: Vec::with_capacity(BATCH),
            notes: Notes::default(),
            hand: 0,
            looked_at: Vec::with_capacity(BATCH * SCANNED_PER_PAGE),
            sweep_from: 0,
            found: Vec::new(),
            since_sweep: 0,
            fruitless: 0,
            has_failed: false,
            asked: None,
        };
        self.state().kswapd = Some(std::thread::current().id());
        while round.wait() {
            round.scan();
            round.sweep_now_and_then();
            round.take_out();
        }
        while round.queue.in_flight() > 0 {
            round.reap(true);
        }
        Ok(())
    }
}

impl<P: Policy + Send, F: FrameSource, T: TableOps> Round<'_, '_, P, F, T> {
    /// Waits until there is something to do. `false`: no more.
    fn wait(&mut self) -> bool {
        loop {
            let mut state = self.pager.state();
            if state.is_stopped {
                return false;
            }
            let is_short = state.is_short(self.leaving);
            if is_short && !state.is_stuck && self.leaving < MOST_LEAVING {
                self.asked.get_or_insert(state.asked);
                return true;
            }
            if self.leaving > 0 {
                drop(state);
                self.reap(true);
                continue;
            }
            state.is_kswapd_asleep = true;
            if is_short {
                // Nothing could go: no sooner than in a while, or a swap that is full would take a processor.
                let waited = self.pager.wake.wait_timeout(state, PAUSE);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.is_stuck = false;
            } else {
                state = self.pager.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_kswapd_asleep = false;
        }
    }

    /// Tells the policy what was accessed.
    fn scan(&mut self) {
        self.looked_at.clear();
        let mut state = self.pager.state();
        for _ in 0..(BATCH * SCANNED_PER_PAGE).min(state.frames.len()) {
            self.hand = (self.hand + 1) % state.frames.len();
            let frame = &mut state.frames[self.hand];
            let (page, is_new) = (frame.owner, std::mem::take(&mut frame.is_new));
            if page != 0 && state.policy.contains(self.hand as u32) {
                self.looked_at.push((self.hand as u32, page, is_new));
            }
        }
        drop(state);
        let task = &self.task;
        self.looked_at.retain(|&(_, page, is_new)| {
            let is_young = task.test_and_clear_young(page - 1) == Some(true);
            is_young && !is_new
        });
        if self.looked_at.is_empty() {
            return;
        }
        let mut state = self.pager.state();
        for &(frame, page, _) in &self.looked_at {
            if state.frames[frame as usize].owner == page && state.policy.contains(frame) {
                state.policy.accessed(frame);
            }
        }
    }

    /// Meets pages that are in memory and that the policy does not know, as 2.4's `swap_out` goes round page tables:
    /// those in the batches of threads that sleep, and those whose frame is said to be another page's by a thread that
    /// told late.
    fn sweep_now_and_then(&mut self) {
        self.since_sweep += 1;
        if self.since_sweep >= ROUNDS_PER_SWEEP {
            self.since_sweep = 0;
            self.sweep();
        }
    }

    /// Looks at the next 2 MiB that have a table. Returns how many pages were found.
    fn sweep(&mut self) -> usize {
        let found = &mut self.found;
        self.sweep_from = self.task.scan_present(self.sweep_from, |page| found.push(page));
        let (mut many, mut state) = (0, self.pager.state());
        for page in self.found.drain(..) {
            if !state.knows(page) {
                many += 1;
                self.notes.slots.extend(state.add(page));
            }
        }
        many
    }

    /// Looks at all there are until some are found. Returns whether any were.
    fn sweep_all(&mut self) -> bool {
        self.sweep_from = 0;
        loop {
            if self.sweep() > 0 {
                return true;
            }
            if self.sweep_from == 0 {
                return false;
            }
        }
    }

    /// Takes a batch out, or begins to.
    fn take_out(&mut self) {
        self.choose();
        self.has_failed |= self.victims.is_empty();
        let mut victims = std::mem::take(&mut self.victims);
        let mut freed = 0;
        for victim in victims.drain(..) {
            let is_young = self.task.test_and_clear_young(victim.page) == Some(true);
            if is_young && !victim.is_new {
                self.notes.stay.push((victim, true));
            } else {
                freed += self.begin(victim);
            }
        }
        self.victims = victims;
        freed += self.write_out();
        self.note(freed);
        // What is done by now, and what waits for the kernel to take it.
        self.reap(false);
    }

    /// Has the policy choose a batch.
    fn choose(&mut self) {
        let mut state = self.pager.state();
        let batch = BATCH.min(state.policy.len() / 8 + 1);
        while self.victims.len() < batch {
            let Some((frame, shadow)) = state.policy.evict() else { return };
            let known = std::mem::take(&mut state.frames[frame as usize]);
            if let Some(page) = known.owner.checked_sub(1) {
                let (copy, is_new) = (known.copy, known.is_new);
                self.victims.push(Victim { frame, shadow, page, copy, is_new });
            }
        }
    }

    /// Begins to take a page out. Returns frames that are free by it: none, if the page is to be written first.
    fn begin(&mut self, victim: Victim) -> usize {
        let Some(transit) = self.task.begin_swap_out(victim.page) else {
            // Somebody has a guard, or several spaces share the frame; or it was unmapped.
            match self.task.test_and_clear_young(victim.page) {
                Some(_) => self.notes.stay.push((victim, false)),
                None => self.give_up_copy(victim),
            }
            return 0;
        };
        if transit.page().frame.0 != victim.frame as usize {
            // The page came back in another frame, by which the policy knows it.
            self.task.cancel_swap_out(transit);
            self.give_up_copy(victim);
            return 0;
        }
        let leaving = Leaving { victim, transit };
        if victim.copy != 0 && !transit.is_dirty() {
            let slot = Slot(victim.copy);
            self.pager.swap.set_note(slot, victim.shadow.to_bits());
            let ended = self.end(slot, leaving);
            self.notes.clean += ended as u64;
            return ended;
        }
        self.give_up_copy(victim);
        self.dirty.push(Leaving { victim: Victim { copy: 0, ..victim }, transit });
        0
    }

    /// Begins to write the pages of the batch that are dirty. Returns how many frames are free, of earlier ones.
    fn write_out(&mut self) -> usize {
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut rest = &dirty[..];
        let mut freed = 0;
        while !rest.is_empty() {
            // Slots that were given up are there for this very batch.
            self.pager.swap.put_all(self.notes.slots.drain(..));
            match self.slots(rest.len() as u32) {
                Ok((first, run)) => {
                    let (now, later) = rest.split_at((run as usize).min(rest.len()));
                    freed += self.write(first, now);
                    rest = later;
                }
                Err(error) => {
                    rest.iter().for_each(|&leaving| self.stay(leaving));
                    self.fail(error);
                    break;
                }
            }
        }
        dirty.clear();
        self.dirty = dirty;
        freed
    }

    /// Slots beside each other. Where all are taken, pages in memory give up their copies.
    fn slots(&self, most: u32) -> core::result::Result<(Slot, u32), SwapError> {
        let swap = &self.pager.swap;
        swap.get_run(most).or_else(|_| {
            let mut state = self.pager.state();
            let copies = state.frames.iter_mut().filter(|frame| frame.copy != 0);
            swap.put_all(copies.map(|frame| Slot(std::mem::take(&mut frame.copy))));
            drop(state);
            swap.get_run(most)
        })
    }

    /// Begins to write pages. Returns how many frames are free, of earlier ones, if it has to wait for a place.
    fn write(&mut self, first: Slot, pages: &[Leaving]) -> usize {
        let mut freed = 0;
        let place = loop {
            match self.vacant.pop() {
                Some(place) => break place,
                None => freed += self.complete(true),
            }
        };
        let frames = self.task.space().frames();
        let write = &mut self.writes[place];
        write.first = first;
        write.pages.clear();
        write.pieces.clear();
        for (slot, leaving) in (first.0..).map(Slot).zip(pages) {
            let at = frames.bytes(leaving.transit.page().frame);
            // SAFETY: the frame is the page's, and stays, until the transit ends. If a fault takes the page back, the
            // transit does not end, and the slot is given up.
            unsafe { self.pager.swap.seal(slot, at, leaving.victim.shadow.to_bits()) };
            write.pages.push(*leaving);
            write.pieces.push(Piece::frame(at));
        }
        let pieces = NonNull::from(&mut write.pieces[..]).cast();
        let bytes = Bytes::Frames { pieces, count: pages.len() };
        // SAFETY: as above; the list is not touched before the request is done.
        let asked = unsafe { self.pager.swap.write(&mut self.queue, first, bytes, place as u64) };
        match asked {
            Ok(()) => {
                self.leaving += pages.len();
                self.notes.writes += 1;
            }
            Err(error) => {
                self.give_up_write(place);
                self.fail(error);
            }
        }
        freed
    }

    /// Takes note of writes that are done, and if it is to wait, of one at least.
    fn reap(&mut self, is_to_wait: bool) {
        let freed = self.complete(is_to_wait);
        self.note(freed);
    }

    /// Ends what writes were for that are done. Returns how many frames are free.
    fn complete(&mut self, is_to_wait: bool) -> usize {
        let mut done = [(0usize, Ok(())); DEPTH as usize];
        let mut len = 0;
        let note = |place: u64, result| {
            done[len] = (place as usize, result);
            len += 1;
        };
        let reaped = if is_to_wait { self.queue.reap(note) } else { self.queue.poll(note) };
        if let Err(errno) = reaped {
            self.notes.error = Some(SwapError::Write { slot: Slot(0), errno });
        }
        let mut freed = 0;
        for &(place, result) in &done[..len] {
            self.leaving -= self.writes[place].pages.len();
            match result {
                Ok(()) => freed += self.end_write(place),
                Err(errno) => {
                    let slot = self.writes[place].first;
                    self.give_up_write(place);
                    self.fail(SwapError::Write { slot, errno });
                }
            }
        }
        freed
    }

    /// Pages are in their slots.
    fn end_write(&mut self, place: usize) -> usize {
        let pages = std::mem::take(&mut self.writes[place].pages);
        let first = self.writes[place].first;
        let slots = (first.0..).map(Slot);
        let freed = slots.zip(&pages).map(|(slot, &leaving)| self.end(slot, leaving)).sum();
        self.notes.pswpout += freed as u64;
        self.writes[place].pages = pages;
        self.vacant.push(place);
        freed
    }

    /// Pages could not be written.
    fn give_up_write(&mut self, place: usize) {
        let pages = std::mem::take(&mut self.writes[place].pages);
        for (slot, &leaving) in (self.writes[place].first.0..).map(Slot).zip(&pages) {
            self.notes.slots.push(slot);
            self.stay(leaving);
        }
        self.writes[place].pages = pages;
        self.vacant.push(place);
    }

    /// The page is in its slot. Returns how many frames are free by that.
    fn end(&mut self, slot: Slot, leaving: Leaving) -> usize {
        let Leaving { victim, transit } = leaving;
        if self.task.end_swap_out(transit, Evicted::Swapped(slot.0)).is_ok() {
            return 1;
        }
        self.notes.rescued += 1;
        self.notes.slots.push(slot);
        self.notes.stay.push((Victim { copy: 0, ..victim }, false));
        0
    }

    /// The page is back to where it was before.
    fn stay(&mut self, leaving: Leaving) {
        self.task.cancel_swap_out(leaving.transit);
        self.notes.stay.push((Victim { copy: 0, ..leaving.victim }, false));
    }

    fn fail(&mut self, error: SwapError) {
        self.has_failed = true;
        self.notes.error = Some(error);
    }

    fn give_up_copy(&mut self, victim: Victim) {
        if victim.copy != 0 {
            self.notes.slots.push(Slot(victim.copy));
        }
    }

    /// Writes down what became of pages, and wakes who waits for `freed` frames, or for nothing.
    fn note(&mut self, freed: usize) {
        if freed > 0 {
            self.task.give_frames_back();
        }
        let Notes { stay, slots, pswpout, writes, clean, rescued, error } = &mut self.notes;
        let mut state = self.pager.state();
        state.counts.pswpout += std::mem::take(pswpout);
        state.counts.writes += std::mem::take(writes);
        state.counts.clean += std::mem::take(clean);
        state.counts.rescued += std::mem::take(rescued);
        for (victim, is_used) in stay.drain(..) {
            slots.extend(state.stays(&victim));
            if is_used && state.policy.contains(victim.frame) {
                state.policy.accessed(victim.frame);
            }
        }
        if let Some(error) = error.take() {
            state.note_error(error);
        }
        let mut is_at_end = false;
        if freed > 0 {
            (self.fruitless, self.has_failed, self.asked) = (0, false, None);
            self.pager.tell(&mut state, freed);
        } else {
            // A round in which all pages had been accessed says nothing yet.
            self.fruitless += 1;
            let tried_all = self.has_failed || self.fruitless * BATCH > 4 * state.policy.len();
            is_at_end = self.leaving == 0 && tried_all;
        }
        let has_lost_pages = state.has_lost_pages();
        drop(state);
        if is_at_end {
            (self.fruitless, self.has_failed) = (0, false);
            let asked = self.asked.take();
            if !(has_lost_pages && self.sweep_all()) {
                self.pager.refuse(&mut self.pager.state(), asked.unwrap_or(0));
            }
        }
        self.pager.swap.put_all(self.notes.slots.drain(..));
    }
}

impl<P: Policy> State<P> {
    /// A page that was chosen stays. If the frame has become another page's meanwhile, the policy knows that already.
    /// Returns the slot of a copy that nobody knows of any more.
    fn stays(&mut self, victim: &Victim) -> Option<Slot> {
        let frame = &mut self.frames[victim.frame as usize];
        let copy = (victim.copy != 0).then_some(Slot(victim.copy));
        if self.policy.contains(victim.frame) {
            return copy;
        }
        self.policy.put_back(victim.frame, victim.shadow);
        if frame.owner != 0 {
            return copy;
        }
        (frame.owner, frame.copy, frame.is_new) = (victim.page + 1, victim.copy, false);
        None
    }
}
