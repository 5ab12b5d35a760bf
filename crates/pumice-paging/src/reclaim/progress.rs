//! How far a reclaimer gets, and when there is no more to try.
//!
//! Batches that free nothing make a series. A batch is as large as the pages that were chosen for it: of a small zone
//! that is one page, whatever `swap_cluster_max` is.
//!
//! # Transitions
//! | event | effect on the series |
//! |---|---|
//! | a batch frees frames | it is over, and all is open again |
//! | a cache gives frames | it is over; it still counts that all tables were looked at |
//! | most pages of a batch must not be written yet | too many such batches end it |
//! | most of them are stopped, or that and the above | none: whoever stops them wakes reclaim |
//! | a batch is fruitless | it ends where nothing was left to choose, or too many pages were tried |
//! | it ends, and no page was overlooked | there is no more to try |

use std::mem::take;
use std::time::{Duration, Instant};

/// Turns round all tables without a page to unmap after which there is no more to try.
const MOST_IDLE_TURNS: usize = 2;
/// Pauses in a row after which waiters are told that there will be no frames, where nothing went since pages must not
/// be written yet. It is a second by default. A reclaimer that does not pause counts its batches.
const MOST_PUT_OFF: usize = 50;

/// See the module's top.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How many had asked for frames when the series began.
    asked: Option<u64>,
    /// Turns round all page tables since a page went in which there was none to unmap.
    idle_turns: usize,
    /// Pages of the series by which nothing became free.
    tried: usize,
    /// Pauses of the series, or batches, with pages that must not be written yet; when the last was counted.
    put_off: usize,
    put_off_at: Option<Instant>,
    /// There was nothing more to choose.
    is_exhausted: bool,
    /// It has looked everywhere since a page went.
    has_swept: bool,
    /// Pages of the batch, and those of them that must not be written yet.
    chosen: usize,
    refused: usize,
    /// Pages of the batch of which no write is begun at the moment.
    stopped: usize,
    /// Writes that failed and that the zone has not been told of.
    failures: usize,
    is_at_end: bool,
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Freed,
    /// Most of its pages must not be written yet, or not at the moment.
    PutOff,
    Fruitless,
}

impl Progress {
    /// Whether there is no more to try.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// A batch begins when so many had asked for frames.
    #[inline]
    pub fn begin(&mut self, asked: u64) {
        self.asked.get_or_insert(asked);
    }

    /// A turn round all tables finds no page to unmap.
    pub fn note_idle_turn(&mut self) {
        self.idle_turns += 1;
        self.is_exhausted |= self.idle_turns >= MOST_IDLE_TURNS;
    }

    /// Whether pages that were used go as well.
    pub fn is_last_try(&self) -> bool {
        self.idle_turns > 0
    }

    /// There is nothing more to choose, or nowhere to write it.
    pub fn exhaust(&mut self) {
        self.is_exhausted = true;
    }

    /// So many pages are the batch.
    pub fn note_chosen(&mut self, pages: usize) {
        (self.chosen, self.refused, self.stopped) = (pages, 0, 0);
    }

    pub fn note_refused(&mut self) {
        self.refused += 1;
    }

    pub fn note_stopped(&mut self) {
        self.stopped += 1;
    }

    pub fn note_failure(&mut self) {
        self.failures += 1;
    }

    /// Writes that failed since this was last asked.
    pub fn take_failures(&mut self) -> usize {
        take(&mut self.failures)
    }

    /// A batch is over, or writes of earlier ones are. Where it waits for the condition of its writes, that counts if
    /// nothing is in flight: once in a `pause`, however often a reclaimer that pauses is woken.
    pub fn end_batch(&mut self, freed: usize, is_idle: bool, pause: Option<Duration>) -> Outcome {
        let (chosen, refused) = (take(&mut self.chosen), take(&mut self.refused));
        let stopped = take(&mut self.stopped);
        if freed > 0 {
            *self = Progress { is_at_end: self.is_at_end, ..Progress::default() };
            Outcome::Freed
        } else if (refused + stopped) * 2 > chosen {
            if refused > stopped && is_idle && self.is_next_pause(pause) {
                self.put_off += 1;
            }
            Outcome::PutOff
        } else {
            // An empty batch counts as well, or a series of them would not end.
            self.tried += chosen.max(usize::from(is_idle));
            Outcome::Fruitless
        }
    }

    /// Whether a pause is over since this was last so. In models there is no time.
    fn is_next_pause(&mut self, pause: Option<Duration>) -> bool {
        let Some(pause) = pause.filter(|_| !cfg!(shuttle)) else { return true };
        let is_over = self.put_off_at.is_none_or(|at| at.elapsed() >= pause);
        if is_over {
            self.put_off_at = Some(Instant::now());
        }
        is_over
    }

    /// Whether pages were put off too long.
    pub fn is_put_off_too_long(&self) -> bool {
        self.put_off > MOST_PUT_OFF
    }

    /// Whether nothing is left of `pages` pages.
    pub fn has_tried_all(&self, pages: usize) -> bool {
        self.is_exhausted || self.tried > 4 * pages
    }

    /// The series is over. How many had asked for frames when it began.
    pub fn end_series(&mut self) -> Option<u64> {
        (self.tried, self.is_exhausted, self.put_off) = (0, false, 0);
        self.asked.take()
    }

    /// Whether all tables may be looked at: once since a page went.
    pub fn may_sweep(&mut self) -> bool {
        !std::mem::replace(&mut self.has_swept, true)
    }

    /// There is no more to try. The next request tries some more: things may have changed.
    pub fn end(&mut self) {
        (self.is_at_end, self.has_swept) = (true, false);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn batches_of_one_page_are_put_off_and_try_all_pages() {
        let mut progress = Progress::default();
        progress.note_chosen(1);
        progress.note_refused();
        assert_eq!(progress.end_batch(0, true, None), Outcome::PutOff);
        let pages = 100;
        for _ in 0..4 * pages {
            progress.note_chosen(1);
            assert_eq!(progress.end_batch(0, true, None), Outcome::Fruitless);
            // Writes that end are no batch.
            assert_eq!(progress.end_batch(0, false, None), Outcome::Fruitless);
            assert!(!progress.has_tried_all(pages));
        }
        progress.note_chosen(1);
        progress.end_batch(0, true, None);
        assert!(progress.has_tried_all(pages));
    }

    #[test]
    fn a_reclaimer_that_pauses_counts_pauses() {
        let put_off = |pause| {
            let mut progress = Progress::default();
            for _ in 0..2 * MOST_PUT_OFF {
                progress.note_chosen(2);
                (0..2).for_each(|_| progress.note_refused());
                assert_eq!(progress.end_batch(0, true, pause), Outcome::PutOff);
            }
            progress.is_put_off_too_long()
        };
        assert!(put_off(None) && put_off(Some(Duration::ZERO)));
        assert!(!put_off(Some(Duration::from_secs(3600))), "it was woken again and again");
    }
}
