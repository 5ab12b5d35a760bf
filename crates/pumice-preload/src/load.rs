//! The shim's loading, and the program's forks: the functions that the loader and the C library call, and the steps of
//! each part of the shim there.

use core::ffi::{c_int, c_void};

use crate::{fork, start, state, weak};

/// Run by the loader, before the program.
#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    watch_forks();
    // SAFETY: the loader calls this, and once.
    unsafe { start::at_load() };
}

extern "C" fn before_fork() {
    fork::begin();
    state::before_fork();
}

extern "C" fn after_fork_in_parent() {
    fork::end();
}

extern "C" fn after_fork_in_child() {
    fork::forget();
    state::after_fork_in_child();
}

/// Registers the fork handlers.
fn watch_forks() {
    type Handler = Option<extern "C" fn()>;
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    // Without them the parent is slower after a fork, and the first of the two that makes a request has the memory.
    if let Some(register) = weak::function!("__register_atfork": Register) {
        let this_library = (&raw const AT_LOAD).cast();
        // SAFETY: as pthread_atfork; the last argument names the library that the handlers are in.
        let _ = unsafe {
            register(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
                this_library,
            )
        };
    } else if let Some(register) = weak::function!("pthread_atfork": PthreadAtfork) {
        // SAFETY: as pthread_atfork(3).
        let _ = unsafe {
            register(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
    }
}
