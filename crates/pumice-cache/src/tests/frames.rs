//! Threads that make pages dirty faster than the device writes them.

use rustix::io::Errno;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use super::*;
use pumice_io::engine::{self, Completion, Direction, Engine, Request};
use pumice_io::{AnyEngine, Engines};

/// A device that does one write after the other, and takes a while for each.
struct Slow {
    engine: AnyEngine,
    free_at: Arc<Mutex<Instant>>,
    takes: Duration,
    pending: VecDeque<(Instant, Request)>,
    inside: usize,
    done: VecDeque<Completion>,
}

// SAFETY: the memory of what is pending is the engine's.
unsafe impl Send for Slow {}

impl Slow {
    fn engines(takes: Duration) -> Engines {
        let free_at = Arc::new(Mutex::new(Instant::now()));
        Engines::new(move |depth| {
            let free_at = Arc::clone(&free_at);
            let (pending, done) = (VecDeque::new(), VecDeque::new());
            Box::new(Slow { engine: engine::best(depth), free_at, takes, pending, inside: 0, done })
        })
    }
}

// SAFETY: requests are handed to the engine inside late, and not at all where this is dropped before.
unsafe impl Engine for Slow {
    fn depth(&self) -> usize {
        self.engine.depth()
    }
    unsafe fn submit(&mut self, request: Request) -> std::result::Result<(), Errno> {
        let mut free_at = self.free_at.lock().expect("no panic");
        let due = if request.direction == Direction::Write {
            *free_at = (*free_at).max(Instant::now()) + self.takes;
            *free_at
        } else {
            Instant::now()
        };
        self.pending.push_back((due, request));
        Ok(())
    }
    fn wait(&mut self, least: usize) -> std::result::Result<(), Errno> {
        loop {
            while let Some(at) = self.pending.iter().position(|one| one.0 <= Instant::now()) {
                let (_, request) = self.pending.remove(at).expect("it is there");
                // SAFETY: the caller's promise of when it was submitted here.
                unsafe { self.engine.submit(request) }?;
                self.inside += 1;
            }
            self.engine.wait(0)?;
            while let Some(done) = self.engine.next() {
                self.inside -= 1;
                self.done.push_back(done);
            }
            if self.done.len() >= least.min(self.done.len() + self.inside + self.pending.len()) {
                return Ok(());
            }
            if self.inside > 0 {
                self.engine.wait(1)?;
            } else {
                let due = self.pending.iter().map(|one| one.0).min().expect("one is pending");
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
    }
    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

/// Threads that write, and how often each does.
const THREADS: u64 = 16;
const TIMES: u64 = 400;
/// Pages of the file.
const PAGES: usize = 1200;
/// Between syncs.
const GAP: Duration = Duration::from_millis(1);

/// For a cache all of which may be dirty.
fn undisturbed() -> Settings {
    Settings { dirty_background: usize::MAX, dirty_most: usize::MAX, ..settings(512) }
}

/// Many threads write into a cache, all of which may be dirty. Another thread does something to the file again and
/// again. Returns how often there was no frame for a writer, and how often a thread reclaimed for itself.
fn count_refusals(name: &str, meanwhile: impl Fn(&View<'_, '_>)) -> (u64, u64) {
    let scratch = Scratch::new(name);
    let engines = Slow::engines(Duration::from_micros(100));
    let settings = Settings { engines, ..undisturbed() };
    let (refused, mut stalls) = (AtomicU64::new(0), 0);
    with_file(&settings, &scratch, |cache, _, file, view| {
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
        let left = AtomicU64::new(THREADS);
        let (left, refused) = (&left, &refused);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = file.clone();
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    for time in 0..TIMES {
                        let random = mix(thread << 32 | time);
                        let page = random as usize % PAGES;
                        let result = match random >> 61 {
                            0 => view.read(page).map(drop),
                            1 => view.write(page).map(drop),
                            _ => view.overwrite(page, &[thread as u8; FRAME_SIZE]),
                        };
                        match result {
                            Ok(()) | Err(CacheError::PastEnd { .. }) => {}
                            Err(CacheError::Space(VmError::OutOfFrames(_))) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while left.load(Ordering::Relaxed) > 0 {
                meanwhile(view);
            }
        });
        stalls = cache.counts().allocstall;
    });
    (refused.into_inner(), stalls)
}

/// No page of a file is written while the device is told of another length, which is so nearly always here, and all
/// pages may be dirty then. Changes do not go by without writes: a write is put off by one at most.
#[test]
fn writers_wait_for_frames_while_a_file_changes_its_length() {
    let changes = AtomicU64::new(0);
    let (refused, stalls) = count_refusals("frames-length", |view| {
        changes.fetch_add(1, Ordering::Relaxed);
        let len = view.len();
        view.set_len(len - FRAME_SIZE as u64).expect("shorter");
        view.set_len(len).expect("longer");
    });
    let changes = changes.into_inner();
    eprintln!("{changes} changes");
    assert!(changes < THREADS * TIMES, "writers starve");
    assert!(refused == 0 && stalls > 0, "{refused} refused, {stalls} stalls");
}

#[test]
fn writers_wait_for_frames_while_a_file_is_synced() {
    let (refused, stalls) = count_refusals("frames-sync", |view| {
        view.sync().expect("the device is there");
        view.prefetch(&[1, 300, 900]);
        std::thread::sleep(GAP);
    });
    assert!(refused == 0 && stalls > 0, "{refused} refused, {stalls} stalls");
}

/// Frames of pages that are cut off are free, though reclaim has no page to evict.
#[test]
fn frames_of_a_file_that_is_cut_off_are_found() {
    let round = AtomicU64::new(0);
    let (refused, _) = count_refusals("frames-cut", |view| {
        let kept = mix(round.fetch_add(1, Ordering::Relaxed)) as usize % PAGES;
        view.set_len((kept * FRAME_SIZE) as u64).expect("shorter");
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("longer");
    });
    assert_eq!(refused, 0);
}

/// Where guards have all frames there is an error, also of the thread that has the guards.
#[test]
fn who_has_all_frames_is_told_that_there_is_none() {
    let scratch = Scratch::new("frames-held");
    with_file(&settings(512), &scratch, |_, _, _, view| {
        view.set_len((1024 * FRAME_SIZE) as u64).expect("room");
        let mut guards = Vec::new();
        let error = (0..1024).find_map(|page| view.write(page).map(|it| guards.push(it)).err());
        assert!(matches!(error, Some(CacheError::Space(VmError::OutOfFrames(_)))), "{error:?}");
        assert!(guards.len() > 256, "{}", guards.len());
        let whole = view.overwrite(1000, &[1; FRAME_SIZE]);
        assert!(matches!(whole, Err(CacheError::Space(VmError::OutOfFrames(_)))), "{whole:?}");
        guards.clear();
        view.overwrite(1000, &[1; FRAME_SIZE]).expect("there are frames now");
    });
}

/// Writes to so many pages, all of which may be dirty, while a thread cuts those behind them off.
fn write_beside_a_cut(
    cache: &Cache<'_>,
    file: &File,
    left: usize,
    meanwhile: impl FnOnce(ScopedJoinHandle<'_, ()>),
) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            view.set_len((left * FRAME_SIZE) as u64).expect("shorter");
        });
        while file.inner.resizing.try_lock().is_some() {
            std::thread::yield_now();
        }
        meanwhile(scope.spawn(|| {
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            for page in 0..left {
                view.overwrite(page, &[1; FRAME_SIZE]).expect("a frame");
            }
        }));
    });
    assert_eq!(file.pages(), left);
}

/// It waits for guards of pages that go, however long that is: pages that stay are written.
#[test]
fn who_cuts_a_file_off_and_waits_for_a_guard_keeps_no_page_from_the_device() {
    let scratch = Scratch::new("frames-guard");
    with_file(&undisturbed(), &scratch, |cache, _, file, view| {
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
        let guard = view.read(PAGES - 1).expect("there");
        write_beside_a_cut(cache, file, PAGES - 1, |writer| {
            writer.join().expect("there are frames");
            drop(guard);
        });
    });
}

/// The frames of those that nobody has are the writers' at once, though all memory was full of them.
#[test]
fn who_cuts_a_file_off_and_waits_for_a_guard_keeps_no_frame() {
    let scratch = Scratch::new("frames-cut-guard");
    with_file(&undisturbed(), &scratch, |cache, _, file, view| {
        view.set_len((4 * PAGES * FRAME_SIZE) as u64).expect("room");
        let guard = view.read(PAGES / 2).expect("there");
        (3 * PAGES..4 * PAGES).for_each(|page| {
            view.overwrite(page, &[2; FRAME_SIZE]).expect("a frame");
        });
        write_beside_a_cut(cache, file, PAGES / 2, |writer| {
            writer.join().expect("there are frames");
            drop(guard);
        });
    });
}

/// Nor the frames of pages whose guards end while it waits for another's.
#[test]
fn who_cuts_a_file_off_and_waits_for_a_guard_keeps_no_frame_that_others_let_go() {
    let scratch = Scratch::new("frames-cut-guards");
    with_file(&undisturbed(), &scratch, |cache, _, file, view| {
        view.set_len((8 * PAGES * FRAME_SIZE) as u64).expect("room");
        let first = view.read(PAGES / 2).expect("there");
        // All frames but a few, in tables behind that of the first guard.
        let mut held: Vec<_> =
            (4 * PAGES..8 * PAGES).map_while(|page| view.write(page).ok()).collect();
        held.iter_mut().for_each(|page| page[0] = 1);
        held.truncate(held.len() - 4);
        write_beside_a_cut(cache, file, PAGES / 2, |writer| {
            while file.pages() != PAGES / 2 {
                std::thread::yield_now();
            }
            drop(held);
            writer.join().expect("there are frames");
            assert!(file.dirty() <= PAGES / 2, "{}", file.dirty());
            drop(first);
        });
    });
}

/// Where the device takes longer to cut a file off than reclaim tries pages that must not be written, writers wait.
#[test]
fn writers_wait_for_a_device_that_is_slow_to_cut_a_file_off() {
    let scratch = Scratch::new("frames-slow-cut");
    with_file(&undisturbed(), &scratch, |cache, _, file, view| {
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
        let slow = file.inner.data.fails.set_len.lock().expect("no panic");
        write_beside_a_cut(cache, file, PAGES - 1, |writer| {
            std::thread::sleep(Duration::from_secs(3));
            drop(slow);
            writer.join().expect("there are frames");
        });
    });
}
