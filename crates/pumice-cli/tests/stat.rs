//! `pumice stat` beside programs that run, and over files that are none.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use support::{pumice, stderr, stdout};

/// A program that has been served and waits; its process id. `None` without python3.
fn served() -> Option<(Child, u32)> {
    let script = "import os,sys; x = bytearray(1 << 26); x[:] = b'1' * len(x); \
                  print(os.getpid(), flush=True); sys.stdin.readline()";
    let mut child = pumice(&["run", "--", "python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("pumice starts");
    let mut pid = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut pid).expect("a line");
    match pid.trim_end().parse() {
        Ok(pid) => Some((child, pid)),
        Err(_) => {
            eprintln!("skipped: no python3");
            child.wait().expect("waited");
            None
        }
    }
}

fn stat(arguments: &[&str]) -> std::process::Output {
    pumice(&["stat"]).args(arguments).output().expect("pumice starts")
}

#[test]
fn running_programs_are_shown() {
    let Some((mut child, pid)) = served() else { return };
    let pid_text = pid.to_string();
    let run_text = child.id().to_string();
    for named in [&pid_text, &run_text] {
        let output = stat(&["--json", named]);
        assert!(output.status.success(), "{}", stderr(&output));
        let object: Value = serde_json::from_str(&stdout(&output)).expect("one object");
        assert_eq!(object["pid"], pid);
        assert_eq!(object["run_pid"], child.id());
        assert!(object["requests"].as_u64() > Some(0), "{object}");
        assert!(object["pool_bytes"].as_u64() >= Some(1 << 26), "{object}");
        let rate = object["hit_rate"].as_f64().expect("requests were served");
        assert!((0.0..=1.0).contains(&rate));
    }
    let table = stdout(&stat(&[]));
    assert!(table.lines().any(|line| line.contains("python3") && line.contains(&pid_text)));
    drop(child.stdin.take());
    child.wait().expect("waited");
    let gone = stat(&[&pid_text]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("pumice stat"), "{}", stderr(&gone));
    assert!(!stdout(&stat(&[])).contains(&pid_text));
}

/// Files that only seem to be counters; named after a process that lives.
#[test]
fn what_is_no_file_of_counters_is_passed_over() {
    let folder = std::path::Path::new("/dev/shm");
    if !folder.is_dir() {
        eprintln!("skipped: no /dev/shm");
        return;
    }
    // SAFETY: a plain system call.
    let uid = unsafe { libc::geteuid() };
    let own = std::process::id();
    let name = |number: u32| folder.join(format!("pumice.{uid}.{own}.{number}"));
    let size = pumice::stats::TREE_SIZE;
    let noise: Vec<u8> = (0..size).map(|index| (index * 31 % 251) as u8).collect();
    let mut hostile = noise.clone();
    // A good beginning and nothing else: magic and version are right, all numbers are not.
    hostile[..8].copy_from_slice(&pumice::stats::MAGIC.to_le_bytes());
    hostile[8..12].copy_from_slice(&pumice::stats::VERSION.to_le_bytes());
    let mut greedy = vec![0xff; size];
    greedy[..8].copy_from_slice(&pumice::stats::MAGIC.to_le_bytes());
    greedy[8..12].copy_from_slice(&pumice::stats::VERSION.to_le_bytes());
    greedy[12..16].copy_from_slice(&(pumice::stats::SLOTS as u32).to_le_bytes());
    greedy[16..20].copy_from_slice(&(size_of::<pumice::stats::Slot>() as u32).to_le_bytes());
    let events = pumice::stats::EVENTS as u32;
    greedy[20..24].copy_from_slice(&events.to_le_bytes());
    for (number, content) in [&[][..], &noise[..100], &noise, &hostile, &greedy].iter().enumerate()
    {
        fs::write(name(number as u32), content).expect("written");
    }
    std::os::unix::fs::symlink("/dev/zero", name(90)).expect("linked");
    let fifo = std::ffi::CString::new(name(91).to_str().expect("letters")).expect("no NUL");
    // SAFETY: a path that ends with NUL.
    unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) };
    for arguments in [&[][..], &["--json"]] {
        let output = stat(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    for number in (0..5).chain([90, 91]) {
        fs::remove_file(name(number)).expect("ours");
    }
}
