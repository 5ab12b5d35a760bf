//! One way to a file, as a worker takes it, and the bytes of the file's pages.

use std::ops::Range;

use pumice_frames::addr::FRAME_SIZE;

use super::job::{Op, CHUNK};
use pumice_bench::proc_file;
use pumice_bench::spent::kernel_threads_cpu_s;

/// Pages of a chunk.
pub const CHUNK_PAGES: usize = CHUNK / FRAME_SIZE;
/// A thread's way to the file. Page `n` begins with the number `n`, and every access looks at that.
pub trait PageAccess {
    /// Writes a chunk, all of it.
    fn fill(&mut self, chunk: usize) -> Result<(), String>;
    /// Changes a word of each page of a chunk.
    fn change(&mut self, chunk: usize) -> Result<(), String>;
    /// Looks at each page of a chunk.
    fn look(&mut self, chunk: usize) -> Result<(), String> {
        pages_of(chunk).try_for_each(|page| self.look_at(page))
    }
    /// Says which pages will be wanted soon, in this order.
    fn ask(&mut self, pages: &[usize]) -> Result<(), String>;
    /// Looks at a page.
    fn look_at(&mut self, page: usize) -> Result<(), String>;
    /// Whether a page is in memory; `None` if that can't be known.
    fn is_there(&mut self, page: usize) -> Option<bool>;
}

/// A file, and a cache in front of it.
pub trait Backend: Sync {
    /// Before an operation, and not part of it. The file is empty, with its blocks reserved, before it is written;
    /// nothing of it is in memory before it is read in order.
    fn prepare(&self, op: Op) -> Result<(), String>;
    /// Runs `work` with the calling thread's way to the file.
    fn enter(&self, work: &mut dyn FnMut(&mut dyn PageAccess)) -> Result<(), String>;
    /// Makes durable all that was written.
    fn sync(&self) -> Result<(), String>;
    /// Pages read from the device so far: by this process, as the kernel counts.
    fn pages_in(&self) -> u64 {
        proc_file::number("/proc/self/io", "read_bytes").unwrap_or(0) / FRAME_SIZE as u64
    }
    /// Processor time of threads beside the process's that work for it: the kernel's.
    fn helpers_cpu_s(&self) -> f64 {
        kernel_threads_cpu_s("kswapd")
    }
}

/// The pages of a chunk.
pub fn pages_of(chunk: usize) -> Range<usize> {
    chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES
}

/// Checks the number that a page begins with.
pub fn check(page: usize, bytes: &[u8]) -> Result<(), String> {
    let first = bytes[..8].try_into().map_or(0, u64::from_le_bytes);
    if first == page as u64 {
        return Ok(());
    }
    Err(format!("page {page} begins with {first}"))
}

/// Makes all of a page.
pub fn fill(page: usize, bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&(page as u64).to_le_bytes());
    }
}

/// Changes a page, but not what it begins with.
pub fn change(bytes: &mut [u8]) {
    bytes[FRAME_SIZE - 1] = bytes[FRAME_SIZE - 1].wrapping_add(1);
}
