//! Runs of frames for `malloc`-sized requests.

use crate::clear::Clearer;
use crate::error::Result;
use crate::stats::{Slot, Tree};
use core::ptr::NonNull;

/// What a request wants to find in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Anything (`malloc`).
    Any,
    /// Zeros (`calloc`).
    Zero,
}

/// What a heap is told when it starts.
#[derive(Debug)]
pub struct HeapConfig {
    /// The tree whose pool this heap's memory counts for.
    pub tree: &'static Tree,
    /// Where this process counts.
    pub slot: &'static Slot,
    /// Bytes to populate ahead.
    pub ready_bytes: usize,
    /// Whether to check that memory said to be zero is.
    pub verify: bool,
    /// The engines.
    pub clearer: Clearer,
    /// Whether a helper thread may be started.
    pub threads: bool,
}

/// Serves runs of frames.
#[derive(Debug)]
pub struct Heap {}

impl Heap {
    /// Reserves the zones.
    pub fn new(_config: HeapConfig) -> Result<Heap> {
        Ok(Heap {})
    }
    /// `None`: ask the next allocator.
    pub fn allocate(&self, _size: usize, _align: usize, _content: Content) -> Option<NonNull<u8>> {
        None
    }
    /// Whether the address lies in one of the heap's zones (two comparisons).
    #[inline]
    pub fn owns(&self, _at: *const u8) -> bool {
        false
    }
    /// Bytes usable at `at`; 0 if it is not the start of an allocation.
    pub fn usable_size(&self, _at: *const u8) -> usize {
        0
    }
    /// Frees an allocation.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn free(&self, _at: *mut u8) -> Result<()> {
        Ok(())
    }
    /// Grows or shrinks where it stands. `false`: allocate, copy, free.
    ///
    /// # Safety
    /// The caller owns the allocation.
    pub unsafe fn resize_in_place(&self, _at: *mut u8, _size: usize) -> bool {
        false
    }
    /// To be called in the parent just before a `fork`.
    pub fn before_fork(&self) {}
    /// To be called in the child just after a `fork` (or found out later: it is idempotent).
    pub fn after_fork_in_child(&self, _slot: &'static Slot) {}
    /// From now on no system calls but those `malloc` makes: a seccomp filter is in force.
    pub fn go_quiet(&self) {}
}
