//! A zone that is destroyed leaves nothing behind. Alone here: it looks at the whole process.

use std::fs;

use pumice_c::status::Status;
use pumice_c::zone::*;

/// Addresses that the process has mapped, in bytes.
fn mapped_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

#[test]
fn nothing_is_left_of_a_zone() {
    let before = mapped_bytes();
    for _ in 0..100 {
        let zone = pumice_zone_new(64 << 30, 0);
        assert!(!zone.is_null());
        // SAFETY: the zone is there, and nobody uses it after it is destroyed.
        unsafe {
            assert!(!pumice_zone_get(zone, 9, 0).is_null());
            assert_eq!(pumice_zone_destroy(zone), Status::Ok);
        }
    }
    let more = mapped_bytes().saturating_sub(before);
    assert!(more < 64 << 20, "{more} bytes are left, of which a zone's tables take 4 MiB");
}
