//! The functions as C would call them, with arguments that C might get wrong.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};
use std::{io, slice};

use pumice_c::memory::*;
use pumice_c::settings::*;
use pumice_c::status::*;
use pumice_c::zone::*;

fn errno() -> Option<i32> {
    io::Error::last_os_error().raw_os_error()
}

fn fill(at: *mut c_void, size: usize) {
    // SAFETY: the caller has just allocated that many bytes.
    unsafe { at.write_bytes(0xa5, size) };
}

fn is_all(at: *mut c_void, size: usize, value: u8) -> bool {
    // SAFETY: the caller has allocated that many bytes.
    unsafe { slice::from_raw_parts(at.cast::<u8>(), size) }.iter().all(|&byte| byte == value)
}

fn counter(name: &CStr) -> u64 {
    let mut value = 0;
    // SAFETY: a string and a number.
    assert_eq!(unsafe { pumice_counter(name.as_ptr(), &mut value) }, Status::Ok);
    value
}

#[test]
fn sizes_and_alignments() {
    let before = counter(c"requests");
    for align in [0, 1, 8, 64, 4096, 1 << 21, PUMICE_ALIGN_MAX] {
        for size in [0, 1, 100, 65_535, 65_536, 100_000, 3 << 20] {
            let at = pumice_alloc(size, align, PUMICE_ZERO);
            assert!(!at.is_null() && at as usize % align.max(16) == 0, "{size} to {align}");
            assert!(is_all(at, size, 0));
            // SAFETY: allocated a moment ago.
            assert!(unsafe { pumice_usable_size(at) } >= size);
            fill(at, size);
            let mut at = at;
            let mut kept = size;
            for new in [size * 2, size * 5 + 7, size / 3] {
                // SAFETY: the allocation is ours, and its old address is not used again.
                at = unsafe { pumice_realloc(at, new, align) };
                kept = kept.min(new);
                assert!(!at.is_null() && at as usize % align.max(16) == 0, "{new} to {align}");
                assert!(is_all(at, kept, 0xa5), "{size} to {new}");
            }
            // SAFETY: nobody uses it.
            assert_eq!(unsafe { pumice_free(at) }, Status::Ok);
        }
    }
    assert!(counter(c"requests") > before);
}

#[test]
fn bad_allocations() {
    for (size, align, flags, expected) in [
        (1, 3, 0, libc::EINVAL),
        (1, PUMICE_ALIGN_MAX * 2, 0, libc::EINVAL),
        (1, 0, 2, libc::EINVAL),
        (1, 0, u32::MAX, libc::EINVAL),
        (usize::MAX, 0, 0, libc::ENOMEM),
        (1 << 60, 0, PUMICE_ZERO, libc::ENOMEM),
        (1 << 60, 4096, 0, libc::ENOMEM),
    ] {
        assert!(pumice_alloc(size, align, flags).is_null());
        assert_eq!(errno(), Some(expected), "{size} {align} {flags}");
    }
    for size in [1 << 10, 1 << 20] {
        let at = pumice_alloc(size, 0, PUMICE_ZERO);
        // SAFETY: the allocation is ours; a call that fails leaves it as it was.
        unsafe {
            assert!(pumice_realloc(at, 1 << 60, 0).is_null());
            assert_eq!(errno(), Some(libc::ENOMEM));
            assert!(pumice_realloc(at, usize::MAX, 0).is_null());
            assert!(pumice_realloc(at, 10, 3).is_null());
            assert_eq!(errno(), Some(libc::EINVAL));
            assert!(is_all(at, size, 0));
            assert_eq!(pumice_free(at), Status::Ok);
        }
    }
}

#[test]
fn what_is_not_allocated() {
    let at = pumice_alloc(9 << 20, 0, 0);
    // SAFETY: pumice must notice; nothing is used after it was freed.
    unsafe {
        let inside = at.byte_add(4096);
        assert_eq!(pumice_free(inside), Status::NotAllocated);
        assert_eq!(pumice_usable_size(inside), 0);
        assert!(pumice_realloc(inside, 1 << 20, 0).is_null());
        assert_eq!(pumice_free(at), Status::Ok);
        assert_eq!(pumice_free(at), Status::NotAllocated);
        assert_eq!(pumice_free(null_mut()), Status::Ok);
        assert_eq!(pumice_usable_size(null()), 0);
        let new = pumice_realloc(null_mut(), 100, 0);
        assert!(!new.is_null());
        assert_eq!(pumice_free(new), Status::Ok);
    }
}

#[test]
fn zones() {
    let zone = pumice_zone_new(32 << 20, PUMICE_HUGE);
    assert!(!zone.is_null());
    // SAFETY: the zone is there until it is destroyed, and what it gave is used until it is back.
    unsafe {
        for order in [0, 3, 5, 9, 12] {
            for _ in 0..2 {
                let at = pumice_zone_get(zone, order, PUMICE_ZERO);
                assert!(!at.is_null() && at as usize % (4096 << order) == 0, "{order}");
                assert!(is_all(at, 4096 << order, 0));
                fill(at, 4096 << order);
                assert_eq!(pumice_zone_put(zone, at), Status::Ok);
                assert_eq!(pumice_zone_put(zone, at), Status::NotAllocated);
            }
        }
        let mut areas = Vec::new();
        loop {
            let at = pumice_zone_get(zone, 9, 0);
            if at.is_null() {
                break;
            }
            areas.push(at);
        }
        assert_eq!((areas.len(), errno()), (16, Some(libc::ENOMEM)));

        assert!(pumice_zone_get(zone, PUMICE_ORDER_MAX + 1, 0).is_null());
        assert!(pumice_zone_get(zone, u32::MAX, 0).is_null());
        assert!(pumice_zone_get(zone, 0, 4).is_null());
        assert!(pumice_zone_get(null(), 0, 0).is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
        for at in
            [null_mut(), areas[0].byte_add(1), areas[0].byte_add(4096), (&raw mut areas).cast()]
        {
            assert_eq!(pumice_zone_put(zone, at), Status::NotAllocated);
        }
        assert_eq!(pumice_zone_put(null(), areas[0]), Status::Invalid);
        assert_eq!(pumice_zone_destroy(zone), Status::Ok);
        assert_eq!(pumice_zone_destroy(null_mut()), Status::Ok);
    }
    for (bytes, flags, expected) in [
        (0, 0, libc::EINVAL),
        (1 << 20, 1, libc::EINVAL),
        (usize::MAX, 0, libc::ENOMEM),
        (1 << 46, 0, libc::ENOMEM),
    ] {
        let zone = pumice_zone_new(bytes, flags);
        if bytes == 1 << 46 && !zone.is_null() {
            // A kernel may have addresses for it.
            // SAFETY: the zone is ours.
            assert_eq!(unsafe { pumice_zone_destroy(zone) }, Status::Ok);
            continue;
        }
        assert!(zone.is_null());
        assert_eq!(errno(), Some(expected), "{bytes} {flags}");
    }
}

#[test]
fn settings() {
    let mut value = [1 as c_char; PUMICE_VALUE_SIZE];
    // SAFETY: strings, nulls, and a buffer with its length.
    unsafe {
        let mut get = |key: &CStr, size| {
            let status = pumice_get(key.as_ptr(), value.as_mut_ptr(), size);
            (status, CStr::from_ptr(value.as_ptr()).to_str().unwrap_or("").to_owned())
        };
        let set = |key: &CStr, value: &CStr| pumice_set(key.as_ptr(), value.as_ptr());
        assert_eq!(set(c"scrub_load", c"1.5"), Status::Ok);
        assert_eq!(get(c"scrub_load", PUMICE_VALUE_SIZE), (Status::Ok, "1.50".to_owned()));
        assert_eq!(set(c"scrub_rate_pages_per_s", c"18446744073709551614"), Status::Ok);
        assert_eq!(get(c"scrub_rate_pages_per_s", PUMICE_VALUE_SIZE).1, "18446744073709551614");
        assert_eq!(get(c"scrub_rate_pages_per_s", 20).0, Status::TooSmall);
        assert_eq!(get(c"scrub_rate_pages_per_s", 21).0, Status::Ok);
        assert_eq!(set(c"scrub_rate_pages_per_s", c"18446744073709551615"), Status::Ok);
        assert_eq!(get(c"scrub_rate", 0).0, Status::NoSuchName);
        assert_eq!(set(c"bogus", c"1"), Status::NoSuchName);
        assert_eq!(set(c"scrub_start", c"19"), Status::BadValue);
        assert_eq!(set(c"scrub_start", c"\xff"), Status::Invalid);
        assert_eq!(pumice_set(null(), c"1".as_ptr()), Status::Invalid);
        assert_eq!(pumice_set(c"scrub_start".as_ptr(), null()), Status::Invalid);
        assert_eq!(pumice_get(c"scrub_start".as_ptr(), null_mut(), 100), Status::Invalid);
        assert_eq!(pumice_counter(null(), &mut 0), Status::Invalid);
        assert_eq!(pumice_counter(c"requests".as_ptr(), null_mut()), Status::Invalid);
        assert_eq!(pumice_counter(c"bogus".as_ptr(), &mut 0), Status::NoSuchName);
    }
}

#[test]
fn names_end() {
    let count = |name: extern "C" fn(usize) -> *const c_char| {
        let names = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
        // SAFETY: each is a string.
        names.filter(|&name| !unsafe { CStr::from_ptr(name) }.is_empty()).count()
    };
    assert_eq!(count(pumice_setting_key), pumice_heap::config::Setting::ALL.len());
    assert_eq!(count(pumice_counter_name), pumice_heap::stats::EVENTS + 1);
    assert!(pumice_counter_name(usize::MAX).is_null());
}

#[test]
fn every_number_has_an_explanation() {
    for status in [0, -1, -8, -9, 1, c_int::MIN, c_int::MAX] {
        // SAFETY: a string, whatever the number.
        assert!(!unsafe { CStr::from_ptr(pumice_strerror(status)) }.is_empty());
    }
}
