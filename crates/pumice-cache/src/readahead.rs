//! Which pages a thread is going to want, by those it wanted: sequences in either direction, and strides.
//!
//! Only misses are looked at: pages that were not in memory. Three of them at the same distance are a sequence (at
//! the start of a file two), and
//! from then on pages are read ahead of it, twice as many each time. Among those that were read ahead one is the
//! *trigger*: when the thread comes to it, the next ones are begun, so that a thread that reads on finds what it
//! wants in memory and the device never rests. (Linux marks such a page `PG_readahead`; here only the thread that
//! reads needs to know of it.) A thread that reads at random misses at all distances, and nothing is read ahead.

use std::cell::Cell;

/// The size of the second window; each is twice as large as the one before.
const FIRST_WINDOW: usize = 8;
/// Equal distances in a row that are a sequence.
const ENOUGH: u32 = 2;

/// How pages are going to be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It is found out.
    Normal,
    /// Nothing is read ahead.
    Random,
    /// In order: the largest window at once.
    Sequential,
}

/// Pages to be read: `count` of them, from `first` on, each so far from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    first: usize,
    stride: isize,
    count: usize,
}

impl Window {
    /// Those that there are, of a file of so many pages; those that lie beside each other in the order of the file,
    /// so that they go by one request.
    pub fn pages(self, end: usize) -> impl Iterator<Item = usize> {
        let Window { first, stride, count } = self;
        let (first, stride) = match stride {
            // Those before the file's start are cut off.
            -1 => (first.saturating_add(1).saturating_sub(count), 1),
            _ => (first, stride),
        };
        let is_back = self.stride == -1;
        let count = if is_back { count.min(self.first.saturating_add(1)) } else { count };
        let page = move |nth: usize| first.checked_add_signed(stride.saturating_mul(nth as isize));
        (0..count).map_while(page).take_while(move |&page| page < end)
    }
}

/// The known pattern in which a thread goes through a file. No reads are ordered by it: it is one thread's.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Most pages of a window.
    most: usize,
    expected: Cell<Expected>,
    last_miss: Cell<usize>,
    stride: Cell<isize>,
    /// Times the stride was the same.
    times: Cell<u32>,
    /// Of the last window, and the page after it.
    window: Cell<usize>,
    next: Cell<usize>,
    /// None with `usize::MAX`.
    trigger: Cell<usize>,
}

impl Pattern {
    pub fn new(most: usize) -> Pattern {
        Pattern {
            most: most.max(FIRST_WINDOW),
            expected: Cell::new(Expected::Normal),
            last_miss: Cell::new(usize::MAX),
            stride: Cell::new(0),
            times: Cell::new(0),
            window: Cell::new(0),
            next: Cell::new(0),
            trigger: Cell::new(usize::MAX),
        }
    }

    pub fn expect(&self, expected: Expected) {
        self.expected.set(expected);
        self.times.set(0);
        self.trigger.set(usize::MAX);
    }

    /// Whether the thread has come to where more is to be read.
    #[inline]
    pub fn is_trigger(&self, page: usize) -> bool {
        page == self.trigger.get()
    }

    /// The thread wants a page that is not in memory. Returns the pages to read, that page first, if it is one of a
    /// sequence.
    pub fn missed(&self, page: usize) -> Option<Window> {
        let stride = (page as isize).wrapping_sub(self.last_miss.get() as isize);
        self.last_miss.set(page);
        match self.expected.get() {
            Expected::Random => return None,
            Expected::Sequential => {
                self.stride.set(1);
                self.window.set(self.most);
                return Some(self.window_from(page));
            }
            Expected::Normal => {}
        }
        if self.is_overtaken_by(page) {
            // It is the same sequence, of which the device was not fast enough, or some of which was in memory.
            self.window.set((self.window.get() * 2).min(self.most));
            return Some(self.window_from(page));
        }
        let is_same = stride != 0 && stride == self.stride.get();
        self.times.set(if is_same { self.times.get() + 1 } else { 1 });
        self.stride.set(stride);
        if self.times.get() < ENOUGH {
            self.trigger.set(usize::MAX);
            return None;
        }
        self.window.set(FIRST_WINDOW);
        Some(self.window_from(page))
    }

    /// The thread has come to the trigger. Returns the pages to read next.
    pub fn reached(&self) -> Window {
        self.window.set((self.window.get() * 2).min(self.most));
        self.window_from(self.next.get())
    }

    /// Whether a page is the next after what was read ahead, or nearly.
    fn is_overtaken_by(&self, page: usize) -> bool {
        let stride = self.stride.get();
        if self.times.get() < ENOUGH || stride == 0 {
            return false;
        }
        let beyond = (page as isize).wrapping_sub(self.next.get() as isize);
        let ahead = beyond / stride;
        beyond % stride == 0 && (-(self.window.get() as isize)..4).contains(&ahead)
    }

    fn window_from(&self, first: usize) -> Window {
        let (stride, count) = (self.stride.get(), self.window.get());
        let at = |nth: usize| first.checked_add_signed(stride.saturating_mul(nth as isize));
        self.next.set(at(count).unwrap_or(usize::MAX));
        // Half of it is left when the next is begun.
        self.trigger.set(at(count / 2).unwrap_or(usize::MAX));
        self.last_miss.set(at(count - 1).unwrap_or(usize::MAX));
        Window { first, stride, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread goes through pages; how many it misses, and how many are read in vain.
    fn goes(pages: impl IntoIterator<Item = usize>, end: usize) -> (usize, usize) {
        let pattern = Pattern::new(64);
        let mut there = std::collections::BTreeMap::new();
        let mut missed = 0;
        for page in pages {
            if pattern.is_trigger(page) {
                there.extend(pattern.reached().pages(end).map(|page| (page, false)));
            }
            if there.insert(page, true).is_none() {
                missed += 1;
                let window = pattern.missed(page);
                let ahead = window.into_iter().flat_map(|window| window.pages(end));
                ahead.filter(|&other| other != page).for_each(|page| {
                    there.entry(page).or_insert(false);
                });
            }
        }
        (missed, there.values().filter(|&&is_used| !is_used).count())
    }

    #[test]
    fn sequences_and_strides_are_followed() {
        let end = 100_000;
        assert_eq!(goes(0..10_000, 10_000), (2, 0));
        assert_eq!(goes((0..10_000).rev(), 10_000), (3, 0));
        for (missed, in_vain) in [
            goes((0..10_000).step_by(7), end),
            goes((0..10_000).rev().step_by(13), end),
            goes((5000..5100).chain(20_000..20_100), end),
        ] {
            assert!(missed <= 8 && in_vain <= 192, "{missed} missed, {in_vain} in vain");
        }
    }

    #[test]
    fn nothing_is_read_ahead_of_reads_at_random() {
        let mut state = 1u64;
        let random = (0..5000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % 1_000_000
        });
        let (missed, in_vain) = goes(random, 1_000_000);
        assert!(missed > 4900 && in_vain <= 64, "{missed} missed, {in_vain} in vain");
    }

    #[test]
    fn what_is_expected_counts() {
        let pattern = Pattern::new(64);
        pattern.expect(Expected::Random);
        assert!((0..100).all(|page| pattern.missed(page).is_none()));
        pattern.expect(Expected::Sequential);
        assert_eq!(pattern.missed(500).map(|window| window.pages(1000).count()), Some(64));
        assert!(pattern.is_trigger(532));
    }
}
