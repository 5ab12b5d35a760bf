//! The threads that end slots: truncating gigabytes of small pages takes long, and a client can make it,
//! or closing what it sent, take as long as it pleases.
//!
//! A tenant that writes to its slot from memory whose faults nobody answers (a FUSE file, a
//! userfaultfd) has the inode's lock all that time, and truncating waits for it where no signal is heard.
//! A socket that lingers holds up whoever closes it last, and so does a packet that carries one in
//! the queue of a socket that is closed. So nothing of this is done by the event loop, and a thread
//! that is held up leaves another behind it to go on: it holds up nobody else's slots.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use pumice::slots::{socket, SlotFile};
use rustix::net::{shutdown, sockopt, Shutdown};

use super::server::{ring, Event};

/// Threads that wait for work rather than end.
const KEPT_IDLE: usize = 2;
/// The most threads of a crew.
const MOST_THREADS: usize = 256;

/// What is to go.
#[derive(Debug)]
enum Corpse {
    /// A leased slot, by its lease's number.
    Leased(u64, SlotFile),
    /// A slot that was never leased.
    Unused(SlotFile),
    /// Something that a client sent.
    Foreign(OwnedFd),
    /// A client's connection, and what is in it unread.
    Connection(OwnedFd),
}

/// Two crews, so that what clients send holds up no slot.
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
    queue: VecDeque<Corpse>,
    threads: usize,
    idle: usize,
}

impl Reaper {
    /// Starts the first threads.
    pub fn start(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> io::Result<Reaper> {
        Ok(Reaper { slots: Crew::start(events, waker)?, foreign: Crew::start(events, waker)? })
    }

    /// Truncates a slot whose lease has ended, and says so by [`Event::Ended`].
    pub fn end(&self, lease: u64, file: SlotFile) {
        self.slots.take(Corpse::Leased(lease, file));
    }

    /// Truncates a slot that nobody had.
    pub fn discard(&self, file: SlotFile) {
        self.slots.take(Corpse::Unused(file));
    }

    /// Closes something that a client sent.
    pub fn close(&self, descriptor: OwnedFd) {
        self.foreign.take(Corpse::Foreign(descriptor));
    }

    /// Closes a connection. The client sees it closed at once.
    pub fn hang_up(&self, socket: OwnedFd) {
        // Nothing more can be sent to it either.
        let _ = shutdown(&socket, Shutdown::Both);
        self.foreign.take(Corpse::Connection(socket));
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, corpse: Corpse) {
        self.state().queue.push_back(corpse);
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
            let Some(corpse) = state.queue.pop_front() else {
                if state.idle >= KEPT_IDLE {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let leaves_nobody = state.idle == 0 && state.threads < MOST_THREADS;
            drop(state);
            if leaves_nobody {
                // Without it, what comes next waits for this one.
                let _ = self.add_thread();
            }
            self.bury(corpse);
            state = self.state();
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
