//! A range of addresses, of which some are the heap's: its parts, and calls on each of them.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::raw;
use pumice_heap::heap::{Effect, Heap, Part};
use rustix::io::Errno;

use crate::errno::Outcome;
use crate::state;

/// As large as an address space: larger requests are the kernel's to refuse.
pub(crate) const LARGEST: usize =
    (1 << if cfg!(target_arch = "aarch64") { 48 } else { 47 }) - FRAME_SIZE;

/// The behaviour of a call that comes to a hole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtHole {
    /// It fails there.
    Stop,
    /// It goes on, and fails at the end.
    GoOn,
}

/// Makes a call whose first two arguments are a range on each mapped part of it.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn each_part(
    number: u32,
    args: [usize; 6],
    effect: Option<Effect>,
    at_hole: AtHole,
) -> Outcome {
    let [at, len, ..] = args;
    let rounded = concerned(at, len).filter(|_| at % FRAME_SIZE == 0 && len > 0);
    let Some((heap, len)) = rounded else {
        mark_others(effect);
        // SAFETY: as the caller promises.
        return unsafe { raw::syscall(number, args) };
    };
    let (mut outcome, mut met_hole) = (Ok(0), false);
    heap.parts(at, len, |part: Range<usize>, kind| {
        if kind == Part::Hole {
            // Errors of the call itself come first. Of a range of no length the kernel checks nothing else.
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

/// Whether a range has a hole.
pub(crate) fn has_hole(heap: &Heap, at: usize, len: usize) -> bool {
    first_hole(heap, at, len).is_some()
}

/// Where the first hole in a range begins.
pub(crate) fn first_hole(heap: &Heap, at: usize, len: usize) -> Option<usize> {
    let mut found = None;
    heap.parts(at, len, |part, kind| {
        if kind == Part::Hole {
            found = Some(part.start);
        }
        found.is_none()
    });
    found
}

/// Whether a range has a mapped part.
pub(crate) fn has_mapped(heap: &Heap, at: usize, len: usize) -> bool {
    let mut found = false;
    heap.parts(at, len, |_, kind| {
        found |= kind == Part::Mapped;
        !found
    });
    found
}

/// The heap and the range's length in whole pages, if any of it is the heap's, and the heap this process's: a
/// forked child makes it its own here, before it looks at words that another thread of its parent's may
/// have been about to change.
pub(crate) fn concerned(at: usize, len: usize) -> Option<(&'static Heap, usize)> {
    overlapping(at, len).filter(|_| state::is_current())
}

/// The heap and the range's length in whole pages, if any of it is the heap's.
pub(crate) fn overlapping(at: usize, len: usize) -> Option<(&'static Heap, usize)> {
    let heap = state::serving_heap()?;
    let fits = len <= LARGEST && at.checked_add(len).is_some();
    let rounded = if fits { round_up(len) } else { return None };
    heap.overlaps(at as *const u8, rounded).then_some((heap, rounded))
}

/// Notes the effect on a range of a call that is the kernel's alone.
pub(crate) fn note(at: usize, len: usize, effect: Effect) {
    let concerned = concerned(at, len);
    if concerned.is_none() {
        mark_others(Some(effect));
    }
    if let Some((heap, len)) = concerned {
        heap.parts(at, len, |part, kind| {
            if kind == Part::Mapped {
                heap.note(part.start, part.len(), effect);
            }
            true
        });
    }
}

/// Whether the program has given memory that is not the heap's attributes, which a copy of it would not have. Relaxed:
/// the thread that copies has been told of the changes to that memory.
static OTHERS_ARE_MARKED: AtomicBool = AtomicBool::new(false);

/// See [`OTHERS_ARE_MARKED`].
pub(crate) fn others_are_marked() -> bool {
    OTHERS_ARE_MARKED.load(Ordering::Relaxed)
}

fn mark_others(effect: Option<Effect>) {
    if effect.is_some_and(|effect| effect != Effect::Drops) && !others_are_marked() {
        OTHERS_ARE_MARKED.store(true, Ordering::Relaxed);
    }
}

/// A length in whole pages.
pub(crate) fn round_up(len: usize) -> usize {
    len.checked_next_multiple_of(FRAME_SIZE).unwrap_or(usize::MAX)
}
