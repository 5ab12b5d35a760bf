//! A region of the kernel's, which its worker's control group has too little memory for.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice_frames::addr::FRAME_SIZE;
use pumice_io::Cached;
use rustix::mm::{madvise, mmap_anonymous, Advice, MapFlags, ProtFlags};

use super::job::Request;
use super::worker::{Memory, Touch};
use crate::proc_file;
use crate::spent::kernel_threads_cpu_s;
use crate::team::answer::Answer;

/// A private anonymous mapping in pages of 4 KiB.
#[derive(Debug)]
pub struct Kernel {
    words: &'static [AtomicU64],
}

const WORDS: usize = FRAME_SIZE / 8;

impl Kernel {
    /// For the rest of the process.
    pub fn map(pages: usize) -> Result<Kernel, String> {
        let (len, access) = (pages * FRAME_SIZE, ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping.
        let at = unsafe { mmap_anonymous(null_mut(), len, access, flags) }
            .map_err(|errno| format!("can't map {len} bytes: {errno}"))?;
        // SAFETY: the range mapped above. Without huge pages the kernel has nothing to turn off.
        let _ = unsafe { madvise(at, len, Advice::LinuxNoHugepage) };
        // SAFETY: the mapping stays as long as the process, and atomics may be shared.
        let words = unsafe { std::slice::from_raw_parts(at.cast(), len / 8) };
        Ok(Kernel { words })
    }
}

/// The word of a page that is touched: not always the same line, which would fall in one set of the cache.
fn word(page: usize) -> usize {
    page * WORDS + page % 64 * 8
}

impl Touch for Kernel {
    fn write(&self, page: usize, value: u64) -> Result<(), String> {
        // Relaxed: nobody reads what another wrote.
        self.words[word(page)].store(value, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, page: usize) -> Result<u64, String> {
        Ok(self.words[word(page)].load(Ordering::Relaxed))
    }
}

impl Memory for Kernel {
    fn enter(&self, work: &mut dyn FnMut(&dyn Touch)) -> Result<(), String> {
        work(self);
        Ok(())
    }

    fn swapped(&self) -> (u64, u64) {
        let of = |name: &str| proc_file::number("/proc/vmstat", name).unwrap_or(0);
        (of("pswpin"), of("pswpout"))
    }

    fn helpers_cpu_s(&self) -> f64 {
        kernel_threads_cpu_s("kswapd")
    }

    fn cached(&self) -> Cached {
        Cached::Yes
    }

    fn hits(&self, _: &Request) -> Option<Result<Answer, String>> {
        None
    }
}
