//! `pumice run --profile`: a program finds ready what its last run used.

use std::fs;
use std::path::Path;

use crate::support::{folder, pumice, stderr, stdout};

/// 40 MB in pieces that are kept and written.
const PROGRAM: &str = r#"$x[$_] = chr($_) x 1e6 for 1..40; print length(join "", @x)"#;

fn run(profile: &Path, program: &[&str]) -> std::process::Output {
    let mut command = pumice(&["run", "--report=json"]);
    let mut flag = std::ffi::OsString::from("--profile=");
    flag.push(profile);
    command.arg(flag).arg("--").args(program).output().expect("pumice starts")
}

fn populated_bytes(output: &std::process::Output) -> u64 {
    let report: serde_json::Value = serde_json::from_str(&stderr(output)).expect("a report");
    report["populated_bytes"].as_u64().expect("a number")
}

#[test]
fn a_second_run_has_ready_what_the_first_used() {
    let folder = folder("profile");
    let file = folder.join("perl.json");
    let first = run(&file, &["perl", "-e", PROGRAM]);
    assert_eq!(stdout(&first), "40000000");
    assert_eq!(populated_bytes(&first), 0);
    let text = fs::read_to_string(&file).expect("a profile");
    let known: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ready = known["ready_bytes"].as_u64().expect("a number");
    assert!((32 << 20..128 << 20).contains(&ready), "{text}");
    // It waits for its memory, so that a busy machine populates some of it.
    let waits = format!("select undef, undef, undef, 0.3; {PROGRAM}");
    let second = run(&file, &["perl", "-e", &waits]);
    assert_eq!(stdout(&second), "40000000");
    assert!(populated_bytes(&second) > 0, "{}", stderr(&second));
}

#[test]
fn programs_at_once_leave_a_whole_profile() {
    let folder = folder("profiles");
    let file = folder.join("p.json");
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let output = run(&file, &["perl", "-e", PROGRAM]);
                    assert_eq!(stdout(&output), "40000000", "{}", stderr(&output));
                }
            });
        }
    });
    let text = fs::read(&file).expect("a profile");
    serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
    assert_eq!(folder.read_dir().expect("there").count(), 1, "nothing unfinished is left");
}

#[test]
fn a_file_that_is_no_profile_stays_as_it_is() {
    let folder = folder("no-profile");
    let file = folder.join("mine.txt");
    fs::write(&file, "my text").expect("writable");
    let output = run(&file, &["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert!(stderr(&output).contains("is no profile"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&file).expect("there"), "my text");
    // A profile that was cut off says nothing, and is written anew.
    fs::write(&file, "{\"pumice_profile\":1,\"pro").expect("writable");
    let output = run(&file, &["perl", "-e", PROGRAM]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("40000000", Some(0)));
    assert!(fs::read_to_string(&file).expect("there").contains("ready_bytes"));
}

#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let folder = folder("profile-pipe");
    let file = folder.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.expect("mkfifo is installed").success());
    let output = run(&file, &["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is no file"), "{}", stderr(&output));
}

#[test]
fn profiles_lie_in_the_users_cache() {
    let Some(folder) = crate::support::safe_folder("profile-cache") else { return };
    let run = |arguments: &[&str]| {
        let mut command = pumice(&[&["run", "--profile", "--"], arguments].concat());
        command.env("XDG_CACHE_HOME", &*folder).output().expect("pumice starts")
    };
    for script in ["one", "two"] {
        let file = folder.join(script);
        fs::write(&file, PROGRAM).expect("writable");
        let output = run(&["perl", file.to_str().expect("text")]);
        assert_eq!(stdout(&output), "40000000", "{}", stderr(&output));
    }
    let profiles = folder.join("pumice/profiles");
    assert_eq!(profiles.read_dir().expect("there").count(), 2);
    assert!(run(&["true"]).status.success());
    assert_eq!(profiles.read_dir().expect("there").count(), 2, "nothing was used");
    let output = pumice(&["run", "--profile", "--ready", "8M", "true"]).output();
    assert_eq!(output.expect("pumice starts").status.code(), Some(2), "one or the other");
}
