//! System calls that rustix lacks: `clone`, `getsockopt` of a peer whose process is not visible, `shmget` and its
//! family, `mincore`, `kill` with 0, those on memory policies, `madvise` with `MADV_COLLAPSE` and of many ranges;
//! `pread` and `pwrite` of memory that no reference may be made of.
//!
//! The calling convention is in syscall(2), "Architecture calling conventions".

use core::arch::asm;
use rustix::io::Errno;

/// A system call's number and six arguments; unused ones are 0.
///
/// # Safety
/// The arguments must be what the call expects; the kernel follows them as pointers.
#[cfg(target_arch = "x86_64")]
pub unsafe fn syscall(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    decode(result)
}

/// A system call's number and six arguments; unused ones are 0.
///
/// # Safety
/// The arguments must be what the call expects; the kernel follows them as pointers.
#[cfg(target_arch = "aarch64")]
pub unsafe fn syscall(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the kernel preserves all other registers.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    decode(result)
}

fn decode(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Call numbers, from linux-raw-sys.
pub mod number {
    pub use linux_raw_sys::general::{
        __NR_clone, __NR_exit, __NR_get_mempolicy, __NR_get_robust_list, __NR_getcpu,
        __NR_getsockopt, __NR_kcmp, __NR_kill, __NR_madvise, __NR_mincore, __NR_munmap,
        __NR_pread64, __NR_preadv, __NR_process_madvise, __NR_process_vm_readv, __NR_pwrite64,
        __NR_pwritev, __NR_rt_sigprocmask, __NR_sched_getaffinity, __NR_sched_getparam,
        __NR_sched_getscheduler, __NR_sched_setaffinity, __NR_sched_setscheduler,
        __NR_set_mempolicy, __NR_shmat, __NR_shmctl, __NR_shmdt, __NR_shmget, __NR_tgkill,
    };
}
