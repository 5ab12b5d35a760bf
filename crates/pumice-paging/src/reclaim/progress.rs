//! How far a reclaimer gets, and when there is no more to try.
//!
//! Batches that free nothing make a series.
//!
//! # Transitions
//! | event | effect on the series |
//! |---|---|
//! | a batch frees frames | it is over, and all is open again |
//! | a cache gives frames | it is over; it still counts that all tables were looked at |
//! | most pages of a batch must not be written yet | too many such batches end it |
//! | a batch is fruitless | it ends where nothing was left to choose, or there were too many such batches |
//! | it ends, and no page was overlooked | there is no more to try |

/// Turns round all tables without a page to unmap after which there is no more to try.
const MOST_IDLE_TURNS: usize = 2;
/// Batches in a row after which waiters are told that there will be no frames, where nothing went since pages must not
/// be written yet. With a pause after each, it is a second.
const MOST_PUT_OFF: usize = 50;

/// See the module's top.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How many had asked for frames when the series began.
    asked: Option<u64>,
    /// Turns round all page tables since a page went in which there was none to unmap.
    idle_turns: usize,
    /// Batches of the series by which nothing became free, and those of which most pages must not be written yet.
    fruitless: usize,
    put_off: usize,
    /// There was nothing more to choose.
    is_exhausted: bool,
    /// It has looked everywhere since a page went.
    has_swept: bool,
    /// Pages of the batch that must not be written yet.
    refused: usize,
    /// Writes that failed and that the zone has not been told of.
    failures: usize,
    is_at_end: bool,
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Freed,
    /// Most of its pages must not be written yet.
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

    pub fn note_chosen(&mut self) {
        self.refused = 0;
    }

    pub fn note_refused(&mut self) {
        self.refused += 1;
    }

    pub fn note_failure(&mut self) {
        self.failures += 1;
    }

    /// Writes that failed since this was last asked.
    pub fn take_failures(&mut self) -> usize {
        std::mem::take(&mut self.failures)
    }

    /// A batch of `most` pages at most is over. Where it waits for the condition of its writes, that counts if nothing
    /// is in flight.
    pub fn end_batch(&mut self, freed: usize, most: usize, is_idle: bool) -> Outcome {
        let refused = std::mem::take(&mut self.refused);
        if freed > 0 {
            *self = Progress { is_at_end: self.is_at_end, ..Progress::default() };
            Outcome::Freed
        } else if refused * 2 > most {
            self.put_off += usize::from(is_idle);
            Outcome::PutOff
        } else {
            self.fruitless += 1;
            Outcome::Fruitless
        }
    }

    /// Whether too many batches were put off.
    pub fn is_put_off_too_long(&self) -> bool {
        self.put_off > MOST_PUT_OFF
    }

    /// Whether nothing is left of `pages` pages, by batches of `most`.
    pub fn has_tried_all(&self, pages: usize, most: usize) -> bool {
        self.is_exhausted || self.fruitless * most > 4 * pages
    }

    /// The series is over. How many had asked for frames when it began.
    pub fn end_series(&mut self) -> Option<u64> {
        (self.fruitless, self.is_exhausted, self.put_off) = (0, false, 0);
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
