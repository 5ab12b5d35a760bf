//! Threads that look at snapshots' files, one for each path: a file system that does not answer holds up nobody else,
//! and never the event loop.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::server::{ring, Event};
use super::source::{self, Version};
use crate::ServeError;

/// A look at a file, by its thread's number.
#[derive(Debug)]
pub struct Look {
    /// The thread's number.
    pub watch: u64,
    /// The question that it answers. It began after this was asked, and after all those with lower numbers.
    pub number: u64,
    /// The version of the file, or why it can't be read.
    pub seen: Result<Version, ServeError>,
}

/// The event loop's part of a thread. Dropping it ends the thread, once the file system answers.
#[derive(Debug)]
pub struct Watch {
    /// Its number.
    pub id: u64,
    /// The file.
    pub path: Arc<Path>,
    /// The last question that was answered.
    pub answered: u64,
    asked: u64,
    desk: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    wanted: Mutex<Wanted>,
    has_changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    /// The last question. Several that come while the thread looks have one answer.
    number: u64,
    is_over: bool,
}

impl Watch {
    /// Starts the thread. Its answers go to `events`, and `waker` is rung.
    pub fn start(
        id: u64,
        path: Arc<Path>,
        events: &Sender<Event>,
        waker: &Arc<OwnedFd>,
    ) -> io::Result<Watch> {
        let desk = Arc::<Desk>::default();
        let (own, events, waker) = (Arc::clone(&desk), events.clone(), Arc::clone(waker));
        let file = Arc::clone(&path);
        thread::Builder::new().name("pumice-look".into()).spawn(move || {
            let mut answered = 0;
            loop {
                let mut wanted = own.wanted.lock();
                while wanted.number == answered && !wanted.is_over {
                    own.has_changed.wait(&mut wanted);
                }
                if wanted.is_over {
                    return;
                }
                answered = wanted.number;
                drop(wanted);
                let seen = source::look(&file);
                let look = Look { watch: id, number: answered, seen };
                if events.send(Event::Looked(look)).is_err() {
                    return;
                }
                ring(&waker);
            }
        })?;
        Ok(Watch { id, path, answered: 0, asked: 0, desk })
    }

    /// Asks for a look that begins from now on. Numbers of questions grow.
    pub fn ask(&mut self, number: u64) {
        self.asked = number;
        self.desk.wanted.lock().number = number;
        self.desk.has_changed.notify_one();
    }

    /// Whether a look is to come.
    pub fn is_busy(&self) -> bool {
        self.asked != self.answered
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.desk.wanted.lock().is_over = true;
        self.desk.has_changed.notify_one();
    }
}
