//! Symbols that may be missing from the program.
//!
//! Stable Rust has no weak references, so the address is loaded from the global offset table by
//! hand: the dynamic linker leaves 0 there for a weak symbol that nobody defines.

/// The address of a symbol, or 0.
macro_rules! address {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: loads one word, which the dynamic linker filled in before any code ran.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
            #[cfg(target_arch = "aarch64")]
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

/// Whether the program or one of its libraries has any of these symbols.
macro_rules! has_any {
    ($($name:literal),+ $(,)?) => { $($crate::weak::address!($name) != 0)||+ };
}

/// A function of the program or its C library, if it has one of that name and this type.
macro_rules! function {
    ($name:literal: $type:ty) => {{
        let address = $crate::weak::address!($name);
        // SAFETY: the symbol has the same type wherever it is defined, and `None` is 0.
        unsafe { core::mem::transmute::<usize, Option<$type>>(address) }
    }};
}

/// Whether the C library is glibc.
pub(crate) fn is_glibc() -> bool {
    has_any!("gnu_get_libc_version")
}

pub(crate) use {address, function, has_any};
