//! Instructions that hand 64 bytes to a device at once (Intel SDM volume 2, MOVDIR64B, ENQCMD).
//!
//! Both are weakly ordered: the fence before them puts what the descriptor points to before it.

use core::arch::asm;

use pumice_frames::sys::cpuid::{cpuid, Leaf};

/// Which of them the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// MOVDIR64B
    pub movdir64b: bool,
    /// ENQCMD
    pub enqcmd: bool,
}

impl Enqueue {
    /// Asks the processor. In a virtual machine that is two trips to the hypervisor.
    pub fn detect() -> Enqueue {
        let leaf = if cpuid(0).eax >= 7 { cpuid(7) } else { Leaf::NONE };
        let bit = |bit: u32| leaf.ecx >> bit & 1 != 0;
        Enqueue { movdir64b: bit(28), enqcmd: bit(29) }
    }
}

/// Stores 64 bytes at once, around the cache.
///
/// # Safety
/// `at` is writable for 64 bytes, and aligned to them; the processor has MOVDIR64B.
pub unsafe fn movdir64b<T>(at: *mut u8, bytes: &T) {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "sfence",
            "movdir64b {at}, [{bytes}]",
            at = in(reg) at,
            bytes = in(reg) bytes,
            options(nostack, preserves_flags),
        );
    }
}

/// Offers 64 bytes to a shared queue; whether it took them.
///
/// # Safety
/// `at` is a queue's portal, aligned to 64 bytes; the processor has ENQCMD.
pub unsafe fn enqcmd<T>(at: *mut u8, bytes: &T) -> bool {
    const { assert!(size_of::<T>() == 64) };
    let refused: u8;
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "sfence",
            "enqcmd {at}, [{bytes}]",
            "setz {refused}",
            at = in(reg) at,
            bytes = in(reg) bytes,
            refused = out(reg_byte) refused,
            options(nostack),
        );
    }
    refused == 0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn all_64_bytes_arrive() {
        if !Enqueue::detect().movdir64b {
            eprintln!("skipped: this processor has no MOVDIR64B");
            return;
        }
        #[repr(align(64))]
        struct Line([u8; 64]);
        let from = Line(core::array::from_fn(|index| index as u8));
        let mut to = Line([0xff; 64]);
        // SAFETY: a line of our own.
        unsafe { movdir64b(to.0.as_mut_ptr(), &from) };
        assert_eq!(to.0, from.0);
    }
}
