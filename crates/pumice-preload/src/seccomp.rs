//! Seccomp filters, before they are installed.
//!
//! A filter knows which system calls the program makes, and not which ones the heap does. So before one is installed
//! the heap retires: free memory is unmapped, and from then on nothing is served. Memory in use is unmapped when it is
//! freed, as the C library does with its own; in strict mode, where that would end the program, it stays.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as linux;
use pumice_heap::heap::Calls;
use pumice_heap::stats::Reason;

use crate::state;

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_SET_MODE_STRICT: c_uint = 0;
const SECCOMP_SET_MODE_FILTER: c_uint = 1;

/// Whether there may be one. Relaxed: as the thread that installs one is bound by it, it knows; others know when it has
/// told them.
static MAY_BE_ONE: AtomicBool = AtomicBool::new(false);

/// Whether the program may have installed a filter.
pub(crate) fn may_be_one() -> bool {
    MAY_BE_ONE.load(Ordering::Relaxed)
}

fn retire(calls: Calls) {
    MAY_BE_ONE.store(true, Ordering::Relaxed);
    state::retire(calls, Reason::Seccomp);
}

/// Before `prctl(PR_SET_SECCOMP, mode, filter)`. A call without a filter to install only asks
/// whether the kernel knows of any.
pub(crate) fn before_prctl(option: c_int, mode: usize, filter: usize) {
    if option == PR_SET_SECCOMP {
        if mode == SECCOMP_MODE_STRICT {
            retire(Calls::None);
        } else if filter != 0 {
            retire(Calls::OfFree);
        }
    }
}

/// Before a call by number that may install a filter.
pub(crate) fn before_call(number: u32, [a, b, c, ..]: [usize; 6]) {
    match number {
        linux::__NR_prctl => before_prctl(a as c_int, b, c),
        linux::__NR_seccomp if a as c_uint == SECCOMP_SET_MODE_STRICT => {
            retire(Calls::None);
        }
        linux::__NR_seccomp if a as c_uint == SECCOMP_SET_MODE_FILTER && c != 0 => {
            retire(Calls::OfFree);
        }
        _ => {}
    }
}
