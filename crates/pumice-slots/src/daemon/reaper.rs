//! The threads that end slots: truncating gigabytes of small pages takes long, and a client can make it,
//! or closing the descriptors that it sent, take as long as it pleases.
//!
//! A tenant that writes to its slot from memory whose faults nobody answers (a FUSE file, a
//! userfaultfd) has the inode's lock all that time, and truncating waits for it where no signal is heard.
//! A socket that lingers holds up the thread that closes it last, and so does a packet that carries one in
//! the queue of a socket that is closed. So nothing of this is done by the event loop, and a thread
//! that is held up leaves another behind it to go on: it holds up nobody else's slots. A user holds up
//! [`MOST_OF_A_USER`] threads at most, and users take turns.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::backing::Backing;
use crate::socket;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::net::{shutdown, sockopt, Shutdown};

use super::server::{ring, Event};

/// Threads that wait for work rather than end.
const KEPT_IDLE: usize = 2;
/// The most threads of a crew.
const MOST_THREADS: usize = 256;
/// The most threads that work on the slots and descriptors of one user.
const MOST_OF_A_USER: usize = 8;

/// The owner of something: a user, or the daemon itself.
pub type Owner = Option<u32>;

/// Work for a thread.
#[derive(Debug)]
enum Corpse {
    /// A leased slot, by its lease's number.
    Leased(u64, Backing),
    /// A slot that was never leased.
    Unused(Backing),
    /// A descriptor that a client sent.
    Foreign(OwnedFd),
    /// A client's connection, and its unread packets.
    Connection(OwnedFd),
}

/// Two crews, so that clients' descriptors hold up no slot.
#[derive(Debug)]
pub struct Reaper {
    slots: Arc<Crew>,
    foreign: Arc<Crew>,
}

/// Threads with one queue: as many as are held up, and a few that wait.
#[derive(Debug)]
struct Crew {
    state: Mutex<State>,
    has_work: Condvar,
    events: Sender<Event>,
    waker: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    queues: Queues<Corpse>,
    threads: usize,
    idle: usize,
}

/// A queue for each owner.
#[derive(Debug)]
struct Queues<T> {
    of: HashMap<Owner, OwnerQueue<T>>,
    /// An owner for each thing that may be begun now.
    turns: VecDeque<Owner>,
}

#[derive(Debug)]
struct OwnerQueue<T> {
    waiting: VecDeque<T>,
    /// Begun and not done.
    begun: usize,
    /// Times that the owner is among the turns.
    turns: usize,
}

impl<T> Default for Queues<T> {
    fn default() -> Queues<T> {
        Queues { of: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Queues<T> {
    fn push(&mut self, owner: Owner, thing: T) {
        let new = || OwnerQueue { waiting: VecDeque::new(), begun: 0, turns: 0 };
        let queue = self.of.entry(owner).or_insert_with(new);
        queue.waiting.push_back(thing);
        queue.take_turns(owner, &mut self.turns);
    }

    /// Takes the next thing to do. [`Queues::done`] is to be called after.
    fn begin(&mut self) -> Option<(Owner, T)> {
        let owner = self.turns.pop_front()?;
        let queue = self.of.get_mut(&owner)?;
        queue.turns -= 1;
        queue.begun += 1;
        queue.waiting.pop_front().map(|thing| (owner, thing))
    }

    fn done(&mut self, owner: Owner) {
        let Entry::Occupied(mut entry) = self.of.entry(owner) else { return };
        let queue = entry.get_mut();
        queue.begun -= 1;
        queue.take_turns(owner, &mut self.turns);
        if queue.begun == 0 && queue.waiting.is_empty() {
            entry.remove();
        }
    }

    /// How many items of an owner are not done.
    fn left(&self, owner: Owner) -> usize {
        self.of.get(&owner).map_or(0, |queue| queue.waiting.len() + queue.begun)
    }
}

impl<T> OwnerQueue<T> {
    fn take_turns(&mut self, owner: Owner, turns: &mut VecDeque<Owner>) {
        let most = if owner.is_some() { MOST_OF_A_USER } else { usize::MAX };
        while self.turns < self.waiting.len() && self.begun + self.turns < most {
            self.turns += 1;
            turns.push_back(owner);
        }
    }
}

impl Reaper {
    /// Starts the first threads.
    pub fn start(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> io::Result<Reaper> {
        Ok(Reaper { slots: Crew::start(events, waker)?, foreign: Crew::start(events, waker)? })
    }

    /// Truncates a slot that a user had leased, and reports that by [`Event::Ended`].
    pub fn end(&self, user: u32, lease: u64, file: Backing) {
        self.slots.take(Some(user), Corpse::Leased(lease, file));
    }

    /// Truncates a slot that was never leased.
    pub fn discard(&self, file: Backing) {
        self.slots.take(None, Corpse::Unused(file));
    }

    /// Waits until all slots that were never leased are truncated, but not for longer.
    pub fn finish(&self, most: Duration) {
        let until = Instant::now() + most;
        while self.slots.state().queues.left(None) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Closes a descriptor that a user sent.
    pub fn close(&self, user: u32, descriptor: OwnedFd) {
        self.foreign.take(Some(user), Corpse::Foreign(descriptor));
    }

    /// Closes a user's connection. The client sees it closed at once.
    pub fn hang_up(&self, user: u32, socket: OwnedFd) {
        // Nothing more can be sent to it either.
        let _ = shutdown(&socket, Shutdown::Both);
        self.foreign.take(Some(user), Corpse::Connection(socket));
    }

    /// How many descriptors and connections of all clients are not closed yet.
    pub fn unclosed_in_all(&self) -> usize {
        let state = self.foreign.state();
        state.queues.of.values().map(|queue| queue.waiting.len() + queue.begun).sum()
    }

    /// How many of a user's descriptors and connections are not closed yet.
    pub fn unclosed(&self, user: u32) -> usize {
        self.foreign.state().queues.left(Some(user))
    }
}

impl Crew {
    fn start(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> io::Result<Arc<Crew>> {
        let crew = Arc::new(Crew {
            state: Mutex::default(),
            has_work: Condvar::new(),
            events: events.clone(),
            waker: Arc::clone(waker),
        });
        for _ in 0..KEPT_IDLE {
            crew.add_thread()?;
        }
        Ok(crew)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn take(&self, owner: Owner, corpse: Corpse) {
        self.state().queues.push(owner, corpse);
        self.has_work.notify_one();
    }

    fn add_thread(self: &Arc<Crew>) -> io::Result<()> {
        self.state().threads += 1;
        let crew = Arc::clone(self);
        let started = thread::Builder::new().name("pumice-reap".into()).spawn(move || crew.work());
        if started.is_err() {
            self.state().threads -= 1;
        }
        started.map(drop)
    }

    fn work(self: Arc<Crew>) {
        let mut state = self.state();
        loop {
            let Some((owner, corpse)) = state.queues.begin() else {
                if state.idle >= KEPT_IDLE {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                self.has_work.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            let leaves_nobody = state.idle == 0 && state.threads < MOST_THREADS;
            drop(state);
            if leaves_nobody {
                // Without it, the next one waits for this one.
                let _ = self.add_thread();
            }
            self.bury(corpse);
            state = self.state();
            state.queues.done(owner);
        }
    }

    fn bury(&self, corpse: Corpse) {
        match corpse {
            Corpse::Leased(lease, file) => {
                // No seal forbids it and no limit holds for it: it can't fail.
                let outcome = file.end();
                // The event loop is gone when nobody listens.
                let _ = self.events.send(Event::Ended(lease, outcome.err()));
                ring(&self.waker);
            }
            Corpse::Unused(file) => drop(file.end()),
            Corpse::Foreign(descriptor) => close_at_once(descriptor),
            Corpse::Connection(socket) => {
                while let Ok(Some(packet)) = socket::receive(&socket) {
                    packet.descriptors.into_iter().for_each(close_at_once);
                }
            }
        }
    }
}

/// Closes it without lingering, if it is a socket that would. Files of FUSE are left that can take long.
fn close_at_once(descriptor: OwnedFd) {
    let _ = sockopt::set_socket_linger(&descriptor, None);
    drop(descriptor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_and_hold_up_nobody_else() {
        let mut queues = Queues::default();
        (0..20).for_each(|index| queues.push(Some(1), index));
        queues.push(Some(2), 100);
        (0..20).for_each(|index| queues.push(None, 200 + index));
        assert_eq!(queues.left(Some(1)), 20);
        let begun: Vec<_> = std::iter::from_fn(|| queues.begin()).collect();
        let of = |owner| begun.iter().filter(|(other, _)| *other == owner).count();
        assert_eq!((of(Some(1)), of(Some(2)), of(None)), (MOST_OF_A_USER, 1, 20));
        queues.done(Some(1));
        assert_eq!(queues.begin(), Some((Some(1), MOST_OF_A_USER)), "the next in its turn");
        assert_eq!(queues.begin(), None);
        begun.iter().for_each(|&(owner, _)| {
            queues.done(owner);
            while queues.begin().is_some() {}
        });
        assert_eq!((queues.left(Some(2)), queues.left(None)), (0, 0));
    }
}
