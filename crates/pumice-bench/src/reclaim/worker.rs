//! The process in which memory is used: it is told what to do by lines of JSON on its input, and answers each.
//!
//! It is a process of its own so that all of its processor time is the job's, and so that the kernel's can be put
//! into a control group.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

use pumice_io::engine::Direction;
use pumice_io::{BlockFile, Cached};

use super::job::{Pattern, Request, Setup};
use super::kernel::Kernel;
use super::order::{Order, Zipf};
use super::ours;
use crate::start_line::{together, StartLine};
use crate::team::answer::{Answer, Timed};
use crate::team::worker::{answer_all, next, say, Reply};
use pumice_command::Failure;

/// A thread's way to the pages of the region.
pub trait Touch {
    fn write(&self, page: usize, value: u64) -> Result<(), String>;
    fn read(&self, page: usize) -> Result<u64, String>;
}

/// The region, on frames that are fewer.
pub trait Memory: Sync {
    /// Runs `work` with the calling thread's way to the pages.
    fn enter(&self, work: &mut dyn FnMut(&dyn Touch)) -> Result<(), String>;

    /// Pages that came from swap so far, and that went there.
    fn swapped(&self) -> (u64, u64);

    /// Processor time spent for it outside of this process, in seconds.
    fn helpers_cpu_s(&self) -> f64;

    /// How it reads files.
    fn cached(&self) -> Cached;

    /// The time of a read guard on a page that is there, and how many there were in how many seconds; `None` where
    /// there are no guards.
    fn hits(&self, request: &Request) -> Option<Result<Answer, String>>;
}

/// Bytes that are read from the file at a time.
const FILE_BYTES: usize = 1 << 20;

/// Which of the two a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Pumice,
    Kernel,
}

/// Runs a worker until its input ends.
pub fn run(kind: Kind) -> Result<(), Failure> {
    let Some(setup) = next::<Setup>()? else { return Ok(()) };
    let memory: Result<&'static dyn Memory, String> = match kind {
        Kind::Pumice => ours::memory(&setup),
        Kind::Kernel => Kernel::map(setup.region_pages).map(|memory| {
            let memory: &'static dyn Memory = Box::leak(Box::new(memory));
            memory
        }),
    };
    let memory = match memory {
        Ok(memory) => memory,
        Err(error) => {
            say(&Reply::Failed(error))?;
            return Ok(());
        }
    };
    let zipf = Zipf::new(setup.region_pages);
    let job = Job { memory, setup, zipf, positions: Mutex::new(Vec::new()) };
    answer_all(|request: &Request| {
        if request.pattern.is_hit() {
            memory.hits(request).unwrap_or_else(|| Err("no guards".to_owned()))
        } else {
            let counts = || {
                let (pages_in, pages_out) = memory.swapped();
                (memory.helpers_cpu_s(), pages_in, pages_out)
            };
            Answer::spending(counts, || job.run(request))
        }
    })
}

struct Job {
    memory: &'static dyn Memory,
    setup: Setup,
    zipf: Zipf,
    /// How far each thread of a sequence came: the next round goes on there, or it would find what it left.
    positions: Mutex<Vec<usize>>,
}

impl Job {
    fn run(&self, request: &Request) -> Result<Answer, String> {
        let threads = request.threads;
        let mut positions = std::mem::take(&mut *self.positions.lock().expect("no panic"));
        if positions.len() != threads || request.pattern == Pattern::Fill {
            positions = vec![0; threads];
        }
        let file = (request.pattern == Pattern::Google)
            .then(|| Stream::open(Path::new(&self.setup.file), self.memory.cached()))
            .transpose()?;
        let (is_over, file_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        let done = std::thread::scope(|scope| {
            let (is_over, file_bytes) = (&is_over, &file_bytes);
            if let Some(mut file) = file {
                scope.spawn(move || {
                    // Relaxed: nothing else is told by it.
                    while !is_over.load(Ordering::Relaxed) {
                        match file.read() {
                            Ok(bytes) => file_bytes.fetch_add(bytes, Ordering::Relaxed),
                            Err(_) => break,
                        };
                    }
                });
            }
            let one = |thread: usize, line: &StartLine| {
                self.one_thread(request, thread, positions[thread], line)
            };
            let done = together(threads, one);
            is_over.store(true, Ordering::Relaxed);
            done
        })?;
        let (timed, positions): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        *self.positions.lock().expect("no panic") = positions;
        Ok(Answer { bytes: file_bytes.into_inner(), ..Answer::of_threads(&timed) })
    }

    /// The accesses of a thread, and how far it came.
    fn one_thread(
        &self,
        request: &Request,
        thread: usize,
        position: usize,
        line: &StartLine,
    ) -> Result<(Timed, usize), String> {
        let Request { pattern, threads, seed, seconds } = *request;
        let place = (self.setup.frames, position);
        let mut order = Order::new(pattern, (thread, threads), seed, &self.zipf, place);
        // Filling ends with the region, not with the time.
        let (accesses, seconds) = match pattern {
            Pattern::Fill => (self.setup.region_pages / threads, f64::INFINITY),
            _ => (usize::MAX, seconds),
        };
        let mut timed = Err(String::new());
        self.memory.enter(&mut |touch| {
            timed = Timed::run(line, accesses, seconds, |before| {
                let page = order.next();
                if pattern.writes() {
                    return touch.write(page, before);
                }
                touch.read(page).map(|value| {
                    std::hint::black_box(value);
                })
            });
        })?;
        Ok((timed?, order.position()))
    }
}

/// A file that is read from its begin to its end, and again.
struct Stream {
    file: Either,
    at: u64,
    len: u64,
    buffer: Vec<Chunk>,
}

enum Either {
    Buffered(File),
    Direct(BlockFile),
}

/// A frame's worth, aligned as direct I/O wants it.
#[repr(align(4096))]
#[derive(Clone)]
struct Chunk([u8; 4096]);

impl Stream {
    fn open(path: &Path, cached: Cached) -> Result<Stream, String> {
        let explain = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = match cached {
            Cached::Yes => Either::Buffered(File::open(path).map_err(|error| explain(&error))?),
            Cached::No => {
                Either::Direct(BlockFile::open(path, cached).map_err(|errno| explain(&errno))?)
            }
        };
        let len = fs::metadata(path).map_err(|error| explain(&error))?.len();
        let len = len / FILE_BYTES as u64 * FILE_BYTES as u64;
        let buffer = vec![Chunk([0; 4096]); FILE_BYTES / 4096];
        Ok(Stream { file, at: 0, len, buffer })
    }

    /// The next bytes: how many.
    fn read(&mut self) -> Result<u64, String> {
        let at = NonNull::from(&mut self.buffer[0].0).cast::<u8>();
        match &self.file {
            Either::Buffered(file) => {
                // SAFETY: the buffer's bytes, borrowed for the call.
                let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), FILE_BYTES) };
                file.read_exact_at(bytes, self.at).map_err(|error| error.to_string())?;
            }
            Either::Direct(file) => {
                // SAFETY: the buffer's bytes, which nobody else has.
                unsafe { file.transfer(Direction::Read, at, FILE_BYTES, self.at) }
                    .map_err(|errno| errno.to_string())?;
            }
        }
        self.at = (self.at + FILE_BYTES as u64) % self.len.max(1);
        Ok(FILE_BYTES as u64)
    }
}
