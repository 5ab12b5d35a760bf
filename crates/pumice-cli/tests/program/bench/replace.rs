//! `pumice bench replace`: its output and its files, and its message about a bad trace.

use std::fmt::Write;
use std::fs;

use crate::support::{folder, pumice, rows, stderr, stdout};

#[test]
fn every_policy_has_its_rows() {
    let folder = folder("bench-replace");
    let trace = folder.join("loop.txt");
    let mut text = String::new();
    for step in 0..5000 {
        writeln!(text, "{}", step % 100).expect("a string grows");
    }
    fs::write(&trace, text).expect("a file");
    let (json, plot) = (folder.join("rows.jsonl"), folder.join("hits.svg"));
    let mut command = pumice(&["bench", "replace", "--frames", "1,50,100,1000", "--trace"]);
    command.arg(&trace).arg("--json").arg(&json).arg("--plot").arg(&plot);
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("two-list"), "{output:?}");
    let rows = rows(&json);
    assert_eq!(rows.len(), 7 * 4);
    let ratio = |policy: &str, frames: u64| {
        let row = rows.iter().find(|row| row["policy"] == policy && row["frames"] == frames);
        let row = row.unwrap_or_else(|| panic!("{policy} {frames}"));
        assert_eq!(row["trace"], "loop.txt");
        row["hit_ratio"].as_f64().expect("a number")
    };
    for policy in ["fifo", "lru", "clock", "2q", "two-list", "adaptive", "opt"] {
        assert_eq!(ratio(policy, 1), 0.0, "{policy}");
        // All pages fit: only first references miss.
        assert_eq!(ratio(policy, 100), 0.98, "{policy}");
        assert_eq!(ratio(policy, 1000), 0.98, "{policy}");
        assert!(ratio(policy, 50) <= ratio("opt", 50), "{policy}");
    }
    assert_eq!(ratio("lru", 50), 0.0);
    assert!(fs::read_to_string(&plot).expect("a picture").contains("adaptive"));
}

#[test]
fn a_curve_goes_up_to_all_pages_and_says_where_most_hits_begin() {
    let folder = folder("bench-replace-curve");
    let trace = folder.join("loop.txt");
    let text: String = (0..5000).map(|step| format!("{}\n", step % 100)).collect();
    fs::write(&trace, text).expect("a file");
    let json = folder.join("rows.jsonl");
    let mut command = pumice(&["bench", "replace", "--curve", "--trace"]);
    let output = command.arg(&trace).arg("--json").arg(&json).output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    // LRU has no hits in a loop until all of it is there.
    assert!(
        stdout(&output).contains("lru: 95 % of the hits that all memory gives, from 100 frames on")
    );
    let rows = rows(&json);
    let last = rows.last().expect("rows");
    assert_eq!((&last["policy"], last["frames"].as_u64()), (&"opt".into(), Some(100)));
    assert_eq!(last["hit_ratio"].as_f64(), Some(0.98));
    let mut command = pumice(&["bench", "replace", "--curve", "--frames", "10"]);
    assert_eq!(command.output().expect("pumice starts").status.code(), Some(2));
}

#[test]
fn a_curve_of_a_large_trace_says_what_it_is_of() {
    let folder = folder("bench-replace-large");
    let trace = folder.join("large.txt");
    let pages: String = (0..120_000).map(|step| format!("{}\n", step % 40_000)).collect();
    fs::write(&trace, format!("# share 1/16\n{pages}")).expect("a file");
    let mut command = pumice(&["bench", "replace", "--curve", "--only", "lru", "--trace"]);
    let output = command.arg(&trace).output().expect("pumice starts");
    let said = stdout(&output);
    let heading = "large.txt: 120000 references to 40000 pages, a sample of 1/16 of the pages; frames are for all \
                   pages; of these 1/2 are simulated; hits in percent";
    assert!(output.status.success() && said.contains(heading), "{said}");
}

#[test]
fn traces_are_made_up_where_there_is_none() {
    let folder = folder("bench-replace-made");
    let json = folder.join("rows.jsonl");
    let mut command = pumice(&["bench", "replace", "--frames", "4000", "--only", "lru,opt"]);
    let output = command.arg("--json").arg(&json).output().expect("pumice starts");
    assert!(output.status.success(), "{output:?}");
    let rows = fs::read_to_string(&json).expect("rows");
    let hits = |trace: &str, policy: &str| {
        let rows = rows.lines().map(serde_json::from_str::<serde_json::Value>);
        let mut rows = rows.map(|row| row.expect("an object a line"));
        let row = rows.find(|row| row["trace"] == trace && row["policy"] == policy);
        row.unwrap_or_else(|| panic!("{trace} {policy}"))["hit_pct"].as_f64().expect("a number")
    };
    assert_eq!(hits("loop", "lru"), 0.0);
    assert!(hits("loop", "opt") > 50.0);
    for trace in ["zipf", "scans", "phases"] {
        assert!(0.0 < hits(trace, "lru") && hits(trace, "lru") < hits(trace, "opt"), "{trace}");
    }
}

#[test]
fn compressed_traces_are_read() {
    let folder = folder("bench-replace-zstd");
    let trace = folder.join("pages.lis.zst");
    // zstd's frame of "1 3 0 0\n1 1 0 1\n", stored as it is.
    let text = b"1 3 0 0\n1 1 0 1\n";
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0x20, text.len() as u8];
    frame.extend([(text.len() as u8) << 3 | 1, 0, 0]);
    frame.extend(text);
    fs::write(&trace, &frame).expect("a file");
    let run = |path: &std::path::Path| {
        let mut command =
            pumice(&["bench", "replace", "--frames", "2", "--only", "lru,opt", "--trace"]);
        command.arg(path).output().expect("pumice starts")
    };
    let output = run(&trace);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("4 references to 3 pages"), "{output:?}");
    fs::write(&trace, &frame[..frame.len() - 3]).expect("a file");
    let output = run(&trace);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("can't read the trace"), "{output:?}");
}

#[test]
fn live_hits_are_near_the_simulated_ones() {
    let folder = folder("bench-replace-live");
    let trace = folder.join("loop.txt");
    // A loop that is kept in part, and a page between each two of it that is used all the time.
    let text: String = (0..15_000).map(|step| format!("{}\n9\n", 1000 + step % 300)).collect();
    fs::write(&trace, text).expect("a file");
    let run = |by: &str, json: &std::path::Path| {
        let mut command = pumice(&["bench", "replace", by, "--only", "lru,2q,two-list,adaptive"]);
        command.args(["--frames", "200,1000", "--trace"]).arg(&trace).arg("--json").arg(json);
        let output = command.output().expect("pumice starts");
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).contains("points lost"), "{output:?}");
        rows(json)
    };
    let direct = run("--live=direct", &folder.join("direct.jsonl"));
    for rows in [&direct, &run("--live", &folder.join("kswapd.jsonl"))] {
        assert_eq!(rows.len(), 2 * 4);
        for row in rows {
            let of = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} {row}"));
            // `kswapd` frees frames while others are taken, so the counts may be of two moments.
            assert!(of("live_hit_pct") >= 49.0 && of("most_pages") <= of("frames") * 1.02, "{row}");
            assert!((of("hit_pct") - of("live_hit_pct") - of("lost_points")).abs() < 1e-6);
            if row["policy"] == "adaptive" || of("frames") == 1000.0 {
                assert!(of("lost_points").abs() < 5.0, "{row}");
            }
            if of("frames") == 1000.0 {
                assert_eq!(of("misses"), 301.0, "{row}");
            }
        }
    }
    // Again the same, but for a few where other programs have the processor.
    let again = run("--live=direct", &folder.join("again.jsonl"));
    for (first, second) in direct.iter().zip(&again) {
        let misses = |row: &serde_json::Value| row["misses"].as_f64().expect("a number");
        assert!((misses(first) - misses(second)).abs() <= misses(first) / 50.0, "{first} {second}");
    }
}

#[test]
fn live_runs_have_limits() {
    for (arguments, wanted) in [
        (["--live", "--only", "opt"], "and not opt"),
        (["--live", "--frames", "63"], "and not 63"),
        (["--live=often", "--frames", "64"], "often"),
    ] {
        let output = pumice(&["bench", "replace"]).args(arguments).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn bad_input_is_answered_in_one_line() {
    let folder = folder("bench-replace-bad");
    let trace = folder.join("bad.txt");
    fs::write(&trace, "1\n2\nthree\n").expect("a file");
    let empty = folder.join("empty.txt");
    fs::write(&empty, "").expect("a file");
    let missing = folder.join("missing");
    for (path, frames, wanted) in [
        (&trace, "10", "line 3: 'three'"),
        (&empty, "10", "no references"),
        (&missing, "10", "missing"),
        (&trace, "0", "--frames"),
        (&trace, "x", "--frames"),
    ] {
        let mut command = pumice(&["bench", "replace", "--frames", frames, "--trace"]);
        let output = command.arg(path).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
    }
}
