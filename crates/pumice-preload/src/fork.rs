//! `fork`, as the parent and the child see it.
//!
//! A child is a copy of its parent at one moment, with one thread. Work that another thread of the parent had begun is
//! never finished in the child. So forks exclude the heap's single steps (its start, its end):
//!
//! | | a fork is under way | the heap starts | the heap retires |
//! |---|---|---|---|
//! | a fork | goes on | waits for the end | waits for the end |
//! | the heap starts | the next allocator serves, and a later request tries again | | |
//! | the heap retires | waits, a second or so at most | waits for the end | |
//!
//! A thread announces its step first and then looks for the others (`SeqCst` on both sides), so of two that begin at
//! once at least one sees the other. A fork that sees the heap retire withdraws its announcement, so neither waits for
//! the other.
//!
//! The C library runs the program's fork handlers before and after these. Such a handler may wait for a lock that the
//! retiring thread holds, so the wait ends after about a second. A child that is made after that may keep reserved
//! addresses.
//!
//! A raw `fork` or `clone` system call runs no handlers, and its child may find the heap half-way. Such a child serves
//! nothing, and may keep reserved addresses.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use pumice_frames::sys::thread;

use crate::{start, weak};

/// The threads that are in `fork`, by their thread pointers, which take no system call to read. More forks than this
/// at a time are not waited for.
static UNDER_WAY: [AtomicUsize; 16] = [const { AtomicUsize::new(NONE) }; 16];
const NONE: usize = 0;

/// The number of threads that retire the heap.
static RETIRING: AtomicU32 = AtomicU32::new(0);

const PAUSE: Duration = Duration::from_micros(50);
/// Pauses, each of which takes at least twice [`PAUSE`].
const MOST_PAUSES: u32 = 8000;

/// Whether another thread is in `fork`. The caller has announced its step before.
pub(crate) fn is_under_way() -> bool {
    let own = thread::pointer();
    // SeqCst: see the module's top.
    UNDER_WAY.iter().any(|it| ![NONE, own].contains(&it.load(Ordering::SeqCst)))
}

/// Announces a fork.
fn begin() {
    let own = thread::pointer();
    // SeqCst: see the module's top. Relaxed on failure: another's.
    let is_taken = |it: &AtomicUsize| {
        it.compare_exchange(NONE, own, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let _ = UNDER_WAY.iter().any(is_taken);
}

/// Withdraws one announcement. After a fork within a fork handler the child withdraws its parent's, too.
fn end() {
    let own = thread::pointer();
    let is_own = |it: &AtomicUsize| {
        it.compare_exchange(own, NONE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let _ = UNDER_WAY.iter().any(is_own);
}

/// Forks wait while this lives.
pub(crate) struct Retiring;

impl Retiring {
    /// Waits for forks that are under way. Signals are blocked, since a fork in a signal handler would wait for its own
    /// thread.
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

/// Registers the fork handlers. Called when the shim is loaded.
pub(crate) fn watch() {
    type Handler = Option<extern "C" fn()>;
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    // Without them the parent is slower after a fork, and the first of the two that makes a request has the memory.
    if let Some(register) = weak::function!("__register_atfork": Register) {
        let this_library = (&raw const UNDER_WAY).cast();
        // SAFETY: as pthread_atfork; the last argument names the library that the handlers are in.
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child), this_library) };
    } else if let Some(register) = weak::function!("pthread_atfork": PthreadAtfork) {
        // SAFETY: as pthread_atfork(3).
        let _ = unsafe { register(Some(before), Some(in_parent), Some(in_child)) };
    }
}
