//! Libraries that are loaded while the program runs (dlopen(3)): a missing library is no error.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr::NonNull;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// A library, which stays loaded: threads of its own may run in it.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

impl Library {
    /// Loads it.
    ///
    /// # Safety
    /// The library's actions when it is loaded are sound.
    pub unsafe fn load(path: &CStr) -> Option<Library> {
        // SAFETY: a path; the caller vouches for the library.
        NonNull::new(unsafe { dlopen(path.as_ptr(), RTLD_NOW) }).map(Library)
    }

    /// The address of a symbol that it exports.
    pub fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a library that is loaded, and a name.
        NonNull::new(unsafe { dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}
