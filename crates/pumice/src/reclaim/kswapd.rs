//! The thread that takes pages out.
//!
//! A round: look which pages were accessed, have the policy choose some, begin to take them out, write those of
//! which swap has no good copy, and end it for those that were written. Several rounds' writes are in flight at a
//! time. Accessed bits are looked at round robin, [`SCANNED_PER_PAGE`] for each page that goes, so that all are
//! looked at some times while the memory turns over once.

use std::sync::PoisonError;
use std::time::Duration;

use crate::io::Queue;
use crate::page_table::pager::Evicted;
use crate::page_table::{FrameSource, TableOps};
use crate::space::{Result, Task, Transit, VmSpace};
use crate::swap::{Slot, SwapError};

use super::policy::{Policy, Shadow};
use super::swap_pager::{AnyEngine, SwapPager};

/// Writes in flight at most.
const DEPTH: u32 = 128;
/// `SWAP_CLUSTER_MAX`: pages chosen at a time.
const BATCH: usize = 32;
/// Accessed bits looked at for each page that goes.
const SCANNED_PER_PAGE: usize = 16;
/// Pages of a batch that were accessed and may stay for that; the next ones go all the same.
const SECOND_CHANCES: usize = BATCH;
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

/// A page that is being written.
struct Write {
    victim: Victim,
    transit: Transit,
    slot: Slot,
}

/// The thread's own.
struct Round<'r, 's, P, F: FrameSource, T: TableOps> {
    pager: &'r SwapPager<P>,
    task: Task<'s, F, T>,
    queue: Queue<AnyEngine>,
    writes: Vec<Option<Write>>,
    /// Where the scan of accessed bits goes on.
    hand: usize,
    /// Rounds in a row by which nothing became free, and whether anything failed meanwhile.
    fruitless: usize,
    has_failed: bool,
}

impl<P: Policy + Send> SwapPager<P> {
    /// Takes pages of `space` out as it is needed, until [`SwapPager::stop`]. One thread does this for a space.
    ///
    /// # Errors
    /// As [`VmSpace::enter`].
    pub fn kswapd<F: FrameSource, T: TableOps>(&self, space: &VmSpace<F, T>) -> Result<()> {
        let queue = Queue::new((self.make_engine)(DEPTH), DEPTH as usize);
        let writes = (0..DEPTH).map(|_| None).collect();
        let mut round = Round {
            pager: self,
            task: space.enter()?,
            queue,
            writes,
            hand: 0,
            fruitless: 0,
            has_failed: false,
        };
        self.state().kswapd = Some(std::thread::current().id());
        while round.wait() {
            round.scan();
            let freed = round.take_out();
            let mut state = self.state();
            if round.is_over(freed, state.policy.len()) {
                self.tell(&mut state, freed);
            }
        }
        while round.queue.in_flight() > 0 {
            round.reap();
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
            let is_short = state.is_short();
            if is_short && !state.is_stuck {
                return true;
            }
            if self.queue.in_flight() > 0 {
                drop(state);
                let freed = self.reap();
                let mut state = self.pager.state();
                if self.is_over(freed, state.policy.len()) {
                    self.pager.tell(&mut state, freed);
                }
                continue;
            }
            if is_short {
                // Nothing could go: no sooner than in a while, or a swap that is full would take a processor.
                let waited = self.pager.wake.wait_timeout(state, PAUSE);
                waited.unwrap_or_else(PoisonError::into_inner).0.is_stuck = false;
                (self.fruitless, self.has_failed) = (0, false);
            } else {
                drop(self.pager.wake.wait(state).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Whether those who wait are to be told: frames are free, or there is no more to try. A round in which all pages
    /// had been accessed is neither.
    fn is_over(&mut self, freed: usize, pages: usize) -> bool {
        if freed > 0 {
            (self.fruitless, self.has_failed) = (0, false);
            return true;
        }
        self.fruitless += 1;
        let tried_all = self.has_failed || self.fruitless * BATCH > 4 * pages;
        self.queue.in_flight() == 0 && tried_all
    }

    /// Tells the policy what was accessed.
    fn scan(&mut self) {
        const SCANNED: usize = BATCH * SCANNED_PER_PAGE;
        let mut looked_at = [(0u32, 0usize, false); SCANNED];
        let mut len = 0;
        let mut state = self.pager.state();
        for _ in 0..SCANNED.min(state.frames.len()) {
            self.hand = (self.hand + 1) % state.frames.len();
            let frame = &mut state.frames[self.hand];
            let (page, is_new) = (frame.owner, std::mem::take(&mut frame.is_new));
            if page != 0 && state.policy.contains(self.hand as u32) {
                looked_at[len] = (self.hand as u32, page, is_new);
                len += 1;
            }
        }
        drop(state);
        let looked_at = &mut looked_at[..len];
        for (_, page, is_new) in &mut *looked_at {
            let is_young = self.task.test_and_clear_young(*page - 1) == Some(true);
            *page = if is_young && !*is_new { *page } else { 0 };
        }
        let mut state = self.pager.state();
        for &(frame, page, _) in looked_at.iter().filter(|(_, page, _)| *page != 0) {
            if state.frames[frame as usize].owner == page && state.policy.contains(frame) {
                state.policy.accessed(frame);
            }
        }
    }

    /// Takes a batch out, or begins to. Returns how many frames are free, of earlier ones too.
    fn take_out(&mut self) -> usize {
        let mut freed = 0;
        while self.queue.room() < BATCH {
            freed += self.reap();
        }
        let mut chances = SECOND_CHANCES;
        for _ in 0..BATCH {
            let Some(victim) = self.choose() else {
                self.has_failed = true;
                break;
            };
            let is_young = self.task.test_and_clear_young(victim.page) == Some(true);
            if is_young && !victim.is_new && chances > 0 {
                chances -= 1;
                self.put_back(victim);
                let mut state = self.pager.state();
                state.policy.accessed(victim.frame);
                continue;
            }
            freed += self.begin(victim);
        }
        if freed == 0 && self.queue.in_flight() > 0 {
            freed += self.reap();
        }
        freed
    }

    fn choose(&mut self) -> Option<Victim> {
        let mut state = self.pager.state();
        loop {
            let (frame, shadow) = state.policy.evict()?;
            let known = std::mem::take(&mut state.frames[frame as usize]);
            if let Some(page) = known.owner.checked_sub(1) {
                return Some(Victim {
                    frame,
                    shadow,
                    page,
                    copy: known.copy,
                    is_new: known.is_new,
                });
            }
        }
    }

    /// Begins to take a page out. Returns frames that are free by it: none, if the page is written first.
    fn begin(&mut self, victim: Victim) -> usize {
        let Some(transit) = self.task.begin_swap_out(victim.page) else {
            // Somebody has a guard, or several spaces share the frame; or it was unmapped.
            match self.task.test_and_clear_young(victim.page) {
                Some(_) => self.put_back(victim),
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
        if victim.copy != 0 && !transit.is_dirty() {
            let slot = Slot(victim.copy);
            self.pager.swap.set_note(slot, victim.shadow.to_bits());
            return self.end(Write { victim, transit, slot }, true);
        }
        self.give_up_copy(victim);
        let victim = Victim { copy: 0, ..victim };
        match self.slot() {
            Ok(slot) => self.write(Write { victim, transit, slot }),
            Err(error) => {
                self.fail(victim, transit, error);
                0
            }
        }
    }

    /// A slot. Where all are taken, pages in memory give up their copies.
    fn slot(&self) -> core::result::Result<Slot, SwapError> {
        let swap = &self.pager.swap;
        swap.get().or_else(|_| {
            let mut state = self.pager.state();
            for frame in state.frames.iter_mut().filter(|frame| frame.copy != 0) {
                swap.put(Slot(std::mem::take(&mut frame.copy)));
            }
            drop(state);
            swap.get()
        })
    }

    fn write(&mut self, write: Write) -> usize {
        let Some(place) = self.writes.iter().position(Option::is_none) else {
            debug_assert!(false, "there is a place for each request that there is room for");
            return 0;
        };
        let at = self.task.space().frames().bytes(write.transit.page().frame);
        let note = (write.slot, write.victim.shadow.to_bits());
        // SAFETY: the frame is the page's, and stays, until the transit ends, unless a fault takes the page back and it
        // is written; then what was written is not believed: the transit does not end.
        let asked = unsafe { self.pager.swap.write(&mut self.queue, note, at, place as u64) };
        match asked {
            Ok(()) => self.writes[place] = Some(write),
            Err(error) => {
                self.pager.swap.put(write.slot);
                self.fail(write.victim, write.transit, error);
            }
        }
        0
    }

    /// Waits for writes, and ends what they were for. Returns how many frames are free.
    fn reap(&mut self) -> usize {
        let mut done = [(0usize, Ok(())); DEPTH as usize];
        let mut len = 0;
        let reaped = self.queue.reap(|place, result| {
            done[len] = (place as usize, result);
            len += 1;
        });
        if let Err(errno) = reaped {
            self.pager.state().note_error(SwapError::Write { slot: Slot(0), errno });
        }
        let mut freed = 0;
        for &(place, result) in &done[..len] {
            let Some(write) = self.writes[place].take() else { continue };
            match result {
                Ok(()) => freed += self.end(write, false),
                Err(errno) => {
                    let Write { victim, transit, slot } = write;
                    self.pager.swap.put(slot);
                    self.fail(victim, transit, SwapError::Write { slot, errno });
                }
            }
        }
        freed
    }

    /// The page is in its slot.
    fn end(&mut self, write: Write, is_clean: bool) -> usize {
        let Write { victim, transit, slot } = write;
        let ended = self.task.end_swap_out(transit, Evicted::Swapped(slot.0));
        let mut state = self.pager.state();
        if ended.is_ok() {
            let counter =
                if is_clean { &mut state.counts.clean } else { &mut state.counts.pswpout };
            *counter += 1;
            return 1;
        }
        state.counts.rescued += 1;
        drop(state);
        self.pager.swap.put(slot);
        self.put_back(Victim { copy: 0, ..victim });
        0
    }

    fn fail(&mut self, victim: Victim, transit: Transit, error: SwapError) {
        self.task.cancel_swap_out(transit);
        self.has_failed = true;
        self.put_back(Victim { copy: 0, ..victim });
        self.pager.state().note_error(error);
    }

    fn give_up_copy(&self, victim: Victim) {
        if victim.copy != 0 {
            self.pager.swap.put(Slot(victim.copy));
        }
    }

    /// The page stays. If the frame has become another page's meanwhile, the policy knows that already.
    fn put_back(&mut self, victim: Victim) {
        let mut state = self.pager.state();
        if state.policy.contains(victim.frame) {
            drop(state);
            self.give_up_copy(victim);
            return;
        }
        state.policy.put_back(victim.frame, victim.shadow);
        let frame = &mut state.frames[victim.frame as usize];
        if frame.owner == 0 {
            (frame.owner, frame.copy, frame.is_new) = (victim.page + 1, victim.copy, false);
        } else {
            drop(state);
            self.give_up_copy(victim);
        }
    }
}
