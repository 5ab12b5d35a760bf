//! Pages that are in memory, read at random: without a guard, with a shared one, optimistically.
//!
//! A program reads without a guard if it has pointers to the pages and nobody takes them away. All three
//! read in groups: while the words of one are read, those of the next are fetched, and for the group after it the lines
//! that say where its words are: those of the pointers, or of the pages' entries.

use std::array;
use std::hint::black_box;
use std::path::Path;
use std::ptr::NonNull;

use pumice_cache::{Cache, CacheError, File, Options, PageEntry, PageRef, Settings, View};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::prefetch::prefetch_read;
use pumice_frames::sys::thread::now_ns;

use super::row::{row, Case};
use pumice_bench::harness::{in_turns, WarmUp};
use pumice_bench::interrupts::Interrupts;
use pumice_bench::named;
use pumice_bench::registry::Row;
use pumice_bench::start_line::{together, StartLine};
use pumice_bench::team::answer::Answer;
use pumice_command::random::Random;
use pumice_command::{Explain, Failure};

named! {
    /// How a page is read.
    pub enum Reading {
        Unguarded = "unguarded",
        Shared = "shared",
        Optimistic = "optimistic",
    }
}

/// Accesses between two looks at the clock.
const STRIDE: usize = 4096;
/// Words that are fetched together.
const GROUP: usize = 8;

/// The pages that are read: by how many threads, all of them by each or a part of its own by each.
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
    let pages = bytes / FRAME_SIZE;
    // So many more that nothing has to go.
    let settings = Settings::new(pages + pages / 4 + 2048);
    pumice_cache::run(&settings, |cache| {
        let file =
            cache.open(file, &Options::new().room(bytes as u64)).or_fail("pages in memory")?;
        let task = cache.task().or_fail("pages in memory")?;
        let view = task.view(&file).or_fail("pages in memory")?;
        for page in 0..pages {
            view.write_or_grow(page).or_fail("pages in memory")?.fill(page as u8 | 1);
        }
        view.sync().or_fail("pages in memory")?;
        let pointers = Pointers::of(&view)
            .ok_or_else(|| Failure::system("pages that were written are not in memory"))?;
        let mut rows = Vec::new();
        let few = Pages { threads, pages: FEW, is_shared: false };
        for what in [Pages { threads, pages, is_shared: true }, few] {
            let answers = in_turns(Reading::ALL.len(), rounds, WarmUp::Round, |which, _| {
                signals.look()?;
                one_round(cache, &file, &pointers, Reading::ALL[which], what, seconds)
                    .or_fail("pages in memory")
            })?;
            let op = if what.is_shared { "resident" } else { "resident-few" };
            let [file_bytes, frames_bytes] = [what.pages, pages].map(|it| (it * FRAME_SIZE) as u64);
            for (reading, rounds) in Reading::ALL.iter().zip(&answers) {
                let backend = reading.name();
                rows.push(row(&Case { op, backend, threads, file_bytes, frames_bytes }, rounds));
            }
        }
        Ok(rows)
    })
    .or_fail("pages in memory")?
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
    let one = |thread: usize, line: &StartLine| {
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
    let mut all = Answer::default();
    for part in together(what.threads, one)? {
        all.accesses += part.accesses;
        all.bytes += part.bytes;
        all.seconds = all.seconds.max(part.seconds);
    }
    Ok(all)
}

/// Words of pages, at random.
struct Order {
    random: Random,
    first: usize,
    pages: usize,
}

impl Order {
    /// A page's number, and that of a word of it.
    #[inline(always)]
    fn next(&mut self) -> (usize, usize) {
        let random = self.random.next();
        let page = (((random >> 32) * self.pages as u64) >> 32) as usize;
        (self.first + page, random as usize % 512)
    }
}

/// Addresses of pages, for readers without a guard.
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

/// Reads words of pages from `first` on for so long; in groups where the pages are many.
pub fn read(
    view: &View<'_, '_>,
    pointers: &Pointers,
    reading: Reading,
    (first, pages): (usize, usize),
    is_ahead: bool,
    seed: u64,
    until: u64,
) -> Answer {
    let order = Order { random: Random::new(seed), first, pages };
    match reading {
        Reading::Unguarded => {
            let at = &pointers.0;
            // SAFETY: the page's memory can be read, and nobody writes.
            let load =
                |at: NonNull<u8>, word| unsafe { at.cast::<u64>().add(word).read_volatile() };
            let far = |page: usize| {
                prefetch_read((&raw const at[page]).cast());
                &at[page]
            };
            let near = |at: &&NonNull<u8>, word| prefetch_read(at.as_ptr().wrapping_add(word * 8));
            if is_ahead {
                time_groups(order, until, far, near, |at, word| load(**at, word))
            } else {
                time(order, until, |page, word| load(at[page], word))
            }
        }
        Reading::Shared => {
            let far = |page| {
                let entry = view.entry(page);
                entry.fetch_entry_to_guard();
                entry
            };
            let near = |entry: &PageEntry<'_, '_, '_>, word| entry.fetch(word * 8);
            let load = |guard: pumice_cache::Result<PageRef<'_, '_>>, word| match guard {
                Ok(guard) => word_of(&guard, word),
                Err(_) => 0,
            };
            if is_ahead {
                time_groups(order, until, far, near, |entry, word| load(entry.read(), word))
            } else {
                time(order, until, |page, word| load(view.read(page), word))
            }
        }
        Reading::Optimistic => {
            let far = |page| {
                let entry = view.entry(page);
                entry.fetch_entry();
                entry
            };
            let near = |entry: &PageEntry<'_, '_, '_>, word| entry.fetch(word * 8);
            if is_ahead {
                let load = |entry: &PageEntry<'_, '_, '_>, word| {
                    entry.read_optimistic(|words| words.load(word)).unwrap_or(0)
                };
                time_groups(order, until, far, near, load)
            } else {
                let load =
                    |page, word| view.read_optimistic(page, |words| words.load(word)).unwrap_or(0);
                time(order, until, load)
            }
        }
    }
}

#[inline(always)]
fn word_of(page: &[u8; FRAME_SIZE], word: usize) -> u64 {
    page[word * 8..word * 8 + 8].try_into().map_or(0, u64::from_ne_bytes)
}

/// Calls `some`, which reads a number of words and returns their sum, until it is time.
#[inline(always)]
fn until_then(until: u64, reads: usize, mut some: impl FnMut() -> u64) -> Answer {
    let (mut sum, mut accesses) = (0_u64, 0);
    let begun = now_ns();
    loop {
        let mut done = 0;
        while done < STRIDE {
            sum = sum.wrapping_add(some());
            done += reads;
        }
        accesses += done as u64;
        let now = now_ns();
        if now >= until {
            black_box(sum);
            let seconds = (now - begun) as f64 / 1e9;
            return Answer { accesses, bytes: accesses * 8, seconds, ..Answer::default() };
        }
    }
}

#[inline(always)]
fn time(mut order: Order, until: u64, load: impl Fn(usize, usize) -> u64) -> Answer {
    until_then(until, 1, || {
        let (page, word) = order.next();
        load(page, word)
    })
}

/// `far` says where a page is, and fetches the line that the page is found by; `near` fetches that of the word.
#[inline(always)]
fn time_groups<E>(
    mut order: Order,
    until: u64,
    far: impl Fn(usize) -> E,
    near: impl Fn(&E, usize),
    load: impl Fn(&E, usize) -> u64,
) -> Answer {
    let mut draw = || {
        let (page, word) = order.next();
        (far(page), word)
    };
    // Three groups that change places: nothing is copied from one to the next.
    let mut a: [(E, usize); GROUP] = array::from_fn(|_| draw());
    let mut b: [(E, usize); GROUP] = array::from_fn(|_| draw());
    let mut c: [(E, usize); GROUP] = array::from_fn(|_| draw());
    let mut turn = |now: &mut [(E, usize); GROUP], next: &[(E, usize); GROUP]| {
        next.iter().for_each(|(entry, word)| near(entry, *word));
        let sum = now.iter().map(|(entry, word)| load(entry, *word)).fold(0, u64::wrapping_add);
        now.iter_mut().for_each(|place| *place = draw());
        sum
    };
    until_then(until, 3 * GROUP, || {
        let sums = [turn(&mut a, &b), turn(&mut b, &c), turn(&mut c, &a)];
        sums.into_iter().fold(0, u64::wrapping_add)
    })
}
