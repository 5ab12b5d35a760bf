//! Memory for requests while the next allocator is being looked for.
//!
//! `dlsym` itself allocates in some C libraries, from inside the first call of `malloc`. It gets a piece of a static
//! arena, which is never reused: a few hundred bytes in all. Once the next allocator is known the arena is closed, so
//! that no later request gets a piece that nobody would recognise.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

const ARENA_SIZE: usize = 64 << 10;
/// Room before each piece for its length, which keeps pieces aligned for anything.
const HEADER_SIZE: usize = 16;
/// The cursor's value once the arena is closed.
const CLOSED: usize = usize::MAX;

#[repr(C, align(16))]
struct Arena(UnsafeCell<[u8; ARENA_SIZE]>);

// SAFETY: every byte belongs to the one caller that the cursor gave it to.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; ARENA_SIZE]));
/// Offset of the first unused byte, or [`CLOSED`]. Relaxed: handing out offsets orders nothing.
static CURSOR: AtomicUsize = AtomicUsize::new(0);

/// Why there is no piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The arena is used up, or the size is absurd.
    Full,
    /// The next allocator is known: ask it.
    Closed,
}

/// A piece of zeros. `align` is a power of two.
pub(crate) fn allocate(size: usize, align: usize) -> Result<NonNull<c_void>, Refusal> {
    let base = ARENA.0.get() as usize;
    let place = |cursor: usize| {
        let at = (base + cursor + HEADER_SIZE).checked_next_multiple_of(align.max(HEADER_SIZE))?;
        let end = at.checked_add(size)?.checked_next_multiple_of(HEADER_SIZE)?;
        (end <= base + ARENA_SIZE).then_some((at, end - base))
    };
    let mut cursor = CURSOR.load(Ordering::Relaxed);
    loop {
        if cursor == CLOSED {
            return Err(Refusal::Closed);
        }
        let (at, end) = place(cursor).ok_or(Refusal::Full)?;
        match CURSOR.compare_exchange(cursor, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                // SAFETY: the header lies in the bytes just claimed, and is aligned.
                unsafe { ((at - HEADER_SIZE) as *mut usize).write(size) };
                return NonNull::new(at as *mut c_void).ok_or(Refusal::Full);
            }
            Err(now) => cursor = now,
        }
    }
}

/// Hands out no more pieces. Returns whether there ever was one.
pub(crate) fn close() -> bool {
    CURSOR.swap(CLOSED, Ordering::Relaxed) != 0
}

/// Whether this is a piece of the arena.
pub(crate) fn owns(at: *const c_void) -> bool {
    (at as usize).wrapping_sub(ARENA.0.get() as usize) < ARENA_SIZE
}

/// The length of a piece.
///
/// # Safety
/// `at` came from [`allocate`].
pub(crate) unsafe fn size(at: *const c_void) -> usize {
    // SAFETY: a piece is preceded by its header.
    unsafe { at.byte_sub(HEADER_SIZE).cast::<usize>().read() }
}
