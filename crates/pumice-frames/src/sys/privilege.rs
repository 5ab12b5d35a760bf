//! The privileges that a helper thread gives up before it works: the program's descriptors and capabilities.

use core::ffi::CStr;
use rustix::io::Errno;

use super::raw;

/// Gives the calling thread a table of descriptors of its own, with nothing in it (`close_range(2)` with
/// `CLOSE_RANGE_UNSHARE`, Linux 5.9): its own files take no number in the program's table, and a file that the program
/// closes is closed.
///
/// # Safety
/// The calling thread uses no descriptor that it has had before.
pub unsafe fn leave_descriptors() -> Result<(), Errno> {
    // include/uapi/linux/close_range.h
    const CLOSE_RANGE_UNSHARE: usize = 1 << 1;
    let args = [0, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0];
    // SAFETY: the closing happens in the calling thread's new table only, of which it uses nothing.
    unsafe { raw::syscall(linux_raw_sys::general::__NR_close_range, args) }.map(drop)
}

/// Drops every capability of the calling thread, for good.
pub fn drop_capabilities() -> Result<(), Errno> {
    use linux_raw_sys::general::{
        __NR_capset, __user_cap_data_struct, __user_cap_header_struct, _LINUX_CAPABILITY_VERSION_3,
    };
    let header = __user_cap_header_struct { version: _LINUX_CAPABILITY_VERSION_3, pid: 0 };
    // Version 3 takes two of them, for 64 capabilities.
    let none = [const { __user_cap_data_struct { effective: 0, permitted: 0, inheritable: 0 } }; 2];
    let args =
        [core::ptr::from_ref(&header) as usize, core::ptr::from_ref(&none) as usize, 0, 0, 0, 0];
    // SAFETY: both structures are what version 3 expects; pid 0 is the calling thread.
    unsafe { raw::syscall(__NR_capset, args) }.map(drop)
}

/// Names the calling thread, as `ps -L` and `/proc/PID/task/TID/comm` show it: 15 bytes at most.
pub fn set_thread_name(name: &CStr) {
    use linux_raw_sys::general::__NR_prctl;
    use linux_raw_sys::prctl::PR_SET_NAME;
    let args = [PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the name ends with a NUL. A failure leaves the program's name, which does no harm.
    let _ = unsafe { raw::syscall(__NR_prctl, args) };
}
