//! The shim in programs that it must leave alone, or be careful with.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::shim::{
    command, compare, compare_success, compile, compile_with, describe, have, preloaded, run, Mode,
    ALL_MODES,
};

/// The shim as it is by default.
const ONCE: [Mode; 1] = [Mode::Verify];

#[test]
fn musl() {
    if !have("musl-gcc") {
        return;
    }
    for source in ["edges", "threads", "fork"] {
        let program = compile_with("musl-gcc", source, &format!("{source}-musl"), &[]);
        compare_success(&[Mode::Small], program, &[], b"");
    }
    let static_program = compile_with("musl-gcc", "edges", "edges-musl-static", &["-static"]);
    compare_success(&ONCE, static_program, &[], b"");
}

#[test]
fn static_glibc() {
    compare_success(
        &ONCE,
        compile_with("cc", "threads", "threads-static", &["-static"]),
        &["30"],
        b"",
    );
}

#[test]
fn seccomp_filters() {
    let program = compile("seccomp");
    for how in ["prctl", "syscall", "tsync", "strict"] {
        for when in ["before", "after"] {
            compare_success(&ONCE, &program, &[how, when], b"");
        }
    }
}

#[test]
fn calls_for_one_thread_only() {
    let modes = [Mode::Verify, Mode::Ready];
    compare_success(&modes, compile("namespaces"), &[], b"");
}

#[test]
fn address_sanitizer() {
    let program = compile_with("cc", "threads", "threads-asan", &["-fsanitize=address"]);
    compare_success(&ONCE, &program, &["30"], b"");
    let program = compile_with("cc", "misuse", "misuse-asan", &["-fsanitize=address"]);
    compare_success(&ONCE, &program, &["none"], b"");
    let mut command = command(Mode::Verify, program);
    command.arg("twice");
    let output = run(command, b"");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("attempting double-free"), "the sanitizer still sees it: {text}");
}

#[test]
fn valgrind() {
    if !have("valgrind") {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--mmap", "--report", "--", "valgrind", "--error-exitcode=3"]);
    command.arg(compile("mmap_once"));
    let output = run(command, b"");
    assert!(output.status.success(), "{}", describe(&output));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("a sanitizer or Valgrind serves"), "it declined: {text}");
}

#[test]
fn other_allocators_are_next_in_line() {
    for library in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let path = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
        let path = path.join(library);
        if !path.is_file() {
            println!("{library} is not installed: skipped");
            continue;
        }
        for source in ["threads", "fork"] {
            let mut command = command(Mode::Verify, compile(source));
            command.env("LD_PRELOAD", &path);
            let output = run(command, b"");
            assert!(output.status.success(), "{library}, {source}: {}", describe(&output));
        }
    }
}

/// A line of the report of a run of `program`.
fn report(flags: &[&str], variables: &[(&str, &str)], program: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--report=json"]).args(flags).arg("--").arg(program).arg("30");
    command.envs(variables.iter().copied());
    let output = run(command, b"");
    assert!(output.status.success(), "{flags:?} {variables:?}: {}", describe(&output));
    String::from_utf8(output.stderr).expect("a report is text")
}

#[test]
fn what_is_served_and_why_not() {
    let program = compile("threads");
    let served = report(&[], &[], &program);
    assert!(!served.contains(r#""requests":0,"#), "{served}");
    let name = ["--skip", "threads"];
    for (flags, variables, reason) in [
        (&[][..], &[("PUMICE", "off")][..], "off"),
        (&name, &[], "skipped"),
        (&["--only", "another"], &[], "not_only"),
        (&[], &[("MALLOC_PERTURB_", "165")], "perturbed"),
        (&[], &[("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.perturb=3")], "perturbed"),
    ] {
        let report = report(flags, variables, &program);
        assert!(report.contains(r#""requests":0,"#), "{report}");
        assert!(report.contains(&format!(r#""{reason}""#)), "{report}");
    }
}

/// A process that asks for little has no heap, unless somebody wants it to.
#[test]
fn a_process_that_asks_for_little_is_left_alone() {
    let program = compile("little");
    let said = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
        command.arg("run").args(flags).arg("--").arg(&program).arg("asks");
        let output = run(command, b"");
        assert!(output.status.success(), "{flags:?}: {}", describe(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(said(&[]), "none\nheap\n");
    assert_eq!(said(&["--no-mmap"]), "none\nheap\n");
    assert_eq!(said(&["--ready", "4M"]), "heap\nheap\n");
    assert_eq!(said(&["--threshold", "64K"]), "heap\nheap\n");
    assert_eq!(said(&["--threshold", "128K"]), "none\nnone\n");
}

/// The variables count as they were when the program started, and so does its name.
#[test]
fn a_choice_of_programs_outlives_their_names_and_variables() {
    let program = compile("little");
    let said = |how: &str, (variable, value): (&str, &str)| {
        let mut command = preloaded(&program);
        command.arg(how).env(variable, value);
        let output = run(command, b"");
        assert!(output.status.success(), "{how} {variable}: {}", describe(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    for how in ["forgets", "renames"] {
        assert_eq!(said(how, ("PUMICE", "off")), "none\n");
        assert_eq!(said(how, ("PUMICE_SKIP", "x, little")), "none\n");
        assert_eq!(said(how, ("PUMICE_ONLY", "x")), "none\n");
        assert_eq!(said(how, ("PUMICE_ONLY", "x, little")), "heap\n");
    }
}

/// The next allocator had it before there was a heap.
#[test]
fn a_block_that_grows_from_little_to_much_is_served() {
    let program = compile("little");
    compare_success(&ALL_MODES, &program, &["grows"], b"");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--report=json", "--"]).arg(program).arg("grows");
    let output = run(command, b"");
    assert!(output.status.success(), "{}", describe(&output));
    let report: serde_json::Value =
        serde_json::from_slice(&output.stderr).expect("a report is JSON");
    let resized = ["realloc_in_place", "realloc_moved"].map(|name| report[name].as_u64());
    assert!(resized.into_iter().flatten().sum::<u64>() > 5, "{report}");
}

#[test]
fn absurd_settings_are_ignored() {
    let mut command = preloaded(compile("threads"));
    command.arg("30");
    for (variable, value) in [
        ("PUMICE_THRESHOLD", "banana"),
        ("PUMICE_READY", "-1"),
        ("PUMICE_POOL_MAX", ""),
        ("PUMICE_STATS", "4294967295"),
        ("PUMICE_SCRUB_START", "99"),
        ("PUMICE_CLEAR", "?"),
        ("PUMICE_VERIFY", "\u{fffd}"),
    ] {
        command.env(variable, value);
    }
    let output = run(command, b"");
    assert!(output.status.success(), "{}", describe(&output));
}

#[test]
fn a_limit_on_addresses() {
    let program = compile("threads");
    let script = format!("ulimit -v 2000000; exec {} 30", program.display());
    compare_success(&ONCE, "sh", &["-c", &script], b"");
}

#[test]
fn failing_programs_fail_alike() {
    compare(&ONCE, "sh".as_ref(), &["-c", "exit 7"], b"");
    compare(&ONCE, "sh".as_ref(), &["-c", "kill -TERM $$"], b"");
}

/// A memory cgroup of version 1, removed when dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn with_limit(bytes: u64) -> Option<Group> {
        let path =
            Path::new("/sys/fs/cgroup/memory").join(format!("pumice-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Group(path);
        fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        // Without swap there is no way out but giving memory back. Not all kernels can say so.
        let _ = fs::write(group.0.join("memory.swappiness"), "0");
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn the_pool_gives_way_to_the_program_in_its_cgroup() {
    let Some(group) = Group::with_limit(400 << 20) else {
        println!("no memory cgroup of version 1 can be made here: skipped");
        return;
    };
    let program = compile("pool");
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.0.display());
    for mode in [Mode::Plain, Mode::Verify, Mode::Ready] {
        let mut command = command(mode, "sh");
        command.args(["-c", &join, "sh"]).arg(&program).args(["256", "256"]);
        let output = run(command, b"");
        assert!(output.status.success(), "{mode:?}: {}", describe(&output));
    }
}
