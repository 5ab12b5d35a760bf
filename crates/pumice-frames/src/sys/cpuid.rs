//! CPUID: an x86 processor's description of itself. In a virtual machine each call is a trip to the hypervisor.

use core::arch::asm;

/// Registers as CPUID leaves them.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The register's low half.
    pub eax: u32,
    /// The register's low half.
    pub ebx: u32,
    /// The register's low half.
    pub ecx: u32,
    /// The register's low half.
    pub edx: u32,
}

impl Leaf {
    /// As a leaf that the processor does not have.
    pub const NONE: Leaf = Leaf { eax: 0, ebx: 0, ecx: 0, edx: 0 };
}

/// Subleaf 0 of a leaf.
pub fn cpuid(leaf: u32) -> Leaf {
    let (eax, ebx, ecx, edx): (u32, u64, u32, u32);
    // SAFETY: CPUID only reads; rbx, which the compiler reserves, is put back.
    unsafe {
        asm!(
            "mov {saved}, rbx",
            "cpuid",
            "xchg {saved}, rbx",
            saved = out(reg) ebx,
            inout("eax") leaf => eax,
            inout("ecx") 0 => ecx,
            out("edx") edx,
            options(nostack, nomem, preserves_flags),
        );
    }
    Leaf { eax, ebx: ebx as u32, ecx, edx }
}
