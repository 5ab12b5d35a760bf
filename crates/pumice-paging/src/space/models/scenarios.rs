//! Whole scenarios under many random interleavings.

use super::*;
use pumice_io::sync::pause_in_models;
use shuttle::sync::Arc;
use shuttle::thread;

const ITERATIONS: usize = 3000;

/// Faults, guards and copies on two threads, unmapping and forking on a third, on six pages.
fn scenario<T: TableOps + Default + 'static>() {
    let shared = Shared::<T>::paged();
    let task = shared.enter();
    let at = task.map(6 * PAGE, Rights::READ_WRITE).expect("room");
    set(&task, at, 40).expect("mapped");
    // The model has room for four threads.
    drop(task);
    let adders: Vec<_> = (0..2)
        .map(|_| {
            let task = shared.enter();
            thread::spawn(move || {
                let mut added = 0;
                for page in [0, 4, 0] {
                    let result = add(&task, at + page * PAGE);
                    added += u64::from(page == 0 && result.is_ok());
                    assert!(page == 4 || result.is_ok());
                }
                let _ = task.fault(at + 5 * PAGE, Access::Write);
                added
            })
        })
        .collect();
    let mapper = shared.enter();
    let mapper = thread::spawn(move || {
        mapper.unmap(at + 4 * PAGE, 2 * PAGE).expect("aligned");
        assert!(mapper.fault(at + 5 * PAGE, Access::Write).is_err());
        let child = mapper.fork().expect("frames");
        let kid = child.enter().expect("room");
        let seen = word(&kid, at).expect("mapped");
        set(&kid, at, 1000).expect("mapped");
        assert_eq!(word(&kid, at), Ok(1000));
        assert!(kid.fault(at + 4 * PAGE, Access::Read).is_err());
        seen
    });
    let swapper = shared.enter();
    let swapper = thread::spawn(move || {
        for page in [0, 4, 0, 5] {
            swap_out(&swapper, at + page * PAGE);
        }
    });
    let added: u64 = adders.into_iter().map(|adder| adder.join().expect("no panic")).sum();
    let seen = mapper.join().expect("no panic");
    swapper.join().expect("no panic");
    assert!((40..=44).contains(&seen), "the child saw {seen}");
    let task = shared.enter();
    assert_eq!(word(&task, at), Ok(40 + added));
    assert_eq!(shared.space.anon_rss(), 1);
    task.unmap(at, 6 * PAGE).expect("aligned");
    assert_eq!(shared.space.anon_rss(), 0);
    drop(task);
    shared.end();
}

#[test]
fn shuttle_fault_fault_unmap_fork_swap_out() {
    shuttle::check_random(scenario::<Atomic>, ITERATIONS);
}

#[test]
fn shuttle_fault_fault_unmap_fork_swap_out_emulated() {
    shuttle::check_random(scenario::<Emulated>, ITERATIONS / 3);
}

#[test]
fn shuttle_regions_come_and_go_beside_faults() {
    let scenario = || {
        let shared = Shared::<Atomic>::new();
        let task = shared.enter();
        let first = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
        let other = shared.enter();
        let thread = thread::spawn(move || {
            for _ in 0..3 {
                let _ = other.fault(first, Access::Write);
                let _ = word(&other, first + PAGE);
            }
        });
        for _ in 0..3 {
            task.unmap(first, 2 * PAGE).expect("aligned");
            let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
            set(&task, at, 7).expect("mapped");
            assert_eq!(word(&task, at), Ok(7));
        }
        thread.join().expect("no panic");
        drop(task);
        shared.end();
    };
    shuttle::check_random(scenario, ITERATIONS);
}

/// A page is written out while its region goes, and another comes to its address, with its frame: a read there gives
/// the bytes that were written there last.
#[test]
fn shuttle_a_region_comes_back_while_its_page_is_written_out() {
    let scenario = || {
        let shared = Shared::<Atomic>::paged();
        let task = shared.enter();
        let first = task.map(PAGE, Rights::READ_WRITE).expect("room");
        set(&task, first, 1).expect("mapped");
        // All other room there is, so that the search for some comes back to this.
        let rest = [2, 28].map(|granules| {
            let bytes = granules * Model::ENTRIES * PAGE;
            task.map(bytes, Rights::READ_WRITE).expect("room")
        });
        assert!(task.map(PAGE, Rights::READ_WRITE).is_err());
        let other = rest[0] / PAGE;
        let is_done = Arc::new(AtomicU32::new(0));
        let swappers = [(); 2].map(|()| {
            let (swapper, is_done) = (shared.enter(), is_done.clone());
            thread::spawn(move || {
                let disk = swapper.space().tables.source.0.disk.as_ref().expect("paged");
                // It is in no region then that may go.
                let elsewhere = || {
                    let _ = swapper.test_and_clear_young(other);
                    pause_in_models();
                };
                // Relaxed: it ends some time.
                while is_done.load(Ordering::Relaxed) == 0 {
                    disk.swap_out_while(&swapper, first / PAGE, Evicted::Swapped, elsewhere);
                    thread::yield_now();
                }
            })
        });
        for value in 2..8 {
            task.unmap(first, PAGE).expect("mapped");
            let _ = task.test_and_clear_young(other);
            // While another thread is in it, there is no room.
            let found = (0..200).find_map(|_| {
                thread::yield_now();
                task.map(PAGE, Rights::READ_WRITE).ok().filter(|&at| at == first)
            });
            if found.is_none() {
                break;
            }
            set(&task, first, value).expect("mapped");
            for _ in 0..3 {
                (0..10).for_each(|_| thread::yield_now());
                assert_eq!(word(&task, first), Ok(value));
            }
        }
        is_done.store(1, Ordering::Relaxed);
        swappers.into_iter().for_each(|swapper| swapper.join().expect("no panic"));
        drop(task);
        shared.end();
    };
    shuttle::check_random(scenario, ITERATIONS);
}

/// A space of 32 granules, and regions of 20: the thread that maps the second was the last in the first, which others
/// have unmapped.
#[test]
fn shuttle_who_maps_keeps_no_addresses_from_itself() {
    let scenario = || {
        let shared = Shared::<Atomic>::new();
        let bytes = 20 * (PAGE << BITS);
        let task = shared.enter();
        let at = task.map(bytes, Rights::READ_WRITE).expect("room");
        set(&task, at, 7).expect("mapped");
        let other = shared.enter();
        let other = thread::spawn(move || other.unmap(at, bytes).expect("aligned"));
        other.join().expect("no panic");
        let at = task.map(bytes, Rights::READ_WRITE).expect("there is room again");
        assert_eq!(word(&task, at), Ok(0));
        task.unmap(at, bytes).expect("aligned");
        drop(task);
        shared.end();
    };
    shuttle::check_random(scenario, 100);
}
