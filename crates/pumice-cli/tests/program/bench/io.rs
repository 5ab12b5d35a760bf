//! `pumice bench io`, as short as it goes: its output, its files and its leftovers, not how fast anything is.

use std::fs;

use crate::support::{folder, pumice, rows, stderr, stdout};

#[test]
fn every_operation_has_its_rows() {
    let folder = folder("bench-io");
    let (json, plot) = (folder.join("rows.jsonl"), folder.join("reads.svg"));
    let short = ["--frames", "16M", "--seconds", "0.05", "--rounds", "1", "--resident", "16M"];
    let mut command = pumice(&["bench", "io"]);
    command.args(short).args(["--threads", "1,2", "--depth", "16", "--dir"]).arg(&folder);
    command.arg("--json").arg(&json).arg("--plot").arg(&plot);
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&json);
    let said = stderr(&output);
    let mut backends = vec!["direct"];
    if said.contains("fio is not installed") {
        eprintln!("skipped: fio's rows, it is not installed");
    } else {
        backends.push("fio");
    }
    if said.contains("no control group") {
        eprintln!("skipped: the kernel's rows ({said})");
    } else {
        backends.extend(["buffered", "mmap"]);
    }
    for backend in &backends {
        for (op, wanted) in [
            ("out", 1),
            ("rewrite", 1),
            ("in", 1),
            ("random", 2),
            ("random-ahead", 2),
            ("random-beside", 2),
        ] {
            let is = |row: &&serde_json::Value| row["op"] == op && row["backend"] == *backend;
            let rows: Vec<_> = rows.iter().filter(is).collect();
            assert_eq!(rows.len(), wanted, "{op} {backend}: {}", stdout(&output));
            for row in rows {
                assert!(row["mb_s"].as_f64() > Some(0.0), "{row}");
                assert!(row["iops"].as_f64() > Some(0.0), "{row}");
                assert!(row["max_us"].as_f64() >= row["p99_us"].as_f64(), "{row}");
                assert_eq!(row["samples"]["mb_s"].as_array().map(Vec::len), Some(1), "{row}");
            }
        }
    }
    for backend in backends.iter().filter(|backend| ["mmap", "direct"].contains(backend)) {
        let is = |row: &&serde_json::Value| row["op"] == "scan" && row["backend"] == *backend;
        let scan = rows.iter().find(is).expect("a scan");
        for share in ["hits_percent", "kept_percent"] {
            let is_share = |share: &f64| (0.0..=100.0).contains(share);
            assert!(scan[share].as_f64().is_some_and(|share| is_share(&share)), "{scan}");
        }
    }
    for op in ["resident", "resident-few"] {
        assert_eq!(rows.iter().filter(|row| row["op"] == op).count(), 3, "{}", stdout(&output));
    }
    assert!(fs::read_to_string(&plot).expect("a picture").contains("pages per second"));
    let left = fs::read_dir(&folder).expect("ours").count();
    assert_eq!(left, 2, "rows and picture, nothing else");
}
