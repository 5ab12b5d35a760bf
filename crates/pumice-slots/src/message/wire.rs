//! Bytes of messages, written and read field by field. Reading checks every length.

use super::{Malformed, SnapshotName, Ticket, MAX_BYTES, VERSION};

const MAGIC: [u8; 4] = *b"pmsl";
const HEADER: usize = 8;

/// Builds a message.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn begin(kind: u16) -> Writer {
        let mut to = Writer(Vec::with_capacity(64));
        to.0.extend(MAGIC);
        to.u16(VERSION);
        to.u16(kind);
        to
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// How many, and then they; `most` of them at most.
    pub(super) fn u64s(&mut self, values: &[u64], most: usize) {
        let values = &values[..values.len().min(most)];
        self.u16(values.len() as u16);
        values.iter().for_each(|&value| self.u64(value));
    }

    /// How many, and then they; `most` of them at most.
    pub(super) fn rows<R>(&mut self, rows: &[R], most: usize, write: fn(&R, &mut Writer)) {
        let rows = &rows[..rows.len().min(most)];
        self.u16(rows.len() as u16);
        rows.iter().for_each(|row| write(row, self));
    }

    /// How long it is, and then it.
    pub(super) fn name(&mut self, name: SnapshotName) {
        let text = name.as_str().as_bytes();
        self.u8(text.len() as u8);
        self.0.extend(text);
    }

    pub(super) fn ticket(&mut self, ticket: Ticket) {
        self.0.extend(ticket.to_bytes());
    }

    pub(super) fn finish(self) -> Vec<u8> {
        debug_assert!(self.0.len() <= MAX_BYTES, "limits on rows and counters keep it shorter");
        self.0
    }
}

/// Takes a message apart.
pub(super) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    /// The body, and the kind.
    pub(super) fn begin(bytes: &'b [u8]) -> Result<(Reader<'b>, u16), Malformed> {
        if bytes.len() < HEADER || bytes[..4] != MAGIC {
            return Err(Malformed::Magic);
        }
        if bytes.len() > MAX_BYTES {
            return Err(Malformed::Length);
        }
        let mut from = Reader(&bytes[4..]);
        let (version, kind) = (from.u16()?, from.u16()?);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        Ok((from, kind))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u64s(&mut self, most: usize) -> Result<Vec<u64>, Malformed> {
        let count = self.count(most)?;
        (0..count).map(|_| self.u64()).collect()
    }

    pub(super) fn rows<R>(
        &mut self,
        most: usize,
        read: fn(&mut Reader<'b>) -> Result<R, Malformed>,
    ) -> Result<Vec<R>, Malformed> {
        let count = self.count(most)?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn name(&mut self) -> Result<SnapshotName, Malformed> {
        let len = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(len).ok_or(Malformed::Length)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| Malformed::Value)?;
        SnapshotName::new(text).ok_or(Malformed::Value)
    }

    pub(super) fn ticket(&mut self) -> Result<Ticket, Malformed> {
        self.take().map(Ticket::from_bytes)
    }

    fn count(&mut self, most: usize) -> Result<usize, Malformed> {
        let count = usize::from(self.u16()?);
        if count > most {
            return Err(Malformed::Value);
        }
        Ok(count)
    }

    /// The message, if nothing is left over.
    pub(super) fn finish<M>(self, message: M) -> Result<M, Malformed> {
        if self.0.is_empty() {
            Ok(message)
        } else {
            Err(Malformed::Length)
        }
    }
}
