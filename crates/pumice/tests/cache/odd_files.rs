//! Files that are none, and files with two names.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use pumice::cache::{run, Options};

use super::*;

#[test]
fn a_fifo_is_refused_at_once() {
    let scratch = Scratch::new("fifo");
    let name = std::ffi::CString::new(scratch.0.as_os_str().as_bytes()).expect("a name");
    // SAFETY: a name that ends.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let path = scratch.0.to_path_buf();
    let (said, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        run(&Settings::new(512), |cache| {
            for options in [Options::new().read_only(), Options::new()] {
                said.send(cache.open(&path, &options).is_err()).expect("somebody waits");
            }
        })
    });
    for _ in 0..2 {
        let refused = answer.recv_timeout(Duration::from_secs(30));
        assert_eq!(refused, Ok(true), "it waits for a writer, or takes it");
    }
}

/// `strace` shows that the folders of both names of a new file are made durable.
#[test]
fn both_folders_of_a_new_file_are_synced() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for name in ["a", "b"] {
        std::fs::create_dir(folder.path().join(name)).expect("ours");
    }
    let strace = std::process::Command::new("strace")
        .args(["-f", "-y", "-e", "trace=fsync,fdatasync"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "odd_files::child", "--ignored"])
        .env("PUMICE_TWO_NAMES", folder.path())
        .output();
    let Ok(said) = strace else {
        eprintln!("skipped: no strace");
        return;
    };
    let said = String::from_utf8_lossy(&said.stderr);
    if said.contains("PTRACE") || said.contains("ptrace(") {
        eprintln!("skipped: strace may not trace");
        return;
    }
    for name in ["a>", "b>"] {
        let is_synced = |line: &str| line.contains("sync(") && line.contains(&format!("/{name}"));
        assert!(said.lines().any(is_synced), "{name}: {said}");
    }
}

#[test]
#[ignore = "both_folders_of_a_new_file_are_synced runs it, under strace"]
fn child() {
    let Some(folder) = std::env::var_os("PUMICE_TWO_NAMES").map(std::path::PathBuf::from) else {
        return;
    };
    run(&Settings::new(512), |cache| {
        let one = cache.open(&folder.join("a/f"), &Options::new()).expect("a file");
        std::fs::hard_link(folder.join("a/f"), folder.join("b/g")).expect("another name");
        let _two = cache.open(&folder.join("b/g"), &Options::new()).expect("the same file");
        let task = cache.task().expect("room");
        let view = task.view(&one).expect("room");
        view.write_or_grow(0).expect("room")[0] = 1;
        view.sync().expect("the device is there");
    })
    .expect("a cache");
}
