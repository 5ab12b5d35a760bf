//! A queue of pages from which any can be taken out: links by the page's number.

/// No page.
const NONE: u32 = u32::MAX;

/// See the module's top. A page is in it once at most.
#[derive(Debug)]
pub struct PageQueue {
    /// Towards the front and towards the back, and whether the page is in.
    links: Vec<(u32, u32, bool)>,
    front: u32,
    back: u32,
    len: usize,
}

impl PageQueue {
    /// Empty, for pages below `pages`.
    pub fn new(pages: usize) -> PageQueue {
        PageQueue { links: vec![(NONE, NONE, false); pages], front: NONE, back: NONE, len: 0 }
    }

    /// Pages in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a page is in it.
    pub fn contains(&self, page: u32) -> bool {
        self.links[page as usize].2
    }

    /// Adds a page that is not in it.
    pub fn push_back(&mut self, page: u32) {
        self.links[page as usize] = (self.back, NONE, true);
        match self.back {
            NONE => self.front = page,
            back => self.links[back as usize].1 = page,
        }
        self.back = page;
        self.len += 1;
    }

    /// Takes a page out that is in it.
    pub fn remove(&mut self, page: u32) {
        let (before, after, _) = self.links[page as usize];
        match before {
            NONE => self.front = after,
            before => self.links[before as usize].1 = after,
        }
        match after {
            NONE => self.back = before,
            after => self.links[after as usize].0 = before,
        }
        self.links[page as usize].2 = false;
        self.len -= 1;
    }

    /// The page that has been in it longest.
    pub fn front(&self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }

    /// The page behind one that is in it.
    pub fn after(&self, page: u32) -> Option<u32> {
        let after = self.links[page as usize].1;
        (after != NONE).then_some(after)
    }

    /// Takes out the page that has been in it longest.
    pub fn pop_front(&mut self) -> Option<u32> {
        let front = self.front()?;
        self.remove(front);
        Some(front)
    }
}
