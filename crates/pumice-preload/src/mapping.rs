//! `mmap` and its relations, served from the heap for large private anonymous memory.
//!
//! Only what can be done faithfully is done here: making readable and writable private anonymous
//! memory where the program does not care where, and unmapping it. Everything else is the
//! kernel's. Calls on memory of the heap's are split into what is mapped and what is a hole as far
//! as the program knows, so that each part gets the kernel's own answer, and a hole `ENOMEM`; what
//! a call leaves behind on the memory is noted, and taken off when the memory is free.
//!
//! None of these functions needs a next one: where the heap is not concerned they make the system
//! call, as the C library's own do. So they work before the C library is ready, and in handlers.

use core::ffi::{c_int, c_long, c_void};
use core::ops::Range;

use linux_raw_sys::general as linux;
use pumice::addr::FRAME_SIZE;
use pumice::heap::{Effect, Heap, Part};
use pumice::sys::raw;
use rustix::io::Errno;

use crate::interpose::set_errno;
use crate::{start, weak};

mod plain;
mod remap;

use remap::Remap;

const FAILED: *mut c_void = usize::MAX as *mut c_void;
const READ_WRITE: c_int = (linux::PROT_READ | linux::PROT_WRITE) as c_int;
const FIXED: c_int = (linux::MAP_FIXED | linux::MAP_FIXED_NOREPLACE) as c_int;
/// What a mapping must be to be served...
const SERVED: c_int = (linux::MAP_PRIVATE | linux::MAP_ANONYMOUS) as c_int;
/// ... and may be besides.
const INDIFFERENT: c_int = (linux::MAP_NORESERVE | linux::MAP_STACK | linux::MAP_POPULATE) as c_int;
/// As large as an address space: larger requests are the kernel's to refuse.
const LARGEST: usize = (1 << if cfg!(target_arch = "aarch64") { 48 } else { 47 }) - FRAME_SIZE;

type Outcome = Result<usize, Errno>;

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
    if new_len >= isize::MAX as usize && !is_glibc() {
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
    let (at, len) = if is_glibc() { (at as usize, len) } else { rounded(at as usize, len) };
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
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { advise(at, len, advice) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // The C libraries ignore this one: theirs would lose what was written.
    const POSIX_MADV_DONTNEED: c_int = 4;
    if advice == POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { advise(at, len, advice) }.map_or_else(Errno::raw_os_error, |_| 0)
}

/// `madvise`.
///
/// # Safety
/// As `madvise`.
unsafe fn advise(at: *mut c_void, len: usize, advice: c_int) -> Outcome {
    let effect = match advice as u32 {
        linux::MADV_NORMAL
        | linux::MADV_WILLNEED
        | linux::MADV_COLD
        | linux::MADV_POPULATE_READ
        | linux::MADV_POPULATE_WRITE
        | linux::MADV_COLLAPSE => None,
        linux::MADV_DONTNEED
        | linux::MADV_FREE
        | linux::MADV_PAGEOUT
        | linux::MADV_DONTNEED_LOCKED => Some(Effect::Drops),
        linux::MADV_HUGEPAGE
            if start::serving_heap().is_some_and(|heap| heap.has_huge_advice(at as usize)) =>
        {
            None
        }
        linux::MADV_HUGEPAGE => Some(Effect::AsksForHuge),
        _ => Some(Effect::Taints),
    };
    let args = [at as usize, len, advice as usize, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    unsafe { each_part(linux::__NR_madvise, args, effect, AtHole::GoOn) }
}

#[no_mangle]
unsafe extern "C" fn mlock(at: *const c_void, len: usize) -> c_int {
    let (at, len) = whole_pages(at, len);
    let args = [at, len, 0, 0, 0, 0];
    let effect = Some(Effect::Taints);
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_mlock, args, effect, AtHole::Stop) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mlock2(at: *const c_void, len: usize, flags: u32) -> c_int {
    let (at, len) = whole_pages(at, len);
    let args = [at, len, flags as usize, 0, 0, 0];
    let effect = Some(Effect::Taints);
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
    let args = [at as usize, len, flags as usize, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { each_part(linux::__NR_msync, args, None, AtHole::GoOn) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn mincore(at: *mut c_void, len: usize, seen: *mut u8) -> c_int {
    let args = [at as usize, len, seen as usize, 0, 0, 0];
    let outcome = match concerned(at as usize, len) {
        Some((heap, len)) if at as usize % FRAME_SIZE == 0 && has_hole(heap, at as usize, len) => {
            Err(Errno::NOMEM)
        }
        // SAFETY: forwarded with the caller's promise.
        _ => unsafe { raw::syscall(linux::__NR_mincore, args) },
    };
    answer(outcome) as c_int
}

#[no_mangle]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    start::stop_serving_before_lock();
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { raw::syscall(linux::__NR_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}

/// The same calls made through `syscall`; `None` if it is another one.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let (at, flags) = (a as *mut c_void, d as c_int);
    // SAFETY: forwarded with the caller's promise.
    let result = unsafe {
        match u32::try_from(number).ok()? {
            linux::__NR_mmap => mmap(at, b, c as c_int, flags, e as c_int, f as c_long) as c_long,
            linux::__NR_munmap => munmap(at, b).into(),
            linux::__NR_mremap => mremap(at, b, c, flags, e as *mut c_void) as c_long,
            linux::__NR_mprotect => mprotect(at, b, c as c_int).into(),
            linux::__NR_madvise => madvise(at, b, c as c_int).into(),
            linux::__NR_mlock => mlock(at, b).into(),
            linux::__NR_mlock2 => mlock2(at, b, c as u32).into(),
            // libnuma's way: a policy must not outlive the mapping, either.
            linux::__NR_mbind => {
                note_attribute(a, b);
                return None;
            }
            _ => return None,
        }
    };
    Some(result)
}

/// Notes that somebody sets an attribute on a range by a call that is the kernel's alone.
fn note_attribute(at: usize, len: usize) {
    if let Some((heap, len)) = concerned(at, len) {
        heap.parts(at, len, |part, kind| {
            if kind == Part::Mapped {
                heap.note(part.start, part.len(), Effect::Taints);
            }
            true
        });
    }
}

/// What `mmap` was asked for.
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
    let Request { at, len, protection, flags, offset, .. } = request;
    let concerned = if at == 0 { None } else { concerned(at, len) };
    if flags & FIXED != 0 {
        return match concerned {
            // SAFETY: as the caller promises.
            Some((heap, len)) => unsafe { map_fixed(heap, len, request) },
            // SAFETY: as the caller promises.
            None => unsafe { request.make() },
        };
    }
    let is_served = len >= start::mmap_threshold()
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
        // What can't be populated is left to faults, as with the kernel.
        // SAFETY: the memory was just mapped, and populating changes no content.
        let _ = unsafe { raw::syscall(linux::__NR_madvise, args) };
    }
}

/// `mmap` at an address of the heap's.
///
/// # Safety
/// As `mmap`.
unsafe fn map_fixed(heap: &'static Heap, len: usize, request: Request) -> Outcome {
    let no_replace = linux::MAP_FIXED_NOREPLACE as c_int;
    // The heap's addresses are mapped as far as the kernel knows: asked not to replace them, it
    // finds whatever else is wrong first.
    let probe = Request { flags: request.flags | no_replace, ..request };
    // SAFETY: it replaces nothing.
    match unsafe { probe.make() } {
        Err(Errno::EXIST) => {}
        refused => return refused,
    }
    if request.flags & no_replace != 0 && has_mapped(heap, request.at, len) {
        return Err(Errno::EXIST);
    }
    let holes = Holes::of(heap, request.at, len);
    // Memory like the rest of the heap's stays one mapping with it.
    let is_plain = heap.contains(request.at, len)
        && request.protection == READ_WRITE
        && request.flags & !(INDIFFERENT | FIXED) == SERVED;
    if !heap.occupy(request.at, len, !is_plain) {
        return Err(Errno::NOMEM);
    }
    let outcome = if is_plain {
        let done = heap.renew(request.at, len);
        done.then_some(request.at).ok_or(Errno::NOMEM)
    } else {
        let flags = request.flags & !no_replace | linux::MAP_FIXED as c_int;
        // SAFETY: as the caller promises; what was there is the caller's, or nobody's.
        unsafe { Request { flags, ..request }.make() }
    };
    match outcome {
        Ok(at) if is_plain => populate_if_asked(at, len, request.flags),
        Ok(_) => {}
        // SAFETY: they were nobody's before.
        Err(_) => unsafe { holes.unmap(heap) },
    }
    outcome
}

/// The holes of a range, as many as can be remembered.
struct Holes {
    ranges: [(usize, usize); 16],
    count: usize,
}

impl Holes {
    fn of(heap: &Heap, at: usize, len: usize) -> Holes {
        let mut holes = Holes { ranges: [(0, 0); 16], count: 0 };
        heap.parts(at, len, |part, kind| {
            if kind == Part::Hole {
                holes.ranges[holes.count] = (part.start, part.len());
                holes.count += 1;
            }
            holes.count < holes.ranges.len()
        });
        holes
    }

    /// Makes them holes again.
    ///
    /// # Safety
    /// Nobody uses them.
    unsafe fn unmap(&self, heap: &'static Heap) {
        // SAFETY: as the caller promises.
        unsafe { self.unmap_within(heap, 0, usize::MAX) };
    }

    /// Makes those of them holes again that lie in a range.
    ///
    /// # Safety
    /// Nobody uses them.
    unsafe fn unmap_within(&self, heap: &'static Heap, start: usize, len: usize) {
        let limit = start.saturating_add(len);
        for &(at, len) in &self.ranges[..self.count] {
            let (from, to) = (at.max(start), (at + len).min(limit));
            if from < to {
                // SAFETY: as the caller promises.
                unsafe { heap.unmap(from, to - from) };
            }
        }
    }
}

/// `munmap`.
///
/// # Safety
/// As `munmap`.
unsafe fn unmap(at: usize, len: usize) -> Outcome {
    let make = |at: usize, len: usize| {
        // SAFETY: as the caller promises.
        unsafe { raw::syscall(linux::__NR_munmap, [at, len, 0, 0, 0, 0]) }
    };
    let Some((heap, rounded)) = concerned(at, len).filter(|_| at % FRAME_SIZE == 0 && len > 0)
    else {
        return make(at, len);
    };
    if !start::is_current() {
        // A child that can't count: what it inherited stays where it is.
        return Ok(0);
    }
    let mut outcome = Ok(0);
    if heap.contains(at, rounded) {
        // SAFETY: as the caller promises.
        unsafe { heap.unmap(at, rounded) };
        return outcome;
    }
    heap.parts(at, rounded, |part, kind| {
        match kind {
            Part::Outside => outcome = make(part.start, part.len()),
            // SAFETY: as the caller promises.
            _ => unsafe { heap.unmap(part.start, part.len()) },
        }
        outcome.is_ok()
    });
    outcome
}

/// What a call does when it comes to a hole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtHole {
    /// It fails there.
    Stop,
    /// It goes on, and fails at the end.
    GoOn,
}

/// Makes a call whose first two arguments are a range on each mapped part of it.
///
/// # Safety
/// As the system call.
unsafe fn each_part(
    number: u32,
    args: [usize; 6],
    effect: Option<Effect>,
    at_hole: AtHole,
) -> Outcome {
    let [at, len, ..] = args;
    let rounded = concerned(at, len).filter(|_| at % FRAME_SIZE == 0 && len > 0);
    let Some((heap, len)) = rounded else {
        // SAFETY: as the caller promises.
        return unsafe { raw::syscall(number, args) };
    };
    let (mut outcome, mut met_hole) = (Ok(0), false);
    heap.parts(at, len, |part: Range<usize>, kind| {
        if kind == Part::Hole {
            // What is wrong with the call itself comes first. Of nothing it asks nothing else.
            let mut args = args;
            args[1] = 0;
            // SAFETY: a range of no length.
            outcome = unsafe { raw::syscall(number, args) };
            met_hole = true;
            return outcome.is_ok() && at_hole == AtHole::GoOn;
        }
        if let (Part::Mapped, Some(effect)) = (kind, effect) {
            heap.note(part.start, part.len(), effect);
        }
        let mut args = args;
        (args[0], args[1]) = (part.start, part.len());
        // SAFETY: as the caller promises, for a part of the range.
        outcome = unsafe { raw::syscall(number, args) };
        // An address range beside the heap's may have holes of its own.
        if at_hole == AtHole::GoOn && outcome == Err(Errno::NOMEM) {
            (outcome, met_hole) = (Ok(0), true);
        }
        outcome.is_ok()
    });
    if met_hole {
        outcome = outcome.and(Err(Errno::NOMEM));
    }
    outcome
}

fn has_hole(heap: &Heap, at: usize, len: usize) -> bool {
    let mut found = false;
    heap.parts(at, len, |_, kind| {
        found |= kind == Part::Hole;
        !found
    });
    found
}

fn has_mapped(heap: &Heap, at: usize, len: usize) -> bool {
    let mut found = false;
    heap.parts(at, len, |_, kind| {
        found |= kind == Part::Mapped;
        !found
    });
    found
}

/// The heap and the range's length in whole pages, if any of it is the heap's.
fn concerned(at: usize, len: usize) -> Option<(&'static Heap, usize)> {
    let heap = start::serving_heap()?;
    let fits = len <= LARGEST && at.checked_add(len).is_some();
    let rounded = if fits { round_up(len) } else { return None };
    heap.overlaps(at as *const u8, rounded).then_some((heap, rounded))
}

/// A range as calls that lock memory take it: every page that it touches.
fn whole_pages(at: *const c_void, len: usize) -> (usize, usize) {
    let before = at as usize % FRAME_SIZE;
    (at as usize - before, len.saturating_add(before))
}

fn is_glibc() -> bool {
    weak::address!("gnu_get_libc_version") != 0
}

/// A range as musl rounds it, whatever its length.
fn rounded(at: usize, len: usize) -> (usize, usize) {
    let start = at & !(FRAME_SIZE - 1);
    let end = at.wrapping_add(len).wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
    (start, end.wrapping_sub(start))
}

fn round_up(len: usize) -> usize {
    len.checked_next_multiple_of(FRAME_SIZE).unwrap_or(usize::MAX)
}

/// The C library's way of answering: `errno`, and -1 for a failure.
fn answer(outcome: Outcome) -> usize {
    match outcome {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            FAILED as usize
        }
    }
}
