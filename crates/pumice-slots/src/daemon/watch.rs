//! Threads that look at snapshots' files, one for each path: a file system that does not answer holds up nobody else,
//! and never the event loop.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

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
    asked: u64,
    answered: u64,
    /// Since when there has been no answer, if there is one to come.
    waits_since: Option<Instant>,
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
        Ok(Watch { id, path, asked: 0, answered: 0, waits_since: None, desk })
    }

    /// Asks for a look that begins from now on. Numbers of questions grow.
    pub fn ask(&mut self, number: u64) {
        self.asked = number;
        self.waits_since.get_or_insert_with(Instant::now);
        self.desk.wanted.lock().number = number;
        self.desk.has_changed.notify_one();
    }

    /// Notes an answer. Returns the number of the question that was answered before.
    pub fn answer(&mut self, number: u64) -> u64 {
        self.waits_since = (number != self.asked).then(Instant::now);
        std::mem::replace(&mut self.answered, number)
    }

    /// How long the file system has not answered.
    pub fn waits(&self) -> Option<Duration> {
        self.waits_since.map(|since| since.elapsed())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.desk.wanted.lock().is_over = true;
        self.desk.has_changed.notify_one();
    }
}
