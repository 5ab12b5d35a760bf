//! The policies that ours is compared with, as published; S3-FIFO fills its main queue first as libCacheSim's does.

mod arc;
mod clock_pro;
mod lirs;
mod s3_fifo;
mod sieve;

use super::queue::PageQueue;
pub use arc::Arc;
pub use clock_pro::ClockPro;
pub use lirs::Lirs;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;

/// A memory of so many frames under some policy.
pub trait Cache {
    /// A reference to a page: whether it was there.
    fn access(&mut self, page: u32) -> bool;
}

/// The page that came in longest ago goes (FIFO), or that was used longest ago (LRU).
pub struct Oldest {
    frames: usize,
    queue: PageQueue,
    goes: Goes,
}

/// The pages that a queue has at its front.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    CameFirst,
    UsedFirst,
}

impl Oldest {
    pub fn fifo(frames: usize, pages: usize) -> Oldest {
        Oldest { frames, queue: PageQueue::new(pages), goes: Goes::CameFirst }
    }

    pub fn lru(frames: usize, pages: usize) -> Oldest {
        Oldest { goes: Goes::UsedFirst, ..Oldest::fifo(frames, pages) }
    }
}

impl Cache for Oldest {
    fn access(&mut self, page: u32) -> bool {
        let hit = self.queue.contains(page);
        if hit && self.goes == Goes::CameFirst {
            return true;
        }
        if hit {
            self.queue.remove(page);
        } else if self.queue.len() == self.frames {
            self.queue.pop_front();
        }
        self.queue.push_back(page);
        hit
    }
}

/// FIFO, in which a page that was used since it was looked at goes round once more (Corbató, 1968).
pub struct Clock {
    frames: usize,
    queue: PageQueue,
    used: Vec<bool>,
}

impl Clock {
    pub fn new(frames: usize, pages: usize) -> Clock {
        Clock { frames, queue: PageQueue::new(pages), used: vec![false; pages] }
    }
}

impl Cache for Clock {
    fn access(&mut self, page: u32) -> bool {
        if self.queue.contains(page) {
            self.used[page as usize] = true;
            return true;
        }
        if self.queue.len() == self.frames {
            while let Some(oldest) = self.queue.pop_front() {
                if !std::mem::take(&mut self.used[oldest as usize]) {
                    break;
                }
                self.queue.push_back(oldest);
            }
        }
        self.queue.push_back(page);
        false
    }
}

/// 2Q in full (Johnson and Shasha, VLDB 1994) with the sizes its authors advise: a quarter of the frames for pages
/// that are new, numbers of half as many that were.
pub struct TwoQ {
    frames: usize,
    new: PageQueue,
    was_new: PageQueue,
    main: PageQueue,
}

impl TwoQ {
    pub fn new(frames: usize, pages: usize) -> TwoQ {
        let [new, was_new, main] = [(); 3].map(|()| PageQueue::new(pages));
        TwoQ { frames, new, was_new, main }
    }

    fn reclaim(&mut self) {
        if self.new.len() + self.main.len() < self.frames {
            return;
        }
        if self.new.len() > self.frames / 4 || self.main.len() == 0 {
            if let Some(page) = self.new.pop_front() {
                self.was_new.push_back(page);
            }
            if self.was_new.len() > self.frames / 2 {
                self.was_new.pop_front();
            }
        } else {
            self.main.pop_front();
        }
    }
}

impl Cache for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        if self.main.contains(page) {
            self.main.remove(page);
            self.main.push_back(page);
            return true;
        }
        if self.new.contains(page) {
            return true;
        }
        let was_new = self.was_new.contains(page);
        if was_new {
            self.was_new.remove(page);
        }
        self.reclaim();
        if was_new { &mut self.main } else { &mut self.new }.push_back(page);
        false
    }
}

#[cfg(test)]
mod tests;
