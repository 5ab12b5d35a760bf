//! The policies that ours is compared with, each as published.

use super::queue::PageQueue;

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
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 24;

    fn hits(mut cache: impl Cache, trace: &[u32]) -> Vec<bool> {
        trace.iter().map(|&page| cache.access(page)).collect()
    }

    /// By age: each page's place in the order of leaving depends on when it came, or was used.
    fn oldest_goes(frames: usize, trace: &[u32], use_counts: bool) -> Vec<bool> {
        let mut ages: Vec<(usize, u32)> = Vec::new();
        let mut step = |(now, &page): (usize, &u32)| {
            if let Some(found) = ages.iter_mut().find(|(_, other)| *other == page) {
                if use_counts {
                    found.0 = now;
                }
                return true;
            }
            if ages.len() == frames {
                let oldest = ages.iter().min().copied();
                ages.retain(|&age| Some(age) != oldest);
            }
            ages.push((now, page));
            false
        };
        trace.iter().enumerate().map(&mut step).collect()
    }

    fn naive_clock(frames: usize, trace: &[u32]) -> Vec<bool> {
        let mut hand = 0;
        let mut ring: Vec<(u32, bool)> = Vec::new();
        let mut step = |&page: &u32| {
            if let Some(found) = ring.iter_mut().find(|(other, _)| *other == page) {
                found.1 = true;
                return true;
            }
            if ring.len() < frames {
                ring.push((page, false));
                return false;
            }
            while std::mem::take(&mut ring[hand].1) {
                hand = (hand + 1) % frames;
            }
            ring[hand] = (page, false);
            hand = (hand + 1) % frames;
            false
        };
        trace.iter().map(&mut step).collect()
    }

    /// The paper's pseudocode, with its names.
    fn naive_two_q(frames: usize, trace: &[u32]) -> Vec<bool> {
        let (mut a1in, mut a1out, mut am) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut step = |&page: &u32| {
            let is_page = |other: &u32| *other == page;
            if let Some(at) = am.iter().position(is_page) {
                am.remove(at);
                am.push_front(page);
                return true;
            }
            if a1in.contains(&page) {
                return true;
            }
            let out = a1out.iter().position(is_page);
            if let Some(at) = out {
                a1out.remove(at);
            }
            if a1in.len() + am.len() >= frames {
                if a1in.len() > frames / 4 || am.is_empty() {
                    a1out.push_front(a1in.pop_back().expect("not empty"));
                    a1out.truncate(frames / 2);
                } else {
                    am.pop_back();
                }
            }
            if out.is_some() {
                am.push_front(page);
            } else {
                a1in.push_front(page);
            }
            false
        };
        trace.iter().map(&mut step).collect()
    }

    proptest! {
        #[test]
        fn peers_are_what_naive_ones_are(
            frames in 1usize..20,
            trace in prop::collection::vec(0..PAGES as u32, 0..400),
        ) {
            prop_assert_eq!(hits(Oldest::fifo(frames, PAGES), &trace), oldest_goes(frames, &trace, false));
            prop_assert_eq!(hits(Oldest::lru(frames, PAGES), &trace), oldest_goes(frames, &trace, true));
            prop_assert_eq!(hits(Clock::new(frames, PAGES), &trace), naive_clock(frames, &trace));
            prop_assert_eq!(hits(TwoQ::new(frames, PAGES), &trace), naive_two_q(frames, &trace));
        }
    }
}
