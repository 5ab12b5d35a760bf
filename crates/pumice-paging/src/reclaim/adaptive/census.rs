//! The pages in memory, by whether they are in the sample.
//!
//! Each page's entry notes that when the page comes or is used. Where another sample begins, what is noted of the old
//! one goes little by little: entries count from the first on, as far as they are cleared.

use core::ops::DerefMut;

use super::super::list::Page;
use super::pages::Pages;

/// Entries that are cleared at a time.
const CLEARED_AT_ONCE: usize = 64;
/// A mean is of a memory's worth of evictions, by this.
const MEANS_PER_TURN: f64 = 4.0;
/// The part by which a sample's pages count as fewer, and one page more.
const MARGIN: f64 = 1.0 / 256.0;

/// See the module's top.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// Entries before this one have nothing of another sample.
    cleared: usize,
    /// Pages in memory of which it is noted; and that are in the sample.
    noted: usize,
    sampled: usize,
    /// Pages of the sample in memory, as a mean of the last evictions.
    mean: Option<f64>,
}

impl Census {
    /// Of a memory whose `pages` entries are new.
    pub fn new(pages: usize) -> Census {
        Census { cleared: pages, ..Census::default() }
    }

    /// Another sample begins.
    pub fn begin(&mut self) {
        *self = Census::default();
    }

    /// Clears some of the entries.
    pub fn clear_some<T: DerefMut<Target = [Page]>>(&mut self, pages: &mut Pages<T>) {
        let end = (self.cleared + CLEARED_AT_ONCE).min(pages.pages());
        for page in self.cleared..end {
            pages.set_sampled(page as u32, None);
        }
        self.cleared = end;
    }

    /// A page is in memory, and in the sample or not.
    pub fn note<T>(&mut self, pages: &mut Pages<T>, page: u32, is_sampled: bool)
    where
        T: DerefMut<Target = [Page]>,
    {
        if pages.sampled(page) == Some(is_sampled) || page as usize >= self.cleared {
            return;
        }
        self.forget(pages, page);
        pages.set_sampled(page, Some(is_sampled));
        self.noted += 1;
        self.sampled += usize::from(is_sampled);
    }

    /// A page goes.
    pub fn forget<T: DerefMut<Target = [Page]>>(&mut self, pages: &mut Pages<T>, page: u32) {
        if page as usize >= self.cleared {
            return;
        }
        if let Some(is_sampled) = pages.sampled(page) {
            pages.set_sampled(page, None);
            self.noted -= 1;
            self.sampled -= usize::from(is_sampled);
        }
    }

    /// Looks at a memory that has `len` pages, and room for `room`, before one goes. Returns how many pages of the
    /// sample are in it when it is full. `None` where little is noted.
    ///
    /// It is a mean, since in a loop the pages that are out are each time others. Where none of them is in the sample,
    /// a small memory of that size would have all of the loop. So the mean is rounded down by [`MARGIN`] too, if the
    /// sample is not all. A small memory that is a little too small makes no difference where all pages fit.
    pub fn look(&mut self, len: usize, room: usize) -> Option<usize> {
        if self.noted * 2 < len.max(1) {
            return None;
        }
        let room = room as f64;
        let now = self.sampled as f64 * room / self.noted as f64;
        let mean = self.mean.get_or_insert(now);
        *mean += (now - *mean) * (MEANS_PER_TURN / room).min(1.0);
        let margin = if self.sampled < self.noted { 1.0 + *mean * MARGIN } else { 0.0 };
        Some((*mean - margin) as usize)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::policy::Policy;
    use super::super::Adaptive;
    use super::*;

    const PAGES: usize = 300;

    proptest! {
        #[test]
        fn it_counts_what_the_entries_have(
            steps in proptest::collection::vec((0u8..8, 0..PAGES as u32, any::<bool>()), 1..400),
        ) {
            let mut pages = Pages::new(vec![Page::new(); Adaptive::table_len(PAGES)]);
            let mut census = Census::new(PAGES);
            // By page: of this sample, or of one before.
            let mut model = [None; PAGES];
            for (step, page, is_sampled) in steps {
                match step {
                    0 => {
                        census.begin();
                        model = [None; PAGES];
                    }
                    1 => census.clear_some(&mut pages),
                    2..=3 => {
                        census.forget(&mut pages, page);
                        model[page as usize] = None;
                    }
                    _ => {
                        census.note(&mut pages, page, is_sampled);
                        let is_cleared = (page as usize) < census.cleared;
                        model[page as usize] = is_cleared.then_some(is_sampled);
                    }
                }
                prop_assert_eq!(census.noted, model.iter().flatten().count());
                prop_assert_eq!(census.sampled, model.iter().flatten().filter(|&&it| it).count());
            }
        }
    }
}
