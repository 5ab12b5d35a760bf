//! LRU and 2Q as policies of reclaim, by the rules of [`super::super::peers`]. They are told of accessed bits and of
//! pages that come.

use std::collections::HashMap;

use pumice_paging::reclaim::{Arrival, Policy, Shadow, Tunables};

use super::super::queue::PageQueue;

/// Of a page that goes there is nothing to note.
const NO_NOTE: Shadow = Shadow::from_bits(0);

/// The page that was used longest ago goes.
pub struct Lru {
    queue: PageQueue,
}

impl Lru {
    /// Over frames that are numbered below `table`.
    pub fn new(table: usize) -> Lru {
        Lru { queue: PageQueue::new(table) }
    }
}

impl Policy for Lru {
    const NAME: &'static str = "lru";

    fn tune(&mut self, _: Tunables) {}

    fn table_len(_: usize) -> usize {
        0
    }

    fn batch(_: usize) -> usize {
        1
    }

    fn add(&mut self, page: u32, _: u64, _: Arrival) {
        self.queue.push_back(page);
    }

    fn accessed(&mut self, page: u32, _: u64) {
        self.queue.remove(page);
        self.queue.push_back(page);
    }

    fn forget(&mut self, page: u32) {
        self.queue.remove(page);
    }

    fn evict(&mut self) -> Option<(u32, Shadow)> {
        Some((self.queue.pop_front()?, NO_NOTE))
    }

    fn evict_page(&mut self, page: u32) -> Shadow {
        self.queue.remove(page);
        NO_NOTE
    }

    fn put_back(&mut self, page: u32, _: Shadow) {
        self.queue.push_back(page);
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn contains(&self, page: u32) -> bool {
        self.queue.contains(page)
    }
}

/// 2Q in full, as among the peers.
pub struct TwoQ {
    /// Pages that there is memory for.
    frames: usize,
    new: PageQueue,
    main: PageQueue,
    /// Names that were in `new`, by number.
    was_new: PageQueue,
    numbers: HashMap<u64, u32>,
    /// The number of the page that a frame has.
    number_of: Vec<u32>,
}

/// The queue that a page came from is its note.
const FROM_MAIN: Shadow = Shadow::from_bits(1);

impl TwoQ {
    /// For a memory of `frames` of `pages` pages; frames are numbered below `table`.
    pub fn new(frames: usize, table: usize, pages: usize) -> TwoQ {
        TwoQ {
            frames,
            new: PageQueue::new(table),
            main: PageQueue::new(table),
            was_new: PageQueue::new(pages),
            numbers: HashMap::new(),
            number_of: vec![0; table],
        }
    }

    fn remember(&mut self, page: u32) {
        self.was_new.push_back(self.number_of[page as usize]);
        if self.was_new.len() > self.frames / 2 {
            self.was_new.pop_front();
        }
    }
}

impl Policy for TwoQ {
    const NAME: &'static str = "2q";

    fn tune(&mut self, _: Tunables) {}

    fn table_len(_: usize) -> usize {
        0
    }

    fn batch(_: usize) -> usize {
        1
    }

    fn add(&mut self, page: u32, name: u64, _: Arrival) {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(name).or_insert(next);
        self.number_of[page as usize] = number;
        if self.was_new.contains(number) {
            self.was_new.remove(number);
            self.main.push_back(page);
        } else {
            self.new.push_back(page);
        }
    }

    fn accessed(&mut self, page: u32, _: u64) {
        if self.main.contains(page) {
            self.main.remove(page);
            self.main.push_back(page);
        }
    }

    fn forget(&mut self, page: u32) {
        let queue = if self.main.contains(page) { &mut self.main } else { &mut self.new };
        queue.remove(page);
    }

    fn evict(&mut self) -> Option<(u32, Shadow)> {
        let page = if self.new.len() > self.frames / 4 || self.main.len() == 0 {
            self.new.front()?
        } else {
            self.main.front()?
        };
        Some((page, self.evict_page(page)))
    }

    fn evict_page(&mut self, page: u32) -> Shadow {
        if self.main.contains(page) {
            self.main.remove(page);
            return FROM_MAIN;
        }
        self.new.remove(page);
        self.remember(page);
        NO_NOTE
    }

    fn put_back(&mut self, page: u32, shadow: Shadow) {
        if shadow == FROM_MAIN {
            return self.main.push_back(page);
        }
        let number = self.number_of[page as usize];
        if self.was_new.contains(number) {
            self.was_new.remove(number);
        }
        self.new.push_back(page);
    }

    fn len(&self) -> usize {
        self.new.len() + self.main.len()
    }

    fn contains(&self, page: u32) -> bool {
        self.new.contains(page) || self.main.contains(page)
    }
}
