//! Address spaces over page frames, reclaim, swap and the page cache: an inside of pumice, whose facade is `pumice`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`sync`] | the atomics, and locks to sleep on |
//! | [`sys`] | system calls on files and devices |
//! | [`page_table`] | tables of entries that change by single atomic operations |
//! | [`space`] | address spaces: regions, faults without a lock, guards, `fork` |
//! | [`io`] | files and devices, by io_uring and plain calls, direct and buffered |
//! | `backing` | what pages are copies of: the face that swap and caches show to reclaim |
//! | [`swap`] | pages that are not in memory: slots of a file or a device |
//! | [`reclaim`] | which pages to give up when memory is short |
//! | [`cache`] | the page cache of files and devices |
//!
//! Each module uses those above it and never those below. Neighbours: `pumice-frames`, whose frames it maps and
//! reclaims. `pumice-heap` is independent of it.

#[cfg(not(loom))]
mod backing;
#[cfg(not(any(loom, all(shuttle, not(test)))))]
pub mod cache;
#[cfg(not(loom))]
pub mod io;
pub mod page_table;
pub mod reclaim;
pub mod space;
#[cfg(not(loom))]
pub mod swap;
pub mod sync;
pub mod sys;
