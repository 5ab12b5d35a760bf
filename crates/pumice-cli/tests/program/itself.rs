//! The program itself: its symbols, its completions, its manual page, `pumice ctl` at work.

use std::fs;
use std::process::Stdio;

use crate::support::{pumice, stderr, stdout};
use object::{Object, ObjectSymbol};

#[test]
fn the_shims_symbols_are_not_in_the_program() {
    let bytes = fs::read(env!("CARGO_BIN_EXE_pumice")).expect("readable");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let defined = symbol.is_definition();
        let name = symbol.name().unwrap_or("");
        let interposed = ["malloc", "calloc", "realloc", "free", "posix_memalign"].contains(&name);
        assert!(!(defined && interposed), "{name} is defined in the program");
    }
}

/// The loader works at each start of `pumice run`, longer than `run` itself.
#[test]
fn the_loader_has_one_library_to_load_and_few_addresses_to_write() {
    let bytes = fs::read(env!("CARGO_BIN_EXE_pumice")).expect("readable");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    for library in file.import_libraries().expect("a dynamic program") {
        let library = library.expect("an ELF file");
        let name = String::from_utf8_lossy(library.name());
        assert!(name.starts_with("libc.so") || name.starts_with("ld-linux"), "{name}");
    }
    let addresses = file.dynamic_relocations().map_or(0, Iterator::count);
    assert!(addresses < 1000, "{addresses} addresses");
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = pumice(&["completions", shell]).output().expect("pumice starts");
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("scrub-start"), "{shell}");
    }
}

#[test]
fn a_manual_page() {
    let output = pumice(&["man"]).output().expect("pumice starts");
    assert!(output.status.success());
    let page = stdout(&output);
    assert!(page.contains(".TH pumice"), "{page}");
    for word in ["pool\\-max", "scrub\\-start", "completions", "EXIT STATUS", "PUMICE_SHIM"] {
        assert!(page.contains(word), "no {word} in the page");
    }
}

#[test]
fn help_goes_to_stdout() {
    for arguments in [&["--help"][..], &["run", "--help"], &["ctl", "--help"], &["--version"]] {
        let output = pumice(arguments).output().expect("pumice starts");
        assert!(output.status.success());
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
}

/// A process that serves requests takes a slot. Where no shim does yet, the test does.
#[test]
fn settings_change_while_a_program_runs() {
    let script = "echo $PUMICE_STATS; read line";
    let mut child = pumice(&["run", "--report-file", "/dev/null", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pumice starts");
    let (id, _output) = crate::support::first_line(child.stdout.take());
    let run = child.id().to_string();
    let tree = open_tree(id.parse().expect("a number"));
    let own = std::process::id();
    let slot = tree.attach(own).expect("a slot");
    slot.set_name(b"a test");

    for pid in [own.to_string(), run.clone()] {
        let changed = pumice(&["ctl", &pid, "scrub_start=3", "scrub_load=1.5"]).output();
        let changed = changed.expect("pumice starts");
        assert!(changed.status.success(), "{}", stderr(&changed));
        let listed = stdout(&pumice(&["ctl", &pid]).output().expect("pumice starts"));
        for line in ["scrub_start=3", "scrub_load=1.50", "decay_ms=10000", "scrub_stop=4"] {
            assert!(listed.lines().any(|listed| listed == line), "no {line} in:\n{listed}");
        }
        assert!(listed.contains("a test"), "{listed}");
        let mistake = pumice(&["ctl", &pid, "scrub_start=4", "scrub_stop=x"]).output();
        assert_eq!(mistake.expect("pumice starts").status.code(), Some(2));
    }
    let json = stdout(&pumice(&["ctl", &run, "--json"]).output().expect("pumice starts"));
    let first = json.lines().next().expect("a line");
    let object: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(object["settings"]["scrub_start"], "3", "a mistake changes nothing");

    drop(child.stdin.take());
    child.wait().expect("waited");
}

fn open_tree(id: u32) -> &'static pumice_heap::stats::Tree {
    let size = pumice_heap::stats::TREE_SIZE;
    // SAFETY: a plain system call.
    let own = unsafe { libc::geteuid() };
    let memory = pumice_frames::sys::segment::attach(id, size, own).expect("this user's memory");
    // SAFETY: mapped and never unmapped.
    unsafe { pumice_heap::stats::Tree::open(memory) }.expect("a tree of this version")
}

#[test]
fn a_program_that_is_served_listens_and_reports() {
    let script = "import os,sys; x = bytearray(1 << 26); x[:] = b'1' * len(x); \
                  print(os.getpid(), flush=True); sys.stdin.readline()";
    let started = pumice(&["run", "--report=json", "--decay", "3s", "--", "python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.expect("pumice starts");
    let (pid, _output) = crate::support::first_line(child.stdout.take());
    if pid.is_empty() {
        eprintln!("skipped: no python3");
        child.wait().expect("waited");
        return;
    }
    let listed = || stdout(&pumice(&["ctl", &pid]).output().expect("pumice starts"));
    assert!(listed().contains("decay_ms=3000"), "{}", listed());
    let change = ["ctl", &pid, "scrub_delay_ms=7", "scrub_stop=5"];
    assert!(pumice(&change).status().expect("pumice starts").success());
    let changed = listed();
    assert!(changed.contains("scrub_delay_ms=7") && changed.contains("scrub_stop=5"));

    drop(child.stdin.take());
    let ended = child.wait_with_output().expect("waited");
    let report: serde_json::Value = serde_json::from_slice(&ended.stderr).expect("JSON");
    assert!(report["requests"].as_u64() >= Some(1), "{report}");
    assert!(report["request_bytes"].as_u64() >= Some(1 << 26), "{report}");
    assert!(report["pool_peak_bytes"].as_u64() >= Some(1 << 26), "{report}");
    assert_eq!(report["not_served"].as_array().map(Vec::len), Some(0), "{report}");
}
