//! As `scan`: reclaim of a page of a file while the device has its part in it: is late, or fails, or has to
//! wait for the log.

use std::sync::{Condvar, Mutex};

use rustix::io::Errno;

use super::scan::{file_of, in_memory, on_stage, quiet, Stage, FRAMES};
use super::*;
use pumice_io::engine::{Completion, Direction, Engine, Plain, Request};
use pumice_io::Engines;
use pumice_paging::reclaim::{policy, Adaptive, Settings as Limits};
use pumice_paging::space::VmError;

/// A device that is told what to do with requests of one direction; the others go.
pub(super) struct Device {
    state: Mutex<Told>,
    changed: Condvar,
    /// Requests that were kept waiting.
    kept: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Go,
    Keep(Direction),
    /// Completions of engines for so many requests or more are reported to nobody, as where their threads are stopped.
    Stop(u32),
    Fail(Direction, Errno),
    /// Engines for so many requests or more take them, and can't be asked any more from then on.
    Deafen(u32),
}

impl Device {
    pub fn new() -> Arc<Device> {
        let (state, changed, kept) = (Mutex::new(Told::Go), Condvar::new(), AtomicU64::new(0));
        Arc::new(Device { state, changed, kept })
    }

    fn engines(device: &Arc<Device>) -> Engines {
        let device = Arc::clone(device);
        Engines::new(move |depth| {
            let device = Arc::clone(&device);
            let (failed, taken) = (Vec::new(), Vec::new());
            Box::new(Driver { device, depth, engine: Plain::new(), failed, taken, is_kept: false })
        })
    }

    pub fn tell(&self, what: Told) {
        *self.state.lock().expect("no panic") = what;
        self.changed.notify_all();
    }

    fn told(&self) -> Told {
        *self.state.lock().expect("no panic")
    }

    pub fn wait_until_kept(&self, many: u64) {
        while self.kept.load(Ordering::SeqCst) < many {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Has a device go on, also where a test fails: else the test would wait for threads that wait for the device.
pub(super) struct GoesOn<'d>(pub &'d Device);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.tell(Told::Go);
    }
}

struct Driver {
    device: Arc<Device>,
    depth: u32,
    engine: Plain,
    failed: Vec<Completion>,
    /// Requests of an engine that can't be asked any more: the kernel does them sooner or later all the same.
    taken: Vec<Request>,
    /// Until the device goes on, nobody is told of anything.
    is_kept: bool,
}

// SAFETY: requests that were taken are the engine's, wherever it is.
unsafe impl Send for Driver {}

impl Driver {
    fn keep(&mut self) {
        self.is_kept = true;
        self.device.kept.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: by plain calls, and what was taken only when this is dropped.
unsafe impl Engine for Driver {
    fn depth(&self) -> usize {
        usize::MAX
    }

    unsafe fn submit(&mut self, request: Request) -> core::result::Result<(), Errno> {
        match self.device.told() {
            Told::Fail(direction, errno) if direction == request.direction => {
                self.failed.push(Completion { token: request.token, result: Err(errno) });
                return Ok(());
            }
            Told::Deafen(least) if least <= self.depth => {
                self.taken.push(request);
                return Ok(());
            }
            Told::Keep(direction) if direction == request.direction => self.keep(),
            Told::Stop(least) if least <= self.depth => self.keep(),
            _ => {}
        }
        // SAFETY: forwarded with the caller's promise.
        unsafe { self.engine.submit(request) }
    }

    fn wait(&mut self, least: usize) -> core::result::Result<(), Errno> {
        if !self.taken.is_empty() {
            return Err(Errno::BADF);
        }
        let mut state = self.device.state.lock().expect("no panic");
        while self.is_kept && least > 0 && matches!(*state, Told::Keep(_) | Told::Stop(_)) {
            state = self.device.changed.wait(state).expect("no panic");
        }
        self.is_kept &= matches!(*state, Told::Keep(_) | Told::Stop(_));
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        if self.is_kept || !self.taken.is_empty() {
            return None;
        }
        self.failed.pop().or_else(|| self.engine.next())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            // Others have time to use frames that are theirs.
            std::thread::sleep(Duration::from_millis(5));
        }
        for request in self.taken.drain(..) {
            // SAFETY: the caller of `submit` keeps all it refers to until this is dropped.
            let _ = unsafe { self.engine.submit(request) };
        }
    }
}

pub(super) fn on_device(device: &Arc<Device>, work: impl FnOnce(&Stage<'_, '_, Adaptive<'_>>)) {
    let mut entries = policy::table::<Adaptive<'_>>(FRAMES);
    let settings = Settings { engines: Device::engines(device), ..quiet() };
    on_stage(&settings, Adaptive::new(&mut entries), work);
}

/// A reader of a page that is being written reads it, and it stays for that; a writer waits, and its bytes are written
/// in their turn.
#[test]
fn pages_that_are_being_written_are_read_and_not_written_to() {
    let (scratch, device) = (file_of("being-written", 2048), Device::new());
    on_device(&device, |stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        (0..200).for_each(|page| fill(&mut view.write(page).expect("there"), page, 2));
        device.tell(Told::Keep(Direction::Write));
        std::thread::scope(|scope| {
            let (file, cache) = (&file, stage.cache);
            let goes_on = GoesOn(&device);
            scope.spawn(move || {
                let task = cache.task().expect("room");
                stage.read(&task.view(file).expect("room"), 200..700);
            });
            device.wait_until_kept(1);
            let is_held = |page: &usize| {
                matches!(view.try_write(*page), Err(CacheError::Space(VmError::Busy(_))))
            };
            let held: Vec<usize> = (0..200).filter(is_held).collect();
            assert!(!held.is_empty());
            for &page in &held {
                check(&view.try_read(page).expect("nobody writes to it"), page, 2);
            }
            let wanted = held[0];
            let writer = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                fill(&mut view.write(wanted).expect("it waits"), wanted, 3);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!writer.is_finished(), "it is being written");
            drop(goes_on);
            writer.join().expect("no panic");
        });
        assert!(stage.reclaim.counts().rescued > 0, "what was read meanwhile stays");
        stage.read(&view, 200..2048);
        view.sync().expect("the device is there");
        assert_eq!(file.dirty(), 0);
        let mut versions = [0; 200];
        for (nth, page) in plainly(&scratch.0)[..200].iter().enumerate() {
            let mut expected = [0; FRAME_SIZE];
            fill(&mut expected, nth, 3);
            versions[nth] = if *page == expected { 3 } else { 2 };
            check(page, nth, versions[nth]);
            check(&view.read(nth).expect("there"), nth, versions[nth]);
        }
        assert_eq!(
            versions.iter().filter(|&&version| version == 3).count(),
            1,
            "the page that waited"
        );
    });
}

/// `PG_launder`: where as much is being written as may be, requests wait for that.
#[test]
fn where_enough_is_being_written_who_asks_waits() {
    let (scratch, device) = (file_of("throttled", 2048), Device::new());
    on_device(&device, |stage| {
        stage.reclaim.set_settings(Limits { most_leaving: 1, ..Limits::of(FRAMES) });
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        device.tell(Told::Keep(Direction::Write));
        std::thread::scope(|scope| {
            let (file, cache) = (&file, stage.cache);
            let goes_on = GoesOn(&device);
            let writes = |from: usize, many: usize| {
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(file).expect("room");
                    (from..from + many)
                        .for_each(|page| fill(&mut view.write(page).expect("it waits"), page, 2));
                })
            };
            // More than there are frames: when it writes, there is none for the other.
            writes(0, FRAMES);
            device.wait_until_kept(1);
            writes(FRAMES, FRAMES / 4);
            while stage.reclaim.counts().allocstall < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let now = || (stage.reclaim.counts(), device.kept.load(Ordering::SeqCst));
            // A stalled thread may be about to write, or have begun to and not noted it.
            let mut before = now();
            let (counts, kept) = loop {
                std::thread::sleep(Duration::from_millis(20));
                match now() {
                    now if now == before && now.0.writes == now.1 => break now,
                    now => before = now,
                }
            };
            drop(goes_on);
            assert!(counts.writes == kept && kept <= 2, "of each thread one at most: {counts:?}");
        });
        assert_eq!(stage.reclaim.counts().errors, 0);
        (0..FRAMES + FRAMES / 4).for_each(|page| check(&view.read(page).expect("there"), page, 2));
    });
}

#[test]
fn what_can_not_be_written_stays_and_who_asks_is_told() {
    let (scratch, device) = (file_of("unwritten", 2048), Device::new());
    on_device(&device, |stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.advise(0..0, Advice::Random);
        device.tell(Told::Fail(Direction::Write, Errno::NOSPC));
        let mut written = 0;
        let error = loop {
            match view.write(written) {
                Ok(mut guard) => fill(&mut guard, written, 2),
                Err(error) => break error,
            }
            written += 1;
        };
        assert!(matches!(error, CacheError::Space(VmError::OutOfFrames(_))), "{error}");
        assert!(written > FRAMES / 2, "{written}");
        assert_eq!((file.dirty(), in_memory(&view, 0..written)), (written, written));
        assert!(stage.reclaim.counts().errors > 0);
        let error = view.sync().expect_err("it fails");
        assert!(matches!(error, CacheError::Write { errno: Errno::NOSPC, .. }), "{error}");
        (0..written).for_each(|page| check(&view.read(page).expect("in memory"), page, 2));
        device.tell(Told::Go);
        stage.read(&view, written..2048);
        let _ = view.sync();
        assert_eq!((view.sync(), file.dirty()), (Ok(()), 0));
        plainly(&scratch.0)[..written]
            .iter()
            .enumerate()
            .for_each(|(nth, page)| check(page, nth, 2));
    });
}

/// Also a page that went a moment ago: it is where it was, and overwriting it needs none of that.
#[test]
fn what_can_not_be_read_is_an_error_of_that_page_until_it_can() {
    let (scratch, device) = (file_of("unread", 2048), Device::new());
    on_device(&device, |stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        fill(&mut view.write(7).expect("there"), 7, 2);
        stage.read(&view, 10..1500);
        assert_eq!((in_memory(&view, 0..10), file.dirty()), (0, 0));
        device.tell(Told::Fail(Direction::Read, Errno::IO));
        let is_told = |result: Result<()>| match result {
            Err(CacheError::Read { page: 7, errno: Errno::IO, .. }) => {}
            result => panic!("{result:?}"),
        };
        is_told(view.read(7).map(drop));
        is_told(view.try_read(7).map(drop));
        is_told(view.write(7).map(drop));
        is_told(view.read_optimistic(7, |_| ()));
        is_told(view.read_at(7 * FRAME_SIZE as u64, &mut [0; 9]).map(drop));
        let mut arrived = Vec::new();
        assert_eq!(view.request(&[7]), 1);
        view.arrived(1, &mut arrived).expect("it goes on");
        is_told(view.read(arrived[0]).map(drop));
        let resident = (10..1500).rev().find(|&page| view.translate(page).is_some()).expect("one");
        check(&view.read(resident).expect("in memory"), resident, 1);
        view.overwrite(8, &[9; FRAME_SIZE]).expect("nothing to read");
        assert_eq!((stage.cache.counts().dirty, file.dirty()), (1, 1));
        device.tell(Told::Go);
        check(&view.read(7).expect("there"), 7, 2);
        assert_eq!(view.read(8).expect("there")[5], 9);
    });
}

/// Asks for pages and waits until they have come. Returns what it was told until then.
fn ask_for(view: &View<'_, '_>, pages: std::ops::Range<usize>) -> Vec<CacheError> {
    let wanted: Vec<usize> = pages.collect();
    let (mut asked, mut arrived, mut errors) = (0, Vec::new(), Vec::new());
    while arrived.len() < wanted.len() {
        // There may be no frames for all of them at once.
        asked += view.request(&wanted[asked..]);
        errors.extend(view.arrived(1, &mut arrived).err());
    }
    arrived.sort_unstable();
    assert_eq!(arrived, wanted);
    errors
}

/// Has another thread end, also when this one panics.
struct Over<'o>(&'o AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

/// Also beside another thread, which would use frames that the device still has, and be waited for by nobody.
#[test]
fn rings_that_fail_for_good_end_in_errors_and_lose_nothing() {
    // Beside another few are dirty: reclaim is to find others, for it gives up where all that it writes fails.
    for (is_alone, written) in [(true, 100), (false, 20)] {
        let (scratch, device) = (file_of("deaf", 2048), Device::new());
        on_device(&device, |stage| {
            let file = stage.open(&scratch);
            let is_over = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let reader = (!is_alone).then(|| {
                    scope.spawn(|| {
                        let task = stage.cache.task().expect("room");
                        let view = task.view(&file).expect("room");
                        while is_over.load(Ordering::SeqCst) == 0 {
                            stage.read(&view, 1000..1800);
                        }
                    })
                });
                let over = Over(&is_over);
                rings_fail(stage, &file, &device, (is_alone, written));
                drop(over);
                if let Some(reader) = reader {
                    reader.join().expect("no panic");
                }
            });
            assert_eq!(file.dirty(), 0);
        });
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, if nth < written { 3 } else { 1 });
        }
    }
}

fn rings_fail<P: policy::Policy + Send>(
    stage: &Stage<'_, '_, P>,
    file: &File,
    device: &Device,
    (is_alone, written): (bool, usize),
) {
    let task = stage.cache.task().expect("room");
    let view = task.view(file).expect("room");
    view.advise(0..0, Advice::Random);
    let is_told = |error: &CacheError| {
        let is_it = matches!(
            error,
            CacheError::Read { errno: Errno::BADF, .. }
                | CacheError::Write { errno: Errno::BADF, .. }
        );
        assert!(is_it, "{error}");
    };
    let write = |version| {
        (0..written).for_each(|page| fill(&mut view.write(page).expect("there"), page, version));
    };
    // Rings that have served.
    write(2);
    view.sync().expect("the device is there");
    assert_eq!(ask_for(&view, 200..240), []);

    device.tell(Told::Deafen(2));
    // Twice, for another ring is no better; then it goes without.
    let errors: Vec<_> =
        (0..4).flat_map(|nth| ask_for(&view, 300 + 40 * nth..340 + 40 * nth)).collect();
    errors.iter().for_each(is_told);
    assert!(errors.len() == 2 || !is_alone && errors.len() < 2, "{errors:?}");
    (300..460).for_each(|page| check(&view.read(page).expect("there"), page, 1));
    // Nobody looks after these any more.
    let other = stage.cache.task().expect("room");
    let ahead: Vec<usize> = (500..540).collect();
    assert!(other.view(file).expect("room").prefetch(&ahead) > 0);
    drop(other);
    ahead.iter().for_each(|&page| check(&view.read(page).expect("there"), page, 1));

    write(3);
    is_told(&view.sync().expect_err("nobody knows"));
    assert!(file.dirty() > 0 || !is_alone, "what is not known to be written is dirty");
    (0..written).for_each(|page| check(&view.read(page).expect("there"), page, 3));
    let failed = (0..10).take_while(|_| view.sync().is_err()).count();
    // For the other thread reclaim writes, too, and may have found another ring that fails.
    assert!((failed == 0 || !is_alone) && file.dirty() == 0, "{failed} times");

    if !is_alone {
        return;
    }
    // Also those that a page is read by alone.
    device.tell(Told::Deafen(1));
    let page = 1900;
    let errors: Vec<_> = (0..10).map_while(|_| view.read(page).map(drop).err()).collect();
    errors.iter().for_each(is_told);
    assert_eq!(errors.len(), 2, "{errors:?}");
    check(&view.read(page).expect("there"), page, 1);
    device.tell(Told::Go);
}

/// Cutting a file off waits for readers of the pages that go; a reader is told that it ended, and of no error.
#[test]
fn a_page_that_is_cut_off_while_it_is_read_is_no_error_of_the_device() {
    let (scratch, device) = (file_of("cut-while-read", 64), Device::new());
    on_device(&device, |stage| {
        let file = stage.open(&scratch);
        device.tell(Told::Keep(Direction::Read));
        std::thread::scope(|scope| {
            let (file, cache) = (&file, stage.cache);
            let reader = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                view.read(50).map(|guard| check(&guard, 50, 1))
            });
            device.wait_until_kept(1);
            let cutter = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                view.set_len(10 * FRAME_SIZE as u64)
            });
            while file.len() > 10 * FRAME_SIZE as u64 {
                std::thread::sleep(Duration::from_millis(1));
            }
            device.tell(Told::Go);
            assert_eq!(cutter.join().expect("no panic"), Ok(()));
            let read = reader.join().expect("no panic");
            assert!(matches!(read, Ok(()) | Err(CacheError::PastEnd { page: 50, .. })), "{read:?}");
        });
        // Before the page goes, the reader may try by itself once more: reclaim counts that as a read that failed.
        assert!(stage.reclaim.counts().errors <= 1);
        assert_eq!(stage.cache.counts().resident, 0);
    });
}

/// A log that has come so far; pages with odd numbers need one further.
struct Odd(AtomicU64);

impl WriteAhead for Odd {
    fn position(&self, page: usize, _: &Page) -> u64 {
        page as u64 % 2
    }

    fn durable(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn wanted(&self, _: u64) {}
}

const SHORT: Duration = Duration::from_millis(1);

/// The time that a thread has run, in nanoseconds (`Documentation/scheduler/sched-stats.rst`).
fn ran(thread: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[test]
fn where_all_waits_for_the_log_threads_rest_until_it_comes() {
    let (scratch, log) = (file_of("waits-for-log", 2048), Arc::new(Odd(AtomicU64::new(0))));
    let mut entries = policy::table::<Adaptive<'_>>(FRAMES);
    on_stage(&quiet(), Adaptive::new(&mut entries), |stage| {
        // The request is refused after some pauses, and so for each frame of the reserve: short ones at
        // first.
        stage.reclaim.set_settings(Limits { pause: SHORT, ..Limits::of(FRAMES) });
        let options = Options::new().write_ahead(log.clone());
        let file = stage.cache.open(&scratch.0, &options).expect("the file");
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.advise(0..0, Advice::Random);
        let (started, of_thread) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for which in 0..2 {
                let started = started.clone();
                scope.spawn(move || {
                    started.send(rustix::thread::gettid()).expect("somebody listens");
                    match which {
                        0 => stage.reclaim.kswapd(),
                        _ => stage.cache.flush_in_background().expect("room"),
                    }
                });
            }
            let threads =
                [0, 1].map(|_| of_thread.recv().expect("a thread").as_raw_nonzero().get());
            let mut waiting = Vec::new();
            let error = loop {
                let page = 2 * waiting.len() + 1;
                match view.write(page) {
                    Ok(mut guard) => fill(&mut guard, page, 2),
                    Err(error) => break error,
                }
                waiting.push(page);
            };
            assert!(matches!(error, CacheError::Space(VmError::OutOfFrames(_))), "{error}");
            assert_eq!((file.dirty(), stage.cache.counts().written), (waiting.len(), 0));
            stage.reclaim.set_settings(Limits::of(FRAMES));
            for thread in threads {
                let Some(before) = ran(thread) else {
                    eprintln!("skipped: no schedstat");
                    continue;
                };
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(300));
                let wall = start.elapsed().as_nanos() as u64;
                let ran = ran(thread).expect("it was there") - before;
                assert!(ran * 10 < wall, "{ran} ns of {wall}");
            }
            log.0.store(1, Ordering::SeqCst);
            stage.read(&view, 1024..2048);
            view.sync().expect("the log has come");
            assert_eq!(file.dirty(), 0);
            waiting.iter().for_each(|&page| check(&view.read(page).expect("there"), page, 2));
            stage.cache.files.flusher().stop();
            stage.cache.files.wake_flusher.notify_all();
            stage.reclaim.stop();
        });
    });
}
