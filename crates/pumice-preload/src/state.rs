//! The shim's heap, as the rest of the shim sees it: its states, its thresholds and its end.
//!
//! [`crate::start`] has the steps that start it. This file takes them, one at a time.
//!
//! # States
//! ```text
//! UNREAD --the loader, or an earlier request--> READ --first that is worth one--> SERVING
//!                                                |
//!                                                +-- not wanted, or not possible --> OFF
//! ```
//! Each arrow passes through BUSY, which one thread at a time holds. Nobody waits for it: a request that finds it, a
//! signal handler's included, goes to the next allocator. The heap and the rest ([`Served`]) are written before the
//! Release store of SERVING and read after an Acquire load of it.
//!
//! How it follows a `fork`: [`crate::fork`] and [`pumice_heap::process`].

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use pumice_frames::sys::thread;
use pumice_heap::config;
use pumice_heap::heap::{Calls, Heap};
use pumice_heap::process::{self, ProcessWord, Served};
use pumice_heap::stats::{Event, Reason};

use crate::environment::Environment;
use crate::fatal::Verbosity;
use crate::{errno, fork, weak};

/// Requests of this many bytes and more come to [`crate::start::heap_for`]. One frame until the environment is read,
/// everything once the state is OFF. Relaxed: a stale value sends a request the wrong way, and both ways are right.
static THRESHOLD: AtomicUsize = AtomicUsize::new(config::MIN_THRESHOLD);

/// Mappings of this many bytes and more come to [`crate::start::heap_for_mapping`]. One frame until the environment is
/// read, and everything from then on unless it says otherwise. Relaxed, as [`THRESHOLD`].
static MMAP_THRESHOLD: AtomicUsize = AtomicUsize::new(config::MIN_THRESHOLD);

static STATE: AtomicU32 = AtomicU32::new(UNREAD);
pub(crate) const UNREAD: u32 = 0;
pub(crate) const READ: u32 = 1;
/// And the thread that has it, in one word.
const BUSY: u32 = 1 << 31;
pub(crate) const SERVING: u32 = 3;
const OFF: u32 = 4;

struct ServedCell(UnsafeCell<MaybeUninit<Served>>);

// SAFETY: written by the one thread that holds BUSY, and only read from SERVING on.
unsafe impl Sync for ServedCell {}

static SERVED: ServedCell = ServedCell(UnsafeCell::new(MaybeUninit::uninit()));
/// Whether a thread was seen to have changed rights that others have kept, before there was a heap.
static ALONE: AtomicBool = AtomicBool::new(false);
/// Whether a seccomp filter is about to be installed, or is. Relaxed: the thread that installs it
/// sets it, and others are not bound by its filter until the kernel has synchronised them.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Whether the heap has retired, or will not start. Relaxed: a thread that sees it late retires it once more.
static RETIRED: AtomicBool = AtomicBool::new(false);

/// Whether somebody beside the process may hold its pages. Relaxed: see [`stop_recycling`].
static MAY_PIN: AtomicBool = AtomicBool::new(false);

/// The heap, for an address in its zones.
#[derive(Clone, Copy)]
pub(crate) struct Owned {
    /// The heap.
    pub(crate) heap: &'static Heap,
}

/// See [`THRESHOLD`].
#[inline(always)]
pub(crate) fn threshold() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// See [`MMAP_THRESHOLD`].
#[inline(always)]
pub(crate) fn mmap_threshold() -> usize {
    MMAP_THRESHOLD.load(Ordering::Relaxed)
}

/// The heap, if mappings at its addresses are its business.
#[inline(always)]
pub(crate) fn serving_heap() -> Option<&'static Heap> {
    published().filter(|heap| !heap.is_retired())
}

/// Ends serving for good, and gives free memory up: to be called before a call that leaves no room for a heap, and
/// while every system call is still allowed.
pub(crate) fn retire(calls: Calls, reason: Reason) {
    if is_retired() {
        // No call is made: a filter may be in force that does not know it.
        if let (Some(heap), Calls::None) = (published(), calls) {
            heap.keep_what_is_freed();
        }
        return;
    }
    // A forked child makes the heap its own first: a wait for helpers would be a wait for its parent's.
    if published().is_some() {
        if is_borrowed() {
            return;
        }
        is_current();
    } else if reason == Reason::AddressSpace && has_borrowed() == Some(true) {
        // It limits only itself, and the owner's heap may start yet.
        return;
    }
    let signals = thread::BlockedSignals::block();
    let _retiring = fork::Retiring::begin(&signals);
    QUIET.store(true, Ordering::Relaxed);
    turn_all_away();
    // A heap that has not started would need calls that may not be allowed any more.
    loop {
        for from in [UNREAD, READ] {
            advance(from, |_| Err(reason));
        }
        // Acquire: as in `published`.
        if !wait_for_step() || matches!(STATE.load(Ordering::Acquire), SERVING | OFF) {
            break;
        }
    }
    let heap = published();
    if let Some(heap) = heap {
        heap.retire(calls);
    }
    let is_off = STATE.load(Ordering::Acquire) == OFF;
    RETIRED.store(is_off || heap.is_some_and(Heap::is_retired), Ordering::Relaxed);
}

/// Waits for another thread that starts the heap, or makes it this process's own. `false` where no thread of this
/// process does.
fn wait_for_step() -> bool {
    const PAUSE: Duration = Duration::from_micros(50);
    let word = served().map(Served::word);
    let stepping = || {
        // SeqCst: as in `advance`, and, before a fork, as `fork` says.
        let state = STATE.load(Ordering::SeqCst);
        let starting = (state & BUSY != 0).then_some(state & !BUSY);
        starting.or_else(|| word.and_then(ProcessWord::adopting_thread))
    };
    while let Some(thread) = stepping() {
        // A handler of that thread asks, or it stayed with the parent of a fork.
        if thread == thread::thread_id() || !thread::thread_exists(thread) {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Whether the heap is another process's, whose memory this one has until it starts a program (`vfork`): changes of
/// its own rights and limits do not matter to the heap, whose threads are not in it.
fn is_borrowed() -> bool {
    served().is_some_and(|served| served.word().is_borrowed())
}

/// As [`is_borrowed`], where no heap knows the memory's owner; `None` where that can't be told. glibc registers each
/// thread's robust list, but not a `vfork` child's; else the kernel compares the memory with the parent's.
pub(crate) fn has_borrowed() -> Option<bool> {
    match weak::is_glibc() && !thread::may_have_borrowed() {
        true => Some(false),
        false => thread::shares_memory_with_parent(),
    }
}

/// From now on memory that is freed goes back to the kernel: somebody else may hold its pages.
pub(crate) fn stop_recycling() {
    // Relaxed: the call that makes it so comes after, and a heap that starts meanwhile looks after it is published.
    MAY_PIN.store(true, Ordering::Relaxed);
    if let Some(heap) = published() {
        heap.stop_recycling();
    }
}

/// Whether memory that is freed is used again.
pub(crate) fn is_recycling() -> bool {
    !MAY_PIN.load(Ordering::Relaxed)
}

/// Whether memory that is freed may be unmapped.
pub(crate) fn may_unmap() -> bool {
    published().is_none_or(Heap::may_unmap)
}

/// Helpers that are not to run for now.
pub(crate) struct Withheld {
    /// The heap that they work for.
    pub(crate) heap: &'static Heap,
    /// Whether there was any.
    pub(crate) had_any: bool,
}

/// Ends the heap's helper threads until they are readmitted. `None` where there is no heap, and in a forked child
/// that has not used its own yet: there are none.
pub(crate) fn withhold_helpers() -> Option<Withheld> {
    let served = served().filter(|served| served.word().is_adopted())?;
    let heap = served.heap();
    if heap.is_retired() || served.word().is_borrowed() {
        return None;
    }
    Some(Withheld { heap, had_any: heap.withhold_helpers() })
}

/// From now on the threads of this process have different rights: a heap that starts later has no helpers.
pub(crate) fn go_alone() {
    ALONE.store(true, Ordering::Relaxed);
}

/// Whether nothing is served, for good.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Whether there is nothing left to [`retire`].
pub(crate) fn is_retired() -> bool {
    RETIRED.load(Ordering::Relaxed)
}

/// The heap if `at` lies in its zones, and in no mapping that another allocator may have made.
#[inline(always)]
pub(crate) fn owned(at: *const c_void) -> Option<Owned> {
    let heap = published()?;
    (heap.owns(at.cast()) && heap.has(at.cast())).then_some(Owned { heap })
}

/// Whether this process may use the heap. Makes a forked child's heap its own.
pub(crate) fn is_current() -> bool {
    // SAFETY: written before SERVING, which the caller has seen, and not since.
    let served = unsafe { (*SERVED.0.get()).assume_init_ref() };
    served.word().is_current(|| adopt(served))
}

/// Counts an event of this process.
pub(crate) fn count(event: Event) {
    if let Some(served) = served() {
        served.slot().add(event, 1);
    }
}

/// Whether the user asked for messages about errors.
pub(crate) fn verbosity() -> Verbosity {
    match served().is_some_and(Served::verify) {
        true => Verbosity::Explain,
        false => Verbosity::Silent,
    }
}

/// The state, from which [`advance`] leads on.
#[inline(always)]
pub(crate) fn current() -> u32 {
    // Acquire: as in `served`.
    STATE.load(Ordering::Acquire)
}

/// The heap, from SERVING on.
#[inline(always)]
pub(crate) fn published() -> Option<&'static Heap> {
    served().map(Served::heap)
}

#[inline(always)]
fn served() -> Option<&'static Served> {
    // Acquire: pairs with the Release in `advance`.
    let serving = STATE.load(Ordering::Acquire) == SERVING;
    // SAFETY: written before SERVING was stored, and not since.
    serving.then(|| unsafe { (*SERVED.0.get()).assume_init_ref() })
}

/// Takes a step from `from`, unless another thread does. Whether the heap now serves.
#[cold]
pub(crate) fn advance(
    from: u32,
    step: impl Fn(&thread::BlockedSignals) -> Result<u32, Reason>,
) -> bool {
    // A handler of the program's may set limits or install filters, which wait for the step.
    let all_signals = thread::BlockedSignals::block();
    // SeqCst: the writes of the thread that took the step before are seen, and a fork that begins sees this or is
    // seen: `fork`.
    let busy = BUSY | thread::thread_id();
    if STATE.compare_exchange(from, busy, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return false;
    }
    let next = errno::keep(|| {
        step(&all_signals).unwrap_or_else(|reason| {
            turn_all_away();
            note(reason);
            OFF
        })
    });
    // Release: pairs with the Acquire in `published`.
    STATE.store(next, Ordering::Release);
    next == SERVING
}

/// Has a heap that the step under way started stand in [`SERVED`], and applies the flags that other threads have set
/// before.
///
/// # Safety
/// The caller is a step that [`advance`] takes, and SERVING comes after it.
#[inline]
pub(crate) unsafe fn install(served: Served) {
    // SAFETY: this thread holds BUSY, and nobody else touches the cell before SERVING.
    let heap = unsafe { (*SERVED.0.get()).write(served) }.heap();
    // Set by another thread meanwhile, which found nothing published.
    if MAY_PIN.load(Ordering::Relaxed) {
        heap.stop_recycling();
    }
    if ALONE.load(Ordering::Relaxed) {
        heap.go_on_alone();
    }
    if QUIET.load(Ordering::Relaxed) {
        heap.retire(Calls::OfFree);
    }
}

/// Tells the tree why nothing is served here, if there is a tree that others read.
fn note(reason: Reason) {
    if reason == Reason::SetUserId {
        // It must not be led by its caller's environment.
        return;
    }
    let Some(environment) = Environment::kept() else { return };
    let mut name = [0; 16];
    let name = process::program_name(&mut name);
    let tree = process::shared_tree(&environment);
    if let Some(slot) = tree.and_then(|tree| process::take_slot(tree, name, &environment)) {
        slot.set_reason(reason);
    }
}

/// In the parent, before a `fork` that the C library makes, when a child may come to be at any moment.
pub(crate) fn before_fork() {
    // A step that begins from now on finds the fork under way, and does nothing.
    wait_for_step();
    if let Some(heap) = published() {
        heap.before_fork();
    }
}

/// In the child of such a `fork`, before anything else runs there.
pub(crate) fn after_fork_in_child() {
    // A step that began since then found the fork under way. Relaxed: there is no other thread.
    if STATE.load(Ordering::Relaxed) & BUSY != 0 {
        STATE.store(UNREAD, Ordering::Relaxed);
    }
    // A filter may be in force that does not know the calls.
    if is_quiet() {
        return;
    }
    if let Some(served) = served() {
        served.word().note_fork();
    }
}

/// Makes a forked child's heap its own, or has it retire. Whether the child may use it.
fn adopt(served: &'static Served) -> bool {
    // As in `advance`.
    let _all_signals = thread::BlockedSignals::block();
    // SAFETY: its word says so of one thread, before any other of the child uses the heap.
    if !QUIET.load(Ordering::Relaxed) && unsafe { served.adopt() } {
        return true;
    }
    turn_all_away();
    // SAFETY: as above; it was not adopted.
    unsafe { served.heap().after_fork_alone() };
    false
}

/// Leaves all requests to the next allocator.
fn turn_all_away() {
    set_thresholds(usize::MAX, usize::MAX);
}

/// Sets [`THRESHOLD`] and [`MMAP_THRESHOLD`].
pub(crate) fn set_thresholds(requests: usize, mappings: usize) {
    THRESHOLD.store(requests, Ordering::Relaxed);
    MMAP_THRESHOLD.store(mappings, Ordering::Relaxed);
}
