//! Starting the heap: its two steps, and the requests that take them.
//!
//! [`crate::state`] has the states. Where memory is to be populated ahead, both steps are taken as soon as the shim is
//! loaded.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pumice_frames::sys::sched::Affinity;
use pumice_frames::sys::stack;
use pumice_frames::sys::thread::BlockedSignals;
use pumice_heap::config;
use pumice_heap::heap::{Discard, Heap};
use pumice_heap::process::{self, Host, Served, Variables, ZeroCheck};
use pumice_heap::stats::Reason;

use crate::environment::{self, Environment};
use crate::state::{self, advance, mmap_threshold, threshold, READ, SERVING, UNREAD};
use crate::{advice, errno, fork, pins, sanitizer, symbols, weak};

/// The heap that is to serve a request of `size` bytes; `None`: the next allocator.
pub(crate) fn heap_for(size: usize) -> Option<&'static Heap> {
    match state::current() {
        SERVING => {}
        UNREAD => {
            advance(UNREAD, read_environment);
            if size < threshold() || is_little(size) || !advance(READ, start) {
                return None;
            }
        }
        READ => {
            if is_little(size) || !advance(READ, start) {
                return None;
            }
        }
        _ => return None,
    }
    state::is_current().then(state::published).flatten()
}

/// Whether a process has asked for so little that a heap would cost it more than it gains: it takes as long to start as
/// 100 faults. Most processes are such: compilers' drivers, shells, tools.
fn is_little(size: usize) -> bool {
    /// Bytes of requests so far. Relaxed: a number that orders nothing.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let few = FEW_BYTES.load(Ordering::Relaxed);
    size < config::MUCH_AT_ONCE
        && size < few
        && ASKED.fetch_add(size, Ordering::Relaxed) + size < few
}

/// Less than this in all is little; 0 where a threshold was given. Relaxed, as the thresholds.
static FEW_BYTES: AtomicUsize = AtomicUsize::new(config::MUCH_IN_ALL);

/// The heap that is to serve a mapping of `len` bytes; `None`: the kernel.
pub(crate) fn heap_for_mapping(len: usize) -> Option<&'static Heap> {
    if state::is_quiet() {
        // A filter may know `mmap` and none of the calls that it takes to serve one.
        return None;
    }
    if state::current() == UNREAD {
        advance(UNREAD, read_environment);
    }
    if len < mmap_threshold() {
        return None;
    }
    heap_for(len.max(threshold()))
}

/// Before the program: has memory populated where this is the process it is for.
///
/// # Safety
/// The loader calls it once.
pub(crate) unsafe fn at_load() {
    // Before the program binds its threads to processors.
    // SAFETY: it is called once, and nobody reads it before it is known.
    unsafe { *HOME.0.get() = Affinity::here() };
    // Release: pairs with the Acquire in `home`.
    HOME_IS_KNOWN.store(true, Ordering::Release);
    // Where the C library has not set `environ` up yet, the first request does it.
    advance(UNREAD, read_environment);
    if Environment::kept().is_some_and(|environment| process::is_first(&environment)) {
        if let Some(heap) = heap_for(LARGE_ENOUGH) {
            heap.populate_ahead();
        }
    }
}

/// A request that no threshold turns away.
const LARGE_ENOUGH: usize = usize::MAX - 1;

/// UNREAD to READ, unless the C library is not ready yet.
fn read_environment(_: &BlockedSignals) -> Result<u32, Reason> {
    // SAFETY: `advance` lets one thread at a time take a step.
    let Some(environment) = (unsafe { Environment::keep() }) else { return Ok(UNREAD) };
    if let Err(reason) = process::find_refusal(&environment) {
        REFUSAL.store(1 + reason as u64, Ordering::Relaxed);
    }
    let wanted = environment.get(config::ENV_THRESHOLD).and_then(config::parse_size);
    let threshold = wanted.unwrap_or(config::DEFAULT_THRESHOLD).max(config::MIN_THRESHOLD);
    // An allocator whose own functions free what `malloc` gave (jemalloc's, by size) must have given it, unless
    // `pumice run --small` put a library before it that asks the shim (small/small.c).
    let frees_by_others = weak::has_any!("sdallocx", "dallocx") && !weak::has_any!("pumice_small");
    // A program that has a `free` of its own, and leaves some of the family to others, frees their memory.
    let is_freed_elsewhere = frees_by_others || !symbols::is_first(c"free");
    let threshold = if is_freed_elsewhere { usize::MAX } else { threshold };
    let mappings = environment.get(config::ENV_MMAP_THRESHOLD);
    let mappings = mappings.and_then(config::parse_mmap_threshold).unwrap_or(usize::MAX);
    if wanted.is_some() || mappings != usize::MAX {
        FEW_BYTES.store(0, Ordering::Relaxed);
    }
    state::set_thresholds(threshold, mappings);
    Ok(READ)
}

/// 1 + the reason why the variables have nothing served in this program; 0 for none. Relaxed: one thread at a time
/// takes a step, after it has acquired the step before.
static REFUSAL: AtomicU64 = AtomicU64::new(0);

/// READ to SERVING, unless something is in the way.
fn start(all_signals: &BlockedSignals) -> Result<u32, Reason> {
    if state::is_quiet() {
        return Err(Reason::Seccomp);
    }
    // A process that has another's memory for a while must not have its heap: the owner starts one. A fork's child
    // would have it half-way, and with it the addresses that are reserved to find a place for the stack.
    if state::has_borrowed().unwrap_or_else(weak::is_glibc) || fork::is_under_way() {
        return Ok(READ);
    }
    // The stack at hand may be that of a signal handler, or of a thread that needs little.
    stack::on_another(all_signals, start_here).unwrap_or(Err(Reason::NoMemory))
}

fn start_here() -> Result<u32, Reason> {
    let environment = Environment::kept().ok_or(Reason::Unknown)?;
    find_obstacle(&environment)?;
    let mut name = [0; 16];
    let name = process::program_name(&mut name);
    // SAFETY: anonymous memory that the kernel was advised not to need reads as zeros.
    let discard = Some(unsafe { Discard::new(discard) });
    let host = Host { home: home(), discard, zero_check: ZeroCheck::ByHeap };
    let served = Served::start(&environment, name, host)?;
    if pins::has_library() {
        state::stop_recycling();
    }
    // SAFETY: `advance` takes this step, and to SERVING.
    unsafe { state::install(served) };
    Ok(SERVING)
}

/// Gives the pages of memory that was allocated back, in the sight of libraries that watch for that: MPI's and
/// libfabric's libraries keep memory registered with a device until they see it go, by `madvise` for one.
///
/// # Safety
/// The range is mapped, and nobody uses its content.
unsafe fn discard(at: *mut u8, len: usize) -> bool {
    let advice = linux_raw_sys::general::MADV_DONTNEED as c_int;
    // `free` leaves `errno` alone.
    // SAFETY: as the caller promises.
    errno::keep(|| unsafe { advice::madvise(at.cast(), len, advice) }) == 0
}

/// Whether glibc was told to fill memory that is allocated and freed, so that programs that rely on its content fail.
fn is_perturbed(environment: &Environment) -> bool {
    let is_set = |value: &str| !value.is_empty() && value != "0";
    let tunables = environment.get("GLIBC_TUNABLES").unwrap_or("");
    let tunable = tunables.split(':').find_map(|it| it.strip_prefix("glibc.malloc.perturb="));
    tunable.is_some_and(is_set) || environment.get("MALLOC_PERTURB_").is_some_and(is_set)
}

/// Whether the shim is to stay out of this program, and why.
fn find_obstacle(environment: &Environment) -> Result<(), Reason> {
    if environment::auxiliary_value(process::AT_SECURE) == Some(1) {
        return Err(Reason::SetUserId);
    }
    if let Some(reason) = REFUSAL.load(Ordering::Relaxed).checked_sub(1) {
        return Err(Reason::from(reason));
    }
    process::find_obstacle(environment::page_size())?;
    if is_perturbed(environment) {
        return Err(Reason::Perturbed);
    }
    if sanitizer::is_present() {
        return Err(Reason::Sanitizer);
    }
    Ok(())
}

struct HomeCell(UnsafeCell<Affinity>);

// SAFETY: written once, and read only after that.
unsafe impl Sync for HomeCell {}

/// The processors that the program was started on.
static HOME: HomeCell = HomeCell(UnsafeCell::new(Affinity::UNKNOWN));
static HOME_IS_KNOWN: AtomicBool = AtomicBool::new(false);

fn home() -> Affinity {
    // Acquire: pairs with the Release in `at_load`.
    match HOME_IS_KNOWN.load(Ordering::Acquire) {
        // SAFETY: written before, and not since.
        true => unsafe { *HOME.0.get() },
        false => Affinity::UNKNOWN,
    }
}
