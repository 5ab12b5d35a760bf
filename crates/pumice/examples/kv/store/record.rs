//! Log records: the effect of a change on pages, whole or not at all.
//!
//! ```text
//! | length of the body: 4 bytes | checksum: 8 | number of parts: 1 | parts ... |
//! | page: 4 | kind: 1 | image: 4096;  put: lengths 2 + 2, key, value;  remove: length 2, key |
//! ```
//!
//! The checksum's seed is the record's position in the log, so that the rest of an older log is no record. The first
//! part that names a page after a checkpoint is an image: a torn write of that page does not matter then, and no page
//! has to be read before it is made anew.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::node::Page;

/// Length and checksum.
pub const HEAD: usize = 12;
/// A split of the whole height of a tree, with room to spare.
const MAX_BODY: usize = 1 + 64 * (5 + 4096);

const IMAGE: u8 = 1;
const PUT: u8 = 2;
const REMOVE: u8 = 3;

/// A change of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'b> {
    /// Its bytes from then on.
    Image(&'b Page),
    Put(&'b [u8], &'b [u8]),
    Remove(&'b [u8]),
}

/// A record that is being made, at the end of a buffer.
pub struct Writer<'b> {
    buffer: &'b mut Vec<u8>,
    start: usize,
}

impl<'b> Writer<'b> {
    pub fn new(buffer: &'b mut Vec<u8>) -> Writer<'b> {
        let start = buffer.len();
        buffer.extend([0; HEAD + 1]);
        Writer { buffer, start }
    }

    pub fn part(&mut self, page: u32, change: Change<'_>) {
        self.buffer[self.start + HEAD] += 1;
        self.buffer.extend(page.to_le_bytes());
        let length = |bytes: &[u8]| (bytes.len() as u16).to_le_bytes();
        match change {
            Change::Image(image) => {
                self.buffer.push(IMAGE);
                self.buffer.extend(image);
            }
            Change::Put(key, value) => {
                self.buffer.push(PUT);
                self.buffer.extend(length(key));
                self.buffer.extend(length(value));
                self.buffer.extend(key);
                self.buffer.extend(value);
            }
            Change::Remove(key) => {
                self.buffer.push(REMOVE);
                self.buffer.extend(length(key));
                self.buffer.extend(key);
            }
        }
    }

    /// The bytes that a part adds.
    pub fn len_of(change: &Change<'_>) -> usize {
        5 + match change {
            Change::Image(image) => image.len(),
            Change::Put(key, value) => 4 + key.len() + value.len(),
            Change::Remove(key) => 2 + key.len(),
        }
    }

    /// Completes it.
    pub fn end(self, position: u64) {
        let record = &mut self.buffer[self.start..];
        let (head, body) = record.split_at_mut(HEAD);
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&xxh3_64_with_seed(body, position).to_le_bytes());
    }
}

/// The body of the record that begins here, at this position of the log; `None` where there is no whole record.
pub fn body_at(bytes: &[u8], position: u64) -> Option<&[u8]> {
    let head = bytes.get(..HEAD)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let checksum = u64::from_le_bytes(head[4..].try_into().ok()?);
    let is_possible = (1..=MAX_BODY).contains(&length);
    let body = bytes.get(HEAD..HEAD + length).filter(|_| is_possible)?;
    (xxh3_64_with_seed(body, position) == checksum).then_some(body)
}

/// The parts of a body; `None` for one that does not parse.
pub fn parts(body: &[u8]) -> impl Iterator<Item = Option<(u32, Change<'_>)>> {
    let mut rest = Cursor(body);
    let count = rest.take(1).map_or(0, |count| count[0]);
    (0..count).map(move |_| rest.part())
}

struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn length(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(self.take(2)?.try_into().ok()?)))
    }

    fn part(&mut self) -> Option<(u32, Change<'b>)> {
        let page = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        let change = match self.take(1)?[0] {
            IMAGE => Change::Image(self.take(4096)?.try_into().ok()?),
            PUT => {
                let (key, value) = (self.length()?, self.length()?);
                Change::Put(self.take(key)?, self.take(value)?)
            }
            REMOVE => {
                let key = self.length()?;
                Change::Remove(self.take(key)?)
            }
            _ => return None,
        };
        Some((page, change))
    }
}
