//! The functions that programs see, and the rules of C, POSIX and glibc for each.
//!
//! Requests that the heap does not serve are left to the next allocator with the program's own arguments, so sizes
//! that are zero or absurd, alignments that are none and the `errno` for them are as they would be without the shim.
//! The heap's allocations have a power of two for their alignment and at most [`LARGEST`] bytes. `free` leaves `errno`
//! alone, as nothing here touches it.
//!
//! A pointer into the heap's zones that is no allocation (a double free, a stray pointer) ends the
//! program by `SIGABRT`, as it does under glibc; with `PUMICE_VERIFY=1` a line on standard error
//! says why.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use pumice_frames::error::Error;
use pumice_heap::config::MUCH_AT_ONCE;
use pumice_heap::heap::{with_room, Content, Heap};
use pumice_heap::stats::Event;

use crate::environment::page_size;
use crate::errno::out_of_memory;
use crate::state::{self, Owned};
use crate::{fatal, guards, next, outgrown, parts, pins, seccomp, start, symbols};

/// The alignment that `malloc` promises: for any type.
const MALLOC_ALIGN: usize = 16;
/// The largest request the heap is asked for: no object may be larger in C.
const LARGEST: usize = isize::MAX as usize;
/// The largest alignment the heap is asked for.
const LARGEST_ALIGN: usize = 1 << 30;

#[no_mangle]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if size >= state::threshold() {
        if let Some(at) = serve(size, MALLOC_ALIGN, Content::Any) {
            return at;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::malloc(size) }
}

#[no_mangle]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // An overflow is the next allocator's to refuse.
    let bytes = count.checked_mul(size).unwrap_or(0);
    if bytes >= state::threshold() {
        if let Some(at) = serve(bytes, MALLOC_ALIGN, Content::Zero) {
            return at;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::calloc(count, size) }
}

#[no_mangle]
unsafe extern "C" fn free(at: *mut c_void) {
    if let Some(owned) = state::owned(at) {
        return free_owned(owned, at);
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::free(at) }
}

#[no_mangle]
unsafe extern "C" fn cfree(at: *mut c_void) {
    // SAFETY: forwarded with the caller's promise.
    unsafe { free(at) }
}

#[no_mangle]
unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if let Some(owned) = state::owned(at) {
        // SAFETY: forwarded with the caller's promise.
        return unsafe { realloc_owned(owned, at, size) };
    }
    if size >= state::threshold() {
        // SAFETY: forwarded with the caller's promise.
        if let Some(new) = unsafe { take_over(at, size) } {
            return new;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::realloc(at, size) }
}

#[no_mangle]
unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    type Next = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
    let next = (state::threshold() == usize::MAX && state::owned(at).is_none())
        .then(|| symbols::next!(c"reallocarray", Next))
        .flatten();
    match (next, count.checked_mul(size)) {
        // It may call a `realloc` of the program's.
        // SAFETY: forwarded with the caller's promise.
        (Some(next), _) => unsafe { next(at, count, size) },
        // SAFETY: forwarded with the caller's promise.
        (None, Some(bytes)) => unsafe { realloc(at, bytes) },
        (None, None) => out_of_memory(),
    }
}

#[no_mangle]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if size >= state::threshold() && align >= size_of::<*const c_void>() {
        if let Some(at) = serve(size, align, Content::Any) {
            // SAFETY: the caller says where the address goes.
            unsafe { out.write(at) };
            return 0;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::posix_memalign(out, align, size) }
}

#[no_mangle]
unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if size >= state::threshold() {
        if let Some(at) = serve(size, align, Content::Any) {
            return at;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::aligned_alloc(align, size) }
}

#[no_mangle]
unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if size >= state::threshold() {
        if let Some(at) = serve(size, align, Content::Any) {
            return at;
        }
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { next::memalign(align, size) }
}

#[no_mangle]
unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { memalign(page_size(), size) }
}

#[no_mangle]
unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page_size();
    match size.checked_next_multiple_of(page) {
        // SAFETY: forwarded with the caller's promise.
        Some(size) => unsafe { memalign(page, size) },
        None => out_of_memory(),
    }
}

#[no_mangle]
unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    match state::owned(at) {
        Some(owned) => owned.heap.usable_size(at.cast()),
        // SAFETY: forwarded with the caller's promise.
        None => unsafe { next::usable_size(at) },
    }
}

/// Memory from the heap; `None` leaves the request to the next allocator.
#[cold]
fn serve(size: usize, align: usize, content: Content) -> Option<*mut c_void> {
    if size > LARGEST || align > LARGEST_ALIGN || !align.is_power_of_two() {
        return None;
    }
    let at = start::heap_for(size)?.allocate(size, align, content)?;
    prime_next();
    Some(at.as_ptr().cast())
}

/// Has the next allocator initialise itself now: later a filter may be in force that does not know its first calls.
/// Here the program has called `malloc`, so that allocator holds no lock.
fn prime_next() {
    static PRIMED: AtomicBool = AtomicBool::new(false);
    // Relaxed: once more does no harm.
    if !PRIMED.load(Ordering::Relaxed) {
        PRIMED.store(true, Ordering::Relaxed);
        // SAFETY: memory fresh from `malloc`, or null.
        unsafe { next::free(next::malloc(1)) };
    }
}

#[cold]
fn free_owned(owned: Owned, at: *mut c_void) {
    if !owned.heap.is_retired() && !state::is_current() && !owned.heap.is_retired() {
        // In a handler, or another thread, of a child that is about to make the heap its own.
        return;
    }
    // SAFETY: the caller that frees it says that nobody uses it any more.
    if let Err(error) = unsafe { owned.heap.free(at.cast()) } {
        report(error);
    }
}

/// `realloc` of memory that is the heap's.
///
/// # Safety
/// As `realloc`.
#[cold]
unsafe fn realloc_owned(owned: Owned, at: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        free_owned(owned, at);
        // The next allocator chooses the result of realloc(p, 0).
        // SAFETY: memory fresh from `malloc`, or null.
        return unsafe { next::realloc(next::malloc(1), 0) };
    }
    let usable = owned.heap.usable_size(at.cast());
    if usable == 0 {
        report(Error::NotAllocated);
    }
    if size >= state::threshold() && size <= LARGEST && state::is_current() {
        // SAFETY: the caller owns it.
        if let Some(new) = unsafe { owned.heap.shrink_elsewhere(at.cast(), size, MALLOC_ALIGN) } {
            return new.as_ptr().cast();
        }
        // SAFETY: as above.
        if unsafe { owned.heap.resize_in_place(at.cast(), size) } {
            return at;
        }
        // SAFETY: as above.
        if let Some(new) = unsafe { owned.heap.relocate(at.cast(), size) } {
            return new.as_ptr().cast();
        }
    }
    // A heap that is retired serves no request, and the next allocator may be refused more memory.
    if size <= usable && owned.heap.is_retired() && state::is_current() {
        // SAFETY: as above.
        unsafe { owned.heap.resize_in_place(at.cast(), size) };
        return at;
    }
    // SAFETY: as above.
    let outgrow = || unsafe {
        let may = size > usable && owned.heap.is_retired() && next::look_for_others();
        may.then(|| outgrown::take(owned.heap, at, size)).flatten()
    };
    let is_guarded = guards::may_be_in(owned.heap, at as usize, usable);
    if let Some(new) = is_guarded.then(outgrow).flatten() {
        return new;
    }
    state::count(Event::ReallocMoved);
    let len = usable.min(size);
    // SAFETY: both are allocations, and each is at least as long as what is copied.
    unsafe {
        let is_sparse = owned.heap.is_sparse(at.cast());
        let room = with_room(usable, size);
        let new = if is_sparse || is_guarded { calloc(1, room) } else { malloc(room) };
        if new.is_null() {
            // The old block is large enough, if it is to shrink. A filter may not know the call that moves it.
            return match size <= usable {
                true => at,
                false if is_guarded || seccomp::may_be_one() => new,
                false => outgrow().unwrap_or(new),
            };
        }
        match is_sparse {
            _ if is_guarded => guards::copy(owned.heap, at as usize, new as usize, len),
            true => owned.heap.copy_sparse(at.cast(), new.cast(), len),
            false => new.cast::<u8>().copy_from_nonoverlapping(at.cast(), len),
        }
        free_owned(owned, at);
        new
    }
}

/// `realloc` across the threshold: moves memory of the next allocator's into the heap: small memory, and memory from
/// before there was a heap. Memory that is larger was declined, and stays where it is: its owner can move pages.
///
/// # Safety
/// As `realloc`.
#[cold]
unsafe fn take_over(at: *mut c_void, size: usize) -> Option<*mut c_void> {
    let Some(old) = NonNull::new(at) else { return serve(size, MALLOC_ALIGN, Content::Any) };
    // SAFETY: the caller owns it, and the next allocator made it.
    let usable = unsafe { next::usable_size(old.as_ptr()) };
    let is_large = usable >= state::threshold().max(MUCH_AT_ONCE);
    // Small memory is the next allocator's to copy at any time. Larger memory, from before there was a heap, has pages
    // of its own: a copy would not have their attributes, and a pipe or a device may hold the pages themselves.
    let may_be_marked =
        || parts::others_are_marked() || !state::is_recycling() || pins::has_library();
    let is_marked = usable >= state::threshold() && may_be_marked();
    if usable == 0 || is_large || is_marked || size <= usable {
        return None;
    }
    let new = serve(size, MALLOC_ALIGN, Content::Any)?;
    // SAFETY: both have `usable` bytes and more.
    unsafe {
        new.cast::<u8>().copy_from_nonoverlapping(at.cast(), usable);
        next::free(at);
    }
    state::count(Event::ReallocMoved);
    Some(new)
}

#[cold]
fn report(error: Error) {
    match error {
        Error::DoubleFree => fatal::misuse("free(): freed twice", state::verbosity()),
        Error::NotAllocated => fatal::misuse("free(): invalid pointer", state::verbosity()),
        // The memory is free; the step that failed only costs memory.
        Error::OutOfFrames | Error::PoolLimit | Error::BadAlignment | Error::Os(_) => {}
    }
}

/// Makes the compiler check that [`Heap`] can be shared, as [`start`] relies on.
const _: fn() = || {
    fn shared<T: Sync>() {}
    shared::<Heap>();
};

// C23's, which glibc has from 2.43 on. Freed memory has the size that it was allocated with, so they are `free`.
#[no_mangle]
unsafe extern "C" fn free_sized(at: *mut c_void, _size: usize) {
    // SAFETY: forwarded with the caller's promise.
    unsafe { free(at) }
}

#[no_mangle]
unsafe extern "C" fn free_aligned_sized(at: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: forwarded with the caller's promise.
    unsafe { free(at) }
}
