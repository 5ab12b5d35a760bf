//! The next allocator in line: glibc's, musl's, or another one that is preloaded or linked.
//!
//! Each of its functions is called through a [`Hook`], a pointer that at first leads to a function
//! which looks all of them up ([`symbols`]). So a call costs one load and one jump,
//! and there is nothing to be done when the library is loaded. Only functions that every C library
//! has are looked up, all at the first call.

use core::ffi::{c_int, c_void, CStr};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::early::{self, Refusal};
use crate::errno::{out_of_memory, ENOMEM};
use crate::{guards, outgrown, seccomp, symbols};

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type Memalign = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;

static MALLOC: Hook<Malloc> = Hook::new(first_malloc as *mut ());
static CALLOC: Hook<Calloc> = Hook::new(first_calloc as *mut ());
static REALLOC: Hook<Realloc> = Hook::new(first_realloc as *mut ());
static FREE: Hook<Free> = Hook::new(first_free as *mut ());
static POSIX_MEMALIGN: Hook<PosixMemalign> = Hook::new(first_posix_memalign as *mut ());
static ALIGNED_ALLOC: Hook<Memalign> = Hook::new(first_aligned_alloc as *mut ());
static MEMALIGN: Hook<Memalign> = Hook::new(first_memalign as *mut ());
static USABLE_SIZE: Hook<UsableSize> = Hook::new(first_usable_size as *mut ());

// The targets of REALLOC, FREE and USABLE_SIZE, where those first ask whether the memory is another's.
static REALLOC_BEHIND: Hook<Realloc> = Hook::new(first_realloc as *mut ());
static FREE_BEHIND: Hook<Free> = Hook::new(first_free as *mut ());
static USABLE_SIZE_BEHIND: Hook<UsableSize> = Hook::new(first_usable_size as *mut ());

/// # Safety
/// As `malloc`, as for all functions here: see malloc(3) and posix_memalign(3).
#[inline(always)]
pub(crate) unsafe fn malloc(size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { MALLOC.get()(size) }
}

/// # Safety
/// As `calloc`.
#[inline(always)]
pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { CALLOC.get()(count, size) }
}

/// # Safety
/// As `realloc`.
#[inline(always)]
pub(crate) unsafe fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { REALLOC.get()(at, size) }
}

/// # Safety
/// As `free`.
#[inline(always)]
pub(crate) unsafe fn free(at: *mut c_void) {
    // SAFETY: forwarded with the caller's promise.
    unsafe { FREE.get()(at) }
}

/// # Safety
/// As `posix_memalign`.
#[inline(always)]
pub(crate) unsafe fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    unsafe { POSIX_MEMALIGN.get()(out, align, size) }
}

/// # Safety
/// As `aligned_alloc`.
#[inline(always)]
pub(crate) unsafe fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { ALIGNED_ALLOC.get()(align, size) }
}

/// # Safety
/// As `memalign`.
#[inline(always)]
pub(crate) unsafe fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { MEMALIGN.get()(align, size) }
}

/// # Safety
/// As `malloc_usable_size`.
#[inline(always)]
pub(crate) unsafe fn usable_size(at: *mut c_void) -> usize {
    // SAFETY: forwarded with the caller's promise.
    unsafe { USABLE_SIZE.get()(at) }
}

/// A function pointer that is replaced once. Relaxed everywhere: code is all it leads to, and
/// that was mapped before anything ran.
pub(crate) struct Hook<F> {
    at: AtomicPtr<()>,
    kind: PhantomData<F>,
}

impl<F: Copy> Hook<F> {
    const fn new(at: *mut ()) -> Hook<F> {
        Hook { at: AtomicPtr::new(at), kind: PhantomData }
    }

    #[inline(always)]
    fn get(&self) -> F {
        let at = self.at.load(Ordering::Relaxed);
        // SAFETY: only functions of type `F` are ever stored, and F is a function pointer.
        unsafe { core::mem::transmute_copy::<*mut (), F>(&at) }
    }

    fn set(&self, at: *mut ()) {
        self.at.store(at, Ordering::Relaxed);
    }
}

/// How far looking up has come. Release when it is done, Acquire in a thread that finds that: see [`look_for_others`].
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const BUSY: u32 = 1;
const KNOWN: u32 = 2;

/// Looks the next allocator up. `false` while this or another thread is at it.
#[cold]
fn resolve() -> bool {
    match STATE.compare_exchange(UNKNOWN, BUSY, Ordering::Relaxed, Ordering::Acquire) {
        Ok(_) => {}
        Err(state) => return state == KNOWN,
    }
    let find = |name: &CStr| {
        let at = symbols::find(name);
        assert!(!at.is_null(), "every C library has these");
        at
    };
    let [malloc, calloc] = [c"malloc", c"calloc"].map(find);
    let [realloc, free, usable_size] = [c"realloc", c"free", c"malloc_usable_size"].map(find);
    let [posix_memalign, aligned_alloc, memalign] =
        [c"posix_memalign", c"aligned_alloc", c"memalign"].map(find);
    REALLOC_BEHIND.set(realloc);
    FREE_BEHIND.set(free);
    USABLE_SIZE_BEHIND.set(usable_size);
    if early::close() {
        ask_others_first();
    } else {
        REALLOC.set(realloc);
        FREE.set(free);
        USABLE_SIZE.set(usable_size);
    }
    POSIX_MEMALIGN.set(posix_memalign);
    ALIGNED_ALLOC.set(aligned_alloc);
    MEMALIGN.set(memalign);
    CALLOC.set(calloc);
    MALLOC.set(malloc);
    STATE.store(KNOWN, Ordering::Release);
    true
}

/// From now on some memory that is freed is neither the heap's nor the next allocator's: a piece of the early arena, or
/// an allocation that has outgrown the heap. The thread that frees it has been told of it since. `false` while the next
/// allocator is being looked up, which would undo this.
pub(crate) fn look_for_others() -> bool {
    let is_known = resolve();
    if is_known {
        ask_others_first();
    }
    is_known
}

fn ask_others_first() {
    REALLOC.set(realloc_of_any as *mut ());
    FREE.set(free_of_any as *mut ());
    USABLE_SIZE.set(usable_size_of_any as *mut ());
}

/// Runs `ask_next` once the next allocator is known; until then serves from the early arena.
fn first(size: usize, align: usize, ask_next: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        if resolve() {
            return ask_next();
        }
        match early::allocate(size, align) {
            Ok(at) => return at.as_ptr(),
            Err(Refusal::Full) => return out_of_memory(),
            // Another thread has closed it and is about to be done.
            Err(Refusal::Closed) => core::hint::spin_loop(),
        }
    }
}

unsafe extern "C" fn first_malloc(size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    first(size, 16, || unsafe { malloc(size) })
}

unsafe extern "C" fn first_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    first(count.saturating_mul(size), 16, || unsafe { calloc(count, size) })
}

unsafe extern "C" fn first_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    first(size, align, || unsafe { aligned_alloc(align, size) })
}

unsafe extern "C" fn first_memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    first(size, align, || unsafe { memalign(align, size) })
}

unsafe extern "C" fn first_posix_memalign(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if resolve() {
        // SAFETY: forwarded with the caller's promise.
        return unsafe { posix_memalign(out, align, size) };
    }
    match early::allocate(size, align) {
        Ok(at) => {
            // SAFETY: the caller says where the address goes.
            unsafe { out.write(at.as_ptr()) };
            0
        }
        Err(_) => ENOMEM,
    }
}

unsafe extern "C" fn first_realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if early::owns(at) {
        // SAFETY: forwarded with the caller's promise.
        return unsafe { realloc_of_any(at, size) };
    }
    // Before the next allocator is known, all memory there is comes from the arena: without memory of its own the
    // caller can only want some.
    // SAFETY: forwarded with the caller's promise.
    first(size, 16, || unsafe { realloc(at, size) })
}

unsafe extern "C" fn first_free(at: *mut c_void) {
    if !at.is_null() && !early::owns(at) && resolve() {
        // SAFETY: forwarded with the caller's promise.
        unsafe { free(at) }
    }
}

unsafe extern "C" fn first_usable_size(at: *mut c_void) -> usize {
    if early::owns(at) {
        // SAFETY: the caller says that it was allocated.
        return unsafe { early::size(at) };
    }
    if at.is_null() || !resolve() {
        return 0;
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { usable_size(at) }
}

unsafe extern "C" fn realloc_of_any(at: *mut c_void, size: usize) -> *mut c_void {
    if let Some(entry) = outgrown::find(at) {
        // SAFETY: forwarded with the caller's promise.
        return unsafe { realloc_outgrown(entry, at, size) };
    }
    if !early::owns(at) {
        // SAFETY: forwarded with the caller's promise.
        return unsafe { REALLOC_BEHIND.get()(at, size) };
    }
    // SAFETY: the new memory is at least as long as what is copied into it.
    unsafe {
        let new = malloc(size);
        if !new.is_null() {
            new.cast::<u8>().copy_from_nonoverlapping(at.cast(), early::size(at).min(size));
        }
        new
    }
}

/// # Safety
/// As `realloc`, of the entry's allocation.
unsafe fn realloc_outgrown(entry: &outgrown::Entry, at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as the caller promises. Both places have what is copied, and memory fresh from `malloc` may be null.
    unsafe {
        if size == 0 {
            entry.free();
            return realloc(malloc(1), 0);
        }
        let old = entry.len();
        if size <= old {
            return entry.resize(size).unwrap_or(at);
        }
        // As it came here: nothing can copy guard pages, and else it is moved only where there is no room for a copy.
        let move_it = || entry.resize(size);
        if let Some(new) = guards::may_be_any().then(move_it).flatten() {
            return new;
        }
        let new = malloc(size);
        if new.is_null() {
            return if seccomp::may_be_one() { new } else { move_it().unwrap_or(new) };
        }
        new.cast::<u8>().copy_from_nonoverlapping(at.cast(), old);
        entry.free();
        new
    }
}

unsafe extern "C" fn free_of_any(at: *mut c_void) {
    if let Some(entry) = outgrown::find(at) {
        // SAFETY: forwarded with the caller's promise.
        unsafe { entry.free() }
    } else if !early::owns(at) {
        // SAFETY: forwarded with the caller's promise.
        unsafe { FREE_BEHIND.get()(at) }
    }
}

unsafe extern "C" fn usable_size_of_any(at: *mut c_void) -> usize {
    if let Some(entry) = outgrown::find(at) {
        entry.len()
    } else if early::owns(at) {
        // SAFETY: the caller says that it was allocated.
        unsafe { early::size(at) }
    } else {
        // SAFETY: forwarded with the caller's promise.
        unsafe { USABLE_SIZE_BEHIND.get()(at) }
    }
}
