//! `setrlimit` and its relations: limits that a running program sets itself.
//!
//! A limit on addresses (`RLIMIT_AS`) or data (`RLIMIT_DATA`) counts what the heap has reserved, and would leave the
//! program no room. So the heap retires: it gives up all that is not in use, and serves nothing more.

use core::ffi::{c_int, c_long, c_void};

use linux_raw_sys::general as linux;
use pumice::heap::Calls;
use pumice::stats::Reason;
use pumice::sys::{raw, thread};

use crate::calls::answer;
use crate::start;

/// `struct rlimit64`.
#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

const INFINITE: u64 = u64::MAX;

#[no_mangle]
unsafe extern "C" fn setrlimit(resource: c_int, new: *const c_void) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    unsafe { set(linux::__NR_setrlimit, [resource as usize, new as usize, 0, 0, 0, 0]) as c_int }
}

#[no_mangle]
unsafe extern "C" fn setrlimit64(resource: c_int, new: *const c_void) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    unsafe { setrlimit(resource, new) }
}

#[no_mangle]
unsafe extern "C" fn prlimit(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    let args = [process as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    unsafe { set(linux::__NR_prlimit64, args) as c_int }
}

#[no_mangle]
unsafe extern "C" fn prlimit64(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    unsafe { prlimit(process, resource, new, old) }
}

/// The same calls made through `syscall`; `None` if it is another one.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn by_number(number: u32, args: [usize; 6]) -> Option<c_long> {
    let is_known = matches!(number, linux::__NR_setrlimit | linux::__NR_prlimit64);
    // SAFETY: forwarded with the caller's promise.
    is_known.then(|| unsafe { set(number, args) })
}

/// # Safety
/// As the system call.
unsafe fn set(number: u32, args: [usize; 6]) -> c_long {
    // SAFETY: forwarded with the caller's promise.
    let outcome = unsafe { raw::syscall(number, args) };
    let (process, resource, new) = match number {
        linux::__NR_setrlimit => (0, args[0], args[1]),
        _ => (args[0] as u32, args[1], args[2]),
    };
    let is_own = process == 0 || process == thread::process_id();
    let counts_addresses = matches!(resource as u32, linux::RLIMIT_AS | linux::RLIMIT_DATA);
    if outcome.is_ok() && is_own && counts_addresses {
        // SAFETY: the kernel has just read it; null where it was only asked.
        let limit = unsafe { (new as *const Limit).as_ref() };
        if limit.is_some_and(|limit| limit.soft != INFINITE) {
            start::retire(Calls::OfFree, Reason::AddressSpace);
        }
    }
    answer(outcome)
}
