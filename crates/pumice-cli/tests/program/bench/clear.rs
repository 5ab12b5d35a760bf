//! `pumice bench clear`, as short as it goes: its output and its files, not how fast anything is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::{folder, pumice, rows, safe_folder, stderr, stdout};

fn bench_clear(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = pumice(&["bench", "clear"]);
    command.args(arguments).env("XDG_CACHE_HOME", folder).output().expect("pumice starts")
}

#[test]
fn rows_cover_each_engine_and_size_and_a_plan_is_kept() {
    let folder = folder("bench-clear");
    let json = folder.join("rows.jsonl");
    let path = json.to_str().expect("a path that is text");
    let sizes = ["--region", "128M", "--working-set", "4M", "--neighbour-rounds", "5"];
    let shortest = [&["--seconds-per-cell", "0.001", "--json", path], &sizes[..]].concat();
    let cache = safe_folder("bench-clear");
    let output = bench_clear(cache.as_deref().unwrap_or(&folder), &shortest);
    assert!(output.status.success(), "{output:?}");

    let rows = rows(&json);
    let text = |row: &serde_json::Value, name: &str| row[name].as_str().map(str::to_owned);
    let cleared = rows.iter().filter(|row| row["use"] == "clear");
    let pairs: BTreeSet<_> =
        cleared.map(|row| (text(row, "engine"), row["size_bytes"].as_u64())).collect();
    let engines: BTreeSet<_> = pairs.iter().map(|(engine, _)| engine).collect();
    assert_eq!(pairs.len(), engines.len() * 4);
    assert!(engines.contains(&Some("portable".to_owned())));
    let others = ["engine", "overhead", "neighbour"];
    let usage = |row: &serde_json::Value| text(row, "use").expect("a use");
    let is_other = |row: &&serde_json::Value| others.contains(&usage(row).as_str());
    let cells: Vec<_> = rows.iter().filter(|row| !is_other(row)).collect();
    for row in &cells {
        assert!(row["gb_per_s"].as_f64() > Some(0.0), "{row}");
        assert!(row["ns_per_4kib"].as_f64() > Some(0.0), "{row}");
    }
    let of = |name: &str| rows.iter().filter(|row| row["use"] == name).collect::<Vec<_>>();
    let batched: BTreeSet<_> = of("engine").iter().map(|row| text(row, "engine")).collect();
    assert!(batched.contains(&Some("kernel".to_owned())), "{batched:?}");
    assert_eq!(batched.len(), of("engine").len());
    assert!(of("engine").iter().all(|row| row["cpu_s_per_gb"].as_f64() > Some(0.0)));
    assert!(of("overhead")[0]["ns_per_block"].as_f64() > Some(0.0));
    for row in of("neighbour") {
        assert!(row["zeroed_gb_per_s"].is_f64() && row["alone_lines_per_s"].is_f64(), "{row}");
        assert_eq!(row["working_set_bytes"], 4 << 20);
        let samples = row["samples"]["slowdown_percent"].as_array().expect("one a round");
        assert_eq!(samples.len(), 5, "{row}");
        let shares = row["processors_share"].as_str().expect("what they are");
        assert!(["nothing", "cache", "core"].contains(&shares), "{row}");
    }
    assert_eq!(rows.iter().filter(|row| row["use"] == "read").count(), 1);
    let table = stdout(&output);
    assert_eq!(table.lines().take_while(|line| !line.is_empty()).count(), cells.len() + 1);

    if let Some(cache) = cache {
        let kept = fs::read_dir(cache.join("pumice")).expect("a cache").count();
        assert_eq!(kept, 1);
    }
}

#[test]
fn bad_values_get_one_line() {
    let folder = std::env::temp_dir();
    for arguments in [
        ["--seconds-per-cell", "0"],
        ["--seconds-per-cell", "soon"],
        ["--region", "1M"],
        ["--region", "big"],
        ["--region", "1000T"],
        ["--json", "/nowhere/rows.jsonl"],
        ["--engine", "abacus"],
        ["--working-set", "1K"],
        ["--beside-gb-per-s", "0"],
        ["--neighbour-rounds", "1"],
    ] {
        let output = bench_clear(&folder, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_table_that_can_not_be_written_is_an_error_in_one_line() {
    let folder = folder("bench-clear-full");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut command = pumice(&["bench", "clear", "--seconds-per-cell", "0.001"]);
    let output = command.env("XDG_CACHE_HOME", &folder).stdout(full).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("pumice: can't write: No space left"), "{output:?}");
    assert!(!stderr(&output).contains("panicked"), "{output:?}");
}
