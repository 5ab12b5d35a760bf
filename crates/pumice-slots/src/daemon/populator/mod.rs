//! The threads that populate, in two lanes.
//!
//! | module | contents |
//! |---|---|
//! | [`job`] | a slot on its way, and the thread that has it |
//! | [`worker`] | a thread and its work |
//! | [`reading`] | a snapshot's file on its way into a slot |
//! | [`closer`] | the end of slots that are given up half-way |
//! | [`priority`] | `SCHED_IDLE` and back |
//!
//! *Background* threads have the lowest priority, `SCHED_IDLE`. That yields only within their own
//! session and group, so each burst asks a [`Pacer`](pumice_heap::scrub::Pacer) first, as scrubd does.
//! *Urgent* threads have the daemon's own priority and no pauses: their clients wait, and would otherwise populate
//! at full speed and at their own priority. There may be as many threads as processors, started when needed, and half
//! as many more for each snapshot's file. The job with the least left comes first: after a burst a thread lets go of
//! its job if another one that waits has less, so nobody's large slots hold up another's small one. Nor do small ones
//! hold up a large one for ever: no more may pass it than its own size.
//!
//! A read that the file system does not answer keeps its thread. Urgent slots of other files, and those of none, have
//! other threads. In the background it holds up all, until a look at the file has no answer either, or its slot is not
//! wanted any more: then another thread is started. The slot goes on when there is an answer.
//!
//! A job that becomes urgent goes over to the other lane, partly populated. That waits for the thread that
//! has it only in the middle of a burst. An idle thread may be held off there for a second, so it is raised to normal
//! priority for the rest of the burst if this process may do that. (A thread may always go under `SCHED_IDLE`, but
//! needs the right to come back.)

mod closer;
mod job;
mod priority;
mod reading;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread;

use crate::settings::PaceSetting;
use pumice_heap::scrub::PaceLimits;

use closer::Closer;
pub use job::{Job, WorkerId};
pub use worker::Outcome;
use worker::{Lane, Worker};

use super::pool::Key;
use super::room::Room;
use super::server::Event;

/// Urgent threads, where there are as many processors.
const MOST_URGENT: usize = 16;

/// State that the threads and the event loop share. Every number stands for itself, so all are relaxed.
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
    /// The memory that slots may take.
    pub room: Arc<Room>,
    /// Ends slots that are given up.
    closer: Arc<Closer>,
    /// The rest of the urgent job on the shelf that has least left and no snapshot's file; `u64::MAX` without any.
    least_waiting: AtomicU64,
    is_ending: AtomicBool,
}

impl Shared {
    fn setting(&self, setting: PaceSetting) -> u64 {
        self.pace[setting as usize].load(Ordering::Relaxed)
    }

    fn settings(&self) -> [u64; PaceSetting::ALL.len()] {
        PaceSetting::ALL.map(|setting| self.setting(setting))
    }

    /// Whether anything but a delay may hold populating up.
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

    fn least_waiting(&self) -> u64 {
        self.least_waiting.load(Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn count_bytes(&self, more: usize) {
        self.bytes.fetch_add(more as u64, Ordering::Relaxed);
    }

    fn count_cpu_time(&self, more_ns: u64) {
        self.cpu_ns.fetch_add(more_ns, Ordering::Relaxed);
    }

    fn count_yield(&self) {
        self.yields.fetch_add(1, Ordering::Relaxed);
    }
}

/// See the module's text. All of it is the event loop's.
#[derive(Debug)]
pub struct Populator {
    /// State that the threads and the event loop share.
    pub shared: Arc<Shared>,
    events: Sender<Event>,
    waker: Arc<OwnedFd>,
    /// A thread's number is its place here.
    workers: Vec<(Worker, Occupation)>,
    jobs: Vec<Entry>,
    threads: usize,
    most_urgent: usize,
}

/// Whether a thread has said that it is done with its last job.
#[derive(Debug)]
enum Occupation {
    Free,
    Busy(Arc<Job>),
}

/// A job, and the thread it was given to; none while it is on the shelf.
#[derive(Debug)]
struct Entry {
    job: Arc<Job>,
    worker: Option<WorkerId>,
}

impl Populator {
    /// Starts the background threads. Their events go to `events`, and `waker` is rung.
    pub fn start(
        threads: u32,
        pace: [u64; PaceSetting::ALL.len()],
        events: &Sender<Event>,
        waker: &Arc<OwnedFd>,
    ) -> io::Result<Populator> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut populator = Populator {
            shared: Arc::new(Shared { pace: pace.map(AtomicU64::new), ..Shared::default() }),
            events: events.clone(),
            waker: Arc::clone(waker),
            workers: Vec::new(),
            jobs: Vec::new(),
            threads: threads as usize,
            most_urgent: processors.clamp(threads as usize, MOST_URGENT.max(threads as usize)),
        };
        for _ in 0..threads {
            populator.add_worker(Lane::Background)?;
        }
        // At least one is there when a client waits, also if no other can be started then.
        populator.add_worker(Lane::Urgent)?;
        Ok(populator)
    }

    /// Whether a background thread has nothing to do, nor anything to come.
    pub fn has_room(&self) -> bool {
        let lane = Lane::Background;
        let on_shelf = self.jobs.iter().filter(|entry| {
            entry.is_shelved_in(lane) && self.file_may_have_thread(lane, &entry.job)
        });
        on_shelf.count() + self.working_in_background() < self.threads
    }

    /// Another slot is to be populated. [`Populator::place`] gives it to a thread.
    pub fn begin(&mut self, job: Job) {
        self.jobs.push(Entry { job: Arc::new(job), worker: None });
    }

    /// So many of a class's jobs are waited for: those that have come furthest.
    pub fn set_urgent(&mut self, key: Key, count: usize) {
        let mut theirs: Vec<_> =
            self.jobs.iter_mut().filter(|entry| entry.job.key == key).collect();
        theirs.sort_by_key(|entry| {
            let done_bytes = entry.job.done_bytes.load(Ordering::Relaxed);
            std::cmp::Reverse((entry.job.is_urgent(), done_bytes))
        });
        for (index, entry) in theirs.into_iter().enumerate() {
            let is_urgent = index < count;
            if entry.job.is_urgent() == is_urgent {
                continue;
            }
            entry.job.set_urgent(is_urgent);
            let Some(worker) = entry.worker else { continue };
            let Some((thread, _)) = self.workers.get(worker as usize) else { continue };
            // From here on it is another lane's.
            if entry.job.take(worker) {
                entry.worker = None;
                thread.wake();
            } else if thread.lane == Lane::Background {
                thread.hurry();
            }
        }
    }

    /// Gives jobs on the shelf to free threads.
    pub fn place(&mut self) {
        for lane in [Lane::Urgent, Lane::Background] {
            while let Some(index) = self.next_shelved(lane) {
                let free = self.free(lane).next();
                let Some(id) = free.or_else(|| self.add_worker(lane).ok()) else { break };
                self.count_passed(index);
                let job = Arc::clone(&self.jobs[index].job);
                job.offer(id);
                self.jobs[index].worker = Some(id);
                let (thread, occupation) = &mut self.workers[id as usize];
                *occupation = Occupation::Busy(Arc::clone(&job));
                thread.give(job);
            }
        }
        let waiting = self
            .jobs
            .iter()
            .filter(|entry| entry.is_shelved_in(Lane::Urgent) && entry.job.source.is_none());
        let least = waiting.map(|entry| entry.job.left_bytes()).min().unwrap_or(u64::MAX);
        self.shared.least_waiting.store(least, Ordering::Relaxed);
    }

    /// Which of a lane's jobs comes next, of those on the shelf: the first that may not be passed again, or
    /// else the one that has least left.
    fn next_shelved(&self, lane: Lane) -> Option<usize> {
        let shelved = || {
            let numbered = (0..).zip(&self.jobs);
            numbered.filter(move |(_, entry)| {
                entry.is_shelved_in(lane) && self.may_have_thread(lane, &entry.job)
            })
        };
        let first_due = shelved().find(|(_, entry)| !entry.job.may_be_passed());
        let next = match lane {
            Lane::Background => shelved().next(),
            Lane::Urgent => {
                first_due.or_else(|| shelved().min_by_key(|(_, entry)| entry.job.left_bytes()))
            }
        };
        next.map(|(index, _)| index)
    }

    /// An urgent job goes first: those that were there before it have been passed, if they wait for the same threads.
    fn count_passed(&self, index: usize) {
        let passing = &self.jobs[index];
        for entry in &self.jobs[..index] {
            let is_beside = entry.job.path() == passing.job.path();
            if passing.lane() == Lane::Urgent && entry.is_shelved_in(Lane::Urgent) && is_beside {
                entry.job.count_passed(passing.job.left_bytes());
            }
        }
    }

    /// The jobs that are being populated, or are next.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.iter().map(|entry| &*entry.job)
    }

    /// A thread is done with a job, or with its part in it.
    pub fn worked(&mut self, worker: WorkerId, job: &Arc<Job>, outcome: &Outcome) {
        if let Some((_, occupation)) = self.workers.get_mut(worker as usize) {
            *occupation = Occupation::Free;
        }
        if !matches!(outcome, Outcome::LetGo) {
            return self.jobs.retain(|entry| !Arc::ptr_eq(&entry.job, job));
        }
        // It may have been taken away and be with another by now.
        let theirs =
            |entry: &&mut Entry| Arc::ptr_eq(&entry.job, job) && entry.worker == Some(worker);
        if let Some(entry) = self.jobs.iter_mut().find(theirs) {
            entry.worker = None;
        }
    }

    /// These jobs' file systems do not answer: no thread goes there, and those that are there count no more.
    pub fn set_stuck(&mut self, is_stuck: impl Fn(&Job) -> bool) {
        for entry in &self.jobs {
            entry.job.set_stuck(is_stuck(&entry.job));
        }
    }

    /// Other jobs are wanted no more, and not waited for: a thread may have one in hand that the file system does not
    /// answer. Returns their classes.
    pub fn keep_only(&mut self, is_wanted: impl Fn(&Job) -> bool) -> Vec<Key> {
        let mut given_up = Vec::new();
        self.jobs.retain(|entry| {
            let is_kept = is_wanted(&entry.job);
            if !is_kept {
                entry.job.cancel();
                given_up.push(entry.job.key);
                if let Some((thread, _)) = entry.worker.and_then(|id| self.workers.get(id as usize))
                {
                    thread.wake();
                }
            }
            is_kept
        });
        given_up
    }

    /// Has all threads stop as soon as they can.
    pub fn end(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.keep_only(|_| false);
        self.workers.iter().for_each(|(worker, _)| worker.wake());
    }

    fn free(&self, lane: Lane) -> impl Iterator<Item = WorkerId> + '_ {
        let numbered = (0..).zip(&self.workers);
        let free = numbered.filter(move |(_, (worker, occupation))| {
            worker.lane == lane && matches!(occupation, Occupation::Free)
        });
        free.map(|(id, _)| id)
    }

    /// Whether a lane may have another thread at work, for this job.
    fn may_have_thread(&self, lane: Lane, job: &Job) -> bool {
        let has_room = match lane {
            Lane::Background => self.working_in_background() < self.threads,
            Lane::Urgent => job.source.is_some() || self.busy_with(lane, None) < self.most_urgent,
        };
        has_room && self.file_may_have_thread(lane, job)
    }

    /// Whether a job's file, if it has one, answers, and has not as many of a lane's threads yet as it may.
    fn file_may_have_thread(&self, lane: Lane, job: &Job) -> bool {
        if job.is_stuck() {
            return false;
        }
        let most = match lane {
            Lane::Background => self.threads,
            Lane::Urgent => self.most_urgent.div_ceil(2),
        };
        job.path().is_none_or(|path| self.busy_with(lane, Some(path)) < most)
    }

    /// A lane's threads that have jobs of a file, or of none, wanted or not.
    fn busy_with(&self, lane: Lane, path: Option<&Path>) -> usize {
        self.busy(lane).filter(|job| job.path() == path).count()
    }

    fn working_in_background(&self) -> usize {
        let is_expected = |job: &&Job| !job.is_cancelled() && !job.is_stuck();
        self.busy(Lane::Background).filter(is_expected).count()
    }

    fn busy(&self, lane: Lane) -> impl Iterator<Item = &Job> {
        self.workers.iter().filter_map(move |(worker, occupation)| match occupation {
            Occupation::Busy(job) if worker.lane == lane => Some(&**job),
            _ => None,
        })
    }

    fn add_worker(&mut self, lane: Lane) -> io::Result<WorkerId> {
        let id = self.workers.len() as WorkerId;
        let worker = Worker::start(id, lane, &self.shared, &self.events, &self.waker)?;
        self.workers.push((worker, Occupation::Free));
        Ok(id)
    }
}

impl Entry {
    fn lane(&self) -> Lane {
        match self.job.is_urgent() {
            true => Lane::Urgent,
            false => Lane::Background,
        }
    }

    fn is_shelved_in(&self, lane: Lane) -> bool {
        self.worker.is_none() && self.lane() == lane
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Receiver};
    use std::time::{Duration, Instant};

    use crate::daemon::room::Pool;
    use crate::daemon::source::tests::{settled, trusted_folder};
    use crate::daemon::source::{Source, Version};
    use crate::PageKind;
    use rustix::event::{eventfd, EventfdFlags};

    use super::*;

    const SMALL: Key = Key::new(64 << 10, PageKind::Small);
    const LARGE: Key = Key::new(8 << 20, PageKind::Small);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// One background thread, which after its first burst rests for hours.
    fn slow() -> (Populator, Receiver<Event>) {
        let mut pace = PaceSetting::ALL.map(PaceSetting::default_raw);
        pace[PaceSetting::BatchPages as usize] = 16;
        pace[PaceSetting::RatePagesPerS as usize] = 1;
        pace[PaceSetting::Polite as usize] = 0;
        let (send, events) = channel();
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
        (Populator::start(1, pace, &send, &waker).expect("threads"), events)
    }

    /// Goes on until a slot is ready; its class.
    fn next_ready(populator: &mut Populator, events: &Receiver<Event>) -> Key {
        loop {
            populator.place();
            match events.recv_timeout(PATIENCE).expect("a thread says something") {
                Event::Worked(worker, job, outcome) => {
                    populator.worked(worker, &job, &outcome);
                    if let Outcome::Populated(slot) = outcome {
                        assert_eq!(slot.file.own().expect("a slot").bytes(), job.key.bytes);
                        return job.key;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn until_begun(populator: &Populator) {
        while populator.jobs().all(|job| job.done_bytes.load(Ordering::Relaxed) == 0) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_waited_for_passes_what_is_not() {
        let (mut populator, events) = slow();
        populator.begin(Job::new(LARGE, Pool::Fixed));
        populator.place();
        assert!(!populator.has_room());
        until_begun(&populator);
        populator.begin(Job::new(SMALL, Pool::Fixed));
        populator.set_urgent(SMALL, 1);
        assert_eq!(next_ready(&mut populator, &events), SMALL);
        assert_eq!(populator.jobs().len(), 1);
    }

    #[test]
    fn what_was_begun_goes_over_to_the_other_lane_and_back() {
        let (mut populator, events) = slow();
        populator.begin(Job::new(LARGE, Pool::Fixed));
        populator.place();
        until_begun(&populator);
        for is_urgent in [1, 0, 1, 0, 1] {
            populator.set_urgent(LARGE, is_urgent);
            populator.place();
        }
        assert_eq!(next_ready(&mut populator, &events), LARGE);
        // The thread it was taken from is there again.
        while !populator.has_room() {
            let event = events.recv_timeout(PATIENCE).expect("it says so");
            let Event::Worked(worker, job, outcome) = event else { panic!("{event:?}") };
            populator.worked(worker, &job, &outcome);
        }
        assert_eq!(populator.jobs().len(), 0);
    }

    #[test]
    fn what_is_not_wanted_is_given_up() {
        let (mut populator, events) = slow();
        populator.begin(Job::new(LARGE, Pool::Fixed));
        populator.place();
        until_begun(&populator);
        populator.keep_only(|job| job.key == SMALL);
        let event = events.recv_timeout(PATIENCE).expect("it says so");
        assert!(matches!(event, Event::Worked(_, _, Outcome::Cancelled)), "{event:?}");
    }

    /// The end of a slot in the making takes a lock, which is held here: another thread waits for it.
    #[test]
    fn the_event_loop_ends_no_slot_itself() {
        let (mut populator, events) = slow();
        let room = Arc::clone(&populator.shared.room);
        populator.begin(Job::new(LARGE, Pool::Fixed));
        populator.place();
        until_begun(&populator);
        // Taken from the thread that rests, and given to no other.
        populator.set_urgent(LARGE, 1);
        while !matches!(populator.workers[0].1, Occupation::Free) {
            let event = events.recv_timeout(PATIENCE).expect("it says so");
            let Event::Worked(worker, job, outcome) = event else { panic!("{event:?}") };
            assert!(matches!(outcome, Outcome::LetGo), "{outcome:?}");
            populator.worked(worker, &job, &outcome);
        }
        assert!(room.promised() > 0);
        let (done, is_done) = channel();
        let held = room.hold();
        let event_loop = thread::spawn(move || {
            let last = Arc::clone(&populator.jobs[0].job);
            populator.keep_only(|_| false);
            drop(last);
            done.send(()).expect("heard");
        });
        is_done.recv_timeout(PATIENCE).expect("it waits for nothing");
        drop(held);
        event_loop.join().expect("no panic");
        while room.promised() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ten slots, whose urgency changes all the time: each is populated once.
    #[test]
    fn none_is_lost_between_the_lanes() {
        let (mut populator, events) = slow();
        for _ in 0..10 {
            populator.begin(Job::new(LARGE, Pool::Fixed));
        }
        let (mut ready, mut turn) = (0, 0);
        while ready < 10 {
            turn += 1;
            populator.set_urgent(LARGE, [3, 0, 10, 1][turn % 4]);
            populator.place();
            let Ok(event) = events.recv_timeout(Duration::from_millis(1)) else { continue };
            let Event::Worked(worker, job, outcome) = event else { panic!("{event:?}") };
            populator.worked(worker, &job, &outcome);
            ready += u32::from(matches!(outcome, Outcome::Populated(_)));
        }
        assert_eq!(populator.jobs().len(), 0);
    }
    /// As many large slots as there may be threads, and a small one after them.
    #[test]
    fn least_left_comes_first_but_passes_none_for_ever() {
        let (mut populator, events) = slow();
        let large = Key { bytes: 256 << 20, ..LARGE };
        let threads = populator.most_urgent;
        (0..threads).for_each(|_| populator.begin(Job::new(large, Pool::Fixed)));
        populator.set_urgent(large, threads);
        populator.place();
        populator.begin(Job::new(SMALL, Pool::Fixed));
        populator.set_urgent(SMALL, 1);
        assert_eq!(next_ready(&mut populator, &events), SMALL);
        // A job that others have passed by its own size comes before all that have less left.
        populator.keep_only(|_| false);
        let (mut populator, _events) = slow();
        populator.begin(Job::new(large, Pool::Fixed));
        populator.begin(Job::new(SMALL, Pool::Fixed));
        populator.set_urgent(large, 1);
        populator.set_urgent(SMALL, 1);
        assert_eq!(populator.next_shelved(Lane::Urgent), Some(1));
        populator.jobs[0].job.count_passed(large.bytes);
        assert_eq!(populator.next_shelved(Lane::Urgent), Some(0));
    }

    /// Files that do not answer: their jobs' threads never come back.
    #[test]
    fn a_file_that_hangs_holds_up_its_own_slots_only() {
        let (mut populator, events) = slow();
        let most = populator.most_urgent.div_ceil(2);
        let hangs = |populator: &mut Populator, lane| {
            while let Some(index) = populator.next_shelved(lane) {
                let id = populator.add_worker(lane).expect("a thread");
                let job = Arc::clone(&populator.jobs[index].job);
                populator.workers[id as usize].1 = Occupation::Busy(job);
                populator.jobs[index].worker = Some(id);
            }
        };
        let folder = trusted_folder();
        let file = tempfile::tempfile_in(&folder).expect("a file");
        let version = Version::of(&file).expect("open");
        for name in ["one", "two", "three"] {
            let key = Key { snapshot: name.parse().ok(), ..LARGE };
            let source = Source { path: Path::new(name).into(), version, since: Instant::now() };
            for _ in 0..most + 1 {
                populator.begin(Job::new(key, Pool::Fixed).with_source(Some(source.clone())));
            }
            populator.set_urgent(key, most + 1);
            hangs(&mut populator, Lane::Urgent);
            assert_eq!(populator.busy_with(Lane::Urgent, Some(&source.path)), most);
        }
        (0..4).for_each(|_| populator.begin(Job::new(SMALL, Pool::Fixed)));
        populator.set_urgent(SMALL, 4);
        (0..4).for_each(|_| assert_eq!(next_ready(&mut populator, &events), SMALL));
        // Nor do threads let go of their jobs for one that gets no thread.
        assert_eq!(populator.shared.least_waiting(), u64::MAX);

        // A snapshot's thread does not let go for a slot that waits for a thread of the other kind.
        let most = std::mem::replace(&mut populator.most_urgent, 1);
        let long = populator.add_worker(Lane::Urgent).expect("a thread") as usize;
        let job = Arc::new(Job::new(SMALL, Pool::Fixed));
        populator.workers[long].1 = Occupation::Busy(job);
        populator.begin(Job::new(SMALL, Pool::Fixed));
        populator.set_urgent(SMALL, 1);
        let there = folder.path().join("there");
        std::fs::write(&there, [1; 1 << 20]).expect("written");
        let source = settled(&there);
        let key = Key { bytes: 1 << 20, snapshot: "there".parse().ok(), ..LARGE };
        populator.begin(Job::new(key, Pool::Fixed).with_source(Some(source)));
        populator.set_urgent(key, 1);
        populator.place();
        assert_eq!(populator.shared.least_waiting(), SMALL.bytes);
        let event = events.recv_timeout(PATIENCE).expect("it says something");
        let Event::Worked(worker, job, outcome) = event else { panic!("{event:?}") };
        assert!(matches!(outcome, Outcome::Populated(_)), "{outcome:?}");
        populator.worked(worker, &job, &outcome);
        populator.workers[long].1 = Occupation::Free;
        populator.most_urgent = most;
        assert_eq!(next_ready(&mut populator, &events), SMALL);

        // In the background it holds up others until it is not wanted any more.
        let key = Key { snapshot: "four".parse().ok(), ..LARGE };
        let source = Source { path: Path::new("four").into(), version, since: Instant::now() };
        let job = || Job::new(key, Pool::Fixed).with_source(Some(source.clone()));
        populator.begin(job());
        hangs(&mut populator, Lane::Background);
        assert!(!populator.has_room());
        // Nor where nothing is heard of the file; then it goes on.
        populator.set_stuck(|job| job.key == key);
        assert!(populator.has_room());
        populator.begin(job());
        populator.set_stuck(|job| job.key == key);
        populator.place();
        assert!(populator.has_room(), "no thread goes where nobody answers");
        populator.set_stuck(|_| false);
        assert!(!populator.has_room());
        let is_theirs = |job: &&Job| job.key == key;
        assert_eq!(populator.jobs().filter(is_theirs).count(), 2, "nothing is thrown away");
        assert_eq!(populator.keep_only(|job| job.key != key), [key, key]);
        assert!(populator.has_room());
        populator.begin(job());
        assert!(populator.has_room(), "no other thread goes the same way");
        populator.begin(Job::new(SMALL, Pool::Fixed));
        assert_eq!(next_ready(&mut populator, &events), SMALL);
    }
}
