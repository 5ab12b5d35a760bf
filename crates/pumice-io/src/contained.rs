//! An engine whose panics end in errors, for it may be the program's own.
//!
//! A thread that unwinds through a batch of writes would leave pages clean that nobody has written. So an engine that
//! panics can't be asked any more. Its user then drops it and gives up its requests in flight, as where the kernel
//! refuses: see [`Queues::replace`](super::Queues::replace).

use rustix::io::Errno;

use super::engine::{AnyEngine, Completion, Engine, Request};
use crate::sync::contain;

/// See the module's top.
pub(super) struct Contained {
    /// Until it is dropped.
    engine: Option<AnyEngine>,
    depth: usize,
    has_panicked: bool,
}

impl Contained {
    pub fn new(engine: AnyEngine) -> Contained {
        let depth = contain(|| engine.depth());
        Contained { engine: Some(engine), depth: depth.unwrap_or(1), has_panicked: depth.is_none() }
    }

    /// `None`: it has panicked, now or before.
    fn ask<R>(&mut self, ask: impl FnOnce(&mut AnyEngine) -> R) -> Option<R> {
        let engine = self.engine.as_mut().filter(|_| !self.has_panicked)?;
        let answer = contain(|| ask(engine));
        self.has_panicked = answer.is_none();
        answer
    }
}

// SAFETY: as the engine inside, which is asked nothing after a panic but to end.
unsafe impl Engine for Contained {
    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        // One that panics may have taken it: it is in flight until the engine is dropped.
        // SAFETY: the caller's promise.
        self.ask(|engine| unsafe { engine.submit(request) }).unwrap_or(Ok(()))
    }

    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        self.ask(|engine| engine.wait(least)).unwrap_or(Err(Errno::IO))
    }

    fn next(&mut self) -> Option<Completion> {
        self.ask(|engine| engine.next()).flatten()
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        contain(|| drop(self.engine.take()));
    }
}
