//! `pumice bench fault`, as short as it goes: its output and its files, not how fast anything is.

use std::collections::BTreeSet;
use std::fs;

use crate::support::{folder, pumice, rows, stdout};

#[test]
fn every_locking_faults_in_every_pattern() {
    let folder = folder("bench-fault");
    let (json, plot) = (folder.join("rows.jsonl"), folder.join("rate.svg"));
    let mut command = pumice(&["bench", "fault", "--quick", "--rounds", "1", "--size", "128M"]);
    command.arg("--json").arg(&json).arg("--plot").arg(&plot);
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&json);
    let mut seen = BTreeSet::new();
    for row in rows.iter().filter(|row| row["experiment"] == "fault") {
        for name in ["gb", "wall_s", "flt_cpu_s", "flt_wall_s", "flt_cpu_s_with_filling"] {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        assert!(row["prefault"].is_boolean(), "{row}");
        seen.insert(format!("{} {}", row["locking"], row["pattern"]).replace('"', ""));
    }
    for wanted in ["kernel own", "whole own", "short own", "atomic one-block", "atomic mapper"] {
        assert!(seen.contains(wanted), "{wanted}: {}", stdout(&output));
    }
    assert!(rows.iter().any(|row| row["experiment"] == "access"));
    assert!(fs::read_to_string(&plot).expect("a picture").contains("one lock over the fault"));
}
