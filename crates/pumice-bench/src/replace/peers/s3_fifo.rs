//! S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi, SOSP 2023).

use super::super::queue::PageQueue;
use super::Cache;

/// Uses that are counted, and that move a page from the small queue to the main one.
const MOST_USES: u8 = 3;
const MOVES: u8 = 2;

/// A small queue of a tenth of the frames for new pages, a main one, and the numbers of pages that went from the small
/// one, as many as the main one has.
pub struct S3Fifo {
    frames: usize,
    small: PageQueue,
    main: PageQueue,
    ghost: PageQueue,
    uses: Vec<u8>,
    has_evicted: bool,
}

impl S3Fifo {
    pub fn new(frames: usize, pages: usize) -> S3Fifo {
        let [small, main, ghost] = [(); 3].map(|()| PageQueue::new(pages));
        S3Fifo { frames, small, main, ghost, uses: vec![0; pages], has_evicted: false }
    }

    fn most_small(&self) -> usize {
        (self.frames / 10).max(1)
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        let most_main = self.frames - self.most_small();
        if self.main.len() > most_main || self.small.len() == 0 {
            return self.evict_main();
        }
        while let Some(page) = self.small.pop_front() {
            if self.uses[page as usize] < MOVES {
                if self.ghost.len() >= most_main.max(1) {
                    self.ghost.pop_front();
                }
                self.ghost.push_back(page);
                return;
            }
            self.uses[page as usize] = 0;
            self.main.push_back(page);
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            let uses = &mut self.uses[page as usize];
            if *uses == 0 {
                return;
            }
            *uses -= 1;
            self.main.push_back(page);
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let hit = self.small.contains(page) || self.main.contains(page);
        let uses = &mut self.uses[page as usize];
        if hit {
            *uses = (*uses + 1).min(MOST_USES);
            return true;
        }
        *uses = 0;
        let was_here = self.ghost.contains(page);
        if was_here {
            self.ghost.remove(page);
        }
        while self.small.len() + self.main.len() >= self.frames {
            self.evict();
        }
        // Before anything went, the main queue takes what the small one has no room for.
        let fills = !self.has_evicted && self.small.len() >= self.most_small();
        if was_here || fills { &mut self.main } else { &mut self.small }.push_back(page);
        false
    }
}
