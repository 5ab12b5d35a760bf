//! Which processor and memory node the caller runs on, cheaply, and how many processors there are.

/// The processor's number, or a stale one: a hint for choosing per-CPU state, which must be correct whatever processor
/// uses it.
#[inline]
pub fn current() -> usize {
    imp::current()
}

/// The kernel's number of the memory node that the caller's processor belongs to, or a stale one,
/// modulo 256.
#[inline]
pub fn node() -> usize {
    imp::node()
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

    const CPU_BITS: u32 = 12;

    #[inline]
    pub fn current() -> usize {
        (cpu_and_node() & ((1 << CPU_BITS) - 1)) as usize
    }

    #[inline]
    pub fn node() -> usize {
        (cpu_and_node() >> CPU_BITS) as usize
    }

    /// The kernel keeps the processor's number, in the low twelve bits, and its node's, in the
    /// eight after them, in the limit of GDT entry 15, as `vgetcpu` reads it
    /// (arch/x86/include/asm/segment.h, `__CPUNODE_SEG`). `rdtscp` has the same and takes half
    /// as long again; `rdpid` takes a quarter, where there is one.
    #[inline]
    fn cpu_and_node() -> u32 {
        const CPUNODE_SELECTOR: u32 = 15 * 8 + 3;
        if is_on_valgrind() {
            return 0;
        }
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
        limit
    }

    /// Valgrind does not know `lsl`, and runs all threads in turns: any number will do there. It is asked as
    /// its manual has it ("The Client Request mechanism"): by instructions that elsewhere do nothing,
    /// within two nanoseconds.
    #[inline]
    fn is_on_valgrind() -> bool {
        const RUNNING_ON_VALGRIND: u64 = 0x1001;
        let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
        let answer: u64;
        // SAFETY: rotating a register all the way round and exchanging one with itself change nothing; Valgrind
        // reads the request and writes the answer, where this says.
        unsafe {
            asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") request.as_ptr(),
                inlateout("rdx") 0u64 => answer,
                inout("rdi") 0u64 => _,
                options(nostack, readonly),
            );
        }
        answer != 0
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use crate::sys::raw;

    /// One system call; `sched_getcpu` is in the vDSO on no architecture but x86.
    #[inline]
    pub fn current() -> usize {
        rustix::thread::sched_getcpu()
    }

    /// As [`current`].
    pub fn node() -> usize {
        let mut node = 0u32;
        let args = [0, (&raw mut node) as usize, 0, 0, 0, 0];
        // SAFETY: getcpu(2) writes where it is told, and null is told nothing.
        let _ = unsafe { raw::syscall(raw::number::__NR_getcpu, args) };
        node as usize % 256
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

    #[test]
    fn the_node_is_one_that_the_kernel_lists() {
        let path = format!("/sys/devices/system/node/node{}", super::node());
        let is_told = std::path::Path::new("/sys/devices/system/node").exists();
        assert!(!is_told || std::path::Path::new(&path).exists(), "{path}");
    }
}
