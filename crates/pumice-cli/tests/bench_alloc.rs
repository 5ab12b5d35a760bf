//! `pumice bench alloc`, as short as it goes: what it prints and writes, not how fast anything is.

mod support;

use std::fs;
use std::process::Output;

use support::{folder, pumice, rows, stderr, stdout};

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
        }
        assert!(table.lines().any(|line| line.starts_with("pumice against")), "{table}");
        assert!(fs::read_to_string(&plot).expect("a picture").contains("<svg"));
    }
}

#[test]
fn what_is_missing_is_skipped_and_said() {
    let mut command = pumice(&["bench", "alloc", "--quick", "--only", "zstd", "--rounds", "1"]);
    let output = command.env("PATH", "/no/such/folder").output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let said = stdout(&output);
    assert!(said.contains("zstd: skipped") && said.contains("apt-get install zstd"), "{said}");
}

#[test]
fn bad_values_get_one_line() {
    for (arguments, part) in [
        (["--rounds", "0"], "--rounds"),
        (["--rounds", "many"], "many"),
        (["--only", "no-such-load"], "malloc-sparse"),
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
