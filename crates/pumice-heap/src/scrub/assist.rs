//! A clearing that a request waits for, shared with a helper: pieces of one range. The thread that is free to clear a
//! piece takes it.
//!
//! One job at a time, and one word that says which and how far it is:
//!
//! ```text
//!   63        32 31        0
//!  +------------+-----------+
//!  |    job     |   next    |      next: the first piece that nobody has taken,
//!  +------------+-----------+            or FILLING, or IDLE
//!
//!         post                              take, either of the two       end
//!  IDLE ------> FILLING ------> 0 -----------> 1 ... -----------> count ------> IDLE
//!   (job + 1)
//! ```
//! A piece belongs to the thread that moved `next` past it. The owner takes pieces until there are none, and then
//! waits for those that the helper took and has not finished. So the helper holds up the owner by one piece at most,
//! 25 µs, unless it is held off by others; the owner then shares no more for a while (see [`Worth`]).
//!
//! The job's number keeps a helper that slept between reading the range and taking a piece from
//! taking one of the next job.

use pumice_frames::sync::atomic::{fence, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Taken at a time.
pub(super) const PIECE: usize = 512 << 10;

const IDLE: u32 = u32::MAX;
const FILLING: u32 = u32::MAX - 1;

/// A value of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ticket {
    job: u32,
    next: u32,
}

impl Ticket {
    fn bits(self) -> u64 {
        u64::from(self.job) << 32 | u64::from(self.next)
    }

    fn of(bits: u64) -> Ticket {
        Ticket { job: (bits >> 32) as u32, next: bits as u32 }
    }
}

/// The range to be cleared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) at: usize,
    pub(super) len: usize,
    /// The memory node its pages belong to.
    pub(super) node: usize,
}

/// A piece that the caller of [`Assist::take`] clears, and nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) len: usize,
    /// The memory node its pages belong to.
    pub(super) node: usize,
    /// Bytes of the range that it is a part of.
    pub(super) whole: usize,
}

/// The job and its state. See the module's top.
#[derive(Debug)]
pub(super) struct Assist {
    ticket: AtomicU64,
    at: AtomicUsize,
    len: AtomicUsize,
    node: AtomicUsize,
    /// Pieces that the helper has finished.
    finished: AtomicU32,
    worth: Worth,
}

/// A job that its owner has posted.
#[derive(Debug)]
pub(super) struct Posted {
    job: u32,
    pieces: u32,
}

/// See [`Assist::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of the range is cleared.
    Done,
    /// The helper still has a piece.
    Waits,
    /// This is a fork's child: nobody knows which part of the range is cleared.
    Lost,
}

impl Assist {
    pub(super) fn new() -> Assist {
        Assist {
            ticket: AtomicU64::new(Ticket { job: 0, next: IDLE }.bits()),
            at: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            node: AtomicUsize::new(0),
            finished: AtomicU32::new(0),
            worth: Worth::new(),
        }
    }

    /// Posts a range to be cleared; `None` while another one is, or if it would be of no use.
    pub(super) fn post(&self, range: Range) -> Option<Posted> {
        let pieces = u32::try_from(range.len.div_ceil(PIECE)).ok().filter(|&n| n < FILLING)?;
        let old = Ticket::of(self.ticket.load(Ordering::Relaxed));
        if old.next != IDLE || !self.worth.is_due() {
            return None;
        }
        let job = old.job.wrapping_add(1);
        let filling = Ticket { job, next: FILLING }.bits();
        // Acquire: pairs with the Release in `end`, so that the code below comes after the last job.
        self.ticket
            .compare_exchange(old.bits(), filling, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // Release: a helper that reads any of the fields below finds, behind its own fence, that
        // the word no longer is what it was.
        fence(Ordering::Release);
        self.at.store(range.at, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.node.store(range.node, Ordering::Relaxed);
        self.finished.store(0, Ordering::Relaxed);
        // Release: a thread that takes a piece reads the fields of this job, and comes after all earlier uses of the
        // memory.
        self.ticket.store(Ticket { job, next: 0 }.bits(), Ordering::Release);
        Some(Posted { job, pieces })
    }

    /// Takes the next piece of the job there is: for the helper.
    pub(super) fn take(&self) -> Option<Piece> {
        self.take_if(|_| true)
    }

    /// Takes the next piece of a job: for its owner.
    pub(super) fn take_own(&self, posted: &Posted) -> Option<Piece> {
        self.take_if(|job| job == posted.job)
    }

    fn take_if(&self, wanted: impl Fn(u32) -> bool) -> Option<Piece> {
        loop {
            // Acquire: pairs with the Release in `post`.
            let ticket = Ticket::of(self.ticket.load(Ordering::Acquire));
            let from = ticket.next as usize * PIECE;
            let len = self.len.load(Ordering::Relaxed);
            let piece = Piece {
                at: self.at.load(Ordering::Relaxed).wrapping_add(from),
                len: len.saturating_sub(from).min(PIECE),
                node: self.node.load(Ordering::Relaxed),
                whole: len,
            };
            if ticket.next >= FILLING || !wanted(ticket.job) || from >= len {
                return None;
            }
            // Acquire: see `post`.
            fence(Ordering::Acquire);
            let taken = Ticket { job: ticket.job, next: ticket.next + 1 };
            // Relaxed: the fields were read above. Acquire and Release happened there; a word that
            // only helper and owner count up hands nothing over.
            let swap = self.ticket.compare_exchange(
                ticket.bits(),
                taken.bits(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if swap.is_ok() {
                return Some(piece);
            }
        }
    }

    /// The helper has cleared a piece.
    pub(super) fn finish(&self) {
        // Release: the owner finds zeros.
        self.finished.fetch_add(1, Ordering::Release);
    }

    /// How a job stands of which the owner has cleared `own` pieces itself, and found no more to take.
    pub(super) fn progress(&self, posted: &Posted, own: u32) -> Progress {
        let ticket = Ticket::of(self.ticket.load(Ordering::Relaxed));
        if ticket.job != posted.job {
            return Progress::Lost;
        }
        // Acquire: pairs with `finish`.
        match self.finished.load(Ordering::Acquire) == posted.pieces - own {
            true => Progress::Done,
            false => Progress::Waits,
        }
    }

    /// A word to sleep on: it changes with each piece that the helper finishes.
    pub(super) fn finished(&self) -> &AtomicU32 {
        &self.finished
    }

    /// Ends a job that is done, for which the owner had to sleep `naps` times.
    pub(super) fn end(&self, posted: &Posted, own: u32, naps: u32) {
        self.worth.learn(posted.pieces, posted.pieces - own, naps);
        // Release: pairs with the Acquire of the next `post`.
        self.ticket.store(Ticket { job: posted.job, next: IDLE }.bits(), Ordering::Release);
    }

    /// In a fork's child, where the helper does not exist: there is no job.
    pub(super) fn forget(&self) {
        let old = Ticket::of(self.ticket.load(Ordering::Relaxed));
        let none = Ticket { job: old.job.wrapping_add(1), next: IDLE };
        self.ticket.store(none.bits(), Ordering::Relaxed);
    }
}

/// Whether sharing pays. On a machine whose processors are busy the helper comes late or not at all,
/// or is held off with a piece in its hands; then ever more requests are cleared by their owners alone
/// before it is tried again. Relaxed: hints.
#[derive(Debug)]
struct Worth {
    /// Requests to pass over.
    skip: AtomicU32,
    /// The binary logarithm of how many were passed over last, plus one.
    doublings: AtomicU32,
}

/// The helper's share in sixteenths that is worth having woken it.
const WORTH_SIXTEENTHS: u32 = 2;
const MOST_DOUBLINGS: u32 = 8;

impl Worth {
    fn new() -> Worth {
        Worth { skip: AtomicU32::new(0), doublings: AtomicU32::new(0) }
    }

    fn is_due(&self) -> bool {
        let less = |skip: u32| skip.checked_sub(1);
        self.skip.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }

    fn learn(&self, pieces: u32, helped: u32, naps: u32) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if helped * 16 >= pieces * WORTH_SIXTEENTHS && naps == 0 {
            self.doublings.store(0, Ordering::Relaxed);
            return;
        }
        self.skip.store((1 << doublings) - 1, Ordering::Relaxed);
        self.doublings.store((doublings + 1).min(MOST_DOUBLINGS), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const RANGE: Range = Range { at: 1 << 21, len: 3 * PIECE + 4096, node: 1 };

    #[test]
    fn every_piece_is_taken_once() {
        let assist = Assist::new();
        assert_eq!(assist.take(), None);
        let posted = assist.post(RANGE).expect("nobody else has one");
        assert!(assist.post(RANGE).is_none(), "one at a time");
        let mut pieces = vec![assist.take().expect("the first")];
        pieces.extend(core::iter::from_fn(|| assist.take_own(&posted)));
        assert_eq!(assist.take(), None);
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<usize>(), RANGE.len);
        for (index, piece) in pieces.iter().enumerate() {
            assert_eq!((piece.at, piece.node), (RANGE.at + index * PIECE, RANGE.node));
        }
        assert_eq!(assist.progress(&posted, 3), Progress::Waits);
        assist.finish();
        assert_eq!(assist.progress(&posted, 3), Progress::Done);
        assist.end(&posted, 3, 0);
        assert_eq!(assist.take(), None);
    }

    #[test]
    fn a_helper_that_does_not_come_is_asked_less_often() {
        let assist = Assist::new();
        let posted = |_: &u32| {
            let Some(posted) = assist.post(RANGE) else { return false };
            while assist.take_own(&posted).is_some() {}
            assist.end(&posted, 4, 0);
            true
        };
        assert_eq!((0..1000).filter(posted).count(), 11);
        let helped = |_: &u32| {
            let Some(posted) = assist.post(RANGE) else { return false };
            assist.take().expect("the first");
            assist.finish();
            while assist.take_own(&posted).is_some() {}
            assist.end(&posted, 3, 0);
            true
        };
        assert!((0..1000).filter(helped).count() > 700, "and often again once it does");
    }

    #[test]
    fn a_child_starts_afresh() {
        let assist = Assist::new();
        let posted = assist.post(RANGE).expect("nobody else has one");
        assist.take().expect("the helper's");
        assist.forget();
        assert_eq!(assist.take_own(&posted), None);
        assert_eq!(assist.progress(&posted, 0), Progress::Lost);
        assert!(assist.post(RANGE).is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const PIECES: usize = 2;

    struct Scene {
        assist: Assist,
        /// The pieces of both jobs' memory: loom reports two threads that touch one at a time.
        memory: [[UnsafeCell<u32>; PIECES]; 2],
    }

    impl Scene {
        fn clear(&self, piece: Piece) {
            let (job, index) = (piece.at / (PIECES * PIECE), piece.at / PIECE % PIECES);
            self.memory[job][index].with_mut(|content| unsafe { *content += 1 });
        }
    }

    #[test]
    fn each_piece_is_cleared_once_and_seen_by_the_owner() {
        loom::model(|| {
            let scene = Arc::new(Scene { assist: Assist::new(), memory: Default::default() });
            let helper = {
                let scene = scene.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(piece) = scene.assist.take() {
                            scene.clear(piece);
                            scene.assist.finish();
                        }
                    }
                })
            };
            for job in 0..2 {
                let range = Range { at: job * PIECES * PIECE, len: PIECES * PIECE, node: job };
                // Passed over: the helper did not come the first time.
                let Some(posted) = scene.assist.post(range) else { continue };
                let mut own = 0;
                while let Some(piece) = scene.assist.take_own(&posted) {
                    scene.clear(piece);
                    own += 1;
                }
                while scene.assist.progress(&posted, own) == Progress::Waits {
                    pumice_frames::sync::spin_loop();
                }
                assert_eq!(scene.assist.progress(&posted, own), Progress::Done);
                scene.assist.end(&posted, own, 0);
                for piece in &scene.memory[job] {
                    piece.with(|content| assert_eq!(unsafe { *content }, 1));
                }
            }
            helper.join().expect("no panic");
        });
    }
}
