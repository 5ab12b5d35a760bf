//! Stand-ins for the kernel: memory that fails on demand, and nodes that are where a test says.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use rustix::io::Errno;

use super::mem::{Dump, Huge, Memory, Os};

/// Forwards to the kernel, but lets a test say after how many calls one fails.
#[derive(Debug)]
pub struct FakeMemory {
    errno: Errno,
    calls_until_failure: AtomicUsize,
}

impl FakeMemory {
    /// Fails every call after the first `calls`.
    pub fn failing_after(calls: usize, errno: Errno) -> FakeMemory {
        FakeMemory { errno, calls_until_failure: AtomicUsize::new(calls) }
    }

    /// Lets `calls` more calls through.
    pub fn allow(&self, calls: usize) {
        self.calls_until_failure.store(calls, Ordering::Relaxed);
    }

    fn call<T>(&self, make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let spend = |left: usize| left.checked_sub(1);
        // Relaxed: a plain countdown that orders nothing else.
        match self.calls_until_failure.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => make(),
            Err(_) => Err(self.errno),
        }
    }
}

/// A machine of several nodes, all of whose threads run on one of them.
#[derive(Debug, Default)]
pub struct FakeNodes {
    here: AtomicUsize,
    preferred: Mutex<Vec<usize>>,
}

impl FakeNodes {
    /// Has everybody run on another node.
    pub fn move_to(&self, node: usize) {
        self.here.store(node, Ordering::Relaxed);
    }

    /// The nodes that memory was to come from, since this was last asked.
    pub fn preferred(&self) -> Vec<usize> {
        core::mem::take(&mut self.preferred.lock().expect("nobody panics with it"))
    }

    pub(super) fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    pub(super) fn prefer(&self, node: usize) {
        self.preferred.lock().expect("nobody panics with it").push(node);
    }
}

/// Methods that forward to the kernel's.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),+) $(-> $result:ty)?;)+) => {$(
        unsafe fn $name(&self, $($argument: $type),+) -> Result<forward!(@ $($result)?), Errno> {
            // SAFETY: forwarded with the caller's promise.
            self.call(|| unsafe { Os.$name($($argument),+) })
        }
    )+};
    (@) => { () };
    (@ $result:ty) => { $result };
}

// SAFETY: every call that succeeds is the kernel's.
unsafe impl Memory for FakeMemory {
    unsafe fn release(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { Os.release(at, len) }
    }

    fn reserve(&self, len: usize, align: usize) -> Result<NonNull<u8>, Errno> {
        self.call(|| Os.reserve(len, align))
    }

    forward! {
        commit(at: *mut u8, len: usize);
        decommit(at: *mut u8, len: usize);
        reset(at: *mut u8, len: usize);
        set_huge(at: *mut u8, len: usize, huge: Huge);
        set_dumped(at: *mut u8, len: usize, dump: Dump);
        populate(at: *mut u8, len: usize);
        discard(at: *mut u8, len: usize);
        offer(at: *mut u8, len: usize);
        relocate(from: *mut u8, to: *mut u8, len: usize);
        move_and_grow(from: *mut u8, len: usize, to: *mut u8, new_len: usize);
        resident(at: *mut u8, len: usize) -> usize;
    }
}
