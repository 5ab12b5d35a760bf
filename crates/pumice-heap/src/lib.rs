//! A heap of ready memory for `malloc`- and `mmap`-sized requests, and the threads that keep it ready: an inside of
//! pumice, whose facade is `pumice`.
//!
//! | module | contents |
//! |---|---|
//! | [`stats`] | event counters in a versioned layout that others can map |
//! | [`config`] | every option, its default and its environment variable |
//! | [`scrub`] | scrubd: the choice of memory to zero next, when to stop, how not to be noticed |
//! | [`heap`] | runs of frames for requests; the touched share of each size class; giving back |
//! | [`process`] | the start of a process's heap, and its way through `fork` |
//!
//! Neighbours: `pumice-frames` and `pumice-accel` below it; above it the shim, the Rust allocator, the C library,
//! `pumice-slots`, `pumice-command` and the program. `pumice-paging` is independent of it.
//!
//! The crate needs neither `std` nor `alloc`: the preload shim is built from it and never allocates through itself.
//! Every `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are for pumice's crates.

#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
// Models leave the heap out, which calls much of the rest.
#![cfg_attr(any(loom, shuttle), allow(dead_code))]

pub mod config;
#[cfg(not(any(loom, shuttle)))]
pub mod heap;
#[cfg(not(any(loom, shuttle)))]
pub mod process;
pub mod scrub;
pub mod stats;
