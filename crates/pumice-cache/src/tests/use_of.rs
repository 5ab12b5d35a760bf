//! The cache's answers to unusual uses.

use std::sync::Barrier;

use rustix::io::Errno;

use super::*;

struct Log;

impl WriteAhead for Log {
    fn position(&self, _: usize, _: &Page) -> u64 {
        0
    }

    fn durable(&self) -> u64 {
        0
    }

    fn wanted(&self, _: u64) {}
}

#[test]
fn a_file_is_not_opened_otherwise_than_it_is() {
    let scratch = Scratch::new("otherwise");
    run(&settings(512), |cache| {
        let (log, other): (Arc<dyn WriteAhead>, Arc<dyn WriteAhead>) =
            (Arc::new(Log), Arc::new(Log));
        let plain = Options::new();
        let refused = |options: &Options| match cache.open(&scratch.0, options) {
            Err(CacheError::OpenOtherwise { otherwise, .. }) => Some(otherwise),
            opened => opened.map(|_| None).expect("a file"),
        };
        let file = cache.open(&scratch.0, &plain).expect("a file");
        let logged = plain.clone().write_ahead(log);
        assert_eq!(refused(&logged), Some(Otherwise::WriteAhead));
        assert_eq!(refused(&plain.clone().room(1 << 20)), None);
        let room = (file.room() * FRAME_SIZE) as u64;
        assert_eq!(refused(&plain.clone().room(room + 1)), Some(Otherwise::Room { room }));
        let is_direct = matches!(file.way(), pumice_io::Way::Direct { .. });
        let expected = is_direct.then_some(Otherwise::Direct);
        assert_eq!(refused(&plain.clone().buffered()), expected);
        cache.task().and_then(|task| task.close(file)).expect("the device is there");
        let _file = cache.open(&scratch.0, &logged).expect("a file");
        assert_eq!(refused(&logged), None);
        assert_eq!(refused(&plain), None);
        assert_eq!(refused(&plain.clone().write_ahead(other)), Some(Otherwise::WriteAhead));
        let error = cache.open(&scratch.0, &plain.room(u64::MAX)).expect_err("other room");
        assert!(error.to_string().contains("close it first"), "{error}");
    })
    .expect("a cache");
}

#[test]
fn the_name_of_a_file_that_was_made_is_synced_with_it() {
    let scratch = Scratch::new("named");
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let is_named = |file: &File| file.inner.folders.lock().is_empty();
        assert!(!is_named(&file));
        let view = task.view(&file).expect("room");
        view.write_at(0, &[1]).and_then(|()| view.sync()).expect("the device is there");
        assert!(is_named(&file));
        drop(view);
        task.close(file).expect("the device is there");
        let file = cache.open(&scratch.0, &Options::new()).expect("the file");
        assert!(!is_named(&file), "another may have made it anew");
        task.close(file).expect("the device is there");
        fs::remove_file(&scratch.0).expect("the file");
        let error = cache.open(&scratch.0, &Options::new().existing()).expect_err("gone");
        assert!(matches!(error, CacheError::Open { errno: Errno::NOENT, .. }), "{error}");
    })
    .expect("a cache");
}

#[test]
fn growing_leaves_what_others_have_written() {
    let scratch = Scratch::new("grown");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let (start, end) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            for thread in 0..2usize {
                let (file, start, end) = (&file, &start, &end);
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(file).expect("room");
                    for _ in 0..3000 {
                        start.wait();
                        drop(view.write_or_grow(1).expect("room"));
                        view.write(0).expect("there")[200 + thread] = 7;
                        end.wait();
                    }
                });
            }
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            let mut lost = 0;
            for _ in 0..3000 {
                view.set_len(100).expect("shorter");
                start.wait();
                end.wait();
                lost += view.read(0).expect("there")[200..202].iter().filter(|&&b| b != 7).count();
            }
            assert_eq!(lost, 0, "of 6000");
        });
    })
    .expect("a cache");
}

/// A thread that grows a file waits for its last page, and then another has made it longer, and written there.
#[test]
fn who_finds_a_file_grown_clears_nothing_and_makes_it_no_shorter() {
    let scratch = Scratch::new("grown-by-two");
    with_file(&settings(512), &scratch, |cache, _, file, view| {
        let grow: [fn(&View<'_, '_>) -> Result<()>; 3] = [
            |view| view.write_or_grow(1).map(drop),
            |view| view.set_len(2 * FRAME_SIZE as u64 - 50),
            |view| view.write_at(FRAME_SIZE as u64 + 70, &[5; 9]),
        ];
        for (which, grow) in grow.into_iter().enumerate() {
            view.set_len(100).expect("another length");
            // The guard that the thread that grows the file has first.
            let mut last = view.write(0).expect("there");
            last[100..].fill(0);
            let started = Barrier::new(2);
            std::thread::scope(|scope| {
                let (file, started) = (file, &started);
                let other = scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(file).expect("room");
                    started.wait();
                    grow(&view)
                });
                started.wait();
                std::thread::sleep(Duration::from_millis(20));
                assert!(!other.is_finished(), "it waits for the page");
                assert!(file.inner.grow_from(100, 4 * FRAME_SIZE as u64));
                assert!(!file.inner.grow_from(100, 9 * FRAME_SIZE as u64), "it is longer by now");
                last[200] = 7;
                drop(last);
                other.join().expect("no panic").expect("room");
            });
            assert_eq!(view.len(), 4 * FRAME_SIZE as u64, "way {which}");
            assert_eq!(view.read(0).expect("there")[200], 7, "way {which}");
            view.sync().expect("the device is there");
        }
    });
}

#[test]
fn pages_that_arrive_are_of_the_file_and_are_there() {
    let (one, other) = (Scratch::new("arrive-one"), Scratch::new("arrive-other"));
    fs::write(&one.0, vec![1; 600 * FRAME_SIZE]).expect("room");
    fs::write(&other.0, vec![2; 600 * FRAME_SIZE]).expect("room");
    run(&settings(1024), |cache| {
        let open = |path: &Path| cache.open(path, &Options::new()).expect("the file");
        let (one, other) = (open(&one.0), open(&other.0));
        let (task, elsewhere) = (cache.task().expect("room"), cache.task().expect("room"));
        let view = task.view(&one).expect("room");
        let beside = task.view(&other).expect("room");
        let far = elsewhere.view(&one).expect("room");
        let mut arrived = Vec::new();
        for round in 0..20 {
            let first = round * 20;
            // Asked for after it is on its way, by this thread and by another.
            assert_eq!(view.prefetch(&[first, first + 1]), 2);
            assert_eq!(far.prefetch(&[first + 2]), 1);
            assert_eq!(beside.request(&[first + 3, first + 4]), 2);
            let asked = [first, first + 1, first + 2, first + 5];
            assert_eq!(view.request(&asked), 4);
            while arrived.len() < 4 {
                let before = arrived.len();
                view.arrived(1, &mut arrived).expect("it goes on");
                assert!(arrived[before..].iter().all(|&page| view.translate(page).is_some()));
            }
            arrived.sort_unstable();
            assert_eq!(arrived, asked);
            arrived.clear();
            beside.arrived(2, &mut arrived).expect("it goes on");
            arrived.sort_unstable();
            assert_eq!(arrived, [first + 3, first + 4]);
            arrived.clear();
        }
        view.sync_range(usize::MAX - 1..usize::MAX).expect("nothing to do");
    })
    .expect("a cache");
}

#[test]
fn a_file_is_written_by_one_cache_at_a_time() {
    let scratch = Scratch::new("one");
    let (options, closing) = (Options::new(), Barrier::new(2));
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &options).expect("a file");
        std::thread::scope(|scope| {
            // Another cache's thread waits for the file to be closed, as for a process that was killed.
            let other = scope.spawn(|| {
                run(&settings(512), |other| {
                    other.open(&scratch.0, &options.clone().read_only()).expect("only to be read");
                    closing.wait();
                })
                .expect("a cache");
                run(&settings(512), |other| {
                    let task = other.task().expect("room");
                    let file = other.open(&scratch.0, &options).expect("closed in time");
                    let view = task.view(&file).expect("room");
                    assert_eq!(view.read(3).expect("a page")[0], 7);
                })
                .expect("a cache");
            });
            closing.wait();
            task.view(&file).expect("room").write_or_grow(3).expect("a page")[0] = 7;
            // The same cache has it as often as it likes.
            drop(cache.open(&scratch.0, &options).expect("the same file"));
            task.close(file).expect("the device is there");
            other.join().expect("no panic");
        });
        let _file = cache.open(&scratch.0, &options).expect("a file");
        let refused = run(&settings(512), |other| other.open(&scratch.0, &options).map(drop));
        let error = refused.expect("a cache").expect_err("it is open");
        assert!(matches!(error, CacheError::InUse(_)), "{error}");
    })
    .expect("a cache");
}

#[test]
fn the_name_of_a_file_is_synced_whoever_of_two_opens_it_first() {
    let scratch = Scratch::new("made");
    run(&settings(512), |cache| {
        let options = Options::new();
        let made = open::open(&scratch.0, &options).expect("a file");
        fs::write(&scratch.0, [1]).expect("the file");
        let found = open::open(&scratch.0, &options).expect("the file");
        assert!(made.folder.is_some() && found.folder.is_some());
        let open = |opened| cache.open_once(&scratch.0, &options, opened).expect("a file");
        let file = open(found).expect("nobody's");
        let _same = open(made).expect("the same");
        assert!(!file.inner.folders.lock().is_empty());
    })
    .expect("a cache");
}

#[test]
fn who_waits_for_a_file_has_the_one_with_its_name() {
    let (scratch, new) = (Scratch::new("renamed"), Scratch::new("renamed-to"));
    let options = Options::new();
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &options).expect("a file");
        fs::write(&new.0, [1; FRAME_SIZE]).expect("another file");
        let found = open::open(&scratch.0, &options).expect("the file");
        fs::rename(&new.0, &scratch.0).expect("a name");
        task.close(file).expect("the device is there");
        assert!(cache.open_once(&scratch.0, &options, found).expect("a file").is_none());
        let file = cache.open(&scratch.0, &options).expect("a file");
        assert_eq!(task.view(&file).expect("room").read(0).expect("a page")[0], 1);
    })
    .expect("a cache");
}

#[test]
fn a_file_that_was_closed_is_nobodys_though_a_child_has_its_descriptors() {
    let scratch = Scratch::new("child");
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        // As a child has one.
        let kept = file.inner.data.descriptor().try_clone().expect("a descriptor");
        task.close(file).expect("the device is there");
        cache.open(&scratch.0, &Options::new()).expect("nobody's");
        drop(kept);
    })
    .expect("a cache");
}

#[test]
fn the_files_of_a_cache_that_is_no_more_are_nobodys_though_handles_of_them_are_there() {
    let scratch = Scratch::new("outlived");
    let options = Options::new();
    let open = |cache: &Cache<'_>| cache.open(&scratch.0, &options).expect("nobody's");
    let (file, kept) = run(&settings(512), |cache| {
        let file = open(cache);
        let refused = open::open(&scratch.0, &options).expect("the file").data.try_lock();
        assert_eq!(refused, Ok(false), "it is the cache's");
        // As a child has one.
        let kept = file.inner.data.descriptor().try_clone().expect("a descriptor");
        (file, kept)
    })
    .expect("a cache");
    run(&settings(512), |cache| {
        let again = open(cache);
        // A handle that goes only now is the other's no more.
        drop((file, kept));
        let refused = open::open(&scratch.0, &options).expect("the file").data.try_lock();
        assert_eq!(refused, Ok(false), "it is this cache's");
        drop(again);
    })
    .expect("a cache");
}

#[test]
fn an_empty_file_that_is_there_needs_no_folder() {
    use std::os::fd::AsRawFd;
    let scratch = Scratch::new("without-folder");
    let open = fs::File::create(&scratch.0).expect("a file");
    fs::remove_file(&scratch.0).expect("the file");
    let path = format!("/proc/self/fd/{}", open.as_raw_fd());
    if !Path::new(&path).exists() {
        eprintln!("skipped: no /proc");
        return;
    }
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(Path::new(&path), &Options::new()).expect("the file");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[1; 9]).and_then(|()| view.sync()).expect("the device is there");
    })
    .expect("a cache");
    assert_eq!(open.metadata().expect("the file").len(), 9);
}

#[test]
fn the_name_of_a_file_that_was_there_is_made_durable_once() {
    let scratch = Scratch::new("name-of-another");
    // As a process left it that was killed before a sync.
    fs::write(&scratch.0, [7; 5000]).expect("room");
    run(&settings(512), |cache| {
        for options in [Options::new(), Options::new().existing()] {
            let task = cache.task().expect("room");
            let file = cache.open(&scratch.0, &options).expect("the file");
            let is_open = || !file.inner.folders.lock().is_empty();
            assert!(is_open());
            let view = task.view(&file).expect("room");
            view.sync().expect("the device is there");
            assert!(!is_open(), "it is durable");
            drop(view);
            task.close(file).expect("nobody else has it");
        }
    })
    .expect("a cache");
}

#[test]
fn a_file_of_another_cache_is_refused() {
    let (one, two) = (Scratch::new("of-one-cache"), Scratch::new("of-another-cache"));
    for (scratch, byte) in [(&one, 1), (&two, 2)] {
        fs::write(&scratch.0, [byte; 9]).expect("room");
    }
    let of_one = run(&settings(512), |first| {
        let own = first.open(&one.0, &Options::new()).expect("the file");
        run(&settings(512), |second| {
            let task = second.task().expect("room");
            let other = second.open(&two.0, &Options::new()).expect("the file");
            let refused = |error| matches!(error, CacheError::OtherCache(_));
            assert!(task.view(&own).is_err_and(refused));
            assert!(task.close(own.clone()).is_err_and(refused));
            assert_eq!(task.view(&other).and_then(|view| Ok(view.read(0)?[0])), Ok(2));
        })
        .expect("a cache");
        let task = first.task().expect("room");
        assert_eq!(task.view(&own).and_then(|view| Ok(view.read(0)?[0])), Ok(1));
        own
    })
    .expect("a cache");
    // And one of a cache that is no more.
    run(&settings(512), |cache| {
        assert!(cache.task().expect("room").view(&of_one).is_err());
    })
    .expect("a cache");
}

#[test]
fn a_folder_that_can_not_be_synced_at_all_need_not_be() {
    let scratch = Scratch::new("unsynced-folder");
    let unsynced = fs::File::open("/proc").ok();
    let unsynced = unsynced.filter(|folder| {
        let errno = folder.sync_all().err().as_ref().and_then(Errno::from_io_error);
        errno == Some(Errno::INVAL)
    });
    if unsynced.is_none() {
        eprintln!("skipped: no folder that refuses to be synced");
        return;
    }
    run(&settings(512), |cache| {
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        file.inner.name_is_new(unsynced);
        let view = task.view(&file).expect("room");
        view.write_at(0, &[1]).and_then(|()| view.sync()).expect("the device is there");
        assert!(file.inner.folders.lock().is_empty(), "it is asked once");
    })
    .expect("a cache");
}

#[test]
fn more_than_there_are_addresses_is_an_error() {
    let scratch = Scratch::new("too-much");
    run(&settings(512), |cache| {
        for room in [u64::MAX, u64::MAX - FRAME_SIZE as u64, i64::MAX as u64] {
            let error = cache.open(&scratch.0, &Options::new().room(room)).expect_err("too much");
            assert!(matches!(error, CacheError::Space(VmError::OutOfAddresses(_))), "{error}");
        }
        let task = cache.task().expect("room");
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let view = task.view(&file).expect("room");
        for page in [usize::MAX, usize::MAX / FRAME_SIZE] {
            let error = view.write_or_grow(page).map(drop).expect_err("too much");
            assert!(matches!(error, CacheError::NoRoom { .. }), "{error}");
        }
        for len in [u64::MAX, u64::MAX - 5] {
            assert!(matches!(view.write_at(len, &[1; 9]), Err(CacheError::NoRoom { .. })));
            assert!(matches!(view.allocate(len), Err(CacheError::NoRoom { .. })));
            assert!(matches!(view.set_len(len), Err(CacheError::NoRoom { .. })));
        }
        assert!(view.is_empty());
    })
    .expect("a cache");
}
