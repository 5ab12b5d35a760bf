//! `mmap` and its family: what C programs do to mappings of their own has with the shim the results,
//! errors and contents that it has without.

mod shim;

use shim::{compare_success, compile, compile_with, have, some_modes, Mode};

#[test]
fn unmapping() {
    compare_success(some_modes(), compile("mmap_unmap"), &[], b"");
}

#[test]
fn protecting() {
    compare_success(some_modes(), compile("mmap_protect"), &[], b"");
}

#[test]
fn mapping_over() {
    compare_success(some_modes(), compile("mmap_fixed"), &[], b"");
}

#[test]
fn advising() {
    compare_success(some_modes(), compile("mmap_advise"), &[], b"");
}

#[test]
fn remapping() {
    compare_success(some_modes(), compile("mmap_remap"), &[], b"");
}

#[test]
fn flags_protections_and_mistakes() {
    compare_success(some_modes(), compile("mmap_flags"), &[], b"");
}

#[test]
fn locking() {
    compare_success(some_modes(), compile("mmap_lock"), &[], b"");
}

#[test]
fn children() {
    compare_success(some_modes(), compile("mmap_fork"), &[], b"");
}

#[test]
fn threads_and_handlers_of_signals() {
    compare_success(some_modes(), compile("mmap_threads"), &[], b"");
}

#[test]
fn anything_at_random() {
    let program = compile("mmap_fuzz");
    compare_success(some_modes(), program, &["1", "20000", "128", "1", "nfao"], b"");
}

#[test]
fn anything_at_random_in_threads() {
    compare_success(some_modes(), compile("mmap_fuzz"), &["4", "3000", "160", "6", "nfao"], b"");
}

/// With what ends recycling: pages that the kernel holds, limits, locks on everything.
#[test]
fn anything_at_random_and_everything_else() {
    let program = compile("mmap_fuzz");
    compare_success(
        &[Mode::Ready, Mode::Small],
        &program,
        &["6", "8000", "128", "1", "nfaop"],
        b"",
    );
    compare_success(&[Mode::Verify], program, &["7", "2000", "160", "6", "nfaop"], b"");
}

#[test]
fn static_and_musl() {
    let program = compile_with("cc", "mmap_unmap", "mmap_unmap-static", &["-static"]);
    compare_success(&[Mode::Verify], program, &[], b"");
    if !have("musl-gcc") {
        return;
    }
    for source in ["mmap_protect", "mmap_remap", "mmap_fork"] {
        let program = compile_with("musl-gcc", source, &format!("{source}-musl"), &[]);
        compare_success(&[Mode::Verify], program, &[], b"");
    }
}

#[test]
fn a_limit_on_addresses() {
    let program = compile("mmap_fuzz");
    let script = format!("ulimit -v 2000000; exec {} 5 3000 64", program.display());
    compare_success(&[Mode::Verify], "sh", &["-c", &script], b"");
}
