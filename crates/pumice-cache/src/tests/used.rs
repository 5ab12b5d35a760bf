//! To reclaim, each way to use a page is one use, when it is used, and nothing else is.

use super::scan::{file_of, on_plain_stage};
use super::*;

type Way = (&'static str, fn(&View<'_, '_>, usize) -> Result<()>);

const WAYS: [Way; 11] = [
    ("read", |view, page| view.read(page).map(drop)),
    ("try_read", |view, page| view.try_read(page).map(drop)),
    ("read_optimistic", |view, page| view.read_optimistic(page, |words| words.load(0)).map(drop)),
    ("read by its entry", |view, page| view.entry(page).read().map(drop)),
    ("read_optimistic by its entry", |view, page| {
        view.entry(page).read_optimistic(|words| words.load(0)).map(drop)
    }),
    ("read_at", |view, page| view.read_at((page * FRAME_SIZE + 9) as u64, &mut [0; 9]).map(drop)),
    ("write", |view, page| view.write(page).map(drop)),
    ("try_write", |view, page| view.try_write(page).map(drop)),
    ("overwrite", |view, page| view.overwrite(page, &[7; FRAME_SIZE])),
    ("write_at", |view, page| view.write_at((page * FRAME_SIZE + 9) as u64, &[7; 9])),
    ("write_at, whole", |view, page| view.write_at((page * FRAME_SIZE) as u64, &[7; FRAME_SIZE])),
];

/// Whether a page was used since this was last asked; `None` if it is not in memory.
fn is_young(view: &View<'_, '_>, page: usize) -> Option<bool> {
    view.task.task.test_and_clear_young(view.file.first_page + page)
}

#[test]
fn each_way_to_use_a_page_is_one_use() {
    let scratch = file_of("ways", 200);
    on_plain_stage(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.advise(0..0, Advice::Random);
        for (nth, (name, way)) in WAYS.into_iter().enumerate() {
            let page = nth * 7;
            assert_eq!(is_young(&view, page), None);
            // Elsewhere, in memory, and in memory again.
            for _ in 0..3 {
                way(&view, page).expect("there");
                assert_eq!(
                    [0, 1].map(|_| is_young(&view, page)),
                    [Some(true), Some(false)],
                    "{name}"
                );
            }
        }
        assert!(view.translate(0).is_some());
        let entry = view.entry(0);
        entry.fetch(9);
        entry.fetch_entry();
        entry.fetch_entry_to_guard();
        assert_eq!(view.prefetch(&[0, 7]) + view.request(&[0, 7]), 4);
        view.advise(0..8, Advice::WillNeed);
        view.sync().expect("the device is there");
        assert_eq!([0, 7].map(|page| is_young(&view, page)), [Some(false); 2], "nobody used them");
    });
}

#[test]
fn a_page_that_was_asked_for_is_used_when_somebody_comes_for_it() {
    let scratch = file_of("asked", 200);
    on_plain_stage(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        let pages = [3, 4, 5, 90];
        let begin: [fn(&View<'_, '_>, &[usize]); 3] = [
            |view, pages| assert_eq!(view.prefetch(pages), pages.len()),
            |view, pages| assert_eq!(view.request(pages), pages.len()),
            |view, pages| {
                pages.iter().for_each(|&page| view.advise(page..page + 1, Advice::WillNeed))
            },
        ];
        for begin in begin {
            view.advise(0..200, Advice::DontNeed);
            begin(&view, &pages);
            while pages.iter().any(|&page| view.translate(page).is_none()) {
                task.end_reads();
            }
            assert_eq!(pages.map(|page| is_young(&view, page)), [Some(false); 4]);
            for page in pages {
                drop(view.read(page).expect("there"));
                assert_eq!([0, 1].map(|_| is_young(&view, page)), [Some(true), Some(false)]);
            }
        }
        assert_eq!(stage.cache.counts().read_ahead, 0, "they were asked for");
        // A page that is read ahead is not used, but for the page that was wanted.
        view.advise(0..200, Advice::DontNeed);
        view.advise(0..0, Advice::Sequential);
        drop(view.read(100).expect("there"));
        while view.translate(115).is_none() {
            task.end_reads();
        }
        let young = [100, 101, 115].map(|page| is_young(&view, page));
        assert_eq!(young, [Some(true), Some(false), Some(false)]);
        assert_eq!((stage.cache.counts().read_ahead, stage.reclaim.counts().read_ahead), (15, 15));
    });
}

#[test]
fn a_page_is_read_by_an_entry_that_was_looked_up_before() {
    let scratch = file_of("entries", 200);
    on_plain_stage(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        // There is a table from now on, and in it a word of each.
        drop(view.read(1).expect("there"));
        let entries = [0, 150, 199, 200].map(|page| (page, view.entry(page)));
        let word = |page: usize| view.read(page).map(|guard| guard[..8].to_vec());
        for _ in 0..2 {
            for (page, entry) in &entries[..3] {
                entry.fetch(7);
                let by_guard = entry.read().map(|guard| guard[..8].to_vec()).expect("there");
                let by_words = entry.read_optimistic(|words| words.load(0)).expect("there");
                assert_eq!(by_words.to_ne_bytes(), by_guard[..]);
                assert_eq!(word(*page).expect("there"), by_guard);
            }
            // Elsewhere again: they are read anew.
            view.advise(0..200, Advice::DontNeed);
        }
        let mut guard = view.write(150).expect("there");
        guard[..8].fill(0xab);
        drop(guard);
        let (_, written) = &entries[1];
        assert_eq!(
            written.read_optimistic(|words| words.load(0)).expect("there"),
            u64::MAX / 255 * 0xab
        );
        // Past the end, then in the file, and past its end once more.
        let (_, last) = &entries[3];
        assert!(matches!(last.read(), Err(CacheError::PastEnd { .. })));
        assert!(matches!(last.read_optimistic(|_| ()), Err(CacheError::PastEnd { .. })));
        drop(view.write_or_grow(200).expect("room"));
        assert_eq!(last.read_optimistic(|words| words.load(0)).expect("there"), 0);
        view.set_len(200 * FRAME_SIZE as u64).expect("shorter");
        assert!(matches!(last.read(), Err(CacheError::PastEnd { .. })));
    });
}
