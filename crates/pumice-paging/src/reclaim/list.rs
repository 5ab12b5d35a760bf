//! Doubly linked lists of pages by index, in one table: nothing is allocated, and taking a page out
//! does not need to know which list it is in.
//!
//! The table has an entry for each page and, behind them, one for each list: its head, which is linked
//! into a ring with the list's pages.

use core::ops::DerefMut;

/// A page's entry, or a list's head.
///
/// The table is the owner's: [`Page::default`] is what it holds at first.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Towards the head: the next younger.
    prev: u32,
    /// Towards the tail: the next older.
    next: u32,
    /// When the page was used, as the policy counts, above what else it knows of it.
    stamp_and_flags: u64,
}

const FLAG_BITS: u32 = 8;
/// Flags that [`Page::set_sampled`] alone sets.
const OF_SAMPLES: u8 = Flags::NOTED.bits() | Flags::SAMPLED.bits();

pumice_frames::flags! {
    /// A policy's knowledge of a page.
    pub(super) struct Flags: u8 {
        /// It is on a list.
        const LRU = 1;
        /// `PG_active`.
        const ACTIVE = 2;
        /// `PG_referenced`.
        const REFERENCED = 4;
        /// Used again at a distance.
        const FAR = 16;
        /// Two bits that count uses.
        const USES = 32 | 64;
        /// It is known whether the page is in a sample, and it is.
        const NOTED = 8;
        const SAMPLED = 128;
    }
}

impl Flags {
    const ONE_USE: u8 = 32;

    /// Uses that are remembered.
    pub fn uses(self) -> u8 {
        (self & Flags::USES).bits() / Flags::ONE_USE
    }

    /// With one use more, up to three.
    #[must_use]
    pub fn used(self) -> Flags {
        if self.contains(Flags::USES) {
            return self;
        }
        Flags::from_bits_retain(self.bits() + Flags::ONE_USE)
    }

    /// With one use less, if there is one.
    #[must_use]
    pub fn aged(self) -> Flags {
        if self.uses() == 0 {
            return self;
        }
        Flags::from_bits_retain(self.bits() - Flags::ONE_USE)
    }
}

impl Page {
    /// An entry of a new table.
    #[doc(hidden)]
    pub const fn new() -> Page {
        Page { prev: 0, next: 0, stamp_and_flags: 0 }
    }

    /// 56 bits.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp_and_flags >> FLAG_BITS
    }

    pub(super) fn flags(&self) -> Flags {
        Flags::from_bits_truncate(self.stamp_and_flags as u8)
    }

    pub(super) fn set_stamp(&mut self, stamp: u64) {
        self.stamp_and_flags = stamp << FLAG_BITS | u64::from(self.flags().bits());
    }

    /// Sets all flags but those of samples.
    pub(super) fn set_flags(&mut self, flags: Flags) {
        self.replace(!OF_SAMPLES, flags.bits());
    }

    /// Whether its page is in a sample, if that is noted.
    pub(super) fn sampled(&self) -> Option<bool> {
        let flags = self.flags();
        flags.contains(Flags::NOTED).then(|| flags.contains(Flags::SAMPLED))
    }

    pub(super) fn set_sampled(&mut self, sampled: Option<bool>) {
        let flags = match sampled {
            None => 0,
            Some(false) => Flags::NOTED.bits(),
            Some(true) => OF_SAMPLES,
        };
        self.replace(OF_SAMPLES, flags);
    }

    fn replace(&mut self, mask: u8, flags: u8) {
        self.stamp_and_flags = self.stamp_and_flags & !u64::from(mask) | u64::from(flags & mask);
    }
}

impl Default for Page {
    fn default() -> Page {
        Page::new()
    }
}

/// The head of a list: the number of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(u32);

/// See the module's top.
#[derive(Debug)]
pub(super) struct Lists<T> {
    table: T,
    pages: usize,
    /// Pages that are active, and that are not, of those on lists. The function that puts a page on one counts it.
    pub nr_active: usize,
    pub nr_inactive: usize,
}

impl<T: DerefMut<Target = [Page]>> Lists<T> {
    /// `lists` empty lists over a table of `pages + lists` entries.
    pub fn new(mut table: T, lists: usize) -> Lists<T> {
        let pages = table.len().checked_sub(lists).expect("a table has an entry for each list");
        assert!(table.len() <= u32::MAX as usize, "pages are numbered by 32 bits");
        table.fill(Page::new());
        let mut lists = Lists { table, pages, nr_active: 0, nr_inactive: 0 };
        for head in pages..lists.table.len() {
            lists.close(head as u32);
        }
        lists
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    pub fn head(&self, list: usize) -> Head {
        debug_assert!(self.pages + list < self.table.len());
        Head((self.pages + list) as u32)
    }

    fn close(&mut self, head: u32) {
        let entry = &mut self.table[head as usize];
        (entry.prev, entry.next) = (head, head);
    }

    fn join(&mut self, younger: u32, older: u32) {
        self.table[younger as usize].next = older;
        self.table[older as usize].prev = younger;
    }

    pub fn page(&self, page: u32) -> &Page {
        &self.table[page as usize]
    }

    pub fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.table[page as usize]
    }

    /// Puts a page that is on no list at the young end.
    pub fn push_head(&mut self, list: Head, page: u32) {
        let first = self.table[list.0 as usize].next;
        self.join(list.0, page);
        self.join(page, first);
    }

    /// Puts a page that is on no list where its stamp says, or as near to there as `most` steps come from both ends.
    pub fn insert(&mut self, list: Head, page: u32, most: usize) {
        let stamp = self.page(page).stamp();
        let (mut younger, mut older) = (list.0, list.0);
        for _ in 0..most {
            let next = self.table[younger as usize].next;
            if next == list.0 || self.page(next).stamp() <= stamp {
                return self.insert_after(younger, page);
            }
            let prev = self.table[older as usize].prev;
            if self.page(prev).stamp() >= stamp {
                return self.insert_after(prev, page);
            }
            (younger, older) = (next, prev);
        }
        self.insert_after(younger, page);
    }

    fn insert_after(&mut self, younger: u32, page: u32) {
        let older = self.table[younger as usize].next;
        self.join(younger, page);
        self.join(page, older);
    }

    /// Takes a page off the list it is on.
    pub fn remove(&mut self, page: u32) {
        let Page { prev, next, .. } = self.table[page as usize];
        self.join(prev, next);
    }

    /// Takes a page off the lists for good. Returns its flags.
    pub fn take_off(&mut self, page: u32) -> Flags {
        let flags = self.page(page).flags();
        debug_assert!(flags.contains(Flags::LRU));
        self.remove(page);
        self.page_mut(page).set_flags(Flags::empty());
        if flags.contains(Flags::ACTIVE) {
            self.nr_active -= 1;
        } else {
            self.nr_inactive -= 1;
        }
        flags
    }

    /// The oldest.
    pub fn tail(&self, list: Head) -> Option<u32> {
        let last = self.table[list.0 as usize].prev;
        (last != list.0).then_some(last)
    }

    /// The next younger page of a list than one that is on it.
    pub fn younger(&self, list: Head, page: u32) -> Option<u32> {
        let prev = self.table[page as usize].prev;
        (prev != list.0).then_some(prev)
    }

    /// Moves all pages of `from` to the young end of `to`.
    pub fn splice_head(&mut self, to: Head, from: Head) {
        let Page { next: young, prev: old, .. } = self.table[from.0 as usize];
        if young == from.0 {
            return;
        }
        let first = self.table[to.0 as usize].next;
        self.join(to.0, young);
        self.join(old, first);
        self.close(from.0);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against queues, young end first.
        #[test]
        fn lists_are_what_queues_are(steps in prop::collection::vec((0u32..4, 0u32..12, 0usize..3), 0..200)) {
            let mut table = [Page::new(); 12 + 3];
            let mut lists = Lists::new(&mut table[..], 3);
            let mut model: [VecDeque<u32>; 3] = Default::default();
            for (step, page, list) in steps {
                let place = model.iter().position(|queue| queue.contains(&page));
                match (step, place) {
                    (0 | 1, None) => {
                        lists.push_head(lists.head(list), page);
                        model[list].push_front(page);
                    }
                    (2, Some(place)) => {
                        lists.remove(page);
                        model[place].retain(|&other| other != page);
                    }
                    (3, _) if page as usize % 3 != list => {
                        let to = page as usize % 3;
                        lists.splice_head(lists.head(to), lists.head(list));
                        let mut moved = core::mem::take(&mut model[list]);
                        moved.extend(core::mem::take(&mut model[to]));
                        model[to] = moved;
                    }
                    _ => {}
                }
                for (list, queue) in model.iter().enumerate() {
                    let head = lists.head(list);
                    let walk = std::iter::successors(lists.tail(head), |&page| lists.younger(head, page));
                    prop_assert!(walk.eq(queue.iter().rev().copied()));
                }
            }
        }
    }
}
