//! Non-temporal stores of 32 bytes: around the cache.
//!
//! Both halves of a line are written back to back, so that the write-combining buffer leaves as
//! one full line. The stores are weakly ordered: [`super::cpu::CpuEngine`] fences after them.

use core::arch::asm;

use super::cut::clear_granules;
use crate::addr::CACHE_LINE;

/// Zeroes the range around the cache, unfenced.
///
/// # Safety
/// The range is writable and nobody else uses it; the processor and the kernel support AVX2.
#[inline]
pub(super) unsafe fn clear(at: *mut u8, len: usize) {
    let body = |at: *mut u8, len: usize| {
        // SAFETY: writes whole lines from `at` to `at + len`, which `clear_granules` cut from
        // the caller's range. The 128-bit vpxor zeroes the whole register and leaves its upper
        // half clean, so no vzeroupper is owed.
        unsafe {
            asm!(
                "vpxor {zero}, {zero}, {zero}",
                "2:",
                "vmovntdq [{at}], {zero:y}",
                "vmovntdq [{at} + 32], {zero:y}",
                "add {at}, 64",
                "cmp {at}, {end}",
                "jne 2b",
                at = inout(reg) at => _,
                end = in(reg) at.add(len),
                zero = out(xmm_reg) _,
                options(nostack),
            );
        }
    };
    // SAFETY: as the caller promises.
    unsafe { clear_granules(at, len, CACHE_LINE, body) }
}
