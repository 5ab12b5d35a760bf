//! A file's pages: filled, written to, written back, evicted and forgotten at the same time.
//!
//! Invariants: no update is lost, a page that is clean is in the file as it is in memory, and no frame is lost.

use super::*;
use crate::page_table::pager::LruPage;
use crate::space::runs::{Accessed, Near};
use crate::space::write_back::WriteFailed;

fn disk<'t>(task: &Task<'t, Model, Atomic>) -> &'static Disk {
    task.space().tables.source.0.disk.as_ref().expect("a file")
}

fn file() -> Shared<Atomic> {
    let model = Model::new(Some(Disk::file()));
    let space = VmSpace::for_files(model, Atomic).expect("frames");
    space.set_prefault(1);
    Shared { space: Box::leak(Box::new(space)), model }
}

/// Adds to the first word of a page by a guard that notes whether the page was clean.
fn add_noting(task: &Task<'_, Model, Atomic>, at: usize) {
    let region = task.region(at).expect("mapped");
    let page = (at - region.start()) / PAGE;
    let mut guard = loop {
        match region.try_write_noting(page) {
            Ok((guard, _)) => break guard,
            Err(VmError::Busy(_)) => pumice_io::sync::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    };
    let value = u64::from_ne_bytes(guard[..8].try_into().expect("eight bytes"));
    guard[..8].copy_from_slice(&(value + 1).to_ne_bytes());
}

/// Evicts a page in one step, as reclaim does.
fn evict_at_once(task: &Task<'_, Model, Atomic>, at: usize) -> bool {
    let page = at / PAGE;
    let to = || Some(Evicted::Shadow(7));
    task.mapped(page).is_some_and(|frame| {
        let page = LruPage { page, frame };
        task.evict_at_once(&mut Near::NONE, page, Accessed::IsNothing, to)
    })
}

/// Writes a page whole, with this first word, where it is not in memory. Whether it did.
fn overwrite(task: &Task<'_, Model, Atomic>, at: usize, value: u64) -> bool {
    let region = task.region(at).expect("mapped");
    let mut bytes = [0; PAGE];
    bytes[..8].copy_from_slice(&value.to_ne_bytes());
    let page = (at - region.start()) / PAGE;
    region.try_overwrite_run(page, &bytes, |_| true, |_, many| assert!(many <= 1)) == 1
}

fn write_back(task: &Task<'_, Model, Atomic>, at: usize) {
    disk(task).write_back(task, at / PAGE, Ok(()));
}

/// A page and the file's copy of it have the value `expected`, when no thread does anything.
fn check(task: &Task<'_, Model, Atomic>, at: usize, expected: u64) {
    let mut dirty = 0;
    task.scan_dirty(at / PAGE..at / PAGE + 1, |_| dirty += 1);
    if dirty == 0 {
        assert_eq!(disk(task).first_word(at / PAGE), expected, "clean, and not in the file");
    }
    assert_eq!(word(task, at), Ok(expected));
    disk(task).write_back(task, at / PAGE, Ok(()));
    assert_eq!(disk(task).first_word(at / PAGE), expected);
}

#[cfg(loom)]
mod loom_models {
    use super::*;

    fn race(prepare: Step, one: Step, two: Step, after: Step) {
        let map: Map = |task| task.map_file(PAGE, Rights::READ_WRITE);
        race_on(file, map, [prepare, one, two, after]);
    }

    fn evict(task: &Task<'_, Model, Atomic>, at: usize) {
        task.evict_clean(at / PAGE, Evicted::Shadow(7));
    }

    fn fill(task: &Task<'_, Model, Atomic>, at: usize) {
        disk(task).fill(task, at / PAGE..at / PAGE + 1);
    }

    fn fail(task: &Task<'_, Model, Atomic>, at: usize) {
        disk(task).write_back(task, at / PAGE, Err(WriteFailed));
    }

    fn forget(task: &Task<'_, Model, Atomic>, at: usize) {
        task.forget(at / PAGE..at / PAGE + 1, |_| ());
    }

    fn clean(task: &Task<'_, Model, Atomic>, at: usize) {
        add_noting(task, at);
        write_back(task, at);
    }

    #[test]
    fn loom_write_back_and_a_guard() {
        race(add_noting, write_back, add_noting, |task, at| check(task, at, 2));
    }

    #[test]
    fn loom_two_write_back() {
        race(add_noting, write_back, write_back, |task, at| check(task, at, 1));
    }

    #[test]
    fn loom_write_back_that_fails_and_a_guard() {
        race(add_noting, fail, add_noting, |task, at| check(task, at, 2));
    }

    #[test]
    fn loom_write_back_and_eviction() {
        race(add_noting, write_back, evict, |task, at| check(task, at, 1));
    }

    #[test]
    fn loom_eviction_and_a_guard() {
        race(clean, evict, add_noting, |task, at| check(task, at, 2));
    }

    fn evict_now(task: &Task<'_, Model, Atomic>, at: usize) {
        evict_at_once(task, at);
    }

    #[test]
    fn loom_eviction_at_once_and_a_guard() {
        race(clean, evict_now, add_noting, |task, at| check(task, at, 2));
    }

    #[test]
    fn loom_eviction_at_once_and_in_transit() {
        race(clean, evict_now, evict, |task, at| check(task, at, 1));
    }

    #[test]
    fn loom_eviction_at_once_and_write_back() {
        race(add_noting, write_back, evict_now, |task, at| check(task, at, 1));
    }

    #[test]
    fn loom_eviction_at_once_and_a_range() {
        race(clean, evict_now, read_range, |task, at| check(task, at, 1));
    }

    fn read_range(task: &Task<'_, Model, Atomic>, at: usize) {
        let region = task.region(at).expect("mapped");
        let range = region.read_range(0..1).expect("mapped");
        assert_eq!(range[0][..8], 1u64.to_ne_bytes());
    }

    #[test]
    fn loom_a_page_written_whole_and_a_guard() {
        // The guard adds before, and that is written over or not in the file yet; or after.
        race(
            nothing,
            |task, at| drop(overwrite(task, at, 5)),
            add_noting,
            |task, at| assert!(matches!(word(task, at), Ok(1 | 6)), "{:?}", word(task, at)),
        );
    }

    #[test]
    fn loom_a_fill_and_a_guard() {
        race(nothing, fill, add_noting, |task, at| check(task, at, 1));
    }

    #[test]
    fn loom_two_fills() {
        race(nothing, fill, fill, |task, at| check(task, at, 0));
    }

    #[test]
    fn loom_a_fill_and_forgetting() {
        race(
            clean,
            |task, at| {
                evict(task, at);
                fill(task, at);
            },
            forget,
            |task, at| check(task, at, 1),
        );
    }

    #[test]
    fn loom_write_back_and_unmap() {
        let held: Step = |task, at| {
            if let Ok(_held) = task.region(at) {
                write_back(task, at);
            }
        };
        race(add_noting, held, unmap_one, |task, at| assert!(word(task, at).is_err()));
    }
}

#[cfg(shuttle)]
mod shuttle_models {
    use super::*;
    use shuttle::rand::{thread_rng, Rng};
    use shuttle::sync::atomic::{AtomicU64, Ordering};
    use shuttle::thread;

    const PAGES: usize = 3;
    const ITERATIONS: usize = 2_000;

    /// Three threads that each do some of: fill, evict, write, sync.
    fn scenario() {
        let shared = file();
        let task = shared.enter();
        let at = task.map_file(PAGES * PAGE, Rights::READ_WRITE).expect("room");
        let added: &'static [AtomicU64; PAGES] =
            Box::leak(Box::new(core::array::from_fn(|_| AtomicU64::new(0))));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let task = shared.enter();
                thread::spawn(move || {
                    for _ in 0..6 {
                        let page = thread_rng().gen_range(0..PAGES);
                        let at = at + page * PAGE;
                        match thread_rng().gen_range(0..8) {
                            0 => {
                                let all = at / PAGE - page..at / PAGE - page + PAGES;
                                disk(&task).fill(&task, at / PAGE..all.end);
                            }
                            6 => drop(evict_at_once(&task, at)),
                            7 => read_range(&task, at - page * PAGE, page, added),
                            1 => drop(task.evict_clean(at / PAGE, Evicted::Shadow(7))),
                            2 | 3 => {
                                add_noting(&task, at);
                                // After the guard: a `sync` after this finds it.
                                added[page].fetch_add(1, Ordering::SeqCst);
                            }
                            4 => {
                                disk(&task).write_back(&task, at / PAGE, Err(WriteFailed));
                            }
                            _ => sync(&task, at, added),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        for (page, added) in added.iter().enumerate() {
            check(&task, at + page * PAGE, added.load(Ordering::SeqCst));
        }
        drop(task);
        shared.end();
    }

    /// Pages in a row have what was added to them before, also while they are held.
    fn read_range(
        task: &Task<'_, Model, Atomic>,
        at: usize,
        first: usize,
        added: &[AtomicU64; PAGES],
    ) {
        let region = task.region(at).expect("mapped");
        let before: Vec<u64> = added.iter().map(|added| added.load(Ordering::SeqCst)).collect();
        let word = |page: &crate::space::region::Page| {
            u64::from_ne_bytes(page[..8].try_into().expect("eight bytes"))
        };
        let range = region.read_range(first..PAGES).expect("mapped");
        let words: Vec<u64> = range.iter().map(word).collect();
        assert_eq!(range.pages(), first..first + words.len());
        for (page, had) in range.pages().zip(&words) {
            assert!(*had >= before[page], "{had} of {} on page {page}", before[page]);
        }
        thread::yield_now();
        assert!(range.iter().map(word).eq(words), "nobody writes to them meanwhile");
    }

    /// All that was written before this began is in the file when it is over, unless somebody else is writing it there.
    fn sync(task: &Task<'_, Model, Atomic>, at: usize, added: &[AtomicU64; PAGES]) {
        let page = (at / PAGE) % (1 << BITS);
        let before = added[page].load(Ordering::SeqCst);
        if let Ok(Some(begun)) = task.wait_to_write_back(at / PAGE, true) {
            let had = word(task, at).expect("mapped");
            assert!(had >= before, "{had} of {before} are in what is written");
            // SAFETY: it was begun by this task, and the region stays.
            unsafe { task.end_write_back(begun, Err(WriteFailed)) };
        }
        write_back(task, at);
    }

    #[test]
    fn shuttle_fill_evict_write_sync() {
        shuttle::check_random(scenario, ITERATIONS);
    }
}
