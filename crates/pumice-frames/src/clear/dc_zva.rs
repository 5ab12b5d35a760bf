//! `dc zva` (aarch64): one instruction zeroes a block of the size `DCZID_EL0` names.
//!
//! An ordinary store as far as ordering goes, so it needs no fence; whether it fills the cache is
//! the implementation's choice (most stop filling it in long runs). It works on normal memory
//! only, which all memory of ours is.

use core::arch::asm;

use super::cut::clear_granules;

/// Zeroes the range, `granule` bytes at a time.
///
/// # Safety
/// The range is writable and nobody else uses it; `granule` is what [`super::detect`] found.
#[inline]
pub(super) unsafe fn clear(at: *mut u8, len: usize, granule: usize) {
    let body = |at: *mut u8, len: usize| {
        // SAFETY: zeroes whole granules from `at` to `at + len`, which `clear_granules` cut from
        // the caller's range.
        unsafe {
            asm!(
                "2:",
                "dc zva, {at}",
                "add {at}, {at}, {granule}",
                "cmp {at}, {end}",
                "b.ne 2b",
                at = inout(reg) at => _,
                end = in(reg) at.add(len),
                granule = in(reg) granule,
                options(nostack),
            );
        }
    };
    // SAFETY: as the caller promises.
    unsafe { clear_granules(at, len, granule, body) }
}
