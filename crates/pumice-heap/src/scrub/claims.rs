//! Free memory that scrubd has claimed: claimed, cleared, handed back.

use core::cell::Cell;

use super::helper::Job;
use super::waiting::PIECE;
use super::{Claim, Outcome, Scrubber, Source};
use crate::stats::{CounterSlot, Event};
use pumice_frames::addr::Order;
use pumice_frames::clear::Warmth;

/// For the one thread that claims.
pub(super) struct Claims {
    job: Job,
    slot: &'static CounterSlot,
    /// The memory node that this thread's page faults are served from.
    preferred: Cell<Option<usize>>,
}

impl Claims {
    pub(super) fn new(job: Job) -> Claims {
        Claims { job, slot: job.scrubber.slot(), preferred: Cell::new(None) }
    }

    pub(super) fn scrubber(&self) -> &'static Scrubber {
        self.job.scrubber
    }

    pub(super) fn source(&self) -> &'static dyn Source {
        self.job.source
    }

    /// See [`Source::claim`].
    pub(super) fn claim(&self, stop: Order) -> Option<Claim> {
        let claim = self.source().claim(stop)?;
        self.preferred.set(Some(claim.node));
        Some(claim)
    }

    /// To be called before a claim's memory is touched, if another was taken since.
    pub(super) fn prefer(&self, node: usize) {
        if self.preferred.replace(Some(node)) != Some(node) {
            self.source().prefer(node);
        }
    }

    /// Clears the rest of a claim that is not zeroed yet, and hands the claim back.
    pub(super) fn finish(&self, claim: Claim, zeroed: usize) -> Outcome {
        let outcome = self.clear(&claim, zeroed);
        if outcome == Outcome::Zeroed {
            self.slot.add(Event::ScrubbedBytes, claim.len as u64);
        }
        self.source().finish(claim, outcome);
        outcome
    }

    /// Clears a claim from `zeroed` on, unless somebody comes to wait for it.
    fn clear(&self, claim: &Claim, zeroed: usize) -> Outcome {
        let clearer = self.scrubber().clearer();
        if zeroed < claim.len {
            self.prefer(claim.node);
        }
        for from in (zeroed..claim.len).step_by(PIECE) {
            if self.scrubber().is_waited_for() {
                return Outcome::Dirty;
            }
            let at = claim.at.wrapping_add(from);
            // SAFETY: the claim is ours alone until it is finished, and no engine has it.
            unsafe { clearer.clear(at, PIECE.min(claim.len - from), Warmth::Cold) };
        }
        Outcome::Zeroed
    }
}
