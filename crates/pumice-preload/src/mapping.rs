//! `mmap` and its relations, served from the heap for large private anonymous memory.
//!
//! Only calls that can be imitated faithfully are handled here: making readable and writable private anonymous memory
//! where the program does not care where, and unmapping it. Everything else is the kernel's. Calls on memory of the
//! heap's are split into parts that are mapped and holes, as far as the program knows. Each part gets the kernel's own
//! answer, and a hole `ENOMEM`. Attributes that a call leaves behind on the memory are noted, and taken off when the
//! memory is free.
//!
//! None of these functions needs a next one: where the heap is not concerned they make the system
//! call, as the C library's own do. So they work before the C library is ready, and in handlers.

use core::ffi::{c_int, c_long, c_uint, c_void};

use linux_raw_sys::general as linux;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::raw;
use pumice_heap::heap::{Calls, Effect, Part};
use pumice_heap::stats::Reason;
use rustix::io::Errno;

use crate::advice::{advise, process_madvise};
use crate::errno::{answer, Outcome};
use crate::parts::{
    concerned, each_part, first_hole, has_hole, has_mapped, note, overlapping, round_up, AtHole,
    LARGEST,
};
use crate::{pins, start, state, symbols, weak};

mod fixed;
mod plain;
mod remap;

use fixed::{map_fixed, Holes};
use remap::Remap;

pub(crate) use fixed::put_at;
pub(crate) use plain::pieces_of_segment;

const READ_WRITE: c_int = (linux::PROT_READ | linux::PROT_WRITE) as c_int;
/// Of x86 alone: below 2 GiB, where the heap is not, and hints count for nothing.
const MAP_32BIT: c_int = 0x40;
const FIXED: c_int = (linux::MAP_FIXED | linux::MAP_FIXED_NOREPLACE) as c_int;
/// The flags that a mapping must have to be served...
const SERVED: c_int = (linux::MAP_PRIVATE | linux::MAP_ANONYMOUS) as c_int;
/// ... and may be besides.
const INDIFFERENT: c_int = (linux::MAP_NORESERVE | linux::MAP_STACK | linux::MAP_POPULATE) as c_int;
#[no_mangle]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    let request = Request { at: at as usize, len, protection, flags, file, offset };
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { map(request) }) as *mut c_void
}

#[no_mangle]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    unsafe { mmap(at, len, protection, flags, file, offset) }
}

#[no_mangle]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { unmap(at as usize, len) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    if new_len >= isize::MAX as usize && !weak::is_glibc() {
        // musl's answer.
        return answer(Err(Errno::NOMEM)) as *mut c_void;
    }
    let request = Remap { at: at as usize, old_len, new_len, flags: flags as u32, to: to as usize };
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { remap::remap(request) }) as *mut c_void
}

#[no_mangle]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int {
    let effect = (protection != READ_WRITE).then_some(Effect::Taints);
    // glibc leaves an unaligned range to the kernel, which refuses it; musl rounds it.
    let (at, len) = if weak::is_glibc() { (at as usize, len) } else { rounded(at as usize, len) };
    let args = [at, len, protection as usize, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_mprotect, args, effect, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let args = [at as usize, len, protection as usize, key as usize, 0, 0];
    let effect = Some(Effect::Taints);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_pkey_mprotect, args, effect, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mlock(at: *const c_void, len: usize) -> c_int {
    let (at, len) = whole_pages(at, len);
    let args = [at, len, 0, 0, 0, 0];
    let effect = Some(Effect::Locks);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_mlock, args, effect, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mlock2(at: *const c_void, len: usize, flags: u32) -> c_int {
    let (at, len) = whole_pages(at, len);
    let args = [at, len, flags as usize, 0, 0, 0];
    let effect = Some(Effect::Locks);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_mlock2, args, effect, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn munlock(at: *const c_void, len: usize) -> c_int {
    let (at, len) = whole_pages(at, len);
    let args = [at, len, 0, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_munlock, args, None, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn msync(at: *mut c_void, len: usize, flags: c_int) -> c_int {
    type Next = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    if concerned(at as usize, len).is_none() {
        if let Some(next) = symbols::next!(c"msync", Next) {
            // It is where a thread can be cancelled.
            // SAFETY: forwarded with the caller's promise.
            return unsafe { next(at, len, flags) };
        }
    }
    let args = [at as usize, len, flags as usize, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_msync, args, None, AtHole::GoOn) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mincore(at: *mut c_void, len: usize, seen: *mut u8) -> c_int {
    let (at, args) = (at as usize, [at as usize, len, seen as usize, 0, 0, 0]);
    let hole = concerned(at, len).filter(|_| at % FRAME_SIZE == 0);
    let Some(before) = hole.and_then(|(heap, len)| Some(first_hole(heap, at, len)? - at)) else {
        // SAFETY: forwarded with the caller's promise.
        return answer(unsafe { raw::syscall(linux::__NR_mincore, args) }) as c_int;
    };
    // It tells of the pages before the hole, or of nothing where even that can't be told.
    // SAFETY: forwarded with the caller's promise.
    let outcome =
        unsafe { raw::syscall(linux::__NR_mincore, [at, before, seen as usize, 0, 0, 0]) };
    answer(outcome.and(Err(Errno::NOMEM))) as c_int
}

#[no_mangle]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // Reserved memory counts for the limit on locked memory, and no free memory may become resident.
    state::retire(Calls::OfFree, Reason::Locked);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { raw::syscall(linux::__NR_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn remap_file_pages(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    note(at as usize, len, Effect::Taints);
    let args = [at as usize, len, protection as usize, page, flags as usize, 0];
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { raw::syscall(linux::__NR_remap_file_pages, args) }) as c_int
}

/// The same calls made through `syscall`; `None` if it is another one.
///
/// Never by the function of that name: MPI's and libfabric's libraries write a jump over the first instructions
/// of `mmap`, `munmap`, `mremap`, `madvise`, `shmat` and `shmdt`, to see them, and go on by number.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn by_number(number: u32, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let (at, flags) = (a as *mut c_void, d as c_int);
    // SAFETY: forwarded with the caller's promise.
    let result = unsafe {
        match number {
            linux::__NR_mmap => {
                let (protection, file) = (c as c_int, e as c_int);
                let request =
                    Request { at: a, len: b, protection, flags, file, offset: f as c_long };
                answer(map(request))
            }
            linux::__NR_munmap => answer(unmap(a, b)),
            linux::__NR_mremap => {
                let flags = d as u32;
                answer(remap::remap(Remap { at: a, old_len: b, new_len: c, flags, to: e }))
            }
            linux::__NR_mprotect => mprotect(at, b, c as c_int).into(),
            linux::__NR_pkey_mprotect => pkey_mprotect(at, b, c as c_int, flags).into(),
            linux::__NR_madvise => answer(advise(at, b, c as c_int)),
            linux::__NR_process_madvise => {
                process_madvise(a as c_int, b as *const c_void, c, flags, e as c_uint) as c_long
            }
            linux::__NR_mlock => mlock(at, b).into(),
            linux::__NR_mlock2 => mlock2(at, b, c as u32).into(),
            linux::__NR_munlock => munlock(at, b).into(),
            linux::__NR_mlockall => mlockall(a as c_int).into(),
            linux::__NR_msync => msync(at, b, c as c_int).into(),
            linux::__NR_mincore => mincore(at, b, c as *mut u8).into(),
            linux::__NR_remap_file_pages => {
                remap_file_pages(at, b, c as c_int, d, e as c_int).into()
            }
            // Attributes that must not outlive the mapping, set by calls that are the kernel's alone. The
            // first is libnuma's way.
            linux::__NR_mbind | linux::__NR_set_mempolicy_home_node => {
                note(a, b, Effect::Taints);
                return None;
            }
            MSEAL => mseal(at, b, c).into(),
            _ => return None,
        }
    };
    Some(result)
}

/// `mseal`, since Linux 6.10, on every architecture.
const MSEAL: u32 = 462;

#[no_mangle]
unsafe extern "C" fn mseal(at: *mut c_void, len: usize, flags: usize) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { seal(at as usize, len, flags) }) as c_int
}

/// `mseal`. Sealed memory can never be unmapped or mapped over, so nobody else gets it when it is freed.
///
/// # Safety
/// As `mseal`.
unsafe fn seal(at: usize, len: usize, flags: usize) -> Outcome {
    let concerned = concerned(at, len).filter(|_| at % FRAME_SIZE == 0);
    if concerned.is_some_and(|(heap, len)| has_hole(heap, at, len)) {
        return Err(Errno::NOMEM);
    }
    // SAFETY: as the caller promises.
    let outcome = unsafe { raw::syscall(MSEAL, [at, len, flags, 0, 0, 0]) };
    if let (Some((heap, len)), Ok(_)) = (concerned, outcome) {
        heap.note_sealed(at, len);
    }
    outcome
}

/// The arguments of `mmap`.
#[derive(Clone, Copy)]
struct Request {
    at: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
}

impl Request {
    /// The system call.
    ///
    /// # Safety
    /// As `mmap`.
    unsafe fn make(self) -> Outcome {
        let Request { at, len, protection, flags, file, offset } = self;
        let args = [at, len, protection as usize, flags as usize, file as usize, offset as usize];
        // SAFETY: as the caller promises.
        unsafe { raw::syscall(linux::__NR_mmap, args) }
    }
}

/// `mmap`.
///
/// # Safety
/// As `mmap`.
unsafe fn map(request: Request) -> Outcome {
    let Request { at, len, protection, flags, file, offset } = request;
    pins::before_mapping(file, flags);
    let concerned = if at == 0 { None } else { concerned(at, len) };
    if flags & FIXED != 0 {
        return match concerned {
            // SAFETY: as the caller promises.
            Some((heap, len)) => unsafe { map_fixed(heap, len, request) },
            // SAFETY: as the caller promises.
            None => unsafe { request.make() },
        };
    }
    if let Some((heap, rounded)) = concerned {
        // A hint is honoured where nothing is mapped, as far as the program knows.
        let place = Request {
            at: at - at % FRAME_SIZE,
            flags: flags | linux::MAP_FIXED_NOREPLACE as c_int,
            ..request
        };
        if flags & MAP_32BIT == 0
            && heap.contains(place.at, rounded)
            && !has_mapped(heap, place.at, rounded)
        {
            // SAFETY: as the caller promises; it replaces nothing of the program's.
            if let Ok(at) = unsafe { map_fixed(heap, rounded, place) } {
                return Ok(at);
            }
        }
    }
    let is_served = len >= state::mmap_threshold()
        && len <= LARGEST
        && protection == READ_WRITE
        && flags & !INDIFFERENT == SERVED
        && offset == 0
        && (at == 0 || concerned.is_some());
    if is_served {
        if let Some(served) = start::heap_for_mapping(len).and_then(|heap| heap.map(len)) {
            let served = served.as_ptr() as usize;
            populate_if_asked(served, round_up(len), flags);
            return Ok(served);
        }
    }
    // SAFETY: as the caller promises.
    unsafe { request.make() }
}

/// `MAP_POPULATE`, of memory just mapped.
fn populate_if_asked(at: usize, len: usize, flags: c_int) {
    if flags & linux::MAP_POPULATE as c_int != 0 {
        let args = [at, len, linux::MADV_POPULATE_WRITE as usize, 0, 0, 0];
        // Memory that can't be populated is left to faults, as with the kernel.
        // SAFETY: the memory was just mapped, and populating changes no content.
        let _ = unsafe { raw::syscall(linux::__NR_madvise, args) };
    }
}

/// `munmap`.
///
/// # Safety
/// As `munmap`.
pub(crate) unsafe fn unmap(at: usize, len: usize) -> Outcome {
    let make = |at: usize, len: usize| {
        // SAFETY: as the caller promises.
        unsafe { raw::syscall(linux::__NR_munmap, [at, len, 0, 0, 0, 0]) }
    };
    let is_well_formed = at % FRAME_SIZE == 0 && len > 0;
    let Some((heap, rounded)) = overlapping(at, len).filter(|_| is_well_formed) else {
        return make(at, len);
    };
    if !state::is_current() {
        // A child that retires its heap just now, or is about to make it its own in another thread: then it
        // stays where it is, for there must be no gap in the heap's addresses.
        return if heap.is_retired() { make(at, len) } else { Ok(0) };
    }
    let mut outcome = Ok(0);
    if heap.contains(at, rounded) {
        // SAFETY: as the caller promises.
        unsafe { heap.unmap(at, rounded) };
        return outcome;
    }
    // The kernel's parts first: it may refuse them, and then nothing is to be gone.
    heap.parts(at, rounded, |part, kind| {
        if kind == Part::Outside {
            outcome = make(part.start, part.len());
        }
        outcome.is_ok()
    });
    if outcome.is_ok() {
        // SAFETY: as the caller promises.
        unsafe { heap.unmap_own(at, rounded) };
    }
    outcome
}

/// Whether an address is one of the heap's.
pub(crate) fn is_heaps(at: usize) -> bool {
    concerned(at, 1).is_some()
}

/// A range as calls that lock memory take it: every page that it touches.
fn whole_pages(at: *const c_void, len: usize) -> (usize, usize) {
    let before = at as usize % FRAME_SIZE;
    (at as usize - before, len.saturating_add(before))
}

/// A range of any length as musl rounds it.
fn rounded(at: usize, len: usize) -> (usize, usize) {
    let start = at & !(FRAME_SIZE - 1);
    let end = at.wrapping_add(len).wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
    (start, end.wrapping_sub(start))
}
