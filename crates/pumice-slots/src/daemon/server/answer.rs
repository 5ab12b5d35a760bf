//! Requests of clients, and their answers.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::message::{
    ClassRow, Grant, LeaseRequest, LeaseRow, Malformed, Reply, Request, MAX_ROWS, MAX_SNAPSHOT_ROWS,
};
use crate::refusal::{Reason, Refusal};
use crate::settings::PaceSetting;
use crate::stat::Counter;
use crate::{socket, Charge, PageKind, Sharing, SlotFile};
use rustix::event::epoll;

use super::super::backing::Backing;
use super::super::connection::{Connection, ConnectionState, Door, Heard, Lease, Wait};
use super::super::pool::{Class, Key, Token};
use super::super::tickets::ReservationId;
use super::super::turns::Taker;
use super::tickets::Held;
use super::{refusal, Ending, Server, UNCLOSED_OF_A_USER};
use crate::serving::folder::is_ours;

/// Requests of one user that may wait; of root and the daemon's user, as many as there are connections.
const WAITS_OF_A_USER: usize = 64;

impl Server {
    /// One message of a connection's. While a request of it is not answered it has no other: answers have no
    /// numbers, and would be taken for each other's.
    pub(super) fn read(&mut self, token: Token) {
        let Some(connection) = self.connections.get(&token) else { return };
        let user = connection.account;
        // Before its packets are taken: each packet may bring hundreds of descriptors.
        if !connection.is_master() && self.reaper.unclosed(user) >= UNCLOSED_OF_A_USER {
            return self.disconnect(token);
        }
        let packet = match socket::receive(&connection.socket) {
            Ok(Some(packet)) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(None) | Err(_) => return self.disconnect(token),
        };
        let is_busy =
            matches!(connection.state, ConnectionState::Waiting(_) | ConnectionState::Ending);
        let mut descriptors = packet.descriptors.into_iter();
        match Request::decode(&packet.bytes) {
            Ok(request @ (Request::Resume | Request::ResumeTicket(_))) if !is_busy => {
                let is_let_in = connection.door == Door::Main || request != Request::Resume;
                let first = descriptors.next();
                descriptors.for_each(|other| self.reaper.close(user, other));
                match request {
                    Request::ResumeTicket(ticket) => self.resume_ticket(token, ticket, first),
                    _ if is_let_in => self.resume(token, first, None),
                    _ => {
                        first.into_iter().for_each(|it| self.reaper.close(user, it));
                        self.refuse_and_close(token, Reason::NotYours);
                    }
                }
            }
            request => {
                descriptors.for_each(|descriptor| self.reaper.close(user, descriptor));
                match request {
                    Ok(_) if is_busy => self.refuse_and_close(token, Reason::OutOfTurn),
                    Ok(request) => self.obey(token, &request),
                    Err(Malformed::Version(_)) => self.refuse_and_close(token, Reason::Version),
                    Err(_) => self.refuse_and_close(token, Reason::Malformed),
                }
            }
        }
    }

    fn obey(&mut self, token: Token, request: &Request) {
        let is_tickets = matches!(request, Request::LeaseTicket(..) | Request::End);
        if self.connections.get(&token).is_some_and(|it| it.door == Door::Tickets) && !is_tickets {
            return self.refuse_and_close(token, Reason::NotYours);
        }
        match *request {
            Request::Lease(request) => self.lease(token, request),
            Request::End => self.end(token),
            // They come with a descriptor, and not here.
            Request::Resume | Request::ResumeTicket(_) => {}
            Request::Classes(from) => {
                let rows: Vec<_> = self.class_rows().collect();
                let page = rows.iter().skip(from as usize).take(MAX_ROWS).copied().collect();
                self.answer(token, &Reply::Classes(rows.len() as u32, page));
            }
            Request::Leases(from) => {
                let rows = self.lease_rows(token);
                let page = rows.iter().skip(from as usize).take(MAX_ROWS).copied().collect();
                self.answer(token, &Reply::Leases(rows.len() as u32, page));
            }
            Request::Stat => {
                self.refresh_gauges();
                let values = self.census.values();
                self.answer(token, &Reply::Stat(values));
            }
            Request::Settings => {
                let pace = &self.populator.shared.pace;
                let values = pace.iter().map(|value| value.load(Ordering::Relaxed)).collect();
                self.answer(token, &Reply::Settings(values));
            }
            Request::Set(setting, raw) => self.set(token, setting, raw),
            Request::LeaseSnapshot(name, wait_ms) => self.lease_snapshot(token, name, wait_ms),
            Request::Snapshots(from) => {
                let rows = self.snapshot_rows();
                let page = rows.iter().skip(from as usize).take(MAX_SNAPSHOT_ROWS);
                let page = page.copied().collect();
                self.answer(token, &Reply::Snapshots(rows.len() as u32, page));
            }
            Request::Reserve(ref asked) => self.reserve(token, asked),
            Request::Release(name) => self.release(token, name),
            Request::LeaseTicket(ticket, wait_ms) => self.lease_ticket(token, ticket, wait_ms),
            Request::Reservations(from) => self.list_reservations(token, from),
        }
    }

    pub(super) fn answer(&mut self, token: Token, reply: &Reply) {
        let Some(connection) = self.connections.get(&token) else { return };
        if connection.reply(reply) == Heard::No {
            self.disconnect(token);
        }
    }

    pub(super) fn refuse(&mut self, token: Token, reason: Reason, limit_bytes: u64) {
        self.census.refused(reason);
        let sizes = match reason {
            Reason::TooLarge | Reason::NoSuchPages => self.pool.sizes(),
            _ => Vec::new(),
        };
        self.answer(token, &Reply::Refused(Refusal { reason, limit_bytes, sizes }));
    }

    /// Refuses a request and closes its connection: a client whose message can't be read gets no second chance.
    pub(super) fn refuse_and_close(&mut self, token: Token, reason: Reason) {
        self.refuse(token, reason, 0);
        self.disconnect(token);
    }

    fn lease(&mut self, token: Token, request: LeaseRequest) {
        let Some(connection) = self.connections.get(&token) else { return };
        if !matches!(connection.state, ConnectionState::Idle) {
            return self.refuse_and_close(token, Reason::OutOfTurn);
        }
        if self.drain_until.is_some() {
            return self.refuse(token, Reason::Draining, 0);
        }
        let key = match self.pool.find(request.bytes, request.pages) {
            Ok(key) => key,
            Err(reason) => return self.refuse(token, reason, 0),
        };
        let bytes = self.bytes_of(request, key);
        let quota_bytes = self.plan.allowed.quota_bytes(&connection.peer).unwrap_or(0);
        if self.used_bytes(connection.account).saturating_add(bytes) > quota_bytes {
            return self.refuse(token, Reason::Quota, quota_bytes);
        }
        let since = Instant::now();
        if request.charge == Charge::Lessee {
            return match SlotFile::create(bytes, key.pages) {
                Ok(file) => {
                    let key = Key { bytes, ..key };
                    self.grant(token, key, Backing::Own(file), Charge::Lessee, since);
                }
                Err(_) => self.refuse(token, Reason::NoMemory, 0),
            };
        }
        let taker = connection.taker();
        if let Some(slot) = self.pool.take(key, token, taker) {
            return self.grant(token, key, slot.file, Charge::Daemon, since);
        }
        if self.pool.holds_back(key, taker) {
            self.census.add(Counter::HeldBack, 1);
        }
        if request.wait_ms == 0 {
            return self.refuse(token, Reason::NoneReady, 0);
        }
        let until = since + Duration::from_millis(request.wait_ms.into());
        self.wait(token, Wait { key, request, since, until, look: 0, reservation: None });
    }

    /// Has a client wait, unless too many requests of its user do.
    pub(super) fn wait(&mut self, token: Token, wait: Wait) {
        let Some(connection) = self.connections.get(&token) else { return };
        let user = connection.account;
        if !connection.is_master() && self.waits_of(user) >= WAITS_OF_A_USER {
            return self.refuse(token, Reason::Busy, 0);
        }
        let taker = connection.taker();
        match wait.request.wait_ms {
            0 => self.pool.wait_for_look(wait.key, token, taker),
            _ => self.pool.wait(wait.key, token, taker),
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.state = ConnectionState::Waiting(wait);
        }
    }

    /// The bytes that a lease takes of a quota. A slot that the lessee populates counts as large as it was asked for,
    /// and a shared one apart ([`Server::shared_bytes`]).
    fn bytes_of(&self, request: LeaseRequest, key: Key) -> u64 {
        match request.charge {
            Charge::Daemon if key.sharing == Sharing::Shared => 0,
            Charge::Daemon => key.bytes,
            Charge::Lessee => request.bytes.next_multiple_of(key.pages.granule()),
        }
    }

    fn waits_of(&self, account: u32) -> usize {
        let is_theirs = |it: &&Connection| it.account == account && it.reservation().is_none();
        let theirs = self.connections.values().filter(is_theirs);
        theirs.filter(|connection| matches!(connection.state, ConnectionState::Waiting(_))).count()
    }

    /// The bytes that a user has, waits for and has not yet given back.
    pub(super) fn used_bytes(&self, account: u32) -> u64 {
        let is_theirs = |it: &&Connection| it.account == account && it.reservation().is_none();
        let theirs = self.connections.values().filter(is_theirs);
        let held = theirs.map(|connection| match &connection.state {
            ConnectionState::Waiting(wait) => self.bytes_of(wait.request, wait.key),
            _ => connection.leased_bytes(),
        });
        let is_going = |ending: &&Ending| {
            ending.account == Some(account) && ending.key.sharing == Sharing::Alone
        };
        let going = self.ending.values().filter(is_going).map(|ending| ending.key.bytes);
        // A slot that is resumed can be of any size and have no memory, so the sum saturates.
        held.chain(going).chain([self.shared_bytes(account)]).fold(0, u64::saturating_add)
    }

    /// The bytes of shared slots that a user has or waits for. It has each once, however many leases of it, and waits
    /// for none that it has as it is now.
    fn shared_bytes(&self, account: u32) -> u64 {
        let theirs = || self.connections.values().filter(|it| it.account == account);
        let had = shared_leases(theirs());
        let mut waited_for: Vec<_> =
            theirs().filter_map(Connection::wait).map(|it| it.key).collect();
        waited_for.retain(|key| {
            let is_had = |(id, other): (&u64, &Key)| other.is_of(key) && self.pool.has_ready(*id);
            key.sharing == Sharing::Shared && !had.iter().any(is_had)
        });
        waited_for.sort();
        waited_for.dedup();
        let all = had.values().chain(&waited_for).map(|key| key.bytes);
        all.fold(0, u64::saturating_add)
    }

    /// Whether a user has a shared slot as it is now, or waits for it, so that it has no more after another lease.
    pub(super) fn shares(&self, account: u32, key: Key) -> bool {
        let mut theirs = self.connections.values().filter(|other| other.account == account);
        key.sharing == Sharing::Shared
            && theirs.any(|other| {
                let is_now = |lease: &&Lease| {
                    lease.file.shared().is_some_and(|file| self.pool.has_ready(file.id()))
                };
                let held = other.lease().filter(is_now).map(|lease| lease.key);
                let held = held.or(other.wait().map(|wait| wait.key));
                held.is_some_and(|held| held.sharing == Sharing::Shared && held.is_of(&key))
            })
    }

    /// The bytes that are leased. A shared slot counts once, and not while it is ready for others, too.
    pub(super) fn leased_bytes(&self) -> u64 {
        let own = self.connections.values().map(Connection::leased_bytes);
        let shared = shared_leases(self.connections.values());
        let shared = shared.iter().filter(|(&id, _)| !self.pool.has_ready(id));
        own.chain(shared.map(|(_, key)| key.bytes)).fold(0, u64::saturating_add)
    }

    pub(super) fn grant(
        &mut self,
        token: Token,
        key: Key,
        file: Backing,
        charge: Charge,
        since: Instant,
    ) {
        let id = self.next_lease;
        self.next_lease += 1;
        let Some(connection) = self.connections.get_mut(&token) else {
            // Gone in the same moment: nobody has seen the slot.
            self.reaper.discard(file);
            self.pool.ended(key);
            return;
        };
        let (bytes, pages, sharing) = (key.bytes, key.pages, key.sharing);
        let grant = Grant { id, bytes, pages, charge, sharing };
        let heard = connection.grant(&Reply::Granted(grant), &file);
        let reservation = connection.reservation();
        let lease = Lease { id, key, file, since: Instant::now(), charge, reservation };
        connection.state = ConnectionState::Leased(lease);
        if let Some(id) = reservation {
            self.tickets.leased(id, token);
        }
        self.census.granted(since.elapsed());
        if heard == Heard::No {
            self.disconnect(token);
        }
    }

    /// A lease of a daemon that was here before, reported by its holder, which has shown a ticket or none.
    pub(super) fn resume(
        &mut self,
        token: Token,
        descriptor: Option<OwnedFd>,
        reserved: Option<(ReservationId, Key)>,
    ) {
        let Some(connection) = self.connections.get(&token) else { return };
        let user = connection.account;
        // A tenant can make a file with a slot's seals, but not one of another user's. Of its own it would bring back
        // again and again what takes the place of a slot that others wait for.
        let is_a_daemons = |file: SlotFile| match file.owner() {
            owner if is_ours(owner) || connection.is_master() => Ok(file),
            _ => Err(file.into_descriptor()),
        };
        let file =
            match descriptor.map(|descriptor| SlotFile::adopt(descriptor).and_then(is_a_daemons)) {
                Some(Ok(file)) => file,
                Some(Err(descriptor)) => {
                    self.reaper.close(user, descriptor);
                    return self.refuse(token, Reason::NotASlot, 0);
                }
                None => return self.refuse(token, Reason::NotASlot, 0),
            };
        let bytes = file.bytes();
        let key = self.resumed_key(&file, reserved.map(|(_, key)| key));
        if reserved.is_some_and(|(_, key)| key.bytes != bytes || file.snapshot().is_some()) {
            self.reaper.close(user, file.into_descriptor());
            return self.refuse(token, Reason::NotASlot, 0);
        }
        let Some(connection) = self.connections.get(&token) else { return };
        // Counted twice, one slot would take two of its class.
        if !matches!(connection.state, ConnectionState::Idle) || self.is_leased(&file) {
            self.reaper.close(user, file.into_descriptor());
            return self.refuse_and_close(token, Reason::OutOfTurn);
        }
        // It takes no more of the class than a lease could.
        let quota_bytes = self.plan.allowed.quota_bytes(&connection.peer).unwrap_or(0);
        let used_bytes = self.used_bytes(connection.account).saturating_add(bytes);
        if reserved.is_none() && used_bytes > quota_bytes {
            self.reaper.close(user, file.into_descriptor());
            return self.refuse(token, Reason::Quota, quota_bytes);
        }
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let id = self.next_lease;
        self.next_lease += 1;
        let adopted = self.pool.adopt(key);
        // A lease that no class counts must not be counted down by one.
        let charge = if adopted.is_some() { Charge::Daemon } else { Charge::Lessee };
        let (file, since) = (Backing::Own(file), Instant::now());
        let reservation = reserved.map(|(id, _)| id);
        let lease = Lease { id, key, file, since, charge, reservation };
        connection.state = ConnectionState::Leased(lease);
        if let Some((id, key)) = reserved {
            self.tickets.leased(id, token);
            self.pool.unreserve(key);
        }
        self.census.add(Counter::Resumed, 1);
        for slot in adopted.into_iter().flatten() {
            self.reaper.discard(slot.file);
        }
        let (pages, sharing) = (key.pages, key.sharing);
        self.answer(token, &Reply::Granted(Grant { id, bytes, pages, charge, sharing }));
    }

    /// The class that a resumed slot counts to: that of its reservation, or one like it.
    fn resumed_key(&self, file: &SlotFile, reserved: Option<Key>) -> Key {
        let (bytes, snapshot) = (file.bytes(), file.snapshot());
        let mut keys = self.pool.classes().iter().map(|class| class.key);
        // A snapshot's file may be of another size by now.
        let same =
            keys.find(|key| key.snapshot == snapshot && (snapshot.is_some() || key.bytes == bytes));
        let none = Key { snapshot, ..Key::new(bytes, PageKind::Small) };
        // It is one of before if the snapshot is shared now.
        Key { bytes, sharing: Sharing::Alone, ..reserved.or(same).unwrap_or(none) }
    }

    fn is_leased(&self, file: &SlotFile) -> bool {
        let mut leases = self.connections.values().filter_map(Connection::lease);
        leases.any(|lease| lease.file.own().is_some_and(|own| own.is_same_file(file)))
    }

    fn end(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let account = connection.account;
        match std::mem::replace(&mut connection.state, ConnectionState::Ending) {
            ConnectionState::Leased(lease) => self.bury(lease, account, Some(token)),
            state => {
                connection.state = state;
                self.refuse(token, Reason::OutOfTurn, 0);
            }
        }
    }

    /// The client is gone, or is to go.
    pub(super) fn disconnect(&mut self, token: Token) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.poll, &connection.socket);
        match connection.state {
            ConnectionState::Leased(lease) => self.bury(lease, connection.account, None),
            ConnectionState::Waiting(wait) => {
                self.pool.forget(wait.key, token);
                self.left(wait.key, wait.reservation, Held::Waited);
                self.serve_waiting(wait.key);
            }
            ConnectionState::Idle | ConnectionState::Ending => {}
        }
        self.reaper.hang_up(connection.account, connection.socket);
    }

    fn bury(&mut self, lease: Lease, account: u32, told: Option<Token>) {
        let (key, charge) = (lease.key, lease.charge);
        // A reserved slot was on nobody's account.
        let theirs = lease.reservation.is_none().then_some(account);
        if charge == Charge::Daemon {
            self.pool.ending(key, theirs.unwrap_or(Taker::OF_A_TICKET.user));
        }
        self.left(key, lease.reservation, Held::Leased);
        self.ending.insert(lease.id, Ending { key, charge, told, account: theirs });
        self.reaper.end(account, lease.id, lease.file);
    }

    /// A lease's memory is gone.
    pub(super) fn take_ended(&mut self, lease: u64, error: Option<io::Error>) {
        if let Some(error) = error {
            self.host.say(&format!("lease {lease} could not be truncated: {error}"));
        }
        let Some(ending) = self.ending.remove(&lease) else { return };
        self.census.add(Counter::Ended, 1);
        if ending.charge == Charge::Daemon {
            self.pool.ended(ending.key);
        }
        if let Some(token) = ending.told {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.state = ConnectionState::Idle;
            }
            self.answer(token, &Reply::Done);
        }
    }

    fn set(&mut self, token: Token, setting: PaceSetting, raw: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if !connection.is_master() {
            return self.refuse(token, Reason::NotYours, 0);
        }
        self.populator.shared.pace[setting as usize].store(raw, Ordering::Relaxed);
        self.answer(token, &Reply::Done);
    }

    /// Ready slots for those who wait for them.
    pub(super) fn serve_waiting(&mut self, key: Key) {
        if key.snapshot.is_some() {
            return self.look_and_serve(key);
        }
        self.grant_waiting(key, |_| true);
    }

    /// Grants ready slots in turn to the requests that may be served now.
    pub(super) fn grant_waiting(&mut self, key: Key, may: impl Fn(&Wait) -> bool) {
        let wait_of = |connections: &HashMap<Token, Connection>, token| {
            connections.get(&token).and_then(Connection::wait).copied()
        };
        loop {
            let may = |token| wait_of(&self.connections, token).is_some_and(|wait| may(&wait));
            let Some((token, slot)) = self.pool.take_next(key, may) else { return };
            let since = wait_of(&self.connections, token).map_or_else(Instant::now, |it| it.since);
            self.grant(token, key, slot.file, Charge::Daemon, since);
        }
    }

    /// Waits that are over.
    pub(super) fn end_waits(&mut self, now: Instant) {
        let is_over = |state: &ConnectionState| match state {
            ConnectionState::Waiting(wait) => wait.until <= now,
            _ => false,
        };
        let over = self.connections.iter().filter(|(_, connection)| is_over(&connection.state));
        let over: Vec<_> = over.map(|(&token, _)| token).collect();
        for token in over {
            self.stop_waiting(token, Reason::TimedOut);
        }
    }

    pub(super) fn stop_waiting(&mut self, token: Token, reason: Reason) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if let ConnectionState::Waiting(wait) = connection.state {
            connection.state = ConnectionState::Idle;
            self.pool.forget(wait.key, token);
            self.left(wait.key, wait.reservation, Held::Waited);
            self.census.refused(reason);
            self.answer(token, &refusal(reason));
        }
    }

    /// The classes that requests name by size, as clients see them.
    pub(super) fn class_rows(&self) -> impl Iterator<Item = ClassRow> + '_ {
        let sized = self.pool.classes().iter().filter(|class| class.key.snapshot.is_none());
        sized.map(|class| self.class_row(class))
    }

    pub(super) fn class_row(&self, class: &Class) -> ClassRow {
        let jobs = self.populator.jobs().filter(|job| job.key == class.key);
        class.row(jobs.map(|job| job.done_bytes.load(Ordering::Relaxed)).sum())
    }

    /// The leases that a client may see: all of them, or its own user's.
    fn lease_rows(&self, token: Token) -> Vec<LeaseRow> {
        let Some(asking) = self.connections.get(&token) else { return Vec::new() };
        let (asking, sees_all) = (&asking.peer, asking.is_master());
        let mut rows = Vec::new();
        for connection in self.connections.values() {
            let ConnectionState::Leased(lease) = &connection.state else { continue };
            if sees_all || connection.peer.uid == asking.uid {
                rows.push(LeaseRow {
                    id: lease.id,
                    bytes: lease.key.bytes,
                    pages: lease.key.pages,
                    uid: connection.peer.uid,
                    pid: connection.peer.pid,
                    age_ms: u64::try_from(lease.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                });
            }
        }
        rows.sort_by_key(|row| row.id);
        rows
    }
}

/// The shared slots that these connections lease, each once.
fn shared_leases<'a>(connections: impl Iterator<Item = &'a Connection>) -> HashMap<u64, Key> {
    let leases = connections.filter_map(Connection::lease);
    leases.filter_map(|it| Some((it.file.shared()?.id(), it.key))).collect()
}
