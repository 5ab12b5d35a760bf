//! Ours: scan resistant, and never much worse than LRU.
//!
//! # What it does by itself
//! As in 2Q (Johnson and Shasha, VLDB 1994) new pages go through an *inactive* queue of a fifth of the memory, in
//! the order they came, whatever happens to them there: references that follow each other closely say little.
//! Pages that come back after they were evicted, before half as many evictions again as there are pages,
//! are used again at some distance, and go to the *active* pages. Of those a hand goes round (CLOCK, Corbato 1968):
//! a page goes if it has no uses left, of which two bits count those at a distance, and each pass takes one
//! (GCLOCK, Smith, TODS 1978). Where all are used often, how often says more than how long ago.
//! There are no lists of pages that are gone: a page's shadow has the eviction's number (refault distance,
//! `mm/workingset.c`). While the inactive queue is longer than its share, pages in it that are used again at a
//! distance at which they would have been gone are activated as well.
//!
//! A loop larger than the memory comes back, too. So that an active page does not make room for one that is no
//! better, a page that was used before any active one was is activated *on trial*: if pages so activated are used
//! before those that made room for them come back, it was worth it. (LIRS, Jiang and Zhang, SIGMETRICS 2002,
//! never does it, 2Q always.)
//!
//! # Never much worse than LRU
//! It knows of each page whether plain LRU would have it ([`super::ages`]), at each use and each fault. *Credit* counts
//! what was won against it: one for a hit where it would have missed, less one for a fault where it would have
//! hit, and a small allowance for each use. *Stale* pages, which LRU would not have, say what may yet be lost: as
//! many are missing of those it would have. As long as there are fewer than there is credit, pages are chosen as
//! above; else the page goes that was used longest ago, of all. That brings the memory back to what LRU would
//! have, at the cost of the missing pages at most, which are paid for. So over any sequence the hits are LRU's
//! less the allowance. The pages that LRU would have are known to a 64th of the memory only; where that makes a
//! difference, credit falls below zero, and while it is there each single use counts and pages go in the very order of
//! LRU.

use super::ages::{Ages, BUCKETS};
use super::list::{Flags, Head, Lists, Page};
use super::policy::{Arrival, Policy, Shadow, Tunables};

/// While there are too few active pages, one of so many is activated that are no longer known.
const FILL_EVERY: u64 = 64;
/// Uses and faults for which one hit may be lost.
const USES_PER_LOSS: i64 = 400;
/// The share of the pages, as its divisor, that may be lost to begin with.
const PAGES_PER_LOSS: i64 = 64;
/// Epochs between uses at a distance: a third of a memory's worth, more than the inactive queue's share.
const FAR_EPOCHS: u32 = 20;
/// Of activations that nothing but a trial speaks for, one in so many is made while trials fail.
const PROBE_EVERY: u32 = 16;
/// Evictions are numbered by this share of the memory, so that numbers last for 512 times the memory.
const EVICTIONS_PER_TURN: usize = 16;
/// Steps that putting an active page in order takes at most.
const SORT_STEPS: usize = 32;
/// Frames that the hand passes for one eviction at most.
const HAND_STEPS: usize = 128;
/// Bits of an epoch and of an eviction's number in a shadow.
const FIELD_BITS: u32 = 13;
const FIELD: u32 = (1 << FIELD_BITS) - 1;

/// See the module's top.
#[derive(Debug)]
pub struct Adaptive<'t> {
    /// One for each bucket of `ages`, and the inactive queue.
    lists: Lists<'t>,
    ages: Ages,
    evictions: u64,
    /// The frame that the hand comes to next.
    hand: usize,
    /// No active page is on the list of a bucket before this one.
    first_active: usize,
    /// Looks at each page while memory turns over once; 0: each use is told when it is.
    looks: usize,
    /// In 1 / [`USES_PER_LOSS`] of a hit.
    credit: i64,
    trials: Trials,
    /// Of [`Tunables`].
    inactive_percent: usize,
    history_percent: usize,
}

/// How activations on trial have gone.
#[derive(Debug, Default)]
struct Trials {
    /// Used, less those that made room and came back.
    score: i32,
    /// Made, whose room has still to be made.
    owing: usize,
    /// Not made while they failed.
    passed: u32,
}

/// The contents of a shadow.
struct Past {
    /// In which it was used last.
    epoch: u32,
    evictions_ago: u64,
    made_room: bool,
}

impl<'t> Adaptive<'t> {
    /// Over a table of [`Policy::table_len`] entries.
    pub fn new(table: &'t mut [Page]) -> Adaptive<'t> {
        let lists = Lists::new(table, BUCKETS + 1);
        let pages = lists.pages();
        let ages = Ages::new(pages);
        let credit = pages as i64 * USES_PER_LOSS / PAGES_PER_LOSS;
        let Tunables { inactive_percent, history_percent, .. } = Tunables::DEFAULT;
        Adaptive {
            lists,
            ages,
            evictions: 0,
            hand: 0,
            first_active: 0,
            looks: 0,
            credit,
            trials: Trials::default(),
            inactive_percent,
            history_percent,
        }
    }

    /// Pages that are in and that plain LRU would not have.
    #[doc(hidden)]
    pub fn stale(&self) -> usize {
        self.ages.stale()
    }

    fn inactive(&self) -> Head {
        self.lists.head(BUCKETS)
    }

    fn add_inactive(&mut self, page: u32) {
        self.lists.page_mut(page).set_flags(Flags::LRU);
        self.lists.push_head(self.inactive(), page);
        self.lists.nr_inactive += 1;
    }

    fn add_active(&mut self, page: u32, trial: Flags) {
        self.place(page, trial);
        self.lists.nr_active += 1;
    }

    /// Puts an active page on the list its stamp says.
    fn place(&mut self, page: u32, trial: Flags) {
        let entry = self.lists.page_mut(page);
        let uses = entry.flags() & Flags::USES;
        entry.set_flags(Flags::LRU | Flags::ACTIVE | trial | uses);
        let (bucket, list) = self.ages.list(entry.stamp());
        self.first_active = self.first_active.min(bucket);
        self.lists.insert(self.lists.head(list), page, SORT_STEPS);
    }

    fn turn(&mut self) {
        if let Some(merged) = self.ages.turn() {
            self.lists.splice_head(self.lists.head(merged.into), self.lists.head(merged.from));
            // Those behind it have moved up.
            self.first_active -= usize::from(self.first_active > merged.bucket);
        }
    }

    /// Won or lost against LRU; more than is there to lose is not kept.
    fn account(&mut self, hits: i64) {
        let most = self.lists.pages() as i64 * USES_PER_LOSS;
        self.credit = (self.credit + hits * USES_PER_LOSS + 1).min(most);
    }

    /// The active page that was used longest ago. Those that were used since they were put where they are go
    /// where they belong.
    fn oldest_active(&mut self) -> Option<u32> {
        debug_assert!((0..self.first_active).all(|bucket| {
            let list = self.ages.list_of(bucket).map(|list| self.lists.head(list));
            list.is_none_or(|list| self.lists.tail(list).is_none())
        }));
        loop {
            let list = self.ages.list_of(self.first_active)?;
            let Some(page) = self.lists.tail(self.lists.head(list)) else {
                self.first_active += 1;
                continue;
            };
            let flags = self.lists.page(page).flags();
            if !flags.contains(Flags::REFERENCED) {
                return Some(page);
            }
            self.lists.remove(page);
            self.place(page, flags & Flags::TRIAL);
        }
    }

    /// The next active page that the hand meets and that has no uses left, or else the one with the fewest that it met.
    fn rarest_active(&mut self) -> Option<u32> {
        let mut rarest: Option<(u8, u32)> = None;
        for _ in 0..HAND_STEPS {
            let page = self.hand as u32;
            self.hand = (self.hand + 1) % self.lists.pages();
            let flags = self.lists.page(page).flags();
            if !flags.contains(Flags::ACTIVE) {
                continue;
            }
            let uses = flags.uses();
            if rarest.is_none_or(|(fewest, _)| uses < fewest) {
                rarest = Some((uses, page));
            }
            if uses == 0 {
                break;
            }
            self.lists.page_mut(page).set_flags(flags.aged());
        }
        // None where few of the frames have pages.
        rarest.map(|(_, page)| page).or_else(|| self.oldest_active())
    }

    /// The page that has been inactive longest. Those with the flag are activated on the way.
    fn oldest_inactive(&mut self, activated: Flags) -> Option<u32> {
        loop {
            let page = self.lists.tail(self.inactive())?;
            if !self.lists.page(page).flags().contains(activated) {
                return Some(page);
            }
            self.lists.take_off(page);
            self.add_active(page, Flags::empty());
        }
    }

    /// The page that was used longest ago.
    fn oldest(&mut self) -> Option<u32> {
        let inactive = self.oldest_inactive(Flags::REFERENCED);
        let active = self.oldest_active();
        let Some(inactive) = inactive else { return active };
        let stamp = |page: u32| self.lists.page(page).stamp();
        active.filter(|&active| stamp(active) < stamp(inactive)).or(Some(inactive))
    }

    fn choose(&mut self) -> Option<u32> {
        if self.missing() as i64 * USES_PER_LOSS >= self.credit {
            return self.oldest();
        }
        let inactive = self.oldest_inactive(Flags::FAR);
        if self.lists.nr_inactive > self.len() * self.inactive_percent / 100 {
            inactive
        } else {
            self.rarest_active().or(inactive)
        }
    }

    /// Pages that LRU would have, by when uses are told. A use that is reported late seems to have been later than it
    /// was, by half the time between looks on average: as many fewer are to be counted from the youngest.
    fn room(&self) -> usize {
        let pages = self.len();
        pages - pages.checked_div(2 * self.looks).unwrap_or(0)
    }

    /// Pages that LRU would have and that are not in: of those that are, some are stale even if all that it would
    /// have are among them.
    fn missing(&self) -> usize {
        self.ages.stale().saturating_sub(self.len() - self.room())
    }

    /// Evictions go by this many to a number.
    fn evictions_per_number(&self) -> u64 {
        (self.lists.pages() / EVICTIONS_PER_TURN).max(1) as u64
    }

    fn shadow(&self, stamp: u64, made_room: bool) -> Shadow {
        let number = (self.evictions / self.evictions_per_number()) as u32 & FIELD;
        let epoch = self.ages.epoch(stamp);
        Shadow((epoch & FIELD) | number << FIELD_BITS | u32::from(made_room) << (2 * FIELD_BITS))
    }

    fn past(&self, shadow: Shadow) -> Past {
        let now = self.ages.now();
        let epochs_ago = now.wrapping_sub(shadow.0) & FIELD;
        let per_number = self.evictions_per_number();
        let number = (self.evictions / per_number) as u32;
        let ago = number.wrapping_sub(shadow.0 >> FIELD_BITS) & FIELD;
        Past {
            epoch: now.saturating_sub(epochs_ago),
            evictions_ago: u64::from(ago) * per_number,
            made_room: shadow.0 >> (2 * FIELD_BITS) & 1 != 0,
        }
    }

    /// A page goes.
    fn take_out(&mut self, page: u32) -> Shadow {
        let stamp = self.lists.page(page).stamp();
        let flags = self.lists.take_off(page);
        self.ages.go(stamp);
        let made_room = flags.contains(Flags::ACTIVE) && self.trials.makes_room();
        let shadow = self.shadow(stamp, made_room);
        self.evictions += 1;
        shadow
    }

    /// A page comes back.
    fn refault(&mut self, page: u32, past: &Past) {
        self.account(-i64::from(self.ages.was_recent(past.epoch)));
        self.ages.come(Some(past.epoch));
        let is_known = past.evictions_ago * 100 <= (self.len() * self.history_percent) as u64;
        if is_known && past.made_room {
            self.trials.failed(self.len());
        }
        let room = self.lists.nr_active + self.len() * self.inactive_percent / 100 + 1 < self.len();
        let oldest =
            self.oldest_active().map(|page| self.ages.epoch(self.lists.page(page).stamp()));
        // Nothing in place of what is there already, but not nothing for ever: a loop of many memories' size.
        let fills = room && (is_known || self.evictions % FILL_EVERY == 0);
        if fills || is_known && oldest.is_none_or(|oldest| oldest < past.epoch) {
            self.add_active(page, Flags::empty());
        } else if is_known && self.trials.make() {
            self.add_active(page, Flags::TRIAL);
        } else {
            self.add_inactive(page);
        }
    }
}

impl Trials {
    fn limit(pages: usize) -> i32 {
        (pages / 16).max(16) as i32
    }

    fn make(&mut self) -> bool {
        if self.score < 0 {
            self.passed += 1;
            if self.passed % PROBE_EVERY != 0 {
                return false;
            }
        }
        self.owing += 1;
        true
    }

    fn paid_off(&mut self, pages: usize) {
        self.score = (self.score + 1).min(Self::limit(pages));
    }

    fn failed(&mut self, pages: usize) {
        self.score = (self.score - 1).max(-Self::limit(pages));
    }

    /// Whether the active page that goes does so for one on trial.
    fn makes_room(&mut self) -> bool {
        let owing = self.owing > 0;
        self.owing -= usize::from(owing);
        owing
    }
}

impl Policy for Adaptive<'_> {
    const NAME: &'static str = "adaptive";

    fn tune(&mut self, tunables: Tunables) {
        let tunables = tunables.checked();
        self.inactive_percent = tunables.inactive_percent;
        self.history_percent = tunables.history_percent;
    }

    fn table_len(pages: usize) -> usize {
        pages + BUCKETS + 1
    }

    fn batch(_pages: usize) -> usize {
        1
    }

    fn add(&mut self, page: u32, arrival: Arrival) {
        debug_assert!(!self.contains(page));
        self.lists.page_mut(page).set_stamp(self.ages.stamp());
        match arrival {
            Arrival::Refault(shadow) => {
                let past = self.past(shadow);
                self.refault(page, &past);
            }
            Arrival::Fresh | Arrival::ReadAhead => {
                self.account(0);
                self.ages.come(None);
                self.add_inactive(page);
            }
        }
        self.turn();
    }

    fn accessed(&mut self, page: u32) {
        let old = self.lists.page(page).stamp();
        let is_now = self.ages.is_now(old);
        if is_now && self.credit >= 0 {
            return;
        }
        let mut flags = self.lists.page(page).flags() | Flags::REFERENCED;
        if !is_now {
            flags = flags.used();
            if flags.contains(Flags::TRIAL) {
                flags -= Flags::TRIAL;
                self.trials.paid_off(self.len());
            }
            if self.ages.now() - self.ages.epoch(old) >= FAR_EPOCHS {
                flags |= Flags::FAR;
            }
            self.account(i64::from(!self.ages.is_recent(old)));
            self.ages.used(old);
        }
        let stamp = self.ages.stamp();
        let entry = self.lists.page_mut(page);
        entry.set_stamp(stamp);
        entry.set_flags(flags);
        self.turn();
    }

    fn forget(&mut self, page: u32) {
        self.lists.take_off(page);
        self.ages.forget(self.lists.page(page).stamp());
    }

    fn evict(&mut self) -> Option<(u32, Shadow)> {
        self.ages.set_room(self.room());
        let page = self.choose()?;
        Some((page, self.take_out(page)))
    }

    fn evict_page(&mut self, page: u32) -> Shadow {
        self.ages.set_room(self.room());
        self.take_out(page)
    }

    fn put_back(&mut self, page: u32, _shadow: Shadow) {
        let old = self.lists.page(page).stamp();
        self.ages.stay(old);
        // Rolled over: or pages that can't go would be chosen again and again.
        self.ages.used(old);
        self.lists.page_mut(page).set_stamp(self.ages.stamp());
        self.add_active(page, Flags::empty());
        self.turn();
    }

    fn set_looks(&mut self, times: usize) {
        self.looks = times;
    }

    fn len(&self) -> usize {
        self.lists.nr_active + self.lists.nr_inactive
    }

    fn contains(&self, page: u32) -> bool {
        self.lists.page(page).flags().contains(Flags::LRU)
    }
}
