//! Where an experiment's memory comes from: the kernel, two ways, or a heap of our own.

use std::ptr::{null_mut, NonNull};
use std::thread;
use std::time::{Duration, Instant};

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::sys::sched::Affinity;
use pumice_frames::sys::topology::Topology;
use pumice_heap::heap::{Content, Heap, HeapConfig};
use pumice_heap::stats::{CounterSlot, Event, Tree};
use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use crate::names::named;
use crate::proc_file;
use pumice_command::{Explain, Failure};

named! {
    /// The provider of the memory.
    pub enum Backend {
        /// `mmap`, `MADV_NOHUGEPAGE`, `munmap`
        Kernel4k = "kernel-4k",
        /// `mmap`, `MADV_HUGEPAGE`, `munmap`
        KernelThp = "kernel-thp",
        /// a heap of this crate's in this process
        Pumice = "pumice",
    }
}

/// A backend at work.
#[derive(Clone, Copy, Debug)]
pub enum Source<'p> {
    /// The kernel, advised so.
    Kernel(Advice),
    /// A pool.
    Pool(&'p Pool),
}

impl<'p> Source<'p> {
    /// The backend's source; `pool` serves [`Backend::Pumice`].
    pub fn of(backend: Backend, pool: &'p Pool) -> Source<'p> {
        match backend {
            Backend::Kernel4k => Source::Kernel(Advice::LinuxNoHugepage),
            Backend::KernelThp => Source::Kernel(Advice::LinuxHugepage),
            Backend::Pumice => Source::Pool(pool),
        }
    }

    /// `len` bytes of zeros.
    pub fn take(self, len: usize) -> Result<NonNull<u8>, Failure> {
        match self {
            Source::Kernel(advice) => {
                map(len, advice).or_fail(format_args!("can't map {len} bytes"))
            }
            Source::Pool(pool) => pool.take(len),
        }
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// `at` came from [`Source::take`] with this length, and nobody uses it any more.
    pub unsafe fn give_back(self, at: NonNull<u8>, len: usize) -> Result<(), Failure> {
        match self {
            Source::Kernel(_) => {
                // SAFETY: a mapping of this length, as the caller promises.
                unsafe { munmap(at.as_ptr().cast(), len) }.or_fail("can't unmap")
            }
            Source::Pool(pool) => {
                // SAFETY: an allocation of this heap, as the caller promises.
                unsafe { pool.heap.free(at.as_ptr()) }.or_fail("can't free")
            }
        }
    }
}

fn map(len: usize, advice: Advice) -> rustix::io::Result<NonNull<u8>> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap_anonymous(null_mut(), len, protection, flags)? };
    // A kernel without huge pages refuses the advice, and is then measured as it is.
    // SAFETY: the advice changes no content.
    let _ = unsafe { madvise(at, len, advice) };
    NonNull::new(at.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// How long a pool may refuse: its helper thread may hold blocks in the middle of what is free.
const REFUSING: Duration = Duration::from_secs(1);
/// How long a full pool must stand still before the clock starts.
const REST: Duration = Duration::from_millis(10);
/// How long a pool that is not full must stand still before it is measured as it is.
const STALLED: Duration = Duration::from_millis(500);
/// How long to wait for the pool to be full before measuring it as it is.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same for populating it.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(20);

/// A heap in this process, and the cost of its helper thread.
#[derive(Debug)]
pub struct Pool {
    heap: &'static Heap,
    slot: &'static CounterSlot,
    ready_bytes: usize,
    populating_s: f64,
}

impl Pool {
    /// `len` bytes of zeros. The time it waits for them is measured with the rest.
    fn take(&self, len: usize) -> Result<NonNull<u8>, Failure> {
        let began = Instant::now();
        loop {
            if let Some(at) = self.heap.allocate(len, FRAME_SIZE, Content::Zero) {
                return Ok(at);
            }
            if began.elapsed() > REFUSING {
                return Err(Failure::system(format!("the heap does not serve {len} bytes")));
            }
            thread::yield_now();
        }
    }

    /// A heap that is to have `ready_bytes` ready, and may have `pool_max` bytes in all.
    pub fn new(ready_bytes: usize, pool_max: usize) -> Result<Pool, Failure> {
        let tree = Tree::private(pool_max as u64, ready_bytes as u64).or_fail("no heap")?;
        let slot = tree.attach(std::process::id()).expect("a slot of a fresh tree");
        let clearer = Clearer::detect();
        let topology = Topology::read();
        let home = Affinity::here();
        let config = HeapConfig {
            tree,
            slot,
            verify: false,
            clearer,
            threads: true,
            topology,
            home,
            discard: None,
        };
        // Its helper threads know its address: it stays for the rest of the process.
        let heap = Box::leak(Box::new(Heap::new(config).or_fail("no heap")?));
        let mut pool = Pool { heap, slot, ready_bytes, populating_s: 0.0 };
        if ready_bytes > 0 {
            pool.populate();
        }
        Ok(pool)
    }

    fn populate(&mut self) {
        self.heap.populate_ahead();
        let start = Instant::now();
        while self.heap.ready_blocks().1 > 0 && start.elapsed() < PATIENCE_AT_FIRST {
            thread::sleep(Duration::from_millis(2));
        }
        self.wait_until_full();
        self.populating_s = self.helper_s();
    }

    /// Processor time that populating took at first, for a share of the pool of `bytes` bytes.
    pub fn populating_s(&self, bytes: usize) -> f64 {
        self.populating_s * bytes as f64 / self.ready_bytes.max(1) as f64
    }

    /// Bytes that requests had to wait for, because scrubd had not got to them.
    pub fn hot_cleared_bytes(&self) -> u64 {
        self.slot.get(Event::HotClearedBytes)
    }

    /// Processor time of the helper thread so far.
    pub fn helper_s(&self) -> f64 {
        self.slot.get(Event::ScrubberNs) as f64 / 1e9
    }

    /// Waits until everything is ready, and the helper thread at rest. If that does not come
    /// about, because others want the machine, the pool is measured as it is.
    pub fn wait_until_full(&self) {
        let wanted = self.ready_bytes / BLOCK_SIZE;
        let progress = || (self.heap.ready_blocks(), self.slot.get(Event::ScrubbedBytes));
        let start = Instant::now();
        let (mut last, mut since) = (progress(), start);
        while start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
            let now = progress();
            let ((ready, to_populate), _) = now;
            let rest = if to_populate == 0 && ready >= wanted { REST } else { STALLED };
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > rest {
                return;
            }
        }
    }
}

/// Memory of the process that is resident, in KiB, counted page by page.
pub fn resident_kb() -> Option<u64> {
    proc_file::number("/proc/self/smaps_rollup", "Rss")
}
