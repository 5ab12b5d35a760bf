//! One measurement: threads that touch pages of one region, each its share.

use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use pumice_frames::addr::{BLOCK_FRAMES, CACHE_LINE, FRAME_SIZE};
use pumice_frames::sys::{cpu, prefetch::prefetch_write};
use pumice_paging::page_table::{Atomic, Emulated, Rights};
use pumice_paging::space::{Access, Frames, Task, VmSpace, DEFAULT_FETCH_AHEAD};

use super::ground::Ground;
use super::locking::{Locking, Plain, Scheme};
use super::row::{FaultMode, PageSize};
use crate::cpu::pin;
use crate::names::named;
use crate::pft::backend::Source;
use crate::pft::measure::{timed, Lines, Spent, LINES};
use pumice_command::{Explain, Failure};

/// Pages that the mapper maps, touches one of, and unmaps.
const MAPPER_PAGES: usize = 16;

named! {
    /// The pages of each thread.
    pub enum Pattern {
        /// A piece of the region for each thread.
        Own = "own",
        /// A piece of each 2 MiB for each thread, and all in the same 2 MiB at about the same time.
        OneBlock = "one-block",
        /// As `own`, beside one more thread that maps and unmaps throughout.
        Mapper = "mapper",
    }
}

/// The work on the pages.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Threads that fault.
    pub threads: usize,
    /// Pages of the region; a multiple of 512 times the threads.
    pub pages: usize,
    /// Lines written in each: 0 for the path alone, or 1.
    pub lines: usize,
    /// The pages of each thread.
    pub pattern: Pattern,
}

impl Job {
    /// Calls `touch` with each page of a thread's share.
    #[inline]
    fn share(&self, thread: usize, mut touch: impl FnMut(usize)) {
        match self.pattern {
            Pattern::Own | Pattern::Mapper => {
                let share = self.pages / self.threads;
                (thread * share..(thread + 1) * share).for_each(touch);
            }
            Pattern::OneBlock => {
                let share = BLOCK_FRAMES / self.threads;
                for block in (0..self.pages).step_by(BLOCK_FRAMES) {
                    let start = block + thread * share;
                    (start..start + share).for_each(&mut touch);
                }
            }
        }
    }

    /// Pages that all threads touch.
    pub fn faults(&self) -> usize {
        match self.pattern {
            Pattern::Own | Pattern::Mapper => self.pages / self.threads * self.threads,
            Pattern::OneBlock => {
                self.pages / BLOCK_FRAMES * (BLOCK_FRAMES / self.threads) * self.threads
            }
        }
    }
}

/// The byte of a page that is touched: the line moves on from page to page, or all would fall in one set
/// of the cache.
#[inline]
fn touched(page: usize) -> usize {
    page * FRAME_SIZE + page % LINES * CACHE_LINE
}

/// Runs `work` on each thread, and `beside` meanwhile if there is anything.
fn together(
    threads: usize,
    work: &(dyn Fn(usize, &Lines) -> Spent + Sync),
    beside: Option<&(dyn Fn(&AtomicBool) + Sync)>,
) -> Spent {
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(beside) = beside {
            scope.spawn(move || {
                pin(threads % cpu::count());
                beside(is_over);
            });
        }
        let spent = timed(threads, |index, lines| Ok::<_, Infallible>(work(index, lines)));
        // Relaxed: the mapper needs to see it some time.
        is_over.store(true, Ordering::Relaxed);
        spent.unwrap_or_else(|never| match never {})
    })
}

/// Faults in a space of ours.
pub fn ours(ground: &Ground, way: FaultMode, job: &Job) -> Result<Spent, Failure> {
    match way.locking {
        Locking::Whole => in_space::<Plain>(ground, way, job),
        Locking::Short => in_space::<Emulated>(ground, way, job),
        Locking::Atomic | Locking::Kernel | Locking::Ready => in_space::<Atomic>(ground, way, job),
    }
}

fn in_space<S: Scheme>(ground: &Ground, way: FaultMode, job: &Job) -> Result<Spent, Failure> {
    let space = VmSpace::new(ground.map().frames(), S::default()).or_fail("no space")?;
    space.set_prefault(way.prefault_pages);
    if job.lines == 0 || way.locking == Locking::Ready {
        // Prefetch is for pages that will be written, and here none is.
        space.set_fetch_ahead(0);
    }
    let task = space.enter().or_fail("no space")?;
    let bytes = job.pages * FRAME_SIZE;
    let at = match way.page_size {
        PageSize::Small => task.map(bytes, Rights::READ_WRITE),
        PageSize::Huge => task.map_huge(bytes, Rights::READ_WRITE),
    };
    let at = at.or_fail("no space")?;
    let lock = Mutex::new(());
    let work = |index: usize, lines: &Lines| {
        let task = space.enter().expect("room for a thread");
        if way.locking == Locking::Ready {
            let there = populate(&task, at, job, index);
            return lines.time(|| write_to(&there));
        }
        lines.time(|| touch(&task, &lock, at, job, index))
    };
    let mapper = |is_over: &AtomicBool| go_round(&space, &lock, is_over);
    let beside: Option<&(dyn Fn(&AtomicBool) + Sync)> = match job.pattern {
        Pattern::Mapper => Some(&mapper),
        _ => None,
    };
    let spent = together(job.threads, &work, beside);
    if space.anon_rss() < job.faults() {
        return Err(Failure::system("the zone ran out of frames".to_owned()));
    }
    Ok(spent)
}

/// The measured loop; a function of its own, so that `callgrind` can count in it.
#[inline(never)]
fn touch<S: Scheme>(
    task: &Task<'_, Frames<'_>, S>,
    lock: &Mutex<()>,
    at: usize,
    job: &Job,
    index: usize,
) {
    let fault = |page: usize| S::around(lock, || task.fault(at + touched(page), Access::Write));
    if job.lines == 0 {
        job.share(index, |page| {
            std::hint::black_box(fault(page).is_ok());
        });
    } else {
        job.share(index, |page| {
            if let Ok(line) = fault(page) {
                // SAFETY: a page of this space, of which nothing is unmapped meanwhile.
                unsafe { line.cast::<u64>().write_volatile(page as u64) };
            }
        });
    }
}

/// Faults a thread's share in without writing to it: where its lines are.
fn populate<S: Scheme>(
    task: &Task<'_, Frames<'_>, S>,
    at: usize,
    job: &Job,
    index: usize,
) -> Vec<NonNull<u8>> {
    let mut there = Vec::with_capacity(job.faults() / job.threads);
    job.share(index, |page| there.extend(task.fault(at + touched(page), Access::Write)));
    there
}

/// As [`touch`], of pages that are there, and fetched ahead as faults do.
#[inline(never)]
fn write_to(there: &[NonNull<u8>]) {
    for (page, line) in there.iter().enumerate() {
        if let Some(ahead) = there.get(page + DEFAULT_FETCH_AHEAD) {
            prefetch_write(ahead.as_ptr());
        }
        // SAFETY: a page of a space that outlives this, of which nothing is unmapped meanwhile.
        unsafe { line.cast::<u64>().write_volatile(page as u64) };
    }
}

/// Maps, touches a page and unmaps until it is over.
fn go_round<S: Scheme>(space: &VmSpace<Frames<'_>, S>, lock: &Mutex<()>, is_over: &AtomicBool) {
    let task = space.enter().expect("room for a thread");
    let bytes = MAPPER_PAGES * FRAME_SIZE;
    while !is_over.load(Ordering::Relaxed) {
        S::around(lock, || {
            if let Ok(at) = task.map(bytes, Rights::READ_WRITE) {
                let _ = task.fault(at, Access::Write);
                task.unmap(at, bytes).expect("a region of this thread's");
            }
        });
    }
}

/// The kernel's own faults, in a region of its own.
pub fn kernel(source: Source<'_>, job: &Job) -> Result<Spent, Failure> {
    let bytes = job.pages * FRAME_SIZE;
    let at = source.take(bytes)?.as_ptr() as usize;
    let work = |index: usize, lines: &Lines| {
        let write = |page: usize| {
            let line = (at + touched(page)) as *mut u64;
            // SAFETY: the line lies within the mapping.
            unsafe { line.write_volatile(page as u64) };
        };
        lines.time(|| job.share(index, write))
    };
    let spent = together(job.threads, &work, None);
    let at = NonNull::new(at as *mut u8).expect("as above");
    // SAFETY: taken above, and the threads that used it have ended.
    unsafe { source.give_back(at, bytes)? };
    Ok(spent)
}
