//! `pumice bench pin`, `lease`, `vm` and `populate` print a row for each way and write the same as JSON.

use std::process::Command;

use crate::support::{folder, pumice, stderr, stdout};

/// Runs it with a file for JSON, and returns the table and the rows.
fn rows(name: &str, arguments: &[&str]) -> (String, Vec<serde_json::Value>) {
    let folder = folder(name);
    let file = folder.join("rows.json");
    let mut command = pumice(&["bench"]);
    // Its daemon has a folder of its own among the temporary ones.
    command.args(arguments).arg("--json").arg(&file).env("TMPDIR", &folder);
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    (stdout(&output), crate::support::rows(&file))
}

/// One after the other: both take pages of the machine's hugetlb pool, if they may.
#[test]
fn pinning_and_machines() {
    pinning();
    machines();
}

#[test]
fn populating() {
    let short = ["--pairs", "6", "--window-ms", "20"];
    let (table, rows) =
        rows("bench-populate", &[&["populate", "--case", "compute-one"], &short[..]].concat());
    assert_eq!(rows[0]["case"], "compute-one", "{table}");
    assert!(rows.len() >= 2, "{table}");
    assert!(rows.iter().all(|row| row["loss_pct"].is_number()), "{table}");
}

#[test]
fn leasing() {
    let (table, rows) = rows("bench-lease", &["lease", "--cycles", "100"]);
    assert_eq!(rows.len(), 3, "{table}");
    assert!(rows.iter().all(|row| row["lease_p50_us"].as_f64() > Some(0.0)), "{table}");
    assert!(rows.iter().all(|row| row["descriptors_left"].as_i64() <= Some(0)), "{table}");
}

fn pinning() {
    let (table, rows) = rows("bench-pin", &["pin", "--sizes", "4M", "--rounds", "1"]);
    assert!(table.contains("registered"), "{table}");
    assert!(rows.len() >= 4, "{table}");
    let is_pool = |row: &&serde_json::Value| row["experiment"] == "pool";
    assert!(rows.iter().filter(is_pool).all(|row| row["mmap_s"].as_f64() > Some(0.0)), "{table}");
    assert_eq!(rows.iter().filter(is_pool).count(), 1, "{table}");
    let mut slots = rows.iter().filter(|row| !is_pool(row));
    assert!(slots.all(|row| row["fresh_s"].as_f64() > Some(0.0)), "{table}");
}

fn machines() {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        eprintln!("skipped: no qemu-system-x86_64");
        return;
    }
    let (table, rows) = rows("bench-vm", &["vm", "--sizes", "32M", "--rounds", "1"]);
    assert!(table.contains("slot-thp"), "{table}");
    assert!(rows.len() >= 9, "{table}");
    assert_eq!(rows[0]["times_floor"].as_f64(), Some(1.0));
}
