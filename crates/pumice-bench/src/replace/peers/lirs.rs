//! LIRS (Jiang and Zhang, SIGMETRICS 2002).

use super::super::queue::PageQueue;
use super::Cache;

/// Pages of low inter-reference recency (LIR) have 99 % of the frames, as its authors advise; the others (HIR) are in a
/// queue. A page becomes LIR if it is used again while it is above the LIR page that was used longest ago.
pub struct Lirs {
    frames: usize,
    /// Frames for LIR pages.
    most_lir: usize,
    lir: usize,
    /// The stack: its top is the back. Pages that went stay in it until none below them is LIR.
    stack: PageQueue,
    is_lir: Vec<bool>,
    /// HIR pages that are in.
    queue: PageQueue,
}

impl Lirs {
    pub fn new(frames: usize, pages: usize) -> Lirs {
        let most_lir = frames - (frames / 100).max(1).min(frames);
        let [stack, queue] = [(); 2].map(|()| PageQueue::new(pages));
        Lirs { frames, most_lir, lir: 0, stack, is_lir: vec![false; pages], queue }
    }

    fn move_to_top(&mut self, page: u32) {
        if self.stack.contains(page) {
            self.stack.remove(page);
        }
        self.stack.push_back(page);
    }

    /// Has the stack end in a LIR page.
    fn prune(&mut self) {
        while let Some(page) = self.stack.front() {
            if self.is_lir[page as usize] {
                break;
            }
            self.stack.pop_front();
        }
    }

    /// A page becomes LIR, and the one that was used longest ago HIR.
    fn exchange(&mut self, page: u32) {
        self.is_lir[page as usize] = true;
        self.move_to_top(page);
        self.lir += 1;
        if self.lir > self.most_lir {
            let bottom = self.stack.pop_front().expect("there are LIR pages");
            self.is_lir[bottom as usize] = false;
            self.lir -= 1;
            self.queue.push_back(bottom);
            self.prune();
        }
    }
}

impl Cache for Lirs {
    fn access(&mut self, page: u32) -> bool {
        if self.is_lir[page as usize] {
            self.move_to_top(page);
            self.prune();
            return true;
        }
        let hit = self.queue.contains(page);
        if hit {
            self.queue.remove(page);
        } else if self.lir + self.queue.len() == self.frames {
            self.queue.pop_front();
        }
        if self.most_lir > 0 && (self.stack.contains(page) || self.lir < self.most_lir) {
            self.exchange(page);
        } else {
            self.queue.push_back(page);
            if self.most_lir > 0 {
                self.move_to_top(page);
            }
        }
        hit
    }
}
