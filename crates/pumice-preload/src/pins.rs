//! Calls after which somebody else may hold the process's pages: see `pumice_heap::heap::pins`.
//!
//! From the first of them on memory that is freed goes back to the kernel, since a pipe, a socket or a device may still
//! read it, or write to it.

use core::ffi::{c_int, c_uint, c_void};

use linux_raw_sys::general as linux;
use pumice_frames::sys::raw;

use crate::errno::answer;
use crate::symbols::{self, c_name};
use crate::{state, weak};

const SOL_SOCKET: c_int = 1;
const SO_ZEROCOPY: c_int = 60;
const SOL_XDP: c_int = 283;
const XDP_UMEM_REG: c_int = 4;

/// Defines functions that may have pages held: the next library's, since they are where a thread can be cancelled, or
/// else the system call, and a step before, which has their arguments.
macro_rules! pins {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $before:expr, $number:ident, $args:expr;)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            type Next = unsafe extern "C" fn($($type),*) -> $result;
            const NAME: &core::ffi::CStr = c_name(concat!(stringify!($name), "\0"));
            $before;
            match symbols::next!(NAME, Next) {
                // SAFETY: forwarded with the caller's promise.
                Some(next) => unsafe { next($($argument),*) },
                // SAFETY: forwarded with the caller's promise.
                None => answer(unsafe { raw::syscall(linux::$number, $args) }) as $result,
            }
        }
    )*};
}

// A socket that is sent by may have come with the option set.
pins! {
    vmsplice(pipe: c_int, pieces: *const c_void, count: usize, flags: c_uint) -> isize, state::stop_recycling(),
        __NR_vmsplice, [pipe as usize, pieces as usize, count, flags as usize, 0, 0];
    setsockopt(
        socket: c_int, level: c_int, option: c_int, value: *const c_void, len: c_uint
    ) -> c_int, before_option(level, option),
        __NR_setsockopt, [socket as usize, level as usize, option as usize, value as usize, len as usize, 0];
    send(socket: c_int, from: *const c_void, len: usize, flags: c_int) -> isize, before_sending(flags),
        __NR_sendto, [socket as usize, from as usize, len, flags as usize, 0, 0];
    sendto(
        socket: c_int, from: *const c_void, len: usize, flags: c_int, to: *const c_void, to_len: c_uint
    ) -> isize, before_sending(flags),
        __NR_sendto,
        [socket as usize, from as usize, len, flags as usize, to as usize, to_len as usize];
    sendmsg(socket: c_int, message: *const c_void, flags: c_int) -> isize, before_sending(flags),
        __NR_sendmsg, [socket as usize, message as usize, flags as usize, 0, 0, 0];
    sendmmsg(socket: c_int, messages: *mut c_void, count: c_uint, flags: c_int) -> c_int, before_sending(flags),
        __NR_sendmmsg, [socket as usize, messages as usize, count as usize, flags as usize, 0, 0];
}

#[inline]
fn before_sending(flags: c_int) {
    const MSG_ZEROCOPY: c_int = 0x400_0000;
    if flags & MSG_ZEROCOPY != 0 {
        state::stop_recycling();
    }
}

/// Before a call by number.
pub(crate) fn before_call(number: u32, args: [usize; 6]) {
    match number {
        linux::__NR_vmsplice
        | linux::__NR_io_setup
        | linux::__NR_io_uring_setup
        | linux::__NR_io_uring_register => state::stop_recycling(),
        linux::__NR_sendto | linux::__NR_sendmmsg => before_sending(args[3] as c_int),
        linux::__NR_sendmsg => before_sending(args[2] as c_int),
        linux::__NR_setsockopt => before_option(args[1] as c_int, args[2] as c_int),
        _ => {}
    }
}

fn before_option(level: c_int, option: c_int) {
    if matches!((level, option), (SOL_SOCKET, SO_ZEROCOPY) | (SOL_XDP, XDP_UMEM_REG)) {
        state::stop_recycling();
    }
}

/// Before a file is mapped: a program maps a device's memory to have the device read and write its own.
pub(crate) fn before_mapping(file: c_int, flags: c_int) {
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    // Under a filter no call may be made that the program would not make.
    if state::is_quiet()
        || file < 0
        || flags & linux::MAP_SHARED as c_int == 0
        || !state::is_recycling()
    {
        return;
    }
    // SAFETY: a descriptor of the program's, for as long as this call; if there is none, the call fails.
    let file = unsafe { rustix::fd::BorrowedFd::borrow_raw(file) };
    let is_regular = rustix::fs::fstat(file).map_or(true, |it| it.st_mode & S_IFMT == S_IFREG);
    if !is_regular && is_held(file) {
        state::stop_recycling();
    }
}

/// Whether the file of a descriptor may hold pages.
fn is_held(file: rustix::fd::BorrowedFd<'_>) -> bool {
    use rustix::fd::AsRawFd;
    let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (mut number, mut digits) = (file.as_raw_fd(), [0u8; 10]);
    let mut count = 0;
    while count == 0 || number > 0 {
        digits[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
    }
    for (to, from) in name[14..].iter_mut().zip(digits[..count].iter().rev()) {
        *to = *from;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&name) else { return false };
    pumice_heap::heap::is_held_by_other(path)
}

/// Whether a library is linked that makes such calls itself, where nothing of this library's sees them.
pub(crate) fn has_library() -> bool {
    weak::has_any!(
        "io_setup",
        "io_queue_init",
        "io_uring_queue_init",
        "io_uring_queue_init_params",
        "ibv_open_device",
        "cuInit",
        "hsa_init",
    )
}
