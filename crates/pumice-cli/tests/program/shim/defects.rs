//! Defects that were found once, each by the program that showed it: it ends as it does without the shim.
//!
//! A program looks itself for the parts of the machine that it needs (swap, real-time classes, files past the cache);
//! without them, it says so and succeeds. Each ends itself by an alarm rather than hang.

use crate::shim::{
    are_all_modes_wanted, compare_success, compile, compile_with, scratch, test_programs, Mode,
};

/// The first three have most of what the others have.
fn modes() -> &'static [Mode] {
    const MODES: [Mode; 5] = [Mode::Ready, Mode::Small, Mode::NoMmap, Mode::Verify, Mode::Nodes];
    if are_all_modes_wanted() {
        &MODES
    } else {
        &MODES[..3]
    }
}

/// Runs `c/defects/NAME.c` in the modes.
fn ends_as_plain(name: &str, arguments: &[&str]) {
    compare_success(modes(), compile(&format!("defects/{name}")), arguments, b"");
}

fn folder() -> String {
    scratch("defects").to_str().expect("text").to_owned()
}

test_programs! {
    ends_as_plain:
    what_was_swapped_out_is_not_taken_for_zero: "residence", &[];
    what_a_pipe_holds_stays: "pins_pipe", &[];
    what_a_socket_holds_stays: "pins_socket", &[];
    what_a_socket_holds_that_was_inherited_stays: "pins_socket", &["given"];
    what_asynchronous_io_holds_stays: "pins_io", &[&folder()];
    segments_end_with_their_detachment: "segments", &[];
    each_attachment_ends_by_itself: "segments_twice", &[];
    attributes_end_with_the_memory_they_were_set_on: "attributes", &[];
    advice_stays_where_memory_grows: "grown_advice", &[];
    locks_end_with_the_memory_they_were_set_on: "mremap_locked", &[];
    nothing_is_lost_where_no_more_mappings_are_allowed: "map_count", &[];
    mappings_are_to_be_had_again_after_the_limit: "map_limit", &[];
    memory_that_cannot_move_stays_whole: "moves", &[];
    attributes_stay_where_memory_has_them: "spread", &[];
    what_a_program_unmapped_of_a_block_is_free_with_it: "holes", &[];
    what_is_sealed_stays_alone: "sealed", &[];
    guards_stay_where_memory_grows: "guards", &[];
    guards_that_come_after_a_limit_stay: "guards", &["limit"];
    memory_shrinks_under_a_filter_that_knows_the_calls_of_malloc_alone: "filter_shrunk", &[];
    memory_grows_under_such_a_filter: "outgrown", &[];
    memory_grows_where_there_is_no_room_for_a_copy: "outgrown", &["limit"];
    memory_that_has_grown_grows_under_a_filter: "outgrown", &["grown"];
    memory_grows_step_by_step: "grown_steps", &[];
    nothing_comes_where_a_program_has_unmapped_memory: "own_holes", &[];
    attributes_stay_behind_where_memory_grows_after_a_limit: "grown_attributes", &["limit"];
    attributes_stay_behind_where_memory_grows_under_a_filter: "grown_attributes", &["filter"];
    pieces_lose_what_was_set_on_them_at_once: "pieces", &[];
    calls_by_number_do_what_they_do_by_name: "numbers", &[];
    residence_is_told_up_to_a_hole: "mincore_hole", &[];
    children_of_busy_processes_go_on: "forks", &[];
    real_time_threads_wait_for_nobody_who_cannot_run: "realtime", &[];
    low_addresses_are_low: "hint_low", &[];
    a_heap_starts_on_a_small_stack: "start", &["thread"];
    a_heap_starts_in_a_handler: "start", &["handler"];
    a_heap_starts_on_a_stack_that_a_handler_opens: "start", &["coroutine"];
    a_heap_starts_while_signals_are_pending: "start", &["pending"];
    a_heap_starts_beside_a_thread_that_sets_variables: "start", &["setenv"];
    a_heap_starts_beside_addresses_that_a_program_has_chosen: "start", &["addresses"];
    a_program_with_an_allocator_of_its_own_gets_its_memory: "own_malloc", &[];
}

/// Where memory is populated ahead, it is there before it is touched.
#[test]
fn memory_that_is_hardly_touched_stays_so_when_it_grows() {
    let modes = modes().iter().copied().filter(|&mode| mode != Mode::Ready).collect::<Vec<_>>();
    compare_success(&modes, compile("defects/sparse_growth"), &[], b"");
}

#[test]
fn memory_that_is_kept_and_hardly_touched_costs_what_is_touched() {
    let program = compile("defects/held");
    let sizes = ["table", "mixed", "mixed-small", "small", "scattered"];
    for how in ["rounds", "turns", "zeros", "batch"].into_iter().chain(sizes) {
        compare_success(&[Mode::Verify, Mode::Small], &program, &[how], b"");
    }
}

#[test]
fn memory_that_a_program_faults_in_itself_is_touched_by_nobody_else() {
    let program = compile("defects/missing");
    compare_success(&[Mode::Verify, Mode::Small], &program, &[], b"");
}

/// Where the heap does not have all of it from the start.
#[test]
fn what_was_set_on_memory_from_before_the_heap_stays_when_it_grows() {
    let program = compile("defects/marked");
    for how in ["fork", "wipe", "locked", "pipe", "guarded"] {
        compare_success(&[Mode::Verify], &program, &[how], b"");
    }
}

/// In fewer modes: the program waits until somebody has looked.
#[test]
fn what_asynchronous_io_in_assembler_holds_stays() {
    let program = compile("defects/pins_io");
    compare_success(&[Mode::Verify, Mode::Small], program, &[&folder(), "assembler"], b"");
}

#[test]
fn calls_within_a_constructor_need_no_lock_of_the_loader() {
    let flags = ["-shared", "-fPIC"];
    let library = compile_with("cc", "defects/loader_plugin", "loader_plugin.so", &flags);
    ends_as_plain("loader", &[library.to_str().expect("text")]);
}

#[test]
fn one_of_two_threads_gets_a_place() {
    for how in ["hint", "fixed", "segment"] {
        ends_as_plain("hint_race", &[how]);
    }
}

#[test]
fn rights_change_in_handlers_too() {
    let program = compile("defects/rights_handler");
    compare_success(&[Mode::Verify], program, &["2"], b"");
}

#[test]
fn threads_are_cancelled_where_they_can_be() {
    let program = compile_with("cc", "defects/cancel", "defects-cancel", &["-fexceptions"]);
    for call in ["send", "sendmsg", "vmsplice", "msync"] {
        compare_success(&[Mode::Verify, Mode::Small], &program, &[call], b"");
    }
}

#[test]
fn no_call_under_a_filter_that_the_program_would_not_make() {
    for call in ["rlimit", "map", "advise"] {
        ends_as_plain("filter_calls", &[call]);
    }
    ends_as_plain("filter_before", &[]);
}
