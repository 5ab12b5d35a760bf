//! Races of sync, close, cut and growth.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{mpsc, Mutex};

use rustix::io::Errno;

use super::*;
use pumice_io::engine::{Completion, Engine, Plain, Request};
use pumice_io::Engines;

fn word_in_file(path: &Path, page: usize) -> u64 {
    let file = fs::File::open(path).expect("the file");
    let mut word = [0; 8];
    match file.read_exact_at(&mut word, (page * FRAME_SIZE) as u64) {
        Ok(()) => u64::from_le_bytes(word),
        Err(_) => 0,
    }
}

#[test]
fn sync_waits_for_a_guard_and_writes_what_it_wrote() {
    let scratch = Scratch::in_folder(Path::new("/dev/shm"), "waits");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new().buffered()).expect("a file");
        let (to, from) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let mut missed = 0;
        std::thread::scope(|scope| {
            let file = &file;
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                for round in 1..=3000u64 {
                    let mut guard = view.write_or_grow(0).expect("room");
                    to.send(()).expect("a reader");
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(20 + round % 40) {
                        std::hint::spin_loop();
                    }
                    guard[..8].copy_from_slice(&round.to_le_bytes());
                    drop(guard);
                    is_done.recv().expect("synced");
                }
            });
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            for round in 1..=3000u64 {
                from.recv().expect("a writer");
                view.sync().expect("room");
                missed += u32::from(word_in_file(&scratch.0, 0) != round);
                done.send(()).expect("a writer");
            }
        });
        assert_eq!(missed, 0, "of 3000");
    })
    .expect("a cache");
}

#[test]
fn sync_writes_what_is_said_not_to_be_needed() {
    let scratch = Scratch::in_folder(Path::new("/dev/shm"), "dont-need");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new().buffered()).expect("a file");
        let is_over = AtomicBool::new(false);
        let mut missed = 0;
        std::thread::scope(|scope| {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                while !is_over.load(Ordering::Relaxed) {
                    view.advise(0..64, Advice::DontNeed);
                }
            });
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            for round in 1..=1000u64 {
                for page in 0..64 {
                    let mut guard = view.write_or_grow(page).expect("room");
                    guard[..8].copy_from_slice(&round.to_le_bytes());
                }
                view.sync().expect("room");
                missed += (0..64).filter(|&page| word_in_file(&scratch.0, page) != round).count();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(missed, 0, "of 64000");
    })
    .expect("a cache");
}

/// A thread makes a file longer while another that syncs it waits for a guard of the first one's.
#[test]
fn who_has_a_guard_makes_the_file_longer_beside_sync() {
    let scratch = Scratch::new("longer");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_or_grow(3).expect("room")[0] = 1;
        view.sync().expect("the device is there");
        let (grown, is_grown) = mpsc::channel();
        let mut guard = view.write(3).expect("there");
        guard[0] = 2;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if is_grown.recv_timeout(Duration::from_secs(60)).is_err() {
                    eprintln!("growing the file waits for a thread that waits for its guard");
                    std::process::abort();
                }
            });
            let file = &file;
            let syncing = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                view.sync()
            });
            while file.inner.syncing.try_lock().is_some() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(10));
            view.set_len(10 * FRAME_SIZE as u64 + 5).expect("room");
            view.allocate(20 * FRAME_SIZE as u64).expect("room");
            view.write_or_grow(30).expect("room")[0] = 3;
            assert!(!syncing.is_finished(), "it waits for the guard");
            drop(guard);
            grown.send(()).expect("somebody waits");
            syncing.join().expect("no panic").expect("the device is there");
        });
        view.sync().expect("the device is there");
        let bytes = fs::read(&scratch.0).expect("the file");
        let firsts = [3, 30].map(|page| bytes[page * FRAME_SIZE]);
        assert_eq!((bytes.len(), firsts), (31 * FRAME_SIZE, [2, 3]));
    })
    .expect("a cache");
}

/// Does something once, when a page is about to be written.
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl WriteAhead for Hook {
    fn position(&self, _: usize, _: &Page) -> u64 {
        if let Some(hook) = self.0.lock().expect("no panic").take() {
            hook();
        }
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn wanted(&self, _: u64) {}
}

#[test]
fn who_closes_keeps_what_others_write() {
    let scratch = Scratch::new("closes");
    run(&settings(512), |cache| {
        let (to, from) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel::<()>();
        let hook = Hook(Mutex::new(Some(Box::new(move || {
            to.send(()).expect("a writer");
            is_done.recv().expect("written");
        }))));
        let options = Options::new().write_ahead(Arc::new(hook));
        let file = cache.open(&scratch.0, &options).expect("a file");
        let other = file.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(&other).expect("room");
                drop(other);
                from.recv().expect("a writer");
                view.write(1).expect("room")[0] = 7;
                drop(view);
                done.send(()).expect("waits");
            });
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            view.set_len(2 * FRAME_SIZE as u64).expect("room");
            view.write(0).expect("room")[0] = 1;
            drop(view);
            task.close(file).expect("room");
        });
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        assert_eq!(task.view(&file).expect("room").read(1).expect("there")[0], 7);
    })
    .expect("a cache");
}

#[test]
fn who_cuts_off_a_file_that_is_being_written_makes_it_so_short() {
    let scratch = Scratch::new("cuts");
    let settings = Settings { dirty_background: 0, ..settings(512) };
    run(&settings, |cache| {
        let path = scratch.0.to_path_buf();
        let hook = Hook(Mutex::new(Some(Box::new(move || {
            for _ in 0..200 {
                if fs::metadata(&path).expect("the file").len() == 100 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(50));
        }))));
        let options = Options::new().write_ahead(Arc::new(hook));
        let file = cache.open(&scratch.0, &options).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.set_len(2 * FRAME_SIZE as u64).expect("room");
        view.write(0).expect("room").fill(9);
        // The flusher has it, and asks the log.
        std::thread::sleep(Duration::from_millis(100));
        view.set_len(100).expect("room");
        view.sync().expect("room");
        assert_eq!(fs::metadata(&scratch.0).expect("the file").len(), 100);
    })
    .expect("a cache");
}

/// Reports reads as done only to a thread that waits for them, or asks again and again.
#[derive(Default)]
struct Slow {
    engine: Plain,
    asked: usize,
    done: VecDeque<Completion>,
}

// SAFETY: by plain calls.
unsafe impl Engine for Slow {
    fn depth(&self) -> usize {
        usize::MAX
    }

    unsafe fn submit(&mut self, request: Request) -> core::result::Result<(), Errno> {
        // SAFETY: forwarded.
        unsafe { self.engine.submit(request) }
    }

    fn wait(&mut self, least: usize) -> core::result::Result<(), Errno> {
        self.asked += 1;
        for _ in 0..least.max(usize::from(self.asked % 16 == 0)) {
            self.done.extend(self.engine.next());
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

#[test]
fn who_has_all_frames_on_their_way_gets_one_more() {
    let scratch = Scratch::new("on-their-way");
    fs::write(&scratch.0, vec![3; 4096 * FRAME_SIZE]).expect("room");
    let engines = Engines::new(|_| Box::new(Slow::default()));
    run(&Settings { engines: engines.clone(), ..settings(512) }, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        let other = cache.task().expect("room");
        let pages: Vec<usize> = (0..3000).collect();
        let begun = view.prefetch(&pages);
        assert!(begun < 3000);
        let got = other.view(&file).expect("room").read(3500).map(|page| page[0]);
        assert_eq!(got, Ok(3), "{begun} on their way");
    })
    .expect("a cache");
}

#[test]
fn who_appends_beside_sync_loses_nothing() {
    let scratch = Scratch::new("appends");
    let settings = Settings { dirty_background: 0, ..settings(512) };
    const PAGES: usize = 60_000;
    run(&settings, |cache| {
        let options = Options::new().room((PAGES * FRAME_SIZE) as u64);
        let file = cache.open(&scratch.0, &options).expect("a file");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                while !is_over.load(Ordering::Relaxed) {
                    view.sync_range(0..1).expect("room");
                }
            });
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            for page in 0..PAGES {
                view.write_or_grow(page).expect("room")[..8]
                    .copy_from_slice(&(page as u64 + 1).to_le_bytes());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let task = cache.task().expect("room");
        task.view(&file).expect("room").sync().expect("room");
        let lost: Vec<usize> =
            (0..PAGES).filter(|&page| word_in_file(&scratch.0, page) != page as u64 + 1).collect();
        assert!(lost.is_empty(), "{} lost, {:?}...", lost.len(), &lost[..lost.len().min(9)]);
    })
    .expect("a cache");
}

struct Late(AtomicU64);

impl WriteAhead for Late {
    fn position(&self, _: usize, bytes: &Page) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().expect("a word"))
    }

    fn durable(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn wanted(&self, _: u64) {}
}

#[test]
fn sync_waits_for_the_log_of_pages_that_reclaim_has() {
    let scratch = Scratch::in_folder(Path::new("/dev/shm"), "reclaim-log");
    let log = Arc::new(Late(AtomicU64::new(0)));
    let settings = Settings { dirty_background: 10_000, dirty_most: 10_000, ..settings(512) };
    run(&settings, |cache| {
        let file =
            cache.open(&scratch.0, &Options::new().write_ahead(log.clone())).expect("a file");
        let is_over = AtomicBool::new(false);
        let at = AtomicU64::new(0);
        let mut missed = 0;
        std::thread::scope(|scope| {
            let (file, is_over, log, at) = (&file, &is_over, &log, &at);
            let task = cache.task().expect("room");
            let view = task.view(file).expect("room");
            view.set_len(4096 * FRAME_SIZE as u64).expect("room");
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                let mut random = 1;
                while !is_over.load(Ordering::Relaxed) {
                    random = mix(random);
                    let _ = view.read(500 + random as usize % 3500);
                }
            });
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let to = at.load(Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(3));
                    log.0.store(to, Ordering::SeqCst);
                }
            });
            for round in 1..=300u64 {
                let mut written = Vec::new();
                for page in 0..120 {
                    if let Ok(mut guard) = view.write(page) {
                        guard[..8].copy_from_slice(&round.to_le_bytes());
                        written.push(page);
                    }
                }
                std::thread::sleep(Duration::from_micros(mix(round) % 500));
                at.store(round, Ordering::SeqCst);
                view.sync().expect("room");
                let is_missed = |page: &&usize| word_in_file(&scratch.0, **page) != round;
                missed += written.iter().filter(is_missed).count();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(missed, 0, "of 36000");
    })
    .expect("a cache");
}

#[test]
fn who_closes_ends_what_is_read_ahead() {
    let scratch = Scratch::new("closes-ahead");
    fs::write(&scratch.0, vec![3; 64 * FRAME_SIZE]).expect("room");
    let engines = Engines::new(|_| Box::new(Slow::default()));
    run(&Settings { engines: engines.clone(), ..settings(512) }, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let (task, other) = (cache.task().expect("room"), cache.task().expect("room"));
        assert_eq!(task.view(&file).expect("room").prefetch(&[1, 2]), 2);
        assert_eq!(other.view(&file).expect("room").prefetch(&[5]), 1);
        task.close(file).expect("room");
        fs::write(&scratch.0, vec![4; 64 * FRAME_SIZE]).expect("room");
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let view = task.view(&file).expect("room");
        assert_eq!([1, 5].map(|page| view.read(page).expect("room")[0]), [4, 4]);
    })
    .expect("a cache");
}
