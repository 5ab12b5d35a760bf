//! `pumice estimate` on programs whose faults are known, and on what is no program.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::shim::compile;
use crate::support::{folder, pumice, stderr, stdout};

/// Runs it with `--json`. Returns its output, and the object.
fn estimate(name: &str, options: &[&str], program: &[&str]) -> (Output, Value) {
    let folder = folder(name);
    let file = folder.join("estimate.json");
    let json = file.to_str().expect("a path of letters");
    let mut command = pumice(&["estimate", "--json", json]);
    let output = command.args(options).arg("--").args(program).output().expect("it runs");
    let text = std::fs::read_to_string(&file).expect("written");
    assert_eq!(text.lines().count(), 1, "one object");
    (output, serde_json::from_str(&text).expect("JSON"))
}

fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {object}"))
}

/// Whether this machine lets faults be told apart; says so where it does not.
fn is_split(object: &Value) -> bool {
    let is_split = object["split"] == true && object["sees_system_calls"] == true;
    if !is_split {
        eprintln!("skipped: perf_event_open is not allowed here");
    }
    is_split
}

fn faults() -> String {
    compile("faults").to_str().expect("a path of letters").to_owned()
}

fn has_huge_pages() -> bool {
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    std::fs::read_to_string(path).is_ok_and(|text| !text.contains("[never]"))
}

/// All but a few at the program's start and end, and what the sampling misses.
fn is_about(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 200.0 + expected / 500.0
}

#[test]
fn known_faults_are_counted() {
    let program = faults();
    for pages in [1, 1000, 100_000] {
        let (output, object) =
            estimate("estimate-small", &[], &[&program, "small", &pages.to_string()]);
        assert!(output.status.success(), "{}", stderr(&output));
        if !is_split(&object) {
            return;
        }
        assert!(is_about(number(&object, "zfod"), f64::from(pages)), "{object}");
        assert!(is_about(number(&object, "served_small"), f64::from(pages)), "{object}");
        let counted = object["translation_s"]["low"].as_f64().expect("a number");
        let most = number(&object, "system_s") + counted;
        assert!(number(&object, "bound_s") <= most + 1e-9, "{object}");
        // Looked up now and then: less than there was, if it was there for long enough.
        let over_huge = object["bound_over_huge_s"]["high"].as_f64().expect("a number");
        assert!(over_huge <= number(&object, "bound_s"), "{object}");
    }
}

#[test]
fn huge_ones_copies_and_heaps_are_told_apart() {
    let program = faults();
    if has_huge_pages() {
        let (_, object) = estimate("estimate-huge", &[], &[&program, "huge", "50"]);
        // In a fragmented machine some come as small ones.
        let small = number(&object, "zfod_small");
        let huge = number(&object, "zfod_huge");
        let is_right = huge > 0.0 && (huge + small / 512.0 - 50.0).abs() < 3.0;
        assert!(!is_split(&object) || is_right, "{object}");
    }
    let (_, object) = estimate("estimate-fork", &[], &[&program, "fork", "20000"]);
    if !is_split(&object) {
        return;
    }
    assert!(is_about(number(&object, "copied"), 20_000.0), "{object}");
    assert!(is_about(number(&object, "zfod"), 20_000.0), "{object}");
    let (_, object) = estimate("estimate-heap", &[], &[&program, "heap", "20000"]);
    assert!(is_about(number(&object, "heap_small"), 20_000.0), "{object}");
    assert!(number(&object, "served_small") < 200.0, "{object}");
}

#[test]
fn little_is_not_worth_it_and_much_is() {
    let (output, object) = estimate("estimate-nothing", &[], &["sleep", "0.3"]);
    assert_eq!(object["verdict"], "dont-bother", "{object}");
    assert!(stderr(&output).contains("don't bother"), "{}", stderr(&output));
    let (output, object) = estimate("estimate-much", &[], &[&faults(), "small", "100000"]);
    assert_eq!(object["verdict"], "try", "{object}");
    assert!(stderr(&output).contains("pumice run -- "), "{}", stderr(&output));
}

#[test]
fn all_ways_are_tried_and_output_is_shown_once() {
    let script = "echo once; exit 0";
    let (output, object) =
        estimate("estimate-try", &["--try", "--runs", "2"], &["sh", "-c", script]);
    assert_eq!(stdout(&output), "once");
    assert_eq!(number(&object, "runs"), 2.0);
    for saved in [&object, &object["mmap_saved"], &object["mmap_over_run"]] {
        assert!(number(saved, "saved_low_s") <= number(saved, "saved_s"), "{object}");
        assert!(number(saved, "saved_s") <= number(saved, "saved_high_s"), "{object}");
    }
    assert!(number(&object, "mmap_s") > 0.0, "{object}");
    for said in ["tried ", "under pumice run --mmap"] {
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    check_schema(&object);
}

/// A field, and what it is: n a number, r a range or a cost, b a truth, s words; ? if it may be null.
const SCHEMA: [(&str, &str); 45] = [
    ("program", "s"),
    ("exit_status", "n?"),
    ("signal", "n?"),
    ("wall_s", "n"),
    ("user_s", "n"),
    ("system_s", "n"),
    ("peak_resident_bytes", "n"),
    ("zfod", "n"),
    ("zfod_small", "n"),
    ("zfod_huge", "n"),
    ("served_small", "n"),
    ("served_huge", "n"),
    ("heap_small", "n"),
    ("heap_huge", "n"),
    ("copied", "n"),
    ("file", "n"),
    ("split", "b"),
    ("sees_system_calls", "b"),
    ("lost_records", "n"),
    ("small_fault_ns", "r"),
    ("huge_fault_ns", "r?"),
    ("small_written_ns", "r"),
    ("huge_written_ns", "r?"),
    ("touch_ns", "r"),
    ("fill_gb_s", "r"),
    ("served_bytes", "n"),
    ("zeroing_s", "n"),
    ("faults_s", "r"),
    ("written_s", "r"),
    ("first_bytes", "n"),
    ("first_s", "r"),
    ("spread", "n"),
    ("kernel_s", "n?"),
    ("huge_alone_s", "n"),
    ("translation_s", "r"),
    ("small_step_ns", "r?"),
    ("huge_step_ns", "r?"),
    ("tlb_misses", "n?"),
    ("bound_s", "n"),
    ("bound_share", "n"),
    ("bound_range_s", "r"),
    ("bound_over_huge_s", "r"),
    ("verdict", "s"),
    // With --try.
    ("runs", "n?"),
    ("plain_s", "n?"),
];

fn check_schema(object: &Value) {
    let is_range = |value: &Value| {
        let ends = ["low", "middle", "high"].map(|end| value[end].as_f64());
        matches!(ends, [Some(low), Some(middle), Some(high)] if low <= middle && middle <= high)
    };
    for (name, kind) in SCHEMA {
        let value = &object[name];
        let is_right = match kind.as_bytes()[0] {
            b'n' => value.as_f64().is_some_and(|it| it >= 0.0),
            b'r' => is_range(value),
            b'b' => value.is_boolean(),
            _ => value.is_string(),
        };
        assert!(is_right || (kind.ends_with('?') && value.is_null()), "{name}: {object}");
    }
    let known = |name: &String| SCHEMA.iter().any(|(known, _)| known == name);
    let tried = [
        "pumice_s",
        "saved_s",
        "saved_low_s",
        "saved_high_s",
        "mmap_s",
        "mmap_saved",
        "mmap_over_run",
    ];
    for name in object.as_object().expect("an object").keys() {
        assert!(known(name) || tried.contains(&name.as_str()), "{name} is not in the schema");
    }
}

#[test]
fn whatever_a_program_does_there_is_an_estimate() {
    let program = faults();
    let forks = format!("for i in 1 2 3; do ( {program} small 3000 ) & done; wait");
    let executes = format!("{program} small 2000; exec {program} small 5000");
    for (name, script, expected) in
        [("forks", &*forks, 9000.0), ("executes", &executes, 7000.0), ("crashes", "", 4000.0)]
    {
        let crashes = format!("{program} small 4000; kill -SEGV $$");
        let script = if script.is_empty() { &*crashes } else { script };
        let (output, object) = estimate(&format!("estimate-{name}"), &[], &["sh", "-c", script]);
        check_schema(&object);
        let is_crash = name == "crashes";
        assert_eq!(output.status.signal(), is_crash.then_some(libc::SIGSEGV), "{name}");
        assert_eq!(object["signal"].as_i64(), is_crash.then_some(i64::from(libc::SIGSEGV)));
        if is_split(&object) {
            let served = number(&object, "served_small");
            assert!((served - expected).abs() <= 600.0, "{name}: {object}");
        }
    }
}

#[test]
fn it_ends_as_the_program_does() {
    let (output, object) = estimate("estimate-end", &[], &["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(object["exit_status"], 7);
    let output = pumice(&["estimate", "no-such-program"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    let output = pumice(&["estimate", "--runs", "3", "true"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}
