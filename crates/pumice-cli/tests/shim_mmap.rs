//! `mmap` and its family: what C programs do to mappings of their own has with the shim the results,
//! errors and contents that it has without.

mod shim;

use shim::{compare_success, compile, ALL_MODES};

#[test]
fn unmapping() {
    compare_success(&ALL_MODES, compile("mmap_unmap"), &[], b"");
}

#[test]
fn protecting() {
    compare_success(&ALL_MODES, compile("mmap_protect"), &[], b"");
}

#[test]
fn mapping_over() {
    compare_success(&ALL_MODES, compile("mmap_fixed"), &[], b"");
}

#[test]
fn advising() {
    compare_success(&ALL_MODES, compile("mmap_advise"), &[], b"");
}

#[test]
fn remapping() {
    compare_success(&ALL_MODES, compile("mmap_remap"), &[], b"");
}

#[test]
fn flags_protections_and_mistakes() {
    compare_success(&ALL_MODES, compile("mmap_flags"), &[], b"");
}
