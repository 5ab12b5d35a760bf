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

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use pumice_frames::sys::thread;

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

/// Announces a fork, once the heap does not retire.
pub(crate) fn begin() {
    announce();
    // SeqCst: see the module's top.
    while RETIRING.load(Ordering::SeqCst) > 0 {
        end();
        thread::sleep(PAUSE);
        announce();
    }
}

fn announce() {
    let own = thread::pointer();
    // SeqCst: see the module's top. Relaxed on failure: another's.
    let is_taken = |it: &AtomicUsize| {
        it.compare_exchange(NONE, own, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let _ = UNDER_WAY.iter().any(is_taken);
}

/// Withdraws one announcement. After a fork within a fork handler the child withdraws its parent's, too.
pub(crate) fn end() {
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
        // SeqCst: see the module's top.
        RETIRING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Forgets the parent's other threads, in the child.
pub(crate) fn forget() {
    // Relaxed: there is no other thread.
    UNDER_WAY.iter().for_each(|it| it.store(NONE, Ordering::Relaxed));
    RETIRING.store(0, Ordering::Relaxed);
}
