//! Symbols that may be missing from the program.
//!
//! Stable Rust has no weak references, so the address is loaded from the global offset table by
//! hand: the dynamic linker leaves 0 there for a weak symbol that nobody defines.

/// The address of a symbol, or 0.
#[cfg(target_arch = "x86_64")]
macro_rules! address {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: loads one word, which the dynamic linker filled in before any code ran.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// The address of a symbol, or 0.
#[cfg(target_arch = "aarch64")]
macro_rules! address {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: loads one word, which the dynamic linker filled in before any code ran.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// A function of the program or its C library, if it has one of that name and this type.
macro_rules! function {
    ($name:literal: $type:ty) => {{
        let address = $crate::weak::address!($name);
        // SAFETY: the symbol has the same type wherever it is defined, and `None` is 0.
        unsafe { core::mem::transmute::<usize, Option<$type>>(address) }
    }};
}

pub(crate) use {address, function};
