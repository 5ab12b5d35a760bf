//! `errno`, and the C library's way of answering.

use core::ffi::{c_int, c_long, c_void};
use core::ptr::null_mut;

use rustix::io::Errno;

use crate::weak;

/// Out of memory, on every architecture.
pub(crate) const ENOMEM: c_int = 12;

/// The kernel's answer to a call.
pub(crate) type Outcome = Result<usize, Errno>;

/// The C library's way of answering: `errno`, and -1 for a failure.
pub(crate) fn answer(outcome: Outcome) -> c_long {
    match outcome {
        Ok(value) => value as c_long,
        Err(errno) => {
            set(errno.raw_os_error());
            -1
        }
    }
}

/// Null, with `errno` set.
#[cold]
pub(crate) fn out_of_memory() -> *mut c_void {
    set(ENOMEM);
    null_mut()
}

/// The calling thread's `errno`.
pub(crate) fn get() -> c_int {
    let errno = set(0);
    set(errno);
    errno
}

/// Sets the calling thread's `errno`, and returns the old one.
pub(crate) fn set(value: c_int) -> c_int {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    match weak::function!("__errno_location": Location) {
        // SAFETY: the address is that of the calling thread's own errno.
        Some(location) => unsafe { location().replace(value) },
        None => value,
    }
}

/// Takes a step that leaves `errno` as it is.
pub(crate) fn keep<T>(step: impl FnOnce() -> T) -> T {
    let errno = set(0);
    let result = step();
    set(errno);
    result
}
