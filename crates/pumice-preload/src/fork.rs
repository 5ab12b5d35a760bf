//! `fork`, as the parent and the child see it.
//!
//! A child is a copy of its parent at one moment, and has one thread. Nobody in the child ends the work that another
//! thread of the parent is in the middle of. So forks and the heap's single steps (its start, its end) keep out of
//! each other's way:
//!
//! | | a fork is under way | the heap starts | the heap retires |
//! |---|---|---|---|
//! | a fork | goes on | waits for the end | waits for the end |
//! | the heap starts | the next allocator serves, and a later request tries again | | |
//! | the heap retires | waits, a second or so at most | waits for the end | |
//!
//! A thread that begins one says so first, and looks at the others then (`SeqCst` on both sides): of two that begin at
//! once at least one sees the other. A fork that sees a thread retire the heap takes back its word, so neither waits
//! for the other.
//!
//! The C library has handlers of the program's run before this and after this. One may wait for a lock that the
//! retiring thread has: hence the second. A child that comes to be after it may keep addresses that nobody uses.
//!
//! A `fork` that is no call of the C library's runs no handlers, and its child may find the heap half-way. Then nothing
//! is served there, and reserved addresses may stay.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use pumice_frames::sys::thread;

use crate::{start, weak};

/// Calls of `fork` that are under way at a time, of which this knows: by their threads' pointers, which no call is
/// made to learn. Others are not waited for.
static UNDER_WAY: [AtomicUsize; 16] = [const { AtomicUsize::new(NONE) }; 16];
const NONE: usize = 0;

/// Threads that retire the heap.
static RETIRING: AtomicU32 = AtomicU32::new(0);

const PAUSE: Duration = Duration::from_micros(50);
/// Pauses, which take twice as long and more.
const MOST_PAUSES: u32 = 8000;

/// Whether another thread's child may come to be at any moment. To be asked after saying that a step begins.
pub(crate) fn is_under_way() -> bool {
    let own = thread::pointer();
    // SeqCst: see the module's top.
    UNDER_WAY.iter().any(|it| ![NONE, own].contains(&it.load(Ordering::SeqCst)))
}

/// Says that a fork begins.
fn begin() {
    let own = thread::pointer();
    // SeqCst: see the module's top. Relaxed on failure: another's.
    let is_taken = |it: &AtomicUsize| {
        it.compare_exchange(NONE, own, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let _ = UNDER_WAY.iter().any(is_taken);
}

/// Takes that back, once. A child of a handler's fork ends its parent's, too, of which nothing is known there.
fn end() {
    let own = thread::pointer();
    let is_own = |it: &AtomicUsize| {
        it.compare_exchange(own, NONE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let _ = UNDER_WAY.iter().any(is_own);
}

/// While it lives, forks wait.
pub(crate) struct Retiring;

impl Retiring {
    /// Waits for forks that are under way. Signals are blocked: a handler's fork would wait for its own thread.
    pub(crate) fn begin(_: &thread::BlockedSignals) -> Retiring {
        // SeqCst: see the module's top.
        RETIRING.fetch_add(1, Ordering::SeqCst);
        let mut pauses = 0;
        while is_under_way() && pauses < MOST_PAUSES {
            pauses += 1;
            thread::sleep(PAUSE);
        }
        Retiring
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        RETIRING.fetch_sub(1, Ordering::SeqCst);
    }
}

extern "C" fn before() {
    begin();
    while RETIRING.load(Ordering::SeqCst) > 0 {
        end();
        thread::sleep(PAUSE);
        begin();
    }
    start::before_fork();
}

extern "C" fn in_parent() {
    end();
}

extern "C" fn in_child() {
    // Relaxed: there is no other thread.
    UNDER_WAY.iter().for_each(|it| it.store(NONE, Ordering::Relaxed));
    RETIRING.store(0, Ordering::Relaxed);
    start::after_fork_in_child();
}

/// Has each `fork` that goes through the C library seen. Called when the shim is loaded.
pub(crate) fn watch() {
    type Handler = Option<extern "C" fn()>;
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    // A failure here costs the parent time after a fork. The child's memory then belongs to the process that asks
    // first.
    if let Some(register) = weak::function!("__register_atfork": Register) {
        let this_library = (&raw const UNDER_WAY).cast();
        // SAFETY: as pthread_atfork; the last argument names the library that the handlers are in.
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child), this_library) };
    } else if let Some(register) = weak::function!("pthread_atfork": PthreadAtfork) {
        // SAFETY: as pthread_atfork(3).
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child)) };
    }
}
