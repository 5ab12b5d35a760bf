//! Files that end within a page, grow and are cut off.

use super::*;

#[test]
fn a_file_is_as_long_as_it_says_to_the_byte() {
    let scratch = Scratch::new("bytes");
    for len in [1, 511, 512, 4095, 4096, 4097, 3 * 4096 + 700] {
        fs::write(&scratch.0, vec![9; len]).expect("a file");
        run(&settings(512), |cache| {
            let file = cache.open(&scratch.0, &Options::new()).expect("the file");
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            let last = view.pages() - 1;
            let within = len - last * FRAME_SIZE;
            {
                let page = view.read(last).expect("there");
                assert!(page[..within].iter().all(|&byte| byte == 9));
                assert!(page[within..].iter().all(|&byte| byte == 0), "zeros past the end");
            }
            // Bytes past the end are nowhere.
            view.write(last).expect("there").fill(3);
            view.sync().expect("the device is there");
            let bytes = fs::read(&scratch.0).expect("the file");
            assert_eq!(bytes.len(), len);
            assert!(bytes[last * FRAME_SIZE..].iter().all(|&byte| byte == 3));
            view.set_len((len + 10_000) as u64).expect("room");
            let expected = |at: usize| {
                if at < last * FRAME_SIZE {
                    9
                } else if at < len {
                    3
                } else {
                    0
                }
            };
            for page in 0..view.pages() {
                let guard = view.read(page).expect("there");
                for (at, &byte) in guard.iter().enumerate() {
                    assert_eq!(byte, expected(page * FRAME_SIZE + at));
                }
            }
            view.sync().expect("the device is there");
        })
        .expect("a cache");
        let bytes = fs::read(&scratch.0).expect("the file");
        assert_eq!(bytes.len(), len + 10_000);
        assert!(bytes[len..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let scratch = Scratch::new("cut");
    with_file(&settings(512), &scratch, |cache, _, file, view| {
        for round in 1..6u8 {
            for page in 0..1200 {
                fill(&mut view.write_or_grow(page).expect("room"), page, round);
            }
            if round % 2 == 0 {
                view.sync().expect("the device is there");
            }
            let len = 100 * FRAME_SIZE + 17 * usize::from(round);
            view.set_len(len as u64).expect("shorter");
            assert_eq!(fs::metadata(&scratch.0).expect("the file").len() as usize, len);
            assert!(matches!(
                view.read(101),
                Err(CacheError::PastEnd { page: 101, pages: 101, .. })
            ));
            assert!(matches!(view.write(1199), Err(CacheError::PastEnd { .. })));
            assert!(view.translate(101).is_none());
            view.set_len(1200 * FRAME_SIZE as u64).expect("longer");
            for page in (0..1200).rev() {
                let guard = view.read(page).expect("there");
                if page < 100 {
                    check(&guard, page, round);
                } else {
                    let kept = if page == 100 { 17 * usize::from(round) } else { 0 };
                    assert!(guard[kept..].iter().all(|&byte| byte == 0), "page {page}");
                }
            }
        }
        view.set_len(0).expect("shorter");
        assert!(matches!(view.read(0), Err(CacheError::PastEnd { page: 0, pages: 0, .. })));
        let room = file.room();
        let error = view.write_or_grow(room).expect_err("no room");
        assert!(matches!(error, CacheError::NoRoom { .. }), "{error}");
        let counts = cache.counts();
        assert_eq!((counts.dirty, counts.resident), (0, 0), "{counts:?}");
    });
}

/// Threads read and write a file that another one cuts off and grows: they get their own bytes, or an error that says
/// that the file ended.
#[test]
fn readers_survive_truncation() {
    let scratch = Scratch::new("truncation");
    const PAGES: usize = 1500;
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let ended = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (file, is_over, ended) = (file.clone(), &is_over, &ended);
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    let mut random = mix(thread);
                    while !is_over.load(Ordering::Relaxed) {
                        random = mix(random);
                        let page = random as usize % PAGES;
                        let (word, is_writing) = (page as u64 + 1, random >> 63 == 0);
                        let result = if is_writing {
                            view.write(page).map(|mut guard| {
                                guard[..8].copy_from_slice(&word.to_le_bytes());
                            })
                        } else {
                            view.prefetch(&[page, page + 1, page + 2]);
                            view.read(page).map(|guard| {
                                let found =
                                    u64::from_le_bytes(guard[..8].try_into().expect("a word"));
                                assert!(found == 0 || found == word, "{found} on page {page}");
                            })
                        };
                        match result {
                            Ok(()) => {}
                            Err(CacheError::PastEnd { .. }) => {
                                ended.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            for round in 0..60 {
                let pages = mix(round) as usize % PAGES;
                view.set_len((pages * FRAME_SIZE) as u64).expect("another length");
                if round % 8 == 0 {
                    view.sync().expect("the device is there");
                }
                let on_device = fs::metadata(&scratch.0).expect("the file").len();
                assert!(on_device <= (pages * FRAME_SIZE) as u64, "longer than the file says");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(ended.load(Ordering::Relaxed) > 0);
    })
    .expect("a cache");
}

/// A thread appends while another syncs, grows the file by less, and has blocks put behind it: nothing that was
/// appended is cut off.
#[test]
fn what_grows_beside_sync_is_not_cut_off() {
    let scratch = Scratch::new("beside");
    const PAGES: usize = 4000;
    let settings =
        Settings { dirty_background: 8, dirty_age: Duration::from_millis(4), ..settings(512) };
    run(&settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (file, is_over) = (file.clone(), &is_over);
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    while !is_over.load(Ordering::Relaxed) {
                        view.sync().expect("the device is there");
                        if thread == 0 {
                            let len = view.len();
                            // Whole pages: appending a page that is there does not make the file longer.
                            view.allocate((len / 2).next_multiple_of(FRAME_SIZE as u64))
                                .expect("room");
                            // No shorter than it was a moment ago.
                            assert!(view.len() >= len);
                        }
                    }
                });
            }
            let task = cache.task().expect("room");
            let view = task.view(&file).expect("room");
            for page in 0..PAGES {
                fill(&mut view.write_or_grow(page).expect("room"), page, 1);
            }
            is_over.store(true, Ordering::Relaxed);
            view.sync().expect("the device is there");
            let in_file = plainly(&scratch.0);
            assert_eq!(in_file.len(), PAGES);
            for (nth, page) in in_file.iter().enumerate() {
                check(page, nth, 1);
                check(&view.read(nth).expect("there"), nth, 1);
            }
        });
    })
    .expect("a cache");
}

/// A thread that makes the file longer waits for guards of the last page, also for reading; the thread that has one
/// syncs.
#[test]
fn who_reads_the_last_page_syncs_beside_who_makes_the_file_longer() {
    let scratch = Scratch::new("reads-the-last");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_at(0, &[1; 100]).expect("room");
        view.sync().expect("the device is there");
        let guard = view.read(0).expect("there");
        let (synced, is_synced) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if is_synced.recv_timeout(Duration::from_secs(60)).is_err() {
                    eprintln!("a sync waits for a thread that waits for its guard");
                    std::process::abort();
                }
            });
            let file = &file;
            let growing = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                view.set_len(2 * FRAME_SIZE as u64)
            });
            while file.inner.resizing.try_lock().is_some() {
                std::thread::yield_now();
            }
            view.sync().expect("the device is there");
            synced.send(()).expect("somebody waits");
            drop(guard);
            growing.join().expect("no panic").expect("room");
        });
        assert_eq!((view.len(), &view.read(0).expect("there")[98..102]), (8192, &[1, 1, 0, 0][..]));
    })
    .expect("a cache");
}

#[test]
fn a_file_that_has_become_longer_meanwhile_is_looked_at_again() {
    let scratch = Scratch::new("meanwhile");
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        task.view(&file).expect("room").write_at(0, &[1; 100]).expect("room");
        assert_eq!((file.inner.extend(50, 8192), file.inner.len()), (Ok(false), 100));
        assert_eq!((file.inner.extend(100, 8192), file.inner.len()), (Ok(true), 8192));
    })
    .expect("a cache");
}
