//! Which processor the caller runs on, cheaply, and how many there are.

/// The processor's number, or a stale one: a hint for choosing per-CPU state, which must be
/// correct whoever uses it.
#[inline]
pub fn current() -> usize {
    imp::current()
}

/// Processors that this process may run on.
pub fn count() -> usize {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (set.count() as usize).max(1),
        Err(_) => 1,
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use core::arch::asm;

    /// The kernel keeps the processor's number in the limit of GDT entry 15, as `vgetcpu` reads
    /// it (arch/x86/include/asm/segment.h, `__CPUNODE_SEG`): the low twelve bits.
    #[inline]
    pub fn current() -> usize {
        const CPUNODE_SELECTOR: u32 = 15 * 8 + 3;
        const CPU_MASK: u32 = 0xfff;
        let limit: u32;
        // SAFETY: lsl only reads a segment limit; were the selector unusable it would leave the
        // register, set to 0 here, as it is.
        unsafe {
            asm!(
                "lsl {limit:e}, {selector:e}",
                limit = inlateout(reg) 0u32 => limit,
                selector = in(reg) CPUNODE_SELECTOR,
                options(nomem, nostack),
            );
        }
        (limit & CPU_MASK) as usize
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    /// One system call; `sched_getcpu` is in the vDSO on no architecture but x86.
    #[inline]
    pub fn current() -> usize {
        rustix::thread::sched_getcpu()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn current_is_one_of_the_processors() {
        for _ in 0..100 {
            let before = rustix::thread::sched_getcpu();
            let cpu = super::current();
            if rustix::thread::sched_getcpu() == before {
                assert_eq!(cpu, before);
                return;
            }
        }
    }
}
