//! `clzero` (AMD): one instruction zeroes a line, around the cache.
//!
//! It is weakly ordered like a non-temporal store: [`super::cpu::CpuEngine`] fences after it
//! (AMD64 manual volume 3, CLZERO).

use core::arch::asm;

use super::cut::clear_granules;
use crate::addr::CACHE_LINE;

/// Zeroes the range around the cache, unfenced.
///
/// # Safety
/// The range is writable and nobody else uses it; the processor has CLZERO with lines of 64
/// bytes.
#[inline]
pub(super) unsafe fn clear(at: *mut u8, len: usize) {
    let body = |at: *mut u8, len: usize| {
        // SAFETY: zeroes whole lines from `at` to `at + len`, which `clear_granules` cut from
        // the caller's range.
        unsafe {
            asm!(
                "2:",
                "clzero",
                "add rax, 64",
                "cmp rax, {end}",
                "jne 2b",
                inout("rax") at => _,
                end = in(reg) at.add(len),
                options(nostack),
            );
        }
    };
    // SAFETY: as the caller promises.
    unsafe { clear_granules(at, len, CACHE_LINE, body) }
}
