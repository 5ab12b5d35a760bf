//! The process that reads and writes a file, one way.

use std::sync::atomic::{AtomicBool, Ordering};

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::thread::now_ns;

use super::backend::{Backend, CHUNK_PAGES};
use super::job::{Op, Request, Setup, CHUNK};
use super::{buffered, direct, mapped};
use pumice_bench::named;
use pumice_bench::start_line::{together, StartLine};
use pumice_bench::team::answer::{Answer, Timed};
use pumice_bench::team::waits::Waits;
use pumice_bench::team::worker::{answer_all, next, say, Reply};
use pumice_command::random::Random;
use pumice_command::Failure;

/// Pages that are asked for ahead by one call, at most.
const ASK: usize = 16;
/// Accesses between two looks at whether it is over.
const STRIDE: usize = 64;

named! {
    /// How a worker reads and writes.
    #[derive(clap::ValueEnum)]
    pub enum Kind {
        Buffered = "buffered",
        Mmap = "mmap",
        Direct = "direct",
    }
}

impl Kind {
    /// Whether the cache is the kernel's.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Kind::Buffered | Kind::Mmap)
    }

    /// Whether it can say which pages are in memory.
    pub const fn knows_what_is_there(self) -> bool {
        !matches!(self, Kind::Buffered)
    }
}

/// Runs a worker until its input ends.
pub fn run(kind: Kind) -> Result<(), Failure> {
    let Some(setup) = next::<Setup>()? else { return Ok(()) };
    let ended = match kind {
        Kind::Buffered => buffered::Buffered::open(&setup).map(|file| serve(&file, &setup)),
        Kind::Mmap => mapped::Mapped::open(&setup).map(|file| serve(&file, &setup)),
        Kind::Direct => direct::run(&setup, |file| serve(file, &setup)),
    };
    match ended {
        Ok(served) => served,
        Err(error) => say(&Reply::Failed(error)),
    }
}

fn serve(backend: &dyn Backend, setup: &Setup) -> Result<(), Failure> {
    let job = Job { backend, setup, pages: setup.bytes as usize / FRAME_SIZE };
    answer_all(|request| job.run(request))
}

struct Job<'s> {
    backend: &'s dyn Backend,
    setup: &'s Setup,
    pages: usize,
}

impl Job<'_> {
    fn run(&self, request: &Request) -> Result<Answer, String> {
        self.backend.prepare(request.op)?;
        Answer::spending(
            || (self.backend.helpers_cpu_s(), self.backend.pages_in(), 0),
            || match request.op {
                Op::Out | Op::Rewrite | Op::In => self.in_order(request.op),
                Op::Random => self.at_random(request, 1),
                Op::RandomAhead => self.at_random(request, self.ahead(request.threads)),
                Op::RandomBeside => self.beside_writes(request),
                Op::Scan => self.scan(request),
            },
        )
    }

    /// Pages that a thread asks for ahead, so that all together have as many on their way as fio has: some of those
    /// asked for are in memory.
    fn ahead(&self, threads: usize) -> usize {
        let missing = self.pages.saturating_sub(self.setup.frames).max(self.pages / 4);
        (self.setup.depth * self.pages / missing / threads).max(2)
    }

    fn in_order(&self, op: Op) -> Result<Answer, String> {
        let chunks = self.pages / CHUNK_PAGES;
        let mut waits = Waits::default();
        let mut done = Ok(());
        let begun = now_ns();
        self.backend.enter(&mut |way| {
            let mut before = now_ns();
            for chunk in 0..chunks {
                done = match op {
                    Op::Out => way.fill(chunk),
                    Op::Rewrite => way.change(chunk),
                    _ => way.look(chunk),
                };
                if done.is_err() {
                    return;
                }
                let now = now_ns();
                waits.add(now - before);
                before = now;
            }
        })?;
        done?;
        if op != Op::In {
            self.backend.sync()?;
        }
        let seconds = (now_ns() - begun) as f64 / 1e9;
        Ok(Answer { bytes: (chunks * CHUNK) as u64, seconds, ..Answer::of_waits(&waits) })
    }

    fn at_random(&self, request: &Request, depth: usize) -> Result<Answer, String> {
        let one =
            |thread: usize, line: &StartLine| self.one_at_random(request, depth, thread, line);
        let answer = Answer::of_threads(&together(request.threads, one)?);
        Ok(Answer { bytes: answer.accesses * FRAME_SIZE as u64, ..answer })
    }

    /// Pages at random, and what a thread writes meanwhile.
    fn beside_writes(&self, request: &Request) -> Result<Answer, String> {
        let is_over = AtomicBool::new(false);
        let (answer, written) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.overwrite_until(&is_over));
            let answer = self.at_random(request, 1);
            // Relaxed: nothing else is told by it.
            is_over.store(true, Ordering::Relaxed);
            (answer, writer.join().expect("no panic"))
        });
        Ok(Answer { beside_bytes: written?, ..answer? })
    }

    /// Overwrites the file in order, again and again, made durable each time. How many bytes were written.
    fn overwrite_until(&self, is_over: &AtomicBool) -> Result<u64, String> {
        let (mut written, mut done) = (0, Ok(()));
        // Relaxed: see above.
        while done.is_ok() && !is_over.load(Ordering::Relaxed) {
            self.backend.enter(&mut |way| {
                for chunk in 0..self.pages / CHUNK_PAGES {
                    if done.is_err() || is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    done = way.fill(chunk);
                    written += CHUNK as u64;
                }
            })?;
            if !is_over.load(Ordering::Relaxed) {
                self.backend.sync()?;
            }
        }
        done.map(|()| written)
    }

    fn one_at_random(
        &self,
        request: &Request,
        depth: usize,
        thread: usize,
        line: &StartLine,
    ) -> Result<Timed, String> {
        let mut random = Random::new(request.seed << 8 | thread as u64);
        // Pages that are asked for lie in a ring; the first one asked for is wanted first.
        let ask = ASK.min(depth);
        let mut ring = vec![0; depth.next_multiple_of(ask)];
        let (mut asked, mut wanted) = (0, 0);
        let mut timed = Err(String::new());
        self.backend.enter(&mut |way| {
            timed = Timed::run(line, usize::MAX, request.seconds, |_| {
                if depth > 1 {
                    while asked - wanted + ask <= ring.len() {
                        let at = asked % ring.len();
                        let batch = &mut ring[at..at + ask];
                        batch.fill_with(|| random.below(self.pages));
                        way.ask(batch)?;
                        asked += ask;
                    }
                } else {
                    ring[0] = random.below(self.pages);
                }
                wanted += 1;
                way.look_at(ring[(wanted - 1) % ring.len()])
            });
        })?;
        timed
    }

    /// Half a memory full is the working set.
    fn scan(&self, request: &Request) -> Result<Answer, String> {
        let hot = (self.setup.frames / 2).clamp(1, self.pages / 2);
        // Used for a while, so that the replacement policy has seen that it is used.
        self.visit(request, hot, &AtomicBool::new(false))?;
        let is_over = AtomicBool::new(false);
        let begun = now_ns();
        let (there, scanned) = std::thread::scope(|scope| {
            let whole = Request { seconds: f64::MAX, seed: request.seed + 1, ..*request };
            let is_over = &is_over;
            let visitor = scope.spawn(move || self.visit(&whole, hot, is_over));
            let scanned = self.scan_once(hot);
            // Relaxed: nothing else is told by it.
            is_over.store(true, Ordering::Relaxed);
            (visitor.join().expect("no panic"), scanned)
        });
        scanned?;
        let seconds = (now_ns() - begun) as f64 / 1e9;
        let (hits, waits) = there?;
        self.visit(request, hot, &AtomicBool::new(false))?;
        self.scan_once(hot)?;
        let (mut kept, mut failed) = (0, Ok(()));
        self.backend.enter(&mut |way| {
            for page in 0..hot {
                match way.is_there(page) {
                    Some(is_there) => kept += u64::from(is_there),
                    None => failed = Err("whether a page is in memory is not known".to_owned()),
                }
            }
        })?;
        failed?;
        let answer = Answer::of_waits(&waits);
        Ok(Answer {
            bytes: answer.accesses * FRAME_SIZE as u64,
            seconds,
            hits_percent: 100.0 * hits as f64 / answer.accesses.max(1) as f64,
            kept_percent: 100.0 * kept as f64 / hot as f64,
            ..answer
        })
    }

    /// Reads the pages outside the working set, in order.
    fn scan_once(&self, hot: usize) -> Result<(), String> {
        let mut done = Ok(());
        self.backend.enter(&mut |way| {
            let chunks = hot.div_ceil(CHUNK_PAGES)..self.pages / CHUNK_PAGES;
            done = chunks.into_iter().try_for_each(|chunk| way.look(chunk));
        })?;
        done
    }

    /// Looks at pages of the working set, after having gone through it once: how many were there.
    fn visit(
        &self,
        request: &Request,
        hot: usize,
        is_over: &AtomicBool,
    ) -> Result<(u64, Waits), String> {
        let mut random = Random::new(request.seed);
        let (mut waits, mut hits, mut failed) = (Waits::default(), 0, Ok(()));
        self.backend.enter(&mut |way| {
            failed = (0..hot).try_for_each(|page| way.look_at(page));
            let mut before = now_ns();
            let until = before.saturating_add((request.seconds * 1e9) as u64);
            // Relaxed: see above.
            while failed.is_ok() && before < until && !is_over.load(Ordering::Relaxed) {
                for _ in 0..STRIDE {
                    let page = random.below(hot);
                    hits += u64::from(way.is_there(page).unwrap_or(false));
                    failed = std::mem::replace(&mut failed, Ok(())).and(way.look_at(page));
                    let now = now_ns();
                    waits.add(now - before);
                    before = now;
                }
            }
        })?;
        failed.map(|()| (hits, waits))
    }
}
