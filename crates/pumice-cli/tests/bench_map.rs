//! `pumice bench map`, as short as it goes: what it prints and writes, not how fast anything is.

mod support;

use std::fs;

use support::{folder, pumice, stdout};

#[test]
fn every_load_runs_in_every_way() {
    let json = folder("bench-map").join("rows.jsonl");
    let mut command = pumice(&["bench", "map", "--quick", "--rounds", "1", "--json"]);
    let output = command.arg(&json).output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let rows = fs::read_to_string(&json).expect("rows");
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(rows.len(), 12, "{}", stdout(&output));
    for (row, way) in rows.iter().zip(["kernel-4k", "kernel-thp", "pumice"].iter().cycle()) {
        assert_eq!(row["way"], *way);
        for name in ["wall_ns", "peak_kib"] {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        for name in ["times_faster_than_4k", "times_faster_than_thp"] {
            assert!(row[name]["median"].as_f64() > Some(0.0), "{name}: {row}");
        }
    }
}
