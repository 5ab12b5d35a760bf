//! `pumice bench pin --cuda` and `bench clear --engine cuda`, over a library that stands in for NVIDIA's driver: their
//! output and their files, not how fast anything is.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{folder, objects, pumice, stderr, Folder};

/// A folder with a `libcuda.so.1` in it; `None` without a C compiler.
fn folder_with_fake(name: &str) -> Option<Folder> {
    let folder = folder(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pumice-accel/src/cuda/fake.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(source);
    if compiler.status().is_ok_and(|status| status.success()) {
        return Some(folder);
    }
    eprintln!("skipped: no C compiler");
    None
}

fn rows(folder: &Path, arguments: &[&str]) -> (Output, Vec<serde_json::Value>) {
    let json = folder.join("rows.jsonl");
    let mut command = pumice(arguments);
    command.arg("--json").arg(&json).env("LD_LIBRARY_PATH", folder).env("XDG_CACHE_HOME", folder);
    let output = command.output().expect("pumice starts");
    (output, objects(&fs::read_to_string(&json).unwrap_or_default()))
}

#[test]
fn pools_are_registered_and_compared_with_the_drivers_own_memory() {
    let Some(folder) = folder_with_fake("pin") else { return };
    let (output, rows) =
        rows(&folder, &["bench", "pin", "--cuda", "--sizes", "4M", "--rounds", "1"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["experiment"], &rows[0]["pin"]), (&"pool".into(), &"cuda".into()));
    for figure in ["pool_s", "mmap_s", "host_alloc_s", "times_faster", "prepare_s", "rezero_s"] {
        assert!(rows[0][figure].as_f64() > Some(0.0), "{figure}: {}", rows[0]);
    }
}

#[test]
fn a_gpu_zeroes_batches_where_it_is_named_and_only_there() {
    let Some(folder) = folder_with_fake("clear") else { return };
    let shortest = [
        "bench",
        "clear",
        "--seconds-per-cell",
        "0.001",
        "--region",
        "128M",
        "--working-set",
        "4M",
    ];
    let engines = |arguments: &[&str]| -> Vec<String> {
        let (output, rows) = rows(&folder, &[&shortest[..], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        let batches = rows.iter().filter(|row| row["experiment"] == "batches");
        batches.map(|row| row["engine"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(engines(&["--engine", "cuda"]), ["cuda"]);
    assert!(!engines(&[]).contains(&"cuda".to_owned()));
}

#[test]
fn without_a_driver_it_says_so_in_one_line() {
    for (arguments, part) in [
        (&["bench", "pin", "--cuda", "--sizes", "4M"][..], "leave out --cuda"),
        (
            &[
                "bench",
                "clear",
                "--engine",
                "cuda",
                "--region",
                "128M",
                "--seconds-per-cell",
                "0.001",
            ],
            "--engine cuda is not here",
        ),
        (&["run", "--engine", "cuda", "--", "true"], "type --engine cpu"),
    ] {
        let output = pumice(arguments).output().expect("pumice starts");
        let said = stderr(&output);
        if output.status.success() {
            eprintln!("skipped: this machine has an NVIDIA driver");
            continue;
        }
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
