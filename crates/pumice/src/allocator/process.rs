//! A process's heap: started by the first request, followed through `fork`.
//!
//! # States
//! ```text
//! UNSTARTED --first request--> BUSY --> SERVING
//!                                +----> OFF: not wanted, or not possible
//! ```
//! Nobody waits for BUSY: a request that finds it goes to the next allocator. The heap and the rest ([`Served`]) are
//! written before the Release store of its address and read after an Acquire load of it. How it follows a `fork`:
//! [`pumice_heap::process`].

use std::ffi::c_int;
use std::ptr::{from_ref, null_mut, NonNull};

use rustix::fd::BorrowedFd;

use super::environment;
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::clear::is_zero;
use pumice_frames::error::Result;
use pumice_frames::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use pumice_frames::sys::sched::Affinity;
use pumice_frames::sys::{mem, stack, thread};
use pumice_heap::heap::{Content, Heap};
use pumice_heap::process::{self, Host, Served, ZeroCheck};
use pumice_heap::stats::{CounterSlot, Event, Reason};

const UNSTARTED: u32 = 0;
const BUSY: u32 = 1;
const SERVING: u32 = 2;
const OFF: u32 = 3;

/// A heap that starts at its first request and is right in forked children too. Requests that it does not serve are
/// for the next allocator.
#[derive(Debug)]
pub struct ProcessHeap {
    state: AtomicU32,
    /// Null until it serves.
    listed: AtomicPtr<Listed>,
    quiet: AtomicBool,
}

/// The heap, for an address in its zones.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    listed: &'static Listed,
}

/// A heap that is told of forks. It lies in a mapping of its own that is never unmapped: helper threads and memory
/// handed out outlive the thread that started it.
#[derive(Debug)]
struct Listed {
    served: Served,
    /// Whether a seccomp filter may be in force.
    quiet: AtomicBool,
    /// The one started before; set before this one is in the list.
    next: AtomicPtr<Listed>,
}

impl ProcessHeap {
    /// Nothing is reserved, mapped or started yet.
    pub const fn new() -> ProcessHeap {
        ProcessHeap {
            state: AtomicU32::new(UNSTARTED),
            listed: AtomicPtr::new(null_mut()),
            quiet: AtomicBool::new(false),
        }
    }

    /// Allocates `size` bytes aligned to `align`. `None`: ask the next allocator.
    pub fn allocate(&self, size: usize, align: usize, content: Content) -> Option<NonNull<u8>> {
        let listed = self.started()?;
        if !listed.is_current() {
            return None;
        }
        let at = listed.heap().allocate(size, align, content)?;
        if listed.served.verify() && content == Content::Zero {
            // SAFETY: `size` bytes were just allocated there.
            let is_zero = unsafe { is_zero(at.as_ptr(), size) };
            if !is_zero {
                fatal("memory that should be zero is not");
            }
        }
        Some(at)
    }

    /// The heap if `at` lies in its zones.
    #[inline]
    pub fn owned(&self, at: *const u8) -> Option<Owned> {
        let listed = self.published()?;
        listed.heap().owns(at).then_some(Owned { listed })
    }

    /// Where this process counts and finds its settings; starts the heap if need be. `None` where
    /// nothing is served. While another thread starts the heap this waits, for a second at most:
    /// in a child that was forked in the middle of that, nobody goes on.
    pub fn slot(&self) -> Option<&'static CounterSlot> {
        let limit_ns = thread::now_ns() + 1_000_000_000;
        let listed = loop {
            match self.started() {
                None if self.state.load(Ordering::Relaxed) == BUSY
                    && thread::now_ns() < limit_ns =>
                {
                    thread::yield_now();
                }
                listed => break listed?,
            }
        };
        listed.is_current().then(|| listed.served.slot())
    }

    /// To be called before a seccomp filter is installed: from now on no system calls but those
    /// `malloc` makes, and no helper threads. A heap that has not started never does.
    pub fn go_quiet(&self) {
        // SeqCst, here and in `start`: of the thread that starts and the one that goes quiet, one
        // sees what the other has stored.
        self.quiet.store(true, Ordering::SeqCst);
        let off = self.state.compare_exchange(UNSTARTED, OFF, Ordering::Relaxed, Ordering::Relaxed);
        if off.is_ok() {
            return;
        }
        // SAFETY: null, or published and never unmapped.
        if let Some(listed) = unsafe { self.listed.load(Ordering::SeqCst).as_ref() } {
            listed.go_quiet();
        }
    }

    #[inline]
    fn published(&self) -> Option<&'static Listed> {
        // Acquire: pairs with the store in `start`.
        // SAFETY: null, or published and never unmapped.
        unsafe { self.listed.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn started(&self) -> Option<&'static Listed> {
        self.published().or_else(|| self.start())
    }

    #[cold]
    fn start(&self) -> Option<&'static Listed> {
        // Relaxed: the step hands nothing over; `listed` does.
        let relaxed = Ordering::Relaxed;
        self.state.compare_exchange(UNSTARTED, BUSY, relaxed, relaxed).ok()?;
        let started = {
            // A start takes more stack than a thread may have, and nothing may leave it half-way.
            let all_signals = thread::BlockedSignals::block();
            stack::on_another(&all_signals, Listed::start)
        };
        let Ok(Ok(listed)) = started else {
            self.state.store(OFF, Ordering::Relaxed);
            return None;
        };
        watch_fork(listed);
        // SeqCst: as in `go_quiet`; it is the Release that `published` pairs with, too.
        self.listed.store(from_ref(listed).cast_mut(), Ordering::SeqCst);
        self.state.store(SERVING, Ordering::Relaxed);
        if self.quiet.load(Ordering::SeqCst) {
            listed.go_quiet();
        }
        Some(listed)
    }
}

impl Default for ProcessHeap {
    fn default() -> ProcessHeap {
        ProcessHeap::new()
    }
}

impl Owned {
    /// Bytes usable at `at`; 0 if it is not the start of an allocation.
    pub fn usable_size(&self, at: *const u8) -> usize {
        self.listed.heap().usable_size(at)
    }

    /// Frees an allocation. In a child that can't use the heap it stays where it is.
    ///
    /// # Errors
    /// [`pumice_frames::error::Error::NotAllocated`] if `at` is not the start of one: a double free, or a
    /// stray pointer.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn free(&self, at: *mut u8) -> Result<()> {
        if !self.listed.is_current() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        unsafe { self.listed.heap().free(at) }
    }

    /// Makes an allocation `size` bytes long, where it stands or by moving its pages: its address.
    /// `None`: it is as before; allocate, copy and free.
    ///
    /// # Safety
    /// The caller owns the allocation, which is aligned to `align`, and after `Some` uses it at
    /// its new address only.
    pub unsafe fn resize(&self, at: *mut u8, size: usize, align: usize) -> Option<NonNull<u8>> {
        if !self.listed.is_current() {
            return None;
        }
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(new) = self.listed.heap().shrink_elsewhere(at, size, align) {
                return Some(new);
            }
            if self.listed.heap().resize_in_place(at, size) {
                return NonNull::new(at);
            }
            // Memory that has moved starts a block.
            if align > BLOCK_SIZE {
                return None;
            }
            self.listed.heap().relocate(at, size)
        }
    }

    /// Whether much of an allocation was never touched.
    pub fn is_sparse(&self, at: *const u8) -> bool {
        self.listed.heap().is_sparse(at)
    }

    /// Copies the first `len` bytes of a sparse allocation, without a page where it holds nothing.
    ///
    /// # Safety
    /// The caller owns both. The new place has so many bytes, which read as zeros, and is about to take the
    /// allocation's place.
    pub unsafe fn copy_sparse(&self, at: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.listed.heap().copy_sparse(at, to, len) }
    }

    /// Counts an event of this process.
    pub fn count(&self, event: Event) {
        self.listed.served.slot().add(event, 1);
    }
}

impl Listed {
    fn start() -> std::result::Result<&'static Listed, Reason> {
        let variables = environment::read();
        let mut name = [0; 16];
        let name = process::program_name(&mut name);
        process::find_refusal(&variables)?;
        process::find_obstacle(environment::page_size())?;
        // Its check panics, which an allocator must not; `ProcessHeap::allocate` looks instead.
        let zero_check = ZeroCheck::ByCaller;
        let host = Host { home: Affinity::here(), discard: None, zero_check };
        let served = Served::start(&variables, name, host)?;
        let quiet = AtomicBool::new(false);
        let listed = Listed { served, quiet, next: AtomicPtr::new(null_mut()) };
        let memory = mem::map_table(size_of::<Listed>()).map_err(|_| Reason::NoMemory)?;
        let memory = memory.cast::<Listed>();
        // SAFETY: freshly mapped for it, aligned to a page, and never unmapped.
        unsafe {
            memory.write(listed);
            Ok(memory.as_ref())
        }
    }

    #[inline]
    fn heap(&self) -> &Heap {
        self.served.heap()
    }

    fn go_quiet(&self) {
        // Relaxed: the thread that installs the filter has called this; for others it is not in force yet.
        self.quiet.store(true, Ordering::Relaxed);
        self.heap().go_quiet();
    }

    /// Whether this process may use the heap. Makes a forked child's heap its own.
    #[inline]
    fn is_current(&self) -> bool {
        let may_adopt = || !self.quiet.load(Ordering::Relaxed);
        // SAFETY: its word says so of one thread, before any other of the child uses the heap.
        let adopt = || unsafe { self.served.adopt() };
        self.served.word().is_current(|| may_adopt() && adopt())
    }
}

/// Heaps that are told of forks, the last one first. Static, since a fork handler has no argument.
static LAST: AtomicPtr<Listed> = AtomicPtr::new(null_mut());

/// Has [`Heap::before_fork`] called before each `fork` that goes through the C library, and
/// [`process::ProcessWord::note_fork`] after it.
fn watch_fork(listed: &'static Listed) {
    extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> c_int;
    }
    fn each(tell: impl Fn(&Listed)) {
        // Acquire: pairs with the Release below; the list's entries are whole.
        let mut at = LAST.load(Ordering::Acquire);
        // SAFETY: null, or in the list and so never unmapped.
        while let Some(listed) = unsafe { at.as_ref() } {
            tell(listed);
            // Relaxed: written before `listed` was in the list.
            at = listed.next.load(Ordering::Relaxed);
        }
    }
    extern "C" fn before_fork() {
        each(|listed| listed.heap().before_fork());
    }
    extern "C" fn in_child() {
        // Where a filter is in force it may not know the calls.
        each(|listed| {
            if !listed.heap().is_quiet() {
                listed.served.word().note_fork();
            }
        });
    }
    let push = |last| {
        listed.next.store(last, Ordering::Relaxed);
        Some(from_ref(listed).cast_mut())
    };
    // Release: pairs with the Acquire in `each`; Acquire: the earlier ones are handed on.
    let before = LAST.fetch_update(Ordering::AcqRel, Ordering::Acquire, push);
    if before.is_ok_and(|before| before.is_null()) {
        // SAFETY: functions that live as long as the process. Failing costs the parent time after a fork, and the
        // child's memory then belongs to the process that asks first.
        let _ = unsafe { pthread_atfork(Some(before_fork), None, Some(in_child)) };
    }
}

/// Says why on stderr and ends the program, without allocating or unwinding.
#[cold]
pub(super) fn fatal(why: &str) -> ! {
    // SAFETY: writing to stderr is all that is done, whatever it is; it is not closed here.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    for part in ["pumice: ", why, "\n"] {
        // There is nowhere to report a failure.
        let _ = rustix::io::write(stderr, part.as_bytes());
    }
    std::process::abort()
}
