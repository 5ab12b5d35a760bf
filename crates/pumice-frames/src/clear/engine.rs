//! The driver interface: pieces of memory are submitted, and polled until they are settled.
//!
//! Made for hardware that works beside the processor (Intel DSA, a GPU's copy engine; the Altix
//! had its Block Transfer Engine): a batch may be taken in part, finish in any order, stop at a
//! piece that faults, and the engine itself may be lost. Processor engines fit in by settling
//! everything at submit. [`super::chain::Chain`] puts engines in line and makes sure that each
//! piece gets zeroed in the end. Nothing here allocates: the pieces are the caller's slice.
//!
//! ```text
//!                 submit                 poll
//!      Waiting ------------> InFlight ------------> Zeroed
//!         ^  |                  |  |
//!         |  +-- no room: stays |  +--------------> Faulted (a prefix may be zeroed)
//!         |                     |                      |
//!         |                     +-- lost for good: stays: nobody may use the memory again
//!         +----------------------- retry --------------+
//! ```
//!
//! Invariant 1: a piece is `Zeroed` only if all of it reads as zeros.
//! Invariant 2: once a piece is `Zeroed` or `Faulted`, its engine writes to it no more. Where an
//! engine can't promise that, the piece stays `InFlight`, and its memory is given up.
//!
//! One suite of tests (`contract`) holds every engine to this, those that fail included.

use core::time::Duration;

use super::Warmth;
use crate::sync::spin_loop;
use crate::sys::thread;

/// Where a piece stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceState {
    /// No engine has it.
    Waiting,
    /// An engine is at work on it, or may be.
    InFlight,
    /// It reads as zeros.
    Zeroed,
    /// Its engine gave up; [`Piece::remaining`] is still to do.
    Faulted,
}

/// A range of memory to be zeroed, and how far that has got.
///
/// Only the engine that has a piece may move it on; that is why the methods which say that memory
/// is zero are unsafe.
#[derive(Debug)]
pub struct Piece {
    at: *mut u8,
    len: usize,
    /// bytes at the front that are known to be zero
    zeroed: usize,
    warmth: Warmth,
    state: PieceState,
    /// the engine's own note, such as the number of its descriptor
    tag: u32,
    /// which engine of a chain has it or is to get it next
    pub(super) stage: u8,
}

impl Piece {
    /// A piece that waits for an engine.
    pub fn new(at: *mut u8, len: usize, warmth: Warmth) -> Piece {
        Piece { at, len, zeroed: 0, warmth, state: PieceState::Waiting, tag: 0, stage: 0 }
    }

    /// No memory, settled: it stands where a piece has been.
    pub const fn nothing() -> Piece {
        let (at, warmth, state) = (core::ptr::null_mut(), Warmth::Cold, PieceState::Zeroed);
        Piece { at, len: 0, zeroed: 0, warmth, state, tag: 0, stage: 0 }
    }

    /// Where it stands.
    pub fn state(&self) -> PieceState {
        self.state
    }

    /// Whether anybody waits for it.
    pub fn warmth(&self) -> Warmth {
        self.warmth
    }

    /// Start and length in bytes of the whole piece.
    pub fn range(&self) -> (*mut u8, usize) {
        (self.at, self.len)
    }

    /// Start and length in bytes of the part that is not known to be zero yet.
    pub fn remaining(&self) -> (*mut u8, usize) {
        (self.at.wrapping_add(self.zeroed), self.len - self.zeroed)
    }

    /// The note of the engine that has it.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// For engines: takes a waiting piece, with a note to find it again by.
    pub fn take(&mut self, tag: u32) {
        debug_assert_eq!(self.state, PieceState::Waiting);
        self.state = PieceState::InFlight;
        self.tag = tag;
    }

    /// For engines: the piece is done.
    ///
    /// # Safety
    /// All of [`Piece::remaining`] reads as zeros to threads that see this piece's new state, and the engine writes to
    /// it no more.
    pub unsafe fn settle_zeroed(&mut self) {
        self.zeroed = self.len;
        self.state = PieceState::Zeroed;
    }

    /// For engines: the piece stopped after `done` more bytes. 0 is always a truthful answer.
    ///
    /// # Safety
    /// The first `done` bytes of [`Piece::remaining`] read as zeros, and the engine writes to the
    /// piece no more.
    pub unsafe fn settle_faulted(&mut self, done: usize) {
        debug_assert!(done <= self.len - self.zeroed);
        self.zeroed += done;
        self.state = PieceState::Faulted;
    }

    /// For engines: `done` more bytes are zero, and the engine goes on with the rest.
    ///
    /// # Safety
    /// The first `done` bytes of [`Piece::remaining`] read as zeros, and the engine writes to
    /// those no more.
    pub unsafe fn advance(&mut self, done: usize) {
        debug_assert!(done <= self.len - self.zeroed);
        self.zeroed += done;
    }

    /// Lets another engine have the rest after a fault.
    pub fn retry(&mut self) {
        if self.state == PieceState::Faulted {
            self.state = PieceState::Waiting;
        }
    }
}

/// The engine is gone and takes no more pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine is lost")]
pub struct Lost;

/// How an engine is waited for: a part of the processor time that it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Somebody waits for the memory: the caller spins for a moment, and sleeps then.
    Spinning,
    /// Nobody does: it sleeps between looks, as scrubd does.
    Asleep,
}

/// Something that zeroes memory.
///
/// # Safety
/// An implementation keeps the two invariants at the top of this file, and writes nowhere but to
/// the remainders of the pieces it has taken.
pub unsafe trait Engine: Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Takes those pieces that are `Waiting`, as far as there is room; the rest go on waiting.
    /// It may settle them right away. It never blocks.
    ///
    /// # Errors
    /// [`Lost`]: the engine takes no pieces from now on. Those it had are `Faulted` at the next
    /// poll if it is certain that it no longer writes to them.
    ///
    /// # Safety
    /// The pieces' memory is writable, stays mapped, and is used by nobody until they are
    /// settled; nobody drops a piece in flight and uses its memory.
    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost>;

    /// Settles pieces in flight that have come to an end, in any order. It never blocks.
    ///
    /// # Errors
    /// [`Lost`], as for [`Engine::submit`].
    ///
    /// # Safety
    /// Every piece in flight in the slice is with this engine.
    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost>;

    /// Nobody wants the pieces in flight any more: the engine takes no new step on them, such as going on after a
    /// fault. Steps under way come to their end, and [`Engine::poll`] settles it.
    ///
    /// # Safety
    /// As for [`Engine::poll`].
    unsafe fn cancel(&self, _pieces: &mut [Piece]) {}

    /// Polls until nothing is in flight, for `patience` at most; also an engine that is lost, whose
    /// last pieces may still come to their end.
    ///
    /// # Errors
    /// [`Lost`], as for [`Engine::submit`].
    ///
    /// # Safety
    /// As for [`Engine::poll`].
    unsafe fn wait(
        &self,
        pieces: &mut [Piece],
        patience: Duration,
        how: Waiting,
    ) -> Result<(), Lost> {
        let begun_ns = thread::now_ns();
        loop {
            // SAFETY: as the caller promises.
            let polled = unsafe { self.poll(pieces) };
            let waited_ns = thread::now_ns().saturating_sub(begun_ns);
            let is_over = u128::from(waited_ns) >= patience.as_nanos();
            if is_over || pieces.iter().all(|piece| piece.state() != PieceState::InFlight) {
                return polled;
            }
            match how == Waiting::Spinning && waited_ns < SPIN_NS {
                true => spin_loop(),
                false => thread::sleep(LOOK),
            }
        }
    }
}

// SAFETY: the engine's own.
unsafe impl<E: Engine + ?Sized> Engine for &E {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: as the caller promises, here and below.
        unsafe { (**self).submit(pieces) }
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: see above.
        unsafe { (**self).poll(pieces) }
    }

    unsafe fn cancel(&self, pieces: &mut [Piece]) {
        // SAFETY: see above.
        unsafe { (**self).cancel(pieces) }
    }

    unsafe fn wait(
        &self,
        pieces: &mut [Piece],
        patience: Duration,
        how: Waiting,
    ) -> Result<(), Lost> {
        // SAFETY: see above.
        unsafe { (**self).wait(pieces, patience, how) }
    }
}

/// Waking up takes 10 µs to 100 µs: waiting spins for as long first.
const SPIN_NS: u64 = 50_000;
/// Between two looks at an engine whose caller sleeps: it needs that long for a block or two.
pub const LOOK: Duration = Duration::from_micros(50);
