//! CLOCK-Pro (Jiang, Chen and Zhang, USENIX 2005), which counts only pages that are out towards the cold pages' share.

use super::Cache;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Out,
    Hot,
    /// In memory; in its test period or not.
    Cold {
        in_test: bool,
    },
    /// Not in memory, in its test period.
    Test,
}

#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    used: bool,
    before: u32,
    after: u32,
}

/// One clock of hot pages, cold pages, and numbers of cold pages that went within their test period. A page that is
/// used in its test period becomes hot, and cold pages get a frame more; one that is not used in it takes one back.
pub struct ClockPro {
    frames: usize,
    nodes: Vec<Node>,
    hot: usize,
    cold: usize,
    tested: usize,
    /// Frames for cold pages.
    most_cold: usize,
    hand_hot: u32,
    hand_cold: u32,
    hand_test: u32,
}

impl ClockPro {
    pub fn new(frames: usize, pages: usize) -> ClockPro {
        let node = Node { kind: Kind::Out, used: false, before: NONE, after: NONE };
        ClockPro {
            frames,
            nodes: vec![node; pages],
            hot: 0,
            cold: 0,
            tested: 0,
            most_cold: (frames / 100).max(1),
            hand_hot: NONE,
            hand_cold: NONE,
            hand_test: NONE,
        }
    }

    fn node(&mut self, page: u32) -> &mut Node {
        &mut self.nodes[page as usize]
    }

    /// Puts a page at the head of the clock: behind the hot hand, which comes to it last.
    fn insert(&mut self, page: u32, kind: Kind) {
        *self.node(page) = Node { kind, used: false, before: page, after: page };
        if self.hand_hot == NONE {
            (self.hand_hot, self.hand_cold, self.hand_test) = (page, page, page);
        } else {
            let (after, before) = (self.hand_hot, self.nodes[self.hand_hot as usize].before);
            (self.node(page).before, self.node(page).after) = (before, after);
            self.node(before).after = page;
            self.node(after).before = page;
        }
        self.count(kind, 1);
    }

    fn remove(&mut self, page: u32) {
        let Node { kind, before, after, .. } = *self.node(page);
        self.count(kind, -1);
        self.node(page).kind = Kind::Out;
        let next = if after == page { NONE } else { after };
        for hand in [&mut self.hand_hot, &mut self.hand_cold, &mut self.hand_test] {
            if *hand == page {
                *hand = next;
            }
        }
        self.node(before).after = after;
        self.node(after).before = before;
    }

    fn count(&mut self, kind: Kind, by: isize) {
        let count = match kind {
            Kind::Out => return,
            Kind::Hot => &mut self.hot,
            Kind::Cold { .. } => &mut self.cold,
            Kind::Test => &mut self.tested,
        };
        *count = count.wrapping_add_signed(by);
    }

    fn become_kind(&mut self, page: u32, kind: Kind) {
        self.count(self.nodes[page as usize].kind, -1);
        self.count(kind, 1);
        self.node(page).kind = kind;
    }

    fn shrink_cold(&mut self) {
        self.most_cold = self.most_cold.saturating_sub(1).max(1);
    }

    /// The cold hand: one cold page goes, or becomes hot.
    fn run_cold(&mut self) {
        let page = self.hand_cold;
        let Node { kind, used, after, .. } = *self.node(page);
        self.hand_cold = after;
        let Kind::Cold { in_test } = kind else { return };
        match (used, in_test) {
            (true, true) => {
                self.become_kind(page, Kind::Hot);
                self.node(page).used = false;
                self.move_to_head(page);
            }
            // A new test period.
            (true, false) => {
                self.remove(page);
                self.insert(page, Kind::Cold { in_test: true });
            }
            (false, true) => {
                self.become_kind(page, Kind::Test);
                while self.tested > self.frames {
                    self.run_test();
                }
            }
            (false, false) => self.remove(page),
        }
        while self.hot > self.frames - self.most_cold {
            self.run_hot();
        }
    }

    fn move_to_head(&mut self, page: u32) {
        let kind = self.nodes[page as usize].kind;
        self.remove(page);
        self.insert(page, kind);
    }

    /// The hot hand: a hot page that was not used becomes cold; test periods that it passes end.
    fn run_hot(&mut self) {
        let page = self.hand_hot;
        let Node { kind, used, after, .. } = *self.node(page);
        self.hand_hot = after;
        match kind {
            Kind::Hot if used => self.node(page).used = false,
            Kind::Hot => self.become_kind(page, Kind::Cold { in_test: false }),
            _ => self.end_test(page),
        }
    }

    /// The test hand ends test periods.
    fn run_test(&mut self) {
        let page = self.hand_test;
        self.hand_test = self.nodes[page as usize].after;
        self.end_test(page);
    }

    fn end_test(&mut self, page: u32) {
        match self.nodes[page as usize].kind {
            Kind::Cold { in_test: true } if !self.nodes[page as usize].used => {
                self.node(page).kind = Kind::Cold { in_test: false };
            }
            Kind::Test => {
                self.remove(page);
                self.shrink_cold();
            }
            _ => {}
        }
    }
}

impl Cache for ClockPro {
    fn access(&mut self, page: u32) -> bool {
        let kind = self.nodes[page as usize].kind;
        if matches!(kind, Kind::Hot | Kind::Cold { .. }) {
            self.node(page).used = true;
            return true;
        }
        if kind == Kind::Test {
            self.most_cold = (self.most_cold + 1).min(self.frames);
            self.remove(page);
        }
        while self.hot + self.cold >= self.frames {
            if self.cold == 0 {
                self.run_hot();
            } else {
                self.run_cold();
            }
        }
        let kind = if kind == Kind::Test { Kind::Hot } else { Kind::Cold { in_test: true } };
        self.insert(page, kind);
        while self.hot > self.frames - self.most_cold.min(self.frames) {
            self.run_hot();
        }
        false
    }
}
