//! Claims that an engine beside the processor is at work on, several batches of them at once.
//!
//! A claim in flight is nobody's but the engine's: scrubd neither hands it back nor touches it. A piece that the
//! engine settles comes back at once; one that it gives up is the processor's. A claim whose engine does not answer
//! any more stays here, absent from the free memory: it is never called zeroed, nor handed out while a device may
//! still write to it. Late answers are taken.
//!
//! Invariant: each claim that was launched is either in here or was handed to `finish`, once.

use core::time::Duration;

use super::Claim;
use pumice_frames::clear::{Engine, Lost, Piece, PieceState, Warmth};
use pumice_frames::sys::thread;

/// Batches in flight.
pub(crate) const BATCHES: usize = 4;
/// Claims in a batch at most.
pub(crate) const CLAIMS: usize = 4;
/// An engine that settles nothing for so long is not asked again. A block takes hardware 100 µs.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state in which a claim comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// All of it reads as zeros.
    Zeroed,
    /// The engine touches it no more; its first bytes, as many as this, are zero.
    Rest(usize),
}

struct Batch {
    /// The memory node of all of them.
    node: usize,
    claims: [Option<Claim>; CLAIMS],
    /// One for each claim, nothing where there is none: no engine may find memory that has come back.
    pieces: [Piece; CLAIMS],
}

impl Batch {
    fn empty() -> Batch {
        let pieces = core::array::from_fn(|_| Piece::nothing());
        Batch { node: 0, claims: [None; CLAIMS], pieces }
    }

    fn is_empty(&self) -> bool {
        self.claims.iter().all(Option::is_none)
    }
}

/// See the module's top.
pub(crate) struct Flight<E> {
    engine: E,
    batches: [Batch; BATCHES],
    is_lost: bool,
    /// When something was launched or came back last.
    heard_ns: u64,
}

impl<E: Engine> Flight<E> {
    /// Nothing is in flight yet.
    pub(crate) fn new(engine: E) -> Flight<E> {
        let batches = core::array::from_fn(|_| Batch::empty());
        Flight { engine, batches, is_lost: false, heard_ns: 0 }
    }

    /// Whether a batch can be launched.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_lost && self.batches.iter().any(Batch::is_empty)
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.iter().all(Batch::is_empty)
    }

    /// How many claims are in flight.
    pub(crate) fn claims(&self) -> usize {
        self.batches.iter().map(|batch| batch.claims.iter().flatten().count()).sum()
    }

    /// Whether the engine was lost, or has not answered for so long that it is taken for that.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Launches a batch of the claims that `claim` gives, [`CLAIMS`] at most and all of one memory node; the bytes of
    /// it. Only to be called where there [is room](Flight::has_room).
    pub(crate) fn launch(&mut self, mut claim: impl FnMut() -> Option<Claim>) -> usize {
        let Some(batch) = self.batches.iter_mut().find(|batch| batch.is_empty()) else { return 0 };
        let mut bytes = 0;
        for (place, piece) in batch.claims.iter_mut().zip(&mut batch.pieces) {
            let Some(claim) = claim() else { break };
            debug_assert!(bytes == 0 || batch.node == claim.node);
            batch.node = claim.node;
            *piece = Piece::new(claim.at, claim.len, Warmth::Cold);
            *place = Some(claim);
            bytes += claim.len;
        }
        // SAFETY: claims are scrubd's alone, and stay here until their pieces are settled.
        self.is_lost |= unsafe { self.engine.submit(&mut batch.pieces) } == Err(Lost);
        self.heard_ns = thread::now_ns();
        bytes
    }

    /// Hands claims that have come to an end to `finish`. Before a batch is looked at, which may touch its memory,
    /// `prefer` is told its node.
    pub(crate) fn collect(&mut self, prefer: impl Fn(usize), mut finish: impl FnMut(Claim, Back)) {
        let mut heard = self.is_empty();
        for batch in self.batches.iter_mut().filter(|batch| !batch.is_empty()) {
            prefer(batch.node);
            // SAFETY: the pieces in flight were submitted to this engine.
            self.is_lost |= unsafe { self.engine.poll(&mut batch.pieces) } == Err(Lost);
            for (place, piece) in batch.claims.iter_mut().zip(&mut batch.pieces) {
                if piece.state() == PieceState::InFlight {
                    continue;
                }
                let Some(claim) = place.take() else { continue };
                let piece = core::mem::replace(piece, Piece::nothing());
                heard = true;
                finish(
                    claim,
                    match piece.state() {
                        PieceState::Zeroed => Back::Zeroed,
                        _ => Back::Rest(piece.range().1 - piece.remaining().1),
                    },
                );
            }
        }
        let now_ns = thread::now_ns();
        if heard {
            self.heard_ns = now_ns;
        }
        self.is_lost |= u128::from(now_ns.saturating_sub(self.heard_ns)) > PATIENCE.as_nanos();
    }

    /// Nobody wants the pieces in flight zeroed any more, only back.
    pub(crate) fn cancel(&mut self) {
        for batch in self.batches.iter_mut().filter(|batch| !batch.is_empty()) {
            // SAFETY: as in `collect`.
            unsafe { self.engine.cancel(&mut batch.pieces) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pumice_frames::clear::fake::script;
    use pumice_frames::clear::is_zero;

    const LEN: usize = 4096;

    proptest! {
        #[test]
        fn each_claim_comes_back_once_and_zeroed_only_if_it_is(
            script in script(), claims in 1usize..60,
        ) {
            let device = script.device();
            let mut flight = Flight::new(&device);
            // Never given back: a device that hangs may write to it.
            let memory = Box::leak(vec![0xa5u8; claims * LEN].into_boxed_slice());
            let at = memory.as_mut_ptr();
            let mut back = vec![0u8; claims];
            let mut next = 0..claims;
            for _ in 0..200 {
                while flight.has_room() && !next.is_empty() {
                    let mut claim = || next.next().map(|index| Claim {
                        at: at.wrapping_add(index * LEN), len: LEN, node: 0, token: index as u64,
                    });
                    flight.launch(&mut claim);
                }
                flight.collect(|_| (), |claim, how| {
                    back[claim.token as usize] += 1;
                    let zero = match how { Back::Zeroed => LEN, Back::Rest(zero) => zero };
                    // SAFETY: a claim that came back is ours again.
                    assert!(unsafe { is_zero(claim.at, zero) }, "{how:?}");
                });
            }
            let held = flight.claims();
            prop_assert!(back.iter().all(|&count| count <= 1));
            prop_assert_eq!(back.iter().filter(|&&count| count == 1).count() + held, next.start);
            prop_assert_eq!(held == 0, flight.is_empty());
        }
    }
}
