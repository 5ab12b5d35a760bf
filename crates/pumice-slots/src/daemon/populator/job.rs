//! A slot on its way to being populated, and the thread that has it.
//!
//! A thread under `SCHED_IDLE` may be held off for seconds. So it holds a job for the length of a burst only. Between
//! two bursts, running or not, it leaves the job where the event loop can take it away and give it to a thread that
//! runs. One word says which thread has it:
//!
//! ```text
//!            offer(w)              grasp(w)
//!    shelf -----------> left(w) <-----------> burst(w)
//!      ^  <-----------     |       leave(w)      |
//!      |      take         |                     |
//!      +-------------------+--------- shelve ----+
//! ```
//!
//! *shelf*: the event loop's. *left(w)*: meant for thread w, which has nothing of it in hand. *burst(w)*: in
//! w's hands. The event loop gives a thread another job only after the thread has said that it is done
//! with this one, so left(w) means the same w on the same errand: a thread that was away for long finds out by one
//! failed [`Job::grasp`].
//!
//! The memory itself is touched in burst(w) only, by w. The next thread sees all that one
//! did to it, since each change of the word that gives up the job releases and each that takes it acquires.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use crate::file::Populating;
use crate::SlotFile;
use parking_lot::Mutex;

use super::super::pool::Key;
use super::super::room::{Pool, Promise};
use super::super::source::Source;
use super::closer::Closer;
use super::reading::Reading;

/// A thread's number.
pub type WorkerId = u32;

const SHELF: u32 = 0;

const fn left(worker: WorkerId) -> u32 {
    worker * 2 + 1
}

const fn burst(worker: WorkerId) -> u32 {
    worker * 2 + 2
}

/// A file and how far it has come.
#[derive(Debug)]
pub struct Work {
    /// The slot's file.
    pub file: SlotFile,
    /// Its mapping.
    pub populating: Populating,
    /// The room for the part that is not populated yet.
    pub promise: Promise,
    /// The file that it gets its content from.
    pub reading: Option<Reading>,
    /// Has a thread end it where the event loop gives it up.
    pub closer: Arc<Closer>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Job {
    /// Of which class.
    pub key: Key,
    /// Whether hugetlb pages may be asked for.
    pub pool: Pool,
    /// The snapshot's file, if it is for one.
    pub source: Option<Source>,
    /// How far it has come: a number for people, relaxed.
    pub done_bytes: AtomicU64,
    /// Bytes populated meanwhile for others that came later, as far as both were waited for; relaxed, for
    /// only the event loop writes it, and a thread that sees it late lets go of the job once more.
    passed_bytes: AtomicU64,
    is_urgent: AtomicBool,
    /// Relaxed: a thread that sees it late populates one burst more.
    is_cancelled: AtomicBool,
    /// Relaxed: the event loop's alone.
    is_stuck: AtomicBool,
    holder: AtomicU32,
    /// Nothing before the first burst. The thread that has the job in hand locks it, so no thread waits for it.
    work: Mutex<Option<Work>>,
}

impl Job {
    /// On the shelf.
    pub fn new(key: Key, pool: Pool) -> Job {
        Job {
            key,
            pool,
            source: None,
            done_bytes: AtomicU64::new(0),
            passed_bytes: AtomicU64::new(0),
            is_urgent: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            holder: AtomicU32::new(SHELF),
            work: Mutex::new(None),
        }
    }

    /// The same with the content of a file.
    pub fn with_source(mut self, source: Option<Source>) -> Job {
        self.source = source;
        self
    }

    /// The path of the file that it reads, if it does.
    pub fn path(&self) -> Option<&Path> {
        self.source.as_ref().map(|source| &*source.path)
    }

    /// Whether a client waits for it.
    pub fn is_urgent(&self) -> bool {
        // Sequentially consistent, as `set_urgent`, `take` and `leave` are: the event loop sets this and then tries
        // to take the job, a thread leaves the job and then looks at this. One of the two sees the other.
        self.is_urgent.load(Ordering::SeqCst)
    }

    /// The event loop says so.
    pub fn set_urgent(&self, urgent: bool) {
        // See `is_urgent`.
        self.is_urgent.store(urgent, Ordering::SeqCst);
    }

    /// How far it has to go.
    pub fn left_bytes(&self) -> u64 {
        self.key.bytes.saturating_sub(self.done_bytes.load(Ordering::Relaxed))
    }

    /// Whether those that have less left may go before it: not when they have been as much as itself.
    pub fn may_be_passed(&self) -> bool {
        self.passed_bytes.load(Ordering::Relaxed) < self.key.bytes
    }

    /// So much goes before it.
    pub fn count_passed(&self, bytes: u64) {
        self.passed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether it is wanted no more.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// The event loop says so.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether its file system does not answer: it goes on where that does.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// The event loop says so.
    pub fn set_stuck(&self, stuck: bool) {
        self.is_stuck.store(stuck, Ordering::Relaxed);
    }

    /// The event loop means it for a thread, which is to be told.
    pub fn offer(&self, worker: WorkerId) {
        // Release: the thread that grasps it sees what the last one did, which the event loop has seen.
        self.holder.store(left(worker), Ordering::Release);
    }

    /// The event loop takes it from a thread that has nothing of it in hand.
    pub fn take(&self, worker: WorkerId) -> bool {
        // Acquire: pairs with the Release in `leave`, and hands the thread's writes on. Sequentially consistent for
        // `is_urgent`'s sake.
        let (from, order) = (left(worker), Ordering::SeqCst);
        self.holder.compare_exchange(from, SHELF, order, Ordering::SeqCst).is_ok()
    }

    /// A thread takes it in hand for a burst. `false` if it is not the thread's any more.
    pub fn grasp(&self, worker: WorkerId) -> bool {
        // Acquire: sees what others wrote to the memory before. It releases nothing: the thread has done nothing yet.
        let (from, to) = (left(worker), burst(worker));
        self.holder.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The thread has it in hand no more; the event loop may take it.
    pub fn leave(&self, worker: WorkerId) {
        // Release: the thread that takes it sees this one's writes. Sequentially consistent for `is_urgent`'s sake.
        self.holder.store(left(worker), Ordering::SeqCst);
    }

    /// The thread that has it in hand is done with it for good.
    pub fn shelve(&self) {
        // Release: as `leave`.
        self.holder.store(SHELF, Ordering::Release);
    }

    /// The memory, for the thread that has the job in hand.
    pub fn with_work<R>(&self, what: impl FnOnce(&mut Option<Work>) -> R) -> R {
        what(&mut self.work.lock())
    }
}

/// The event loop may be the last that has it, and waits for no file.
impl Drop for Job {
    fn drop(&mut self) {
        let Some(mut work) = self.work.get_mut().take() else { return };
        let closer = Arc::clone(&work.closer);
        if let (Some(source), Some(reading)) = (&self.source, work.reading.take()) {
            closer.close(Some(Arc::clone(&source.path)), reading);
        }
        closer.close(None, work);
    }
}

#[cfg(test)]
mod tests {
    use crate::PageKind;

    use super::*;

    const KEY: Key = Key::new(4096, PageKind::Small);

    #[test]
    fn a_job_is_in_one_hand() {
        let job = Job::new(KEY, Pool::Fixed);
        assert!(!job.grasp(0) && !job.take(0), "it is on the shelf");
        job.offer(0);
        assert!(!job.grasp(1), "it is meant for another");
        assert!(job.grasp(0) && !job.take(0), "what is in hand is not taken");
        job.leave(0);
        assert!(job.take(0) && !job.grasp(0), "a thread that was away too long has lost it");
        job.offer(1);
        assert!(!job.grasp(0) && job.grasp(1));
        job.shelve();
        assert!(!job.grasp(1) && !job.take(1));
    }

    /// The event loop makes it urgent in the moment in which the thread leaves it: never do both miss it.
    #[test]
    fn urgency_is_seen_by_one_of_two() {
        for _ in 0..2_000 {
            let job = Job::new(KEY, Pool::Fixed);
            job.offer(0);
            assert!(job.grasp(0));
            let (taken, seen) = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    job.leave(0);
                    job.is_urgent()
                });
                job.set_urgent(true);
                (job.take(0), thread.join().expect("no panic"))
            });
            assert!(taken || seen);
        }
    }
}
