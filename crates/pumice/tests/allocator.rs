//! `pumice::Allocator` as this program's own.

use std::alloc::{GlobalAlloc, Layout};
use std::process::Command;
use std::sync::mpsc;
use std::{env, fs, slice, thread};

use pumice::config::Setting;
use pumice::Allocator;
use pumice_frames::sys::segment;
use pumice_heap::stats::{Event, Tree, TreeName, TREE_SIZE};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::new();

const MIB: usize = 1 << 20;

fn count(event: Event) -> u64 {
    ALLOCATOR.slot().map_or(0, |slot| slot.get(event))
}

/// Page faults of the calling thread so far that needed no I/O.
fn faults() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("procfs");
    let fields = stat.rsplit(')').next().expect("a name").split_whitespace();
    fields.clone().nth(7).expect("minflt").parse().expect("a number")
}

fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: the slice is readable.
    unsafe { pumice::clear::is_zero(bytes.as_ptr(), bytes.len()) }
}

fn is_all(bytes: &[u8], value: u8) -> bool {
    // Compared with itself, a byte on: that is fast without optimisation too.
    bytes.is_empty() || (bytes[0] == value && bytes[1..] == bytes[..bytes.len() - 1])
}

#[test]
fn zeros_are_free() {
    drop(vec![0u8; 256 * MIB]);
    let (requests, before) = (count(Event::Requests), faults());
    let zeros = vec![0u8; 256 * MIB];
    assert!(faults() - before < 100, "nothing of it is touched");
    assert!(count(Event::Requests) > requests);
    assert!(is_zero(&zeros[..MIB]) && is_zero(&zeros[255 * MIB..]));
}

#[test]
fn a_thread_with_a_small_stack_starts_one() {
    static OTHER: Allocator = Allocator::new();
    let ask = || {
        let layout = Layout::new::<[u8; MIB]>();
        // SAFETY: its size is not zero; and it is freed as it was allocated.
        unsafe {
            let at = OTHER.alloc(layout);
            at.write(1);
            OTHER.dealloc(at, layout);
        }
    };
    let small = thread::Builder::new().stack_size(16 << 10).spawn(ask).expect("a thread");
    small.join().expect("it has room");
    assert!(OTHER.slot().is_some(), "it is started");
}

#[test]
fn zeros_are_zeros_however_often_memory_goes_round() {
    for round in 0..8 {
        for size in [64 << 10, 100_000, MIB + 5, 2 * MIB, 9 * MIB, 16 * MIB] {
            let mut bytes = vec![0u8; size];
            assert!(is_zero(&bytes), "{size} in round {round}");
            bytes.fill(0xa5);
        }
    }
    assert!(count(Event::Hits) > 0, "what is filled again and again comes from ready memory");
}

#[test]
fn verifying_finds_nothing() {
    let test = "zeros_are_zeros_however_often_memory_goes_round";
    run_again(test, "PUMICE_VERIFY", "1".as_ref());
}

#[test]
fn alignments_hold() {
    for align in [0, 3, 6, 12, 16, 21, 22, 24, 30].map(|shift| 1 << shift) {
        for size in [1, 4096, 65536, 100_000, 9 * MIB] {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: the size is not 0; an allocation is used within its size and freed with the layout it has by
            // then.
            unsafe {
                let mut at = ALLOCATOR.alloc_zeroed(layout);
                assert!(!at.is_null() && at as usize % align == 0, "{size} aligned to {align}");
                assert!(is_zero(slice::from_raw_parts(at, size)));
                at.write_bytes(7, size);
                let mut last = layout;
                for new in [2 * size, 5 * size + 77, size / 2 + 1] {
                    at = ALLOCATOR.realloc(at, last, new);
                    assert!(!at.is_null() && at as usize % align == 0, "{new} aligned to {align}");
                    let kept = slice::from_raw_parts(at, new.min(size));
                    assert!(is_all(kept, 7), "{size} to {new}");
                    last = Layout::from_size_align(new, align).expect("a layout");
                }
                ALLOCATOR.dealloc(at, last);
            }
        }
    }
}

#[test]
fn sizes_that_can_not_be_had_are_null() {
    for (size, align) in [(isize::MAX as usize & !4095, 1), (1 << 60, 4096)] {
        let layout = Layout::from_size_align(size, align).expect("a layout");
        // SAFETY: the size is not 0.
        assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
        // SAFETY: as above.
        assert!(unsafe { ALLOCATOR.alloc_zeroed(layout) }.is_null());
    }
    let small = Layout::from_size_align(MIB, 16).expect("a layout");
    // SAFETY: allocated with the layout that is named, and freed with it, since it stays.
    unsafe {
        let at = ALLOCATOR.alloc_zeroed(small);
        assert!(ALLOCATOR.realloc(at, small, 1 << 60).is_null());
        assert!(is_zero(slice::from_raw_parts(at, MIB)));
        ALLOCATOR.dealloc(at, small);
    }
}

#[test]
fn vectors_grow_across_the_threshold_and_back() {
    let mut numbers: Vec<usize> = Vec::new();
    for number in 0..8 * MIB {
        numbers.push(number);
    }
    assert!(count(Event::ReallocInPlace) + count(Event::ReallocMoved) > 0);
    for length in [5 * MIB, 100_000, 8192, 100] {
        numbers.truncate(length);
        numbers.shrink_to_fit();
        assert!(numbers.iter().copied().eq(0..length), "{length}");
    }
}

#[test]
fn threads_free_what_others_allocated() {
    let (send, receive) = mpsc::channel::<(u8, Vec<u8>)>();
    let makers: Vec<_> = (1..=3u8)
        .map(|seed| {
            let send = send.clone();
            thread::spawn(move || {
                for round in 0..200usize {
                    let mut bytes = vec![0u8; 1000 << (round * usize::from(seed) % 12)];
                    assert!(is_zero(&bytes));
                    bytes.fill(seed);
                    send.send((seed, bytes)).expect("a receiver");
                }
            })
        })
        .collect();
    drop(send);
    for (seed, bytes) in receive {
        assert!(is_all(&bytes, seed));
    }
    for maker in makers {
        maker.join().expect("no panic");
    }
}

/// The work of a child on the memory that it inherited; returns its exit status.
fn live_as_child(mut kept: Vec<u8>, freed: Vec<u8>) -> i32 {
    let inherited = is_all(&kept, 1) && is_all(&freed, 2);
    drop(freed);
    kept.fill(3);
    let fresh = (0..8).all(|_| {
        let mut bytes = vec![0u8; 3 * MIB];
        let zeros = is_zero(&bytes);
        bytes.fill(4);
        zeros
    });
    kept.resize(9 * MIB, 3);
    let grown = is_all(&kept, 3);
    let own_slot = ALLOCATOR.slot().is_some_and(|slot| {
        slot.owner().pid == std::process::id()
            && slot.get(Event::Forks) == 1
            && Setting::ScrubDelayMs.get(slot) == 7
    });
    i32::from(!inherited)
        | i32::from(!fresh) << 1
        | i32::from(!grown) << 2
        | i32::from(!own_slot) << 3
}

#[test]
fn children_have_heaps_of_their_own() {
    let (mut kept, mut freed) = (vec![0u8; 5 * MIB], vec![0u8; 4 * MIB]);
    kept.fill(1);
    freed.fill(2);
    Setting::ScrubDelayMs.set(ALLOCATOR.slot().expect("served"), 7);
    for _ in 0..5 {
        // SAFETY: the child allocates, which it may, prints nothing and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = live_as_child(kept, freed);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the child is ours to wait for.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "see `live_as_child`");
        assert!(is_all(&kept, 1) && is_all(&freed, 2));
    }
}

#[test]
fn thresholds_and_going_quiet() {
    static LATE: Allocator = Allocator::with_threshold(MIB);
    static QUIET: Allocator = Allocator::with_threshold(0);
    let requests = |allocator: &Allocator| allocator.slot().map(|slot| slot.get(Event::Requests));
    let get = |allocator: &Allocator, size| {
        let layout = Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: the size is not 0, and the layout is the same.
        unsafe { allocator.dealloc(allocator.alloc_zeroed(layout), layout) };
    };
    get(&LATE, MIB - 1);
    assert_eq!(requests(&LATE), Some(0));
    get(&LATE, MIB);
    assert_eq!(requests(&LATE), Some(1));
    LATE.go_quiet();
    get(&LATE, MIB);
    assert_eq!(requests(&LATE), Some(2), "what has started goes on, with fewer calls");
    QUIET.go_quiet();
    get(&QUIET, MIB);
    assert_eq!(requests(&QUIET), None, "what has not started never does");
}

/// Runs one of the tests below in a process of its own, with a variable set.
fn run_again(test: &str, name: &str, value: &std::ffi::OsStr) {
    let program = env::current_exe().expect("a path");
    let output = Command::new(program).args(["--exact", test]).env(name, value).output();
    let output = output.expect("this program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn off_means_off() {
    if env::var_os("PUMICE").is_none() {
        return run_again("off_means_off", "PUMICE", "off".as_ref());
    }
    assert!(is_zero(&vec![0u8; 4 * MIB]));
    assert!(ALLOCATOR.slot().is_none());
}

#[test]
fn a_tree_counts_what_is_served() {
    if let Some(id) = env::var_os("PUMICE_STATS") {
        let requests = count(Event::Requests);
        drop(vec![0u8; 4 * MIB]);
        assert_eq!(count(Event::Requests), requests + 1, "in {id:?}");
        return;
    }
    let (id, memory) = segment::create(TREE_SIZE).expect("shared memory");
    // SAFETY: new memory of that length, which stays mapped.
    let tree = unsafe { Tree::create(memory, TreeName::of_own(), 1 << 40, 0) };
    run_again("a_tree_counts_what_is_served", "PUMICE_STATS", id.to_string().as_ref());
    assert_eq!(tree.processes(), 1);
    assert!(tree.total(Event::Requests) >= 1);
}
