//! Errors, in numbers and in words.

use std::ffi::{c_char, c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

use pumice_frames::error::Error;

/// The result of a function: 0, or the reason that it did nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Ok = 0,
    /// An argument is NULL, out of range, or has flags that do not exist.
    Invalid = -1,
    /// No memory is left, or no addresses.
    NoMemory = -2,
    /// The address is not the start of an allocation: freed twice, or never allocated.
    NotAllocated = -3,
    /// There is no setting or counter of that name.
    NoSuchName = -4,
    /// The setting does not take that value.
    BadValue = -5,
    /// The buffer is too small.
    TooSmall = -6,
    /// Nothing is served in this process: PUMICE=off, a limit on address space, or the like.
    NotServed = -7,
    /// An error in pumice itself.
    Internal = -8,
}

impl Status {
    const ALL: [Status; 9] = [
        Status::Ok,
        Status::Invalid,
        Status::NoMemory,
        Status::NotAllocated,
        Status::NoSuchName,
        Status::BadValue,
        Status::TooSmall,
        Status::NotServed,
        Status::Internal,
    ];

    const fn explain(self) -> &'static CStr {
        match self {
            Status::Ok => c"done",
            Status::Invalid => c"an argument is null, out of range or has unknown flags",
            Status::NoMemory => c"no memory is left, or no addresses",
            Status::NotAllocated => c"not the start of an allocation; freed twice?",
            Status::NoSuchName => c"no setting or counter of that name",
            Status::BadValue => c"the setting does not take that value",
            Status::TooSmall => c"the buffer is too small",
            Status::NotServed => c"nothing is served in this process",
            Status::Internal => c"an error in pumice itself",
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match error {
            Error::DoubleFree | Error::NotAllocated => Status::NotAllocated,
            Error::OutOfFrames | Error::PoolLimit | Error::Os(_) => Status::NoMemory,
            Error::BadAlignment => Status::Invalid,
        }
    }
}

/// The library's version, such as "0.1.0".
#[no_mangle]
pub extern "C" fn pumice_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The meaning of a status, in English, without a full stop. Never NULL, for any number.
#[no_mangle]
pub extern "C" fn pumice_strerror(status: c_int) -> *const c_char {
    let known = Status::ALL.into_iter().find(|&known| known as c_int == status);
    known.map_or(c"an unknown status", Status::explain).as_ptr()
}

/// Runs the body of a function that C calls; a panic becomes [`Status::Internal`].
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(status)) => status,
        Err(_) => Status::Internal,
    }
}

/// As [`guard`], for a function that returns a pointer: null, and `errno` set, if it fails.
pub(crate) fn guard_pointer<T>(body: impl FnOnce() -> Result<*mut T, Status>) -> *mut T {
    let status = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(at)) => return at,
        Ok(Err(status)) => status,
        Err(_) => Status::Internal,
    };
    let errno = match status {
        Status::NoMemory => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    // SAFETY: the address is that of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let panics = || -> Result<(), Status> { panic!("of the test's, to be caught") };
        assert_eq!(guard(panics), Status::Internal);
        assert!(guard_pointer::<u8>(|| panics().map(|()| null_mut())).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    }
}
