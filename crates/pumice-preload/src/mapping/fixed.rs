//! Mappings at addresses of the heap's that the program names: `MAP_FIXED`, stacks, segments of shared memory.

use core::ffi::c_int;

use linux_raw_sys::general as linux;
use pumice_frames::addr::FRAME_SIZE;
use pumice_heap::heap::{Heap, Part};
use rustix::io::Errno;

use super::{populate_if_asked, Request, FIXED, INDIFFERENT, READ_WRITE, SERVED};
use crate::errno::Outcome;
use crate::parts::{concerned, has_mapped};

/// `mmap` at an address of the heap's.
///
/// # Safety
/// As `mmap`.
pub(super) unsafe fn map_fixed(heap: &'static Heap, len: usize, request: Request) -> Outcome {
    let no_replace = linux::MAP_FIXED_NOREPLACE as c_int;
    if request.flags & linux::MAP_GROWSDOWN as c_int != 0 {
        // SAFETY: as the caller promises.
        return unsafe { map_stack(heap, len, request) };
    }
    // The heap's addresses are mapped as far as the kernel knows: asked not to replace them, it finds all other errors
    // first.
    let probe = Request { flags: request.flags | no_replace, ..request };
    // SAFETY: it replaces nothing.
    match unsafe { probe.make() } {
        Err(Errno::EXIST) => {}
        refused => return refused,
    }
    let replaces = request.flags & no_replace == 0;
    if !replaces && has_mapped(heap, request.at, len) {
        return Err(Errno::EXIST);
    }
    let holes = Holes::of(heap, request.at, len);
    // Memory like the rest of the heap's stays one mapping with it.
    let is_plain = heap.contains(request.at, len)
        && request.protection == READ_WRITE
        && request.flags & !(INDIFFERENT | FIXED) == SERVED;
    match replaces {
        true => holes.occupy(heap, request.at, len, !is_plain)?,
        // Another thread was there first.
        false if !heap.occupy_holes(request.at, len, !is_plain) => return Err(Errno::EXIST),
        false => {}
    }
    let outcome = if is_plain {
        // SAFETY: the caller gives up what is there.
        let done = unsafe { heap.renew(request.at, len) };
        done.then_some(request.at).ok_or(Errno::NOMEM)
    } else {
        let flags = request.flags & !no_replace | linux::MAP_FIXED as c_int;
        // SAFETY: as the caller promises; the old memory there is the caller's, or nobody's.
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

/// `mmap` of a stack that grows: memory that is unmapped below it must be so for the kernel, too.
///
/// # Safety
/// As `mmap`.
unsafe fn map_stack(heap: &'static Heap, len: usize, request: Request) -> Outcome {
    /// The largest stack by default, and the gap that the kernel keeps below one.
    const ROOM: usize = (8 << 20) + (1 << 20);
    let no_replace = linux::MAP_FIXED_NOREPLACE as c_int;
    let Request { at, flags, .. } = request;
    if at % FRAME_SIZE == 0 {
        if flags & no_replace != 0 && has_mapped(heap, at, len) {
            return Err(Errno::EXIST);
        }
        // SAFETY: the caller gives up the memory there.
        unsafe { heap.unmap(at, len) };
        let mut below = at;
        heap.parts(at.saturating_sub(ROOM), ROOM.min(at), |part, kind| {
            // The last part that is no hole ends where the holes below the stack begin.
            below = if kind == Part::Hole { below.min(part.start) } else { at };
            true
        });
        // SAFETY: nobody uses them.
        unsafe { heap.surrender(below, at + len - below) };
    }
    // SAFETY: as the caller promises.
    unsafe { request.make() }
}

/// The holes of a range, as many as can be remembered.
pub(super) struct Holes {
    ranges: [(usize, usize); 16],
    count: usize,
}

impl Holes {
    pub(super) fn of(heap: &Heap, at: usize, len: usize) -> Holes {
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

    /// Makes the range whose holes they are the caller's: see [`Heap::occupy`].
    ///
    /// # Errors
    /// `ENOMEM`: they are holes as before.
    pub(super) fn occupy(
        &self,
        heap: &'static Heap,
        at: usize,
        len: usize,
        taints: bool,
    ) -> Result<(), Errno> {
        heap.occupy(at, len, taints).map_err(|end| {
            // SAFETY: below `end` they became the caller's a moment ago.
            unsafe { self.unmap_within(heap, at, end - at) };
            Errno::NOMEM
        })
    }

    /// Makes them holes again.
    ///
    /// # Safety
    /// Nobody uses them.
    pub(super) unsafe fn unmap(&self, heap: &'static Heap) {
        // SAFETY: as the caller promises.
        unsafe { self.unmap_within(heap, 0, usize::MAX) };
    }

    /// Makes those of them holes again that lie in a range.
    ///
    /// # Safety
    /// Nobody uses them.
    pub(super) unsafe fn unmap_within(&self, heap: &'static Heap, start: usize, len: usize) {
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

/// Has somebody else's memory come to a place by `make`, which is told whether it is to replace the memory there: at
/// the heap's addresses it always must. `replaces`: the program lets it.
///
/// # Safety
/// As the system call that `make` makes.
pub(crate) unsafe fn put_at(
    at: usize,
    len: usize,
    replaces: bool,
    make: impl Fn(bool) -> Outcome,
) -> Outcome {
    let Some((heap, len)) = concerned(at, len) else { return make(replaces) };
    // The kernel refuses ranges that reach beyond the heap's, and ranges in use.
    if !replaces && (has_mapped(heap, at, len) || !heap.contains(at, len)) {
        return make(false);
    }
    let holes = Holes::of(heap, at, len);
    match replaces {
        true => holes.occupy(heap, at, len, true)?,
        // Another thread was there first.
        false if !heap.occupy_holes(at, len, true) => return make(false),
        false => {}
    }
    let outcome = make(true);
    if outcome.is_err() {
        // SAFETY: they were nobody's before.
        unsafe { holes.unmap(heap) };
    }
    outcome
}
