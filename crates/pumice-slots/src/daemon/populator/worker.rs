//! A thread that populates, one job at a time: background ones when nobody else wants the machine, urgent
//! ones at once. Both do the same; the [`Lane`] sets the amount and the pauses.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::file::Populating;
use crate::settings::PaceSetting;
use crate::{SharedFile, Sharing, SlotFile};
use parking_lot::Mutex;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::{mempolicy, thread as clock};
use pumice_heap::scrub::Pacer;

use super::super::backing::Backing;
use super::super::pool::ReadySlot;
use super::super::server::{ring, Event};
use super::job::{Job, Work, WorkerId};
use super::reading::Reading;
use super::{priority, Shared};

/// Long pauses are cut into naps of this, after each of which settings are looked at.
const LONGEST_NAP: Duration = Duration::from_millis(50);
/// Bytes at a time where a client waits.
const URGENT_BYTES: usize = 64 << 20;
/// After so long without a job a thread's readings of the machine are stale.
const LONG_IDLE: Duration = Duration::from_secs(1);

/// How a thread works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Under `SCHED_IDLE`, burst by burst, with the pauses that other programs need.
    Background,
    /// At the daemon's own priority, without pauses: a client waits, and would populate itself otherwise.
    Urgent,
}

/// The end of a job in a thread's hands.
#[derive(Debug)]
pub enum Outcome {
    /// All of it is there.
    Populated(ReadySlot),
    /// It failed, for this reason.
    Failed(String),
    /// It was wanted no more.
    Cancelled,
    /// It is for another thread to go on with.
    LetGo,
}

/// The event loop's part of a thread.
#[derive(Debug)]
pub struct Worker {
    pub lane: Lane,
    desk: Arc<Desk>,
    thread: thread::Thread,
}

/// Where a thread is given its jobs.
#[derive(Debug, Default)]
struct Desk {
    /// Locked by the event loop while `is_full` is not set and by the thread while it is: never waited for.
    job: Mutex<Option<Arc<Job>>>,
    is_full: AtomicBool,
    /// The thread's number once it runs, 0 before. Relaxed: it is only for a request to the kernel.
    number: AtomicI32,
    /// Whether it has a higher priority than it gave itself.
    is_raised: AtomicBool,
}

impl Worker {
    /// Starts it. Its events go to `events`, and `waker` is rung.
    pub fn start(
        id: WorkerId,
        lane: Lane,
        shared: &Arc<Shared>,
        events: &Sender<Event>,
        waker: &Arc<OwnedFd>,
    ) -> io::Result<Worker> {
        let desk = Arc::<Desk>::default();
        let (events, waker) = (events.clone(), Arc::clone(waker));
        let (own_desk, shared) = (Arc::clone(&desk), Arc::clone(shared));
        let started = thread::Builder::new().name("pumice-populate".into()).spawn(move || {
            // Relaxed: see the field.
            own_desk.number.store(priority::own_number(), Ordering::Relaxed);
            if lane == Lane::Background {
                priority::lower();
            }
            let mut hands = Hands {
                id,
                lane,
                desk: own_desk,
                shared,
                pacer: (lane == Lane::Background).then(Pacer::new),
                is_held_back: false,
                rest_until: Instant::now(),
                counted_ns: 0,
            };
            while let Some(job) = hands.next() {
                let outcome = hands.populate(&job);
                hands.count_cpu_time();
                if events.send(Event::Worked(id, job, outcome)).is_err() {
                    return;
                }
                ring(&waker);
            }
        });
        Ok(Worker { lane, desk, thread: started?.thread().clone() })
    }

    /// Gives it a job. The last one must be done.
    pub fn give(&self, job: Arc<Job>) {
        *self.desk.job.lock() = Some(job);
        // Release: with the job.
        self.desk.is_full.store(true, Ordering::Release);
        self.wake();
    }

    /// Has it look at its job and at the settings.
    pub fn wake(&self) {
        self.thread.unpark();
    }

    /// Has it finish its burst, in which it may be held off for seconds, if the kernel lets us.
    pub fn hurry(&self) {
        // Relaxed: see the field.
        let number = self.desk.number.load(Ordering::Relaxed);
        // In this order: a thread that finds itself raised has been.
        if number != 0 && priority::raise(number) {
            // Relaxed: the thread may see it a burst later.
            self.desk.is_raised.store(true, Ordering::Relaxed);
        }
    }
}

/// The thread's own state.
struct Hands {
    id: WorkerId,
    lane: Lane,
    desk: Arc<Desk>,
    shared: Arc<Shared>,
    /// An urgent thread has none.
    pacer: Option<Pacer>,
    /// Whether the pacer was asked before the burst.
    is_held_back: bool,
    /// No burst of any job before this; for urgent threads it is always past.
    rest_until: Instant,
    counted_ns: u64,
}

impl Hands {
    fn next(&mut self) -> Option<Arc<Job>> {
        while !self.shared.is_ending() {
            // Acquire: with the job.
            if !self.desk.is_full.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            let job = self.desk.job.lock().take();
            // Release: the lock is given back before.
            self.desk.is_full.store(false, Ordering::Release);
            if job.is_some() {
                return job;
            }
        }
        None
    }

    /// Burst by burst, until it is done or for others.
    fn populate(&mut self, job: &Job) -> Outcome {
        if let Some(pacer) = &mut self.pacer {
            if self.rest_until.elapsed() > LONG_IDLE {
                pacer.wake();
            }
        }
        match job.key.node {
            Some(node) => mempolicy::prefer(node as usize),
            None => mempolicy::prefer_none(),
        }
        loop {
            // Here it is not in hand: a thread that is held off in between holds up nobody.
            if job.is_cancelled() || !self.is_ours(job) || self.is_passed(job) {
                return self.hand_back(job);
            }
            if !self.may_begin(job) {
                continue;
            }
            self.stay_low();
            if !job.grasp(self.id) {
                return Outcome::LetGo;
            }
            let started = Instant::now();
            let burst_bytes = self.burst_bytes();
            let outcome = match job.with_work(|work| burst(job, work, burst_bytes, &self.shared)) {
                Ok(bytes) => {
                    self.shared.count_bytes(bytes);
                    self.rest_until = Instant::now() + self.pause_after(bytes, started.elapsed());
                    match job.with_work(|work| finish(job, work)) {
                        Ok(slot) => slot.map(Outcome::Populated),
                        Err(message) => Some(Outcome::Failed(message)),
                    }
                }
                Err(message) => Some(Outcome::Failed(message)),
            };
            self.count_cpu_time();
            if let Some(outcome) = outcome {
                job.with_work(Option::take);
                job.shelve();
                return outcome;
            }
            job.leave(self.id);
        }
    }

    /// Whether a burst may begin now; if not, it has rested.
    fn may_begin(&mut self, job: &Job) -> bool {
        if self.rest_until > Instant::now() {
            self.pause(job);
            return false;
        }
        let Some(rest) = self.rest_before_burst() else { return true };
        self.rest_until = Instant::now() + rest;
        false
    }

    fn is_ours(&self, job: &Job) -> bool {
        job.is_urgent() == (self.lane == Lane::Urgent)
    }

    /// Whether another that is waited for goes first. Snapshots' threads are besides those of other slots, which have
    /// nothing of it if a snapshot's thread lets go.
    fn is_passed(&self, job: &Job) -> bool {
        let is_passable = self.lane == Lane::Urgent && job.source.is_none() && job.may_be_passed();
        is_passable && self.shared.least_waiting() < job.left_bytes()
    }

    fn hand_back(&self, job: &Job) -> Outcome {
        if !job.grasp(self.id) {
            return Outcome::LetGo;
        }
        let outcome = if job.is_cancelled() {
            job.with_work(Option::take);
            Outcome::Cancelled
        } else {
            Outcome::LetGo
        };
        job.shelve();
        outcome
    }

    fn burst_bytes(&self) -> usize {
        let Some(pacer) = &self.pacer else { return URGENT_BYTES };
        let batch_pages = self.shared.setting(PaceSetting::BatchPages) as usize;
        match self.is_held_back {
            true => pacer.most_bytes().min(batch_pages * FRAME_SIZE),
            false => batch_pages * FRAME_SIZE,
        }
    }

    /// How long to rest before asking again, if so.
    fn rest_before_burst(&mut self) -> Option<Duration> {
        let pacer = self.pacer.as_mut()?;
        // The same for all of a burst: a state seen before it counts after it.
        let was_held_back = std::mem::replace(&mut self.is_held_back, self.shared.is_held_back());
        if !self.is_held_back {
            return None;
        }
        if !was_held_back {
            pacer.wake();
        }
        let rest = pacer.ask(self.shared.limits())?;
        self.shared.count_yield();
        Some(rest)
    }

    fn pause_after(&mut self, bytes: usize, took: Duration) -> Duration {
        let Some(pacer) = &mut self.pacer else { return Duration::ZERO };
        let pause = Duration::from_millis(self.shared.setting(PaceSetting::DelayMs));
        match self.is_held_back {
            true => pause.max(pacer.pause_after(bytes, took, self.shared.limits())),
            false => pause,
        }
    }

    /// Waits until it is time, or the event loop or a setting says otherwise.
    fn pause(&mut self, job: &Job) {
        let settings = self.shared.settings();
        loop {
            let left = self.rest_until.saturating_duration_since(Instant::now());
            if left.is_zero() || job.is_cancelled() || !self.is_ours(job) {
                return;
            }
            if self.shared.settings() != settings {
                self.rest_until = Instant::now();
                return;
            }
            thread::park_timeout(left.min(LONGEST_NAP));
        }
    }

    /// Lowers a thread again that was raised for a burst.
    fn stay_low(&self) {
        // Relaxed: see `Worker::hurry`.
        if self.lane == Lane::Background && self.desk.is_raised.swap(false, Ordering::Relaxed) {
            priority::lower();
        }
    }

    fn count_cpu_time(&mut self) {
        let used_ns = clock::cpu_time_ns();
        self.shared.count_cpu_time(used_ns - self.counted_ns);
        self.counted_ns = used_ns;
    }
}

/// A burst of a job that is in hand: the bytes populated, 0 when all is done.
fn burst(
    job: &Job,
    work: &mut Option<Work>,
    bytes: usize,
    shared: &Shared,
) -> Result<usize, String> {
    let explain = |error: io::Error| format!("the kernel refuses the memory: {error}");
    let work = match work {
        Some(work) => work,
        None => {
            let key = job.key;
            let of_source = job.source.as_ref().map(|source| source.version.slot_bytes(key.pages));
            if of_source != key.snapshot.map(|_| Some(key.bytes)) {
                return Err("the file's size has changed".to_owned());
            }
            let reading = job.source.as_ref().map(Reading::begin).transpose()?;
            let make = || {
                let file = match (key.sharing, key.snapshot) {
                    (Sharing::Shared, Some(name)) => {
                        SlotFile::create_shared(name, key.bytes, key.pages)
                    }
                    _ => SlotFile::create_for(key.snapshot, key.bytes, key.pages),
                };
                let file = file.map_err(explain)?;
                let populating = Populating::begin(&file, key.bytes, key.pages).map_err(explain)?;
                Ok((file, populating))
            };
            let ((file, populating), promise) =
                shared.room.take(key.bytes, key.pages, job.pool, make)?;
            let closer = Arc::clone(&shared.closer);
            work.insert(Work { file, populating, promise, reading, closer })
        }
    };
    let bytes = match &mut work.reading {
        Some(reading) => {
            let bytes = reading.step(&mut work.populating, bytes);
            shared.count_cpu_time(std::mem::take(&mut reading.beside_ns));
            bytes?
        }
        None => work.populating.step(bytes).map_err(explain)?,
    };
    work.promise.keep(bytes as u64);
    // Relaxed: see the field.
    job.done_bytes.store(work.populating.done_bytes(), Ordering::Relaxed);
    Ok(bytes)
}

/// The slot, if all of it is populated, and its content is of one moment.
fn finish(job: &Job, work: &mut Option<Work>) -> Result<Option<ReadySlot>, String> {
    let is_done = |work: &mut Work| {
        let is_behind = work.reading.as_ref().is_some_and(Reading::is_behind);
        work.populating.done_bytes() == work.file.bytes() && !is_behind
    };
    let Some(Work { file, populating, reading, .. }) = work.take_if(is_done) else {
        return Ok(None);
    };
    let version = reading.map(Reading::finish).transpose()?;
    let huge_bytes = populating.huge_bytes();
    // A mapping that can write would be in the seal's way.
    drop(populating);
    let file = match job.key.sharing {
        Sharing::Alone => Backing::Own(file),
        Sharing::Shared => {
            let sealed = SharedFile::seal(file);
            Backing::Shared(sealed.map_err(|error| format!("it can't be sealed: {error}"))?)
        }
    };
    Ok(Some(ReadySlot { file, huge_bytes, version }))
}
