//! The pages in memory, under a rule that can change.
//!
//! Pages are active, in the order of their last use, or inactive, in the order in which they became so. The shadow of a
//! page that is out has the epoch of its last use and the number of its eviction; the rules need no more.

use core::ops::DerefMut;

use super::super::list::{Flags, Head, Lists, Page};
use super::super::policy::{Shadow, Tunables};
use super::order::{Order, BUCKETS};

/// A replacement rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Lirs,
    TwoQ,
    Lru,
}

pub(super) const RULES: [Rule; 3] = [Rule::Lirs, Rule::TwoQ, Rule::Lru];

/// Of LIRS: the share of the pages that are inactive, in percent, and how many at least.
const HIR_PERCENT: usize = 1;
const LEAST_HIR: usize = 1;
/// Of 2Q: while there are too few active pages, one of so many is activated that are no longer known.
const FILL_EVERY: u64 = 64;
/// Of 2Q: epochs between uses at a distance: a third of a memory's worth, more than the inactive queue's share.
const FAR_EPOCHS: u64 = 20;
/// Evictions are numbered by this share of the memory, so that numbers last for 500 times the memory and more.
const EVICTIONS_PER_TURN: usize = 16;
/// Steps that putting an active page in order takes at most, and active pages that one call puts in order.
const SORT_STEPS: usize = 32;
const MOST_SORTED: usize = 4096;
/// Active pages that become inactive for one eviction at most.
const MOST_DEMOTED: usize = 16;
/// Frames that the hand passes for one eviction at most.
const HAND_STEPS: usize = 128;
/// Pages that a look for the oldest passes, by those that it is for.
const LOOK_STEPS: usize = 4;
/// Bits of an epoch and of an eviction's number in a shadow: an epoch is known for 256 times the memory; for half as
/// long where a memory is so small that a 64th of it is rounded down to one page.
const EPOCH_BITS: u32 = 14;
const EPOCHS: u64 = (1 << EPOCH_BITS) - 1;
const NUMBERS: u64 = (1 << (Shadow::BITS - EPOCH_BITS)) - 1;

/// See the module's top.
#[derive(Debug)]
pub(super) struct Pages<T> {
    /// One for each bucket of `order`, and the inactive queue.
    lists: Lists<T>,
    order: Order,
    rule: Rule,
    evictions: u64,
    /// The frame that the hand comes to next.
    hand: usize,
    /// No active page is on the list of a bucket before this one.
    first_active: usize,
    /// The epoch of the last page that came.
    epoch: u64,
    /// Of this epoch and of the one before: the most pages that were in when one was chosen, and the fewest after it.
    most_in: [usize; 2],
    fewest_in: [usize; 2],
    /// Of [`Tunables`].
    inactive_percent: usize,
    history_percent: usize,
}

/// The contents of a shadow.
struct Past {
    /// In which it was used last.
    epoch: u64,
    evictions_ago: u64,
}

impl<T: DerefMut<Target = [Page]>> Pages<T> {
    pub fn new(table: T) -> Pages<T> {
        let lists = Lists::new(table, BUCKETS + 1);
        let order = Order::new(lists.pages());
        let Tunables { inactive_percent, history_percent, .. } = Tunables::DEFAULT;
        Pages {
            lists,
            order,
            rule: Rule::Lru,
            evictions: 0,
            hand: 0,
            first_active: 0,
            epoch: 0,
            most_in: [0; 2],
            fewest_in: [usize::MAX; 2],
            inactive_percent,
            history_percent,
        }
    }

    pub fn with_rule(self, rule: Rule) -> Pages<T> {
        Pages { rule, ..self }
    }

    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Goes by another rule from now on. The pages stay, and leave as that says.
    pub fn follow(&mut self, rule: Rule) {
        self.rule = rule;
    }

    pub fn tune(&mut self, tunables: Tunables) {
        self.inactive_percent = tunables.inactive_percent;
        self.history_percent = tunables.history_percent;
    }

    pub fn tunables(&self) -> Tunables {
        let Pages { inactive_percent, history_percent, .. } = *self;
        Tunables { inactive_percent, history_percent, ..Tunables::DEFAULT }
    }

    /// Pages that its table has room for.
    pub fn pages(&self) -> usize {
        self.lists.pages()
    }

    /// Pages that there is memory for, as far as is known: more than these were not in lately.
    pub fn room(&self) -> usize {
        match self.most_in {
            [0, 0] => self.pages(),
            [now, before] => now.max(before).max(self.len()),
        }
    }

    /// Pages that go at a time, before others come.
    fn batch(&self) -> usize {
        let fewest = self.fewest_in[0].min(self.fewest_in[1]);
        self.most_in[0].max(self.most_in[1]).saturating_sub(fewest)
    }

    pub fn len(&self) -> usize {
        self.lists.nr_active + self.lists.nr_inactive
    }

    pub fn contains(&self, page: u32) -> bool {
        self.lists.page(page).flags().contains(Flags::LRU)
    }

    /// Whether a page is in a sample, if that is noted.
    pub fn sampled(&self, page: u32) -> Option<bool> {
        self.lists.page(page).sampled()
    }

    pub fn set_sampled(&mut self, page: u32, sampled: Option<bool>) {
        self.lists.page_mut(page).set_sampled(sampled);
    }

    /// A page comes, for the first time or with the shadow of when it went.
    pub fn add(&mut self, page: u32, shadow: Option<Shadow>) {
        debug_assert!(!self.contains(page));
        let stamp = self.order.stamp();
        self.lists.page_mut(page).set_stamp(stamp);
        let past = shadow.map(|shadow| self.past(shadow));
        match self.rule {
            Rule::Lirs => self.add_by_lirs(page, past),
            Rule::TwoQ => self.add_by_two_q(page, past),
            Rule::Lru => self.add_inactive(page),
        }
        self.enter();
    }

    /// A page is used.
    pub fn accessed(&mut self, page: u32) {
        let old = self.lists.page(page).stamp();
        let is_now = self.order.epoch(old) == self.order.now();
        if is_now && self.rule == Rule::TwoQ {
            return;
        }
        let mut flags = self.lists.page(page).flags() | Flags::REFERENCED;
        if !is_now {
            flags = flags.used();
            if self.order.now() - self.order.epoch(old) >= FAR_EPOCHS {
                flags |= Flags::FAR;
            }
        }
        let stamp = self.order.stamp();
        let entry = self.lists.page_mut(page);
        entry.set_stamp(stamp);
        entry.set_flags(flags);
        if self.rule == Rule::Lirs && !flags.contains(Flags::ACTIVE) {
            self.use_inactive_by_lirs(page, old);
        }
        if !is_now {
            self.enter();
        }
    }

    pub fn forget(&mut self, page: u32) {
        self.lists.take_off(page);
    }

    /// Chooses a page, which goes.
    pub fn evict(&mut self) -> Option<(u32, Shadow)> {
        self.most_in[0] = self.most_in[0].max(self.len());
        self.fewest_in[0] = self.fewest_in[0].min(self.len().saturating_sub(1));
        let page = match self.rule {
            Rule::Lirs => self.choose_by_lirs(),
            Rule::TwoQ => self.choose_by_two_q(),
            Rule::Lru => self.oldest(),
        }?;
        Some((page, self.evict_page(page)))
    }

    pub fn evict_page(&mut self, page: u32) -> Shadow {
        let stamp = self.lists.page(page).stamp();
        self.lists.take_off(page);
        let number = self.evictions / self.evictions_per_number();
        self.evictions += 1;
        let epoch = self.order.epoch(stamp);
        Shadow::from_bits(((epoch & EPOCHS) | (number & NUMBERS) << EPOCH_BITS) as u32)
    }

    /// A page that went is in after all, and goes last.
    pub fn put_back(&mut self, page: u32) {
        let stamp = self.order.stamp();
        self.lists.page_mut(page).set_stamp(stamp);
        self.add_active(page);
        self.enter();
    }

    fn past(&self, shadow: Shadow) -> Past {
        let (bits, now) = (u64::from(shadow.to_bits()), self.order.now());
        let epochs_ago = now.wrapping_sub(bits) & EPOCHS;
        let per_number = self.evictions_per_number();
        let ago = (self.evictions / per_number).wrapping_sub(bits >> EPOCH_BITS) & NUMBERS;
        Past { epoch: now.saturating_sub(epochs_ago), evictions_ago: ago * per_number }
    }

    /// Evictions go by this many to a number.
    fn evictions_per_number(&self) -> u64 {
        (self.pages() / EVICTIONS_PER_TURN).max(1) as u64
    }

    // Lists.

    fn inactive(&self) -> Head {
        self.lists.head(BUCKETS)
    }

    fn add_inactive(&mut self, page: u32) {
        self.lists.page_mut(page).set_flags(Flags::LRU);
        self.lists.push_head(self.inactive(), page);
        self.lists.nr_inactive += 1;
    }

    fn add_active(&mut self, page: u32) {
        self.place(page);
        self.lists.nr_active += 1;
    }

    /// Puts an active page on the list its stamp says.
    fn place(&mut self, page: u32) {
        let entry = self.lists.page_mut(page);
        let uses = entry.flags() & Flags::USES;
        entry.set_flags(Flags::LRU | Flags::ACTIVE | uses);
        let (bucket, list) = self.order.list(entry.stamp());
        self.first_active = self.first_active.min(bucket);
        self.lists.insert(self.lists.head(list), page, SORT_STEPS);
    }

    fn enter(&mut self) {
        if let Some(merged) = self.order.enter() {
            self.lists.splice_head(self.lists.head(merged.into), self.lists.head(merged.from));
            // Those behind it have moved up.
            self.first_active -= usize::from(self.first_active > merged.bucket);
        }
        if self.order.now() != self.epoch {
            self.epoch = self.order.now();
            self.most_in = [self.most_in[0].min(self.len()), self.most_in[0]];
            self.fewest_in = [usize::MAX, self.fewest_in[0]];
        }
    }

    /// The active page that was used longest ago. Those that were used since they were put where they are go
    /// where they belong; where very many were, one of them is taken as it is, so that no call takes long.
    fn oldest_active(&mut self) -> Option<u32> {
        let mut sorted = 0;
        loop {
            let list = self.order.list_of(self.first_active)?;
            let Some(page) = self.lists.tail(self.lists.head(list)) else {
                self.first_active += 1;
                continue;
            };
            if !self.lists.page(page).flags().contains(Flags::REFERENCED) || sorted == MOST_SORTED {
                return Some(page);
            }
            sorted += 1;
            self.lists.remove(page);
            self.place(page);
        }
    }

    /// Under LIRS, the active pages that were used longest ago, as far as is known. Pages that come back are compared
    /// with the last one. If its use was not seen yet, it would let in others that were used before it.
    pub fn oldest_judged(&self, most: usize, found: &mut dyn FnMut(u32)) {
        if self.rule != Rule::Lirs {
            return;
        }
        let (mut many, mut passed) = (0, 0);
        let lists = (self.first_active..).map_while(|bucket| self.order.list_of(bucket));
        for list in lists.map(|list| self.lists.head(list)) {
            let tail = self.lists.tail(list);
            for page in std::iter::successors(tail, |&page| self.lists.younger(list, page)) {
                if many == most || passed == most * LOOK_STEPS {
                    return;
                }
                passed += 1;
                if !self.lists.page(page).flags().contains(Flags::REFERENCED) {
                    many += 1;
                    found(page);
                }
            }
        }
    }

    /// The page that has been inactive longest. Those with the flag are activated on the way.
    fn oldest_inactive(&mut self, activated: Flags) -> Option<u32> {
        let mut moved = 0;
        loop {
            let page = self.lists.tail(self.inactive())?;
            if !self.lists.page(page).flags().contains(activated) || moved == MOST_SORTED {
                return Some(page);
            }
            moved += 1;
            self.lists.take_off(page);
            self.add_active(page);
        }
    }

    // LRU.

    /// The page that was used longest ago.
    fn oldest(&mut self) -> Option<u32> {
        let inactive = self.oldest_inactive(Flags::REFERENCED);
        let active = self.oldest_active();
        let Some(inactive) = inactive else { return active };
        let stamp = |page: u32| self.lists.page(page).stamp();
        active.filter(|&active| stamp(active) < stamp(inactive)).or(Some(inactive))
    }

    // LIRS: its LIR pages are the active ones, and its stack ends with the oldest of these.

    /// Inactive pages that there are to be, before a batch goes: or active pages would go with each.
    fn hir(&self) -> usize {
        (self.room() * HIR_PERCENT / 100).max(LEAST_HIR)
    }

    fn add_by_lirs(&mut self, page: u32, past: Option<Past>) {
        let is_lir = match past {
            // Until the first page goes, the memory fills.
            None => self.evictions == 0 && self.lists.nr_active + self.hir() < self.room(),
            Some(past) => {
                let bottom = self.oldest_active().map(|page| self.lists.page(page).stamp());
                bottom.is_none_or(|bottom| self.order.epoch(bottom) < past.epoch)
                    || self.lists.nr_active + self.hir() + 2 * self.batch() < self.room()
            }
        };
        if !is_lir {
            return self.add_inactive(page);
        }
        self.add_active(page);
        if self.lists.nr_active + self.hir() > self.room() {
            self.demote();
        }
    }

    /// An inactive page was used, and before that when its old stamp says.
    fn use_inactive_by_lirs(&mut self, page: u32, old: u64) {
        let bottom = self.oldest_active().map(|page| self.lists.page(page).stamp());
        self.lists.take_off(page);
        if bottom.is_none_or(|bottom| bottom < old) {
            self.add_active(page);
            self.demote();
        } else {
            self.add_inactive(page);
        }
    }

    /// The active page that was used longest ago becomes inactive.
    fn demote(&mut self) {
        if let Some(page) = self.oldest_active() {
            self.lists.take_off(page);
            self.add_inactive(page);
        }
    }

    fn choose_by_lirs(&mut self) -> Option<u32> {
        // Where all inactive pages were unmapped, their place is taken little by little, so that no call takes long.
        for _ in 0..MOST_DEMOTED {
            if self.lists.nr_inactive >= self.hir() {
                break;
            }
            self.demote();
        }
        self.lists.tail(self.inactive())
    }

    // 2Q: its Am is the active pages, of which a hand goes round (GCLOCK, Smith, TODS 1978). The shadows are its A1out.

    fn add_by_two_q(&mut self, page: u32, past: Option<Past>) {
        let Some(past) = past else { return self.add_inactive(page) };
        let is_known = past.evictions_ago * 100 <= (self.len() * self.history_percent) as u64;
        let has_room =
            self.lists.nr_active + self.len() * self.inactive_percent / 100 + 1 < self.len();
        // Not nothing for ever, in a loop of many memories' size.
        if is_known || has_room && self.evictions % FILL_EVERY == 0 {
            self.add_active(page);
        } else {
            self.add_inactive(page);
        }
    }

    fn choose_by_two_q(&mut self) -> Option<u32> {
        let inactive = self.oldest_inactive(Flags::FAR);
        if self.lists.nr_inactive > self.len() * self.inactive_percent / 100 {
            inactive
        } else {
            self.rarest_active().or(inactive)
        }
    }

    /// The next active page that the hand meets and that has no uses left, or else the one with the fewest that it met.
    fn rarest_active(&mut self) -> Option<u32> {
        let mut rarest: Option<(u8, u32)> = None;
        for _ in 0..HAND_STEPS {
            let page = self.hand as u32;
            self.hand = (self.hand + 1) % self.pages();
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
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::super::policy::Policy;
    use super::super::Adaptive;
    use super::*;

    #[test]
    fn the_place_of_inactive_pages_that_went_is_taken_little_by_little() {
        const PAGES: u32 = 20_000;
        let table = vec![Page::new(); Adaptive::table_len(PAGES as usize)];
        let mut pages = Pages::new(table).with_rule(Rule::Lirs);
        (0..PAGES).for_each(|page| pages.add(page, None));
        pages.evict().expect("a page");
        let is_inactive = |pages: &Pages<_>, page| {
            pages.contains(page) && !pages.lists.page(page).flags().contains(Flags::ACTIVE)
        };
        let inactive: Vec<u32> = (0..PAGES).filter(|&page| is_inactive(&pages, page)).collect();
        assert!(inactive.len() > 100, "{}", inactive.len());
        inactive.into_iter().for_each(|page| pages.forget(page));
        for nth in 1..100 {
            pages.evict().expect("a page");
            let many = (0..PAGES).filter(|&page| is_inactive(&pages, page)).count();
            assert!(many <= (nth * MOST_DEMOTED).min(pages.hir()), "{many}");
        }
    }
}
