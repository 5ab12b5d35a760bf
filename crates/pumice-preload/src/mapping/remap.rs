//! `mremap`: resized where it stands if that takes no room, or moved by the kernel. A mapping that grows leaves the
//! heap: it is one of the kernel's, which can grow again and again as any other.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use linux_raw_sys::general as linux;
use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::sys::{mem, raw};
use pumice_heap::heap::{Effect, Heap, Part};
use rustix::io::Errno;

use super::plain::{advice_of, come_huge_pages_unasked, is_one_mapping, protection_of, Advice};
use super::{unmap, Holes, Request, READ_WRITE, SERVED};
use crate::advice::madvise;
use crate::errno::Outcome;
use crate::parts::{concerned, has_hole, round_up, LARGEST};
use crate::{guards, seccomp, state};

/// The protection and the advice of memory as it was mapped.
const PLAIN: (c_int, Advice) = (READ_WRITE, Advice::NONE);

/// The arguments of `mremap`.
#[derive(Clone, Copy)]
pub(super) struct Remap {
    pub(super) at: usize,
    pub(super) old_len: usize,
    pub(super) new_len: usize,
    pub(super) flags: u32,
    pub(super) to: usize,
}

impl Remap {
    /// The system call.
    ///
    /// # Safety
    /// As `mremap`.
    unsafe fn make(self) -> Outcome {
        let Remap { at, old_len, new_len, flags, to } = self;
        // SAFETY: as the caller promises.
        unsafe { raw::syscall(linux::__NR_mremap, [at, old_len, new_len, flags as usize, to, 0]) }
    }

    /// Whether the kernel refuses it by its arguments alone.
    fn is_bad(self) -> bool {
        let Remap { at, old_len, new_len, flags, to } = self;
        let known = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP;
        let to_fixed = flags & linux::MREMAP_FIXED != 0;
        let keeps = flags & linux::MREMAP_DONTUNMAP != 0;
        let (old, new) = (round_up(old_len), round_up(new_len));
        let overlap = to_fixed && to < at.saturating_add(old) && at < to.saturating_add(new);
        at % FRAME_SIZE != 0
            || flags & !known != 0
            || (flags & !linux::MREMAP_MAYMOVE != 0 && flags & linux::MREMAP_MAYMOVE == 0)
            || (keeps && old != new)
            || (to_fixed && to % FRAME_SIZE != 0)
            || overlap
            || new == 0
            || new > LARGEST
            || old > LARGEST
    }
}

/// `mremap`.
///
/// # Safety
/// As `mremap`.
pub(super) unsafe fn remap(request: Remap) -> Outcome {
    let Remap { at, old_len, new_len, flags, to } = request;
    let to_fixed = flags & linux::MREMAP_FIXED != 0;
    let from = concerned(at, old_len);
    let target = if to_fixed { concerned(to, new_len) } else { None };
    let Some((heap, _)) = from.or(target).filter(|_| state::is_current()) else {
        // SAFETY: as the caller promises.
        return unsafe { request.make() };
    };
    let keeps = flags & linux::MREMAP_DONTUNMAP != 0;
    let (old, new) = (round_up(old_len), round_up(new_len));
    if request.is_bad() {
        // The kernel finds the same fault, and names it; nothing is changed.
        // SAFETY: it is refused.
        return unsafe { request.make() };
    }
    if from.is_some() && !heap.contains(at, old) {
        // Partly or altogether somebody else's, at addresses that the heap has lost or that lie beside it.
        if is_outside(heap, at, old) {
            // SAFETY: as the caller promises.
            return unsafe { request.make() };
        }
        if heap.has_lost(at, old) {
            return Err(Errno::FAULT);
        }
    }
    if from.is_some() && has_hole(heap, at, FRAME_SIZE) {
        return Err(Errno::FAULT);
    }
    if old == 0 && !to_fixed {
        // Shared memory is mapped a second time; the kernel refuses anything else.
        // SAFETY: as the caller promises.
        return unsafe { request.make() };
    }
    let resizes_here = !to_fixed && !keeps && new <= old;
    if from.is_some() && resizes_here {
        if new < old {
            // SAFETY: as the caller promises.
            unsafe { unmap(at + new, old - new)? };
        }
        return Ok(at);
    }
    let holed = from.is_some() && has_hole(heap, at, old);
    if holed && !to_fixed {
        return Err(Errno::FAULT);
    }
    if flags & linux::MREMAP_MAYMOVE == 0 {
        return Err(Errno::NOMEM);
    }
    let grows = from.is_some() && !to_fixed && !keeps;
    if grows {
        // The heap's memory is not accounted for, so the kernel would give any amount more of it.
        // SAFETY: a new mapping, which nobody has used.
        unsafe {
            let more = new - old;
            let at = map_at(mem::place_for_a_moment(), more, 0)?;
            raw::syscall(linux::__NR_munmap, [at, more, 0, 0, 0, 0])?
        };
    }
    // As far as the program knows it is one mapping, of the attributes that it was mapped with.
    let is_as_mapped = from.is_some() && !heap.is_tainted(at, old);
    let left = match heap.has_locked() && !is_as_mapped {
        true => Left::Gap,
        false => Left::Mapping,
    };
    let targets = Holes::of(heap, to, if target.is_some() { new } else { 0 });
    if target.is_some() {
        targets.occupy(heap, to, new, true)?;
    }
    // Several mappings move by one call or by none: put aside, a part of them could be left there.
    let is_several = from.is_some()
        && old > 0
        && match grows && left == Left::Mapping {
            // No file is opened: a filter may not allow that.
            // SAFETY: the caller's, at addresses of the heap's, none of which is a gap.
            true => !unsafe { mem::is_one_mapping(at as *mut u8, old) },
            false => holed || !is_one_mapping(&(at..at + old)),
        };
    // SAFETY: as the caller promises.
    let mut outcome = unsafe {
        match is_several {
            true => move_several(heap, request, old, &targets),
            false => remap_by_kernel(heap, request, old, left),
        }
    };
    // In memory that comes in huge pages, that advice leaves no mark.
    let known = (is_as_mapped && !heap.has_asked_for_huge()).then_some(PLAIN);
    // Of several mappings some may have moved: then it is known which.
    let mut may_have_moved = is_several;
    // Before Linux 5.7 nothing can be moved and stay mapped, and the kernel calls that invalid.
    let may_be_alike = outcome == Err(Errno::FAULT) || (grows && outcome == Err(Errno::INVAL));
    if may_be_alike && old > 0 && from.is_some() && !holed {
        // SAFETY: as the caller promises.
        match unsafe { move_as_one(heap, request, known, target.map(|_| &targets)) } {
            Ok(Some(moved)) => (outcome, may_have_moved) = (moved, true),
            Ok(None) => {}
            Err(errno) => (outcome, may_have_moved) = (Err(errno), false),
        }
    }
    if outcome.is_err() && !may_have_moved {
        // SAFETY: they were nobody's before.
        unsafe { targets.unmap(heap) };
    }
    let may_be_huge = || {
        let is_asked_for = heap.has_asked_for_huge();
        grows && !is_asked_for && !seccomp::may_be_one() && !come_huge_pages_unasked()
    };
    if let (Ok(place), true) = (outcome, may_be_huge()) {
        // The heap may have asked for huge pages there, and the kernel would give them for all that comes.
        // SAFETY: it changes no content.
        unsafe {
            let advice = linux::MADV_NOHUGEPAGE as usize;
            let _ = raw::syscall(linux::__NR_madvise, [place, new, advice, 0, 0, 0]);
        }
    }
    outcome
}

/// Whether nothing in a range is the heap's.
fn is_outside(heap: &Heap, at: usize, len: usize) -> bool {
    let mut is_outside = true;
    heap.parts(at, len, |_, kind| {
        is_outside &= kind == Part::Outside;
        is_outside
    });
    is_outside
}

/// Moves memory that is several mappings only because its neighbours changed, or because the process was forked. It
/// becomes one, so it is copied. `None`: the parts differ in protection or advice, so they can't become one mapping,
/// and nothing has moved. After an outcome that is an error, some of it has. `known`: the protection and advice of all
/// of it, if these are known. `targets`: the holes at its new place, if that is at addresses of the heap's.
///
/// # Errors
/// There is no place for it, and it has not moved.
///
/// # Safety
/// As `mremap`.
unsafe fn move_as_one(
    heap: &'static Heap,
    request: Remap,
    known: Option<(c_int, Advice)>,
    targets: Option<&Holes>,
) -> Result<Option<Outcome>, Errno> {
    let Remap { at, old_len, new_len, flags, to } = request;
    let (range, new) = (at..at + round_up(old_len), round_up(new_len));
    let look = || Some((protection_of(&range)?, advice_of(&range)?));
    let Some((protection, advice)) = known.or_else(look) else { return Ok(None) };
    let place = match flags & linux::MREMAP_FIXED != 0 {
        true => {
            if let Some(targets) = targets {
                targets.occupy(heap, to, new, true)?;
            }
            // SAFETY: the caller gave the memory there up.
            unsafe { map_at(to, new, linux::MAP_FIXED)? }
        }
        false => map_anywhere(new)?,
    };
    // Before it is copied: there may be no room for so much more locked memory, and pages of locked memory stay.
    // SAFETY: as the caller promises.
    unsafe {
        if let Err(errno) = advice.move_lock(&range, &(place..place + new)) {
            if targets.is_none() {
                raw::syscall(linux::__NR_munmap, [place, new, 0, 0, 0, 0])?;
            }
            return Err(errno);
        }
    }
    // SAFETY: as the caller promises.
    let outcome = unsafe { copy_alike(heap, request, place, protection) };
    if outcome.is_ok() {
        // Memory that is new, or was copied, has not been given it.
        // SAFETY: as the caller promises.
        advice.each().for_each(|advice| unsafe {
            if advice != linux::MADV_HUGEPAGE as c_int || heap.has_asked_for_huge() {
                madvise(place as *mut c_void, new, advice);
            }
        });
    }
    Ok(Some(outcome))
}

/// A private anonymous mapping of the kernel's.
fn map_anywhere(len: usize) -> Outcome {
    // SAFETY: it replaces nothing.
    unsafe { map_at(0, len, 0) }
}

/// A private anonymous mapping at an address.
///
/// # Safety
/// As `mmap`.
unsafe fn map_at(at: usize, len: usize, flags: u32) -> Outcome {
    let flags = SERVED | flags as c_int;
    let request = Request { at, len, protection: READ_WRITE, flags, file: -1, offset: 0 };
    // SAFETY: as the caller promises.
    unsafe { request.make() }
}

/// Copies private anonymous memory, all of one protection but however many mappings, to fresh memory
/// of its new length: its new address.
///
/// # Safety
/// As `mremap`, for memory that is mapped; the new place is the caller's.
unsafe fn copy_alike(heap: &'static Heap, request: Remap, to: usize, protection: c_int) -> Outcome {
    let Remap { at, flags, old_len, new_len, .. } = request;
    let (old, new) = (round_up(old_len), round_up(new_len));
    let len = old.min(new);
    heap.note(at, len, Effect::Drops);
    // SAFETY: both ranges are the caller's.
    unsafe {
        copy(at, to, len, protection)?;
        if protection != READ_WRITE {
            raw::syscall(linux::__NR_mprotect, [to, new, protection as usize, 0, 0, 0])?;
        }
    }
    if flags & linux::MREMAP_DONTUNMAP == 0 {
        // SAFETY: all of it is at its new place, and memory that has come to the old one meanwhile is somebody else's.
        unsafe {
            match heap.has_lost(at, old) {
                true => heap.unmap_own(at, old),
                false => unmap(at, old).map(drop)?,
            }
        }
    } else {
        heap.note(at, len, Effect::Taints);
    }
    Ok(to)
}

/// The old place of memory that moves, for a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// A mapping that is empty.
    Mapping,
    /// Nothing: it may be locked. When locked memory moves and its old place stays mapped, the kernel counts the old
    /// place as locked, too, and for ever.
    Gap,
}

/// Moves the pages of a range to another place, which leaves the heap's addresses mapped.
///
/// # Safety
/// Both are the caller's.
unsafe fn move_pages(heap: &'static Heap, at: usize, to: usize, len: usize, left: Left) -> Outcome {
    let leaves_gap = left == Left::Gap;
    let keeps = if leaves_gap { 0 } else { linux::MREMAP_DONTUNMAP };
    let flags = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED | keeps;
    // SAFETY: as the caller promises.
    let moved = unsafe { Remap { at, old_len: len, new_len: len, flags, to }.make() };
    if leaves_gap && heap.owns(at as *const u8) {
        // Where it failed, the first of several mappings may have moved.
        let gap = if moved.is_ok() { len } else { gap_at(at, len) };
        if gap > 0 {
            close_gap(heap, at, gap);
        }
    }
    moved
}

/// Copies a range, giving its pages back as it goes. Zeros are left. Content that is at the new place already stays
/// there: the place was zero before, so the content can only have been moved.
///
/// # Safety
/// Both ranges are the caller's, and private anonymous memory, the first of that protection. The second is as it was
/// when it was mapped, readable, writable and zero, but for the effects of a call that failed.
unsafe fn copy(at: usize, to: usize, len: usize, protection: c_int) -> Outcome {
    const STEP: usize = 512 * FRAME_SIZE;
    let readable = protection & linux::PROT_READ as c_int != 0;
    let protect = |protection: c_int| {
        // SAFETY: nobody else uses the range.
        unsafe { raw::syscall(linux::__NR_mprotect, [at, len, protection as usize, 0, 0, 0]) }
    };
    if !readable {
        protect(READ_WRITE)?;
    }
    for done in (0..len).step_by(STEP) {
        let (from, step) = (at + done, STEP.min(len - done));
        // SAFETY: as the caller promises.
        unsafe {
            make_whole(to + done, step)?;
            for page in (0..step).step_by(FRAME_SIZE) {
                let (from, to) = (from + page, to + done + page);
                if !guards::carry(from, to) && is_zero_page(to) && !is_zero_page(from) {
                    (to as *mut u8).copy_from_nonoverlapping(from as *const u8, FRAME_SIZE);
                }
            }
            let advice = linux::MADV_DONTNEED as usize;
            // Refused for locked memory, which then goes when all of it does.
            let _ = raw::syscall(linux::__NR_madvise, [from, step, advice, 0, 0, 0]);
        }
    }
    if readable {
        Ok(to)
    } else {
        protect(protection)
    }
}

/// Sees to it that a target, of 512 pages at most, is mapped.
///
/// # Safety
/// It is the caller's.
unsafe fn make_whole(at: usize, len: usize) -> Result<(), Errno> {
    if is_mapped(at, len) {
        return Ok(());
    }
    for page in (at..at + len).step_by(FRAME_SIZE).filter(|&page| !is_mapped(page, FRAME_SIZE)) {
        // Unless another thread's mapping has come there meanwhile.
        mem::map_where_none(page as *mut u8, FRAME_SIZE)?;
    }
    Ok(())
}

/// # Safety
/// The page can be read, and nobody writes to it.
unsafe fn is_zero_page(page: usize) -> bool {
    // SAFETY: as the caller promises.
    let words = unsafe { core::slice::from_raw_parts(page as *const u64, FRAME_SIZE / 8) };
    words.iter().all(|&word| word == 0)
}

/// Whether all of a range, of 512 pages at most, is mapped.
fn is_mapped(at: usize, len: usize) -> bool {
    let mut seen = [0u8; 512];
    let args = [at, len, seen.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: `seen` has a byte for each page. The answer is an error if one of them is not mapped.
    unsafe { raw::syscall(linux::__NR_mincore, args) }.is_ok()
}

/// Has the kernel make the call, to memory of the heap's that is as the program knows it.
///
/// No gap may come to be in the heap's addresses: the kernel might put another thread's mapping there. So the memory
/// that is to move is first moved aside, leaving its place mapped.
///
/// # Safety
/// As `mremap`.
unsafe fn remap_by_kernel(heap: &'static Heap, request: Remap, old: usize, left: Left) -> Outcome {
    let Remap { at, new_len, flags, to, .. } = request;
    let new = round_up(new_len);
    if concerned(at, old).is_none() {
        // SAFETY: as the caller promises.
        return unsafe { request.make() };
    }
    heap.note(at, old, Effect::Taints);
    heap.note(at, old, Effect::Drops);
    if flags & linux::MREMAP_DONTUNMAP != 0 || old == 0 {
        // SAFETY: as the caller promises.
        return unsafe { request.make() };
    }
    let outcome;
    if flags & linux::MREMAP_FIXED != 0 && new <= old {
        // SAFETY: as the caller promises.
        outcome = unsafe { move_pages(heap, at, to, new, left) };
    } else if left == Left::Gap {
        // Put aside, it would leave a gap, and would have no way back if somebody else's mapping came there.
        // SAFETY: as the caller promises.
        outcome = unsafe { request.make() };
        if outcome.is_ok() {
            close_gap(heap, at, old);
        }
    } else {
        let (aside, len) = match flags & linux::MREMAP_FIXED != 0 {
            true => (map_aside(old, to..to.saturating_add(new))?, old),
            false => (map_room(at, new)?, new),
        };
        // SAFETY: as the caller promises; the mapping made above is nobody else's.
        unsafe {
            let unmap = |at, len| raw::syscall(linux::__NR_munmap, [at, len, 0, 0, 0, 0]);
            let moved = move_pages(heap, at, aside, old, left);
            if len > old {
                // It grows into this, unless another thread's mapping comes first; then it moves once more.
                let _ = unmap(aside + old, len - old);
            }
            // It is the same memory at another place.
            outcome = moved.and_then(|_| Remap { at: aside, ..request }.make());
            if outcome.is_err() {
                if moved.is_ok() {
                    move_pages(heap, aside, at, old, left)?;
                }
                unmap(aside, old)?;
            }
        }
    }
    if outcome.is_ok() {
        // SAFETY: the old content has moved.
        unsafe { heap.unmap_own(at, old) };
        return outcome;
    }
    outcome
}

/// Addresses that nobody uses, for memory to stay: huge pages can move there whole.
fn map_room(at: usize, len: usize) -> Outcome {
    let slack = if len >= BLOCK_SIZE { BLOCK_SIZE - FRAME_SIZE } else { 0 };
    let flags = SERVED | linux::MAP_NORESERVE as c_int;
    let request = Request { at: 0, len: len + slack, protection: 0, flags, file: -1, offset: 0 };
    // SAFETY: it replaces nothing, and the parts around the room are nobody's.
    unsafe {
        let start = request.make()?;
        let before = at.wrapping_sub(start) % BLOCK_SIZE * usize::from(slack > 0);
        for (at, len) in [(start, before), (start + before + len, slack - before)] {
            if len > 0 {
                raw::syscall(linux::__NR_munmap, [at, len, 0, 0, 0, 0])?;
            }
        }
        Ok(start + before)
    }
}

/// Addresses that nobody uses, and that are not in `avoided`: nothing may be mapped there yet.
fn map_aside(len: usize, avoided: Range<usize>) -> Outcome {
    let flags = SERVED | linux::MAP_NORESERVE as c_int;
    let at = mem::place_for_a_moment();
    let request = Request { at, len, protection: 0, flags, file: -1, offset: 0 };
    // SAFETY: it replaces nothing.
    let at = unsafe { request.make()? };
    if at >= avoided.end || at + len <= avoided.start {
        return Ok(at);
    }
    // As long as it is there, the next one is elsewhere.
    let next = map_aside(len, avoided);
    // SAFETY: made above.
    unsafe { raw::syscall(linux::__NR_munmap, [at, len, 0, 0, 0, 0])? };
    next
}

/// Has the kernel move several mappings and the holes between them, which new ones do: a hole at the target that is
/// one at the source, too, stays one. Then closes the gap that they leave.
///
/// # Safety
/// As `mremap`.
unsafe fn move_several(
    heap: &'static Heap,
    request: Remap,
    old: usize,
    targets: &Holes,
) -> Outcome {
    let Remap { at, to, flags, .. } = request;
    heap.note(at, old, Effect::Taints);
    heap.note(at, old, Effect::Drops);
    heap.parts(at, old, |part, kind| {
        if kind == Part::Hole {
            // SAFETY: nobody uses it.
            let _ =
                unsafe { raw::syscall(linux::__NR_munmap, [part.start, part.len(), 0, 0, 0, 0]) };
        }
        true
    });
    // SAFETY: as the caller promises.
    let outcome = unsafe { request.make() };
    let leaves_gaps = flags & linux::MREMAP_DONTUNMAP == 0;
    heap.parts(at, old, |part, kind| {
        let (start, len) = (part.start, part.len());
        let target = to.wrapping_add(start - at);
        match kind {
            Part::Hole => {
                close_gap(heap, start, len);
                if outcome.is_ok() {
                    // SAFETY: nothing has moved there.
                    unsafe { targets.unmap_within(heap, target, len) };
                }
            }
            Part::Mapped if leaves_gaps => {
                // From the first on: where the kernel fails half-way, the rest is where it was.
                let moved = gap_at(start, len);
                if moved > 0 && close_gap(heap, start, moved) {
                    // SAFETY: the old content has moved.
                    unsafe { heap.unmap(start, moved) };
                }
                if outcome.is_err() && flags & linux::MREMAP_FIXED != 0 {
                    // SAFETY: nothing has moved there.
                    unsafe { targets.unmap_within(heap, target + moved, len - moved) };
                }
            }
            _ => {}
        }
        true
    });
    outcome
}

/// Maps memory where there is none, at addresses of the heap's. Where another thread's mapping has landed first, they
/// are the heap's no more. Whether they are.
fn close_gap(heap: &'static Heap, at: usize, len: usize) -> bool {
    let flags = SERVED | (linux::MAP_FIXED_NOREPLACE | linux::MAP_NORESERVE) as c_int;
    let gap = Request { at, len, protection: READ_WRITE, flags, file: -1, offset: 0 };
    // SAFETY: it replaces nothing.
    let closed = unsafe { gap.make() }.is_ok();
    if !closed {
        heap.forsake(at, len);
    }
    closed
}

/// Bytes from an address on, of so many, at which nothing is mapped.
fn gap_at(at: usize, len: usize) -> usize {
    (0..len).step_by(FRAME_SIZE).find(|offset| is_mapped(at + offset, FRAME_SIZE)).unwrap_or(len)
}
