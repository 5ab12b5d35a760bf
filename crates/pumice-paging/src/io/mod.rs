//! Data between memory and files or block devices, by io_uring or by plain calls, direct or buffered.
//!
//! - [`mod@file`]: an open file or device.
//! - [`engine`]: one face over the ways there are; [`engine::Plain`], [`engine::Ring`].
//! - [`queue`]: requests that are done when all of their bytes went, whatever the engine makes of them.
//! - [`queues`]: engines to be had, and queues that nobody uses at the moment.
//! - `contained`: an engine that panics is one that can't be asked any more.
//! - [`fake`]: an engine that fails on demand, for tests.

mod contained;
pub mod engine;
pub mod fake;
pub mod file;
pub mod queue;
pub mod queues;
#[cfg(test)]
mod tests;

pub use engine::{Bytes, Completion, Engine, Plain, Request, Ring};
pub use file::{BlockFile, Cached, FileRef, Opening, Way};
pub use queue::Queue;
pub use queues::{AnyEngine, Engines, Queues};
