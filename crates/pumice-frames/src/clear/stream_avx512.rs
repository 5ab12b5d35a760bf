//! Non-temporal stores of 64 bytes: around the cache, a whole line at a time.
//!
//! A line leaves as one store, so no write-combining buffer can be torn in two. The stores are
//! weakly ordered: [`super::cpu::CpuEngine`] fences after them.

use core::arch::asm;

use super::cut::clear_granules;
use crate::addr::CACHE_LINE;

/// Zeroes the range around the cache, unfenced.
///
/// # Safety
/// The range is writable and nobody else uses it; the processor and the kernel support AVX-512F.
#[inline]
pub(super) unsafe fn clear(at: *mut u8, len: usize) {
    let body = |at: *mut u8, len: usize| {
        // SAFETY: writes whole lines from `at` to `at + len`, which `clear_granules` cut from
        // the caller's range. xmm0 stands for all of zmm0, and the 128-bit vpxor zeroes all of
        // it while leaving its upper part clean, so no vzeroupper is owed. (The register is
        // named because the zmm class needs a target feature that crate users don't enable.)
        unsafe {
            asm!(
                "vpxor xmm0, xmm0, xmm0",
                "2:",
                "vmovntdq [{at}], zmm0",
                "add {at}, 64",
                "cmp {at}, {end}",
                "jne 2b",
                at = inout(reg) at => _,
                end = in(reg) at.add(len),
                out("xmm0") _,
                options(nostack),
            );
        }
    };
    // SAFETY: as the caller promises.
    unsafe { clear_granules(at, len, CACHE_LINE, body) }
}
