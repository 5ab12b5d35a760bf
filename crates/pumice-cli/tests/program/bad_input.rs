//! Bad input gets one clear line on stderr and status 2; a program that can't be run 127 or 126.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{folder, pumice, stderr};

/// Runs it, expects `status` and exactly one line that contains all of `parts`.
fn one_line(mut command: Command, status: i32, parts: &[&str]) {
    let output = command.stdin(Stdio::null()).output().expect("pumice starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
    assert!(said.starts_with("pumice: ") && said.ends_with('\n'), "{said}");
    assert!(output.stdout.is_empty(), "{command:?}");
    for part in parts {
        assert!(said.contains(part), "{command:?}: no '{part}' in: {said}");
    }
}

#[test]
fn an_engine_that_is_not_here() {
    if Path::new("/sys/bus/dsa").exists() {
        eprintln!("skipped: this machine may have that accelerator");
        return;
    }
    for typed in [
        &["run", "--engine", "dsa", "--", "true"][..],
        &["env", "--engine", "dsa"],
        &["bench", "scrub", "--case", "busy", "--engine", "dsa"],
        &["bench", "clear", "--region", "128M", "--engine", "dsa"],
    ] {
        one_line(pumice(typed), 2, &["--engine dsa is not here", "type --engine cpu"]);
    }
}

#[test]
fn a_gpu_is_not_for_programs() {
    for typed in [
        &["run", "--engine", "cuda", "--", "true"][..],
        &["env", "--engine", "cuda"],
        &["env", "--format", "docker", "--engine", "cuda"],
        &["bench", "scrub", "--engine", "cuda"],
    ] {
        one_line(pumice(typed), 2, &["--engine cuda is not here", "pumice_accel::pinned"]);
    }
}

#[test]
fn flags_and_values() {
    for (arguments, parts) in [
        (&["run", "--bogus", "--", "true"][..], &["--bogus", "pumice run --help"][..]),
        (&["run", "--ready", "banana", "--", "true"], &["banana", "--ready", "512M"]),
        (&["run", "--pool-max", "-1", "--", "true"], &["-1"]),
        (&["run", "--pool-max", "1.5G", "--", "true"], &["1.5G"]),
        (&["run", "--pool-max", "99999999999999999999", "--", "true"], &["--pool-max"]),
        (&["run", "--threshold", "1K", "--", "true"], &["4096"]),
        (&["run", "--ready"], &["--ready"]),
        (&["run", "--decay", "10", "--", "true"], &["500ms"]),
        (&["run", "--scrub-start", "19", "--", "true"], &["0 to 18"]),
        (&["run", "--scrub-load", "maybe", "--", "true"], &["load average"]),
        (&["run", "--engine", "abacus", "--", "true"], &["auto, cpu, kernel", "portable"]),
        (&["run", "--report=xml", "--", "true"], &["xml", "json"]),
        (&["run", "--verify=1", "--", "true"], &["--verify"]),
        (&["run", "--report-file", "/no/such/folder/r", "--", "true"], &["/no/such/folder/r"]),
        (&["run"], &["PROGRAM", "pumice run --help"]),
        (&["run", "--"], &["PROGRAM"]),
        (&["env", "--engine", "abacus"], &["auto, cpu, kernel", "portable"]),
        (&["env", "--format", "xml"], &["xml", "systemd", "k8s"]),
        (&["env", "--shim", "shim.so"], &["absolute", "shim.so"]),
        (&["env", "--shim", "/a b.so", "--format=k8s"], &["spaces", "/a b.so"]),
        (&["env", "--shim", "/no/such.so"], &["/no/such.so", "--install-shim"]),
        (&["env", "--shim", "/etc/passwd"], &["no shared library", "/etc/passwd"]),
        (&["env", "--shim", "/a.so", "--install-shim", "/tmp"], &["--install-shim"]),
        (&["env", "--install-shim", "/proc/x"], &["/proc/x", "no shim can be written there"]),
        (&["env", "--install-shim", "/dev/null"], &["/dev/null"]),
        (&["env", "--install-shim", "/tmp/a:b"], &["colon"]),
        (&["env", "--install-shim", "/tmp"], &["everybody"]),
        (&["env", "--install-shim", "/tmp/a\rb"], &["--install-shim", "written down"]),
        (&["env", "--ready", "2M", "--pool-max", "1M"], &["--ready", "--pool-max"]),
        (&["env", "--threshold", "1K"], &["4096"]),
        (&["env", "--only", "a\nb", "--format=json"], &["PUMICE_ONLY"]),
        (&["env", "--report"], &["--report"]),
        (&["env", "--", "true"], &["true"]),
        (&["serve"], &["--slot", "8G=2"]),
        (&["serve", "--slot", "8X=2"], &["8X=2", "8G=2"]),
        (&["serve", "--slot", "1G=0"], &["1G=0"]),
        (&["serve", "--slot", "100=1"], &["multiple of 4K"]),
        (&["serve", "--slot", "1M=1", "--pages", "hugetlb-2m"], &["multiple of 2M"]),
        (&["serve", "--slot", "4000T=2"], &["lower"]),
        (&["serve", "--slot", "1M=1", "--pages", "2m"], &["2m", "hugetlb-2m"]),
        (&["serve", "--slot", "1M=1", "--node", "200"], &["200"]),
        (&["serve", "--slot", "1M=1", "--allow", "qemu"], &["user:qemu"]),
        (&["serve", "--slot", "1M=1", "--allow", "user:no-such-user"], &["no-such-user"]),
        (&["serve", "--slot", "1M=1", "--metrics", "0.0.0.0:1"], &["127.0.0.1:9464"]),
        (&["stat", "--listen", "0.0.0.0:1"], &["127.0.0.1"]),
        (&["stat", "--listen", "unix:/no/such/folder/s"], &["--listen"]),
        (&["stat", "--watch", "--interval", "0"], &["0.5"]),
        (&["stat", "--interval", "1"], &["--watch"]),
        (&["serve", "--slot", "1M=1", "--dir", "/proc/x"], &["/proc/x", "--dir"]),
        (&["serve", "--slot", "1M=1", "--batch-pages", "0"], &["1 to 262144"]),
        (&["serve", "--config", "/no/such.toml"], &["/no/such.toml"]),
        (&["lease"], &["PROGRAM"]),
        (&["lease", "--", "true", "{fd}"], &["how much memory", "8G"]),
        (&["lease", "8X", "--", "true", "{fd}"], &["8X", "8G"]),
        (&["lease", "8G"], &["PROGRAM"]),
        (&["lease", "8G", "--", "true"], &["{path}", "{qemu}"]),
        (&["lease", "8G", "--wait", "5", "--", "true", "{fd}"], &["500ms"]),
        (&["snapshot"], &["PID|PATH", "pumice snapshot --help"]),
        (&["snapshot", "1"], &["FILE"]),
        (&["slots", "--set", "delay=1"], &["delay_ms"]),
        (&["bench", "vm", "--qemu", "/no/such-qemu"], &["apt install", "--qemu"]),
        (&["bench", "pin", "--sizes", "x"], &["512M"]),
        (&["rum"], &["rum", "pumice --help"]),
        (&["ctl"], &["PID"]),
        (&["ctl", "x"], &["'x'", "not a process number"]),
        (&["stat", "x"], &["'x'", "not a process number"]),
        (&["top", "x"], &["'x'", "not a process number"]),
        (&["bench", "pft", "--bogus"], &["--bogus", "pumice bench pft --help"]),
        (&["bench", "report"], &["--html", "pumice bench report --help"]),
        (&["completions", "csh"], &["csh", "bash", "zsh"]),
    ] {
        one_line(pumice(arguments), 2, parts);
    }
}

#[test]
fn no_daemon_to_lease_from() {
    for arguments in [
        &["lease", "8G", "--socket", "/no/such", "--", "true", "{fd}"][..],
        &["slots", "--socket", "/no/such"],
    ] {
        one_line(pumice(arguments), 1, &["/no/such", "pumice serve"]);
    }
}

#[test]
fn a_bad_file_of_slots() {
    let folder = folder("bad-slots");
    let path = folder.join("pumice.toml");
    fs::write(&path, "[[slot]]\nsize = \"8Q\"\n").expect("writable");
    let arguments = ["serve", "--config", path.to_str().expect("UTF-8")];
    one_line(pumice(&arguments), 2, &["pumice.toml:2:", "8G"]);
}

#[test]
fn a_pool_larger_than_memory() {
    for flag in ["--pool-max", "--ready"] {
        one_line(pumice(&["run", flag, "4000T", "--", "true"]), 2, &[flag, "memory"]);
    }
    let arguments = ["run", "--ready", "2M", "--pool-max", "1M", "--", "true"];
    one_line(pumice(&arguments), 2, &["--ready", "--pool-max"]);
}

#[test]
fn variables_are_checked_as_flags_are() {
    for (name, value) in [
        ("PUMICE_READY", "banana"),
        ("PUMICE_POOL_MAX", "4000T"),
        ("PUMICE_THRESHOLD", "12"),
        ("PUMICE_SCRUB_START", "x"),
        ("PUMICE_DECAY_MS", "10s"),
    ] {
        let mut command = pumice(&["run", "--", "true"]);
        command.env(name, value);
        one_line(command, 2, &[name]);
    }
    let flag_wins =
        pumice(&["run", "--ready", "1M", "--", "true"]).env("PUMICE_READY", "x").status();
    assert!(flag_wins.expect("pumice starts").success());
}

#[test]
fn a_missing_shim() {
    let folder = folder("shim");
    let text = folder.join("text.so");
    let spaced = folder.join("a shim.so");
    fs::write(&text, "no ELF file").expect("writable");
    fs::write(&spaced, "\x7fELF").expect("writable");
    for (shim, part) in [
        ("/no/such/shim.so", "PUMICE_SHIM"),
        (text.to_str().expect("UTF-8"), "no shared library"),
        (spaced.to_str().expect("UTF-8"), "space"),
    ] {
        let mut command = pumice(&["run", "--", "true"]);
        command.env("PUMICE_SHIM", shim);
        one_line(command, 2, &[shim, part]);
    }
}

#[test]
fn programs_that_can_not_be_run() {
    let folder = folder("programs");
    let write = |name: &str, content: &str, mode: u32| {
        let path = folder.join(name);
        fs::write(&path, content).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        path.to_str().expect("UTF-8").to_owned()
    };
    let plain = write("plain", "#!/bin/sh\n", 0o644);
    let orphan = write("orphan", "#!/no/such/interpreter\n", 0o755);
    let missing = folder.join("missing");

    one_line(pumice(&["run", "--", "no-such-program"]), 127, &["no-such-program", "PATH"]);
    one_line(pumice(&["run", "--", missing.to_str().expect("UTF-8")]), 127, &["missing"]);
    one_line(pumice(&["run", "--", ""]), 127, &[]);
    one_line(pumice(&["run", "--", &orphan]), 127, &["orphan"]);
    one_line(pumice(&["run", "--", &plain]), 126, &["plain", "executable"]);
    one_line(pumice(&["run", "--", folder.to_str().expect("UTF-8")]), 126, &["directory"]);
    one_line(pumice(&["run", "--report", "--", &plain]), 126, &["plain"]);
}

#[test]
fn changes_that_can_not_be_made() {
    let own = std::process::id().to_string();
    one_line(pumice(&["ctl", "4000000"]), 1, &["no process 4000000"]);
    one_line(pumice(&["ctl", &own]), 1, &[&own, "pumice run"]);
    one_line(pumice(&["ctl", &own, "bogus=1"]), 2, &["bogus", "scrub_start"]);
    one_line(pumice(&["ctl", &own, "scrub_start"]), 2, &["KEY=VALUE"]);
    one_line(pumice(&["ctl", &own, "scrub_start=x"]), 2, &["0 to 18"]);
}
