//! What a policy is asked and told.

#[cfg(any(test, feature = "std"))]
use super::list::Page;

/// What a policy wrote down of a page when it went out: [`Shadow::BITS`] bits, which only the policy reads.
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

/// A replacement policy over pages numbered from 0.
///
/// Of a page that is in: [`Policy::add`] when it comes, [`Policy::accessed`] when it is used later,
/// [`Policy::forget`] when it is unmapped; [`Policy::evict`] says which to give up, and forgets it.
pub trait Policy {
    /// Its name in tables and settings.
    const NAME: &'static str;

    /// Entries its table needs for `pages` pages.
    fn table_len(pages: usize) -> usize;

    /// Pages it gives up in a row when memory is short, of `pages` there are.
    fn batch(pages: usize) -> usize;

    /// A page that was not in comes.
    fn add(&mut self, page: u32, arrival: Arrival);

    /// A page that is in is used (`mark_page_accessed`).
    fn accessed(&mut self, page: u32);

    /// A page that is in goes for good.
    fn forget(&mut self, page: u32);

    /// Chooses a page to go out. `None` if there is none.
    fn evict(&mut self) -> Option<(u32, Shadow)>;

    /// Takes a page back that [`Policy::evict`] chose, and that can't go out now: it is rolled over, so that others are
    /// chosen before it is again.
    fn put_back(&mut self, page: u32, shadow: Shadow);

    /// Says how uses are told: to a scan that looks at each page so many times while memory turns over once; 0, as at
    /// first: each when it is.
    fn set_looks(&mut self, _times: usize) {}

    /// Pages that are in.
    fn len(&self) -> usize;

    /// Whether no page is in.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it says of a page that it is in.
    fn contains(&self, page: u32) -> bool;
}

/// An empty table for `pages` pages, where there is somebody to allocate it.
#[cfg(any(test, feature = "std"))]
pub fn table<P: Policy>(pages: usize) -> Vec<Page> {
    vec![Page::new(); P::table_len(pages)]
}
