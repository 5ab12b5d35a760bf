//! Pages that are written whole, and bytes at any place.

use super::*;

#[test]
fn bytes_are_where_they_were_written_and_the_file_is_as_long() {
    let scratch = Scratch::new("at");
    let mut expected: Vec<u8> = Vec::new();
    with_file(&settings(512), &scratch, |_, _, _, view| {
        let mut random = 1;
        for round in 0..600 {
            random = mix(random);
            let offset = (random >> 40) as usize % (expected.len() + 9000);
            let len = (random >> 20) as usize % 40_000;
            let bytes: Vec<u8> = (0..len).map(|at| (at / 3 + round) as u8).collect();
            view.write_at(offset as u64, &bytes).expect("room");
            if len > 0 {
                expected.resize(expected.len().max(offset + len), 0);
                expected[offset..offset + len].copy_from_slice(&bytes);
            }
            assert_eq!(view.len(), expected.len() as u64);
            if round % 50 == 0 {
                view.sync().expect("the device is there");
                view.advise(0..view.pages(), Advice::DontNeed);
            }
            if round % 97 == 0 {
                expected.truncate(expected.len() / 2);
                view.set_len(expected.len() as u64).expect("shorter");
            }
            let from = (random >> 10) as usize % (expected.len() + 5000);
            let mut found = vec![0xEE; (random & 0x7FFF) as usize];
            let many = view.read_at(from as u64, &mut found).expect("there");
            assert_eq!(many, found.len().min(expected.len().saturating_sub(from)));
            assert!(found[..many] == expected[from.min(expected.len())..][..many], "round {round}");
            assert!(found[many..].iter().all(|&byte| byte == 0xEE));
        }
        assert_eq!(view.read_at(u64::MAX, &mut [0; 10]).expect("nothing"), 0);
        let error = view.write_at(u64::MAX - 3, &[0; 10]).expect_err("no room");
        assert!(matches!(error, CacheError::NoRoom { .. }), "{error}");
        view.write_at(u64::MAX, &[]).expect("nothing to do");
        view.sync().expect("the device is there");
    });
    assert!(fs::read(&scratch.0).expect("the file") == expected);
}

#[test]
fn what_is_written_whole_is_not_read() {
    let scratch = Scratch::new("whole");
    const PAGES: usize = 2000;
    fs::write(&scratch.0, vec![9; PAGES * FRAME_SIZE]).expect("a file");
    with_file(&settings(512), &scratch, |cache, task, _, view| {
        let mut bytes = [0; FRAME_SIZE];
        for round in 1..4 {
            for page in 0..PAGES {
                fill(&mut bytes, page, round);
                view.overwrite(page, &bytes).expect("there");
            }
            assert_eq!(cache.counts().read, 0);
        }
        assert!(matches!(view.overwrite(PAGES, &bytes), Err(CacheError::PastEnd { .. })));
        view.sync().expect("the device is there");
        assert_eq!(cache.counts().dirty, 0);
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, 3);
            check(&view.read(nth).expect("there"), nth, 3);
        }
        let other = cache.open(&scratch.0, &Options::new().read_only()).expect("the file");
        assert!(task.view(&other).expect("room").overwrite(0, &bytes).is_ok());
    });
    run(&settings(512), |cache| {
        let file = cache.open(&scratch.0, &Options::new().read_only()).expect("the file");
        let task = cache.task().expect("room");
        let error = task.view(&file).expect("room").write_at(0, &[1]);
        assert!(matches!(error, Err(CacheError::ReadOnly(_))));
    })
    .expect("a cache");
}

/// Threads write pages whole while others read them, sync them, evict them, and cut the file off: readers see all of
/// one writer's page, or zeros.
#[test]
fn nobody_sees_a_part_of_a_page_or_what_was_in_its_frame() {
    let scratch = Scratch::new("instant");
    const PAGES: usize = 1200;
    const TIMES: u64 = 6000;
    with_file(&settings(512), &scratch, |cache, _, file, view| {
        view.set_len((PAGES * FRAME_SIZE) as u64).expect("room");
        let past_end = |result: Result<()>| match result {
            Ok(()) | Err(CacheError::PastEnd { .. }) => {}
            Err(error) => panic!("{error}"),
        };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let file = file.clone();
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(&file).expect("room");
                    for time in 0..TIMES {
                        let random = mix(thread << 32 | time);
                        let page = random as usize % PAGES;
                        let own = (page as u64) << 16 | thread;
                        if random >> 62 == 0 {
                            let read = view.read(page).map(|guard| {
                                let mut words = guard.chunks_exact(8);
                                let first = words.next().expect("a word");
                                assert!(words.all(|word| word == first), "a part of page {page}");
                                let first = u64::from_le_bytes(first.try_into().expect("a word"));
                                let is_its = first == 0 || first >> 16 == page as u64;
                                assert!(is_its, "{first:#x} on page {page}");
                            });
                            past_end(read);
                        } else {
                            let mut bytes = [0; FRAME_SIZE];
                            for word in bytes.chunks_exact_mut(8) {
                                word.copy_from_slice(&own.to_le_bytes());
                            }
                            past_end(view.overwrite(page, &bytes));
                        }
                    }
                });
            }
            for round in 0..12 {
                view.sync().expect("the device is there");
                view.advise(0..PAGES, Advice::DontNeed);
                let kept = mix(round) as usize % PAGES;
                view.set_len((kept * FRAME_SIZE) as u64).expect("shorter");
                view.set_len((PAGES * FRAME_SIZE) as u64).expect("longer");
            }
        });
        view.set_len(0).expect("shorter");
        let counts = cache.counts();
        assert_eq!((counts.dirty, counts.resident), (0, 0), "{counts:?}");
    });
}
