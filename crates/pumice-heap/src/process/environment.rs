//! The environment that a process was started with, read without libc.
//!
//! `std::env` allocates, and has a lock of its own, which the thread that allocates may hold.

use core::ptr::NonNull;

use super::Variables;
use pumice_frames::sys::{file, mem};

/// `getauxval(3)`: the size of a page.
pub const AT_PAGESZ: usize = 6;
/// `getauxval(3)`: whether this is a set-user-ID program or the like.
pub const AT_SECURE: usize = 23;

/// The most that is read of `/proc/self/environ`.
const MOST_BYTES: usize = 256 << 10;

/// The variables as `/proc/self/environ` has them: strings, each ended by a zero byte. They go when this is dropped.
#[derive(Debug)]
pub struct EnvironmentBlock {
    memory: Option<NonNull<u8>>,
    len: usize,
}

impl EnvironmentBlock {
    /// No variables.
    pub const EMPTY: EnvironmentBlock = EnvironmentBlock { memory: None, len: 0 };

    /// Reads them; [`EnvironmentBlock::EMPTY`] where that is not possible.
    pub fn read() -> EnvironmentBlock {
        let Ok(memory) = mem::map_table(MOST_BYTES) else { return EnvironmentBlock::EMPTY };
        // SAFETY: freshly mapped, and not used otherwise until it is unmapped.
        let buffer = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), MOST_BYTES) };
        let len = file::read(c"/proc/self/environ", buffer).map_or(0, |read| read.len());
        EnvironmentBlock { memory: Some(memory), len }
    }

    /// The variables, each as `NAME=value`.
    pub fn entries(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let block = self.memory.map_or(&[][..], |memory| {
            // SAFETY: `len` bytes were read there, and nobody writes them.
            unsafe { core::slice::from_raw_parts(memory.as_ptr(), self.len) }
        });
        block.split(|&byte| byte == 0)
    }
}

impl Variables for EnvironmentBlock {
    fn get(&self, name: &str) -> Option<&str> {
        self.entries().find_map(|entry| value_of(name, entry))
    }
}

impl Drop for EnvironmentBlock {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: mapped at this length by `read`; the values that `get` lends do not outlive this. Failing that it
            // stays mapped.
            let _ = unsafe { mem::unmap(memory, MOST_BYTES) };
        }
    }
}

/// The value of a variable, if this entry of an environment (`NAME=value`) is its own and is text.
pub fn value_of<'e>(name: &str, entry: &'e [u8]) -> Option<&'e str> {
    let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    core::str::from_utf8(value).ok()
}
