//! The interposed functions, called by C programs of our own: with the shim they must do what they
//! do without. The programs check what C and POSIX promise, and print what those leave open.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::shim::{
    command, compare_success, compile, compile_with, describe, preloaded, run, Mode, ALL_MODES,
};

#[test]
fn edges_of_every_function() {
    compare_success(&ALL_MODES, compile("edges"), &[], b"");
}

#[test]
fn threads_that_hand_memory_to_each_other() {
    compare_success(&ALL_MODES, compile("threads"), &[], b"");
}

#[test]
fn zeros_by_the_megabyte() {
    compare_success(&ALL_MODES, compile("zeros"), &[], b"");
}

#[test]
fn zeros_by_every_engine_that_programs_can_have() {
    for engine in ["kernel", "portable", "auto"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
        command.args(["run", "--verify", "--engine", engine, "--"]).arg(compile("zeros"));
        let output = run(command, b"");
        assert!(output.status.success(), "{engine}: {}", describe(&output));
    }
}

#[test]
fn children_of_every_kind() {
    compare_success(&ALL_MODES, compile("fork"), &[], b"");
}

#[test]
fn before_main_in_libraries_in_handlers_and_at_exit() {
    let plugin = compile_with("cc", "plugin", "plugin.so", &["-shared", "-fPIC"]);
    let plugin = plugin.to_str().expect("cargo's folder is text");
    compare_success(&ALL_MODES, compile("lifetimes"), &[plugin], b"");
}

#[test]
fn misuse_ends_the_program_as_it_does_without() {
    const SIGABRT: i32 = 6;
    let program = compile("misuse");
    compare_success(&[Mode::Verify], &program, &["none"], b"");
    for how in ["inside", "twice"] {
        for mode in [Mode::Plain, Mode::Verify] {
            let mut command = command(mode, &program);
            command.arg(how);
            let output = run(command, b"");
            // glibc may come to touch memory that it has unmapped.
            let ended = output.status.signal();
            assert!(ended.is_some(), "{how}, {mode:?}: {}", describe(&output));
            assert!(output.stdout.is_empty());
            if mode == Mode::Verify {
                let text = String::from_utf8_lossy(&output.stderr);
                assert_eq!(ended, Some(SIGABRT), "{how}: {text}");
                assert!(
                    text.starts_with("pumice: free(): ") && text.lines().count() == 1,
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn misuse_is_silent_unless_asked() {
    let mut command = preloaded(compile("misuse"));
    command.env_remove("PUMICE_VERIFY").arg("twice");
    let output = run(command, b"");
    assert!(output.status.signal().is_some() && output.stderr.is_empty(), "{}", describe(&output));
}
