//! Requests for frames that reclaim for themselves: see [`super::direct`]. The zone's lock guards them.
//!
//! # Transitions of a request
//! | from | to | when |
//! |---|---|---|
//! | none | Open | it begins |
//! | Open | Served | frames became free since it began |
//! | Open | Refused | a series of batches that began no earlier ended without frames |
//!
//! Each has a number, so that one refusal is for all that had begun when the series did, and for no later one.

/// See the module's top.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Requests so far, and up to which of them there will be no frames.
    begun: u64,
    refused: u64,
    /// Frames that have become free so far.
    freed: u64,
    /// Threads that wait for frames.
    waiting: usize,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    number: u64,
    /// Frames that had become free before it.
    freed_before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Open,
    Served,
    Refused,
}

impl Requests {
    pub fn begin(&mut self) -> Request {
        self.begun += 1;
        Request { number: self.begun, freed_before: self.freed }
    }

    pub fn answer(&self, request: Request) -> Answer {
        match request {
            Request { freed_before, .. } if freed_before != self.freed => Answer::Served,
            Request { number, .. } if number <= self.refused => Answer::Refused,
            _ => Answer::Open,
        }
    }

    /// The number of the last request; 0 before there is one.
    pub fn last(&self) -> u64 {
        self.begun
    }

    /// The number of the last request that was refused.
    pub fn last_refused(&self) -> u64 {
        self.refused
    }

    /// Refuses all up to a number. Whether that is each of them.
    pub fn refuse_up_to(&mut self, number: u64) -> bool {
        self.refused = self.refused.max(number);
        number == self.begun
    }

    pub fn note_freed(&mut self, frames: usize) {
        self.freed += frames as u64;
    }

    /// Threads that wait for frames.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn begin_wait(&mut self) {
        self.waiting += 1;
    }

    pub fn end_wait(&mut self) {
        self.waiting -= 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_by_what_comes_after_it() {
        let mut requests = Requests::default();
        requests.note_freed(1);
        let early = requests.begin();
        let series = requests.last();
        let late = requests.begin();
        assert_eq!([early, late].map(|it| requests.answer(it)), [Answer::Open; 2]);
        assert!(!requests.refuse_up_to(series));
        assert_eq!([early, late].map(|it| requests.answer(it)), [Answer::Refused, Answer::Open]);
        assert!(!requests.refuse_up_to(0) && requests.last_refused() == series);
        requests.note_freed(3);
        assert_eq!([early, late].map(|it| requests.answer(it)), [Answer::Served; 2]);
        let last = requests.begin();
        assert!(requests.refuse_up_to(requests.last()));
        assert_eq!(requests.answer(last), Answer::Refused);
    }
}
