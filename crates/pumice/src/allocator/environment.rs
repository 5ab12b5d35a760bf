//! The variables the process was started with.
//!
//! They are read from `/proc`: `std::env` allocates, and a lock of its own guards it, which the
//! thread that allocates may hold.

use std::ffi::c_ulong;
use std::ptr::NonNull;

use pumice_frames::sys::{file, mem};
use pumice_heap::process::Variables;

/// The most that is read of `/proc/self/environ`.
const MOST_BYTES: usize = 256 << 10;
/// Kinds of the auxiliary vector (getauxval(3)).
const AT_PAGESZ: c_ulong = 6;
const AT_SECURE: c_ulong = 23;

/// Strings, each ended by a zero byte; gone when this is.
pub(super) struct Environment {
    memory: Option<NonNull<u8>>,
    len: usize,
}

impl Environment {
    /// Empty where it can't be read, and in programs that gain privileges: those must not be led
    /// by whoever calls them.
    pub(super) fn read() -> Environment {
        let is_privileged = auxiliary_value(AT_SECURE) != 0;
        let memory = if is_privileged { None } else { mem::map_table(MOST_BYTES).ok() };
        let len = memory.map_or(0, |memory| {
            // SAFETY: freshly mapped, and not used otherwise until it is unmapped.
            let buffer = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), MOST_BYTES) };
            file::read(c"/proc/self/environ", buffer).map_or(0, |read| read.len())
        });
        Environment { memory, len }
    }
}

impl Variables for Environment {
    fn get(&self, name: &str) -> Option<&str> {
        // SAFETY: `len` bytes were read there, and nobody writes them.
        let block = unsafe { std::slice::from_raw_parts(self.memory?.as_ptr(), self.len) };
        let found = block.split(|&byte| byte == 0).find_map(|entry| value_of(name, entry))?;
        std::str::from_utf8(found).ok()
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: mapped at this length by `read`; what `get` lends does not outlive this.
            // Failing that it stays mapped.
            let _ = unsafe { rustix::mm::munmap(memory.as_ptr().cast(), MOST_BYTES) };
        }
    }
}

fn value_of<'e>(name: &str, entry: &'e [u8]) -> Option<&'e [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Bytes in a page of this kernel.
pub(super) fn page_size() -> usize {
    auxiliary_value(AT_PAGESZ) as usize
}

fn auxiliary_value(kind: c_ulong) -> c_ulong {
    extern "C" {
        fn getauxval(kind: c_ulong) -> c_ulong;
    }
    // SAFETY: it takes any number; the C library that std needs has it.
    unsafe { getauxval(kind) }
}
