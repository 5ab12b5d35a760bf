//! `pumice bench reclaim`, as short as it goes: its output, its files and its leftovers, not how fast anything is.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{folder, pumice, rows, stderr, stdout};

const SHORT: [&str; 9] =
    ["bench", "reclaim", "--frames", "64M", "--seconds", "0.05", "--rounds", "2", "--threads"];

fn areas() -> String {
    fs::read_to_string("/proc/swaps").unwrap_or_default()
}

#[test]
fn every_pattern_has_its_rows() {
    let folder = folder("bench-reclaim");
    let (json, plot) = (folder.join("rows.jsonl"), folder.join("rate.svg"));
    let mut command = pumice(&SHORT);
    command.args(["1,2", "--times", "2", "--dir"]).arg(&folder);
    command.arg("--json").arg(&json).arg("--plot").arg(&plot);
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&json);
    let of = |pattern: &str, backend: &str| {
        let is = |row: &&serde_json::Value| row["pattern"] == pattern && row["backend"] == backend;
        rows.iter().filter(is).collect::<Vec<_>>()
    };
    for pattern in ["device-read", "device-mixed"] {
        assert_eq!(of(pattern, "device").len(), 2, "{}", stdout(&output));
    }
    let has_kernel = !stderr(&output).contains("without the kernel's");
    if !has_kernel {
        eprintln!("skipped: the kernel's side ({})", stderr(&output));
    }
    let patterns = [
        "fill",
        "random-write",
        "random-read",
        "sequential-write",
        "sequential-read",
        "zipf-write",
        "google",
    ];
    for pattern in patterns {
        let wanted = if pattern == "fill" { 1 } else { 2 };
        for backend in ["pumice", "kernel-swap"].into_iter().take(1 + usize::from(has_kernel)) {
            let rows = of(pattern, backend);
            assert_eq!(rows.len(), wanted, "{pattern} {backend}: {}", stdout(&output));
            for row in rows {
                assert!(row["accesses_per_s"].as_f64() > Some(0.0), "{row}");
                assert!(row["max_us"].as_f64() >= row["p99_us"].as_f64(), "{row}");
                assert_eq!(row["times"], 2, "{row}");
            }
        }
    }
    let google = of("google", "pumice");
    assert!(google.iter().all(|row| row["file_mb_per_s"].as_f64() > Some(0.0)), "{google:?}");
    assert!(!of("hit", "pumice").is_empty() && !of("hit-shared", "pumice").is_empty());
    assert!(fs::read_to_string(&plot).expect("a picture").contains("pumice, uniform writes"));
    let left = fs::read_dir(&folder).expect("ours").count();
    assert_eq!(left, 2, "rows and picture, nothing else");
    assert!(!areas().contains(&*folder.to_string_lossy()), "{}", areas());
}

/// Devices of compressed memory on both sides, which are gone when it is over.
#[test]
fn zram_comes_and_goes() {
    let devices = || -> BTreeSet<_> {
        let entries = fs::read_dir("/sys/block").expect("there").flatten();
        entries.map(|entry| entry.file_name()).collect()
    };
    let before = devices();
    let folder = folder("bench-reclaim-zram");
    let mut command = pumice(&SHORT);
    command.args(["2", "--times", "2", "--patterns", "random-write", "--swap-on", "zram"]);
    let output = command.arg("--dir").arg(&folder).output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&folder).expect("ours").count(), 0);
    if stderr(&output).contains("no zram device can be made") {
        eprintln!("skipped: {}", stderr(&output));
        return;
    }
    assert!(stdout(&output).contains("pumice-zram"), "{}", stdout(&output));
    // Others may take theirs away meanwhile.
    let left: Vec<_> = devices().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A signal in the middle of it: swap is off, files are gone.
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let folder = folder("bench-reclaim-interrupt");
    let mut command: Command = pumice(&SHORT);
    command.args(["1", "--times", "4", "--dir"]).arg(&folder);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("pumice starts");
    // Until there is swap, or a while where there can't be any.
    let until = Instant::now() + Duration::from_secs(20);
    let ours = folder.to_string_lossy().into_owned();
    while !areas().contains(&ours) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        if child.try_wait().expect("a child").is_some() {
            break;
        }
    }
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert!(!areas().contains(&ours), "{}", areas());
    assert_eq!(fs::read_dir(&folder).expect("ours").count(), 0);
}
