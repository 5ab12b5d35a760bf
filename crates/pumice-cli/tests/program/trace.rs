//! `pumice trace` on programs whose working set is known, and on what is no program.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

use crate::shim::compile;
use crate::support::{folder, pumice, rows, stderr, stdout, Folder};

fn touches() -> String {
    compile("touches").to_str().expect("a path of letters").to_owned()
}

fn untroubled() -> String {
    compile("untroubled").to_str().expect("a path of letters").to_owned()
}

/// The trace, among the words of a program.
const TRACE: &str = "TRACE";

struct Traced {
    output: Output,
    summary: Value,
    folder: Folder,
}

impl Traced {
    fn number(&self, key: &str) -> u64 {
        self.summary[key].as_u64().unwrap_or_else(|| panic!("no {key} in {}", self.summary))
    }
}

/// Runs a command that may hang: it is killed then.
fn run(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it runs");
    let pid = child.id() as libc::pid_t;
    let (done, is_done) = channel::<()>();
    let watcher = std::thread::spawn(move || {
        // Not by one long pause: all may be stopped for long.
        for _ in 0..6000 {
            if is_done.recv_timeout(Duration::from_millis(20)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
        // SAFETY: a plain system call, on a child that is not waited for before this thread has ended.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    });
    let output = child.wait_with_output().expect("ours");
    drop(done);
    watcher.join().expect("it does not panic");
    output
}

/// Traces a program. `None` where this machine does not allow it, after saying so.
fn trace(options: &[&str], program: &[&str]) -> Option<Traced> {
    let folder = folder("trace");
    let mut command = pumice(&["trace", "--out"]);
    command.arg(folder.join("t")).arg("--json").arg(folder.join("json"));
    let file = folder.join("t");
    let words =
        program.iter().map(|&word| if word == TRACE { file.as_os_str() } else { word.as_ref() });
    let output = run(command.args(options).arg("--").args(words));
    let said = stderr(&output);
    for reason in ["runs on x86-64", "no program may be stopped", "does not tell which pages"] {
        if said.contains(reason) {
            eprintln!("skipped: {said}");
            return None;
        }
    }
    let summary = rows(&folder.join("json")).pop().unwrap_or_else(|| panic!("no summary: {said}"));
    let is_watched = ["blind_processes", "looks_without_stop"].iter().all(|it| summary[it] == 0);
    if !is_watched && summary["references"] == 0 {
        eprintln!("skipped: no thread may be stopped here: {summary}");
        return None;
    }
    Some(Traced { output, summary, folder })
}

/// The share of hits with so many frames under LRU, as `bench replace` has it.
fn lru_hits(folder: &Path, frames: [u64; 3]) -> [f64; 3] {
    let json = folder.join("rows");
    let list = frames.map(|frames| frames.to_string()).join(",");
    let mut command = pumice(&["bench", "replace", "--only", "lru", "--frames", &list]);
    let output = command.arg("--trace").arg(folder.join("t")).arg("--json").arg(&json).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("a sample of 1/"), "{}", stdout(&output));
    let rows = rows(&json);
    frames.map(|frames| {
        let row = rows.iter().find(|row| row["frames"] == frames).expect("a row");
        row["hit_ratio"].as_f64().expect("a number")
    })
}

/// Leaves out the first intervals of a trace.
fn cut(trace: &Path, intervals: usize) {
    let text = fs::read_to_string(trace).expect("a trace");
    let is_end = |line: &&str| line.starts_with("# until");
    let head = text.lines().take_while(|line| !is_end(line));
    let mut to_skip = intervals;
    let rest = text.lines().skip_while(|line| {
        let is_first = is_end(line) && to_skip == 0;
        to_skip -= usize::from(is_end(line) && !is_first);
        !is_first
    });
    let lines: Vec<&str> = head.chain(rest).collect();
    fs::write(trace, lines.join("\n") + "\n").expect("a file");
}

#[test]
fn a_loop_has_its_knee_at_its_size() {
    // 1,024 pages of the sample, off by 3 % in the usual case, and some 50 of the program and its libraries.
    let (pages, set) = ("8192", 4096);
    let (program, count) = (touches(), 6);
    let words = [&*program, "loop", pages, &set.to_string(), "0", TRACE, &count.to_string()];
    let Some(traced) = trace(&["--share", "1/4", "--most", "8192"], &words) else { return };
    let said = stdout(&traced.output);
    let begun = said.strip_suffix("done").and_then(|begun| begun.trim().parse::<usize>().ok());
    let begun = begun.unwrap_or_else(|| panic!("{said} {}", stderr(&traced.output)));
    assert_eq!(traced.number("one_in"), 4, "{}", traced.summary);
    // The pages that are touched once only come before, or in the interval in which the loop begins.
    cut(&traced.folder.join("t"), begun + 1);
    let [low, high, all] = lru_hits(&traced.folder, [set * 9 / 10, set * 5 / 4, 1 << 20]);
    assert!(low < 0.1 * all, "{low} {high} {all}: {}", traced.summary);
    assert!(high > 0.9 * all && all > 0.6, "{low} {high} {all}: {}", traced.summary);
    let bytes = traced.number("bytes") as f64 / (8192.0 * 4096.0);
    assert!((0.85..1.2).contains(&bytes), "{}", traced.summary);
}

#[test]
fn the_share_is_halved_where_pages_are_too_many() {
    let words = [&*touches(), "loop", "16384", "8192", "2000"];
    let Some(traced) = trace(&["--share", "1/4", "--most", "256"], &words) else { return };
    let text = fs::read_to_string(traced.folder.join("t")).expect("a trace");
    let shares: Vec<_> = text.lines().filter(|line| line.starts_with("# share")).collect();
    assert!(shares.len() > 4 && traced.number("one_in") >= 64, "{shares:?}");
    let bytes = traced.number("bytes") as f64 / (16_384.0 * 4096.0);
    assert!((0.7..1.4).contains(&bytes), "{}", traced.summary);
    let [none, _, all] = lru_hits(&traced.folder, [64, 128, 1 << 20]);
    assert!(none < 0.1 && (all > 0.4 || traced.number("intervals") < 6), "{none} {all}");
}

#[test]
fn children_programs_and_threads_are_followed() {
    let program = touches();
    let execs = [&*program, "exec", &program, "loop", "4096", "4096", "1500"];
    let threads = [&*program, "threads", "1024", "1500"];
    for words in [&execs[..], &threads] {
        let Some(traced) = trace(&["--share", "1/8"], words) else { return };
        assert!(traced.output.status.success(), "{}", stderr(&traced.output));
        assert!(traced.number("bytes") > 8 << 20, "{words:?} {}", traced.summary);
    }
    let Some(traced) = trace(&["--share", "1/8"], &[&program, "fork", "4096", "1500"]) else {
        return;
    };
    assert_eq!(traced.output.status.code(), Some(3));
    assert!(traced.number("bytes") > 8 << 20 && traced.number("spaces") >= 2, "{}", traced.summary);
}

#[test]
fn waits_are_not_interrupted() {
    // A thread that enters a call at the very moment of a stop is interrupted (docs/trace.md): seldom.
    let mut said = String::new();
    for _ in 0..4 {
        let Some(traced) = trace(&[], &[&touches(), "sleepy", "512", "1500"]) else { return };
        if traced.output.status.success() {
            return;
        }
        said = stderr(&traced.output);
    }
    panic!("{said}");
}

#[test]
fn signals_calls_and_masks_are_as_without() {
    let program = compile("undisturbed");
    let program = program.to_str().expect("a path of letters");
    let Some(traced) = trace(&["--most", "256"], &[program, "1500"]) else { return };
    assert!(traced.output.status.success(), "{}", stdout(&traced.output));
}

#[test]
fn it_ends_as_the_program_does() {
    for (script, status, signal) in
        [("exit 7", Some(7), None), ("sleep 0.2; kill -SEGV $$", None, Some(libc::SIGSEGV))]
    {
        let Some(traced) = trace(&[], &["sh", "-c", script]) else { return };
        assert_eq!(traced.output.status.code(), status);
        assert_eq!(traced.output.status.signal(), signal);
        assert_eq!(traced.summary["exit_status"].as_i64(), status.map(i64::from));
        assert_eq!(traced.summary["signal"].as_i64(), signal.map(i64::from));
    }
}

#[test]
fn a_trace_is_good_when_its_writer_was_killed() {
    let folder = folder("trace-killed");
    let mut command = pumice(&["trace", "--out"]);
    command.arg(folder.join("t")).args(["--", &touches(), "loop", "4096", "4096", "60000"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let is_there = || {
        let text = fs::read_to_string(folder.join("t")).unwrap_or_default();
        text.lines().filter(|line| !line.starts_with('#')).count() > 500
    };
    for _ in 0..600 {
        if is_there() || child.try_wait().expect("ours").is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().expect("ours");
    let output = child.wait_with_output().expect("ended");
    if output.status.signal() != Some(libc::SIGKILL) || !is_there() {
        eprintln!("skipped: no trace here: {}", stderr(&output));
        return;
    }
    lru_hits(&folder, [1, 2, 3]);
}

#[test]
fn threads_that_end_while_they_are_stopped_are_waited_for() {
    let program = untroubled();
    let options = ["--share", "1/2", "--most", "16384"];
    for how in ["kills", "exits", "execs"] {
        let Some(traced) = trace(&options, &[&program, how, "1500"]) else { return };
        assert_eq!(stdout(&traced.output), "done", "{how}: {:?}", traced.output);
    }
    for _ in 0..8 {
        let Some(traced) = trace(&options, &[&program, "exit"]) else { return };
        assert_eq!(traced.output.status.code(), Some(7), "{:?}", traced.output);
    }
}

#[test]
fn threads_under_seccomp_are_left_alone() {
    for (how, number) in [("strict", "50000"), ("filter", "700")] {
        let Some(traced) = trace(&[], &[&untroubled(), how, number]) else { return };
        assert_eq!(stdout(&traced.output), "done", "{how}: {:?}", traced.output);
    }
}

#[test]
fn pages_that_a_program_keeps_out_of_core_files_stay_so() {
    let options = ["--share", "1/2", "--most", "64"];
    let Some(traced) = trace(&options, &[&untroubled(), "secrets"]) else { return };
    assert!(traced.number("one_in") > 2, "{}", traced.summary);
    assert_eq!(stdout(&traced.output), "done", "{:?}", traced.output);
}

#[test]
fn memory_that_userfaultfd_fills_stays_one_mapping() {
    let Some(traced) = trace(&["--share", "1/4"], &[&untroubled(), "filled"]) else { return };
    if traced.output.status.code() == Some(2) {
        eprintln!("skipped: no userfaultfd here");
        return;
    }
    assert_eq!(stdout(&traced.output), "done", "{:?}", traced.output);
}

#[test]
fn a_thread_that_waits_in_select_is_not_interrupted() {
    // One that enters it at the very moment of a stop is: seldom.
    let mut last = None;
    for _ in 0..4 {
        let Some(traced) = trace(&[], &[&untroubled(), "selects", "8"]) else { return };
        if stdout(&traced.output) == "done" {
            return;
        }
        last = Some(traced.output);
    }
    panic!("{last:?}");
}

#[test]
fn a_process_whose_main_thread_has_ended_is_watched() {
    let Some(traced) = trace(&[], &[&untroubled(), "leader", "800"]) else { return };
    assert_eq!(traced.output.status.code(), Some(5));
    let watched = traced.number("bytes");
    assert!(watched > 8 << 20 && traced.number("blind_processes") == 0, "{}", traced.summary);
}

#[test]
fn a_program_that_executes_itself_has_a_space_each_time() {
    let Some(traced) = trace(&["--most", "64"], &[&untroubled(), "again", "3"]) else { return };
    if traced.output.status.code() == Some(2) {
        eprintln!("skipped: no fixed addresses here");
        return;
    }
    assert_eq!(stdout(&traced.output), "done", "{:?}", traced.output);
    assert!((3..=5).contains(&traced.number("spaces")), "{}", traced.summary);
}

#[test]
fn a_trace_may_go_to_a_pipe_that_is_read() {
    let words = ["trace", "--overwrite", "--out", "/dev/stdout", "--", "true"];
    let output = run(&mut pumice(&words));
    let said = stderr(&output);
    if said.contains("runs on x86-64") || said.contains("no program may be stopped") {
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(stdout(&output).starts_with("# pumice trace: "), "{}", stdout(&output));
}

#[test]
fn bad_input_is_one_line_and_starts_nothing() {
    let folder = folder("trace-bad");
    let (old, mark) = (folder.join("old"), folder.join("mark"));
    fs::write(&old, "mine").expect("a file");
    let unread = folder.join("unread");
    let name = std::ffi::CString::new(unread.to_str().expect("letters")).expect("no zeros");
    // SAFETY: the name is valid for the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let paths = [&old, &mark, &unread];
    let [old, mark, unread] = paths.map(|path| path.to_str().expect("a path of letters"));
    let new = folder.join("new");
    let new = new.to_str().expect("a path of letters");
    for (options, parts) in [
        (&["--share", "1/3"][..], &["1/3", "1/16"][..]),
        (&["--share", "0.5"], &["1/16"]),
        (&["--interval", "10"], &["500ms"]),
        (&["--interval", "0"], &["--interval 10ms"]),
        (&["--pages", "8k"], &["4k", "2m"]),
        (&["--most", "3"], &["16384"]),
        (&["--out", "/no/such/folder/t"], &["/no/such/folder/t"]),
        (&["--out", old], &["--overwrite"]),
        (&["--overwrite", "--out", unread], &["nobody reads"]),
        (&["--out", "t.zst"], &["zstd"]),
        (&["--out", "/proc/t"], &["/proc/t"]),
        (&["--json", "/no/such/folder/j"], &["/no/such/folder/j"]),
    ] {
        let mut command = pumice(&["trace"]);
        if !options.contains(&"--out") {
            command.args(["--out", new]);
        }
        let output = run(command.args(options).args(["--", "touch", mark]));
        let said = stderr(&output);
        if said.contains("runs on x86-64") {
            return;
        }
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{options:?}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{options:?}: {said}");
        assert!(!Path::new(mark).exists() && !Path::new(new).exists(), "{options:?}");
    }
    assert_eq!(fs::read_to_string(old).expect("a file"), "mine");
    // A file that was made for a program that does not exist goes again.
    let output = pumice(&["trace", "--out", new, "no-such-program"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(!Path::new(new).exists());
}
