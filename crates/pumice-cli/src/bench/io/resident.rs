//! Pages that are in memory, read at random: without a guard, with a shared one, optimistically.
//!
//! Without a guard is what a program does that has pointers to the pages and nobody who takes them away: it fetches
//! the pointer's line and then the word's ahead. Ours fetch the line of the page's entry and then the word's.

use std::hint::black_box;
use std::path::Path;
use std::ptr::NonNull;

use pumice::addr::FRAME_SIZE;
use pumice::cache::{self, Cache, CacheError, File, Options, Settings, View};
use pumice::sys::prefetch::prefetch_read;
use pumice::sys::thread::now_ns;

use super::job::Answer;
use super::row::{Case, Row};
use crate::args::Failure;
use crate::bench::alloc::random::Random;
use crate::bench::interrupts::Interrupts;
use crate::bench::start_line::StartLine;

/// How a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Unguarded,
    Shared,
    Optimistic,
}

impl Reading {
    pub const ALL: [Reading; 3] = [Reading::Unguarded, Reading::Shared, Reading::Optimistic];

    pub const fn name(self) -> &'static str {
        match self {
            Reading::Unguarded => "unguarded",
            Reading::Shared => "shared",
            Reading::Optimistic => "optimistic",
        }
    }
}

/// Accesses between two looks at the clock.
const STRIDE: usize = 4096;
/// How far ahead a word's line is fetched, and the line that says where it is.
const AHEAD: usize = 12;
const FAR_AHEAD: usize = 24;
/// More than that, a power of two.
const RING: usize = 32;

/// What is read: by how many threads, all of it by each or a part of its own by each.
#[derive(Clone, Copy, Debug)]
struct Pages {
    threads: usize,
    pages: usize,
    is_shared: bool,
}

/// Pages of each thread that its second-level cache holds, with their entries.
const FEW: usize = 64;

/// Rows of pages that are there: of so many bytes that all threads read, and of few that each has for itself.
pub fn measure(
    file: &Path,
    (bytes, threads): (usize, usize),
    (rounds, seconds): (usize, f64),
    signals: &Interrupts,
) -> Result<Vec<Row>, Failure> {
    let failed = |error: CacheError| Failure::system(format!("pages in memory: {error}"));
    let pages = bytes / FRAME_SIZE;
    // So many more that nothing has to go.
    let settings = Settings::new(pages + pages / 4 + 2048);
    cache::run(&settings, |cache| {
        let file = cache.open(file, &Options::new().room(bytes as u64)).map_err(failed)?;
        let task = cache.task().map_err(failed)?;
        let view = task.view(&file).map_err(failed)?;
        for page in 0..pages {
            view.write_or_grow(page).map_err(failed)?.fill(page as u8 | 1);
        }
        view.sync().map_err(failed)?;
        let pointers = Pointers::of(&view)
            .ok_or_else(|| Failure::system("pages that were written are not in memory"))?;
        rows_of(cache, &file, &pointers, (pages, threads), (rounds, seconds), signals)
    })
    .map_err(failed)?
}

fn rows_of(
    cache: &Cache<'_>,
    file: &File,
    pointers: &Pointers,
    (pages, threads): (usize, usize),
    (rounds, seconds): (usize, f64),
    signals: &Interrupts,
) -> Result<Vec<Row>, Failure> {
    let failed = |error: CacheError| Failure::system(format!("pages in memory: {error}"));
    let mut rows = Vec::new();
    for what in
        [Pages { threads, pages, is_shared: true }, Pages { threads, pages: FEW, is_shared: false }]
    {
        let mut answers = Reading::ALL.map(|_| Vec::new());
        for round in 0..=rounds {
            for turn in 0..Reading::ALL.len() {
                if signals.came().is_some() {
                    return Err(Failure::system("interrupted"));
                }
                let which = (round + turn) % Reading::ALL.len();
                let answer = one_round(cache, file, pointers, Reading::ALL[which], what, seconds)
                    .map_err(failed)?;
                // The first warms up.
                if round > 0 {
                    answers[which].push(answer);
                }
            }
        }
        let file_bytes = (what.pages * FRAME_SIZE) as u64;
        for (reading, rounds) in Reading::ALL.iter().zip(&answers) {
            let op = if what.is_shared { "resident" } else { "resident-few" };
            let backend = reading.name();
            let case = Case {
                op,
                backend,
                threads,
                file_bytes,
                frames_bytes: (pages * FRAME_SIZE) as u64,
            };
            rows.push(Row::new(&case, rounds));
        }
    }
    Ok(rows)
}

/// All threads at once: the sum of their rates.
fn one_round(
    cache: &Cache<'_>,
    file: &File,
    pointers: &Pointers,
    reading: Reading,
    what: Pages,
    seconds: f64,
) -> Result<Answer, CacheError> {
    let line = StartLine::new(what.threads);
    let one = |thread: usize| {
        let task = cache.task()?;
        let view = task.view(file)?;
        let first = if what.is_shared { 0 } else { thread * what.pages };
        let until = line.wait() + (seconds * 1e9) as u64;
        let seed = thread as u64 + 1;
        Ok::<_, CacheError>(read(
            &view,
            pointers,
            reading,
            (first, what.pages),
            what.is_shared,
            seed,
            until,
        ))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let spawned: Vec<_> = (0..what.threads).map(|t| scope.spawn(move || one(t))).collect();
        let mut all = Answer::default();
        for thread in spawned {
            let part: Answer = thread.join().expect("no panic")?;
            all.accesses += part.accesses;
            all.bytes += part.bytes;
            all.seconds = all.seconds.max(part.seconds);
        }
        Ok(all)
    })
}

/// Words of pages at random, a few ahead.
struct Order {
    random: Random,
    first: usize,
    pages: usize,
    ring: [(usize, usize); RING],
    at: usize,
}

impl Order {
    fn new(seed: u64, first: usize, pages: usize) -> Order {
        let random = Random::new(seed);
        let mut order = Order { random, first, pages, ring: [(first, 0); RING], at: 0 };
        for _ in 0..RING {
            order.step();
        }
        order
    }

    /// Draws the word that is the farthest ahead.
    #[inline(always)]
    fn step(&mut self) {
        let random = self.random.next();
        let page = (((random >> 32) * self.pages as u64) >> 32) as usize;
        self.ring[(self.at + FAR_AHEAD) % RING] = (self.first + page, random as usize % 512);
        self.at += 1;
    }

    /// The word so many steps from now.
    #[inline(always)]
    fn ahead(&self, steps: usize) -> (usize, usize) {
        self.ring[(self.at + steps) % RING]
    }
}

/// Addresses of pages, for who needs no guard.
pub struct Pointers(Vec<NonNull<u8>>);

// SAFETY: the memory may be read by any thread as long as the region's zone is there, which outlives this.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// Of pages that are there, and stay.
    pub fn of(view: &View<'_, '_>) -> Option<Pointers> {
        let all = (0..view.pages()).map(|page| view.translate(page));
        all.collect::<Option<Vec<_>>>().map(Pointers)
    }
}

/// Reads words of pages from `first` on for so long; lines are fetched ahead where the pages are many.
pub fn read(
    view: &View<'_, '_>,
    pointers: &Pointers,
    reading: Reading,
    (first, pages): (usize, usize),
    is_ahead: bool,
    seed: u64,
    until: u64,
) -> Answer {
    let order = Order::new(seed, first, pages);
    let region = view;
    let none = |_: (usize, usize)| {};
    match reading {
        Reading::Unguarded => {
            let at = &pointers.0;
            let word = |(page, word): (usize, usize)| {
                // SAFETY: the page's memory can be read, and nobody writes.
                unsafe { at[page].cast::<u64>().add(word).read_volatile() }
            };
            let far = |(page, _): (usize, usize)| prefetch_read((&raw const at[page]).cast());
            let near = |(page, word): (usize, usize)| {
                prefetch_read(at[page].as_ptr().wrapping_add(word * 8));
            };
            if is_ahead {
                time(order, until, far, near, word)
            } else {
                time(order, until, none, none, word)
            }
        }
        Reading::Shared => {
            let word = |(page, word): (usize, usize)| match view.read(page) {
                Ok(guard) => word_of(&guard, word),
                Err(_) => 0,
            };
            let far = |(page, _): (usize, usize)| region.fetch_entry_to_guard(page);
            let near = |(page, word): (usize, usize)| region.fetch(page, word * 8);
            if is_ahead {
                time(order, until, far, near, word)
            } else {
                time(order, until, none, none, word)
            }
        }
        Reading::Optimistic => {
            let word = |(page, word): (usize, usize)| {
                view.read_optimistic(page, |words| words.load(word)).unwrap_or(0)
            };
            let far = |(page, _): (usize, usize)| region.fetch_entry(page);
            let near = |(page, word): (usize, usize)| region.fetch(page, word * 8);
            if is_ahead {
                time(order, until, far, near, word)
            } else {
                time(order, until, none, none, word)
            }
        }
    }
}

#[inline(always)]
fn word_of(page: &[u8; FRAME_SIZE], word: usize) -> u64 {
    page[word * 8..word * 8 + 8].try_into().map_or(0, u64::from_ne_bytes)
}

#[inline(always)]
fn time(
    mut order: Order,
    until: u64,
    far: impl Fn((usize, usize)),
    near: impl Fn((usize, usize)),
    word: impl Fn((usize, usize)) -> u64,
) -> Answer {
    let (mut sum, mut accesses) = (0_u64, 0);
    let begun = now_ns();
    loop {
        for _ in 0..STRIDE {
            order.step();
            far(order.ahead(FAR_AHEAD - 1));
            near(order.ahead(AHEAD));
            sum = sum.wrapping_add(word(order.ahead(0)));
        }
        accesses += STRIDE as u64;
        let now = now_ns();
        if now >= until {
            black_box(sum);
            let seconds = (now - begun) as f64 / 1e9;
            return Answer { accesses, bytes: accesses * 8, seconds, ..Answer::default() };
        }
    }
}
