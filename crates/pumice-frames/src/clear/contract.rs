//! The trait's contract as one suite, run over every engine, over devices that fail too.
//!
//! An engine may do as it likes with a piece, but may say nothing untrue of it. So the suite never asks that an engine
//! succeed, but checks every word it says against the memory. Engines that ought to succeed are asked for that besides
//! ([`Hope::AllZeroed`]).

use core::ptr::NonNull;
use core::time::Duration;
use std::ops::Range;

use super::{Engine, Lost, Piece, PieceState, Waiting, Warmth};
use crate::addr::{BLOCK_SIZE, FRAME_SIZE};
use crate::sys::mem;

const PATTERN: u8 = 0xa5;
const PATIENCE: Duration = Duration::from_secs(5);

/// The result that is expected of an engine where nothing goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hope {
    /// To zero all it is given.
    AllZeroed,
    /// Anything that its contract allows; memory of pieces that stay in flight is never looked at.
    Anything,
}

/// Private anonymous memory full of a pattern, and which of its ranges are pieces.
pub struct Ground {
    at: *mut u8,
    len: usize,
    ranges: Vec<Range<usize>>,
}

impl Ground {
    /// Memory with these ranges, which must not overlap. It does not go with this: a device that was lost may go on
    /// writing to it.
    pub fn new(len: usize, ranges: Vec<Range<usize>>) -> Ground {
        let at = mem::map_table(len.max(1)).expect("memory").as_ptr();
        // SAFETY: it was mapped a moment ago.
        unsafe { at.write_bytes(PATTERN, len) };
        Ground { at, len, ranges }
    }

    /// # Safety
    /// No device writes to it any more.
    pub unsafe fn give_back(self) {
        let at = NonNull::new(self.at).expect("mapped");
        // SAFETY: mapped by `new`, and nobody's any more, as the caller says.
        unsafe { mem::unmap(at, self.len.max(1)) }.expect("mapped");
    }

    pub fn pieces(&self) -> Vec<Piece> {
        let piece = |range: &Range<usize>| {
            Piece::new(self.at.wrapping_add(range.start), range.len(), Warmth::Cold)
        };
        self.ranges.iter().map(piece).collect()
    }

    /// Checks the statements about the pieces, and that all else is as it was.
    pub fn check(&self, pieces: &[Piece], who: &str) {
        let mut from = 0;
        for (range, piece) in self.ranges.iter().zip(pieces) {
            let (at, len) = piece.remaining();
            let done = at as usize - self.at as usize - range.start;
            assert_eq!(done + len, range.len(), "{who}: {piece:?}");
            assert!(piece.state() != PieceState::Zeroed || len == 0, "{who}: {piece:?}");
            // SAFETY: nobody writes memory that is said to be zero.
            let zero = unsafe { super::is_zero(self.at.add(range.start), done) };
            assert!(zero, "{who}: {piece:?} has {done} bytes that are not zero");
            let is_touched = piece.state() != PieceState::Waiting || done > 0;
            self.check_untouched(from, if is_touched { range.start } else { range.end }, who);
            from = range.end;
        }
        self.check_untouched(from, self.len, who);
    }

    fn check_untouched(&self, from: usize, to: usize, who: &str) {
        // SAFETY: within the memory, and no engine may write there.
        let bytes = unsafe { core::slice::from_raw_parts(self.at.add(from), to - from) };
        assert!(bytes == vec![PATTERN; bytes.len()], "{who} wrote to what is nobody's");
    }
}

/// Ranges as the suite uses them: of all alignments, empty ones too, side by side and apart.
#[allow(clippy::single_range_in_vec_init, reason = "one range is a shape, too")]
fn shapes() -> Vec<Ground> {
    let frame = FRAME_SIZE;
    let frames = |count: usize| -> Vec<_> {
        (0..count).map(|index| 2 * index * frame..(2 * index + 1) * frame).collect()
    };
    vec![
        Ground::new(frame, Vec::new()),
        Ground::new(frame, vec![7..7, 100..101, 200..263]),
        Ground::new(3 * frame, vec![1..3 * frame - 1]),
        Ground::new(16 * frame, vec![0..frame, frame..2 * frame, 2 * frame + 8..9 * frame]),
        Ground::new(600 * frame, frames(300)),
        Ground::new(BLOCK_SIZE + frame, vec![frame..BLOCK_SIZE + frame]),
    ]
}

/// The whole suite. `engine` makes a new one for each part.
pub fn uphold<E: Engine>(hope: Hope, engine: impl Fn() -> E) {
    one_batch_after_the_other(&engine(), hope);
    several_batches_in_flight(&engine(), hope);
    settled_pieces_are_left_alone(&engine());
    several_threads_at_once(&engine(), hope);
    cancelled_pieces_come_to_an_end(&engine(), hope);
}

/// Waits until nothing is in flight, as far as that ever comes.
fn see_through(engine: &impl Engine, pieces: &mut [Piece], hope: Hope) {
    if hope == Hope::AllZeroed {
        // SAFETY: the pieces were submitted to this engine alone.
        let _is_lost = unsafe { engine.wait(pieces, PATIENCE, Waiting::Spinning) };
        return;
    }
    for _ in 0..5 {
        // SAFETY: as above.
        let _is_lost = unsafe { engine.poll(pieces) };
    }
}

fn check_hope(pieces: &[Piece], hope: Hope, who: &str) {
    let left = pieces.iter().find(|piece| piece.state() != PieceState::Zeroed);
    assert!(hope == Hope::Anything || left.is_none(), "{who} left {left:?}");
}

fn one_batch_after_the_other(engine: &impl Engine, hope: Hope) {
    let who = engine.name();
    for ground in shapes() {
        let mut pieces = ground.pieces();
        // Pieces for which there was no room are offered again, as a chain or a scrubber would.
        for _ in 0..100 {
            // SAFETY: the memory is this test's and stays mapped.
            let submitted = unsafe { engine.submit(&mut pieces) };
            ground.check(&pieces, who);
            see_through(engine, &mut pieces, hope);
            ground.check(&pieces, who);
            let is_over = pieces.iter().all(|piece| piece.state() != PieceState::Waiting);
            if is_over || submitted == Err(Lost) {
                break;
            }
        }
        check_hope(&pieces, hope, who);
    }
}

fn several_batches_in_flight(engine: &impl Engine, hope: Hope) {
    let (who, mut grounds) = (engine.name(), shapes());
    grounds.truncate(4);
    let mut batches: Vec<_> = grounds.iter().map(Ground::pieces).collect();
    for pieces in &mut batches {
        // SAFETY: as above.
        let _is_lost = unsafe { engine.submit(pieces) };
    }
    // In the other order than they were submitted.
    for (ground, pieces) in grounds.iter().zip(&mut batches).rev() {
        see_through(engine, pieces, hope);
        ground.check(pieces, who);
        check_hope(pieces, hope, who);
    }
}

fn settled_pieces_are_left_alone(engine: &impl Engine) {
    let ground = Ground::new(4 * FRAME_SIZE, vec![0..FRAME_SIZE, 2 * FRAME_SIZE..3 * FRAME_SIZE]);
    let mut pieces = ground.pieces();
    pieces[0].take(0);
    // SAFETY: it is not zero, but nobody here believes it.
    unsafe { pieces[0].settle_zeroed() };
    // SAFETY: as above.
    let _is_lost = unsafe { engine.submit(&mut pieces) };
    see_through(engine, &mut pieces, Hope::Anything);
    assert_eq!(pieces[0].state(), PieceState::Zeroed);
    // SAFETY: nobody writes there.
    let untouched = (0..FRAME_SIZE).all(|at| unsafe { ground.at.add(at).read() } == PATTERN);
    assert!(untouched, "{} cleared what was not submitted", engine.name());
}

fn several_threads_at_once(engine: &impl Engine, hope: Hope) {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let ground = Ground::new(64 << 10, vec![8..4096, 8192..20_000, 30_000..65_536]);
                    let mut pieces = ground.pieces();
                    for _ in 0..100 {
                        // SAFETY: as above.
                        let submitted = unsafe { engine.submit(&mut pieces) };
                        see_through(engine, &mut pieces, hope);
                        let waits = |piece: &Piece| piece.state() == PieceState::Waiting;
                        if submitted == Err(Lost) || !pieces.iter().any(waits) {
                            break;
                        }
                    }
                    ground.check(&pieces, engine.name());
                    check_hope(&pieces, hope, engine.name());
                }
            });
        }
    });
}

fn cancelled_pieces_come_to_an_end(engine: &impl Engine, hope: Hope) {
    for ground in shapes() {
        let mut pieces = ground.pieces();
        // SAFETY: as above.
        unsafe {
            let _is_lost = engine.submit(&mut pieces);
            engine.cancel(&mut pieces);
        }
        see_through(engine, &mut pieces, hope);
        ground.check(&pieces, engine.name());
        let in_flight = pieces.iter().any(|piece| piece.state() == PieceState::InFlight);
        assert!(hope == Hope::Anything || !in_flight, "{}: {pieces:?}", engine.name());
    }
}
