//! The order of users that wait.
//!
//! A slot's cost is its populating, so users share that: each has a *tag*, which grows by the slots that it is
//! granted, of all classes, waited for or not, and of the users that wait, the one with the lowest tag comes next. This
//! is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). The *present* is the tag at which the last slot
//! was granted, and nobody's tag is below it: a user that asked for nothing has saved up nothing, and one that was
//! alone owes for its last slot only. So a user that takes slots and ends them again and again comes after all users
//! that have had less meanwhile, and a user waits at most while others with lower tags have their turns.
//!
//! A limit on the rate of leases was not chosen: it would hold up a user that has no competitor, or be too high to
//! help the others.
//!
//! Of users with equal tags, the one served longest ago in this class comes first, then the one that came first. So
//! users take turns in a class also where a large slot of another class has moved the present past all of their tags.

use std::collections::{HashMap, VecDeque};

use super::pool::Token;

/// Tags are in pages of 4 KiB, so that no daemon lives to see them overflow.
const PAGE_BYTES: u64 = 4 << 10;

/// A client that asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taker {
    /// The user.
    pub user: u32,
    /// Whether slots may be kept from it.
    pub rank: Rank,
}

impl Taker {
    /// A client that shows a ticket. The slot was reserved for it, so it is charged to no user: this number is none's.
    pub const OF_A_TICKET: Taker = Taker { user: u32::MAX, rank: Rank::Master };
}

/// The rights of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Root, and the daemon's user: they could end the daemon as well.
    Master,
    /// All others.
    Tenant,
}

/// The tags.
#[derive(Debug, Default)]
pub struct Tags {
    /// Those above the present.
    ahead: HashMap<u32, u64>,
    present: u64,
}

impl Tags {
    fn of(&self, user: u32) -> u64 {
        self.ahead.get(&user).copied().unwrap_or(self.present)
    }

    /// A slot is granted.
    pub fn charge(&mut self, user: u32, bytes: u64) {
        let start = self.of(user);
        self.present = start;
        self.ahead.insert(user, start + bytes.div_ceil(PAGE_BYTES));
        self.ahead.retain(|_, tag| *tag > start);
    }
}

/// The clients that wait for slots of one class, as they came.
#[derive(Debug, Default)]
pub struct WaitQueue {
    waiters: VecDeque<(Token, Taker)>,
    /// Users that were served since nobody waited, and how many grants ago the queue began with it.
    served: HashMap<u32, u64>,
    grants: u64,
}

/// Whether a grant went to the client that came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// It did, or nobody else waited.
    Came,
    /// Another user came later and had had less.
    Turn,
}

impl WaitQueue {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Adds a waiting client.
    pub fn push(&mut self, token: Token, taker: Taker) {
        self.waiters.push_back((token, taker));
    }

    /// The next client of those that may have one.
    pub fn next(&self, tags: &Tags, may: impl Fn(Token, Taker) -> bool) -> Option<(Token, Taker)> {
        // Of several that are equal the first.
        let order = |(_, taker): &&(Token, Taker)| {
            let user = taker.user;
            (tags.of(user), self.served.get(&user).copied().unwrap_or(0))
        };
        let waiters = self.waiters.iter().filter(|(token, taker)| may(*token, *taker));
        waiters.min_by_key(order).copied()
    }

    /// Removes a waiting client.
    pub fn remove(&mut self, token: Token) -> Option<Taker> {
        let index = self.waiters.iter().position(|&(other, _)| other == token)?;
        let (_, taker) = self.waiters.remove(index)?;
        if self.waiters.is_empty() {
            self.served.clear();
        }
        Some(taker)
    }

    /// A slot goes to this waiter, if it is one.
    pub fn serve(&mut self, token: Token) -> Precedence {
        let first = self.waiters.front().copied();
        let Some(taker) = self.remove(token) else { return Precedence::Came };
        if !self.waiters.is_empty() {
            self.grants += 1;
            self.served.insert(taker.user, self.grants);
        }
        match first {
            Some((_, before)) if before.user != taker.user => Precedence::Turn,
            _ => Precedence::Came,
        }
    }
}

/// Slots that users have ended and that are not populated again, oldest first. The next one that is populated pays for
/// the oldest.
#[derive(Debug, Default)]
pub struct Owed(VecDeque<u32>);

impl Owed {
    /// A user ends a slot.
    pub fn push(&mut self, user: u32) {
        self.0.push_back(user);
    }

    /// So many are to be populated yet.
    pub fn keep_last(&mut self, missing: usize) {
        let paid = self.0.len().saturating_sub(missing);
        self.0.drain(..paid);
    }

    /// How many of them are a user's.
    pub fn of(&self, user: u32) -> usize {
        self.0.iter().filter(|&&other| other == user).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT_BYTES: u64 = 64 << 10;

    fn tenant(user: u32) -> Taker {
        Taker { user, rank: Rank::Tenant }
    }

    /// The next one's token, and it is served.
    fn serve(queue: &mut WaitQueue, tags: &mut Tags, bytes: u64) -> Token {
        let (next, taker) = queue.next(tags, |_, _| true).expect("somebody waits");
        tags.charge(taker.user, bytes);
        queue.serve(next);
        next
    }

    #[test]
    fn users_take_turns() {
        let (mut queue, mut tags) = (WaitQueue::default(), Tags::default());
        let served = |queue: &mut WaitQueue, tags: &mut Tags| serve(queue, tags, SLOT_BYTES);
        (0..4).for_each(|token| queue.push(token, tenant(1)));
        assert_eq!(served(&mut queue, &mut tags), 0);
        // One that comes back again and again has every other slot, not all.
        queue.push(10, tenant(2));
        assert_eq!(served(&mut queue, &mut tags), 10);
        queue.push(11, tenant(2));
        assert_eq!([(); 3].map(|()| served(&mut queue, &mut tags)), [1, 11, 2]);
        assert_eq!(served(&mut queue, &mut tags), 3);
        assert!(queue.served.is_empty(), "nobody waits: all begin anew");
    }

    #[test]
    fn what_was_taken_without_waiting_counts() {
        let (mut queue, mut tags) = (WaitQueue::default(), Tags::default());
        (0..100).for_each(|_| tags.charge(1, SLOT_BYTES));
        (0..4).for_each(|token| queue.push(token, tenant(1)));
        queue.push(10, tenant(2));
        queue.push(11, tenant(2));
        let order = [(); 6].map(|()| serve(&mut queue, &mut tags, SLOT_BYTES));
        // It comes after the other, but not after a hundred of the other's.
        assert_eq!(order, [10, 0, 11, 1, 2, 3]);
    }

    #[test]
    fn a_large_slot_counts_as_much_as_many_small_ones() {
        let (mut small, mut tags) = (WaitQueue::default(), Tags::default());
        (0..8).for_each(|token| small.push(token, tenant(1)));
        (10..18).for_each(|token| small.push(token, tenant(2)));
        tags.charge(1, 4 * SLOT_BYTES);
        let order = [(); 6].map(|()| serve(&mut small, &mut tags, SLOT_BYTES));
        assert_eq!(order, [10, 11, 12, 13, 0, 14]);
    }

    /// A third user's grants elsewhere move the present past the tags of those who wait here.
    #[test]
    fn users_take_turns_whatever_others_are_granted() {
        let (mut queue, mut tags) = (WaitQueue::default(), Tags::default());
        (0..4).for_each(|token| queue.push(token, tenant(1)));
        (10..14).for_each(|token| queue.push(token, tenant(2)));
        let order = [(); 6].map(|()| {
            (0..2).for_each(|_| tags.charge(3, 100 * SLOT_BYTES));
            serve(&mut queue, &mut tags, SLOT_BYTES)
        });
        assert_eq!(order, [0, 10, 1, 11, 2, 12]);
        assert!(tags.ahead.len() <= 3);
    }

    #[test]
    fn what_is_populated_pays_for_what_was_ended_first() {
        let mut owed = Owed::default();
        [1, 2, 1].into_iter().for_each(|user| owed.push(user));
        assert_eq!((owed.of(1), owed.of(2)), (2, 1));
        owed.keep_last(2);
        assert_eq!((owed.of(1), owed.of(2)), (1, 1));
        owed.keep_last(0);
        assert_eq!((owed.of(1), owed.of(2)), (0, 0));
    }
}
