//! A program under `pumice run` behaves as it does without: status, signals, environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::support::{counters_of, folder, pumice, run_script, stderr, stdout};

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.expect("kill is installed").success());
}

/// `pumice run` of a script as the script's parent, which it is where it has something to do beside it.
fn child_script(script: &str) -> Command {
    pumice(&["run", "--report-file", "/dev/null", "--", "sh", "-c", script])
}

/// Both ways in which a script is run.
const WAYS: [fn(&str) -> Command; 2] = [run_script, child_script];

/// Starts a script under pumice and returns when it has written its first line.
fn start_and_wait_for_line(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("pumice starts");
    let (_, output) = crate::support::first_line(child.stdout.take());
    (child, output)
}

#[test]
fn the_status_is_the_programs() {
    for (way, status) in WAYS.into_iter().flat_map(|way| [0, 1, 2, 77, 255].map(|it| (way, it))) {
        let output = way(&format!("exit {status}")).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stderr.is_empty(), "{}", stderr(&output));
    }
}

#[test]
fn a_signals_death_is_the_programs() {
    for number in [2, 6, 9, 11, 13, 15] {
        let own = run_script(&format!("kill -{number} $$")).output().expect("pumice starts");
        assert_eq!(own.status.signal(), Some(number));
        let passed_on =
            child_script(&format!("kill -{number} $$")).output().expect("pumice starts");
        assert_eq!(passed_on.status.signal(), Some(number));
        assert!(!passed_on.status.core_dumped(), "one core is enough");
    }
}

#[test]
fn signals_reach_the_program() {
    let names = ["TERM", "INT", "HUP", "USR1", "QUIT", "ABRT"];
    for (way, name) in WAYS.into_iter().flat_map(|way| names.map(|name| (way, name))) {
        let script = format!("trap 'kill $!; echo {name}; exit 5' {name}; sleep 100 & echo; wait");
        let (mut child, mut output) = start_and_wait_for_line(way(&script));
        signal(name, child.id());
        assert_eq!(child.wait().expect("waited").code(), Some(5), "{name}");
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), name);
    }
    for way in WAYS {
        let (mut child, _output) = start_and_wait_for_line(way("echo; exec sleep 100"));
        signal("TERM", child.id());
        assert_eq!(child.wait().expect("waited").signal(), Some(15));
    }
}

/// A service's manager and a container know the program by the number of the process that they started.
#[test]
fn it_becomes_the_program() {
    let script = "echo $$; grep -c libpumice /proc/self/maps; echo ${PUMICE_TREE%.*.*}; exit 7";
    let mut command = run_script(script);
    // Those of another tree.
    let command = command.env("PUMICE_TREE", "1.2.3").env("PUMICE_STATS", "4");
    let child = command.stdout(Stdio::piped()).spawn().expect("pumice starts");
    let pid = child.id().to_string();
    let output = child.wait_with_output().expect("waited");
    assert_eq!(output.status.code(), Some(7));
    let said = stdout(&output);
    let [own, preloaded, leader] = *said.lines().collect::<Vec<_>>() else { panic!("{said}") };
    assert_eq!((own, leader), (&*pid, &*pid));
    assert_ne!(preloaded, "0", "the shim is loaded");
    // There is something to do beside it.
    for more in [&["--ready", "8M"][..], &["--report"]] {
        let line = ["--", "sh", "-c", "echo $PPID ${PUMICE_TREE-none}"];
        let mut command = pumice(&[&["run"], more, &line].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().expect("pumice starts");
        let pid = child.id();
        let output = child.wait_with_output().expect("waited");
        assert_eq!(stdout(&output), format!("{pid} none"));
    }
}

/// The plan that suits this machine is made once, and not by each program.
#[test]
fn the_engines_are_chosen_for_all_programs() {
    for more in [&[][..], &["--report-file", "/dev/null"]] {
        for engine in ["auto", "cpu", "kernel"] {
            let line = ["--engine", engine, "--", "sh", "-c", "echo $PUMICE_CLEAR"];
            let output = pumice(&[&["run"], more, &line].concat()).output().expect("pumice starts");
            let plan = stdout(&output);
            assert!(plan.matches('/').count() == 2, "{more:?} {engine}: {plan}");
        }
    }
}

/// As the first process of a container it has the children of processes that have ended.
#[test]
fn orphans_are_reaped() {
    let script = "for i in 1 2 3 4 5; do sh -c 'sleep 0.2 &'; done; sleep 1; \
                  grep -l '^State:.Z' /proc/[0-9]*/status | wc -l";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
    command.arg(env!("CARGO_BIN_EXE_pumice"));
    command.args(["run", "--report-file", "/dev/null", "--", "sh", "-c", script]);
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        other => {
            eprintln!("skipped: no namespace to be the first process of: {other:?}");
            return;
        }
    };
    assert_eq!(stdout(&output), "0", "{}", stderr(&output));
}

#[test]
fn killing_pumice_kills_the_program() {
    for way in WAYS {
        let (mut child, mut output) = start_and_wait_for_line(way("echo; exec sleep 100"));
        signal("KILL", child.id());
        child.wait().expect("waited");
        // The program holds the pipe's other end: this ends when it does.
        let mut rest = String::new();
        output.read_line(&mut rest).expect("the end of the pipe");
        assert_eq!(rest, "");
        assert!(counters_of(child.id()).is_empty(), "and nothing is left");
    }
}

#[test]
fn a_stopped_program_stops_pumice_and_goes_on() {
    let (mut child, _output) = start_and_wait_for_line(child_script("echo; kill -STOP $$; exit 9"));
    let stat = format!("/proc/{}/stat", child.id());
    let state = || {
        let stat = fs::read_to_string(&stat).expect("not reaped yet");
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    while state() != Some('T') {
        std::thread::yield_now();
    }
    signal("CONT", child.id());
    assert_eq!(child.wait().expect("waited").code(), Some(9));
}

#[test]
fn dispositions_are_inherited() {
    let ignored = |words: &str| {
        let script = "trap '' PIPE HUP; exec $0 sh -c 'grep SigIgn: /proc/self/status'";
        let mut command = Command::new("sh");
        command.args(["-c", &script.replace("$0", words)]);
        stdout(&command.output().expect("sh starts"))
    };
    let run = concat!(env!("CARGO_BIN_EXE_pumice"), " run");
    assert_eq!(ignored(&format!("{run} --")), ignored(""));
    assert_eq!(ignored(&format!("{run} --report-file /dev/null --")), ignored(""));
    for way in WAYS {
        let blocked = way("grep SigBlk: /proc/self/status").output().expect("pumice starts");
        assert!(stdout(&blocked).ends_with("0000000000000000"), "{}", stdout(&blocked));
    }
}

#[test]
fn what_was_preloaded_stays() {
    let output = run_script("echo $LD_PRELOAD; echo $ASAN_OPTIONS")
        .env("LD_PRELOAD", "/no/such/library.so")
        .env("ASAN_OPTIONS", "color=never")
        .output()
        .expect("pumice starts");
    let said = stdout(&output);
    let mut lines = said.lines();
    let preload = lines.next().expect("a line");
    let (shim, rest) = preload.split_once(':').expect("two libraries");
    assert!(shim.contains("libpumice-") && fs::metadata(shim).is_ok(), "{shim}");
    assert_eq!(rest, "/no/such/library.so");
    assert_eq!(lines.next(), Some("color=never:verify_asan_link_order=0"));
}

#[test]
fn flags_become_variables_and_win_over_them() {
    let arguments = [
        "run",
        "--threshold",
        "1M",
        "--decay",
        "2s",
        "--scrub-load",
        "1.5",
        "--scrub-stop=3",
        "--only",
        "sh,env",
        "--only=python3",
        "--skip",
        "cc",
        "--verify",
        "--pool-max",
        "8M",
        "--",
        "env",
    ];
    let output =
        pumice(&arguments).env("PUMICE_THRESHOLD", "2M").env("PUMICE_SCRUB_START", "5").output();
    let said = stdout(&output.expect("pumice starts"));
    for variable in [
        "PUMICE_THRESHOLD=1048576",
        "PUMICE_DECAY_MS=2000",
        "PUMICE_SCRUB_LOAD=1.5",
        "PUMICE_SCRUB_STOP=3",
        "PUMICE_SCRUB_START=5",
        "PUMICE_ONLY=sh,env,python3",
        "PUMICE_SKIP=cc",
        "PUMICE_VERIFY=1",
        "PUMICE_POOL_MAX=8388608",
    ] {
        assert!(said.lines().any(|line| line == variable), "no {variable} in:\n{said}");
    }
}

#[test]
fn the_programs_arguments_are_left_alone() {
    let script = ["run", "printf", "%s|", "--ready", "-x", "--", "a b", "--report"];
    let output = pumice(&script).output().expect("pumice starts");
    assert_eq!(stdout(&output), "--ready|-x|--|a b|--report|");
}

#[test]
fn reports_as_json() {
    let arguments = ["run", "--report=json", "--", "sh", "-c", "exit 4"];
    let output = pumice(&arguments).output().expect("pumice starts");
    assert_eq!(output.status.code(), Some(4));
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["exit_status"], 4);
    for name in [
        "requests",
        "request_bytes",
        "zfod",
        "ozfod",
        "hits",
        "misses",
        "scrubbed_bytes",
        "minor_faults",
        "pool_peak_bytes",
        "processes",
    ] {
        assert!(report[name].is_u64(), "{name} in {said}");
    }
    for name in ["scrubber_s", "user_s", "system_s", "wall_s"] {
        assert!(report[name].is_f64(), "{name} in {said}");
    }
    assert!(!report["not_served"].as_array().expect("a list").is_empty(), "{said}");
}

#[test]
fn reports_to_a_file_and_after_a_signal() {
    let folder = folder("report");
    let path = folder.join("report.txt");
    let path_text = path.to_str().expect("UTF-8");
    let script = ["run", "--report-file", path_text, "--", "sh", "-c", "kill -9 $$"];
    let output = pumice(&script).output().expect("pumice starts");
    assert_eq!(output.status.signal(), Some(9));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    let report = fs::read_to_string(&path).expect("a report");
    for word in ["zfod", "ozfod", "hits, misses", "scrubber CPU", "peak pool", "faults"] {
        assert!(report.contains(word), "{report}");
    }
}

#[test]
fn a_static_program_is_named_as_the_reason() {
    let folder = folder("static");
    let (source, program) = (folder.join("a.c"), folder.join("a"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("writable");
    let built = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).output();
    if !built.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no C compiler that links statically");
        return;
    }
    let arguments = ["run", "--report", "--", program.to_str().expect("UTF-8")];
    let output = pumice(&arguments).output().expect("pumice starts");
    assert!(stderr(&output).contains("linked statically"), "{}", stderr(&output));
}

#[test]
fn off_runs_the_program_all_the_same() {
    let output = run_script("echo $PUMICE").env("PUMICE", "off").output().expect("pumice starts");
    assert_eq!(stdout(&output), "off");
    assert!(output.status.success());
}
