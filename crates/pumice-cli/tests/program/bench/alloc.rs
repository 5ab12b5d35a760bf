//! `pumice bench alloc`, as short as it goes: its output and its files, not how fast anything is.

use std::fs;
use std::process::Output;

use crate::support::{folder, pumice, rows, stderr, stdout};
use serde_json::Value;

fn bench_alloc(arguments: &[&str]) -> Output {
    let mut command = pumice(&["bench", "alloc"]);
    command.args(arguments).output().expect("pumice starts")
}

#[test]
fn gzip_under_two_allocators() {
    let folder = folder("bench-alloc");
    let [json, plot, inputs] = ["rows.jsonl", "ratios.svg", "inputs"].map(|name| folder.join(name));
    fs::create_dir(&inputs).expect("ours");
    let mut command = pumice(&["bench", "alloc", "--quick", "--only", "gzip", "--rounds", "1"]);
    command.args(["--allocator", "pumice", "--json"]).arg(&json).arg("--plot").arg(&plot);
    let output = command.env("TMPDIR", &inputs).output().expect("pumice starts");
    let table = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stderr(&output), "", "progress is for terminals");
    assert_eq!(fs::read_dir(&inputs).expect("ours").count(), 0, "inputs are left");

    if table.contains("gzip: skipped") {
        eprintln!("skipped: {table}");
    } else {
        let rows = rows(&json);
        let allocators: Vec<_> = rows.iter().map(|row| row["allocator"].as_str()).collect();
        assert_eq!(allocators, [Some("glibc"), Some("glibc-huge"), Some("pumice")], "{table}");
        for row in &rows {
            assert_eq!(row["load"], "gzip");
            for name in ["wall_s", "cpu_s", "peak_kib", "minor_faults", "time_ratio"] {
                assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
            }
            assert!(row["memory_ratio_low"].as_f64() <= row["memory_ratio_high"].as_f64(), "{row}");
            assert!(row["repeated_rounds"].as_u64() <= Some(1), "{row}");
            assert!(row["cold_rounds"].as_u64() <= Some(1), "{row}");
            assert!(row["samples"]["probe_ns"][0].as_f64() > Some(0.0), "{row}");
        }
        let is_compared = |row: &&Value| row["time_to_best"].as_f64() > Some(0.0);
        assert_eq!(rows.iter().filter(is_compared).count(), 1, "pumice's alone");
        assert!(table.lines().any(|line| line.starts_with("pumice against")), "{table}");
        assert!(table.contains("\nloads measured: 1, in "), "{table}");
        assert!(fs::read_to_string(&plot).expect("a picture").contains("<svg"));
    }
}

#[test]
fn mappings_are_compared_where_they_are_named() {
    let folder = folder("bench-alloc-mmap");
    let json = folder.join("rows.jsonl");
    let mut command = pumice(&["bench", "alloc", "--quick", "--only", "gzip", "--rounds", "1"]);
    command.args(["--allocator", "pumice", "--allocator", "pumice-mmap", "--json"]).arg(&json);
    let output = command.output().expect("pumice starts");
    let table = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    if table.contains("gzip: skipped") {
        eprintln!("skipped: {table}");
    } else {
        let rows = rows(&json);
        let last = rows.last().expect("a row");
        assert_eq!(last["allocator"], "pumice-mmap");
        assert!(last["mmap_time"].as_f64() > Some(0.0), "{last}");
        assert!(table.lines().any(|line| line.starts_with("pumice-mmap against")), "{table}");
    }
}

#[test]
fn what_is_missing_is_skipped_and_said() {
    let missing = [
        ("zstd", "apt-get install zstd"),
        ("rust-build", "apt-get install rustc"),
        ("map-java", "apt-get install default-jre-headless"),
        ("go-cgo", "apt-get install"),
        ("rollup", "apt-get install nodejs"),
        ("ffmpeg", "apt-get install ffmpeg"),
        ("r-matrices", "apt-get install r-base-core"),
        ("postgres", "apt-get install"),
        ("map-python", "apt-get install python3"),
        ("op-ones", "apt-get install python3"),
    ];
    let mut command = pumice(&["bench", "alloc", "--quick", "--rounds", "1"]);
    for (load, _) in missing {
        command.args(["--only", load]);
    }
    let output = command.env("PATH", "/no/such/folder").output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let said = stdout(&output);
    for (load, install) in missing {
        let skipped = format!("{load}: skipped, ");
        let line = said.lines().find(|line| line.starts_with(&skipped));
        assert!(line.is_some_and(|line| line.contains(install)), "{load}: {said}");
    }
}

#[test]
fn bad_values_get_one_line() {
    for (arguments, part) in [
        (["--rounds", "0"], "--rounds"),
        (["--rounds", "many"], "many"),
        (["--only", "no-such-load"], "malloc-sparse"),
        (["--only", "no-such-load"], "op-zeros"),
        (["--allocator", "dlmalloc"], "jemalloc"),
        (["--json", "/nowhere/rows.jsonl"], "/nowhere/rows.jsonl"),
        (["--plot", "/nowhere/ratios.svg"], "/nowhere/ratios.svg"),
    ] {
        let output = bench_alloc(&arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
