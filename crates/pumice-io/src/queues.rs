//! Engines to be had, and queues over them that nobody uses at the moment.

use std::sync::Arc;

use rustix::io::Errno;

use super::contained::Contained;
use super::engine::{self, AnyEngine, Plain};
use super::queue::Queue;
use crate::sync::{contain, in_policy, Mutex};

/// Makes engines, for so many requests at a time.
#[derive(Clone)]
pub struct Engines(Arc<Maker>);

/// The program's own way of making an engine. Its end is contained, since a thread of reclaim may have the last one.
struct Maker(Option<Box<dyn Fn(u32) -> AnyEngine + Send + Sync>>);

impl Drop for Maker {
    fn drop(&mut self) {
        in_policy::call(|| contain(|| drop(self.0.take())));
    }
}

impl Engines {
    /// Engines of one's own.
    pub fn new(make: impl Fn(u32) -> AnyEngine + Send + Sync + 'static) -> Engines {
        Engines(Arc::new(Maker(Some(Box::new(make)))))
    }

    /// An engine for `depth` requests at a time: plain calls where the program's own way of making one panics, for a
    /// thread that writes pages back must not end by that.
    #[doc(hidden)]
    pub fn make(&self, depth: u32) -> AnyEngine {
        // A fault may want it, of a page that it has claimed: a wait for such a page in there would never end.
        let made =
            in_policy::call(|| contain(|| self.0 .0.as_ref().map(|make| make(depth))).flatten());
        Box::new(Contained::new(made.unwrap_or_else(|| Box::new(Plain::new()))))
    }

    /// Puts another queue in the place of one that can't be asked any more: over an engine of the same kind, or, where
    /// nothing that was asked of that one was ever done, over plain calls. All that was in flight is done then, and
    /// says this error, or how it went if that is known: its caller ends it.
    ///
    /// The kernel may still work on the old one's requests, for an unknown time: frames that were
    /// ended then might be somebody else's when it reads into them, or writes from them. To keep them for ever would
    /// have a cache without frames at some time, and pages that nobody can have. So the old engine goes here, which
    /// waits until the kernel has done with what it was handed ([`Ring`](super::Ring)): for the device, as the
    /// requester would have, but not for the call that fails. It never touches requests that it was not handed.
    #[doc(hidden)]
    pub fn replace<P>(&self, queue: &mut Queue<AnyEngine, P>, depth: u32, errno: Errno) {
        let has_answered = queue.has_answered();
        // The old one goes before another comes, which might get the descriptor's number that the old one believes its.
        let plain = || Queue::new(Box::new(Plain::new()) as AnyEngine, depth as usize);
        let done = std::mem::replace(queue, plain()).end(errno);
        let engine = if has_answered { self.make(depth) } else { Box::new(Plain::new()) };
        *queue = Queue::new(engine, depth as usize).with_done(done);
    }
}

impl Default for Engines {
    fn default() -> Engines {
        Engines::new(|depth| match depth {
            // One call either way, and the ring's is dearer.
            1 => Box::new(Plain::new()),
            _ => engine::best(depth),
        })
    }
}

impl std::fmt::Debug for Engines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engines")
    }
}

/// Queues of a depth, as many as were in use at a time.
pub struct Queues<P = ()> {
    engines: Engines,
    depth: u32,
    idle: Mutex<Vec<Queue<AnyEngine, P>>>,
}

impl<P> Queues<P> {
    /// None yet.
    pub fn new(engines: Engines, depth: u32) -> Queues<P> {
        Queues { engines, depth, idle: Mutex::new(Vec::new()) }
    }

    /// A queue with nothing in flight.
    pub fn take(&self) -> Queue<AnyEngine, P> {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| Queue::new(self.engines.make(self.depth), self.depth as usize))
    }

    /// Leaves a queue to the next. One that can't be asked any more is replaced before.
    pub fn give(&self, queue: Queue<AnyEngine, P>) {
        debug_assert_eq!(queue.in_flight(), 0);
        self.idle.lock().push(queue);
    }

    /// As [`Engines::replace`], of a queue that was taken.
    pub fn replace(&self, queue: &mut Queue<AnyEngine, P>, errno: Errno) {
        self.engines.replace(queue, self.depth, errno);
    }

    /// Waits until all that was asked of a queue is done, and leaves it to the next; where it can't be asked any more,
    /// another. The outcome of requests in flight is then unknown, and they fail.
    pub fn drain(
        &self,
        mut queue: Queue<AnyEngine, P>,
        mut done: impl FnMut(P, Result<(), Errno>),
    ) {
        while let Err(errno) = queue.drain(&mut done) {
            self.replace(&mut queue, errno);
        }
        self.give(queue);
    }
}

impl<P> std::fmt::Debug for Queues<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("depth", &self.depth).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct LastWord;

    impl Drop for LastWord {
        fn drop(&mut self) {
            panic!("a last word");
        }
    }

    #[test]
    fn engines_whose_end_panics_take_no_thread_along() {
        let word = LastWord;
        let make = move |_| {
            let _ = &word;
            Box::new(Plain::new()) as AnyEngine
        };
        let queues = Queues::<()>::new(Engines::new(make), 1);
        queues.give(queues.take());
        drop(queues);
    }
}
