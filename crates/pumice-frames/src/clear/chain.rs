//! Engines in line: the next one does the pieces that one can't do, and the processor does the rest.
//!
//! A piece goes to the first engine that is not lost. A piece that the engine has no room for or leaves faulted moves
//! on at once, from where it stopped: nobody queues for hardware while a processor stands by. So a piece visits each
//! engine at most once, and unless it is in flight when `submit` or `poll` returns, it is zeroed.

use super::engine::{Engine, Lost, Piece, PieceState};
use super::Clearer;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Engines in order of preference, with the processor behind them. An [`Engine`] itself, and one
/// that is never lost.
pub struct Chain<'e> {
    engines: &'e [&'e dyn Engine],
    cpu: Clearer,
    /// a bit for each engine that said it is lost
    lost: AtomicU32,
}

impl<'e> Chain<'e> {
    /// The most engines there may be before the processor.
    pub const MAX: usize = 32;

    /// Engines beyond [`Chain::MAX`] are not used.
    pub fn new(engines: &'e [&'e dyn Engine], cpu: Clearer) -> Chain<'e> {
        let engines = &engines[..engines.len().min(Chain::MAX)];
        Chain { engines, cpu, lost: AtomicU32::new(0) }
    }

    /// Whether the engine of this number has been lost.
    pub fn is_lost(&self, engine: usize) -> bool {
        // Relaxed: a hint that spares a call; an engine asked once too often says Lost again.
        self.lost.load(Ordering::Relaxed) >> engine & 1 != 0
    }

    fn note_lost(&self, engine: usize) {
        // Relaxed: see `is_lost`.
        self.lost.fetch_or(1 << engine, Ordering::Relaxed);
    }

    /// Offers every waiting piece to the engines from its stage on.
    ///
    /// # Safety
    /// As for [`Engine::submit`].
    unsafe fn advance(&self, pieces: &mut [Piece]) {
        for (stage, engine) in self.engines.iter().enumerate() {
            for run in runs_of_stage(pieces, stage) {
                // SAFETY: the caller vouches for the pieces.
                if !self.is_lost(stage) && unsafe { engine.submit(run) } == Err(Lost) {
                    self.note_lost(stage);
                }
                pass_on(run);
            }
        }
        for run in runs_of_stage(pieces, self.engines.len()) {
            // SAFETY: the caller vouches for the pieces; processor engines take all of them.
            let _never_lost = unsafe { self.cpu.submit(run) };
        }
    }
}

// SAFETY: a piece's state is only ever changed by the engine of its stage, or from Waiting and
// Faulted, when no engine has it, to Waiting for the next.
unsafe impl Engine for Chain<'_> {
    fn name(&self) -> &'static str {
        "chain"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: as the caller promises.
        unsafe { self.advance(pieces) };
        Ok(())
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        for (stage, engine) in self.engines.iter().enumerate() {
            for run in runs_of_stage(pieces, stage) {
                // Even a lost engine is asked: only it knows whether it has stopped writing.
                // SAFETY: each piece in flight in the run is with the engine of its stage.
                if unsafe { engine.poll(run) } == Err(Lost) {
                    self.note_lost(stage);
                }
                pass_on(run);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.advance(pieces) };
        Ok(())
    }
}

/// The slices of neighbouring pieces that are at `stage`.
fn runs_of_stage(pieces: &mut [Piece], stage: usize) -> impl Iterator<Item = &mut [Piece]> {
    pieces
        .chunk_by_mut(|left, right| left.stage == right.stage)
        .filter(move |run| usize::from(run[0].stage) == stage)
}

/// Sends pieces that are neither in flight nor zeroed to the next engine.
fn pass_on(run: &mut [Piece]) {
    for piece in run {
        if matches!(piece.state(), PieceState::Waiting | PieceState::Faulted) {
            piece.retry();
            piece.stage += 1;
        }
    }
}

impl core::fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Chain[")?;
        for (number, engine) in self.engines.iter().enumerate() {
            let lost = if self.is_lost(number) { " (lost)" } else { "" };
            write!(f, "{}{lost}, ", engine.name())?;
        }
        write!(f, "{:?}]", self.cpu)
    }
}
