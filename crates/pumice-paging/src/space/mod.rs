//! Address spaces in user space: regions of pages, faults that take no lock, guards.
//!
//! A [`VmSpace`] has 128 TiB of addresses of its own, which mean something to it only: its pages are
//! frames of a zone, found by walking its tables. A thread that uses a space enters it, and then has a [`Task`].
//! Through that it maps, faults, and holds regions ([`Region`]), whose pages it reads and writes by guards.
//!
//! - [`mem_map`]: the parts that spaces on one zone share; [`zonelist`]: frames of several zones.
//! - `task`: a thread in a space; `history`: its records of its last faults; [`rss`]: its counts, and the regions and
//!   pages it holds.
//! - `fault`: the fault path, copying on write, prefaulting.
//! - `crowd`: very many readers of a page.
//! - `huge`: pages of 2 MiB, and how they become small ones.
//! - [`region`]: a region that is held, and the ways to its bytes: guards, optimistic reads, copies; `range`: guards of
//!   pages in a row.
//! - [`swap_out`], [`swap_in`]: how pages leave memory, and come back.
//! - [`mod@file`]: pages of files, as a page cache has them; [`write_back`]: how they become clean and stay;
//!   `overwrite`: how they are written whole, and not read; [`runs`]: pages in a row.
//! - `map`: `map`, `unmap`, `protect`; `fork`; `vma`: which addresses are whose.
//!
//! ```
//! use pumice::{clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, space::{MemMap, VmSpace}};
//! use pumice::sys::{cpu, mem::Huge};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let zone = Zone::new(64 << 20, cpu::count(), Huge::No)?;
//! let map = MemMap::new(&zone, Clearer::detect())?;
//! let space = VmSpace::new(map.frames(), Atomic)?;
//! let task = space.enter()?; // one for each thread
//! let at = task.map(16 << 20, Rights::READ_WRITE)?;
//! task.write_at(at, b"hello")?;
//!
//! let snapshot = task.fork()?; // shares every page until one side writes to it
//! let region = task.region(at)?;
//! region.write(0)?[0] = b'j';
//! assert_eq!(&region.read(0)?[..5], b"jello");
//!
//! let mut then = [0; 5];
//! snapshot.enter()?.read_at(at, &mut then)?;
//! assert_eq!(&then, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # The protocol
//! *The page table is the only truth.* Every word in it changes by one atomic operation, and all that changes a page's
//! fate is written into the page's own word: that it is unmapped, its rights, that its frame is shared. So a fault
//! reads a word, decides, and installs by compare-and-swap what it decided; if anything happened in between, the word
//! is another, and it decides again. No fault waits for a mapper, and no mapper for a fault.
//! [`crate::page_table::entry`] has the table of transitions.
//!
//! *VMAs* are numbered. The number stands beside the middle level's entry, for each 2 MiB, and a region
//! starts at such a granule and has its granules to itself. Finding the VMA of an address is part of
//! the walk: no tree, no list. Threads that map hold a lock of their own ([`VmSpace`]'s `mmap_lock`), which no fault
//! takes.
//!
//! *Tables of pages* are freed when all of their region is unmapped, and somebody may still be in them.
//! A thread that walks into a table has first said so, in its own record: the number of the VMA, as a hazard
//! pointer (Michael, 2004), one for a whole region. It costs a store and a fence when a thread goes from one region
//! to another, and nothing within one.
//!
//! ```text
//!   thread                               unmap, of the last page of a region
//!   1  hold := number of the granule     a  numbers of its granules := 0
//!   2  fence                             b  Table -> Closed in the middle level
//!   3  is it still the number?           c  fence
//!   4  walk in                           d  does anybody hold the number?
//!                                        e  nobody: tables, number and addresses are free
//! ```
//! Either 3 sees a, and the thread stays out, or d sees 1, and the tables stay until somebody who maps
//! or unmaps later looks again. Nobody waits. A thread that sleeps outside of a space's calls keeps the tables
//! of one region at most, an eight-byte word for each page, and no pages.
//!
//! *Guards* latch the page's word. A latched page's frame stays: `unmap` marks the page *doomed*, which
//! keeps new guards out, and the last guard gives the frame back. `protect` and `fork` look at rights
//! when a guard is made: one that is there keeps what it has; `fork` waits for guards that write.

#[cfg(all(test, not(any(loom, shuttle))))]
mod address_tests;
mod ahead;
#[cfg(all(test, not(any(loom, shuttle))))]
mod corners;
mod crowd;
#[cfg(all(test, not(any(loom, shuttle))))]
mod crowd_tests;
#[cfg(any(test, all(shuttle, feature = "fake")))]
#[cfg_attr(not(test), allow(dead_code))]
mod disk;
mod entry;
mod error;
mod fault;
pub mod file;
pub mod file_ops;
mod fork;
mod history;
mod huge;
mod map;
#[cfg(not(any(loom, shuttle)))]
pub mod mem_map;
#[cfg(all(test, not(any(loom, shuttle))))]
mod model;
#[cfg(any(all(test, any(loom, shuttle)), all(shuttle, feature = "fake")))]
#[cfg_attr(not(test), allow(dead_code))]
#[doc(hidden)]
pub mod models;
mod overwrite;
mod range;
mod records;
pub mod region;
pub mod rss;
pub mod runs;
pub mod swap_in;
pub mod swap_out;
mod task;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod vma;
pub mod write_back;
#[cfg(not(any(loom, shuttle)))]
pub mod zonelist;
#[cfg(all(test, not(any(loom, shuttle))))]
mod zonelist_tests;

pub use entry::PageEntry;
pub use error::{Access, Extent, Place, Result, VmError};
#[cfg(not(any(loom, shuttle)))]
pub use mem_map::{Frames, MemMap};
/// The frames of a model, in their place.
#[cfg(all(shuttle, any(test, feature = "fake")))]
pub type Frames<'m> = models::Model;
pub use range::ReadRange;
pub use region::{ReadGuard, Region, WriteGuard};
#[cfg(not(loom))]
pub(crate) use swap_out::Transit;
pub use task::{GfpScope, Task};
#[cfg(not(any(loom, shuttle)))]
pub use zonelist::{ZonedFrames, Zonelist};

use crossbeam_utils::CachePadded;

use crate::page_table::{Atomic, FrameSource, TableOps, Tables};
use crowd::Crowds;
use pumice_frames::sys::lock::SpinLock;
use pumice_frames::sys::pair::Pairs;
use pumice_io::sync::atomic::{AtomicUsize, Ordering};
use records::Records;
use rss::{Counter, TaskRecords};
use vma::{MapState, Vmas};

/// Pages that a sequence of faults populates at once at most, until told otherwise.
pub const DEFAULT_PREFAULT_PAGES: usize = 16;
/// How many faults ahead the memory of a sequence is fetched into the cache, until told otherwise: a line that takes
/// 100 to 200 ns to come is then there.
pub const DEFAULT_FETCH_AHEAD: usize = 16;
/// `page_cluster` until told otherwise: 32 pages, as many as leave together, which today's devices read hardly slower
/// than one. (The kernel has 3, for disks whose heads moved, and reads neighbours of any page; here only pages in order
/// are read ahead.)
pub const DEFAULT_PAGE_CLUSTER: usize = 5;

/// See the module's top.
///
/// `F` is where its frames come from, `T` how its entries are changed.
#[derive(Debug)]
pub struct VmSpace<F: FrameSource, T: TableOps = Atomic> {
    tables: Tables<F, T>,
    records: TaskRecords<F>,
    vmas: Vmas<F>,
    /// Taken to map, unmap, protect or fork; never by a fault. It comes before the
    /// locks of the zone, of which there are none, and before that of [`crate::page_table::Emulated`].
    ///
    /// In cache lines of its own: faults read what would lie beside it.
    mmap_lock: CachePadded<SpinLock<MapState>>,
    /// Relaxed: a setting; a fault that goes by the one before does no harm.
    prefault_pages: AtomicUsize,
    /// Relaxed: as above.
    fetch_ahead: AtomicUsize,
    /// Relaxed: as above.
    page_cluster: AtomicUsize,
    /// The counter of pages that come and go by the pager.
    paged: Counter,
    /// For batches of entries, where the processor can.
    pairs: Option<Pairs>,
    /// Readers that pages' words don't count. Its lock comes after all others of a space.
    crowds: CachePadded<SpinLock<Crowds>>,
}

impl<F: FrameSource, T: TableOps> VmSpace<F, T> {
    /// An empty space.
    ///
    /// # Errors
    /// [`VmError::OutOfRecords`] if the source has no frames for the first tables.
    pub fn new(frames: F, ops: T) -> Result<VmSpace<F, T>> {
        VmSpace::of(frames, ops, Counter::Anon)
    }

    fn of(frames: F, ops: T, paged: Counter) -> Result<VmSpace<F, T>> {
        let none = || VmError::OutOfRecords("space");
        let records = Records::new(frames).ok_or_else(none)?;
        let vmas = Records::new(frames).ok_or_else(none)?;
        let tables = Tables::new(frames, ops).ok_or_else(none)?;
        let pairs = tables.ops.pairs();
        // As many as one table of the second level is for, 512 GiB.
        let map_state = MapState::new(F::ENTRIES * F::ENTRIES);
        let mmap_lock = CachePadded::new(SpinLock::new(map_state));
        let prefault_pages = AtomicUsize::new(DEFAULT_PREFAULT_PAGES);
        let fetch_ahead = AtomicUsize::new(DEFAULT_FETCH_AHEAD);
        let page_cluster = AtomicUsize::new(DEFAULT_PAGE_CLUSTER);
        Ok(VmSpace {
            tables,
            records,
            vmas,
            mmap_lock,
            prefault_pages,
            fetch_ahead,
            page_cluster,
            paged,
            pairs,
            crowds: CachePadded::new(SpinLock::new(Crowds::new())),
        })
    }

    /// The calling thread's part in the space.
    ///
    /// # Errors
    /// [`VmError::OutOfRecords`] without frames, and for the 16,385th thread.
    pub fn enter(&self) -> Result<Task<'_, F, T>> {
        Task::new(self)
    }

    /// How many pages a sequence of faults populates at once at most: batches double up to that.
    /// With 1 there is no prefaulting; more than the 512 pages of a table counts as 512.
    pub fn set_prefault(&self, pages: usize) {
        self.prefault_pages.store(pages.clamp(1, F::ENTRIES), Ordering::Relaxed);
    }

    /// How many faults ahead a sequence of faults for writing fetches the line that it will write, if it
    /// goes on as it did. That costs each fault 10 to 30 ns, and spares the write more than that. Programs that fault
    /// pages without writing to them set it to 0.
    pub fn set_fetch_ahead(&self, faults: usize) {
        self.fetch_ahead.store(faults, Ordering::Relaxed);
    }

    /// `page_cluster`: where a thread's faults meet pages of swap in a row, one fault reads 2 to this power of them at
    /// most, its own among them. With 0 it reads no other; more than 5, for 32 pages, is as 5.
    #[doc(hidden)]
    pub fn set_page_cluster(&self, page_cluster: usize) {
        let most = swap_in::READ_AHEAD.ilog2() as usize;
        self.page_cluster.store(page_cluster.min(most), Ordering::Relaxed);
    }

    /// Where its frames come from.
    #[doc(hidden)]
    pub fn frames(&self) -> F {
        self.tables.source
    }

    /// Resident pages: anonymous ones and those of files. Exact if no thread counts meanwhile.
    pub fn rss(&self) -> usize {
        self.anon_rss() + rss::sum(&self.records, Counter::File)
    }

    /// Resident anonymous pages. Pages that are still the zero page do not count.
    pub fn anon_rss(&self) -> usize {
        rss::sum(&self.records, Counter::Anon)
    }

    /// Pages in swap.
    pub fn swap_rss(&self) -> usize {
        rss::sum(&self.records, Counter::Swap)
    }
}

impl<F: FrameSource, T: TableOps> Drop for VmSpace<F, T> {
    fn drop(&mut self) {
        self.put_everything();
    }
}
