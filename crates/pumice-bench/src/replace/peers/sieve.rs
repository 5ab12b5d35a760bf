//! SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, NSDI 2024).

use super::super::queue::PageQueue;
use super::Cache;

/// A queue in the order in which pages came. A hand goes from the oldest to the youngest and round again: a page that
/// was used since it passed stays where it is, another goes.
pub struct Sieve {
    frames: usize,
    queue: PageQueue,
    used: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub fn new(frames: usize, pages: usize) -> Sieve {
        Sieve { frames, queue: PageQueue::new(pages), used: vec![false; pages], hand: None }
    }

    fn evict(&mut self) {
        let Some(mut page) = self.hand.or(self.queue.front()) else { return };
        while std::mem::take(&mut self.used[page as usize]) {
            page = self.queue.after(page).or(self.queue.front()).expect("not empty");
        }
        self.hand = self.queue.after(page);
        self.queue.remove(page);
    }
}

impl Cache for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.queue.contains(page) {
            self.used[page as usize] = true;
            return true;
        }
        if self.queue.len() == self.frames {
            self.evict();
        }
        self.used[page as usize] = false;
        self.queue.push_back(page);
        false
    }
}
