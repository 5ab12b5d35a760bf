//! The contents of a page of the tree: entries in the order of their keys.
//!
//! ```text
//! 0     8      9       10      12      16     18     20         24         32
//! | lsn | tag | level | count | right | heap | high | leftmost | checksum | slots ... free ... cells |
//! ```
//!
//! The checksum is the cache's. `lsn` is the end of the log record that changed the page last: the page may not be
//! written before the log is durable up to there.
//!
//! A slot is the place of a cell; slots are in the order of keys, cells in any. A cell is the lengths of key and
//! value, two bytes each, and their bytes. In an inner node (level 1 and up) a value is the number
//! of a child, which has the keys from its entry's on; those below the first entry's are `leftmost`'s.
//!
//! A node has keys below its *high key* only (a cell; place 0 for none), and `right` is the node with those from
//! there on, as in a B-link tree (Lehman and Yao, TODS 1981): a thread that comes to a node that has been split since
//! finds the way.
//!
//! Nothing here believes what a page says: bytes that are no node are [`Corrupt`].

use std::cmp::Ordering;

/// A page's bytes.
pub type Page = [u8; 4096];

/// A page that is no node, or not the one it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page is no node of a tree")]
pub struct Corrupt;

pub type Result<T> = std::result::Result<T, Corrupt>;

/// The longest key, and the longest key and value together: four entries and two high keys fit in a page.
pub const MAX_KEY: usize = 400;
pub const MAX_ENTRY: usize = 900;

const TAG: u8 = 0xb7;
const SLOTS: usize = 32;
/// Where all pages have a checksum.
pub const CHECKSUM: usize = 24;
const CELL_HEAD: usize = 4;

/// The end of the log record that changed a page last.
pub fn lsn(page: &Page) -> u64 {
    page[..8].try_into().map_or(0, u64::from_le_bytes)
}

pub fn set_lsn(page: &mut Page, lsn: u64) {
    page[..8].copy_from_slice(&lsn.to_le_bytes());
}

/// The bytes that an entry takes of a page.
pub fn room_for(key: &[u8], value: &[u8]) -> usize {
    2 + CELL_HEAD + key.len() + value.len()
}

/// The most that a new entry of an inner node takes.
pub const ROOM_FOR_CHILD: usize = 2 + CELL_HEAD + MAX_KEY + 4;

/// A node that is read.
#[derive(Clone, Copy)]
pub struct Node<'p>(&'p Page);

impl<'p> Node<'p> {
    /// A page, if it looks like a node.
    pub fn of(page: &'p Page) -> Result<Node<'p>> {
        let node = Node(page);
        let heap = node.u16_at(16)?;
        let slots_end = SLOTS + 2 * node.count();
        let is_node = page[8] == TAG && slots_end <= heap && heap <= page.len();
        is_node.then_some(node).ok_or(Corrupt)
    }

    fn u16_at(self, at: usize) -> Result<usize> {
        let bytes = self.0.get(at..at + 2).ok_or(Corrupt)?;
        Ok(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    }

    fn u32_at(self, at: usize) -> u32 {
        self.0[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
    }

    pub fn level(self) -> u8 {
        self.0[9]
    }

    pub fn count(self) -> usize {
        usize::from(u16::from_le_bytes([self.0[10], self.0[11]]))
    }

    /// The node with the keys from the high key on; 0 for none.
    pub fn right(self) -> u32 {
        self.u32_at(12)
    }

    pub fn leftmost(self) -> u32 {
        self.u32_at(20)
    }

    fn cell(self, at: usize) -> Result<(&'p [u8], &'p [u8])> {
        let (key, value) = (self.u16_at(at)?, self.u16_at(at + 2)?);
        let bytes = self.0.get(at + CELL_HEAD..at + CELL_HEAD + key + value).ok_or(Corrupt)?;
        Ok(bytes.split_at(key))
    }

    /// The entry of this number.
    pub fn entry(self, index: usize) -> Result<(&'p [u8], &'p [u8])> {
        self.cell(self.u16_at(SLOTS + 2 * index)?)
    }

    /// The key from which on keys are the right node's.
    pub fn high(self) -> Result<Option<&'p [u8]>> {
        match self.u16_at(18)? {
            0 => Ok(None),
            at => Ok(Some(self.cell(at)?.0)),
        }
    }

    /// Whether a key is this node's, and not one's to the right.
    pub fn covers(self, key: &[u8]) -> Result<bool> {
        Ok(self.high()?.is_none_or(|high| key < high))
    }

    /// Where a key's entry is, or where it would be.
    pub fn search(self, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.entry(middle)?.0.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    pub fn get(self, key: &[u8]) -> Result<Option<&'p [u8]>> {
        match self.search(key)? {
            Ok(index) => Ok(Some(self.entry(index)?.1)),
            Err(_) => Ok(None),
        }
    }

    /// The child that has a key.
    pub fn child_for(self, key: &[u8]) -> Result<u32> {
        match self.search(key)? {
            Ok(index) => self.child(index),
            Err(0) => Ok(self.leftmost()),
            Err(index) => self.child(index - 1),
        }
    }

    /// The child of an entry.
    pub fn child(self, index: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.entry(index)?.1.try_into().map_err(|_| Corrupt)?))
    }

    /// Bytes that are neither an entry's nor the high key's.
    pub fn free(self) -> Result<usize> {
        let mut used = SLOTS + self.high()?.map_or(0, |high| CELL_HEAD + high.len());
        for index in 0..self.count() {
            let (key, value) = self.entry(index)?;
            used += room_for(key, value);
        }
        self.0.len().checked_sub(used).ok_or(Corrupt)
    }

    /// Whether an entry fits, in the place of one with the same key if there is one.
    pub fn fits(self, key: &[u8], value: &[u8]) -> Result<bool> {
        let before = self.get(key)?.map_or(0, |old| room_for(key, old));
        Ok(self.free()? + before >= room_for(key, value))
    }
}

/// A node's entries, to make another of.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// All that a node is but its `lsn`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub level: u8,
    pub right: u32,
    pub leftmost: u32,
    pub high: Option<Vec<u8>>,
    pub entries: Entries,
}

impl Parts {
    pub fn of(page: &Page) -> Result<Parts> {
        let node = Node::of(page)?;
        let entry = |index| node.entry(index).map(|(key, value)| (key.to_vec(), value.to_vec()));
        Ok(Parts {
            level: node.level(),
            right: node.right(),
            leftmost: node.leftmost(),
            high: node.high()?.map(<[u8]>::to_vec),
            entries: (0..node.count()).map(entry).collect::<Result<_>>()?,
        })
    }

    /// Adds an entry, in the place of one with the same key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        match self.entries.binary_search_by(|entry| entry.0.as_slice().cmp(key)) {
            Ok(index) => self.entries[index].1 = value.to_vec(),
            Err(index) => self.entries.insert(index, (key.to_vec(), value.to_vec())),
        }
    }

    /// The upper half of the bytes, for a node to the right with this number; and the key from which on they are its.
    /// There are two entries at least, of an inner node three.
    pub fn split(&mut self, right: u32) -> Result<(Vec<u8>, Parts)> {
        let all: usize = self.entries.iter().map(|(key, value)| room_for(key, value)).sum();
        let (mut sum, mut at) = (0, 0);
        while sum < all / 2 && at < self.entries.len() {
            sum += room_for(&self.entries[at].0, &self.entries[at].1);
            at += 1;
        }
        let is_leaf = self.level == 0;
        let most = self.entries.len().checked_sub(if is_leaf { 1 } else { 2 }).ok_or(Corrupt)?;
        let mut entries = self.entries.split_off(at.clamp(1, most.max(1)));
        let first = entries.first().ok_or(Corrupt)?;
        let separator = first.0.clone();
        let mut leftmost = 0;
        if !is_leaf {
            // Its key goes up, its child to the left edge.
            let child = entries.remove(0).1;
            leftmost = u32::from_le_bytes(child.try_into().map_err(|_| Corrupt)?);
        }
        let upper = Parts {
            level: self.level,
            right: self.right,
            leftmost,
            high: self.high.take(),
            entries,
        };
        self.right = right;
        self.high = Some(separator.clone());
        Ok((separator, upper))
    }

    /// Makes a page of it, whose `lsn` stays.
    pub fn write(&self, page: &mut Page) -> Result<()> {
        page[8..].fill(0);
        (page[8], page[9]) = (TAG, self.level);
        page[10..12].copy_from_slice(&u16_of(self.entries.len())?);
        page[12..16].copy_from_slice(&self.right.to_le_bytes());
        page[20..24].copy_from_slice(&self.leftmost.to_le_bytes());
        let slots_end = SLOTS + 2 * self.entries.len();
        let mut heap = page.len();
        if let Some(high) = &self.high {
            heap = push_cell(page, slots_end, heap, high, &[])?;
            page[18..20].copy_from_slice(&u16_of(heap)?);
        }
        for (index, (key, value)) in self.entries.iter().enumerate() {
            heap = push_cell(page, slots_end, heap, key, value)?;
            let slot = SLOTS + 2 * index;
            page[slot..slot + 2].copy_from_slice(&u16_of(heap)?);
        }
        page[16..18].copy_from_slice(&u16_of(heap)?);
        Ok(())
    }
}

fn u16_of(number: usize) -> Result<[u8; 2]> {
    u16::try_from(number).map(u16::to_le_bytes).map_err(|_| Corrupt)
}

/// Puts a cell below the others: where it begins.
fn push_cell(
    page: &mut Page,
    least: usize,
    heap: usize,
    key: &[u8],
    value: &[u8],
) -> Result<usize> {
    let len = CELL_HEAD + key.len() + value.len();
    let at = heap.checked_sub(len).filter(|&at| at >= least).ok_or(Corrupt)?;
    let cell = &mut page[at..heap];
    cell[..2].copy_from_slice(&u16_of(key.len())?);
    cell[2..4].copy_from_slice(&u16_of(value.len())?);
    cell[CELL_HEAD..CELL_HEAD + key.len()].copy_from_slice(key);
    cell[CELL_HEAD + key.len()..].copy_from_slice(value);
    Ok(at)
}

/// Adds an entry, which fits, in the place of one with the same key.
pub fn put(page: &mut Page, key: &[u8], value: &[u8]) -> Result<()> {
    let node = Node::of(page)?;
    let found = node.search(key)?;
    if let Ok(index) = found {
        if node.entry(index)?.1.len() == value.len() {
            let end = node.u16_at(SLOTS + 2 * index)? + CELL_HEAD + key.len() + value.len();
            page[end - value.len()..end].copy_from_slice(value);
            return Ok(());
        }
    }
    let (count, heap) = (node.count(), node.u16_at(16)?);
    let slots_end = SLOTS + 2 * count;
    match found {
        Err(index) if heap - slots_end >= room_for(key, value) => {
            let heap = push_cell(page, slots_end + 2, heap, key, value)?;
            let slot = SLOTS + 2 * index;
            page.copy_within(slot..slots_end, slot + 2);
            page[slot..slot + 2].copy_from_slice(&u16_of(heap)?);
            page[10..12].copy_from_slice(&u16_of(count + 1)?);
            page[16..18].copy_from_slice(&u16_of(heap)?);
            Ok(())
        }
        // Cells that nobody has any more make room.
        _ => {
            let mut parts = Parts::of(page)?;
            parts.put(key, value);
            parts.write(page)
        }
    }
}

/// Takes an entry out: whether there was one.
pub fn remove(page: &mut Page, key: &[u8]) -> Result<bool> {
    let node = Node::of(page)?;
    let Ok(index) = node.search(key)? else { return Ok(false) };
    let count = node.count();
    let slot = SLOTS + 2 * index;
    page.copy_within(slot + 2..SLOTS + 2 * count, slot);
    page[10..12].copy_from_slice(&u16_of(count - 1)?);
    Ok(true)
}
