//! The threads that populate: at the lowest priority, burst by burst, when nobody else wants the machine.
//!
//! `SCHED_IDLE` yields only within its own session and group, so each burst asks [`Pacer`] first, as
//! scrubd does. Where a client waits for the very slot, the pauses are left out: it would otherwise
//! populate itself, at full speed and its own priority.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pumice::addr::FRAME_SIZE;
use pumice::scrub::{PaceLimits, Pacer};
use pumice::slots::file::Populating;
use pumice::slots::settings::PaceSetting;
use pumice::slots::SlotFile;
use pumice::sys::{mempolicy, thread as clock};

use super::pool::{Key, ReadySlot};
use super::room;
use super::server::Event;

/// Long pauses are cut into naps of this, after each of which settings and urgency are looked at.
const LONGEST_NAP: Duration = Duration::from_millis(50);
/// Bytes at a time where a client waits.
const URGENT_BYTES: usize = 64 << 20;

/// What the threads and the event loop both see. Every number stands for itself, so all are relaxed.
#[derive(Debug, Default)]
pub struct Shared {
    /// Settings, raw, in the order of [`PaceSetting::ALL`].
    pub pace: [AtomicU64; PaceSetting::ALL.len()],
    /// Bytes populated, ever.
    pub bytes: AtomicU64,
    /// Processor time spent.
    pub cpu_ns: AtomicU64,
    /// Rests because others wanted the machine.
    pub yields: AtomicU64,
    is_ending: AtomicBool,
    queue: Mutex<VecDeque<Arc<Job>>>,
    has_work: Condvar,
}

/// A slot to be populated.
#[derive(Debug)]
pub struct Job {
    /// Of which class.
    pub key: Key,
    /// Whether hugetlb pages may be asked for.
    pub may_grow: bool,
    /// How far it has come.
    pub done_bytes: AtomicU64,
    /// Whether a client waits for it.
    pub is_urgent: AtomicBool,
    /// Whether it is wanted no more.
    pub is_cancelled: AtomicBool,
}

/// The threads.
#[derive(Debug)]
pub struct Populator {
    /// What they and the event loop both see.
    pub shared: Arc<Shared>,
    jobs: Vec<Arc<Job>>,
    threads: usize,
}

impl Populator {
    /// Starts the threads. What they have to say goes to `events`, and `waker` is rung.
    pub fn start(
        threads: u32,
        pace: [u64; PaceSetting::ALL.len()],
        events: &Sender<Event>,
        waker: &Arc<OwnedFd>,
    ) -> io::Result<Populator> {
        let shared = Arc::new(Shared { pace: pace.map(AtomicU64::new), ..Shared::default() });
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            let (events, waker) = (events.clone(), Arc::clone(waker));
            thread::Builder::new().name("pumice-populate".into()).spawn(move || {
                lower_priority();
                let mut worker = Worker { pacer: Pacer::new(), shared, counted_ns: 0 };
                while let Some(job) = worker.next() {
                    let outcome = worker.populate(&job);
                    worker.count_cpu_time();
                    if events.send(Event::Populated(job, outcome)).is_err() {
                        return;
                    }
                    super::server::ring(&waker);
                }
            })?;
        }
        Ok(Populator { shared, jobs: Vec::new(), threads: threads as usize })
    }

    /// Whether a thread has nothing to do.
    pub fn has_room(&self) -> bool {
        self.jobs.len() < self.threads
    }

    /// Has a slot populated.
    pub fn begin(&mut self, key: Key, may_grow: bool, is_urgent: bool) {
        let job = Arc::new(Job {
            key,
            may_grow,
            done_bytes: AtomicU64::new(0),
            is_urgent: AtomicBool::new(is_urgent),
            is_cancelled: AtomicBool::new(false),
        });
        self.jobs.push(Arc::clone(&job));
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(job);
        self.shared.has_work.notify_one();
    }

    /// What is being populated.
    pub fn jobs(&self) -> &[Arc<Job>] {
        &self.jobs
    }

    /// A job is done.
    pub fn finished(&mut self, job: &Arc<Job>) {
        self.jobs.retain(|other| !Arc::ptr_eq(other, job));
    }

    /// Has all threads stop as soon as they can.
    pub fn end(&self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.jobs.iter().for_each(|job| job.is_cancelled.store(true, Ordering::Relaxed));
        self.shared.has_work.notify_all();
    }
}

/// A thread's own state.
struct Worker {
    pacer: Pacer,
    shared: Arc<Shared>,
    counted_ns: u64,
}

impl Worker {
    fn next(&mut self) -> Option<Arc<Job>> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.shared.is_ending.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = queue.pop_front() {
                return Some(job);
            }
            queue = self.shared.has_work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `Ok(None)` if it is wanted no more.
    fn populate(&mut self, job: &Job) -> Result<Option<ReadySlot>, String> {
        let key = job.key;
        room::check(key.bytes, key.pages, job.may_grow)?;
        match key.node {
            Some(node) => mempolicy::prefer(node as usize),
            None => mempolicy::prefer_none(),
        }
        let explain = |error: io::Error| format!("the kernel refuses the memory: {error}");
        let file = SlotFile::create(key.bytes, key.pages).map_err(explain)?;
        let mut populating = Populating::begin(&file, key.bytes, key.pages).map_err(explain)?;
        self.pacer.wake();
        loop {
            if !self.wait_for_turn(job) {
                return Ok(None);
            }
            let is_urgent = job.is_urgent.load(Ordering::Relaxed);
            let batch_pages = self.setting(PaceSetting::BatchPages) as usize;
            let batch = if is_urgent { URGENT_BYTES } else { batch_pages * FRAME_SIZE };
            let started = Instant::now();
            let bytes = populating.step(batch).map_err(explain)?;
            if bytes == 0 {
                break;
            }
            job.done_bytes.store(populating.done_bytes(), Ordering::Relaxed);
            self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.count_cpu_time();
            let mut pause = Duration::from_millis(self.setting(PaceSetting::DelayMs));
            if self.is_held_back() {
                let took = started.elapsed();
                pause = pause.max(self.pacer.pause_after(bytes, took, self.limits()));
            }
            self.pause(job, pause);
        }
        let huge_bytes = populating.huge_bytes();
        drop(populating);
        Ok(Some(ReadySlot { file, huge_bytes }))
    }

    /// Rests until it may work. `false` if the job is wanted no more.
    fn wait_for_turn(&mut self, job: &Job) -> bool {
        loop {
            if job.is_cancelled.load(Ordering::Relaxed) {
                return false;
            }
            if job.is_urgent.load(Ordering::Relaxed) || !self.is_held_back() {
                return true;
            }
            let Some(rest) = self.pacer.ask(self.limits()) else { return true };
            self.shared.yields.fetch_add(1, Ordering::Relaxed);
            self.pause(job, rest);
        }
    }

    fn pause(&self, job: &Job, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let hurry =
                job.is_urgent.load(Ordering::Relaxed) || job.is_cancelled.load(Ordering::Relaxed);
            if left.is_zero() || hurry {
                return;
            }
            thread::sleep(left.min(LONGEST_NAP));
        }
    }

    fn setting(&self, setting: PaceSetting) -> u64 {
        self.shared.pace[setting as usize].load(Ordering::Relaxed)
    }

    /// Whether anything but a delay may hold it up.
    fn is_held_back(&self) -> bool {
        let limits = [PaceSetting::Polite, PaceSetting::RatePagesPerS, PaceSetting::Load];
        limits.into_iter().any(|setting| self.setting(setting) != 0)
    }

    fn limits(&self) -> PaceLimits {
        PaceLimits {
            load_hundredths: self.setting(PaceSetting::Load),
            rate_pages_per_s: self.setting(PaceSetting::RatePagesPerS),
        }
    }

    fn count_cpu_time(&mut self) {
        let used_ns = clock::cpu_time_ns();
        self.shared.cpu_ns.fetch_add(used_ns - self.counted_ns, Ordering::Relaxed);
        self.counted_ns = used_ns;
    }
}

/// Without success the thread has the daemon's own priority, and the pacer all the same.
fn lower_priority() {
    let nothing = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters are valid for the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &nothing) };
}
