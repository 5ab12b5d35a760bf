//! ARC (Megiddo and Modha, FAST 2003).

use super::super::queue::PageQueue;
use super::Cache;

/// Two lists of pages that are in, used once (`t1`) and more often (`t2`), and two of the numbers of pages that went
/// from them (`b1`, `b2`). A page that comes back from one of these makes the list it went from longer.
pub struct Arc {
    frames: usize,
    t1: PageQueue,
    t2: PageQueue,
    b1: PageQueue,
    b2: PageQueue,
    /// The length that `t1` is to have: the paper's p.
    target: f64,
}

impl Arc {
    pub fn new(frames: usize, pages: usize) -> Arc {
        let [t1, t2, b1, b2] = [(); 4].map(|()| PageQueue::new(pages));
        Arc { frames, t1, t2, b1, b2, target: 0.0 }
    }

    /// The paper's REPLACE.
    fn replace(&mut self, is_in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if t1 >= 1.0 && (t1 > self.target || (is_in_b2 && t1 == self.target)) {
            self.b1.push_back(self.t1.pop_front().expect("not empty"));
        } else if let Some(page) = self.t2.pop_front() {
            self.b2.push_back(page);
        }
    }
}

impl Cache for Arc {
    fn access(&mut self, page: u32) -> bool {
        let frames = self.frames;
        if self.t1.contains(page) || self.t2.contains(page) {
            let list = if self.t1.contains(page) { &mut self.t1 } else { &mut self.t2 };
            list.remove(page);
            self.t2.push_back(page);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(page) {
            self.target = (self.target + (b2 / b1).max(1.0)).min(frames as f64);
            self.replace(false);
            self.b1.remove(page);
            self.t2.push_back(page);
            return false;
        }
        if self.b2.contains(page) {
            self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
            self.replace(true);
            self.b2.remove(page);
            self.t2.push_back(page);
            return false;
        }
        let first = self.t1.len() + self.b1.len();
        let all = first + self.t2.len() + self.b2.len();
        if first == frames {
            if self.t1.len() < frames {
                self.b1.pop_front();
                self.replace(false);
            } else {
                self.t1.pop_front();
            }
        } else if all >= frames {
            if all == 2 * frames {
                self.b2.pop_front();
            }
            self.replace(false);
        }
        self.t1.push_back(page);
        false
    }
}
