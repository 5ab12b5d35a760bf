//! Page frames that are already faulted in and already zero, kept in user space.
//!
//! Programs name this crate only. A Rust program uses it as [`Allocator`]; an engine that manages memory for itself
//! has the parts.
//!
//! | module | contents |
//! |---|---|
//! | [`addr`], [`error`] | frame numbers, orders and ranges; typed errors |
//! | [`sys`] | facts of the machine that a zone is told |
//! | [`clear`], [`frame`] | zones of frames, and the engines that zero them |
//! | [`page_table`], [`space`] | address spaces: regions, faults without a lock, guards, `fork` |
//! | [`io`] | files and devices, direct and buffered |
//! | [`swap`], [`reclaim`] | pages that are not in memory, and which pages go when it is short |
//! | [`cache`] | the page cache of files and devices |
//! | [`config`], [`stats`] | settings and counters of a process's heap |
//! | [`pinned`] | memory that stays registered with a device |
//! | [`slots`] | memory that a daemon has ready, leased to programs |
//!
//! The items that it names are made in `pumice-frames`, `pumice-accel`, `pumice-heap`, `pumice-io`, `pumice-paging`,
//! `pumice-cache` and `pumice-slots`, its inside, which may change in any version. The same holds for items with
//! `#[doc(hidden)]`: the crates have them for each other.

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
///
/// ```
/// use pumice::addr::Order;
/// use pumice::clear::Clearer;
/// use pumice::frame::{Gfp, Zone};
/// use pumice::sys::{cpu, mem::Huge};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let zone = Zone::new(64 << 20, cpu::count(), Huge::Yes)?;
/// let clearer = Clearer::detect();
/// // 2 MiB that read as zeros, for a thread on processor 0.
/// let at = zone.get(0, Gfp::KERNEL | Gfp::ZERO, Order::BLOCK, &clearer).ok_or("no frames")?;
/// // SAFETY: the zone gave this memory to this request.
/// let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), 2 << 20) };
/// assert!(bytes.iter().all(|&byte| byte == 0));
/// bytes.fill(1);
/// // SAFETY: nobody uses the memory from here on.
/// unsafe { zone.put(at.as_ptr())? };
/// # Ok(())
/// # }
/// ```
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
///
/// A space has addresses of its own, which the processor does not know: its pages are frames of a zone, found by
/// walking its tables. A thread enters the space, and reads and writes pages through its [`Task`](space::Task).
///
/// ```
/// use pumice::{clear::Clearer, frame::Zone, sys::mem::Huge};
/// use pumice::page_table::{Atomic, Rights};
/// use pumice::space::{MemMap, VmError, VmSpace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let zone = Zone::new(64 << 20, 2, Huge::No)?;
/// let map = MemMap::new(&zone, Clearer::detect())?;
/// let space = VmSpace::new(map.frames(), Atomic)?;
/// std::thread::scope(|threads| {
///     let worker = threads.spawn(|| -> Result<u64, VmError> {
///         let task = space.enter()?; // each thread has its own
///         let at = task.map(4 << 20, Rights::READ_WRITE)?;
///         let region = task.region(at)?;
///         region.write(7)?[..8].copy_from_slice(&42u64.to_ne_bytes()); // a guard has the page alone
///         region.read_optimistic(7, |words| words.load(0)) // no guard: it reads again if somebody wrote
///     });
///     assert_eq!(worker.join().expect("no panic"), Ok(42));
/// });
/// assert_eq!(space.anon_rss(), 1);
/// # Ok(())
/// # }
/// ```
pub mod space {
    #[doc(inline)]
    pub use pumice_paging::space::region::{Page, Words};
    #[doc(inline)]
    pub use pumice_paging::space::{
        Access, Extent, Frames, GfpScope, MemMap, PageEntry, Place, ReadGuard, ReadRange, Region,
        Result, Task, VmError, VmSpace, WriteGuard, ZonedFrames, Zonelist,
    };
}

/// Files and devices.
///
/// The page cache and swap read and write by engines: io_uring where the kernel has it, unless a program chooses.
///
/// ```
/// use pumice::cache::{self, CacheError, Options, Settings};
/// use pumice::io::{Engines, Plain};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("pumice-io-{}", std::process::id()));
/// let mut settings = Settings::new(1024);
/// settings.engines = Engines::new(|_depth| Box::new(Plain::new())); // pread and pwrite
/// cache::run(&settings, |cache| -> Result<(), CacheError> {
///     let file = cache.open(&path, &Options::new())?;
///     println!("{:?}", file.way()); // straight to the device, or why not
///     cache.task()?.view(&file)?.write_at(0, b"by plain calls")
/// })??;
/// # std::fs::remove_file(path)?;
/// # Ok(())
/// # }
/// ```
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

    /// Swap, as a pager knows it.
    pub mod backing {
        #[doc(inline)]
        pub use pumice_paging::backing::ToBacking;
        #[doc(inline)]
        pub use pumice_paging::swap::backing::SwapBacking;
    }
}

/// Which pages go when memory is short.
///
/// A region may be larger than the memory. A pager writes pages to swap and reads them back, and a policy chooses them.
///
/// ```
/// use pumice::addr::FRAME_SIZE;
/// use pumice::page_table::{Atomic, Rights};
/// use pumice::reclaim::{policy, Adaptive, Settings, SwapPager};
/// use pumice::space::{MemMap, VmError, VmSpace};
/// use pumice::{clear::Clearer, frame::Zone, io::Cached, swap::Swap, sys::mem::Huge};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// const FRAMES: usize = 1024;
/// const PAGES: usize = 3 * FRAMES;
/// # let path = std::env::temp_dir().join(format!("pumice-reclaim-{}", std::process::id()));
/// let mut table = policy::table::<Adaptive<'_>>(FRAMES);
/// let swap = Swap::create(&path, 64 << 20, Cached::No)?;
/// let pager = SwapPager::new(swap, Adaptive::new(&mut table), FRAMES, Settings::of(FRAMES));
/// let zone = Zone::new(FRAMES * FRAME_SIZE, 1, Huge::No)?;
/// let map = MemMap::new(&zone, Clearer::detect())?.with_pager(&pager);
/// let space = VmSpace::new(map.frames(), Atomic)?;
/// pager.attach(&space, || -> Result<(), VmError> {
///     let task = space.enter()?;
///     let at = task.map(PAGES * FRAME_SIZE, Rights::READ_WRITE)?;
///     for page in 0..PAGES {
///         task.write_at(at + page * FRAME_SIZE, &page.to_ne_bytes())?;
///     }
///     let mut first = [1; 8];
///     task.read_at(at, &mut first)?; // comes back from swap
///     assert_eq!(usize::from_ne_bytes(first), 0);
///     Ok(())
/// })??;
/// assert!(pager.counts().pswpout > 0);
/// # std::fs::remove_file(path)?;
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// use pumice::cache::{self, Advice, CacheError, Options, Settings};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("pumice-facade-{}", std::process::id()));
/// cache::run(&Settings::new(1024), |cache| -> Result<(), CacheError> { // 4 MiB
///     let file = cache.open(&path, &Options::new())?;
///     let task = cache.task()?; // each thread has its own
///     let view = task.view(&file)?;
///     view.write_or_grow(100)?[..5].copy_from_slice(b"hello");
///     view.sync()?; // the page and the file's length are on the device
///
///     view.advise(0..view.pages(), Advice::Random);
///     view.prefetch(&[3, 100, 42]); // one request each, and no wait
///     assert_eq!(&view.read(100)?[..5], b"hello");
///     assert!(matches!(view.read(101), Err(CacheError::PastEnd { .. })));
///     Ok(())
/// })??;
/// # std::fs::remove_file(path)?;
/// # Ok(())
/// # }
/// ```
pub mod cache {
    #[doc(inline)]
    pub use pumice_cache::{
        run, Advice, Cache, CacheError, CacheTask, Counts, File, Options, Otherwise, PageEntry,
        PageMut, PageRef, RangeRef, Result, Settings, View, WriteAhead,
    };
}

/// Settings of a process's heap, which can change while it runs.
pub mod config {
    #[doc(inline)]
    pub use pumice_heap::config::Setting;
}

/// Counters of a process's heap.
///
/// ```
/// use pumice::{config::Setting, stats::Event};
///
/// #[global_allocator]
/// static ALLOCATOR: pumice::Allocator = pumice::Allocator::new();
///
/// let zeros = vec![0u8; 8 << 20];
/// // `None` where the heap serves nothing: under `PUMICE=off`, for example.
/// if let Some(slot) = ALLOCATOR.slot() {
///     assert!(slot.get(Event::RequestBytes) >= zeros.len() as u64);
///     Setting::DecayMs.set(slot, 1000); // free memory goes back to the kernel after a second
///     assert_eq!(Setting::DecayMs.get(slot), 1000);
/// }
/// ```
pub mod stats {
    #[doc(inline)]
    pub use pumice_heap::stats::{CounterSlot, Event};
}

/// Memory that stays registered with a device.
///
/// ```
/// use pumice::clear::Content;
/// use pumice::pinned::{Locked, Pool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // `Cuda::open()?` in place of `Locked` registers the memory with NVIDIA's driver. mlock(2) has a limit for users.
/// let Ok(pool) = Pool::new(2 << 20, Locked) else { return Ok(()) };
/// let mut buffer = pool.take(2 << 20, Content::Zero).ok_or("all is taken")?;
/// assert!(pool.take(1, Content::Any).is_none());
/// buffer[0] = 1;
/// drop(buffer); // the pool has it back, pinned as it was
/// assert_eq!(pool.free_bytes(), 2 << 20);
/// # Ok(())
/// # }
/// ```
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
        SnapshotName, Ticket,
    };
}
