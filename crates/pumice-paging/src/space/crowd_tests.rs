//! As many readers as like.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use std::thread;

use super::{Access, Frames, MemMap, ReadGuard, Task, VmError, VmSpace};
use crate::page_table::entry::{CROWDED, MAX_READERS};
use crate::page_table::{Atomic, Emulated, Rights, TableOps};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;
/// Around each border that there is, and far beyond.
const READERS: [usize; 9] = [122, 123, 124, 125, 126, 127, 128, 255, 1000];

fn with_space<T: TableOps + Default>(work: impl FnOnce(&VmSpace<Frames<'_>, T>)) {
    let zone = Zone::new(32 << 20, cpu::count(), Huge::No).expect("addresses");
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames");
    let space = VmSpace::new(map.frames(), T::default()).expect("frames");
    work(&space);
    drop(space);
    drop(map);
    assert_eq!(zone.free_frames(), zone.capacity_frames(), "nothing is lost");
}

/// The meaning of a page's word: its latch, or that it is nobody's.
fn latch(task: &Task<'_, Frames<'_>, impl TableOps>, at: usize) -> u8 {
    let walked = task.walk(at / PAGE).unwrap_or_else(|trap| panic!("{trap:?}"));
    task.space().tables.ops.ptep_get(walked.ptep).latch()
}

/// `many` guards of one thread, that go in some order.
fn one_thread_with<T: TableOps + Default>(many: usize) {
    with_space::<T>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(4 * PAGE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[7]).expect("mapped");
        let region = task.region(at).expect("mapped");
        // A page with a frame, and one that is the zero page.
        for page in [0, 1] {
            for first_come in [true, false] {
                let mut guards: Vec<ReadGuard<'_, _, T>> = Vec::new();
                for nth in 0..many {
                    let guard =
                        if nth % 2 == 0 { region.read(page) } else { region.try_read(page) };
                    guards.push(guard.expect("any number"));
                }
                assert!(
                    usize::from(latch(&task, at + page * PAGE)) <= many.min(CROWDED as usize + 1)
                );
                assert!(matches!(region.try_write(page), Err(VmError::Busy(_))));
                while guards.len() > 1 {
                    drop(if first_come { guards.remove(0) } else { guards.pop().expect("some") });
                    assert!(latch(&task, at + page * PAGE) > 0, "{} are left", guards.len());
                }
                assert_eq!(guards[0][0], if page == 0 { 7 } else { 0 });
                drop(guards);
                assert_eq!(latch(&task, at + page * PAGE), 0);
            }
            region.try_write(page).expect("nobody reads")[1] = 1;
        }
    });
}

#[test]
fn a_thread_reads_a_page_as_often_as_it_likes() {
    for many in READERS {
        one_thread_with::<Atomic>(many);
    }
    one_thread_with::<Emulated>(300);
}

#[test]
fn many_threads_read_a_page_together() {
    for many in [126, 127, 128, 1000] {
        with_space::<Atomic>(|space| {
            let task = space.enter().expect("frames");
            let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
            task.write_at(at, &[7]).expect("mapped");
            let together = Barrier::new(many + 1);
            thread::scope(|scope| {
                for _ in 0..many {
                    thread::Builder::new()
                        .stack_size(64 << 10)
                        .spawn_scoped(scope, || {
                            let task = space.enter().expect("frames");
                            let region = task.region(at).expect("mapped");
                            let guard = region.read(0).expect("mapped");
                            // All have one at a time.
                            together.wait();
                            assert_eq!(guard[0], 7);
                            let mut byte = [0];
                            task.read_at(at, &mut byte).expect("mapped");
                            assert_eq!(byte, [7]);
                            together.wait();
                        })
                        .expect("threads");
                }
                together.wait();
                let region = task.region(at).expect("mapped");
                assert!(matches!(region.try_write(0), Err(VmError::Busy(_))), "{many}");
                together.wait();
                region.write(0).expect("when they have gone")[0] = 8;
            });
            assert_eq!(latch(&task, at), 0);
        });
    }
}

/// Readers come and go all the time, more than a word counts, and writers in between: each reader sees each write
/// whole, and none waits for ever.
#[test]
fn writers_come_through_between_crowds() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 20;
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[0; 64]).expect("mapped");
        let writes = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let writes = &writes;
                scope.spawn(move || {
                    let task = space.enter().expect("frames");
                    let region = task.region(at).expect("mapped");
                    for round in 0..ROUNDS {
                        let guards: Vec<_> = (0..100).map(|_| region.try_read(0)).collect();
                        let mut read = guards.iter().flatten();
                        assert!(read.all(|page| page[..64].iter().all(|&byte| byte == page[0])));
                        drop(guards);
                        if (round + thread) % 3 == 0 {
                            let mut page = region.write(0).expect("mapped");
                            let next = page[0].wrapping_add(1);
                            page[..64].fill(next);
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let mut byte = [0];
        task.read_at(at, &mut byte).expect("mapped");
        assert_eq!(usize::from(byte[0]), writes.load(Ordering::Relaxed) % 256);
        assert_eq!(latch(&task, at), 0);
    });
}

/// A page that is unmapped under a crowd is its readers' until the last goes, and nobody new comes in.
#[test]
fn a_crowd_outlives_the_page() {
    for last_is_crowd in [true, false] {
        with_space::<Atomic>(|space| {
            let task = space.enter().expect("frames");
            let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
            task.write_at(at, &[7]).expect("mapped");
            let region = task.region(at).expect("mapped");
            let mut guards: Vec<_> = (0..300).map(|_| region.read(0).expect("mapped")).collect();
            task.unmap(at, PAGE).expect("aligned");
            assert!(matches!(region.read(0), Err(VmError::Unmapped(_))));
            assert_eq!(space.anon_rss(), 1);
            if last_is_crowd {
                guards.reverse();
            }
            while let Some(guard) = guards.pop() {
                assert_eq!(guard[0], 7);
            }
            assert_eq!(space.anon_rss(), 0);
            drop(guards);
            assert!(task.fault(at, Access::Read).is_err());
            drop(region);
            task.unmap(at, 2 * PAGE).expect("aligned");
        });
    }
}

/// `fork` shares a page that a crowd reads; it waited four seconds for there to be fewer, and gave up.
#[test]
fn a_page_with_a_crowd_is_forked() {
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGE, Rights::READ_WRITE).expect("room");
        task.write_at(at, &[7]).expect("mapped");
        let region = task.region(at).expect("mapped");
        let guards: Vec<_> = (0..200).map(|_| region.read(0).expect("mapped")).collect();
        assert!(latch(&task, at) < MAX_READERS);
        let child = task.fork().expect("it is only read");
        drop(guards);
        region.write(0).expect("a copy")[0] = 8;
        let mut byte = [0];
        child.enter().expect("frames").read_at(at, &mut byte).expect("mapped");
        assert_eq!(byte, [7]);
    });
}

/// Crowds of more pages than a frame has room for.
#[test]
fn many_pages_have_crowds() {
    const PAGES: usize = 300;
    with_space::<Atomic>(|space| {
        let task = space.enter().expect("frames");
        let at = task.map(PAGES * PAGE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        let each = CROWDED as usize + 3;
        let guards: Vec<_> =
            (0..PAGES * each).map(|nth| region.read(nth % PAGES).expect("mapped")).collect();
        assert!((0..PAGES).all(|page| region.try_write(page).is_err()));
        drop(guards);
        assert!((0..PAGES).all(|page| region.try_write(page).is_ok()));
    });
}
