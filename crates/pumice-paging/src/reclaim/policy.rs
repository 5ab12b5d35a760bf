//! The questions to a policy and the reports to it. A zone's reclaim is given its policy; the page cache has
//! [`Adaptive`](super::Adaptive).

use super::list::Page;

/// A policy's note of a page when it went out: [`Shadow::BITS`] bits, which only the policy reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shadow(pub(super) u32);

impl Shadow {
    /// Bits of it, as many as a number in a page's entry has.
    pub const BITS: u32 = 28;

    /// As it was stored: of `bits`, the lower [`Shadow::BITS`] count.
    pub const fn from_bits(bits: u32) -> Shadow {
        Shadow(bits & ((1 << Shadow::BITS) - 1))
    }

    /// To store.
    pub const fn to_bits(self) -> u32 {
        self.0
    }
}

/// How a page came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// For the first time, and it is being used.
    Fresh,
    /// It is being used, and was here before.
    Refault(Shadow),
    /// Read ahead: nobody has used it yet.
    ReadAhead,
}

/// Settings of policies; each heeds those that concern it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// `vm_balance_ratio`, of two lists: they rotate at the same speed when the active one is so many times as long as
    /// the inactive one. 2, as 2.4 has it: a third of the memory is then for what has been used once. 1 at least.
    pub vm_balance_ratio: usize,
    /// The share of the pages, in percent, that the inactive queue of the adaptive policy's 2Q has. 15, by measurement;
    /// 2Q's authors advise 25. 1 to 30: an active page is one that is used again after a third of a memory.
    pub inactive_percent: usize,
    /// Evictions for which the adaptive policy's 2Q knows a page that went, for each hundred pages. 200: four
    /// times what its authors keep a list for, which costs nothing here; after many more, a page that comes back is not
    /// used often enough to stay. 10,000 at most.
    pub history_percent: usize,
}

impl Tunables {
    /// See each field.
    #[doc(hidden)]
    pub const DEFAULT: Tunables =
        Tunables { vm_balance_ratio: 2, inactive_percent: 15, history_percent: 200 };

    /// The same with values that make sense.
    pub(super) fn checked(self) -> Tunables {
        Tunables {
            vm_balance_ratio: self.vm_balance_ratio.max(1),
            inactive_percent: self.inactive_percent.clamp(1, 30),
            history_percent: self.history_percent.min(10_000),
        }
    }
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables::DEFAULT
    }
}

/// A replacement policy over pages numbered from 0.
///
/// A page has a number for as long as it is in, as its frame has, and a name for as long as it is mapped.
///
/// Of a page that is in: [`Policy::add`] when it comes, [`Policy::accessed`] when it is used later,
/// [`Policy::forget`] when it is unmapped; [`Policy::evict`] says which to give up, and forgets it.
///
/// All of it is called under the lock of a zone's reclaim, for which faults of that zone's spaces wait: it must wait
/// for nobody. A use of a space, a cache or a zone that wants such a lock panics, or does without what it would be for.
/// A policy that panics, or names a page that there is not, has failed: it is called no more, no page goes out any
/// more, and requests fail where no frame is free.
pub trait Policy {
    /// Its name in tables and settings.
    const NAME: &'static str;

    /// `vm_mapped_ratio`, unless somebody sets it: see `Settings`.
    const VM_MAPPED_RATIO: usize = 0;

    /// Has it go by something else from now on.
    fn tune(&mut self, tunables: Tunables);

    /// Entries its table needs for `pages` pages.
    fn table_len(pages: usize) -> usize;

    /// Pages it gives up in a row when memory is short, of `pages` there are.
    fn batch(pages: usize) -> usize;

    /// A page that was not in comes.
    fn add(&mut self, page: u32, name: u64, arrival: Arrival);

    /// A page that is in is used (`mark_page_accessed`).
    fn accessed(&mut self, page: u32, name: u64);

    /// A page that is in goes for good.
    fn forget(&mut self, page: u32);

    /// Chooses a page to go out. `None` if there is none.
    fn evict(&mut self) -> Option<(u32, Shadow)>;

    /// A page that is in goes out, which was chosen by other means than [`Policy::evict`].
    fn evict_page(&mut self, page: u32) -> Shadow;

    /// A batch of so many pages is about to be chosen by other means: `refill_inactive`, where there is such a list.
    #[doc(hidden)]
    fn refill(&mut self, _batch: usize) {}

    /// Rolls the page that would go next over to where new ones come, as it is. `None`, too, where there is no such
    /// list.
    #[doc(hidden)]
    fn roll_over(&mut self) -> Option<u32> {
        None
    }

    /// Whether a page that is in is to be passed over until it is no more among those used often.
    #[doc(hidden)]
    fn is_active(&self, _page: u32) -> bool {
        false
    }

    /// Names pages, `most` at most, by whose last use it will judge the next ones that come and go: their accessed bits
    /// are looked at first.
    #[doc(hidden)]
    fn oldest(&self, _most: usize, _found: &mut dyn FnMut(u32)) {}

    /// Takes a page back that [`Policy::evict`] chose, and that can't go out now: it is rolled over, so that others are
    /// chosen before it is again.
    fn put_back(&mut self, page: u32, shadow: Shadow);

    /// Pages that are in.
    fn len(&self) -> usize;

    /// Whether no page is in.
    #[doc(hidden)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it says of a page that it is in.
    fn contains(&self, page: u32) -> bool;
}

/// An empty table for `pages` pages, where there is somebody to allocate it.
pub fn table<P: Policy>(pages: usize) -> Vec<Page> {
    vec![Page::new(); P::table_len(pages)]
}

/// As [`table`]; `None` without memory for it.
pub fn try_table<P: Policy>(pages: usize) -> Option<Vec<Page>> {
    let len = P::table_len(pages);
    let mut table = Vec::new();
    table.try_reserve_exact(len).ok()?;
    table.resize(len, Page::new());
    Some(table)
}
