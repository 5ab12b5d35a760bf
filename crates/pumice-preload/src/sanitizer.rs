//! Programs that are built with a sanitizer: the shim stays out of their memory.
//!
//! Sanitizers replace `malloc` to watch it, and have to know all memory that was handed out, so
//! every request goes to them: they are the next allocator. AddressSanitizer's runtime moreover
//! refuses to start when another library comes before it, for fear that its `malloc` be bypassed,
//! which it is not; its options can be given by a function, so this library answers for it. What
//! the program itself defines, or the user sets in `ASAN_OPTIONS`, comes first.

use core::ffi::c_char;

use crate::weak;

/// Whether a sanitizer's runtime is in the program.
pub(crate) fn is_present() -> bool {
    let entries = [
        weak::address!("__asan_init"),
        weak::address!("__hwasan_init"),
        weak::address!("__lsan_init"),
        weak::address!("__msan_init"),
        weak::address!("__tsan_init"),
    ];
    entries.iter().any(|&entry| entry != 0)
}

#[no_mangle]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
