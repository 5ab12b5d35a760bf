//! Allocations that have outgrown a retired heap.
//!
//! A retired heap has no room, so `realloc` copies to the next allocator's memory. That is not possible where a filter
//! allows no call that copies guard pages, or where a limit leaves no room for both. Then the kernel moves the pages to
//! where it finds room, as it does for the C library. They are a mapping that a table keeps from then on. There is room
//! in it for the few large allocations that such programs have.
//!
//! Such a mapping has the attributes that it had: those of a zone, and those of the program's that were on all of it.
//!
//! Only page-aligned pointers are looked for in it, and none before there was an entry: see
//! [`crate::next::look_for_others`].
//!
//! # An entry
//! ```text
//! (0, 0) --claim--> (MOVING, len) --move--> (at, len) --realloc--> (MOVING, len) --> (at, len)
//!    ^                                          |
//!    +------------------- free -----------------+
//! ```
//! An address leaves the table before it goes back to the kernel, and enters it after it came from there: nobody else's
//! memory is ever found. Its owner has been told the address by the thread that entered it, so the stores are Relaxed.

use core::ffi::c_void;
use core::ptr::NonNull;

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem;
use pumice_heap::heap::Heap;

use crate::state;

/// Entries. Each may be a mapping that does not become one with those beside it, and a process may have 65,530.
const ENTRIES: usize = 512;
/// Shorter allocations are copied. The C library's that are shorter are not mappings either.
const LEAST_BYTES: usize = 128 << 10;
/// Stands for the address of an allocation that moves.
const MOVING: usize = 1;

/// An allocation, whose length is 0 where there is none.
#[derive(Debug)]
pub(crate) struct Entry {
    at: AtomicUsize,
    len: AtomicUsize,
}

static TABLE: [Entry; ENTRIES] =
    [const { Entry { at: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; ENTRIES];

/// The entry of an allocation.
pub(crate) fn find(at: *const c_void) -> Option<&'static Entry> {
    let at = at as usize;
    if at == 0 || at % FRAME_SIZE != 0 {
        return None;
    }
    TABLE.iter().find(|entry| entry.at.load(Ordering::Relaxed) == at)
}

/// Allocations in the table, and their bytes.
pub(crate) fn handed_out() -> (usize, usize) {
    let lens = TABLE.iter().map(|entry| entry.len.load(Ordering::Relaxed)).filter(|&len| len > 0);
    lens.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len))
}

/// Moves an allocation of a retired heap to where it has room for more bytes. `None`: it is as before. The caller has
/// made sure that `free` looks for it here.
///
/// # Safety
/// The caller owns it, and after `Some` uses it at its new address only.
pub(crate) unsafe fn take(heap: &Heap, at: *mut c_void, size: usize) -> Option<*mut c_void> {
    if heap.usable_size(at.cast()) < LEAST_BYTES {
        return None;
    }
    let len = size.checked_next_multiple_of(FRAME_SIZE)?;
    let entry = claim(len)?;
    // SAFETY: as the caller promises.
    let moved = unsafe { heap.outgrow(at.cast(), len) };
    match moved {
        Some(new) => entry.at.store(new.as_ptr() as usize, Ordering::Relaxed),
        None => entry.leave(),
    }
    moved.map(|new| new.as_ptr().cast())
}

/// An empty entry, now of an allocation that moves.
fn claim(len: usize) -> Option<&'static Entry> {
    let is_claimed = |entry: &&Entry| {
        // Acquire: pairs with the Release in `leave`, so that the address of the one before does not come after.
        entry.len.compare_exchange(0, len, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let entry = TABLE.iter().find(is_claimed)?;
    entry.at.store(MOVING, Ordering::Relaxed);
    Some(entry)
}

impl Entry {
    /// Its usable bytes.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn leave(&self) {
        self.at.store(0, Ordering::Relaxed);
        // Release: as `claim` says.
        self.len.store(0, Ordering::Release);
    }

    /// `free`.
    ///
    /// # Safety
    /// As `free`, of the entry's allocation.
    pub(crate) unsafe fn free(&self) {
        let (at, len) = (self.at.load(Ordering::Relaxed), self.len());
        if !state::may_unmap() {
            return;
        }
        self.leave();
        if let Some(at) = NonNull::new(at as *mut u8) {
            // SAFETY: the caller gives it up. Where the kernel refuses to unmap it, it stays, as the C library's does.
            let _ = unsafe { mem::unmap(at, len) };
        }
    }

    /// Has room for `size` bytes, more than none, there or elsewhere: its new address. `None`: it is as before.
    ///
    /// # Safety
    /// The caller owns the entry's allocation, and uses it at its new address only.
    pub(crate) unsafe fn resize(&self, size: usize) -> Option<*mut c_void> {
        let len = size.checked_next_multiple_of(FRAME_SIZE).filter(|_| state::may_unmap())?;
        let at = self.at.swap(MOVING, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        let moved = unsafe { mem::resize(at as *mut u8, self.len(), len) };
        if moved.is_ok() {
            self.len.store(len, Ordering::Relaxed);
        }
        self.at.store(moved.map_or(at, |new| new.as_ptr() as usize), Ordering::Relaxed);
        moved.ok().map(|new| new.as_ptr().cast())
    }
}
