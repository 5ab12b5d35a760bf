//! The features that the processor, and the kernel that saves its registers, support.
//!
//! `is_x86_feature_detected!` needs std, so CPUID and XGETBV are asked here. In a virtual machine
//! each CPUID is a trip to the hypervisor (1 µs to 8 µs): ask once, and only for the leaves needed.

pub(super) use imp::Features;

/// Mixes bytes into a 64-bit FNV-1a hash.
fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

#[cfg(target_arch = "x86_64")]
mod imp {
    use core::arch::asm;

    use super::{fnv1a, FNV_OFFSET};
    use crate::sys::cpuid::{cpuid, Leaf};

    /// Which engines can run here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features {
        /// `rep stosb` is fast (ERMS)
        pub fast_stosb: bool,
        pub avx2: bool,
        pub avx512: bool,
        pub clzero: bool,
        /// differs between models of processor: a hash of vendor, family, model and stepping
        pub cpu_key: u64,
    }

    impl Features {
        pub fn detect() -> Features {
            let first = cpuid(0);
            let basic = cpuid(1);
            let extended = if first.eax >= 7 { cpuid(7) } else { Leaf::NONE };
            let vendor = vendor(first);

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
                clzero: has_clzero(&vendor),
                cpu_key: fnv1a(fnv1a(FNV_OFFSET, &vendor), &basic.eax.to_le_bytes()),
            }
        }
    }

    /// CLZERO acts on the line size that leaf 1 gives for CLFLUSH; on every processor that has
    /// it that is 64 bytes. These vendors' processors answer a leaf that they lack with zeros.
    fn has_clzero(vendor: &[u8; 12]) -> bool {
        matches!(vendor, b"AuthenticAMD" | b"HygonGenuine") && bit(cpuid(0x8000_0008).ebx, 0)
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
    use core::arch::asm;

    use super::{fnv1a, FNV_OFFSET};
    use crate::sys::file;

    /// Which engines can run here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features {
        /// bytes that one `dc zva` zeroes; `None` where it is prohibited
        pub zva_bytes: Option<u16>,
        /// differs between models of processor: a hash of MIDR_EL1
        pub cpu_key: u64,
    }

    impl Features {
        pub fn detect() -> Features {
            let dczid: u64;
            // SAFETY: DCZID_EL0 is readable in user mode and reading it changes nothing.
            unsafe {
                asm!("mrs {}, dczid_el0", out(reg) dczid, options(nostack, nomem, preserves_flags));
            }
            // Arm ARM, DCZID_EL0: bit 4 prohibits; bits 3:0 are log2 of the size in 4-byte words,
            // 9 at most.
            let prohibited = dczid & 0x10 != 0;
            let zva_bytes = (!prohibited).then_some(4 << (dczid & 0xf).min(9));
            Features { zva_bytes, cpu_key: fnv1a(FNV_OFFSET, midr(&mut [0; 32])) }
        }
    }

    /// MIDR_EL1 as the kernel shows it in text, or nothing where it does not.
    fn midr(text: &mut [u8; 32]) -> &[u8] {
        let path = c"/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
        file::read(path, text).unwrap_or(b"")
    }
}
