//! The device by itself, by `fio`: io_uring, direct, as many requests as we ask for ahead.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::buffered::{empty, open};
use super::job::{Op, Request, CHUNK};
use pumice_bench::slot_daemon::die_with_us;
use pumice_bench::team::answer::Answer;
use pumice_command::{Explain, Failure};

/// Chunks of a sequence in flight.
const CHUNKS: usize = 4;
/// The job that writes beside those that read.
const WRITER: &str = "writer";

/// Whether there is one.
pub fn is_installed() -> bool {
    let mut command = Command::new("fio");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// An operation on a file of its own.
pub fn run(file: &Path, bytes: u64, depth: usize, request: &Request) -> Result<Answer, Failure> {
    let Request { op, threads, seconds, seed } = *request;
    if op == Op::Out {
        let path = file.to_string_lossy();
        open(&path).and_then(|file| empty(&file, bytes)).map_err(Failure::system)?;
    }
    let (rw, size, depth) = match op {
        Op::Out => ("write", CHUNK, CHUNKS),
        Op::Rewrite => ("rw", CHUNK, CHUNKS),
        Op::In => ("read", CHUNK, CHUNKS),
        Op::Random | Op::RandomBeside => ("randread", 4096, 1),
        _ => ("randread", 4096, depth),
    };
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--name=global", "--ioengine=io_uring", "--direct=1"]);
    command.args(["--thread=1", "--fallocate=none", "--allow_file_create=0", "--end_fsync=1"]);
    command.args(["--invalidate=0", "--norandommap=1"]);
    command.arg(format!("--filename={}", file.display()));
    command.args([format!("--size={bytes}"), format!("--randseed={}", seed + 1)]);
    if !op.is_sequential() {
        command
            .args(["--time_based=1".to_owned(), format!("--runtime={}ms", (seconds * 1e3) as u64)]);
    }
    command.args(["--name=pumice".to_owned(), format!("--rw={rw}"), format!("--bs={size}")]);
    command.args([format!("--iodepth={depth}"), format!("--numjobs={threads}")]);
    if op == Op::RandomBeside {
        command.args([
            format!("--name={WRITER}"),
            "--rw=write".to_owned(),
            format!("--bs={CHUNK}"),
        ]);
        command.arg(format!("--iodepth={CHUNKS}"));
        // Durable after each pass, as the others make it.
        command.arg(format!("--fdatasync={}", (bytes / CHUNK as u64).max(1)));
    }
    let output = die_with_us(&mut command).stdin(Stdio::null()).output();
    let output = output.or_fail("can't start fio")?;
    let said = String::from_utf8_lossy(&output.stdout);
    answer(op, &said).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        Failure::system(format!("fio failed: {}", error.lines().next().unwrap_or("no report")))
    })
}

/// The figures of its report; warnings may come before it.
fn answer(op: Op, said: &str) -> Option<Answer> {
    let report: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let mut answer = Answer::default();
    for job in report["jobs"].as_array()? {
        if job["error"].as_i64()? != 0 {
            return None;
        }
        if job["jobname"] == WRITER {
            answer.beside_bytes += job["write"]["io_bytes"].as_u64()?;
            continue;
        }
        let directions = [&job["read"], &job["write"]];
        let sum = |of: &str| directions.iter().filter_map(|it| it[of].as_u64()).sum::<u64>();
        let seconds = job["job_runtime"].as_f64()? / 1e3;
        let percent = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
        let at = |percentile: &str| {
            // fio tells the upper end of a range of times, which may lie above the longest one.
            let ns = |it: &&Value| {
                let times = &it["clat_ns"];
                Some(times["percentile"][percentile].as_f64()?.min(times["max"].as_f64()?))
            };
            directions.iter().filter_map(ns).fold(0.0, f64::max) / 1e3
        };
        let longest = directions.iter().filter_map(|it| it["clat_ns"]["max"].as_f64());
        answer.accesses += sum("total_ios");
        answer.bytes += sum("io_bytes");
        answer.pages_in += job["read"]["io_bytes"].as_u64()? / 4096;
        answer.seconds = answer.seconds.max(seconds);
        answer.cpu_s += percent / 100.0 * seconds;
        answer.p50_us = answer.p50_us.max(at("50.000000"));
        answer.p99_us = answer.p99_us.max(at("99.000000"));
        answer.max_us = longest.fold(answer.max_us, |most, ns| most.max(ns / 1e3));
    }
    if op == Op::Rewrite {
        // It reads as much as it writes, and together that is the file once.
        (answer.bytes, answer.accesses) = (answer.bytes / 2, answer.accesses / 2);
    }
    (answer.seconds > 0.0).then_some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let job = r#"{"error": 0, "job_runtime": 2000, "usr_cpu": 5.0, "sys_cpu": 20.0,
            "read": {"io_bytes": 8192000, "total_ios": 2000,
                     "clat_ns": {"max": 9000, "percentile": {"50.000000": 1000, "99.000000": 5000}}},
            "write": {"io_bytes": 0, "total_ios": 0, "clat_ns": {"max": 0}}}"#;
        let answer = answer(Op::RandomAhead, &format!("a note\n{{\"jobs\": [{job}, {job}]}}"));
        let answer = answer.expect("a report");
        assert_eq!((answer.accesses, answer.pages_in, answer.seconds), (4000, 4000, 2.0));
        assert_eq!((answer.cpu_s, answer.p99_us, answer.max_us), (1.0, 5.0, 9.0));
    }

    #[test]
    fn no_share_of_accesses_takes_longer_than_the_longest() {
        let said = r#"{"jobs": [{"error": 0, "job_runtime": 1000, "usr_cpu": 1.0, "sys_cpu": 1.0,
            "read": {"io_bytes": 0, "total_ios": 0, "clat_ns": {"max": 0}},
            "write": {"io_bytes": 8192, "total_ios": 2,
                      "clat_ns": {"max": 18912025, "percentile": {"50.000000": 8372224, "99.000000": 19005440}}}}]}"#;
        let answer = answer(Op::Out, said).expect("a report");
        assert_eq!((answer.p50_us, answer.p99_us, answer.max_us), (8372.224, 18912.025, 18912.025));
    }

    #[test]
    fn what_is_no_report_is_none() {
        for said in ["", "{", "fio: failed", "{\"jobs\": 3}", "{\"jobs\": [{\"error\": 5}]}"] {
            assert!(answer(Op::In, said).is_none(), "{said}");
        }
    }
}
