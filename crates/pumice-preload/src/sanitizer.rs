//! Programs that are built with a sanitizer, or run by Valgrind: the shim stays out of their memory.
//!
//! Both replace `malloc` to watch it, and have to know all memory that was handed out, so every request goes to them:
//! they are the next allocator. AddressSanitizer's runtime moreover refuses to start when another library comes before
//! it, for fear that its `malloc` be bypassed, which it is not; its options can be given by a function, so this
//! library answers for it. Options that the program itself defines, or that the user sets in `ASAN_OPTIONS`, come
//! first. Valgrind knows neither the instruction that tells the processor's number nor the vDSO that the kernel
//! announces, so nothing of the heap would run there anyway.

use core::ffi::c_char;

use crate::weak;

/// Whether a sanitizer's runtime is in the program, or the library that Valgrind preloads.
pub(crate) fn is_present() -> bool {
    weak::has_any!(
        "__asan_init",
        "__hwasan_init",
        "__lsan_init",
        "__msan_init",
        "__tsan_init",
        "_vgnU_freeres",
    )
}

#[no_mangle]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
