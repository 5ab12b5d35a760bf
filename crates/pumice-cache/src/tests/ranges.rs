//! Pages in a row: written by one call, and read under guards, beside eviction and those who write.

use std::sync::atomic::AtomicBool;

use super::*;

fn word(page: &Page) -> u64 {
    u64::from_le_bytes(page[..8].try_into().expect("eight bytes"))
}

/// All of a page is one word again and again.
fn page_of(value: u64) -> Page {
    let mut page = [0; FRAME_SIZE];
    page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    page
}

#[track_caller]
fn check_page(page: &Page, value: u64) {
    assert!(*page == page_of(value), "a page of {} is {}", value, word(page));
}

/// Random operations on a file, and on a list of what its pages are to be.
#[test]
fn ranges_are_as_a_list_of_pages_would_be() {
    for (seed, cached) in (0..6).map(|seed| (seed, seed % 3 == 2)) {
        let scratch = Scratch::new("ranges");
        let frames = if cached { 8192 } else { 512 };
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model: Vec<u64> = Vec::new();
        with_file(&settings(frames), &scratch, |cache, _, _, view| {
            for value in 1..=1200u64 {
                let first = random.usize(0..=model.len().min(2500));
                match random.u32(0..12) {
                    0..=2 => {
                        let many = random.usize(1..300);
                        let bytes = page_of(value).repeat(many);
                        view.write_at((first * FRAME_SIZE) as u64, &bytes).expect("room");
                        model.resize(model.len().max(first + many), 0);
                        model[first..first + many].fill(value);
                    }
                    3 if first < model.len() => {
                        *view.write(first).expect("room") = page_of(value);
                        model[first] = value;
                    }
                    4 => view.sync().expect("room"),
                    5 => view.advise(first..first + 700, Advice::DontNeed),
                    6 => view.advise(first..first + 40, Advice::WillNeed),
                    7 if random.u32(0..8) == 0 => {
                        view.set_len((first * FRAME_SIZE) as u64).expect("room");
                        model.resize(first, 0);
                    }
                    _ if first < model.len() => {
                        let end = first + random.usize(0..400);
                        let range = view.read_range(first..end).expect("in the file");
                        let pages = range.pages();
                        assert!(pages.start == first && pages.end > first, "{pages:?}");
                        assert!(pages.end <= end.max(first + 1) && pages.end <= model.len());
                        assert!(pages.len() <= (frames / 16).max(1));
                        assert_eq!(range.iter().count(), pages.len());
                        for (page, bytes) in pages.clone().zip(range.iter()) {
                            check_page(bytes, model[page]);
                            assert!(std::ptr::eq(&range[page], bytes));
                            // Others may read it, and nobody may write to it.
                            assert!(view.try_read(page).is_ok() && view.try_write(page).is_err());
                        }
                        drop(range);
                        // It waits for write-back, and for nobody else.
                        drop(view.write(first).expect("nobody has it"));
                    }
                    _ => {
                        let error = view.read_range(model.len()..model.len() + 9).err();
                        assert!(matches!(error, Some(CacheError::PastEnd { .. })), "{error:?}");
                    }
                }
            }
            for (page, &value) in model.iter().enumerate() {
                check_page(&view.read(page).expect("in the file"), value);
            }
            view.sync().expect("room");
            assert_eq!(cache.counts().dirty, 0);
        });
        let file = plainly(&scratch.0);
        assert_eq!(file.len(), model.len());
        file.iter().zip(&model).for_each(|(page, &value)| check_page(page, value));
    }
}

/// A range that is read in order is all of the file, whatever of it is in memory, while others write and pages go.
#[test]
fn who_reads_ranges_sees_whole_pages_while_others_write() {
    const PAGES: usize = 3000;
    let scratch = Scratch::new("ranges-beside");
    with_file(&settings(512), &scratch, |cache, _, file, view| {
        view.write_at(0, &page_of(1).repeat(PAGES)).expect("room");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            for seed in 0..2 {
                scope.spawn(move || {
                    let task = cache.task().expect("room");
                    let view = task.view(file).expect("room");
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut value = 2;
                    while !is_over.load(Ordering::Relaxed) {
                        let page = random.usize(0..PAGES);
                        if random.bool() {
                            *view.write(page).expect("room") = page_of(value);
                        } else {
                            let many = random.usize(1..100).min(PAGES - page);
                            let bytes = page_of(value).repeat(many);
                            view.write_at((page * FRAME_SIZE) as u64, &bytes).expect("room");
                        }
                        value += 1;
                    }
                });
            }
            for _ in 0..6 {
                let mut page = 0;
                while page < PAGES {
                    let range = view.read_range(page..PAGES).expect("in the file");
                    range.iter().for_each(|bytes| check_page(bytes, word(bytes)));
                    let first = word(&range[page]);
                    std::thread::yield_now();
                    assert_eq!(word(&range[page]), first, "nobody writes to it");
                    page = range.pages().end;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        view.sync().expect("room");
    });
    plainly(&scratch.0).iter().for_each(|page| check_page(page, word(page)));
}

#[test]
fn a_range_holds_each_of_its_pages_until_it_goes() {
    let scratch = Scratch::new("ranges-held");
    with_file(&settings(1024), &scratch, |_, _, _, view| {
        view.write_at(0, &page_of(7).repeat(100)).expect("room");
        view.sync().expect("room");
        let (one, other) = (view.read_range(10..40), view.read_range(20..50));
        let (one, other) = (one.expect("there"), other.expect("there"));
        assert_eq!((one.pages(), other.pages()), (10..40, 20..50));
        drop(one);
        for page in 0..60 {
            assert_eq!(view.try_write(page).is_ok(), !(20..50).contains(&page), "{page}");
        }
        // A page that somebody writes to ends a range, and is waited for by none that begins before.
        drop(other);
        let held = view.write(30).expect("there");
        assert_eq!(view.read_range(25..60).expect("there").pages(), 25..30);
        drop(held);
        let range = view.read_range(99..500).expect("there");
        assert_eq!(range.pages(), 99..100);
        let by_number = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| range[100][0]));
        assert!(by_number.is_err(), "it is none of them");
    });
}
