//! `pumice bench fork`, as short as it goes: what it prints and writes, not how fast anything is.

mod support;

use std::fs;

use support::{folder, pumice, stdout};

#[test]
fn every_load_runs_in_every_way() {
    let json = folder("bench-fork").join("rows.jsonl");
    let mut command = pumice(&["bench", "fork", "--quick", "--rounds", "1", "--json"]);
    let output = command.arg(&json).output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let rows = fs::read_to_string(&json).expect("rows");
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(rows.len(), 12, "{}", stdout(&output));
    for (row, way) in rows.iter().zip(["kernel-4k", "kernel-thp", "pumice"].iter().cycle()) {
        assert_eq!(row["way"], *way);
        for name in ["snapshot_ms", "fork_ms", "writing_ms", "all_ms", "peak_kib"] {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        for name in ["snapshot_to_4k", "peak_to_thp"] {
            assert!(row[name]["median"].as_f64() > Some(0.0), "{name}: {row}");
        }
    }
}
