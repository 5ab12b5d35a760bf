//! `setrlimit` and its relations: limits that a running program sets itself.
//!
//! A limit on addresses (`RLIMIT_AS`) or data (`RLIMIT_DATA`) counts the heap's reserved addresses, and would leave
//! the program no room. So the heap retires: it gives up all that is not in use, and serves nothing more.

use core::ffi::{c_int, c_long, c_void};

use linux_raw_sys::general as linux;
use pumice_frames::sys::{raw, thread};
use pumice_heap::heap::Calls;
use pumice_heap::stats::Reason;
use rustix::io::Errno;

use crate::errno::{self, answer};
use crate::state;
use crate::symbols::{self, c_name};

/// `struct rlimit64`.
#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

const INFINITE: u64 = u64::MAX;

/// Defines functions that set a limit, which is their argument of that name: the next library's call, and the steps
/// after it.
macro_rules! sets_limit {
    ($($name:ident($($argument:ident: $type:ty),*) of ($process:expr, $resource:ident, $new:ident, $old:expr);)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            type Next = unsafe extern "C" fn($($type),*) -> c_int;
            const NAME: &core::ffi::CStr = c_name(concat!(stringify!($name), "\0"));
            let Some(next) = symbols::next!(NAME, Next) else {
                // musl has some of these names for programs that are linked already, and not for `dlsym`.
                let args = [$process as usize, $resource as usize, $new as usize, $old as usize, 0, 0];
                // SAFETY: forwarded with the caller's promise.
                return unsafe { set(linux::__NR_prlimit64, args) as c_int };
            };
            before_setting($process as u32, $resource as usize, $new as usize);
            // SAFETY: forwarded with the caller's promise.
            unsafe { next($($argument),*) }
        }
    )*};
}

sets_limit! {
    setrlimit(resource: c_int, new: *const c_void) of (0, resource, new, 0);
    setrlimit64(resource: c_int, new: *const c_void) of (0, resource, new, 0);
    prlimit(process: c_int, resource: c_int, new: *const c_void, old: *mut c_void) of (process, resource, new, old);
    prlimit64(process: c_int, resource: c_int, new: *const c_void, old: *mut c_void) of (process, resource, new, old);
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
    let (process, resource, new) = match number {
        linux::__NR_setrlimit => (0, args[0], args[1]),
        _ => (args[0] as u32, args[1], args[2]),
    };
    before_setting(process, resource, new);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { raw::syscall(number, args) })
}

/// Called before a limit is set (or only read, where `new` is null): until the heap's reserved addresses are gone no
/// thread would get memory. If the call then fails, only speed is lost.
fn before_setting(process: u32, resource: usize, new: usize) {
    let counts_addresses = matches!(resource as u32, linux::RLIMIT_AS | linux::RLIMIT_DATA);
    if !counts_addresses || new == 0 || state::is_retired() || !is_own(process) {
        return;
    }
    if read_limit(new).is_some_and(|limit| limit.soft != INFINITE) {
        errno::keep(|| state::retire(Calls::OfFree, Reason::AddressSpace));
    }
}

/// Whether a number is this process's: any of its threads' will do.
fn is_own(process: u32) -> bool {
    process == 0 || process == thread::process_id() || thread::thread_exists(process)
}

/// The limit at an address, if it can be read: the kernel has not looked yet.
fn read_limit(at: usize) -> Option<Limit> {
    // The kernel reads a mask before it looks at what to do with it, and that there is no such thing to do. This call
    // is one that the C library makes, too.
    const NOTHING: usize = 99;
    let is_readable = |word: usize| {
        let args = [NOTHING, word, 0, size_of::<u64>(), 0, 0];
        // SAFETY: it is refused in any case.
        let outcome = unsafe { raw::syscall(linux::__NR_rt_sigprocmask, args) };
        outcome == Err(Errno::INVAL)
    };
    let end = at.checked_add(size_of::<u64>())?;
    // SAFETY: both words can be read. An address need not be aligned.
    (is_readable(at) && is_readable(end)).then(|| unsafe { (at as *const Limit).read_unaligned() })
}
