//! Seccomp filters, before they are installed.
//!
//! A filter knows which system calls the program makes, and not which ones the heap does. So before one is installed
//! the heap retires: free memory is unmapped, and from then on nothing is served. Memory in use is unmapped when it is
//! freed, as the C library does with its own; in strict mode, where that would end the program, it stays.

use core::ffi::{c_int, c_uint};

use linux_raw_sys::general as linux;
use pumice_heap::heap::Calls;
use pumice_heap::stats::Reason;

use crate::state;

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_SET_MODE_STRICT: c_uint = 0;
const SECCOMP_SET_MODE_FILTER: c_uint = 1;

/// Before `prctl(PR_SET_SECCOMP, mode, filter)`. A call without a filter to install only asks
/// whether the kernel knows of any.
pub(crate) fn before_prctl(option: c_int, mode: usize, filter: usize) {
    if option == PR_SET_SECCOMP {
        if mode == SECCOMP_MODE_STRICT {
            state::retire(Calls::None, Reason::Seccomp);
        } else if filter != 0 {
            state::retire(Calls::OfFree, Reason::Seccomp);
        }
    }
}

/// Before a call by number that may install a filter.
pub(crate) fn before_call(number: u32, [a, b, c, ..]: [usize; 6]) {
    match number {
        linux::__NR_prctl => before_prctl(a as c_int, b, c),
        linux::__NR_seccomp if a as c_uint == SECCOMP_SET_MODE_STRICT => {
            state::retire(Calls::None, Reason::Seccomp);
        }
        linux::__NR_seccomp if a as c_uint == SECCOMP_SET_MODE_FILTER && c != 0 => {
            state::retire(Calls::OfFree, Reason::Seccomp);
        }
        _ => {}
    }
}
