//! `syscall` and `prctl`: calls that change the process's state, by other doors.
//!
//! Both functions are variadic. On x86-64 and aarch64 under Linux such a
//! call passes its integers just as one with a fixed number of parameters does; so these take as
//! many as there can be (unused ones hold whatever was in the register or on the stack) and hand
//! all of them on.
//!
//! Each call is handled where its function is. Calls that a program makes in assembler go unseen.

use core::ffi::{c_int, c_long};

use pumice_frames::sys::raw;

use crate::errno::answer;
use crate::{limits, mapping, pins, rights, seccomp, segments, symbols};

type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

#[no_mangle]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    seccomp::before_prctl(option, a, b);
    let call = || match symbols::next!(c"prctl", Prctl) {
        // SAFETY: the arguments are the program's.
        Some(next) => unsafe { next(option, a, b, c, d) },
        None => {
            let args = [option as usize, a, b, c, d, 0];
            // SAFETY: the arguments are the program's.
            answer(unsafe { raw::syscall(linux_raw_sys::general::__NR_prctl, args) }) as c_int
        }
    };
    match rights::changed_by_prctl(option) {
        Some(whose) => rights::around(whose, || c_long::from(call())) as c_int,
        None => call(),
    }
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
    let args = [a, b, c, d, e, f];
    let known = u32::try_from(number).unwrap_or(u32::MAX);
    seccomp::before_call(known, args);
    pins::before_call(known, args);
    // SAFETY: forwarded with the caller's promise.
    unsafe {
        let handled = mapping::by_number(known, args)
            .or_else(|| segments::by_number(known, args))
            .or_else(|| limits::by_number(known, args));
        if let Some(result) = handled {
            return result;
        }
    }
    let call = || match symbols::next!(c"syscall", Syscall) {
        // SAFETY: the arguments are the program's.
        Some(next) => unsafe { next(number, a, b, c, d, e, f) },
        // SAFETY: the arguments are the program's.
        None => answer(unsafe { raw::syscall(known, args) }),
    };
    match rights::changed_by_number(known, args) {
        Some(whose) => rights::around(whose, call),
        None => call(),
    }
}
