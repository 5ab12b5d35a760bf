//! Whether a tree is one: every key in its place, every node on one way from the root, levels that hang together.

use super::node::{Node, Page};
use super::tree::Session;
use super::{Error, Result, ROOT};

/// The parts of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub entries: usize,
    pub nodes: usize,
    pub height: usize,
}

/// A node's range, and the node to the right of it on its level; `None` and 0 at the right edge.
#[derive(Clone)]
struct Wanted {
    number: u32,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    right: u32,
}

fn wrong<T>(number: u32, what: &str) -> Result<T> {
    Err(Error::Wrong(format!("node {number} {what}")))
}

/// Looks at all of a tree that nobody changes meanwhile.
pub fn check(session: &Session<'_, '_>) -> Result<Shape> {
    let mut level = vec![Wanted { number: ROOT, low: Vec::new(), high: None, right: 0 }];
    let mut shape = Shape::default();
    let mut page: Page = [0; 4096];
    let mut height = None;
    loop {
        let mut below: Vec<Wanted> = Vec::new();
        shape.height += 1;
        for wanted in &level {
            let number = wanted.number;
            session.copy(number, &mut page)?;
            let node = Node::of(&page)?;
            let is_at = *height.get_or_insert(node.level());
            if usize::from(node.level()) + shape.height != usize::from(is_at) + 1 {
                return wrong(number, "is on another level than its siblings");
            }
            if node.high()?.map(<[u8]>::to_vec) != wanted.high || node.right() != wanted.right {
                return wrong(number, "does not end where its parent says");
            }
            shape.nodes += 1;
            if shape.nodes > session.pages() as usize {
                return wrong(number, "is met again and again");
            }
            node.free()?;
            let mut last: Option<&[u8]> = None;
            for index in 0..node.count() {
                let key = node.entry(index)?.0;
                let is_in_order = last.is_none_or(|last| last < key);
                if !is_in_order || key < wanted.low.as_slice() || !node.covers(key)? {
                    return wrong(number, "has a key out of place");
                }
                last = Some(key);
            }
            if node.level() == 0 {
                shape.entries += node.count();
                continue;
            }
            let mut low = wanted.low.clone();
            let mut child = node.leftmost();
            for index in 0..=node.count() {
                let next = (index < node.count()).then(|| node.entry(index)).transpose()?;
                let high = next.map(|(key, _)| key.to_vec()).or(wanted.high.clone());
                if let Some(left) = below.last_mut() {
                    left.right = child;
                }
                below.push(Wanted { number: child, low, high: high.clone(), right: 0 });
                if next.is_none() {
                    break;
                }
                child = node.child(index)?;
                low = high.unwrap_or_default();
            }
        }
        if below.is_empty() {
            return Ok(shape);
        }
        level = below;
    }
}
