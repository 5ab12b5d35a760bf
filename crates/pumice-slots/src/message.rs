//! The protocol's messages and their bytes. `docs/slots-protocol.md` is the same in words.
//!
//! A message is one packet: a header of eight bytes (four that say `pmsl`, the version, the kind) and a
//! body whose length the kind gives. Numbers are little endian. Nothing is longer than
//! [`MAX_BYTES`], and a packet with a byte too few or too many is none.

use super::pages::{Charge, PageKind};
use super::refusal::{Reason, Refusal};
use super::settings::PaceSetting;
use super::snapshot::{Sharing, SnapshotName};
use super::ticket::{Reservation, ReservationName, Stage, Ticket};
use wire::{Reader, Writer};

mod wire;

/// The version of the protocol.
pub const VERSION: u16 = 1;
/// The longest message, in bytes.
pub const MAX_BYTES: usize = 4096;
/// The most sizes in a refusal.
pub const MAX_SIZES: usize = 64;
/// The most rows in a list's answer.
pub const MAX_ROWS: usize = 48;
/// The most snapshots in a list's answer.
pub const MAX_SNAPSHOT_ROWS: usize = 32;
/// The most counters in an answer.
pub const MAX_COUNTERS: usize = 256;
/// The longest wait that can be asked for, in milliseconds.
pub const MAX_WAIT_MS: u32 = 24 * 3600 * 1000;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not this protocol.
    #[error("it does not begin as a message does")]
    Magic,
    /// This protocol, but another version, which is given.
    #[error("it is of version {0}")]
    Version(u16),
    /// A kind of message that this version does not have.
    #[error("it is of no known kind")]
    Kind,
    /// Too short or too long for its kind.
    #[error("its length is wrong")]
    Length,
    /// A field has a value that it can't have.
    #[error("a field has a value that it can't have")]
    Value,
}

/// A request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Bytes that are needed at least, not 0.
    pub bytes: u64,
    /// The kind of pages, if it matters.
    pub pages: Option<PageKind>,
    /// The side whose control group is charged.
    pub charge: Charge,
    /// How long to wait for a slot to be ready, in milliseconds; 0 for not at all.
    pub wait_ms: u32,
}

impl LeaseRequest {
    /// So many bytes of any kind, at once or not at all.
    pub fn new(bytes: u64) -> LeaseRequest {
        LeaseRequest { bytes, pages: None, charge: Charge::Daemon, wait_ms: 0 }
    }
}

/// A request of a client. While a `Lease` waits, or an `End` is not answered, any other request is refused and the
/// connection closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for a slot. A connection has one lease in its life.
    Lease(LeaseRequest),
    /// Ends the connection's lease; answered when the slot's memory is gone.
    End,
    /// Takes a lease over that another daemon granted; the slot's descriptor comes along.
    Resume,
    /// Asks for the classes of slots, from this one on.
    Classes(u32),
    /// Asks for the leases, from this one on.
    Leases(u32),
    /// Asks for the counters.
    Stat,
    /// Asks for the settings.
    Settings,
    /// Changes a setting; only root and the daemon's own user may.
    Set(PaceSetting, u64),
    /// Asks for a slot with the content of a snapshot; how long to wait, in milliseconds. Otherwise as `Lease`.
    LeaseSnapshot(SnapshotName, u32),
    /// Asks for the snapshots, from this one on.
    Snapshots(u32),
    /// Reserves a slot for a ticket; only root and the daemon's own user may, as for the next one.
    Reserve(Reservation),
    /// Gives a reservation up. A lease of it goes on.
    Release(ReservationName),
    /// Asks for the slot that is reserved for a ticket; how long to wait, in milliseconds. Otherwise as `Lease`.
    LeaseTicket(Ticket, u32),
    /// As `Resume`, of a slot that is reserved for a ticket.
    ResumeTicket(Ticket),
    /// Asks for the reservations, from this one on; only root and the daemon's own user may.
    Reservations(u32),
}

/// An answer of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A slot; its descriptor comes along, unless the lease was only taken over.
    Granted(Grant),
    /// No.
    Refused(Refusal),
    /// It is done.
    Done,
    /// Classes of slots; how many there are in all comes first.
    Classes(u32, Vec<ClassRow>),
    /// Leases; how many there are in all comes first.
    Leases(u32, Vec<LeaseRow>),
    /// Counters in the order of [`super::stat::Counter::ALL`], then the histogram's buckets.
    Stat(Vec<u64>),
    /// Settings in the order of [`PaceSetting::ALL`].
    Settings(Vec<u64>),
    /// Snapshots; how many there are in all comes first.
    Snapshots(u32, Vec<SnapshotRow>),
    /// Reservations; how many there are in all comes first.
    Reservations(u32, Vec<ReservationRow>),
}

/// A slot that was leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease's number, for lists.
    pub id: u64,
    /// Bytes of the file: as many as were asked for, or more.
    pub bytes: u64,
    /// The kind of pages that its memory is made of.
    pub pages: PageKind,
    /// The side that populates it: with [`Charge::Lessee`] it is empty.
    pub charge: Charge,
    /// Whether others have it, too, and nobody can write to it. The message is of another kind then, which older
    /// clients do not take for a slot of theirs.
    pub sharing: Sharing,
}

/// A class of slots of one size and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRow {
    /// Bytes of each.
    pub bytes: u64,
    /// The kind of pages that they are made of.
    pub pages: PageKind,
    /// The memory node they are on, if one was chosen.
    pub node: Option<u32>,
    /// How many there are to be, leased ones included.
    pub wanted: u32,
    /// How many are ready.
    pub ready: u32,
    /// How many are being populated.
    pub populating: u32,
    /// Bytes of that which are populated.
    pub populating_bytes: u64,
    /// Bytes of those ready that are in huge pages.
    pub huge_bytes: u64,
    /// How many are leased.
    pub leased: u32,
    /// How many requests wait.
    pub waiting: u32,
}

pumice_frames::table! {
    /// The state of a snapshot's file when it was last looked at.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum FileState: &'static str {
        /// It can be read.
        Good = 0 => "good",
        /// It is missing, can't be read, or changes: the daemon's log says more.
        Failing = 1 => "failing",
    }
}

impl FileState {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        self.row()
    }
}

/// A snapshot, and its class of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its name.
    pub name: SnapshotName,
    /// Bytes of the file. The slots' are a multiple of a page, with zeros at the end.
    pub file_bytes: u64,
    /// The file's state.
    pub file: FileState,
    /// Whether all clients have the same slot.
    pub sharing: Sharing,
    /// Its slots.
    pub class: ClassRow,
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Its number.
    pub id: u64,
    /// Bytes.
    pub bytes: u64,
    /// The kind of pages that it is made of.
    pub pages: PageKind,
    /// The user that has it.
    pub uid: u32,
    /// The process that has it: the one that connected.
    pub pid: u32,
    /// For how long, in milliseconds.
    pub age_ms: u64,
}

/// A reservation. It never has the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRow {
    /// Its name.
    pub name: ReservationName,
    /// Bytes of its slot.
    pub bytes: u64,
    /// The kind of pages that its slot is made of.
    pub pages: PageKind,
    /// The memory node of its slot, if one was chosen.
    pub node: Option<u32>,
    /// Its stage.
    pub stage: Stage,
    /// For how long it is kept yet, in milliseconds.
    pub left_ms: u64,
}

mod kind {
    pub(super) const LEASE: u16 = 1;
    pub(super) const END: u16 = 2;
    pub(super) const RESUME: u16 = 3;
    pub(super) const CLASSES: u16 = 4;
    pub(super) const LEASES: u16 = 5;
    pub(super) const STAT: u16 = 6;
    pub(super) const SETTINGS: u16 = 7;
    pub(super) const SET: u16 = 8;
    pub(super) const LEASE_SNAPSHOT: u16 = 9;
    pub(super) const SNAPSHOTS: u16 = 10;
    pub(super) const RESERVE: u16 = 11;
    pub(super) const RELEASE: u16 = 12;
    pub(super) const LEASE_TICKET: u16 = 13;
    pub(super) const RESUME_TICKET: u16 = 14;
    pub(super) const RESERVATIONS: u16 = 15;
    /// The number added for the answer of the same name.
    pub(super) const REPLY: u16 = 0x100;
    pub(super) const REFUSED: u16 = 0x1ff;
}

impl Request {
    /// The message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Request::Lease(lease) => {
                let mut to = Writer::begin(kind::LEASE);
                to.u64(lease.bytes);
                to.u32(lease.wait_ms);
                to.u8(lease.pages.map_or(0, |pages| pages as u8));
                to.u8(lease.charge as u8);
                to.u16(0);
                to.finish()
            }
            Request::End => Writer::begin(kind::END).finish(),
            Request::Resume => Writer::begin(kind::RESUME).finish(),
            Request::Classes(from) => with_u32(kind::CLASSES, from),
            Request::Leases(from) => with_u32(kind::LEASES, from),
            Request::Stat => Writer::begin(kind::STAT).finish(),
            Request::Settings => Writer::begin(kind::SETTINGS).finish(),
            Request::Set(setting, raw) => {
                let mut to = Writer::begin(kind::SET);
                to.u64(raw);
                to.u32(setting as u32);
                to.finish()
            }
            Request::LeaseSnapshot(name, wait_ms) => {
                let mut to = Writer::begin(kind::LEASE_SNAPSHOT);
                to.u32(wait_ms);
                to.name(name);
                to.finish()
            }
            Request::Snapshots(from) => with_u32(kind::SNAPSHOTS, from),
            Request::Reserve(it) => {
                let mut to = Writer::begin(kind::RESERVE);
                to.ticket(it.ticket);
                to.u64(it.bytes);
                to.u32(it.limit_ms);
                to.u32(it.node.unwrap_or(u32::MAX));
                to.u8(it.pages.map_or(0, |pages| pages as u8));
                to.name(it.name);
                to.finish()
            }
            Request::Release(name) => {
                let mut to = Writer::begin(kind::RELEASE);
                to.name(name);
                to.finish()
            }
            Request::LeaseTicket(ticket, wait_ms) => {
                let mut to = Writer::begin(kind::LEASE_TICKET);
                to.ticket(ticket);
                to.u32(wait_ms);
                to.finish()
            }
            Request::ResumeTicket(ticket) => {
                let mut to = Writer::begin(kind::RESUME_TICKET);
                to.ticket(ticket);
                to.finish()
            }
            Request::Reservations(from) => with_u32(kind::RESERVATIONS, from),
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`] for all bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let (mut from, kind) = Reader::begin(bytes)?;
        let request = match kind {
            kind::LEASE => {
                let (bytes, wait_ms) = (from.u64()?, from.u32()?);
                let pages = any_pages(from.u8()?)?;
                let charge = Charge::from_number(from.u8()?).ok_or(Malformed::Value)?;
                if bytes == 0 || wait_ms > MAX_WAIT_MS || from.u16()? != 0 {
                    return Err(Malformed::Value);
                }
                Request::Lease(LeaseRequest { bytes, pages, charge, wait_ms })
            }
            kind::END => Request::End,
            kind::RESUME => Request::Resume,
            kind::CLASSES => Request::Classes(from.u32()?),
            kind::LEASES => Request::Leases(from.u32()?),
            kind::STAT => Request::Stat,
            kind::SETTINGS => Request::Settings,
            kind::SET => {
                let (raw, number) = (from.u64()?, from.u32()?);
                let number = u16::try_from(number).map_err(|_| Malformed::Value)?;
                let setting = PaceSetting::from_number(number).ok_or(Malformed::Value)?;
                if !setting.is_valid(raw) {
                    return Err(Malformed::Value);
                }
                Request::Set(setting, raw)
            }
            kind::LEASE_SNAPSHOT => {
                let (wait_ms, name) = (from.u32()?, from.name()?);
                if wait_ms > MAX_WAIT_MS {
                    return Err(Malformed::Value);
                }
                Request::LeaseSnapshot(name, wait_ms)
            }
            kind::SNAPSHOTS => Request::Snapshots(from.u32()?),
            kind::RESERVE => {
                let (ticket, bytes, limit_ms) = (from.ticket()?, from.u64()?, from.u32()?);
                let node = Some(from.u32()?).filter(|&node| node != u32::MAX);
                let (pages, name) = (any_pages(from.u8()?)?, from.name()?);
                if bytes == 0 || !(1..=MAX_WAIT_MS).contains(&limit_ms) {
                    return Err(Malformed::Value);
                }
                Request::Reserve(Reservation { name, ticket, bytes, pages, node, limit_ms })
            }
            kind::RELEASE => Request::Release(from.name()?),
            kind::LEASE_TICKET => {
                let (ticket, wait_ms) = (from.ticket()?, from.u32()?);
                if wait_ms > MAX_WAIT_MS {
                    return Err(Malformed::Value);
                }
                Request::LeaseTicket(ticket, wait_ms)
            }
            kind::RESUME_TICKET => Request::ResumeTicket(from.ticket()?),
            kind::RESERVATIONS => Request::Reservations(from.u32()?),
            _ => return Err(Malformed::Kind),
        };
        from.finish(request)
    }
}

/// A kind of pages, or any.
fn any_pages(number: u8) -> Result<Option<PageKind>, Malformed> {
    match number {
        0 => Ok(None),
        number => PageKind::from_number(number).map(Some).ok_or(Malformed::Value),
    }
}

fn with_u32(kind: u16, value: u32) -> Vec<u8> {
    let mut to = Writer::begin(kind);
    to.u32(value);
    to.finish()
}

impl Reply {
    /// The message's bytes. Lists are cut where they would be too long.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Granted(grant) => {
                let kind = match grant.sharing {
                    Sharing::Alone => kind::LEASE,
                    Sharing::Shared => kind::LEASE_SNAPSHOT,
                };
                let mut to = Writer::begin(kind | kind::REPLY);
                to.u64(grant.id);
                to.u64(grant.bytes);
                to.u8(grant.pages as u8);
                to.u8(grant.charge as u8);
                to.finish()
            }
            Reply::Refused(refusal) => {
                let mut to = Writer::begin(kind::REFUSED);
                to.u16(refusal.reason as u16);
                to.u64(refusal.limit_bytes);
                to.u64s(&refusal.sizes, MAX_SIZES);
                to.finish()
            }
            Reply::Done => Writer::begin(kind::END | kind::REPLY).finish(),
            Reply::Classes(all, rows) => {
                let mut to = Writer::begin(kind::CLASSES | kind::REPLY);
                to.u32(*all);
                to.rows(rows, MAX_ROWS, ClassRow::write);
                to.finish()
            }
            Reply::Leases(all, rows) => {
                let mut to = Writer::begin(kind::LEASES | kind::REPLY);
                to.u32(*all);
                to.rows(rows, MAX_ROWS, LeaseRow::write);
                to.finish()
            }
            Reply::Stat(values) => {
                let mut to = Writer::begin(kind::STAT | kind::REPLY);
                to.u64s(values, MAX_COUNTERS);
                to.finish()
            }
            Reply::Settings(values) => {
                let mut to = Writer::begin(kind::SETTINGS | kind::REPLY);
                to.u64s(values, MAX_COUNTERS);
                to.finish()
            }
            Reply::Snapshots(all, rows) => {
                let mut to = Writer::begin(kind::SNAPSHOTS | kind::REPLY);
                to.u32(*all);
                to.rows(rows, MAX_SNAPSHOT_ROWS, SnapshotRow::write);
                to.finish()
            }
            Reply::Reservations(all, rows) => {
                let mut to = Writer::begin(kind::RESERVATIONS | kind::REPLY);
                to.u32(*all);
                to.rows(rows, MAX_ROWS, ReservationRow::write);
                to.finish()
            }
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`Malformed`] for all bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Reply, Malformed> {
        const REPLY: u16 = kind::REPLY;
        let (mut from, kind) = Reader::begin(bytes)?;
        let reply = match kind {
            kind::REFUSED => {
                let reason = Reason::from_number(from.u16()?).ok_or(Malformed::Value)?;
                let limit_bytes = from.u64()?;
                Reply::Refused(Refusal { reason, limit_bytes, sizes: from.u64s(MAX_SIZES)? })
            }
            _ if kind & REPLY == 0 => return Err(Malformed::Kind),
            _ => match kind & !REPLY {
                kind::LEASE => Reply::Granted(Grant::read(&mut from, Sharing::Alone)?),
                kind::LEASE_SNAPSHOT => Reply::Granted(Grant::read(&mut from, Sharing::Shared)?),
                kind::END => Reply::Done,
                kind::CLASSES => Reply::Classes(from.u32()?, from.rows(MAX_ROWS, ClassRow::read)?),
                kind::LEASES => Reply::Leases(from.u32()?, from.rows(MAX_ROWS, LeaseRow::read)?),
                kind::STAT => Reply::Stat(from.u64s(MAX_COUNTERS)?),
                kind::SETTINGS => Reply::Settings(from.u64s(MAX_COUNTERS)?),
                kind::SNAPSHOTS => {
                    Reply::Snapshots(from.u32()?, from.rows(MAX_SNAPSHOT_ROWS, SnapshotRow::read)?)
                }
                kind::RESERVATIONS => {
                    Reply::Reservations(from.u32()?, from.rows(MAX_ROWS, ReservationRow::read)?)
                }
                _ => return Err(Malformed::Kind),
            },
        };
        from.finish(reply)
    }
}

impl Grant {
    fn read(from: &mut Reader<'_>, sharing: Sharing) -> Result<Grant, Malformed> {
        let (id, bytes) = (from.u64()?, from.u64()?);
        let pages = PageKind::from_number(from.u8()?).ok_or(Malformed::Value)?;
        let charge = Charge::from_number(from.u8()?).ok_or(Malformed::Value)?;
        Ok(Grant { id, bytes, pages, charge, sharing })
    }
}

impl ClassRow {
    fn write(&self, to: &mut Writer) {
        for value in [self.bytes, self.populating_bytes, self.huge_bytes] {
            to.u64(value);
        }
        to.u32(self.node.unwrap_or(u32::MAX));
        for value in [self.wanted, self.ready, self.populating, self.leased, self.waiting] {
            to.u32(value);
        }
        to.u8(self.pages as u8);
    }

    fn read(from: &mut Reader<'_>) -> Result<ClassRow, Malformed> {
        let (bytes, populating_bytes, huge_bytes) = (from.u64()?, from.u64()?, from.u64()?);
        let node = Some(from.u32()?).filter(|&node| node != u32::MAX);
        let (wanted, ready, populating) = (from.u32()?, from.u32()?, from.u32()?);
        let (leased, waiting) = (from.u32()?, from.u32()?);
        let pages = PageKind::from_number(from.u8()?).ok_or(Malformed::Value)?;
        Ok(ClassRow {
            bytes,
            pages,
            node,
            wanted,
            ready,
            populating,
            populating_bytes,
            huge_bytes,
            leased,
            waiting,
        })
    }
}

impl SnapshotRow {
    fn write(&self, to: &mut Writer) {
        to.name(self.name);
        to.u64(self.file_bytes);
        to.u8(self.file as u8);
        to.u8(self.sharing as u8);
        self.class.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<SnapshotRow, Malformed> {
        let (name, file_bytes) = (from.name()?, from.u64()?);
        let file = FileState::from_number(from.u8()?).ok_or(Malformed::Value)?;
        let sharing = Sharing::from_number(from.u8()?).ok_or(Malformed::Value)?;
        Ok(SnapshotRow { name, file_bytes, file, sharing, class: ClassRow::read(from)? })
    }
}

impl LeaseRow {
    fn write(&self, to: &mut Writer) {
        for value in [self.id, self.bytes, self.age_ms] {
            to.u64(value);
        }
        to.u32(self.uid);
        to.u32(self.pid);
        to.u8(self.pages as u8);
    }

    fn read(from: &mut Reader<'_>) -> Result<LeaseRow, Malformed> {
        let (id, bytes, age_ms) = (from.u64()?, from.u64()?, from.u64()?);
        let (uid, pid) = (from.u32()?, from.u32()?);
        let pages = PageKind::from_number(from.u8()?).ok_or(Malformed::Value)?;
        Ok(LeaseRow { id, bytes, pages, uid, pid, age_ms })
    }
}

impl ReservationRow {
    fn write(&self, to: &mut Writer) {
        to.name(self.name);
        to.u64(self.bytes);
        to.u64(self.left_ms);
        to.u32(self.node.unwrap_or(u32::MAX));
        to.u8(self.pages as u8);
        to.u8(self.stage as u8);
    }

    fn read(from: &mut Reader<'_>) -> Result<ReservationRow, Malformed> {
        let (name, bytes, left_ms) = (from.name()?, from.u64()?, from.u64()?);
        let node = Some(from.u32()?).filter(|&node| node != u32::MAX);
        let pages = PageKind::from_number(from.u8()?).ok_or(Malformed::Value)?;
        let stage = Stage::from_number(from.u8()?).ok_or(Malformed::Value)?;
        Ok(ReservationRow { name, bytes, pages, node, stage, left_ms })
    }
}

#[cfg(test)]
mod tests;
