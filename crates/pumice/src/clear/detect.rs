//! What the processor, and the kernel that saves its registers, support.
//!
//! `is_x86_feature_detected!` needs std, so CPUID and XGETBV are asked here. In a virtual machine
//! each CPUID is a trip to the hypervisor (1 µs to 2 µs): ask once, and only for the leaves needed.

pub(super) use imp::{cpu_key, Features};

/// Mixes bytes into a 64-bit FNV-1a hash.
fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

#[cfg(target_arch = "x86_64")]
mod imp {
    use core::arch::asm;

    /// Which engines can run here.
    #[derive(Clone, Copy, Debug)]
    pub struct Features {
        /// `rep stosb` is fast (ERMS)
        pub fast_stosb: bool,
        pub avx2: bool,
        pub avx512: bool,
        pub clzero: bool,
    }

    /// Registers as CPUID leaves them.
    #[derive(Clone, Copy)]
    struct Leaf {
        eax: u32,
        ebx: u32,
        ecx: u32,
        edx: u32,
    }

    const VENDOR_AMD: &[u8; 12] = b"AuthenticAMD";
    const VENDOR_HYGON: &[u8; 12] = b"HygonGenuine";

    impl Features {
        pub fn detect() -> Features {
            let first = cpuid(0);
            let basic = cpuid(1);
            let extended = if first.eax >= 7 { cpuid(7) } else { NO_LEAF };

            const OSXSAVE: u32 = 27;
            const AVX: u32 = 28;
            let saved = if bit(basic.ecx, OSXSAVE) && bit(basic.ecx, AVX) { xcr0() } else { 0 };
            // Bits of XCR0: SSE and AVX state; and the mask registers and both parts of zmm.
            const SAVES_YMM: u64 = 0b110;
            const SAVES_ZMM: u64 = 0b1110_0110;

            Features {
                fast_stosb: bit(extended.ebx, 9),
                avx2: saved & SAVES_YMM == SAVES_YMM && bit(extended.ebx, 5),
                avx512: saved & SAVES_ZMM == SAVES_ZMM && bit(extended.ebx, 16),
                clzero: has_clzero(&vendor(first)),
            }
        }
    }

    /// CLZERO acts on the line size that leaf 1 gives for CLFLUSH; on every processor that has
    /// it that is 64 bytes.
    fn has_clzero(vendor: &[u8; 12]) -> bool {
        if vendor != VENDOR_AMD && vendor != VENDOR_HYGON {
            return false;
        }
        cpuid(0x8000_0000).eax >= 0x8000_0008 && bit(cpuid(0x8000_0008).ebx, 0)
    }

    /// A number that differs between models of processor: a hash of vendor, family, model,
    /// stepping, and name.
    pub fn cpu_key() -> u64 {
        let mut hash = super::fnv1a(super::FNV_OFFSET, &vendor(cpuid(0)));
        hash = super::fnv1a(hash, &cpuid(1).eax.to_le_bytes());
        if cpuid(0x8000_0000).eax >= 0x8000_0004 {
            for leaf in [0x8000_0002, 0x8000_0003, 0x8000_0004] {
                let Leaf { eax, ebx, ecx, edx } = cpuid(leaf);
                for register in [eax, ebx, ecx, edx] {
                    hash = super::fnv1a(hash, &register.to_le_bytes());
                }
            }
        }
        hash
    }

    fn vendor(leaf: Leaf) -> [u8; 12] {
        let mut name = [0; 12];
        for (part, register) in name.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
            part.copy_from_slice(&register.to_le_bytes());
        }
        name
    }

    fn bit(register: u32, bit: u32) -> bool {
        register >> bit & 1 != 0
    }

    const NO_LEAF: Leaf = Leaf { eax: 0, ebx: 0, ecx: 0, edx: 0 };

    /// Subleaf 0 of a leaf.
    fn cpuid(leaf: u32) -> Leaf {
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

    /// The register states the kernel saves. To be asked only where CPUID says OSXSAVE.
    fn xcr0() -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: with OSXSAVE, XGETBV of register 0 only reads.
        unsafe {
            asm!(
                "xgetbv",
                in("ecx") 0,
                out("eax") low,
                out("edx") high,
                options(nostack, nomem, preserves_flags),
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use crate::sys::file;
    use core::arch::asm;

    /// Which engines can run here.
    #[derive(Clone, Copy, Debug)]
    pub struct Features {
        /// bytes that one `dc zva` zeroes; `None` where it is prohibited
        pub zva_bytes: Option<usize>,
    }

    impl Features {
        pub fn detect() -> Features {
            let dczid: u64;
            // SAFETY: DCZID_EL0 is readable in user mode and reading it changes nothing.
            unsafe {
                asm!("mrs {}, dczid_el0", out(reg) dczid, options(nostack, nomem, preserves_flags));
            }
            // Arm ARM, DCZID_EL0: bit 4 prohibits; bits 3:0 are log2 of the size in 4-byte words.
            let prohibited = dczid & 0x10 != 0;
            Features { zva_bytes: (!prohibited).then_some(4 << (dczid & 0xf)) }
        }
    }

    /// A number that differs between models of processor: a hash of MIDR_EL1 as the kernel shows
    /// it, or of nothing where it does not.
    pub fn cpu_key() -> u64 {
        let mut text = [0; 32];
        let path = c"/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
        let midr = file::read(path, &mut text).unwrap_or(b"");
        super::fnv1a(super::FNV_OFFSET, midr)
    }
}
