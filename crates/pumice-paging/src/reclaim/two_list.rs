//! Linux 2.4's policy (`mm/vmscan.c`, `mm/filemap.c` of 2.4.10 and later), SPEC E1 to E3.
//!
//! New pages enter at the head of the inactive list. The second touch of an inactive page moves it to the active
//! list. Before a batch is freed from the inactive tail, pages are refiled from the active tail to the inactive
//! head: the more, the larger the active list is against the inactive one. An active page that was used since it
//! was looked at last goes round once more; an inactive one is freed whatever its bit says.

use super::list::{Flags, Head, Lists, Page};
use super::policy::{Arrival, Policy, Shadow, Tunables};

/// `SWAP_CLUSTER_MAX`: pages freed in a batch.
const BATCH: usize = 32;

/// See the module's top.
#[derive(Debug)]
pub struct TwoList<'t> {
    lists: Lists<&'t mut [Page]>,
    vm_balance_ratio: usize,
    /// The rest of the batch that was balanced for.
    batch_left: usize,
}

impl<'t> TwoList<'t> {
    /// Over a table of [`Policy::table_len`] entries.
    pub fn new(table: &'t mut [Page]) -> TwoList<'t> {
        TwoList {
            lists: Lists::new(table, 2),
            vm_balance_ratio: Tunables::DEFAULT.vm_balance_ratio,
            batch_left: 0,
        }
    }

    /// Pages on the active list, and on the inactive one.
    #[doc(hidden)]
    pub fn lengths(&self) -> (usize, usize) {
        (self.lists.nr_active, self.lists.nr_inactive)
    }

    fn inactive(&self) -> Head {
        self.lists.head(0)
    }

    fn active(&self) -> Head {
        self.lists.head(1)
    }

    fn add_inactive(&mut self, page: u32, referenced: Flags) {
        self.lists.page_mut(page).set_flags(Flags::LRU | referenced);
        self.lists.push_head(self.inactive(), page);
        self.lists.nr_inactive += 1;
    }

    fn add_active(&mut self, page: u32) {
        self.lists.page_mut(page).set_flags(Flags::LRU | Flags::ACTIVE);
        self.lists.push_head(self.active(), page);
        self.lists.nr_active += 1;
    }

    /// `refill_inactive`: takes `pages` from the active list.
    fn refill_inactive(&mut self, pages: usize) {
        let mut left = pages;
        while left > 0 {
            let Some(page) = self.lists.tail(self.active()) else { return };
            let referenced = self.lists.page(page).flags().contains(Flags::REFERENCED);
            self.lists.take_off(page);
            if referenced {
                self.add_active(page);
            } else {
                // As 2.4 does: one touch brings it back.
                self.add_inactive(page, Flags::REFERENCED);
                left -= 1;
            }
        }
    }

    /// Balances the lists before a batch.
    fn balance(&mut self, batch: usize) {
        let ratio =
            batch * self.lists.nr_active / ((self.lists.nr_inactive + 1) * self.vm_balance_ratio);
        let ratio = if self.lists.nr_inactive == 0 { ratio.max(batch) } else { ratio };
        self.refill_inactive(ratio.min(self.lists.nr_active));
    }
}

impl Policy for TwoList<'_> {
    const NAME: &'static str = "two-list";

    /// As 2.4.19 and later have it by default: the 2.4 design as published, batches and all.
    const VM_MAPPED_RATIO: usize = 100;

    fn tune(&mut self, tunables: Tunables) {
        self.vm_balance_ratio = tunables.checked().vm_balance_ratio;
    }

    fn table_len(pages: usize) -> usize {
        pages + 2
    }

    fn batch(pages: usize) -> usize {
        BATCH.min(pages / 4).max(1)
    }

    fn add(&mut self, page: u32, _name: u64, arrival: Arrival) {
        debug_assert!(!self.contains(page));
        match arrival {
            Arrival::Fresh | Arrival::Refault(_) => self.add_inactive(page, Flags::REFERENCED),
            Arrival::ReadAhead => self.add_inactive(page, Flags::empty()),
        }
    }

    fn accessed(&mut self, page: u32, _name: u64) {
        let flags = self.lists.page(page).flags();
        if flags & (Flags::ACTIVE | Flags::REFERENCED) == Flags::REFERENCED {
            self.lists.take_off(page);
            self.add_active(page);
        } else {
            self.lists.page_mut(page).set_flags(flags | Flags::REFERENCED);
        }
    }

    fn forget(&mut self, page: u32) {
        self.lists.take_off(page);
    }

    fn evict(&mut self) -> Option<(u32, Shadow)> {
        if self.batch_left == 0 || self.lists.nr_inactive == 0 {
            self.batch_left = Self::batch(self.lists.pages());
            self.balance(self.batch_left);
        }
        let page = self.lists.tail(self.inactive())?;
        self.batch_left -= 1;
        self.lists.take_off(page);
        Some((page, Shadow(0)))
    }

    fn evict_page(&mut self, page: u32) -> Shadow {
        self.lists.take_off(page);
        Shadow(0)
    }

    fn refill(&mut self, batch: usize) {
        self.balance(batch);
    }

    fn roll_over(&mut self) -> Option<u32> {
        let page = self.lists.tail(self.inactive())?;
        self.lists.remove(page);
        self.lists.push_head(self.inactive(), page);
        Some(page)
    }

    fn is_active(&self, page: u32) -> bool {
        self.lists.page(page).flags().contains(Flags::ACTIVE)
    }

    fn put_back(&mut self, page: u32, _shadow: Shadow) {
        self.add_inactive(page, Flags::empty());
    }

    fn len(&self) -> usize {
        self.lists.nr_active + self.lists.nr_inactive
    }

    fn contains(&self, page: u32) -> bool {
        self.lists.page(page).flags().contains(Flags::LRU)
    }
}
