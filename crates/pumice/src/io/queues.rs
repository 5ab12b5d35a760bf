//! Engines to be had, and queues over them that nobody uses at the moment.

use std::sync::{Arc, Mutex, PoisonError};

use super::engine::{self, Engine, Plain};
use super::queue::Queue;

/// An engine of any kind.
pub type AnyEngine = Box<dyn Engine + Send>;

/// Makes engines, for so many requests at a time.
#[derive(Clone)]
pub struct Engines(Arc<dyn Fn(u32) -> AnyEngine + Send + Sync>);

impl Engines {
    /// Engines of one's own.
    pub fn new(make: impl Fn(u32) -> AnyEngine + Send + Sync + 'static) -> Engines {
        Engines(Arc::new(make))
    }

    /// An engine for `depth` requests at a time.
    pub fn make(&self, depth: u32) -> AnyEngine {
        (self.0)(depth)
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
pub struct Queues {
    engines: Engines,
    depth: u32,
    idle: Mutex<Vec<Queue<AnyEngine>>>,
}

impl Queues {
    /// None yet.
    pub fn new(engines: Engines, depth: u32) -> Queues {
        Queues { engines, depth, idle: Mutex::new(Vec::new()) }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Queue<AnyEngine>>> {
        // Nothing panics while it holds the list.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue with nothing in flight.
    pub fn take(&self) -> Queue<AnyEngine> {
        let idle = self.idle().pop();
        idle.unwrap_or_else(|| Queue::new(self.engines.make(self.depth), self.depth as usize))
    }

    /// Leaves a queue to the next. One that failed is better dropped.
    pub fn give(&self, queue: Queue<AnyEngine>) {
        debug_assert_eq!(queue.in_flight(), 0);
        self.idle().push(queue);
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").field("depth", &self.depth).finish_non_exhaustive()
    }
}
