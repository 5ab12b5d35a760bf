//! Files of a cache under many random interleavings (shuttle): pages that are filled, written to, written whole,
//! evicted, synced and cut off at the same time, over a device that is late, goes out of order, and fails.
//!
//! Invariants: no update is lost; bytes written before a `sync` are on the device after it; a reader of a page that is
//! written whole sees one writing of it; nothing is dirty, in memory or held at the end.
//!
//! The device is a model's; the file has the length only.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shuttle::thread;

use super::unflushed::{Why, LEAST};
use super::*;
use pumice_frames::frame::Gfp;
use pumice_io::fake::late::{Device, Faults, Late};
use pumice_io::Engines;
use pumice_paging::page_table::Atomic;
use pumice_paging::reclaim::{policy, Adaptive, Paging, Settings as ReclaimSettings, ZoneReclaim};
use pumice_paging::space::models::{Model, Shared, FRAMES};
use pumice_paging::space::region::Page;
use pumice_paging::space::VmError;

const ITERATIONS: usize = 1000;
/// Pages that are added to, and after them such as are written whole.
const ADDED: usize = 4;
const PAGES: usize = 6;
/// Frames that are free when the threads begin, and pages that may be in memory.
const ROOM: usize = 24;
const RESIDENT: usize = 3;
/// Frames that are free where threads wait for some.
const FEW: usize = 6;
const TRIES: usize = 5000;
/// Moments at which the power may fail, in each run.
const CRASHES: usize = 50;
/// Threads of a model at a time, `kswapd` among them.
const TASKS: usize = 4;

/// A cache, and what is behind it.
struct Stage {
    cache: &'static Cache<'static>,
    paging: &'static Paging<Adaptive<'static>, &'static Files>,
    shared: Shared<Atomic>,
    model: Model,
    kept: Vec<pumice_frames::addr::Pfn>,
    disk: Arc<Disk>,
    path: PathBuf,
}

/// A device with a cache of its own, and what must be on it.
struct Disk {
    device: Arc<Device>,
    /// The bytes after a power failure: those that the device had been handed when the last finished sync began.
    durable: Mutex<Vec<u8>>,
    /// Syncs until one fails, after which what was not durable before is lost, whatever is synced.
    flushes: AtomicUsize,
    /// How often each page was written, and what of that somebody was told is durable.
    counts: Vec<AtomicU64>,
    synced: Vec<AtomicU64>,
}

impl Disk {
    fn new(faults: Faults, flushes: usize) -> Disk {
        let zeros = || Mutex::new(vec![0; PAGES * FRAME_SIZE]);
        let device = Arc::new(Device { bytes: zeros(), faults: Mutex::new(faults) });
        let numbers = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let flushes = AtomicUsize::new(flushes);
        Disk { device, durable: zeros(), flushes, counts: numbers(), synced: numbers() }
    }

    fn flush(&self) -> std::result::Result<(), Errno> {
        let now = self.device.bytes.lock().expect("no panic").clone();
        let left = self.flushes.load(Ordering::Relaxed);
        if left == 0 {
            return Ok(());
        }
        self.flushes.fetch_sub(1, Ordering::Relaxed);
        if left == 1 {
            // The kernel tells one thread, which others do not know of yet.
            (0..8).for_each(|_| thread::yield_now());
            return Err(Errno::IO);
        }
        // Bytes that are written meanwhile are not flushed.
        thread::yield_now();
        *self.durable.lock().expect("no panic") = now;
        Ok(())
    }

    /// The first word of a page, after a power failure.
    fn after_crash(&self, page: usize) -> u64 {
        let bytes = self.durable.lock().expect("no panic");
        let word = &bytes[page * FRAME_SIZE..][..8];
        u64::from_le_bytes(word.try_into().expect("a word"))
    }

    /// All that somebody was told is durable is there after a power failure now.
    fn crash(&self) {
        // Relaxed: one of shuttle's threads runs at a time.
        let told: Vec<u64> = self.synced.iter().map(|page| page.load(Ordering::Relaxed)).collect();
        for (page, told) in told.into_iter().enumerate() {
            let there = self.after_crash(page);
            assert!(there >= told, "page {page}: {there} is there, and {told} was synced");
        }
    }
}

fn leak<T>(what: T) -> &'static T {
    Box::leak(Box::new(what))
}

impl Stage {
    fn new(faults: Faults) -> Stage {
        Stage::on(Arc::new(Disk::new(faults, usize::MAX)))
    }

    fn on(disk: Arc<Disk>) -> Stage {
        let late = Arc::clone(&disk.device);
        let settings = Settings {
            engines: Engines::new(move |_| Box::new(Late::new(&late))),
            // Nobody writes in the background: the threads do.
            dirty_background: 0,
            dirty_most: FRAMES,
            ..Settings::new(FRAMES)
        };
        let files = leak(Files::new(&settings));
        let entries = Box::leak(policy::table::<Adaptive<'_>>(FRAMES).into_boxed_slice());
        let limits = ReclaimSettings::of(FRAMES).with_most_pages(RESIDENT);
        let reclaim = ZoneReclaim::new(Adaptive::new(entries), FRAMES, limits);
        reclaim.set_engines(&settings.engines);
        let paging = leak(Paging::on(Arc::new(reclaim), files));
        let model = Model::paged_by(paging);
        let shared = Shared::<Atomic>::of_files(model);
        // Records of as many threads as a model has room for stay.
        drop((0..TASKS).map(|_| shared.enter()).collect::<Vec<_>>());
        let (space, fills) = (shared.space, leak(RwLock::default()));
        let reclaim = leak(|| paging.counts());
        let cache = leak(Cache { space, files, reclaim, fills });
        let name =
            format!("pumice-shuttle-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![0; PAGES * FRAME_SIZE]).expect("room");
        Stage { cache, paging, shared, model, kept: Vec::new(), disk, path }
    }

    fn open(&self) -> File {
        let options = Options::new().buffered().room((PAGES * FRAME_SIZE) as u64);
        let file = self.cache.open(&self.path, &options).expect("a file");
        let disk = Arc::clone(&self.disk);
        let flush = file.inner.data.fails.flush.0.set(Box::new(move || disk.flush()));
        assert!(flush.is_ok(), "it is opened once");
        file
    }

    /// All is as it was written; the cache ends.
    fn end(self, file: File, kswapd: thread::JoinHandle<()>) {
        *self.disk.device.faults.lock().expect("no panic") = Faults::default();
        let task = self.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        insist(|| view.sync());
        for page in 0..view.pages() {
            // Relaxed: the threads have ended.
            let expected = self.disk.counts[page].load(Ordering::Relaxed);
            assert_eq!(self.disk.after_crash(page), expected, "page {page} in the file");
            let found = insist(|| view.read(page).map(|guard| word_of(&guard)));
            assert_eq!(found, expected, "page {page} in memory");
        }
        let counts = self.cache.counts();
        assert!(counts.dirty == 0 && counts.resident <= view.pages() as u64, "{counts:?}");
        drop(view);
        task.close(file).expect("nobody else has it");
        assert_eq!(self.cache.counts().resident, 0);
        drop(task);
        self.paging.stop();
        kswapd.join().expect("no panic");
        self.model.give_back(self.kept);
        self.shared.end();
        std::fs::remove_file(&self.path).expect("ours");
    }
}

fn word_of(page: &Page) -> u64 {
    u64::from_le_bytes(page[..8].try_into().expect("a word"))
}

/// Does it again while the device fails, or memory is short because of that.
fn insist<R>(mut what: impl FnMut() -> Result<R>) -> R {
    for _ in 0..TRIES {
        match what() {
            Ok(done) => return done,
            Err(
                CacheError::Read { .. }
                | CacheError::Write { .. }
                | CacheError::Space(VmError::OutOfFrames(_)),
            ) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never went");
}

/// As [`insist`], of a page that may be cut off.
fn unless_cut<R>(mut what: impl FnMut() -> Result<R>) -> Option<R> {
    insist(|| match what() {
        Err(CacheError::PastEnd { .. }) => Ok(None),
        done => done.map(Some),
    })
}

fn add(view: &View<'_, '_>, disk: &Disk, page: usize) {
    let mut guard = insist(|| view.write(page));
    let next = word_of(&guard) + 1;
    guard[..8].copy_from_slice(&next.to_le_bytes());
    drop(guard);
    // Relaxed: a lower bound to threads that look meanwhile.
    disk.counts[page].fetch_add(1, Ordering::Relaxed);
}

/// Makes all words of a page its next number; one thread does that.
fn overwrite(view: &View<'_, '_>, disk: &Disk, page: usize) {
    let next = disk.counts[page].load(Ordering::Relaxed) + 1;
    let mut bytes = [0; FRAME_SIZE];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next.to_le_bytes()));
    insist(|| view.overwrite(page, &bytes));
    disk.counts[page].store(next, Ordering::Relaxed);
}

/// Reads a page: its version is no less than the one before, and a page that is written whole is of one writing.
fn look(view: &View<'_, '_>, disk: &Disk, page: usize) {
    let before = disk.counts[page].load(Ordering::Relaxed);
    let guard = insist(|| view.read(page));
    let found = word_of(&guard);
    assert!(found >= before, "page {page} went back to {found} from {before}");
    let mut words = guard.chunks_exact(8);
    assert!(page < ADDED || words.all(|word| *word == guard[..8]), "a part of page {page}");
}

/// Syncs: earlier writes are there after a power failure, from then on.
fn sync(view: &View<'_, '_>, disk: &Disk) {
    let before: Vec<u64> = disk.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    insist(|| view.sync());
    for (page, before) in before.into_iter().enumerate() {
        disk.synced[page].fetch_max(before, Ordering::Relaxed);
    }
    disk.crash();
}

/// The part of the file that is there when the threads are done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    All,
    /// Some was cut off.
    Some,
}

type Work = fn(&CacheTask<'_>, &View<'_, '_>, &Disk);

/// Threads that add, write whole, read ahead, evict and sync.
const WORKERS: [Work; 3] = [
    |task, view, disk| {
        for turn in 0..3 * ADDED {
            add(view, disk, turn * 3 % ADDED);
            look(view, disk, turn * 5 % PAGES);
            task.task.lru_drain();
        }
        sync(view, disk);
    },
    |task, view, disk| {
        for turn in 0..8 {
            overwrite(view, disk, ADDED + turn % (PAGES - ADDED));
            add(view, disk, turn % ADDED);
            task.task.lru_drain();
            if turn % 4 == 3 {
                sync(view, disk);
            }
        }
    },
    |task, view, disk| {
        view.prefetch(&[0, 1, 2, 3, 4, 5]);
        for turn in 0..PAGES {
            look(view, disk, turn);
            view.advise(turn..turn + 2, Advice::DontNeed);
            task.task.lru_drain();
        }
        sync(view, disk);
    },
];

/// Threads that write pages whole and read them while one cuts them off.
const CUTTERS: [Work; 3] = [
    |task, view, _| {
        for turn in 0..4 * PAGES as u64 {
            let page = turn as usize * 5 % PAGES;
            let mut bytes = [0; FRAME_SIZE];
            let word = (turn + 1) << 8 | page as u64;
            bytes.chunks_exact_mut(8).for_each(|to| to.copy_from_slice(&word.to_le_bytes()));
            unless_cut(|| view.overwrite(page, &bytes));
            task.task.lru_drain();
        }
    },
    |task, view, _| {
        for turn in 0..2 * PAGES {
            let page = turn * 5 % PAGES;
            view.prefetch(&[page, page + 1]);
            let guard = unless_cut(|| view.read(page));
            if let Some(found) = guard.as_deref().map(word_of) {
                assert!(found == 0 || found & 0xFF == page as u64, "{found:#x} on page {page}");
                let mut words = guard.iter().flat_map(|guard| guard.chunks_exact(8));
                assert!(words.all(|word| word == found.to_le_bytes()), "a part of page {page}");
            }
            drop(guard);
            task.task.lru_drain();
            if turn == PAGES {
                insist(|| view.sync());
            }
        }
    },
    |_, view, _| {
        for pages in [3, PAGES, 1, PAGES, 4, 5, PAGES, 3] {
            view.set_len((pages * FRAME_SIZE) as u64).expect("another length");
        }
    },
];

/// Three threads, and `kswapd`.
fn scenario(workers: [Work; 3], left: Left, faults: Faults) -> (Counts, u64) {
    let mut stage = Stage::new(faults);
    let file = stage.open();
    stage.kept = stage.model.keep_all_but(ROOM);
    let (cache, paging, space) = (stage.cache, stage.paging, stage.shared.space);
    let kswapd = thread::spawn(move || paging.kswapd(space).expect("room"));
    let threads = workers.map(|work| {
        let (file, disk) = (file.clone(), Arc::clone(&stage.disk));
        thread::spawn(move || {
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            work(&task, &view, &disk);
        })
    });
    // The power may fail at any moment.
    for _ in 0..CRASHES {
        thread::yield_now();
        stage.disk.crash();
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let counts = (cache.counts(), paging.counts().clean);
    if left == Left::Some {
        // Nothing past the end is in memory, or dirty; nobody has counted the pages before it.
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        insist(|| view.sync());
        let counts = cache.counts();
        assert!(counts.dirty == 0 && counts.resident <= view.pages() as u64, "{counts:?}");
        view.set_len(0).expect("shorter");
    }
    stage.end(file, kswapd);
    counts
}

fn check(workers: [Work; 3], left: Left, faults: Faults) {
    let all = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&all);
    let once = move || {
        let one = scenario(workers, left, faults);
        seen.lock().expect("no panic").push(one);
    };
    let iterations = if faults.error > 0 { ITERATIONS / 10 } else { ITERATIONS };
    shuttle::check_random(once, iterations);
    // It has been about something.
    let all = all.lock().expect("no panic");
    let sum = |of: fn(&(Counts, u64)) -> u64| all.iter().map(of).sum::<u64>();
    let (read, written) = (sum(|(counts, _)| counts.read), sum(|(counts, _)| counts.written));
    let clean = sum(|(_, clean)| *clean);
    eprintln!("{read} read, {written} written, {clean} taken out clean");
    // A run has about 1.2 of the first two and 0.1 of the last, by chance: a short check may see half of that.
    assert!(2 * read.min(written) > iterations as u64 && clean > 0);
}

const FAULTY: Faults = Faults { error: 6, short: 5 };

#[test]
fn shuttle_fill_evict_write_overwrite_sync() {
    check(WORKERS, Left::All, Faults::default());
}

#[test]
fn shuttle_fill_evict_write_overwrite_sync_on_a_faulty_device() {
    check(WORKERS, Left::All, FAULTY);
}

/// A thread syncs pages beside each other while another writes them back in the background, over a device that fails:
/// pages that a `sync` says it made durable are so, also after one that said that it could not.
#[test]
fn shuttle_sync_beside_the_flusher_on_a_faulty_device() {
    let once = || {
        let stage = Stage::new(Faults { error: 2, short: 0 });
        let file = stage.open();
        let (cache, paging, space) = (stage.cache, stage.paging, stage.shared.space);
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        (0..2).for_each(|page| add(&view, &stage.disk, page));
        let flusher = thread::spawn(move || {
            let task = cache.task().expect("room");
            cache.flush(&task.task, true);
        });
        sync(&view, &stage.disk);
        flusher.join().expect("no panic");
        drop(view);
        drop(task);
        let kswapd = thread::spawn(move || paging.kswapd(space).expect("room"));
        stage.end(file, kswapd);
    };
    shuttle::check_random(once, 3 * ITERATIONS);
}

/// A sync fails, after which nobody knows what is durable: no sync of the file by any thread says any more that all is.
#[test]
fn shuttle_no_sync_succeeds_after_one_that_failed() {
    let once = || {
        // The device fails to flush the second or the third time, and says nothing of it later.
        let flushes =
            2 + usize::from(shuttle::rand::Rng::r#gen::<bool>(&mut shuttle::rand::thread_rng()));
        let stage = Stage::on(Arc::new(Disk::new(Faults::default(), flushes)));
        let file = stage.open();
        let cache = stage.cache;
        let threads = [0, 1].map(|page| {
            let (file, disk) = (file.clone(), Arc::clone(&stage.disk));
            thread::spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(&file).expect("room");
                let mut has_failed = false;
                for _ in 0..3 {
                    add(&view, &disk, page);
                    let before = disk.counts[page].load(Ordering::Relaxed);
                    match view.sync() {
                        Ok(()) => {
                            assert!(!has_failed, "what is lost is durable");
                            disk.synced[page].fetch_max(before, Ordering::Relaxed);
                            disk.crash();
                        }
                        Err(CacheError::Sync { .. }) => has_failed = true,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(has_failed);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        stage.disk.crash();
        let task = cache.task().expect("room");
        assert!(matches!(task.close(file), Err(CacheError::Sync { .. })));
        drop(task);
        stage.model.give_back(stage.kept);
        stage.shared.end();
        std::fs::remove_file(&stage.path).expect("ours");
    };
    shuttle::check_random(once, ITERATIONS);
}

/// Flushes that nobody waits for go on beside a sync, and one of all these fails. Lost bytes are not said to be
/// durable, also while the thread that was told of the error has told nobody.
#[test]
fn shuttle_a_sync_fails_beside_a_flush_that_was_told_of_the_error() {
    /// About as many as take as long as the sync.
    const AHEAD: usize = 40;
    let once = || {
        let fails = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 1..=AHEAD);
        let stage = Stage::on(Arc::new(Disk::new(Faults::default(), fails)));
        let file = stage.open();
        let task = stage.cache.task().expect("room");
        let flushed = file.clone();
        file.inner.unflushed.add(usize::MAX / 2);
        file.inner.unflushed.end(file.inner.unflushed.begin(Why::Sync), Duration::MAX);
        let ahead = thread::spawn(move || {
            (0..AHEAD).for_each(|_| {
                flushed.inner.unflushed.add(2 * LEAST);
                flushed.inner.flush_ahead();
            });
        });
        let view = task.view(&file).expect("room");
        add(&view, &stage.disk, 0);
        match view.sync() {
            Ok(()) => assert_eq!(stage.disk.after_crash(0), 1, "what is lost is durable"),
            Err(error) => assert!(matches!(error, CacheError::Sync { .. }), "{error}"),
        }
        ahead.join().expect("no panic");
        drop(view);
        let has_failed = matches!(task.close(file), Err(CacheError::Sync { .. }));
        assert_eq!(has_failed, stage.disk.flushes.load(Ordering::Relaxed) == 0);
        drop(task);
        stage.model.give_back(stage.kept);
        stage.shared.end();
        std::fs::remove_file(&stage.path).expect("ours");
    };
    shuttle::check_random(once, ITERATIONS);
}

#[test]
fn shuttle_fill_evict_overwrite_cut() {
    check(CUTTERS, Left::Some, Faults::default());
    check(CUTTERS, Left::Some, FAULTY);
}

/// Cuts pages off that nobody has, and adds them again.
fn change_lengths(view: &View<'_, '_>) {
    view.set_len(((PAGES - 1) * FRAME_SIZE) as u64).expect("shorter");
    view.set_len((PAGES * FRAME_SIZE) as u64).expect("longer");
}

/// A thread writes back beside one that changes the length. Pages that this put off are written when it is over.
#[test]
fn shuttle_what_a_change_of_the_length_puts_off_is_written_after_it() {
    let once = || {
        let stage = Stage::new(Faults::default());
        let file = stage.open();
        let (cache, paging, space) = (stage.cache, stage.paging, stage.shared.space);
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        add(&view, &stage.disk, 0);
        let flusher = thread::spawn(move || {
            let task = cache.task().expect("room");
            cache.flush(&task.task, true);
        });
        (0..4).for_each(|_| change_lengths(&view));
        flusher.join().expect("no panic");
        assert_eq!(file.dirty(), 0, "it was put off for good");
        drop(view);
        drop(task);
        let kswapd = thread::spawn(move || paging.kswapd(space).expect("room"));
        stage.end(file, kswapd);
    };
    shuttle::check_random(once, ITERATIONS);
}

/// A thread waits for frames, and reclaim finds only pages that it may not write since the length is being changed: it
/// is told when that is over.
#[test]
fn shuttle_reclaim_goes_on_after_a_change_of_the_length() {
    let stalls = Arc::new(Mutex::new(0));
    let all = Arc::clone(&stalls);
    let once = move || {
        let mut stage = Stage::new(Faults::default());
        let file = stage.open();
        stage.kept = stage.model.keep_all_but(FEW);
        let (cache, paging, space) = (stage.cache, stage.paging, stage.shared.space);
        let kswapd = thread::spawn(move || paging.kswapd(space).expect("room"));
        let (own, disk) = (file.clone(), Arc::clone(&stage.disk));
        let writer = thread::spawn(move || {
            let task = cache.task().expect("room");
            let view = task.view(&own).expect("room");
            // Only `kswapd` writes.
            let _scope = task.task.gfp_scope(Gfp::NOFS);
            for page in (0..PAGES - 1).chain(0..PAGES - 1) {
                add(&view, &disk, page);
                task.task.lru_drain();
            }
        });
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        // Relaxed: one of shuttle's threads runs at a time.
        let is_over = |_: &usize| stage.disk.counts[PAGES - 2].load(Ordering::Relaxed) == 2;
        let last = (0..TRIES).inspect(|_| change_lengths(&view)).find(is_over);
        assert!(last.is_some(), "nobody tells reclaim");
        writer.join().expect("no panic");
        *all.lock().expect("no panic") += cache.counts().allocstall;
        drop(view);
        drop(task);
        stage.end(file, kswapd);
    };
    shuttle::check_random(once, ITERATIONS);
    let stalls = *stalls.lock().expect("no panic");
    eprintln!("{stalls} waits");
    assert!(stalls > ITERATIONS as u64 / 10);
}
