//! Core dumps hold what the program uses, and not what the pool has beside it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::shim::{compile, describe, run, scratch};

/// The memory that the program uses to its end.
const USED: u64 = 64 << 20;
/// The rest that a dump may hold: the program's own few pages and pumice's, and pages beside frames
/// in use within a block or between them in short gaps.
const SLACK: u64 = 16 << 20;

/// Bytes that the dump takes on the disk, and its pages that are full of 0x5a. `None`: no dump was made.
fn dump(name: &str, flags: Option<&[&str]>) -> Option<(u64, u64)> {
    let folder = scratch("core").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("cargo's folder for tests is writable");
    let program = compile("core");
    let mut command = match flags {
        None => Command::new(program),
        Some(flags) => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
            command.arg("run").args(flags).arg("--").arg(program);
            command
        }
    };
    let arguments = [USED.to_string(), "10000".to_owned(), (USED + SLACK / 2).to_string()];
    command.args(arguments).current_dir(&folder);
    let output = run(command, b"");
    let aborted = output.status.signal() == Some(6) || output.status.code() == Some(128 + 6);
    assert!(aborted, "{}", describe(&output));
    // Named as /proc/sys/kernel/core_pattern says; if it isn't here, it is nowhere we know of.
    let is_core = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("core");
    let file = fs::read_dir(&folder).expect("a folder").flatten().find(is_core)?.path();
    let bytes = fs::metadata(&file).expect("it is there").blocks() * 512;
    let content = fs::read(&file).expect("it is ours");
    let full = content.chunks(4096).filter(|page| page.iter().all(|&byte| byte == 0x5a)).count();
    fs::remove_dir_all(&folder).expect("it is ours");
    Some((bytes, full as u64))
}

#[test]
fn a_dump_holds_what_is_used_and_not_the_pool() {
    let Some((plain, _)) = dump("plain", None) else {
        println!("no core dumps are written to the current folder here: skipped");
        return;
    };
    let ways: [(&str, &[&str]); 4] = [
        ("default", &[]),
        ("verify", &["--verify"]),
        ("ready", &["--ready", "256M"]),
        ("small", &["--threshold", "4K", "--mmap-threshold", "4K"]),
    ];
    for (name, flags) in ways {
        let (bytes, full) = dump(name, Some(flags)).expect("a dump, as without pumice");
        assert!(full >= USED / 4096, "{name}: {full} pages of those in use");
        assert!(bytes <= plain + SLACK, "{name}: {bytes} bytes, {plain} without pumice");
    }
}
