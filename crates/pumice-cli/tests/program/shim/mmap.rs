//! `mmap` and its family: calls of C programs on their own mappings have the same results, errors and contents with the
//! shim as without.

use crate::shim::{compare_success, compile, compile_with, have, most_modes, test_programs, Mode};

/// Runs `c/NAME.c` in the mode in which all its mappings are served, or in all.
fn agrees(name: &str, arguments: &[&str]) {
    compare_success(most_modes(), compile(name), arguments, b"");
}

test_programs! {
    agrees:
    unmapping: "mmap_unmap", &[];
    protecting: "mmap_protect", &[];
    mapping_over: "mmap_fixed", &[];
    advising: "mmap_advise", &[];
    remapping: "mmap_remap", &[];
    flags_protections_and_mistakes: "mmap_flags", &[];
    locking: "mmap_lock", &[];
    children: "mmap_fork", &[];
    threads_and_handlers_of_signals: "mmap_threads", &[];
    anything_at_random: "mmap_fuzz", &["1", "20000", "128", "1", "nfao"];
    anything_at_random_in_threads: "mmap_fuzz", &["4", "3000", "160", "6", "nfao"];
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
    for source in ["mmap_remap", "mmap_fork"] {
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
