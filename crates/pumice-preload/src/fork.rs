//! `fork`, as the parent and the child see it.
//!
//! A child is a copy of its parent at one moment, and has one thread. What another thread of the parent is in the
//! middle of, nobody in the child ends. So forks and the steps of the heap that leave something half-way (its start,
//! its end) keep out of each other's way:
//!
//! | | a fork begins | the heap starts | the heap retires |
//! |---|---|---|---|
//! | a fork is under way | | the next allocator serves, and a later request tries again | waits, for [`LONGEST`] at most |
//! | the heap starts or retires | waits for the end | | |
//!
//! Who begins says so first, and looks at the others then (`SeqCst` on both sides). So of two that begin at once at
//! least one sees the other, and none waits for one that waits for it: who retires takes back what it said.
//!
//! A `fork` that is no call of the C library's runs no handlers, and its child may find the heap half-way. Then nothing
//! is served there, and reserved addresses may stay.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use pumice::sys::thread;

use crate::{start, weak};

/// Calls of `fork` whose handlers have run, and which have not returned.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Threads that retire the heap.
static RETIRING: AtomicU32 = AtomicU32::new(0);

const PAUSE: Duration = Duration::from_micros(50);

/// A fork that waits for a lock of the program's, which the thread that retires the heap holds, would never end.
const LONGEST: Duration = Duration::from_secs(1);

/// Whether a child may come to be at any moment. To be asked after saying that a step begins.
pub(crate) fn is_under_way() -> bool {
    // SeqCst: see the module's top.
    UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// While it lives, forks wait.
pub(crate) struct Retiring;

impl Retiring {
    /// Waits for forks that are under way. Signals are blocked: a handler's fork would wait for its own thread.
    pub(crate) fn begin(_: &thread::BlockedSignals) -> Retiring {
        for _ in 0..LONGEST.as_micros() / PAUSE.as_micros() {
            // SeqCst: see the module's top.
            RETIRING.fetch_add(1, Ordering::SeqCst);
            if !is_under_way() {
                return Retiring;
            }
            drop(Retiring);
            thread::sleep(PAUSE);
        }
        RETIRING.fetch_add(1, Ordering::SeqCst);
        Retiring
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        RETIRING.fetch_sub(1, Ordering::SeqCst);
    }
}

extern "C" fn before() {
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    while RETIRING.load(Ordering::SeqCst) > 0 {
        thread::sleep(PAUSE);
    }
    start::before_fork();
}

extern "C" fn in_parent() {
    UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn in_child() {
    // Relaxed: there is no other thread.
    UNDER_WAY.store(0, Ordering::Relaxed);
    RETIRING.store(0, Ordering::Relaxed);
    start::after_fork_in_child();
}

/// Has each `fork` that goes through the C library seen. Called when the shim is loaded, so that what the program has
/// called before a fork runs before this, and holds no lock that a step of the heap would wait for.
pub(crate) fn watch() {
    type Handler = Option<extern "C" fn()>;
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    // What fails here costs the parent time after a fork. The child's memory is then whose process asks first.
    if let Some(register) = weak::function!("__register_atfork": Register) {
        let this_library = (&raw const UNDER_WAY).cast();
        // SAFETY: as pthread_atfork; the last argument names the library that the handlers are in.
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child), this_library) };
    } else if let Some(register) = weak::function!("pthread_atfork": PthreadAtfork) {
        // SAFETY: as pthread_atfork(3).
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child)) };
    }
}
