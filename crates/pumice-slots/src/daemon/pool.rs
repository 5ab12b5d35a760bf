//! The slots: classes of one size and kind, the counts of ready, leased and awaited ones, and the one to populate next.
//! It touches no file and no clock, so tests drive it by hand.

use std::collections::VecDeque;
use std::time::Instant;

use crate::message::ClassRow;
use crate::refusal::Reason;
use crate::{PageKind, Sharing, SnapshotName};

use super::backing::Backing;
use super::source::Version;
use super::turns::{Owed, Precedence, Rank, Tags, Taker, WaitQueue};

/// The properties that all slots of a class share. The order is by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Bytes.
    pub bytes: u64,
    /// The kind of pages that they are made of.
    pub pages: PageKind,
    /// The memory node, if one was chosen.
    pub node: Option<u32>,
    /// The snapshot whose content they have. Its class stays the same one when all else changes. Its bytes are 0 until
    /// the file has been looked at, and there are no slots.
    pub snapshot: Option<SnapshotName>,
    /// Whether a snapshot's clients share one slot: it is leased and stays ready.
    pub sharing: Sharing,
}

impl Key {
    /// Slots of zeros, on any node.
    pub const fn new(bytes: u64, pages: PageKind) -> Key {
        Key { bytes, pages, node: None, snapshot: None, sharing: Sharing::Alone }
    }

    /// The same with a snapshot's content.
    pub const fn of_snapshot(self, snapshot: SnapshotName, sharing: Sharing) -> Key {
        Key { snapshot: Some(snapshot), sharing, ..self }
    }

    /// Whether both are of one class.
    pub fn is_of(&self, other: &Key) -> bool {
        self.class() == other.class()
    }

    /// The same for all keys of one class.
    pub fn class(&self) -> Key {
        match self.snapshot {
            Some(snapshot) => Key::new(0, PageKind::Small).of_snapshot(snapshot, Sharing::Alone),
            None => *self,
        }
    }
}

/// A populated slot that is not leased, or is shared.
#[derive(Debug)]
pub struct ReadySlot {
    /// Its file.
    pub file: Backing,
    /// Bytes of it in huge pages.
    pub huge_bytes: u64,
    /// The version of the snapshot that it has.
    pub version: Option<Version>,
}

/// A client that waits: its connection's number.
pub type Token = u64;

/// All classes.
#[derive(Debug, Default)]
pub struct Pool {
    classes: Vec<Class>,
    tags: Tags,
    share_percent: Option<u32>,
    out_of_order: u64,
}

/// One class.
#[derive(Debug)]
pub struct Class {
    /// The properties of its slots.
    pub key: Key,
    wanted: u32,
    ready: VecDeque<ReadySlot>,
    populating: u32,
    leased: u32,
    /// Leases of a shared slot, of this version or an older one.
    sharers: u32,
    /// Slots that are kept for tickets, ready or not, and that nobody has.
    reserved: u32,
    /// Clients that have shown a ticket and wait, in the order they came. Each has one of those reserved.
    shown: VecDeque<Token>,
    /// Of those leased, whose memory is going.
    ending: u32,
    waiting: WaitQueue,
    /// Of those that wait, clients that wait for a look only: no slot is made sooner for them.
    looking: Vec<Token>,
    owed: Owed,
    /// No new attempt before this, after one that failed or a change of the snapshot's file.
    retry_at: Option<Instant>,
}

impl Pool {
    /// Changes the number of slots. Surplus slots go at once if they are ready, else when their leases end. Returns the
    /// slots to end.
    pub fn configure(&mut self, wanted: &[(Key, u32)]) -> Vec<ReadySlot> {
        let mut ended = Vec::new();
        for class in &mut self.classes {
            class.wanted = 0;
            class.retry_at = None;
        }
        for &(key, count) in wanted {
            match self.classes.iter_mut().find(|class| class.key.is_of(&key)) {
                Some(class) => {
                    if class.key != key {
                        ended.extend(class.ready.drain(..));
                    }
                    (class.key, class.wanted) = (key, count);
                }
                None => self.classes.push(Class::new(key, count)),
            }
        }
        self.classes.iter_mut().for_each(Class::settle);
        self.classes.sort_by_key(|class| class.key);
        ended.extend(self.classes.iter_mut().flat_map(Class::take_surplus));
        self.drop_unused();
        ended
    }

    /// The share of a class, in percent, that may be still to be populated in place of slots that one tenant has
    /// ended: a tenant above it takes no ready slot. `None` for no limit.
    pub fn set_share(&mut self, percent: Option<u32>) {
        self.share_percent = percent;
    }

    /// Grants that went before another user's earlier request.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// The classes, smallest first.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The sizes that requests can name, each once.
    pub fn sizes(&self) -> Vec<u64> {
        let offered = self.classes.iter().filter(|class| class.is_offered_by_size());
        let mut sizes: Vec<_> = offered.map(|class| class.key.bytes).collect();
        sizes.dedup();
        sizes
    }

    /// The class that serves a request: of those that are large enough the smallest, and among several of
    /// that size one with a ready slot.
    pub fn find(&self, bytes: u64, pages: Option<PageKind>) -> Result<Key, Reason> {
        let offered = || self.classes.iter().filter(|class| class.is_offered_by_size());
        if offered().all(|class| class.key.bytes < bytes) {
            return Err(Reason::TooLarge);
        }
        let fits = |class: &&Class| {
            class.key.bytes >= bytes && pages.is_none_or(|pages| class.key.pages == pages)
        };
        let order =
            |class: &&Class| (class.key.bytes, !class.has_free(), class.waiting.len(), class.key);
        let best = offered().filter(fits).min_by_key(order);
        best.map(|class| class.key).ok_or(Reason::NoSuchPages)
    }

    /// The class of a snapshot's slots.
    pub fn find_snapshot(&self, name: SnapshotName) -> Option<Key> {
        let mut offered = self.classes.iter().filter(|class| class.wanted > 0);
        offered.find(|class| class.key.snapshot == Some(name)).map(|class| class.key)
    }

    /// A snapshot's file is of this version, and its slots of this size; of none if it can't be read. Returns the ready
    /// slots that are of another.
    pub fn renew(&mut self, key: Key, version: Option<Version>) -> Vec<ReadySlot> {
        let Some(class) = self.class_mut(key) else { return Vec::new() };
        class.key = key;
        let (fresh, stale) =
            class.ready.drain(..).partition(|slot| version.is_some() && slot.version == version);
        class.ready = fresh;
        self.classes.sort_by_key(|class| class.key);
        Vec::from(stale)
    }

    /// Takes a ready slot out, which is leased from now on. Clients that wait come first.
    pub fn take(&mut self, key: Key, token: Token, taker: Taker) -> Option<ReadySlot> {
        let class = self.classes.iter().find(|class| class.key.is_of(&key))?;
        let next = class.next(&self.tags, self.share_percent, |_| true);
        let is_next = next.is_none_or(|(next, _)| next == token);
        if !class.has_free() || !is_next || class.holds_back(taker, self.share_percent) {
            return None;
        }
        self.hand_out(key, token, taker)
    }

    /// Takes a ready slot out for the next of the clients that wait and may have it now.
    pub fn take_next(
        &mut self,
        key: Key,
        may: impl Fn(Token) -> bool,
    ) -> Option<(Token, ReadySlot)> {
        let class = self.classes.iter().find(|class| class.key.is_of(&key))?;
        let (token, taker) = class.next(&self.tags, self.share_percent, may)?;
        Some((token, self.hand_out(key, token, taker)?))
    }

    fn hand_out(&mut self, key: Key, token: Token, taker: Taker) -> Option<ReadySlot> {
        let class = self.classes.iter_mut().find(|class| class.key.is_of(&key))?;
        let slot = match class.key.sharing {
            Sharing::Alone => class.ready.pop_front()?,
            Sharing::Shared => class.ready.front()?.share()?,
        };
        if let Some(index) = class.shown.iter().position(|&other| other == token) {
            class.shown.remove(index);
            class.reserved = class.reserved.saturating_sub(1);
        }
        let precedence = class.waiting.serve(token);
        class.looking.retain(|&other| other != token);
        if class.key.sharing == Sharing::Shared {
            // It is taken from nobody.
            class.sharers += 1;
            return Some(slot);
        }
        if precedence == Precedence::Turn {
            self.out_of_order += 1;
        }
        class.leased += 1;
        self.tags.charge(taker.user, key.bytes);
        Some(slot)
    }

    /// Whether a ready slot is there that the client may not have now, as it has ended its share of them.
    pub fn holds_back(&self, key: Key, taker: Taker) -> bool {
        let class = self.classes.iter().find(|class| class.key.is_of(&key));
        class.is_some_and(|class| class.has_free() && class.holds_back(taker, self.share_percent))
    }

    /// Adds a client that waits for a slot of the class.
    pub fn wait(&mut self, key: Key, token: Token, taker: Taker) {
        if let Some(class) = self.class_mut(key) {
            class.waiting.push(token, taker);
        }
    }

    /// The same of one that takes a slot only if it is ready when the snapshot's file has been looked at.
    pub fn wait_for_look(&mut self, key: Key, token: Token, taker: Taker) {
        self.wait(key, token, taker);
        if let Some(class) = self.class_mut(key) {
            class.looking.push(token);
        }
    }

    /// Removes a waiting client.
    pub fn forget(&mut self, key: Key, token: Token) {
        if let Some(class) = self.class_mut(key) {
            class.waiting.remove(token);
            class.shown.retain(|&other| other != token);
            class.looking.retain(|&other| other != token);
        }
        self.drop_unused();
    }

    /// Reserves a slot: of those that are large enough and have one to give, one of the smallest.
    pub fn reserve(
        &mut self,
        bytes: u64,
        pages: Option<PageKind>,
        node: Option<u32>,
    ) -> Result<Key, Reason> {
        let mut offered = self.classes.iter_mut().filter(|class| class.is_offered_by_size());
        let fits = |class: &&mut Class| {
            let is_meant = pages.is_none_or(|pages| class.key.pages == pages)
                && (node.is_none() || class.key.node == node);
            class.key.bytes >= bytes && is_meant
        };
        let Some(first) = offered.find(fits) else { return Err(Reason::NoSuchPages) };
        let bytes = first.key.bytes;
        let same = [first].into_iter().chain(offered.filter(fits));
        let mut same = same.take_while(|class| class.key.bytes == bytes);
        let class = same.find(|class| class.promised() < class.wanted).ok_or(Reason::NoneFree)?;
        class.reserved += 1;
        Ok(class.key)
    }

    /// A slot that a ticket's client has had is reserved again.
    pub fn reserve_again(&mut self, key: Key) {
        if let Some(class) = self.class_mut(key) {
            class.reserved += 1;
        }
    }

    /// A slot is reserved no more. A client that has shown its ticket was [forgotten](Pool::forget) before.
    pub fn unreserve(&mut self, key: Key) {
        if let Some(class) = self.class_mut(key) {
            class.reserved = class.reserved.saturating_sub(1);
        }
        self.drop_unused();
    }

    /// Reservations of a class that it has no slots for: it was made smaller.
    pub fn overbooked(&self, key: Key) -> u32 {
        let class = self.classes.iter().find(|class| class.key.is_of(&key));
        class.map_or(u32::MAX, |class| class.promised().saturating_sub(class.wanted))
    }

    /// Slots that are reserved and that nobody has.
    pub fn reserved(&self) -> u32 {
        self.classes.iter().map(|class| class.reserved).sum()
    }

    /// A client that has shown a ticket waits for its slot, ahead of all without one.
    pub fn wait_with_ticket(&mut self, key: Key, token: Token) {
        if let Some(class) = self.class_mut(key) {
            class.shown.push_back(token);
        }
    }

    /// The next client that waits for a slot of the class and can have one.
    pub fn served_next(&self, key: Key) -> Option<Token> {
        let class = self.classes.iter().find(|class| class.key.is_of(&key))?;
        let next = class.next(&self.tags, self.share_percent, |_| true);
        next.filter(|_| !class.ready.is_empty()).map(|(token, _)| token)
    }

    /// A lease of another daemon's is counted among these; the slots that are too many then are returned.
    /// `None` if there is no such class. (One that was reserved for a ticket is [unreserved](Pool::unreserve).)
    pub fn adopt(&mut self, key: Key) -> Option<Vec<ReadySlot>> {
        let class = self.class_mut(key)?;
        class.leased += 1;
        Some(class.take_surplus())
    }

    /// A user ends a leased slot: its memory is going.
    pub fn ending(&mut self, key: Key, user: u32) {
        // No other is populated in place of a shared one.
        if let Some(class) = self.class_mut(key).filter(|_| key.sharing == Sharing::Alone) {
            class.ending += 1;
            class.owed.push(user);
            class.settle();
        }
    }

    /// A leased slot's memory is gone, or a shared one has a lessee less.
    pub fn ended(&mut self, key: Key) {
        let Some(class) = self.class_mut(key) else { return };
        if key.sharing == Sharing::Shared {
            class.sharers = class.sharers.saturating_sub(1);
        } else {
            class.ending = class.ending.saturating_sub(1);
            class.leased = class.leased.saturating_sub(1);
            class.settle();
        }
        self.drop_unused();
    }

    /// The class of which a slot should be populated next, which is noted as begun: the one that lacks the largest part
    /// of its slots, else the smaller.
    pub fn begin(&mut self, now: Instant) -> Option<Key> {
        let order = |class: &&mut Class| {
            let share = u64::from(class.missing()) * 1_000_000 / u64::from(class.wanted.max(1));
            (share, std::cmp::Reverse(class.key))
        };
        let class = self.classes.iter_mut().filter(|class| class.lacks(now)).max_by_key(order)?;
        class.populating += 1;
        Some(class.key)
    }

    /// A class for which more clients wait than slots are being populated; another one is noted as begun.
    pub fn begin_urgent(&mut self, now: Instant) -> Option<Key> {
        let is_short =
            |class: &&mut Class| class.lacks(now) && class.waited_for() > class.populating as usize;
        let class = self.classes.iter_mut().find(is_short)?;
        class.populating += 1;
        Some(class.key)
    }

    /// Classes whose rest is over are as all others; they are tried where there is room for them.
    pub fn pass_retries(&mut self, now: Instant) {
        for class in &mut self.classes {
            class.retry_at = class.retry_at.filter(|&retry_at| retry_at > now);
        }
    }

    /// When a class that could not be populated is to be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        let lacking = self.classes.iter().filter(|class| class.missing() > 0);
        lacking.filter_map(|class| class.retry_at).min()
    }

    /// A slot is populated. It comes back if it is not wanted any more.
    pub fn populated(&mut self, key: Key, slot: ReadySlot) -> Option<ReadySlot> {
        let Some(class) = self.class_mut(key) else { return Some(slot) };
        class.populating = class.populating.saturating_sub(1);
        class.retry_at = None;
        let is_old = class.key != key;
        if class.in_all() >= class.wanted || is_old {
            self.drop_unused();
            return Some(slot);
        }
        class.ready.push_back(slot);
        class.settle();
        None
    }

    /// A slot could not be populated; its class is tried again then.
    pub fn failed(&mut self, key: Key, retry_at: Instant) {
        if let Some(class) = self.class_mut(key) {
            class.populating = class.populating.saturating_sub(1);
            class.retry_at = class.retry_at.max(Some(retry_at));
        }
        self.drop_unused();
    }

    /// No slot of a class is begun before this.
    pub fn rest_until(&mut self, key: Key, until: Instant) {
        if let Some(class) = self.class_mut(key) {
            class.retry_at = Some(until);
        }
    }

    /// Slots ready, and wanted to be ready as far as leases leave any.
    pub fn readiness(&self) -> (u32, u32) {
        let ready = self.classes.iter().map(|class| class.ready.len() as u32).sum();
        let free = |class: &Class| match class.key.sharing {
            Sharing::Alone => class.wanted.saturating_sub(class.leased),
            Sharing::Shared => class.wanted,
        };
        (ready, self.classes.iter().map(free).sum())
    }

    /// Whether a shared slot is ready: leased or not, its memory is the daemon's.
    pub fn has_ready(&self, id: u64) -> bool {
        let mut ready = self.classes.iter().flat_map(|class| &class.ready);
        ready.any(|slot| slot.file.shared().is_some_and(|file| file.id() == id))
    }

    /// Bytes that are ready.
    pub fn ready_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.ready.len() as u64 * class.key.bytes).sum()
    }

    fn class_mut(&mut self, key: Key) -> Option<&mut Class> {
        self.classes.iter_mut().find(|class| class.key.is_of(&key))
    }

    /// Forgets classes that are wanted no more and of which nothing is left.
    fn drop_unused(&mut self) {
        self.classes.retain(|class| {
            let there = class.leased + class.sharers + class.reserved + class.ready.len() as u32;
            class.wanted > 0 || there + class.populating > 0 || class.waiting.len() > 0
        });
    }
}

impl ReadySlot {
    /// For another lessee, if it is shared.
    fn share(&self) -> Option<ReadySlot> {
        let (huge_bytes, version) = (self.huge_bytes, self.version);
        Some(ReadySlot { file: self.file.share()?, huge_bytes, version })
    }
}

impl Class {
    fn new(key: Key, wanted: u32) -> Class {
        Class {
            key,
            wanted,
            ready: VecDeque::new(),
            populating: 0,
            leased: 0,
            sharers: 0,
            reserved: 0,
            shown: VecDeque::new(),
            ending: 0,
            owed: Owed::default(),
            waiting: WaitQueue::default(),
            looking: Vec::new(),
            retry_at: None,
        }
    }

    /// Whether there are to be any.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    fn is_offered_by_size(&self) -> bool {
        self.wanted > 0 && self.key.snapshot.is_none()
    }

    /// Those that count as wanted ones. A shared one is wanted once, whoever has it or an older one.
    fn in_all(&self) -> u32 {
        let ready = self.ready.len() as u32;
        match self.key.sharing {
            Sharing::Alone => self.leased + ready,
            Sharing::Shared => ready,
        }
    }

    /// Slots that are leased and stay so, and those that are reserved.
    fn promised(&self) -> u32 {
        self.leased.saturating_sub(self.ending) + self.reserved
    }

    /// Whether a slot is ready that is kept for no ticket.
    fn has_free(&self) -> bool {
        self.ready.len() > self.reserved as usize
    }

    fn missing(&self) -> u32 {
        if self.key.bytes == 0 {
            return 0;
        }
        self.wanted.saturating_sub(self.in_all() + self.populating)
    }

    /// The next of the clients that wait and may have a slot now: those with tickets first, and others only if a slot
    /// is kept for no ticket.
    fn next(
        &self,
        tags: &Tags,
        share_percent: Option<u32>,
        may: impl Fn(Token) -> bool,
    ) -> Option<(Token, Taker)> {
        if let Some(&token) = self.shown.front() {
            return Some((token, Taker::OF_A_TICKET));
        }
        let may_have = |token, taker| !self.holds_back(taker, share_percent) && may(token);
        self.waiting.next(tags, may_have).filter(|_| self.has_free())
    }

    /// Whether ready slots are left to others for now. Of the smallest class one slot is everybody's share.
    fn holds_back(&self, taker: Taker, share_percent: Option<u32>) -> bool {
        let is_held = taker.rank == Rank::Tenant && self.key.sharing == Sharing::Alone;
        let Some(percent) = share_percent.filter(|_| is_held) else { return false };
        let share = u64::from(self.wanted) * u64::from(percent) / 100;
        self.owed.of(taker.user) as u64 >= share.max(1)
    }

    /// Slots that are populated are owed no more.
    fn settle(&mut self) {
        // Those that lack also where the size is not known yet.
        let missing = self.wanted.saturating_sub(self.in_all()).max(self.populating) + self.ending;
        self.owed.keep_last(missing as usize);
    }

    fn lacks(&self, now: Instant) -> bool {
        self.missing() > 0 && self.retry_at.is_none_or(|retry_at| retry_at <= now)
    }

    /// Slots that clients wait for and that are not ready.
    pub fn waited_for(&self) -> usize {
        let waiting = self.waiting.len().saturating_sub(self.looking.len()) + self.shown.len();
        // Those kept for tickets that nobody has shown yet are nobody's here.
        let kept = (self.reserved as usize).saturating_sub(self.shown.len());
        match self.key.sharing {
            Sharing::Alone => waiting.saturating_sub(self.ready.len().saturating_sub(kept)),
            Sharing::Shared => waiting.min(1).saturating_sub(self.ready.len()),
        }
    }

    fn take_surplus(&mut self) -> Vec<ReadySlot> {
        let surplus = self.in_all().saturating_sub(self.wanted) as usize;
        let surplus = surplus.min(self.ready.len());
        self.ready.drain(..surplus).collect()
    }

    /// The class as clients see it; `populating_bytes` are those populated of the slots in the making.
    pub fn row(&self, populating_bytes: u64) -> ClassRow {
        ClassRow {
            bytes: self.key.bytes,
            pages: self.key.pages,
            node: self.key.node,
            wanted: self.wanted,
            ready: self.ready.len() as u32,
            populating: self.populating,
            populating_bytes,
            huge_bytes: self.ready.iter().map(|slot| slot.huge_bytes).sum(),
            leased: self.leased + self.sharers,
            waiting: (self.waiting.len() + self.shown.len()) as u32,
        }
    }
}

#[cfg(test)]
mod tests;
