//! The heap as a Rust program's allocator: [`Allocator`].
//!
//! Requests under the threshold, and those the heap declines, are [`std::alloc::System`]'s. A pointer's address tells
//! its allocator; memory whose layout is under the threshold is never the heap's, so freeing it costs one comparison
//! more than without.
//!
//! Nothing here allocates through the program's allocator or unwinds into it: a state that should be impossible ends
//! the program.

mod environment;
mod process;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null_mut, NonNull};

pub use process::{Owned, ProcessHeap};

use pumice_heap::config::{DEFAULT_THRESHOLD, MIN_THRESHOLD};
use pumice_heap::heap::Content;
use pumice_heap::stats::{CounterSlot, Event};

/// An allocator whose large requests are served from memory that is already there and already
/// zero, so that `vec![0; n]` costs neither faults nor zeroing.
///
/// It makes no thread and no mapping before the first request of the threshold's size, and follows
/// the process through `fork`. `PUMICE_*` variables hold for it as for a program under `pumice
/// run`, but for `PUMICE_THRESHOLD`: `PUMICE=off` leaves everything to the system's allocator. They
/// are taken as they were when the program started.
///
/// Each `Allocator` that is used has a heap of its own, which stays for the rest of the process.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: pumice::Allocator = pumice::Allocator::new();
///
/// let zeros = vec![0u8; 100 << 20];
/// assert!(zeros.iter().step_by(4096).all(|&byte| byte == 0));
/// ```
#[derive(Debug)]
pub struct Allocator {
    threshold: usize,
    heap: ProcessHeap,
}

impl Allocator {
    /// Serves requests of 64 KiB and more.
    pub const fn new() -> Allocator {
        Allocator::with_threshold(DEFAULT_THRESHOLD)
    }

    /// Serves requests of `bytes` and more; 4 KiB at least.
    pub const fn with_threshold(bytes: usize) -> Allocator {
        let threshold = if bytes < MIN_THRESHOLD { MIN_THRESHOLD } else { bytes };
        Allocator { threshold, heap: ProcessHeap::new() }
    }

    /// Where the process counts ([`Event`]) and finds its settings ([`Setting`](crate::config::Setting)).
    /// `None` where nothing is served: by `PUMICE=off`, say, or under `ulimit -v`.
    pub fn slot(&self) -> Option<&'static CounterSlot> {
        self.heap.slot()
    }

    /// See [`ProcessHeap::go_quiet`].
    pub fn go_quiet(&self) {
        self.heap.go_quiet();
    }

    /// The heap's part of a request; null leaves it to the system. As all that calls the heap it
    /// is `extern "C"`, which can't unwind.
    #[cold]
    extern "C" fn serve(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        let content = if zero { Content::Zero } else { Content::Any };
        self.heap.allocate(size, align, content).map_or(null_mut(), NonNull::as_ptr)
    }

    /// Frees memory if it is the heap's, and says whether it was.
    ///
    /// # Safety
    /// As [`GlobalAlloc::dealloc`].
    #[cold]
    unsafe extern "C" fn free_owned(&self, at: *mut u8) -> bool {
        let Some(owned) = self.heap.owned(at) else { return false };
        // SAFETY: as the caller promises.
        if unsafe { owned.free(at) }.is_err() {
            process::fatal("memory is freed twice, or was never allocated");
        }
        true
    }

    /// `realloc` where the heap has a part in it. Null: it has none, and nothing was done.
    ///
    /// # Safety
    /// As [`GlobalAlloc::realloc`], and one of the sizes reaches the threshold.
    #[cold]
    unsafe extern "C" fn resize(
        &self,
        at: *mut u8,
        old: usize,
        align: usize,
        size: usize,
    ) -> *mut u8 {
        let Some(owned) = self.heap.owned(at) else {
            // Memory that is large already was declined before and stays: its owner can move pages.
            if old >= self.threshold {
                return null_mut();
            }
            let new = self.serve(size, align, false);
            if !new.is_null() {
                // SAFETY: `old` is under the threshold and `size` is not; the memory is the
                // system's, of this layout.
                unsafe {
                    new.copy_from_nonoverlapping(at, old);
                    System.dealloc(at, Layout::from_size_align_unchecked(old, align));
                }
            }
            return new;
        };
        if size >= self.threshold {
            // SAFETY: the caller owns it.
            if let Some(new) = unsafe { owned.resize(at, size, align) } {
                return new.as_ptr();
            }
        }
        owned.count(Event::ReallocMoved);
        // SAFETY: the layout is valid by the caller's promise; both allocations are at least as
        // long as what is copied, and the old one is not used again.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, align);
            let is_sparse = owned.is_sparse(at);
            let new = if is_sparse { self.alloc_zeroed(layout) } else { self.alloc(layout) };
            if new.is_null() {
                return new;
            }
            match is_sparse {
                true => owned.copy_sparse(at, new, old.min(size)),
                false => new.copy_from_nonoverlapping(at, old.min(size)),
            }
            self.free_owned(at);
            new
        }
    }
}

impl Default for Allocator {
    fn default() -> Allocator {
        Allocator::new()
    }
}

// SAFETY: memory that the heap gives has the size and alignment asked for, and reads as zeros where that was asked; it
// stays the heap's until it is freed, by address, whatever the threshold. All else is the system allocator's, with the
// caller's own arguments.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= self.threshold {
            let at = self.serve(layout.size(), layout.align(), false);
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: forwarded with the caller's promise.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= self.threshold {
            let at = self.serve(layout.size(), layout.align(), true);
            if !at.is_null() {
                return at;
            }
        }
        // SAFETY: forwarded with the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwarded with the caller's promise.
        unsafe {
            if layout.size() < self.threshold || !self.free_owned(at) {
                System.dealloc(at, layout);
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size().max(size) >= self.threshold {
            // SAFETY: forwarded with the caller's promise.
            let new = unsafe { self.resize(at, layout.size(), layout.align(), size) };
            if !new.is_null() {
                return new;
            }
            if self.heap.owned(at).is_some() {
                // Out of memory, and the memory is as it was.
                return null_mut();
            }
        }
        // SAFETY: forwarded with the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}
