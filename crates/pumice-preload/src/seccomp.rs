//! `prctl` and `syscall`, watched for seccomp filters.
//!
//! A filter knows which system calls the program makes, and not which ones the heap's helper
//! thread does. So before one is installed the heap goes quiet: from then on it makes no calls but
//! those `malloc` makes. Both functions are variadic. On x86-64 and aarch64 under Linux such a
//! call passes its integers just as one with a fixed number of parameters does; so these take as
//! many as there can be (unused ones hold whatever was in the register or on the stack) and hand
//! all of them on.
//!
//! A program that makes the call itself, in assembler, goes unseen.

use core::ffi::{c_int, c_long, c_uint};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering};

use pumice::sys::raw;

use crate::interpose::set_errno;
use crate::{mapping, namespace, next, start};

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_SET_MODE_STRICT: c_uint = 0;
const SECCOMP_SET_MODE_FILTER: c_uint = 1;
#[cfg(target_arch = "x86_64")]
const SYS_SECCOMP: c_long = 317;
#[cfg(target_arch = "aarch64")]
const SYS_SECCOMP: c_long = 277;
#[cfg(target_arch = "x86_64")]
const SYS_PRCTL: c_long = 157;
#[cfg(target_arch = "aarch64")]
const SYS_PRCTL: c_long = 167;

type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// The next `prctl` and `syscall`; null until they are first called. Relaxed: code is all they
/// lead to.
static NEXT_PRCTL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static NEXT_SYSCALL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

#[no_mangle]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == PR_SET_SECCOMP {
        before_prctl(a, b);
    }
    let mut next = NEXT_PRCTL.load(Ordering::Relaxed);
    if next.is_null() {
        next = find(&NEXT_PRCTL, || next::look_up(c"prctl"), raw_prctl as *mut ());
    }
    // SAFETY: only functions of this type are stored, and the arguments are the program's.
    unsafe { transmute::<*mut (), Prctl>(next)(option, a, b, c, d) }
}

#[no_mangle]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if number == SYS_SECCOMP || number == SYS_PRCTL {
        before_syscall(number, a, b, c);
    }
    if let Some(result) = namespace::by_number(number, [a, b]) {
        return result;
    }
    // SAFETY: forwarded with the caller's promise.
    if let Some(result) = unsafe { mapping::by_number(number, [a, b, c, d, e, f]) } {
        return result;
    }
    let mut next = NEXT_SYSCALL.load(Ordering::Relaxed);
    if next.is_null() {
        next = find(&NEXT_SYSCALL, || next::look_up(c"syscall"), raw_syscall as *mut ());
    }
    // SAFETY: only functions of this type are stored, and the arguments are the program's.
    unsafe { transmute::<*mut (), Syscall>(next)(number, a, b, c, d, e, f) }
}

/// Before `prctl(PR_SET_SECCOMP, mode, filter)`.
#[cold]
fn before_prctl(mode: usize, filter: usize) {
    if mode == SECCOMP_MODE_STRICT || filter != 0 {
        start::go_quiet();
    }
}

/// Before a `syscall` that may install a filter. A call without a filter to install only asks
/// whether the kernel knows of any.
#[cold]
fn before_syscall(number: c_long, a: usize, b: usize, c: usize) {
    if number == SYS_PRCTL {
        if a as c_int == PR_SET_SECCOMP {
            before_prctl(b, c);
        }
    } else if a as c_uint == SECCOMP_SET_MODE_STRICT
        || (a as c_uint == SECCOMP_SET_MODE_FILTER && c != 0)
    {
        start::go_quiet();
    }
}

/// Looks a function up, once, or takes the substitute if there is none.
#[cold]
fn find(kept: &AtomicPtr<()>, look_up: impl Fn() -> *mut (), substitute: *mut ()) -> *mut () {
    let found = look_up();
    let next = if found.is_null() { substitute } else { found };
    kept.store(next, Ordering::Relaxed);
    next
}

unsafe extern "C" fn raw_prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    unsafe { raw_syscall(SYS_PRCTL, option as usize, a, b, c, d, 0) as c_int }
}

unsafe extern "C" fn raw_syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: forwarded with the caller's promise.
    match unsafe { raw::syscall(number as u32, [a, b, c, d, e, f]) } {
        Ok(result) => result as c_long,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    }
}
