//! A thread that libc does not know of, and the words it sleeps on.
//!
//! The shim's helper can't be made by `pthread_create`: libc would take its single-threaded
//! short-cuts back, and a program whose last own thread calls `pthread_exit` would never end.
//! So it is a bare `clone`: it shares its creator's thread pointer, which it must never use, so
//! it calls nothing but this crate, and blocks every signal, so that no handler runs on it.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::time::Duration;
use rustix::io::Errno;
#[cfg(not(any(loom, shuttle)))]
use rustix::thread::futex;
use rustix::time::{clock_gettime, clock_gettime_dynamic, ClockId, DynamicClockId, Timespec};

use super::{mem, raw};
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
// The machine's own: a static can't be a model's.
use core::sync::atomic::AtomicUsize as StaticUsize;

/// Bytes of stack for a helper thread, and of addresses below it at which nothing is mapped.
const STACK_SIZE: usize = 64 << 10;
const GUARD_SIZE: usize = 64 << 10;

/// The function that a helper thread runs. It must never return.
pub type Entry = extern "C" fn(*mut c_void) -> !;

/// Starts a helper thread. The kernel sets `number` to its number before it runs, and `alive` to 0 when it has ended.
/// `stack` is where its stack is, from the first time on; 0 before.
///
/// # Safety
/// `entry` and `argument` stay valid for the rest of the process, no thread that was started with `stack` lives, and
/// `entry` uses nothing of libc and no thread-local storage.
pub unsafe fn spawn(
    entry: Entry,
    argument: *mut c_void,
    number: &AtomicU32,
    alive: &'static AtomicU32,
    stack: &AtomicUsize,
) -> Result<(), Errno> {
    use linux_raw_sys::general::{
        CLONE_CHILD_CLEARTID, CLONE_FILES, CLONE_FS, CLONE_PARENT_SETTID, CLONE_SIGHAND,
        CLONE_SYSVSEM, CLONE_THREAD, CLONE_VM,
    };
    let shared = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SYSVSEM;
    let flags = shared | CLONE_THREAD | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID;
    // Relaxed: one thread at a time starts a helper.
    let at = match stack.load(Ordering::Relaxed) {
        0 => mem::map_above_gap(GUARD_SIZE, STACK_SIZE)?.as_ptr() as usize,
        at => at,
    };
    stack.store(at, Ordering::Relaxed);
    let all_signals = BlockedSignals::block();
    // SAFETY: the stack was mapped for this thread alone; the child never returns from `entry`.
    let result = unsafe { clone(flags as usize, at + STACK_SIZE, entry, argument, number, alive) };
    drop(all_signals);
    result.map(drop)
}

/// `clone` whose child runs `entry(argument)` on the new stack.
///
/// # Safety
/// `stack_top` is the end of a mapping that only the child uses, aligned to 16 bytes.
unsafe fn clone(
    flags: usize,
    stack_top: usize,
    entry: Entry,
    argument: *mut c_void,
    number: &AtomicU32,
    alive: &'static AtomicU32,
) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the child leaves this block by jumping to `entry` and uses no frame of its parent.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            "test eax, eax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") raw::number::__NR_clone as isize => result,
            in("rdi") flags, in("rsi") stack_top, in("rdx") core::ptr::from_ref(number),
            in("r10") core::ptr::from_ref(alive), in("r8") 0,
            in("r12") argument, in("r13") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x9",
            "blr x10",
            "brk #1",
            "2:",
            in("x8") raw::number::__NR_clone as usize,
            inlateout("x0") flags as isize => result,
            in("x1") stack_top, in("x2") core::ptr::from_ref(number), in("x3") 0,
            in("x4") core::ptr::from_ref(alive),
            in("x9") argument, in("x10") entry,
        );
    }
    match result {
        0.. => Ok(result as usize),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

/// Ends the calling helper thread. Its stack stays mapped: it can't unmap the memory it runs on.
///
/// # Safety
/// [`spawn`] made the thread, and nobody borrows from its stack: nothing on it is dropped.
pub unsafe fn exit() -> ! {
    loop {
        // SAFETY: ends this thread only.
        let _ = unsafe { raw::syscall(raw::number::__NR_exit, [0; 6]) };
    }
}

/// Every signal blocked for the calling thread until this is dropped, by that thread. Of several, the last one made is
/// to be dropped first: each brings back the mask that it found.
///
/// Where a thread meets a fault meanwhile, the kernel ends the process: so it must have stack enough. Its stack may be
/// one that a handler makes grow, or its handler may leave what overflows it by `longjmp`.
pub struct BlockedSignals {
    before: u64,
    /// The mask is the thread's: neither this nor a reference to it may go to another.
    _here: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks them, once there is stack for what follows.
    pub fn block() -> BlockedSignals {
        reach_for_stack();
        let mut before = 0u64;
        set_signal_mask(&u64::MAX, Some(&mut before));
        BlockedSignals { before, _here: PhantomData }
    }
}

/// Touches the stack as far down as it will be needed, at most 2 KiB: a signal handler may have no more.
#[inline(never)]
fn reach_for_stack() {
    let mut room = core::mem::MaybeUninit::<[u8; 2048]>::uninit();
    // SAFETY: its own.
    unsafe { room.as_mut_ptr().cast::<u8>().write_volatile(0) };
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_signal_mask(&self.before, None);
    }
}

fn set_signal_mask(mask: &u64, old: Option<&mut u64>) {
    use linux_raw_sys::general::SIG_SETMASK;
    let old = old.map_or(0, |old| core::ptr::from_mut(old) as usize);
    let args = [SIG_SETMASK as usize, core::ptr::from_ref(mask) as usize, old, 8, 0, 0];
    // SAFETY: both masks are eight bytes, as the last argument says.
    let _ = unsafe { raw::syscall(raw::number::__NR_rt_sigprocmask, args) };
}

/// The calling thread's pointer, by which the C library finds what is its own: no other thread of the process has the
/// same while it lives, and a fork's child has its parent thread's.
#[inline]
pub fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: of what the ABI has the C library set up before any code of the program's runs: on x86-64 the word at the
    // pointer is the pointer.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: it reads a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

/// This process's number, from the kernel: right at once in a fork's child.
pub fn process_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// The calling thread's number, from the kernel.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The namespace that the calling process's number is of, as the kernel numbers them; 0 where `/proc` does not tell.
pub fn pid_namespace() -> u32 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |status| status.st_ino as u32)
}

/// The process that made a value. A child of `fork` has a copy of the value, but not of memory that was kept from
/// it, at whose addresses it may have something else.
///
/// Process numbers alone would not do: a child that is the first of its namespace has the number that its parent may
/// have. Nor would a page that fork wipes: an emulator of processes (qemu) may not wipe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker(usize, u32);

/// A page that the kernel wipes in a fork's child, 0 before the first use, and how many processes have used theirs,
/// this one's ancestors before it forked included.
static WIPED_ON_FORK: StaticUsize = StaticUsize::new(0);
static GENERATIONS: StaticUsize = StaticUsize::new(0);

impl Maker {
    /// The calling process.
    pub fn here() -> Maker {
        Maker(Maker::word().map_or(0, Maker::generation), process_id())
    }

    /// Whether the caller is that process.
    pub fn is_here(self) -> bool {
        self == Maker::here()
    }

    /// More than its ancestors', by whose values it may be told; 0 is a page that was wiped.
    fn generation(word: &StaticUsize) -> usize {
        // Relaxed: each word is looked at by itself.
        match word.load(Ordering::Relaxed) {
            0 => {
                let next = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
                let before = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
                before.map_or_else(|of_another_thread| of_another_thread, |_| next)
            }
            generation => generation,
        }
    }

    /// `None` where the kernel does not wipe pages (before Linux 4.14), or there is no memory: for good then.
    fn word() -> Option<&'static StaticUsize> {
        const NONE: usize = usize::MAX;
        let at = match WIPED_ON_FORK.load(Ordering::Acquire) {
            0 => {
                let made = mem::map_wiped_on_fork().map_or(NONE, |at| at.as_ptr() as usize);
                // Release: others find the page wiped by fork.
                match WIPED_ON_FORK.compare_exchange(0, made, Ordering::Release, Ordering::Acquire)
                {
                    Ok(_) => made,
                    // A page that is left over is the process's for good; it happens once.
                    Err(of_another_thread) => of_another_thread,
                }
            }
            at => at,
        };
        // SAFETY: a page that stays, zeroed, with nothing but this word.
        (at != NONE).then(|| unsafe { &*(at as *const StaticUsize) })
    }
}

/// Whether a process of this number exists (a zombie does).
pub fn process_exists(pid: u32) -> bool {
    // Others mean groups, or all processes there are.
    if !i32::try_from(pid).is_ok_and(|pid| pid > 0) {
        return false;
    }
    // SAFETY: signal 0 is only checked for, never sent.
    let result = unsafe { raw::syscall(raw::number::__NR_kill, [pid as usize, 0, 0, 0, 0, 0]) };
    result != Err(Errno::SRCH)
}

/// Whether this process has a thread of this number.
pub fn thread_exists(number: u32) -> bool {
    let args = [process_id() as usize, number as usize, 0, 0, 0, 0];
    // SAFETY: signal 0 is only checked for, never sent.
    let result = unsafe { raw::syscall(raw::number::__NR_tgkill, args) };
    result != Err(Errno::SRCH)
}

/// Whether the calling thread may be one of a process that has another's memory until it starts a program: glibc tells
/// the kernel of each thread's list of robust locks, and a process that borrows memory has none.
pub fn may_have_borrowed() -> bool {
    let (mut list, mut len) = (0usize, 0usize);
    let args = [0, (&raw mut list) as usize, (&raw mut len) as usize, 0, 0, 0];
    // SAFETY: the kernel writes both words.
    unsafe { raw::syscall(raw::number::__NR_get_robust_list, args) }.is_ok() && list == 0
}

/// Whether the calling process has its parent's memory (`vfork`). `None`: the kernel does not say, or not of this
/// parent.
pub fn shares_memory_with_parent() -> Option<bool> {
    /// The resource to compare: memory.
    const KCMP_VM: usize = 1;
    let parent = rustix::process::getppid()?.as_raw_nonzero().get() as usize;
    let args = [process_id() as usize, parent, KCMP_VM, 0, 0, 0];
    // SAFETY: it compares two processes, and changes nothing.
    let order = unsafe { raw::syscall(raw::number::__NR_kcmp, args) }.ok()?;
    Some(order == 0)
}

/// Whether a debugger has hold of this process.
pub fn is_traced() -> bool {
    let mut buffer = [0; 1024];
    let status = super::file::read(c"/proc/self/status", &mut buffer).unwrap_or(&[]);
    let mut lines = status.split(|&byte| byte == b'\n');
    let tracer = lines.find_map(|line| line.strip_prefix(b"TracerPid:\t"));
    tracer.is_some_and(|number| number != b"0")
}

/// Lets others run.
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Sleeps so long, or until a signal.
pub fn sleep(time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}

/// Sleeps until woken, for `timeout` at most, and not at all if the word is no longer `expected`.
#[cfg(not(any(loom, shuttle)))]
pub fn sleep_on(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    // Every outcome, interrupted and changed meanwhile included, is a reason to look again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref());
}

/// Sleeps until a thread's word is set to 0, by the kernel at its end ([`spawn`]) or before [`wake_for_end`] is called,
/// for `timeout` at most. The kernel wakes only threads that sleep on it as on a word that processes may share.
#[cfg(not(any(loom, shuttle)))]
pub fn sleep_until_end(alive: &AtomicU32, timeout: Duration) {
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let _ = futex::wait(alive, futex::Flags::empty(), 1, Some(&timeout));
}

/// As [`sleep_on`].
#[cfg(any(loom, shuttle))]
pub fn sleep_until_end(_: &AtomicU32, _: Duration) {
    crate::sync::spin_loop();
}

/// Wakes one thread that sleeps until another's end.
pub fn wake_for_end(_alive: &AtomicU32) {
    #[cfg(not(any(loom, shuttle)))]
    let _ = futex::wake(_alive, futex::Flags::empty(), 1);
}

/// A model's threads only let each other run.
#[cfg(any(loom, shuttle))]
pub fn sleep_on(_: &AtomicU32, _: u32, _: Option<Duration>) {
    crate::sync::spin_loop();
}

/// As [`sleep_on`].
#[cfg(any(loom, shuttle))]
pub fn wake_one(_: &AtomicU32) {}

/// Wakes one sleeper on the word.
#[cfg(not(any(loom, shuttle)))]
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Processor time the calling thread has used, in nanoseconds; 0 where a filter refuses to tell.
pub fn cpu_time_ns() -> u64 {
    cpu_clock_ns(ClockId::ThreadCPUTime)
}

/// Processor time that all threads of the process have used, in nanoseconds; 0 where a filter refuses to tell.
pub fn process_cpu_time_ns() -> u64 {
    cpu_clock_ns(ClockId::ProcessCPUTime)
}

/// These clocks are system calls, unlike the monotonic one.
fn cpu_clock_ns(clock: ClockId) -> u64 {
    clock_gettime_dynamic(DynamicClockId::Known(clock)).map_or(0, nanoseconds)
}

/// Nanoseconds on the monotonic clock.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn only_processes_exist() {
        assert!(process_exists(process_id()));
        for none in [0, u32::MAX, u32::MAX - 1, 1 << 31] {
            assert!(!process_exists(none), "{none}");
        }
    }

    use crate::sync::atomic::Ordering;

    static FLAG: AtomicU32 = AtomicU32::new(0);
    static ALIVE: AtomicU32 = AtomicU32::new(1);

    extern "C" fn raise_flag(_: *mut c_void) -> ! {
        FLAG.store(1, Ordering::Release);
        wake_one(&FLAG);
        // SAFETY: the test made the thread, and nothing is on its stack.
        unsafe { exit() }
    }

    #[test]
    fn a_bare_thread_runs_and_wakes() {
        let number = AtomicU32::new(0);
        // SAFETY: `raise_flag` uses nothing of libc.
        unsafe { spawn(raise_flag, core::ptr::null_mut(), &number, &ALIVE, &AtomicUsize::new(0)) }
            .expect("clone");
        assert_ne!(number.load(Ordering::Relaxed), 0, "it is known at once");
        assert!(!may_have_borrowed(), "a thread that libc made");
        while FLAG.load(Ordering::Acquire) == 0 {
            sleep_on(&FLAG, 0, Some(Duration::from_millis(100)));
        }
        while ALIVE.load(Ordering::Acquire) != 0 {
            sleep_until_end(&ALIVE, Duration::from_millis(1));
        }
    }

    /// Has a child ask, which may take no lock: the answer is yes.
    fn in_child(ask: impl FnOnce() -> bool) {
        // SAFETY: the child calls nothing but `ask`, and `_exit`.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(if ask() { 0 } else { 1 }) },
            child => {
                let mut status = 0;
                // SAFETY: it is this test's child.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
    }

    #[test]
    fn a_child_is_no_maker_of_what_its_ancestors_made() {
        let maker = Maker::here();
        assert!(maker.is_here());
        in_child(|| {
            let child = Maker::here();
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                return !maker.is_here() && !child.is_here() && Maker::here().is_here();
            }
            let mut status = 0;
            // SAFETY: it is the child's.
            let ended = unsafe { libc::waitpid(grandchild, &raw mut status, 0) } == grandchild;
            ended && status == 0 && !maker.is_here() && child.is_here()
        });
        in_child(|| !maker.is_here());
        assert!(maker.is_here());
    }

    #[test]
    fn this_process_exists() {
        assert!(process_exists(std::process::id()));
        assert!(!process_exists(0x7fff_fff0));
    }
}
