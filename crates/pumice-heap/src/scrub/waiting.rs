//! Requests that wait for a claim, and helpers that let them have it.
//!
//! Nobody depends on a claim: to everyone else claimed memory is absent. But absent memory in the
//! middle of a large free area costs a request dearly: it then goes where all pages still have to
//! be faulted in, 20 ms for 256 MiB. A helper that runs needs some microseconds to give up. So
//! such a request says that it waits, for as long as that takes; the helpers claim nothing
//! meanwhile; and if one does not answer (others may have its processor) the request goes
//! elsewhere after all.
//!
//! The ledger alone says whose memory is whose. The words here only save time, and a helper that misses it costs a
//! wait in vain, so nothing is ordered by it.

use core::time::Duration;

use pumice_frames::sync::atomic::{AtomicU32, Ordering};
use pumice_frames::sync::spin_loop;
use pumice_frames::sys::thread;

/// scrubd clears this much between two looks: 10 µs.
pub(super) const PIECE: usize = 256 << 10;
/// How long a request waits where helpers zero: a few pieces.
pub const FOR_SCRUBBING: Duration = Duration::from_micros(50);
/// And where one populates ahead: a block, which is faulted in as a whole.
pub const FOR_POPULATING: Duration = Duration::from_millis(1);
/// A helper that finds somebody waiting stays away for this long.
pub(super) const STAY_AWAY: Duration = Duration::from_micros(200);

/// How many requests wait, and the claims that it is no use to wait for.
#[derive(Debug)]
pub(super) struct Waiting {
    requests: AtomicU32,
    away: AtomicU32,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting { requests: AtomicU32::new(0), away: AtomicU32::new(0) }
    }

    /// Whether a helper should return its claims, and claim nothing.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != 0
    }

    /// Claims that no helper can hand back when it is asked to: an engine beside the processor has
    /// them, perhaps for good.
    pub(super) fn away(&self) -> usize {
        self.away.load(Ordering::Relaxed) as usize
    }

    /// To be called by scrubd whenever that has changed.
    pub(super) fn set_away(&self, claims: usize) {
        self.away.store(claims as u32, Ordering::Relaxed);
    }

    /// Keeps the helpers from claiming, waits until `is_claimed` is false, but no longer than
    /// `patience`, then does `then`, before they may claim again.
    pub(super) fn for_claims<R>(
        &self,
        patience: Duration,
        is_claimed: impl Fn() -> bool,
        then: impl FnOnce() -> R,
    ) -> R {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let until_ns = thread::now_ns() + patience.as_nanos() as u64;
        while is_claimed() && thread::now_ns() < until_ns {
            spin_loop();
        }
        let result = then();
        self.requests.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// In a fork's child, where nobody waits, and which discards its parent's claims.
    pub(super) fn forget(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.set_away(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn helpers_are_kept_away_until_it_is_done() {
        let waiting = Waiting::new();
        assert!(!waiting.is_any());
        assert!(waiting.for_claims(FOR_SCRUBBING, || false, || waiting.is_any()));
        assert!(
            waiting.for_claims(FOR_SCRUBBING, || true, || waiting.is_any()),
            "nobody waits for ever"
        );
        assert!(!waiting.is_any());
    }

    #[test]
    fn a_helper_that_answers_ends_the_wait() {
        let (waiting, claimed) = (Waiting::new(), AtomicBool::new(true));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !waiting.is_any() {
                    std::hint::spin_loop();
                }
                claimed.store(false, Ordering::Relaxed);
            });
            while claimed.load(Ordering::Relaxed) {
                waiting.for_claims(FOR_SCRUBBING, || claimed.load(Ordering::Relaxed), || ());
            }
        });
    }
}
