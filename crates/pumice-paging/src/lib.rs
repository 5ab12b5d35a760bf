//! Address spaces over page frames, reclaim and swap: an inside of pumice, whose facade is `pumice`.
//!
//! | module | contents |
//! |---|---|
//! | [`page_table`] | tables of entries that change by single atomic operations |
//! | [`space`] | address spaces: regions, faults without a lock, guards, `fork` |
//! | [`backing`] | the store that a page is evicted to |
//! | [`swap`] | pages that are not in memory: slots of a file or a device |
//! | [`reclaim`] | the choice of pages to evict, and their eviction |
//!
//! Each module uses those above it and never those below. Neighbours: `pumice-frames`, whose frames it maps and
//! reclaims, and `pumice-io`, by which they are read and written. `pumice-cache` is made of it, and `pumice-heap` is
//! independent of it. Every `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are
//! for pumice's crates.

#[cfg(not(loom))]
pub mod backing;
pub mod page_table;
pub mod reclaim;
pub mod space;
#[cfg(not(loom))]
pub mod swap;
