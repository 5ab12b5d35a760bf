//! `unshare` and `setns`, some of which the kernel refuses to a process with several threads.
//!
//! A program that has one thread knows that it may make these calls. The heap's helpers are threads
//! it knows nothing of: they end before, and none is started from then on. The kernel tells of a
//! thread's end a moment before it stops counting it, so a refusal is asked for again for a while.

use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use pumice::sys::{raw, thread};

use crate::interpose::set_errno;
use crate::start;

/// What only a process with one thread may unshare: `CLONE_VM`, `CLONE_SIGHAND`, `CLONE_THREAD`,
/// `CLONE_NEWUSER`.
const NEEDS_ONE_THREAD: usize = 0x100 | 0x800 | 0x1_0000 | 0x1000_0000;

#[cfg(target_arch = "x86_64")]
const NUMBERS: Numbers = Numbers { unshare: 272, setns: 308 };
#[cfg(target_arch = "aarch64")]
const NUMBERS: Numbers = Numbers { unshare: 97, setns: 268 };

struct Numbers {
    unshare: u32,
    setns: u32,
}

/// "Invalid argument", on every architecture: what a process with several threads is told.
const EINVAL: c_int = 22;
/// How often, and after what pause, the call is made again.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(100);

#[no_mangle]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    call(NUMBERS.unshare, [flags as usize, 0])
}

#[no_mangle]
unsafe extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    call(NUMBERS.setns, [file as usize, kind as usize])
}

/// The same calls made through `syscall`; `None` if it is another one.
pub(crate) fn by_number(number: i64, arguments: [usize; 2]) -> Option<i64> {
    let number = u32::try_from(number).ok()?;
    (number == NUMBERS.unshare || number == NUMBERS.setns)
        .then(|| i64::from(call(number, arguments)))
}

fn call(number: u32, [a, b]: [usize; 2]) -> c_int {
    // SAFETY: neither call touches the process's memory.
    let make = || unsafe { raw::syscall(number, [a, b, 0, 0, 0, 0]) };
    let needs_one_thread = number == NUMBERS.setns || a & NEEDS_ONE_THREAD != 0;
    let mut attempts = if needs_one_thread && start::end_helpers() { ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match make() {
            Ok(_) => return 0,
            Err(errno) if errno.raw_os_error() == EINVAL && attempts > 0 => {
                // Nobody wakes it.
                thread::sleep_on(&AtomicU32::new(0), 0, Some(PAUSE));
            }
            Err(errno) => {
                set_errno(errno.raw_os_error());
                return -1;
            }
        }
    }
}
