//! Page frames that are already faulted in and already zero, kept in user space.
//!
//! This crate is what programs name. A Rust program uses it as [`Allocator`]; an engine that manages memory for itself
//! has the parts.
//!
//! | module | what lives there |
//! |---|---|
//! | [`addr`], [`error`] | frame numbers, orders and ranges; typed errors |
//! | [`sys`] | facts of the machine that a zone is told |
//! | [`clear`], [`frame`] | zones of frames, and what zeroes them |
//! | [`page_table`], [`space`] | address spaces: regions, faults without a lock, guards, `fork` |
//! | [`io`] | files and devices, direct and buffered |
//! | [`swap`], [`reclaim`] | pages that are not in memory, and which pages go when it is short |
//! | [`cache`] | the page cache of files and devices |
//! | [`config`], [`stats`] | settings and counters of a process's heap |
//! | [`pinned`] | memory that stays registered with a device |
//! | [`slots`] | memory that a daemon has ready, leased to programs |
//!
//! The items that it names are made in `pumice-frames`, `pumice-accel`, `pumice-heap`, `pumice-io`, `pumice-paging`,
//! `pumice-cache` and `pumice-slots`, its inside, which may change in any version.

#[doc(hidden)]
pub mod allocator;
#[cfg(doctest)]
pub mod misuse;

#[doc(inline)]
pub use allocator::Allocator;

/// Frame numbers, orders and ranges: no bare integers for pages.
pub mod addr {
    #[doc(inline)]
    pub use pumice_frames::addr::{Order, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
}

/// Typed errors.
pub mod error {
    #[doc(inline)]
    pub use pumice_frames::error::{Error, Result};
}

/// Facts of the machine that a zone is told.
pub mod sys {
    /// The processors.
    pub mod cpu {
        #[doc(inline)]
        pub use pumice_frames::sys::cpu::count;
    }
    /// The kernel's memory.
    pub mod mem {
        #[doc(inline)]
        pub use pumice_frames::sys::mem::Huge;
    }
}

/// Engines that zero memory.
pub mod clear {
    #[doc(inline)]
    pub use pumice_frames::clear::{is_zero, Clearer, Content, Warmth};
}

/// Zones of frames.
pub mod frame {
    #[doc(inline)]
    pub use pumice_frames::frame::{Gfp, Watermarks, Zone};
}

/// How the entries of a space change, and what rights its pages have.
pub mod page_table {
    #[doc(inline)]
    pub use pumice_paging::page_table::{Atomic, Emulated, Rights, TableOps};
}

/// Address spaces.
pub mod space {
    #[doc(inline)]
    pub use pumice_paging::space::region::{Page, Words};
    #[doc(inline)]
    pub use pumice_paging::space::{
        Access, Extent, Frames, GfpScope, MemMap, PageEntry, Place, ReadGuard, Region, Result,
        Task, VmError, VmSpace, WriteGuard, ZonedFrames, Zonelist,
    };
}

/// Files and devices.
pub mod io {
    #[doc(inline)]
    pub use pumice_io::file::Buffered;
    #[doc(inline)]
    pub use pumice_io::{
        AnyEngine, BlockFile, Bytes, Cached, Completion, Engine, Engines, FileRef, Plain, Request,
        Ring, Way,
    };

    /// Parts of requests, and the engine that is best here.
    pub mod engine {
        #[doc(inline)]
        pub use pumice_io::engine::{best, Direction, Piece};
    }
}

/// Pages that are not in memory.
pub mod swap {
    #[doc(inline)]
    pub use pumice_paging::swap::{Swap, SwapError};

    /// What a pager knows swap by.
    pub mod backing {
        #[doc(inline)]
        pub use pumice_paging::swap::backing::SwapBacking;
    }
}

/// Which pages go when memory is short.
pub mod reclaim {
    #[doc(inline)]
    pub use pumice_paging::reclaim::{
        Adaptive, Arrival, Counts, Page, Paging, Policy, Registration, Settings, Shadow, Shrinker,
        SwapPager, Tunables, TwoList, ZoneReclaim, ZonedPaging,
    };

    /// Tables for policies.
    pub mod policy {
        #[doc(inline)]
        pub use pumice_paging::reclaim::policy::table;
    }
}

/// The page cache of files and devices.
pub mod cache {
    #[doc(inline)]
    pub use pumice_cache::{
        run, Advice, Cache, CacheError, CacheTask, Counts, File, Options, Otherwise, PageEntry,
        PageMut, PageRef, Result, Settings, View, WriteAhead,
    };
}

/// Settings of a process's heap, which can change while it runs.
pub mod config {
    #[doc(inline)]
    pub use pumice_heap::config::Setting;
}

/// Counters of a process's heap.
pub mod stats {
    #[doc(inline)]
    pub use pumice_heap::stats::{CounterSlot, Event};
}

/// Memory that stays registered with a device.
pub mod pinned {
    #[doc(inline)]
    pub use pumice_accel::cuda::{Cuda, CudaError};
    #[doc(inline)]
    pub use pumice_accel::pinned::{Buffer, Locked, Pool, PoolError, Registrar};
}

/// Memory that a daemon has ready, leased to programs.
pub mod slots {
    #[doc(inline)]
    pub use pumice_slots::refusal::Reason;
    #[doc(inline)]
    pub use pumice_slots::{
        default_socket, Charge, Client, Error, Lease, LeaseRequest, PageKind, Refusal,
    };
}
