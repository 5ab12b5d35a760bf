//! Where and how a helper thread runs: not as the thread that happened to start it.

use linux_raw_sys::general::{SCHED_FIFO, SCHED_RESET_ON_FORK as RESET_ON_FORK, SCHED_RR};

use super::raw;

/// Processors a thread may have: 8,192, as many as the kernel can be built for.
const WORDS: usize = 128;

/// The processors that a thread may run on.
#[derive(Clone, Copy, Debug)]
pub struct Affinity {
    words: [u64; WORDS],
    /// Bytes that the kernel filled in; 0 if it is not known.
    len: usize,
}

impl Affinity {
    /// Not known: [`Affinity::enter`] does nothing.
    pub const UNKNOWN: Affinity = Affinity { words: [0; WORDS], len: 0 };

    /// The calling thread's.
    pub fn here() -> Affinity {
        let mut here = Affinity::UNKNOWN;
        let args = [0, size_of_val(&here.words), here.words.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel writes so many bytes at most.
        let len = unsafe { raw::syscall(raw::number::__NR_sched_getaffinity, args) };
        here.len = len.unwrap_or(0).min(size_of_val(&here.words));
        here
    }

    /// Has the calling thread run there. Where that fails it stays where it is.
    pub fn enter(&self) {
        if self.len > 0 {
            let args = [0, self.len, self.words.as_ptr() as usize, 0, 0, 0];
            // SAFETY: the kernel reads so many bytes.
            let _ = unsafe { raw::syscall(raw::number::__NR_sched_setaffinity, args) };
        }
    }
}

/// Has the calling thread be one of the normal class (`SCHED_OTHER`): one under `SCHED_FIFO` would keep a processor
/// from the program. Where that fails it stays as it is.
pub fn leave_class() {
    let priority = 0i32;
    let class = linux_raw_sys::general::SCHED_NORMAL as usize;
    let args = [0, class, core::ptr::from_ref(&priority) as usize, 0, 0, 0];
    // SAFETY: `struct sched_param` is one integer.
    let _ = unsafe { raw::syscall(raw::number::__NR_sched_setscheduler, args) };
}

/// Has a thread run in the calling thread's class, if that is a real-time one: the caller is about to wait for its end,
/// and others may keep it from every processor it may use. Where that fails it stays as it is.
pub fn lend_class(thread: u32) {
    // SAFETY: asks only.
    let class = unsafe { raw::syscall(raw::number::__NR_sched_getscheduler, [0; 6]) };
    let is_real_time =
        |class: &usize| matches!(*class as u32 & !RESET_ON_FORK, SCHED_FIFO | SCHED_RR);
    let Some(class) = class.ok().filter(is_real_time) else { return };
    let mut priority = 0i32;
    let at = (&raw mut priority) as usize;
    // SAFETY: `struct sched_param` is one integer.
    unsafe {
        if raw::syscall(raw::number::__NR_sched_getparam, [0, at, 0, 0, 0, 0]).is_ok() {
            let args = [thread as usize, class, at, 0, 0, 0];
            let _ = raw::syscall(raw::number::__NR_sched_setscheduler, args);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_where_it_was() {
        let here = Affinity::here();
        assert!(here.len > 0 && here.words.iter().any(|&word| word != 0));
        here.enter();
        leave_class();
        assert_eq!(Affinity::here().words, here.words);
        Affinity::UNKNOWN.enter();
    }
}
