//! `--ready`: memory is there before the first request, for the first process that asks, and once.

use std::process::Command;

use crate::shim::{compile, describe, run};

const READY: &str = "67108864";

/// The output of `ready.c` under `pumice run --ready 64M`, by way of `line`.
fn run_ready(line: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--mmap", "--ready", "64M", "--"]).args(line);
    let output = run(command, b"");
    assert!(output.status.success(), "{}", describe(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn is_there_and_once(printed: &str) -> bool {
    printed == "there before: yes\nfaults: none\ntwice the memory: no\n"
}

fn program() -> String {
    compile("ready").to_str().expect("text").to_owned()
}

#[test]
fn memory_is_there_before_the_first_request() {
    let program = program();
    for way in ["mmap", "malloc"] {
        let printed = run_ready(&[&program, READY, "20000", way]);
        assert!(is_there_and_once(&printed), "{way}: {printed}");
    }
}

#[test]
fn it_is_there_for_what_a_program_becomes_by_exec() {
    let program = program();
    let script = format!("exec {program} {READY} 20000");
    let printed = run_ready(&["sh", "-c", &script]);
    assert!(is_there_and_once(&printed), "{printed}");
}

#[test]
fn a_request_that_comes_too_early_does_not_take_it_twice() {
    let program = program();
    for _ in 0..20 {
        let printed = run_ready(&[&program, READY, "0"]);
        assert!(printed.contains("twice the memory: no"), "{printed}");
    }
}

#[test]
fn what_the_first_process_does_not_use_another_has() {
    let program = program();
    // The shell has populated; its child asks first, and the shell gives its own back.
    let script = format!("{program} {READY} 0; {program} {READY} 0; sleep 0.2; echo done");
    let printed = run_ready(&["sh", "-c", &script]);
    assert!(printed.ends_with("done\n"), "{printed}");
}

#[test]
fn nothing_is_populated_where_nothing_was_asked_for() {
    let program = program();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--", &program, READY, "50"]);
    let output = run(command, b"");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.starts_with("there before: no\n"), "{printed}");
}
