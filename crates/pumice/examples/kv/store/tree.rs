//! A thread's way to the tree.
//!
//! On the way down inner nodes are copied optimistically and latched by nobody: by the time the copy is looked at
//! the node may have been split, and then the way to a key leads to the right. A leaf is read under a shared guard,
//! and changed under an exclusive one.
//!
//! **Latches** are taken from the leaf upwards, and within a level from left to right, the next before the last is
//! let go. Nobody waits for a node below, or to the left of, one that he has, so nobody waits in a circle. A change
//! that splits nodes has all of them, and the first above that need not be split, before it changes any; so one
//! record has all of it, and the tree is never without the way to a node.
//!
//! Pages are never given up: a leaf without entries stays, and takes what comes into its range.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pumice::cache::{PageMut, View};

use super::log::Part;
use super::node::{self, Corrupt, Node, Page, Parts, MAX_ENTRY, MAX_KEY, ROOM_FOR_CHILD};
use super::record::Change;
use super::{Error, Result, Store, ROOT};

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// See the module's top. The number that changes return is for [`Session::commit`].
pub struct Session<'t, 'c> {
    store: &'t Store,
    view: View<'t, 'c>,
}

/// A node that is latched to be changed.
struct Latched<'v, 'c> {
    number: u32,
    page: PageMut<'v, 'c>,
}

impl<'t, 'c> Session<'t, 'c> {
    pub(super) fn new(store: &'t Store, view: View<'t, 'c>) -> Self {
        Session { store, view }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        loop {
            let (mut number, _) = self.leaf_for(key)?;
            let mut guard = self.view.read(number as usize)?;
            loop {
                let node = Node::of(&guard)?;
                if node.level() > 0 {
                    // The root was a leaf, and is no more.
                    break;
                }
                if node.covers(key)? {
                    return Ok(node.get(key)?.map(<[u8]>::to_vec));
                }
                number = node.right();
                let right = self.view.read(number as usize)?;
                guard = right;
            }
        }
    }

    /// Gives a key a value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<u64> {
        if key.len() > MAX_KEY || key.len() + value.len() > MAX_ENTRY {
            return Err(Error::TooLong { key: key.len(), value: value.len() });
        }
        let (number, path) = self.leaf_for(key)?;
        let mut leaf = self.latch(number, 0, key)?;
        if !Node::of(&leaf.page)?.fits(key, value)? {
            return self.put_and_split(leaf, path, key, value);
        }
        let changed = node::put(&mut leaf.page, key, value).map_err(Error::from);
        self.logged(leaf, changed, Change::Put(key, value))
    }

    /// Takes a key out; `None` if it was not there.
    pub fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
        let (number, _) = self.leaf_for(key)?;
        let mut leaf = self.latch(number, 0, key)?;
        if !node::remove(&mut leaf.page, key)? {
            return Ok(None);
        }
        self.logged(leaf, Ok(()), Change::Remove(key)).map(Some)
    }

    /// Entries from a key on, in order. Each leaf is as it was at one instant.
    pub fn range(&self, from: &[u8]) -> Result<Range<'_, 't, 'c>> {
        let (number, _) = self.leaf_for(from)?;
        let next = Some(number);
        Ok(Range { session: self, from: from.to_vec(), entries: VecDeque::new(), next })
    }

    /// Returns when a change, and all before it, would be found after a crash.
    pub fn commit(&self, change: u64) -> Result<()> {
        Ok(self.store.log.flush(change)?)
    }

    /// Makes all changes so far durable in the tree's file, so that opening it has little to do.
    pub fn checkpoint(&self) -> Result<()> {
        self.store.checkpoint_by(&self.view)
    }

    /// How many pages there are.
    pub(super) fn pages(&self) -> u32 {
        // Relaxed: a page's number is of use only to threads that found it in another page.
        self.store.next_page.load(Ordering::Relaxed)
    }

    /// Copies a page.
    pub(super) fn copy(&self, number: u32, into: &mut Page) -> Result<()> {
        if number >= self.pages() {
            return Err(Corrupt.into());
        }
        self.view.read_optimistic(number as usize, |words| {
            for (index, bytes) in into.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&words.load(index).to_ne_bytes());
            }
        })?;
        Ok(())
    }

    /// The leaf that has a key, or had it a moment ago, and the inner nodes on the way, from the root down.
    fn leaf_for(&self, key: &[u8]) -> Result<(u32, Vec<u32>)> {
        let (mut number, mut path, mut steps) = (ROOT, Vec::new(), 0);
        let mut page = [0; 4096];
        loop {
            self.copy(number, &mut page)?;
            let node = Node::of(&page)?;
            steps += 1;
            if steps > self.pages() {
                // Round and round.
                return Err(Corrupt.into());
            }
            if !node.covers(key)? {
                number = node.right();
                continue;
            }
            match node.level() {
                0 => return Ok((number, path)),
                level => {
                    path.push(number);
                    number = node.child_for(key)?;
                    if level == 1 {
                        return Ok((number, path));
                    }
                }
            }
        }
    }

    /// The inner node of a level that has a key, or had it a moment ago.
    fn inner_for(&self, key: &[u8], level: u8) -> Result<u32> {
        let mut page = [0; 4096];
        let mut number = ROOT;
        for _ in 0..self.pages() {
            self.copy(number, &mut page)?;
            let node = Node::of(&page)?;
            if !node.covers(key)? {
                number = node.right();
            } else if node.level() > level {
                number = node.child_for(key)?;
            } else {
                break;
            }
        }
        Ok(number)
    }

    /// Latches the node of a level that has a key, from one on that it is or that is left of it. The root may have
    /// become another level's: then it is looked for from there.
    fn latch(&self, mut number: u32, level: u8, key: &[u8]) -> Result<Latched<'_, 'c>> {
        let mut page = self.view.write(number as usize)?;
        for _ in 0..=self.pages() {
            let node = Node::of(&page)?;
            if node.level() != level {
                if node.level() < level || number != ROOT {
                    return Err(Corrupt.into());
                }
                drop(page);
                number = self.inner_for(key, level)?;
                page = self.view.write(number as usize)?;
                continue;
            }
            if node.covers(key)? {
                return Ok(Latched { number, page });
            }
            number = node.right();
            let right = self.view.write(number as usize)?;
            page = right;
        }
        Err(Corrupt.into())
    }

    /// Logs the change of one page, if it went well, and lets go of it.
    fn logged(
        &self,
        mut one: Latched<'_, 'c>,
        changed: Result<()>,
        change: Change<'_>,
    ) -> Result<u64> {
        let Latched { number, page } = &mut one;
        let part = Part { number: *number, page, change: Some(change) };
        let end = self.append(changed, &mut [part])?;
        drop(one);
        self.store.log.keep_short()?;
        Ok(end)
    }

    /// Logs what changed, or sees to it that pages that are changed in part are never written.
    fn append(&self, changed: Result<()>, parts: &mut [Part<'_>]) -> Result<u64> {
        match changed {
            Ok(()) => Ok(self.store.log.append(parts)?),
            Err(error) => {
                self.store.log.give_up(parts);
                Err(error)
            }
        }
    }

    fn put_and_split(
        &self,
        leaf: Latched<'_, 'c>,
        mut path: Vec<u32>,
        key: &[u8],
        value: &[u8],
    ) -> Result<u64> {
        // All that will change, from the leaf up to one that has room, or to the root.
        let mut chain = vec![leaf];
        let mut has_room = false;
        while let Some(top) = chain.last().filter(|top| top.number != ROOT) {
            let level = Node::of(&top.page)?.level() + 1;
            let parent = match path.pop() {
                Some(parent) => parent,
                // It was the root, when the way was looked for.
                None => self.inner_for(key, level)?,
            };
            let parent = self.latch(parent, level, key)?;
            has_room = Node::of(&parent.page)?.free()? >= ROOM_FOR_CHILD;
            chain.push(parent);
            if has_room {
                break;
            }
        }
        let roots = usize::from(!has_room);
        let mut made = Vec::new();
        for _ in 0..chain.len() - usize::from(has_room) + roots {
            // Relaxed: only that each is another.
            let number = self.store.next_page.fetch_add(1, Ordering::Relaxed);
            made.push(Latched { number, page: self.view.write_or_grow(number as usize)? });
        }
        let changed = split(&mut chain, &mut made, has_room, (key.to_vec(), value.to_vec()));
        let mut parts: Vec<Part<'_>> = chain
            .iter_mut()
            .chain(&mut made)
            .map(|one| Part { number: one.number, page: &mut one.page, change: None })
            .collect();
        let end = self.append(changed, &mut parts)?;
        drop((chain, made));
        self.store.log.keep_short()?;
        Ok(end)
    }
}

/// Splits the nodes of a chain, from the leaf up, into those that were made for it, all but the last if that has room.
/// The entry is added to the leaf. It fails only at a page that is none.
fn split(
    chain: &mut [Latched<'_, '_>],
    made: &mut [Latched<'_, '_>],
    has_room: bool,
    mut entry: Entry,
) -> Result<()> {
    let splits = chain.len() - usize::from(has_room);
    for (index, one) in chain[..splits].iter_mut().enumerate() {
        let right = &mut made[index];
        let mut parts = Parts::of(&one.page)?;
        parts.put(&entry.0, &entry.1);
        let (separator, upper) = parts.split(right.number)?;
        upper.write(&mut right.page)?;
        parts.write(&mut one.page)?;
        entry = (separator, right.number.to_le_bytes().to_vec());
    }
    if has_room {
        let parent = chain.last_mut().ok_or(Corrupt)?;
        node::put(&mut parent.page, &entry.0, &entry.1)?;
    } else {
        // The root keeps its number: its lower half moves out.
        let root = chain.last_mut().ok_or(Corrupt)?;
        let left = made.last_mut().ok_or(Corrupt)?;
        let lower = Parts::of(&root.page)?;
        lower.write(&mut left.page)?;
        let (level, leftmost) = (lower.level + 1, left.number);
        let parts = Parts { level, leftmost, entries: vec![entry], ..Parts::default() };
        parts.write(&mut root.page)?;
    }
    Ok(())
}

/// See [`Session::range`].
pub struct Range<'s, 't, 'c> {
    session: &'s Session<'t, 'c>,
    from: Vec<u8>,
    entries: VecDeque<Entry>,
    /// The leaf that comes next.
    next: Option<u32>,
}

impl Range<'_, '_, '_> {
    fn fetch(&mut self, number: u32) -> Result<()> {
        let mut page = [0; 4096];
        self.session.copy(number, &mut page)?;
        let node = Node::of(&page)?;
        if node.level() > 0 {
            // The root was a leaf, and is no more.
            let (leaf, _) = self.session.leaf_for(&self.from)?;
            self.next = Some(leaf);
            return Ok(());
        }
        for index in 0..node.count() {
            let (key, value) = node.entry(index)?;
            if key >= self.from.as_slice() {
                self.entries.push_back((key.to_vec(), value.to_vec()));
            }
        }
        self.next = None;
        if let Some(high) = node.high()? {
            // Never back: a tree that is wrong would go round and round.
            if high < self.from.as_slice() && self.entries.is_empty() && number == node.right() {
                return Err(Corrupt.into());
            }
            if high > self.from.as_slice() {
                self.from = high.to_vec();
            }
            self.next = Some(node.right());
        }
        Ok(())
    }
}

impl Iterator for Range<'_, '_, '_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            let number = self.next.take()?;
            if let Err(error) = self.fetch(number) {
                self.next = None;
                return Some(Err(error));
            }
        }
    }
}
