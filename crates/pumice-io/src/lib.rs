//! Data between memory and files or block devices, by io_uring or by plain calls, direct or buffered: an inside of
//! pumice, whose facade is `pumice`.
//!
//! | module | contents |
//! |---|---|
//! | [`sync`] | the atomics, and locks to sleep on |
//! | [`sys`] | system calls on files and devices |
//! | `fails` | a file's calls that fail on demand, for tests |
//! | [`file`](mod@file) | an open file or device |
//! | [`engine`] | the interface to the engines: [`Plain`], [`Ring`] |
//! | [`queue`] | requests that are done when all of their bytes went, also where the engine did part of them |
//! | `contained` | an engine that panics is one that can't be asked any more |
//! | [`queues`] | engines to be had, and queues that nobody uses at the moment |
//! | `fake` | an engine that fails on demand, for tests |
//!
//! Neighbours: `pumice-frames`, whose memory is read and written; `pumice-paging` and `pumice-cache` are above. Every
//! `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are for pumice's crates.

#[cfg(not(loom))]
mod contained;
#[cfg(not(loom))]
pub mod engine;
#[cfg(all(not(loom), any(test, feature = "fake")))]
pub mod fails;
#[cfg(all(not(loom), any(test, feature = "fake")))]
pub mod fake;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod queues;
pub mod sync;
#[cfg(not(loom))]
pub mod sys;

#[cfg(not(loom))]
pub use engine::{AnyEngine, Bytes, Completion, Engine, Plain, Request, Ring};
#[cfg(not(loom))]
pub use file::{BlockFile, Cached, FileRef, Opening, Way};
#[cfg(not(loom))]
pub use queue::Queue;
#[cfg(not(loom))]
pub use queues::{Engines, Queues};
