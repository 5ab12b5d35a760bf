//! Tests of freed memory that may not be recycled, and of memory that outlives the heap.

use super::*;
use pumice_frames::sys::raw;

/// Whether each page of a range is mapped.
fn is_mapped(at: *const u8, len: usize) -> bool {
    let mut seen = vec![0u8; len / FRAME_SIZE];
    let args = [at as usize, len, seen.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: `seen` has a byte for each page.
    unsafe { raw::syscall(raw::number::__NR_mincore, args) }.is_ok()
}

/// Whether the calling test is alone in its process, where nobody else maps memory at addresses that it looks at. If
/// not, it has been run so.
fn is_alone() -> bool {
    const ALONE: &str = "PUMICE_TEST_ALONE";
    let thread = std::thread::current();
    let name = thread.name().filter(|&name| name != "main");
    let Some(name) = name.filter(|_| std::env::var_os(ALONE).is_none()) else { return true };
    let this = std::env::current_exe().expect("the tests");
    let run = std::process::Command::new(this).args(["--exact", name]).env(ALONE, "1").output();
    let run = run.expect("the tests run");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    false
}

fn resident(heap: &Heap, at: *mut u8, len: usize) -> usize {
    let zone = heap.zone_of(at).expect("the heap's");
    heap.resident(zone, at, len).expect("known")
}

#[test]
fn what_others_may_hold_goes_to_the_kernel() {
    for (size, content) in [
        (DENSE, Content::Any),
        (DENSE, Content::Zero),
        (5 << 20, Content::Any),
        ((2 << 20) + (300 << 10), Content::Zero),
        (100 << 10, Content::Any),
    ] {
        let heap = heap(0, u64::MAX);
        make_dense(heap, size);
        let at = get(heap, size, content);
        fill(at, size);
        heap.stop_recycling();
        free(heap, at);
        let rounded = size.next_multiple_of(FRAME_SIZE);
        assert_eq!(resident(heap, at, rounded), 0, "{size}");
        // The addresses are used again, and read as zeros.
        let again = get(heap, size, Content::Zero);
        fill(again, size);
        // SAFETY: it is this test's.
        if unsafe { heap.resize_in_place(again, size / 2) } {
            let cut = (size / 2).next_multiple_of(FRAME_SIZE);
            assert_eq!(resident(heap, again.wrapping_add(cut), rounded - cut), 0, "{size}");
        }
        free(heap, again);
    }
}

#[test]
fn locked_memory_that_others_may_hold_goes_too() {
    for size in [DENSE, (2 << 20) + (300 << 10), 100 << 10] {
        let heap = heap(0, u64::MAX);
        make_dense(heap, size);
        let at = get(heap, size, Content::Any);
        fill(at, size);
        // SAFETY: plain system calls on memory of this test.
        if unsafe { libc::mlock(at.cast(), size.min(64 << 10)) } != 0 {
            eprintln!("skipped: nothing may be locked");
            return;
        }
        heap.stop_recycling();
        free(heap, at);
        assert_eq!(resident(heap, at, size.next_multiple_of(FRAME_SIZE)), 0, "{size}");
        let again = get(heap, size, Content::Zero);
        fill(again, size);
        free(heap, again);
    }
}

#[test]
fn pieces_that_others_may_hold_go_too() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    let at = heap.map(DENSE).expect("room").as_ptr();
    fill(at, DENSE);
    heap.stop_recycling();
    let piece = at.wrapping_add(3 * FRAME_SIZE);
    // SAFETY: nobody uses it.
    unsafe { heap.unmap(piece as usize, 5 * FRAME_SIZE) };
    assert_eq!(resident(heap, piece, 5 * FRAME_SIZE), 0);
    assert_eq!(resident(heap, at, 3 * FRAME_SIZE), 3);
    // SAFETY: as above.
    unsafe { heap.unmap(at as usize, DENSE) };
    assert_eq!(resident(heap, at, DENSE), 0);
}

#[test]
fn what_is_in_a_block_that_is_not_resident_is_not_taken_for_zero() {
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    // Handed out unpopulated, so that `mincore` is asked when it is freed.
    decay_all(heap);
    let at = get(heap, DENSE, Content::Any);
    free(heap, at);
    let last = at.wrapping_add(DENSE - BLOCK_SIZE);
    let block = |zone: &PoolZone| zone.ledger().block(zone.pfn(last).expect("a frame").block());
    let word = heap.zone_of(at).map(block);
    assert!(word.is_some_and(|word| word.zeroed()), "it was dropped, so it is");
}

#[test]
fn a_heap_that_retires_waits_for_a_request_in_the_middle_of_a_block() {
    if !is_alone() {
        return;
    }
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    let spare = get(heap, DENSE, Content::Any);
    fill(spare, DENSE);
    free(heap, spare);
    let zone = heap.zone_of(spare).expect("the heap's");
    // Another thread is about to take a part of it, and does not come to run.
    let block = zone.pfn(spare).expect("a frame").block();
    let word = zone.ledger().claim_block(block, |_| true).expect("it is free");
    std::thread::scope(|scope| {
        let retiring = scope.spawn(|| heap.retire(Calls::OfFree));
        while !heap.is_retired() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(5));
        zone.ledger().release_block(block, word);
        retiring.join().expect("no panic");
    });
    assert!(!is_mapped(zone.block_address(block), BLOCK_SIZE));
}

#[test]
fn a_free_that_comes_late_to_a_retired_heap_unmaps_what_it_puts_back() {
    if !is_alone() {
        return;
    }
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    let (late, kept) = (get(heap, DENSE, Content::Any), get(heap, DENSE, Content::Any));
    fill(late, DENSE);
    let (zone, range) = heap.run_at(late).expect("the heap's");
    heap.retire(Calls::OfFree);
    // As by a thread that has looked whether the heap is retired before it was.
    heap.release(zone, range, range.frames);
    assert!(!is_mapped(late, DENSE) && is_mapped(kept, FRAME_SIZE));
    free(heap, kept);
}

#[test]
fn a_retired_heap_unmaps_what_is_free_and_what_is_freed() {
    if !is_alone() {
        return;
    }
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    let large = get(heap, DENSE + (300 << 10), Content::Any);
    let small: Vec<_> = (0..8).map(|_| get(heap, 100 << 10, Content::Any)).collect();
    let mapping = heap.map(6 << 20).expect("room").as_ptr();
    let spare = get(heap, DENSE, Content::Any);
    for &at in small.iter().chain([&large, &mapping, &spare]) {
        fill(at, 100 << 10);
    }
    free(heap, spare);
    free(heap, small[3]);
    // SAFETY: nobody uses the piece.
    unsafe { heap.unmap(mapping as usize + (1 << 20), 2 << 20) };
    let reserved: Vec<_> = heap.zones.all().map(|zone| zone.addresses()).collect();
    heap.retire(Calls::OfFree);
    assert!(heap.is_retired() && !heap.is_recycling());
    for range in reserved {
        assert!(!is_mapped((range.end - BLOCK_SIZE) as *const u8, BLOCK_SIZE));
        assert!(!heap.has((range.end - BLOCK_SIZE) as *const u8));
    }
    let is_hole = |at: *mut u8, len: usize| {
        (0..len).step_by(FRAME_SIZE).all(|offset| !is_mapped(at.wrapping_add(offset), FRAME_SIZE))
    };
    assert!(is_hole(small[3], 100 << 10) && !heap.has(small[3]));
    assert!(is_hole(mapping.wrapping_add(1 << 20), 2 << 20));
    assert!(is_mapped(mapping, 1 << 20) && is_mapped(large, DENSE));
    // SAFETY: it is this test's.
    assert!(!unsafe { heap.resize_in_place(large, 2 * DENSE) });
    assert_eq!(heap.usable_size(large), DENSE + (300 << 10));
    for at in small.into_iter().enumerate().filter(|(index, _)| *index != 3).map(|(_, at)| at) {
        assert!(heap.has(at));
        // SAFETY: they are this test's.
        assert_eq!(unsafe { *at }, 0xa5);
        free(heap, at);
        assert!(!heap.has(at) && !is_mapped(at, 100 << 10));
    }
    free(heap, large);
    assert!(is_hole(large, DENSE + (300 << 10)));
}

#[test]
fn where_no_call_is_allowed_memory_stays() {
    if !is_alone() {
        return;
    }
    let heap = heap(0, u64::MAX);
    let at = get(heap, DENSE, Content::Any);
    fill(at, DENSE);
    heap.retire(Calls::None);
    free(heap, at);
    assert!(is_mapped(at, DENSE) && heap.is_retired());
}

#[test]
fn helpers_that_are_withheld_may_be_had_again() {
    let heap = heap(0, u64::MAX);
    assert!(!heap.withhold_helpers(), "there is none");
    heap.readmit_helpers(false);
    heap.go_on_alone();
    assert!(!heap.is_recycling());
}

#[test]
fn rights_that_change_again_and_again_leave_nothing_free_to_keep() {
    for (ready, stays) in [(0, false), (DENSE, true)] {
        let heap = heap(ready, u64::MAX);
        let pool = || heap.tree().pool_bytes();
        let use_some = || {
            make_dense(heap, DENSE);
            free(heap, get(heap, DENSE, Content::Any));
        };
        use_some();
        assert!(pool() > 0);
        // A helper ended each time. None is started here.
        for before_ns in [0, thread::now_ns()] {
            heap.readmitted_ns.store(before_ns, Ordering::Relaxed);
            heap.withhold_helpers();
            heap.readmit_helpers(true);
            assert_eq!(pool() > 0, before_ns == 0 || stays, "{ready}");
        }
        if !stays {
            assert!(heap.is_recycling());
            use_some();
            assert!(pool() > 0, "what is freed next stays");
        }
    }
}

#[test]
fn a_retired_heap_has_tables_of_what_it_used_only() {
    let size_kib = || {
        let status = std::fs::read_to_string("/proc/self/statm").expect("readable");
        let pages = status.split(' ').next().expect("a field").parse::<usize>().expect("a number");
        pages * FRAME_SIZE / 1024
    };
    let heap = heap(0, u64::MAX);
    make_dense(heap, DENSE);
    let at = get(heap, DENSE, Content::Any);
    let zones = heap.zones.all();
    let least: usize = zones.clone().map(|zone| zone.addresses().len() >> 10).sum();
    let before = size_kib();
    heap.retire(Calls::OfFree);
    let given_up = before.saturating_sub(size_kib());
    // Other tests' threads map and unmap meanwhile, but not as much as these addresses.
    assert!(given_up > least - (1 << 20), "{given_up} of {least} KiB");
    for zone in zones {
        let grown = zone.ledger().grown();
        assert!(grown < zone.ledger().capacity() && zone.ledger().is_absent(grown));
        assert!(!heap.has(zone.block_address(grown)));
        assert!(zone.grow(1).is_err(), "it can't grow any more");
    }
    assert!(heap.has(at));
    free(heap, at);
}

#[test]
fn what_shrinks_in_a_retired_heap_goes_where_it_stands() {
    for calls in [Calls::OfFree, Calls::None] {
        let heap = heap(0, u64::MAX);
        let size = 33 << 20;
        let at = get(heap, size, Content::Any);
        fill(at, size);
        heap.retire(calls);
        for now in [30 << 20, 20_000_000, 4 << 20, 300_000, FRAME_SIZE] {
            // SAFETY: the test owns it.
            unsafe {
                assert!(heap.resize_in_place(at, now));
                assert!((0..now).step_by(64).all(|byte| at.add(byte).read() == 0xa5));
                assert!(!heap.resize_in_place(at, size + 1));
            }
            assert!(heap.usable_size(at) >= now);
            let end = at.wrapping_add(now.next_multiple_of(FRAME_SIZE));
            let is_gone = pumice_frames::sys::mem::residence(end, FRAME_SIZE, &mut [0]).is_err();
            assert_eq!(is_gone, calls == Calls::OfFree, "{now}");
        }
        free(heap, at);
    }
}

#[test]
fn what_outgrows_a_retired_heap_is_no_longer_an_allocation() {
    if !is_alone() {
        return;
    }
    for size in [200 << 10, (2 << 20) + (300 << 10), 16 << 20] {
        let heap = heap(0, u64::MAX);
        let [at, stays] = [size, size].map(|size| get(heap, size, Content::Zero));
        fill(at, size);
        fill(stays, size);
        // SAFETY: it is this test's, as all below.
        assert_eq!(unsafe { heap.outgrow(at, 2 * size) }, None, "the heap serves");
        heap.retire(Calls::OfFree);
        // SAFETY: as above.
        unsafe {
            let new = heap.outgrow(at, 2 * size).expect("room").as_ptr();
            assert!(!heap.has(at) && !heap.has(new) && heap.has(stays));
            assert!(new == at || !is_mapped(at, FRAME_SIZE));
            assert_eq!(heap.handed_out(), (1, size.next_multiple_of(FRAME_SIZE)));
            assert!([new, stays].into_iter().all(|at| (0..size).all(|i| *at.add(i) == 0xa5)));
            assert!(is_zeroed(new.add(size), size));
            pumice_frames::sys::mem::unmap(NonNull::new(new).expect("a place"), 2 * size)
                .expect("unmapped");
        }
        free(heap, stays);
        assert!(!is_mapped(stays, FRAME_SIZE));
    }
}
