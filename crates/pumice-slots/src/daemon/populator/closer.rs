//! Threads that end slots which were given up half-way.
//!
//! That is no work for the event loop: gigabytes take a second to free, and closing a file of FUSE or of a network can
//! take as long as its server pleases. There is one thread for each file, for as long as there is something to close,
//! so a file whose server does not answer holds up nobody else's slots. Memory goes first: the thread that is held up
//! keeps descriptors only.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::job::Work;

/// The file that slots get their content from, if there is one.
type Owner = Option<Arc<Path>>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Closer(Mutex<HashMap<Owner, Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Work>,
    thread: Option<thread::Thread>,
}

impl Closer {
    /// Has a thread end it. Without one, as where there may be no other, it stays until the next comes.
    pub fn close(self: &Arc<Closer>, owner: Owner, work: Work) {
        let mut queues = self.0.lock();
        let queue = queues.entry(owner.clone()).or_default();
        queue.waiting.push(work);
        if queue.thread.is_some() {
            return;
        }
        let closer = Arc::clone(self);
        let started = thread::Builder::new().name("pumice-close".into()).spawn(move || {
            while let Some(work) = closer.next(&owner) {
                drop(work);
            }
        });
        queue.thread = started.ok().map(|started| started.thread().clone());
    }

    /// The next to end; the thread ends where there is none.
    fn next(&self, owner: &Owner) -> Option<Work> {
        let mut queues = self.0.lock();
        let work = queues.get_mut(owner).and_then(|queue| queue.waiting.pop());
        if work.is_none() {
            queues.remove(owner);
        }
        work
    }
}
