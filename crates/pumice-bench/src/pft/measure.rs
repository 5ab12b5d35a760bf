//! One measurement: threads that allocate, touch and give back, against the clock.
//!
//! The wall is from the threads' common start to the last that finishes. Every page is written
//! before it is read (a read first would take two faults of the kernel), and the first line to be
//! touched moves on from page to page (they would all fall in one set of the cache).

use std::ptr::NonNull;
use std::sync::Barrier;

use pumice_frames::addr::{CACHE_LINE, FRAME_SIZE};
use pumice_frames::sys::cpu;
use pumice_frames::sys::thread::now_ns;

use super::backend::Source;
use crate::cpu::{pin, CpuClock, CpuTime};
use crate::start_line::{together, StartLine};
use pumice_command::Failure;

/// Lines in a page.
pub const LINES: usize = FRAME_SIZE / CACHE_LINE;

/// The work of each thread.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Threads, each with its own memory.
    pub threads: usize,
    /// Bytes a thread allocates at a time.
    pub bytes: usize,
    /// How often it does that.
    pub repetitions: usize,
    /// Pages touched of each allocation, evenly spread.
    pub pages: usize,
    /// Lines written in each.
    pub lines: usize,
    /// The part of the work that the clock covers.
    pub timed: Timed,
}

/// The part of the work that the clock covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Allocating and touching.
    Taking,
    /// Giving back as well.
    Cycle,
}

impl Job {
    /// Pages touched by all threads in all repetitions.
    pub fn faults(&self) -> usize {
        self.threads * self.repetitions * self.pages
    }

    fn touch(&self, at: NonNull<u8>) {
        let stride = self.bytes / self.pages;
        for page in 0..self.pages {
            // SAFETY: the page lies within the allocation of `bytes` bytes.
            let page_at = unsafe { at.add(page * stride / FRAME_SIZE * FRAME_SIZE) };
            for line in 0..self.lines {
                let offset = (page + line) % LINES * CACHE_LINE;
                // SAFETY: the line lies within the page.
                unsafe { page_at.add(offset).cast::<u64>().write_volatile(page as u64) };
            }
        }
    }

    /// Allocates, touches and gives back once, untimed; `look` is called while it is held.
    pub fn hold<T>(&self, source: Source<'_>, look: impl FnOnce() -> T) -> Result<T, Failure> {
        let at = source.take(self.bytes)?;
        self.touch(at);
        let seen = look();
        // SAFETY: taken above, and no longer used.
        unsafe { source.give_back(at, self.bytes)? };
        Ok(seen)
    }
}

/// The time that a measurement took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// The threads' processor time, added up.
    pub cpu: CpuTime,
    /// From the start to the last thread's end.
    pub wall_s: f64,
}

impl Spent {
    /// Adds another thread's: processor times add up, the longest wall counts.
    pub fn add(&mut self, other: Spent) {
        self.cpu += other.cpu;
        self.wall_s = self.wall_s.max(other.wall_s);
    }
}

/// Where the threads of a measurement start and end together.
pub struct Lines {
    start: StartLine,
    finish: Barrier,
}

impl Lines {
    /// For so many threads.
    pub fn new(threads: usize) -> Lines {
        Lines { start: StartLine::new(threads), finish: Barrier::new(threads) }
    }

    /// The time that a thread spends on its part.
    pub fn time(&self, part: impl FnOnce()) -> Spent {
        let at_ns = self.start.wait();
        let clock = CpuClock::start();
        part();
        let (cpu, wall_s) = (clock.elapsed(), (now_ns() - at_ns) as f64 / 1e9);
        // Nobody gives back while another's clock runs.
        self.finish.wait();
        Spent { cpu, wall_s }
    }
}

/// Runs `work` on so many threads, each on a processor of its own as far as there are enough. Returns the sum of their
/// processor time.
pub fn timed<E: Send>(
    threads: usize,
    work: impl Fn(usize, &Lines) -> Result<Spent, E> + Sync,
) -> Result<Spent, E> {
    let (lines, processors) = (Lines::new(threads), cpu::count());
    let mut all = Spent::default();
    for spent in together(threads, |index, _| {
        pin(index % processors);
        work(index, &lines)
    })? {
        all.add(spent);
    }
    Ok(all)
}

/// Runs a job. All memory is given back when it returns.
pub fn run(job: &Job, source: Source<'_>) -> Result<Spent, Failure> {
    timed(job.threads, |_, lines| {
        let mut held = Ok(None);
        let spent = lines.time(|| held = cycles(job, source));
        if let (Some(at), Timed::Taking) = (held?, job.timed) {
            // SAFETY: taken in `cycles`, and no longer used.
            unsafe { source.give_back(at, job.bytes)? };
        }
        Ok(spent)
    })
}

/// The timed part. Returns the memory that is left to give back.
fn cycles(job: &Job, source: Source<'_>) -> Result<Option<NonNull<u8>>, Failure> {
    let mut held = None;
    for _ in 0..job.repetitions {
        let at = source.take(job.bytes)?;
        job.touch(at);
        match job.timed {
            // SAFETY: taken above, and no longer used.
            Timed::Cycle => unsafe { source.give_back(at, job.bytes)? },
            Timed::Taking => held = Some(at),
        }
    }
    Ok(held)
}
