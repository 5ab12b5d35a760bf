//! Threads that end slots which were given up half-way.
//!
//! That is no work for the event loop: gigabytes take a second to free, and closing a file of FUSE or of a network can
//! take as long as its server pleases. There is one thread for the slots, whose memory nothing holds up, and one for
//! each file that they get their content from, for as long as there is something to close. So a file whose server does
//! not answer keeps descriptors only, and holds up no other file's.

use std::any::Any;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

/// The file that slots get their content from; none for the slots themselves.
type Owner = Option<Arc<Path>>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Closer(Mutex<HashMap<Owner, Queue>>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Box<dyn Any + Send>>,
    has_thread: bool,
}

impl Closer {
    /// Has a thread end it. Without one, as where there may be no other, it stays until the next comes.
    pub fn close(self: &Arc<Closer>, owner: Owner, ended: impl Any + Send) {
        let mut queues = self.0.lock();
        queues.entry(owner).or_default().waiting.push(Box::new(ended));
        for (owner, queue) in queues.iter_mut().filter(|(_, queue)| !queue.has_thread) {
            let (closer, owner) = (Arc::clone(self), owner.clone());
            let started = thread::Builder::new().name("pumice-close".into()).spawn(move || {
                while let Some(ended) = closer.next(&owner) {
                    drop(ended);
                }
            });
            queue.has_thread = started.is_ok();
        }
    }

    /// The next to end; the thread ends where there is none.
    fn next(&self, owner: &Owner) -> Option<Box<dyn Any + Send>> {
        let mut queues = self.0.lock();
        let ended = queues.get_mut(owner).and_then(|queue| queue.waiting.pop());
        if ended.is_none() {
            queues.remove(owner);
        }
        ended
    }
}
