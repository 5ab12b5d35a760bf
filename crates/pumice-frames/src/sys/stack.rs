//! Work on a stack of its own: that of the thread at hand may have no room for it. A thread may have 16 KiB in all, and
//! a signal handler 2 KiB.

use core::ffi::c_void;
use core::mem::ManuallyDrop;

use rustix::io::Errno;

use super::mem;
use super::thread::BlockedSignals;

/// Bytes of the stack, and of addresses below it at which nothing is mapped.
const SIZE: usize = 256 << 10;
const GUARD_SIZE: usize = 64 << 10;

/// The work, and then its answer.
union Job<R, F: FnOnce() -> R> {
    work: ManuallyDrop<F>,
    answer: ManuallyDrop<R>,
}

/// Does `work` on a stack that is mapped for it. Signals are blocked, lest a handler leave by `longjmp`. Where `work`
/// unwinds, the process ends.
///
/// # Errors
/// There is no memory for the stack; nothing was done.
pub fn on_another<R, F: FnOnce() -> R>(_: &BlockedSignals, work: F) -> Result<R, Errno> {
    let stack = mem::map_above_gap(GUARD_SIZE, SIZE)?;
    let mut job = Job { work: ManuallyDrop::new(work) };
    // SAFETY: the end of a mapping that nothing else uses, aligned to a page; and `run` finds the job it is made for.
    unsafe { switch(stack.as_ptr() as usize + SIZE, run::<R, F>, (&raw mut job).cast()) };
    // SAFETY: nobody runs on it any more. Failing that it stays mapped.
    let _ = unsafe { mem::unmap(stack, SIZE) };
    // SAFETY: `run` has left an answer.
    Ok(ManuallyDrop::into_inner(unsafe { job.answer }))
}

/// # Safety
/// `job` points to a [`Job`] of these types, with its work.
unsafe extern "C" fn run<R, F: FnOnce() -> R>(job: *mut c_void) {
    let job = job.cast::<Job<R, F>>();
    // SAFETY: as the caller promises; the work is taken out once, and its answer takes its place.
    unsafe {
        let work = ManuallyDrop::take(&mut (*job).work);
        (*job).answer = ManuallyDrop::new(work());
    }
}

/// Calls `entry(argument)` on another stack.
///
/// # Safety
/// `top` is the end of a mapping with room for it, aligned to 16 bytes, and `entry` returns.
#[inline(never)]
unsafe fn switch(top: usize, entry: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the register that keeps the stack is one that `entry` leaves as it was.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {entry}",
            "mov rsp, r12",
            top = in(reg) top,
            entry = in(reg) entry,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {entry}",
            "mov sp, x20",
            top = in(reg) top,
            entry = in(reg) entry,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn work_finds_room_and_its_answer_comes_back() {
        let given = [1u64, 2, 3];
        let here = 0u8;
        let answer = on_another(&BlockedSignals::block(), || {
            let much = core::hint::black_box([7u8; SIZE / 8]);
            (given.iter().sum::<u64>() + u64::from(much[SIZE / 9]), &raw const much as usize)
        });
        let (sum, at) = answer.expect("memory");
        assert_eq!(sum, 13);
        assert!((&raw const here as usize).abs_diff(at) > SIZE, "on the thread's own");
    }
}
