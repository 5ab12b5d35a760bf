//! Programs that change their rights and limits, and what debuggers, accounts and patching libraries see of them.

use std::path::Path;

use crate::shim::{
    compare_success, compare_ways, compile, compile_with, describe, scratch, some_modes,
    test_programs, Mode,
};

/// As [`compare_success`], in some modes, and with mappings left to the kernel.
fn behaves(name: &str, more: &[&str], arguments: &[&str]) {
    let program = compile(&format!("limits/{name}"));
    agrees(&program, more, arguments);
}

fn agrees(program: &Path, more: &[&str], arguments: &[&str]) {
    let mut ways: Vec<_> = some_modes().iter().map(|&mode| (mode, more.to_vec())).collect();
    ways.push((Mode::Ready, [more, &["--no-mmap"]].concat()));
    let plain = compare_ways(&ways, program.as_os_str(), arguments, b"");
    assert!(plain.status.success(), "{}", describe(&plain));
}

test_programs! {
    behaves:
    no_thread_keeps_rights_that_the_program_gave_up: "rights", &[], &[];
    what_the_pool_has_no_room_for_costs_what_it_costs_plainly: "pool", &["--pool-max", "64M"], &[];
    memory_goes_back_after_a_filter_and_after_other_rights: "quiet", &["--decay", "100ms"], &[];
    a_limit_on_addresses_that_a_program_sets_itself: "space", &[], &["inside"];
    a_child_of_vfork_changes_rights_of_its_own: "vfork", &[], &[];
    memory_that_is_borrowed_stays_its_owners: "borrowed", &[], &[];
    threads_that_lock_or_limit_at_once_are_not_refused: "together", &[], &[];
    a_child_has_what_its_parent_was_adding: "growing", &[], &[];
    a_fork_leaves_nothing_half_way: "forks", &[], &[];
    a_fork_in_a_handler_goes_on_with_what_it_interrupted: "interrupted", &[], &[];
    accounts_count_what_is_served: "accounts", &[], &[];
    a_debugger_sees_the_threads_of_the_program: "traced", &[], &[];
    libraries_that_patch_the_c_library_see_what_goes_away: "patched", &["--decay", "100ms"], &[];
    a_program_that_defines_some_of_the_family_itself: "own_free", &[], &[];
}

#[test]
fn locking_everything_under_a_limit() {
    // The usual limit, and more.
    for mib in ["8", "64"] {
        behaves("locked", &[], &[mib]);
    }
}

#[test]
fn what_comes_after_a_filter_makes_no_calls() {
    if cfg!(target_arch = "x86_64") {
        behaves("filtered", &[], &[]);
    }
}

#[test]
fn memory_that_the_kernel_refuses_now_and_then_is_one_threads() {
    for by in ["maps", "data"] {
        behaves("refused", &[], &[by]);
    }
}

#[test]
fn what_shrinks_under_a_limit_is_not_refused() {
    behaves("shrunk", &[], &[]);
    behaves("shrunk", &[], &["data"]);
}

#[test]
fn addresses_that_were_mapped_are_hints_again() {
    compare_success(some_modes(), compile("limits/hints"), &[], b"");
}

#[test]
fn an_allocator_that_frees_by_functions_of_its_own() {
    let flags = ["-fPIC", "-shared"];
    compile_with("cc", "limits/sized_next", "libsized.so", &flags);
    let folder = scratch("shim");
    let folder = folder.to_str().expect("the folder's name is text");
    let flags = [&format!("-L{folder}"), "-lsized", &format!("-Wl,-rpath,{folder}")];
    let program = compile_with("cc", "limits/sized", "limits-sized", &flags);
    agrees(&program, &[], &[]);
}
