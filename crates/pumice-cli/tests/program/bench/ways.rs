//! `pumice bench fork` and `bench map`, as short as they go: their output and their files, not how fast anything is.

use crate::support::{folder, pumice, rows, stdout};

/// Every load runs in every way, with these figures and these ratios.
fn runs(experiment: &str, figures: &[&str], ratios: &[&str]) {
    let folder = folder(experiment);
    let json = folder.join("rows.jsonl");
    let mut command = pumice(&["bench", experiment, "--quick", "--rounds", "1", "--json"]);
    let output = command.arg(&json).output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&json);
    assert_eq!(rows.len(), 12, "{}", stdout(&output));
    for (row, way) in rows.iter().zip(["kernel-4k", "kernel-thp", "pumice"].iter().cycle()) {
        assert_eq!(row["way"], *way);
        for &name in figures {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        for &name in ratios {
            assert!(row[name]["median"].as_f64() > Some(0.0), "{name}: {row}");
        }
    }
}

#[test]
fn fork_runs_every_load_in_every_way() {
    let figures = ["snapshot_ms", "fork_ms", "writing_ms", "all_ms", "peak_kib"];
    runs("fork", &figures, &["snapshot_to_4k", "peak_to_thp"]);
}

#[test]
fn map_runs_every_load_in_every_way() {
    runs("map", &["wall_ns", "peak_kib"], &["times_faster_than_4k", "times_faster_than_thp"]);
}
