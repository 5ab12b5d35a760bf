//! Page frames that are already faulted in and already zero, kept in user space.
//!
//! The modules stand in layers; each uses those above it in this list and never those below
//! (the `tidy` test holds them to it):
//!
//! | module | what lives there |
//! |---|---|
//! | [`addr`] | frame numbers, orders, ranges: no bare integers for pages |
//! | [`error`] | typed errors |
//! | [`sync`] | the atomics: `core`'s, or loom's under `--cfg loom` |
//! | [`sys`] | every system call and every intrinsic, and a fake of it for tests |
//! | [`stats`] | event counters in a versioned layout others can map |
//! | [`config`] | every option, its default and its environment variable |
//! | [`clear`] | engines that zero memory, behind one submit-and-poll trait |
//! | [`frame`] | zones, blocks, the ledger, per-CPU reservations, [`frame::Gfp`] |
//! | [`scrub`] | scrubd: what to zero next, when to stop, how not to be noticed |
//! | [`heap`] | runs of frames for `malloc`-sized requests; what a size class touches |
//! | [`page_table`] | tables of entries that change by single atomic operations |
//! | [`space`] | address spaces: regions, faults without a lock, guards, `fork` |
//! | [`io`] | files and devices, by io_uring and plain calls, direct and buffered; with the feature `std` only |
//! | [`backing`] | what pages are copies of: the face that swap and caches show to reclaim; with the feature `std` only |
//! | [`swap`] | pages that are not in memory: slots of a file or a device; with the feature `std` only |
//! | [`reclaim`] | which pages to give up when memory is short |
//! | [`cache`] | the page cache of files and devices; with the feature `std` only |
//! | [`process`] | what a process finds when its heap starts, and its way through `fork` |
//! | [`allocator`] | the heap as a program's allocator; with the feature `std` only |
//! | [`slots`] | memory that a daemon has ready, leased to programs; with the feature `std` only |
//! | [`pinned`] | memory that stays registered with a device; with the feature `std` only |
//!
//! The crate needs neither `std` nor `alloc`: the preload shim is built from it and must never
//! allocate through itself. A Rust program uses it as [`Allocator`].

#![cfg_attr(not(any(test, loom, feature = "std")), no_std)]

pub mod addr;
#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub mod allocator;
#[cfg(all(feature = "std", not(loom)))]
mod backing;
#[cfg(all(feature = "std", not(any(loom, all(shuttle, not(test))))))]
pub mod cache;
pub mod clear;
pub mod config;
pub mod error;
pub mod frame;
#[cfg(not(any(loom, shuttle)))]
pub mod heap;
#[cfg(all(feature = "std", not(loom)))]
pub mod io;
pub mod page_table;
#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub mod pinned;
#[cfg(not(any(loom, shuttle)))]
pub mod process;
pub mod reclaim;
pub mod scrub;
#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub mod slots;
pub mod space;
pub mod stats;
#[cfg(all(feature = "std", not(loom)))]
pub mod swap;
pub mod sync;
pub mod sys;

#[cfg(all(feature = "std", not(any(loom, shuttle))))]
pub use allocator::Allocator;
