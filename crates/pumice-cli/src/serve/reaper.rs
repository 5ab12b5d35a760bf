//! The thread that ends slots: truncating gigabytes of small pages takes long, and closing what a client
//! sent as long as the client pleases.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread;

use pumice::slots::SlotFile;

use super::server::{ring, Event};

/// What is to go.
#[derive(Debug)]
enum Corpse {
    /// A leased slot, by its lease's number.
    Leased(u64, SlotFile),
    /// A slot that was never leased.
    Unused(SlotFile),
    /// Something that a client sent.
    Foreign(OwnedFd),
}

/// The thread.
#[derive(Debug)]
pub struct Reaper {
    corpses: Sender<Corpse>,
    foreign: Sender<Corpse>,
}

impl Reaper {
    /// Starts it: two threads, so that what clients send holds up no slot.
    pub fn start(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> io::Result<Reaper> {
        Ok(Reaper {
            corpses: start_thread(events.clone(), Arc::clone(waker))?,
            foreign: start_thread(events.clone(), Arc::clone(waker))?,
        })
    }

    /// Truncates a slot whose lease has ended, and says so by [`Event::Ended`].
    pub fn end(&self, lease: u64, file: SlotFile) {
        // The thread lives as long as this does.
        let _ = self.corpses.send(Corpse::Leased(lease, file));
    }

    /// Truncates a slot that nobody had.
    pub fn discard(&self, file: SlotFile) {
        let _ = self.corpses.send(Corpse::Unused(file));
    }

    /// Closes something that a client sent.
    pub fn close(&self, descriptor: OwnedFd) {
        let _ = self.foreign.send(Corpse::Foreign(descriptor));
    }
}

fn start_thread(events: Sender<Event>, waker: Arc<OwnedFd>) -> io::Result<Sender<Corpse>> {
    let (send, receive) = channel();
    thread::Builder::new().name("pumice-reap".into()).spawn(move || {
        for corpse in receive {
            match corpse {
                Corpse::Leased(lease, file) => {
                    // No seal forbids it and no limit holds for it: it can't fail.
                    let outcome = file.end();
                    if events.send(Event::Ended(lease, outcome.err())).is_err() {
                        return;
                    }
                    ring(&waker);
                }
                Corpse::Unused(file) => drop(file.end()),
                Corpse::Foreign(descriptor) => drop(descriptor),
            }
        }
    })?;
    Ok(send)
}
