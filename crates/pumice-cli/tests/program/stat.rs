//! `pumice stat` beside programs that run, and over files that are none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::served::{end, python, python_by, served};
use crate::support::{pumice, stderr, stdout};

/// The object of one process.
fn object(pid: u32) -> Value {
    let output = stat(&["--json", &pid.to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one object")
}

/// Every field is there, each of its kind, and no other.
fn check_schema(object: &Value, is_watched: bool) {
    let numbers = [
        "time_s",
        "run_pid",
        "uid",
        "pid",
        "pool_bytes",
        "tree_pool_bytes",
        "tree_pool_peak_bytes",
        "tree_pool_max_bytes",
        "scrubber_s",
    ];
    let events = pumice_heap::stats::Event::ALL.map(|event| event.name());
    let may_be_null = [
        "zeroed_bytes",
        "unzeroed_bytes",
        "absent_bytes",
        "in_use_bytes",
        "hit_rate",
        "zeroed_rate",
    ];
    let of_changes = [
        "requests_per_s",
        "recent_hit_rate",
        "zfod_per_s",
        "scrubbed_bytes_per_s",
        "hot_cleared_bytes_per_s",
        "scrubber_cpu",
    ];
    let is_number = |name: &&str| object[*name].as_f64().is_some_and(|it| it >= 0.0);
    let is_null = |name: &&str| object.get(*name).is_some_and(Value::is_null);
    for name in numbers.iter().chain(&events) {
        assert!(is_number(name), "{name}: {object}");
    }
    let changes = if is_watched { &of_changes[..] } else { &[] };
    for name in may_be_null.iter().chain(changes) {
        assert!(is_number(name) || is_null(name), "{name}: {object}");
    }
    assert!(object["program"].is_string(), "{object}");
    assert!(object["reason"].is_string() || is_null(&"reason"), "{object}");
    let known = numbers.iter().chain(&events).chain(&may_be_null).chain(changes);
    let known: Vec<_> = known.copied().chain(["program", "reason"]).collect();
    for name in object.as_object().expect("an object").keys() {
        assert!(known.contains(&name.as_str()), "{name} is not in the schema");
    }
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {object}"))
}

/// A name that no other program has.
fn unique(name: &str) -> String {
    format!("{}-{name}", std::process::id())
}

fn stat(arguments: &[&str]) -> Output {
    pumice(&["stat"]).args(arguments).output().expect("pumice starts")
}

#[test]
fn running_programs_are_shown() {
    let Some((child, pid)) = served() else { return };
    let pid_text = pid.to_string();
    let run_text = child.id().to_string();
    for named in [&pid_text, &run_text] {
        let output = stat(&["--json", named]);
        assert!(output.status.success(), "{}", stderr(&output));
        let object: Value = serde_json::from_str(&stdout(&output)).expect("one object");
        check_schema(&object, false);
        assert_eq!(object["pid"], pid);
        assert_eq!(object["run_pid"], child.id());
        assert!(object["requests"].as_u64() > Some(0), "{object}");
        assert!(object["pool_bytes"].as_u64() >= Some(1 << 26), "{object}");
        let rate = object["hit_rate"].as_f64().expect("requests were served");
        assert!((0.0..=1.0).contains(&rate));
        let parts = ["zeroed_bytes", "unzeroed_bytes", "absent_bytes", "in_use_bytes"];
        let sum: u64 = parts.map(|part| number(&object, part)).iter().sum();
        assert_eq!(sum, number(&object, "pool_bytes"), "{object}");
        assert!(number(&object, "in_use_bytes") >= 1 << 26, "{object}");
    }
    let table = stdout(&stat(&[]));
    assert!(table.lines().any(|line| line.contains("python3") && line.contains(&pid_text)));
    end(child);
    let gone = stat(&[&pid_text]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("pumice stat"), "{}", stderr(&gone));
    assert!(!stdout(&stat(&[])).contains(&pid_text));
}

/// Segments that only seem to be counters.
#[test]
fn what_is_no_tree_of_counters_is_passed_over() {
    let size = pumice_heap::stats::TREE_SIZE;
    let noise: Vec<u8> = (0..size).map(|index| (index * 31 % 251) as u8).collect();
    let mut hostile = noise.clone();
    // A good beginning and nothing else: magic and version are right, all numbers are not.
    hostile[..8].copy_from_slice(&pumice_heap::stats::MAGIC.to_le_bytes());
    hostile[8..12].copy_from_slice(&pumice_heap::stats::VERSION.to_le_bytes());
    let mut greedy = vec![0xff; size];
    greedy[..8].copy_from_slice(&pumice_heap::stats::MAGIC.to_le_bytes());
    greedy[8..12].copy_from_slice(&pumice_heap::stats::VERSION.to_le_bytes());
    greedy[12..16].copy_from_slice(&(pumice_heap::stats::SLOTS as u32).to_le_bytes());
    greedy[16..20]
        .copy_from_slice(&(size_of::<pumice_heap::stats::CounterSlot>() as u32).to_le_bytes());
    let events = pumice_heap::stats::EVENTS as u32;
    greedy[20..24].copy_from_slice(&events.to_le_bytes());
    // Each is this process's, and stays for as long as it.
    for content in [&[0; 100][..], &noise[..100], &noise, &hostile, &greedy] {
        let (_, at) = pumice_frames::sys::segment::create(content.len()).expect("shared memory");
        // SAFETY: mapped at that length, and nobody else's yet.
        unsafe { at.as_ptr().copy_from(content.as_ptr(), content.len()) };
    }
    // SAFETY: plain system calls; the segment is removed below.
    let shared = unsafe { libc::shmget(libc::IPC_PRIVATE, size, 0o666) };
    for arguments in [&[][..], &["--json"]] {
        let output = stat(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    // SAFETY: as above.
    unsafe { libc::shmctl(shared, libc::IPC_RMID, std::ptr::null_mut()) };
}

#[test]
fn what_is_in_use_is_told_before_anything_is_freed() {
    let Some((child, pid)) = python(
        "import os\nz = bytearray(1 << 22); x = bytearray(100000); say(os.getpid()); wait()",
    ) else {
        return;
    };
    let object = object(pid);
    let (pool, used) = (number(&object, "pool_bytes"), number(&object, "in_use_bytes"));
    assert!((100_000..pool).contains(&used), "a part of a block: {object}");
    end(child);
}

#[test]
fn what_is_free_is_told_from_what_is_in_use() {
    let size = 48 << 20;
    let script = format!(
        "import os\nfor i in range(3):\n  x = bytearray({size}); x[:] = b'1' * {size}\n  del x\n\
         say(os.getpid()); wait()\nx = bytearray({size}); say(1); wait()"
    );
    let Some((child, pid)) = python(&script) else { return };
    // Memory that it freed is counted when the helpers have looked, and zeroed if nobody wants the machine.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let object = object(pid);
        if number(&object, "in_use_bytes") < size {
            break;
        }
        assert!(Instant::now() < until, "{object}");
        std::thread::sleep(Duration::from_millis(20));
    }
    end(child);
}

#[test]
fn children_others_that_follow_and_crashes_are_seen() {
    let script = "import os,time\nx = bytearray(1 << 24)\npid = os.fork()\n\
                  if pid == 0:\n  y = bytearray(1 << 25); say(os.getpid()); time.sleep(600)\nwait()";
    let Some((child, forked)) = python(script) else { return };
    let run = child.id().to_string();
    let of_child = object(forked);
    assert_eq!(number(&of_child, "requests"), 1, "{of_child}");
    assert_eq!(number(&of_child, "forks"), 1);
    assert_eq!(number(&of_child, "run_pid"), u64::from(child.id()));
    assert_eq!(stdout(&stat(&["--json", &run])).lines().count(), 2, "parent and child");
    // SAFETY: a child of this test's own program, which sleeps.
    unsafe { libc::kill(forked as i32, libc::SIGKILL) };
    let until = Instant::now() + Duration::from_secs(60);
    while stdout(&stat(&["--json", &run])).lines().count() != 1 {
        assert!(Instant::now() < until, "a process that was killed is still shown");
        std::thread::sleep(Duration::from_millis(5));
    }
    end(child);

    let script = "import os\nx = bytearray(1 << 26); say(os.getpid())\n\
                  os.execvp('cat', ['cat'])";
    // Its parent still has the counters when it has left them.
    let command = pumice(&["run", "--report-file", "/dev/null", "--", "python3"]);
    let Some((child, pid)) = python_by(command, script) else { return };
    let until = Instant::now() + Duration::from_secs(60);
    while object(pid)["program"] != "cat" {
        assert!(Instant::now() < until, "what it was before is still named");
        std::thread::sleep(Duration::from_millis(5));
    }
    end(child);

    let script = "import os,sys\nx = bytearray(1 << 26)\n\
                  os.execvp('python3', ['python3', '-c', \
                  'import os,sys; x = bytearray(1 << 25); print(os.getpid(), flush=True); sys.stdin.readline()'])";
    let Some((child, pid)) = python(script) else { return };
    let object = object(pid);
    let asked = number(&object, "request_bytes");
    assert!(asked < 1 << 26, "what it was before is not counted: {object}");
    assert!(number(&object, "pool_bytes") < 1 << 26, "nor what it had: {object}");
    end(child);
}

#[test]
fn changes_are_watched() {
    let script = "import os,threading\nsay(os.getpid())\nend = []\n\
                  threading.Thread(target=lambda: (wait(), end.append(1))).start()\n\
                  while not end:\n  x = bytearray(1 << 22); x[::4096] = bytes(1024)";
    let Some((child, pid)) = python(script) else { return };
    let until = Instant::now() + Duration::from_secs(60);
    while !stat(&[&pid.to_string()]).status.success() {
        assert!(Instant::now() < until, "it is not there");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid_text = pid.to_string();
    let watched = ["--json", "--watch", "--interval", "0.2", "--samples", "2", &pid_text];
    let output = stdout(&stat(&watched));
    let objects = crate::support::objects(&output);
    assert_eq!(objects.len(), 2, "{output}");
    for object in objects {
        check_schema(&object, true);
        assert!(object["requests_per_s"].as_f64() > Some(0.0), "{object}");
        assert!(object["scrubber_cpu"].as_f64() >= Some(0.0), "{object}");
        assert!(object["time_s"].as_f64() > Some(0.0), "{object}");
    }
    let table = stdout(&stat(&["--watch", "--interval", "0.1", "-n", "1", &pid_text]));
    assert!(table.contains("req/s") && table.contains(&pid_text), "{table}");
    end(child);
}

/// The body of an answer to GET.
fn get(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("received");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// Every line is a comment or a value, and none is there twice.
fn check_page(page: &str, pid: u32) {
    let mut names = std::collections::HashSet::new();
    for line in page.lines() {
        if line.starts_with("# HELP pumice_") || line.starts_with("# TYPE pumice_") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(names.insert(name.to_owned()), "twice: {line}");
    }
    for metric in ["pumice_process_requests_total{", "pumice_process_pool_bytes{"] {
        let of_process = format!("pid=\"{pid}\"");
        let is_it = |name: &String| name.starts_with(metric) && name.contains(&of_process);
        assert!(names.iter().any(is_it), "no {metric} of {pid}: {page}");
    }
    assert!(page.contains("pumice_tree_scrubber_seconds_total{"), "{page}");
}

/// A client that says nothing is let go after a while; clients that come later are answered before that.
fn check_that_idle_clients_hold_up_nobody(path: &std::path::Path) {
    let is_held = |mut idle: UnixStream| {
        idle.set_nonblocking(true).expect("a socket");
        idle.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // On a machine that stands still meanwhile both may be over.
    let is_so = (0..20).any(|_| {
        let idle = UnixStream::connect(path).expect("it listens");
        get(UnixStream::connect(path).expect("it listens"));
        is_held(idle)
    });
    assert!(is_so, "an answer comes only when an idle client is gone");
}

#[test]
fn prometheus_is_served() {
    let Some((child, pid)) = served() else { return };
    check_page(&stdout(&stat(&["--prometheus"])), pid);
    let path = std::env::temp_dir().join(unique("stat.sock"));
    let unix = format!("unix:{}", path.display());
    for address in ["127.0.0.1:0", &unix] {
        let mut server = pumice(&["stat", "--listen", address])
            .stderr(Stdio::piped())
            .spawn()
            .expect("pumice starts");
        let (line, _) = crate::support::first_line(server.stderr.take());
        let at = line.rsplit(' ').next().expect("an address").to_owned();
        if at.starts_with("unix:") {
            check_that_idle_clients_hold_up_nobody(&path);
        }
        for _ in 0..2 {
            let page = match at.strip_prefix("http://") {
                Some(at) => {
                    let at = at.trim_end_matches("/metrics");
                    // A client that goes away without a word ends nothing.
                    drop(TcpStream::connect(at).expect("it listens"));
                    get(TcpStream::connect(at).expect("it listens"))
                }
                None => get(UnixStream::connect(&path).expect("it listens")),
            };
            check_page(&page, pid);
        }
        // SAFETY: this test's own child.
        unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
        assert!(server.wait().expect("waited").success());
        assert!(!path.exists(), "its socket is gone");
    }
    end(child);
}

#[test]
fn no_pressure_to_read_is_no_reason_to_fail() {
    let script = "mount -t tmpfs none /proc/pressure 2>/dev/null && exec \"$@\"; echo no";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_pumice")]);
    command.args(["run", "--", "python3"]);
    let script =
        "import os\nfor i in range(5):\n  x = bytearray(1 << 25); x[:] = b'1' * (1 << 25)\n\
                  say(os.getpid()); wait()";
    if !Command::new("unshare")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("skipped: no unshare");
        return;
    }
    let Some((child, pid)) = python_by(command, script) else {
        eprintln!("(or /proc/pressure can't be hidden without root)");
        return;
    };
    assert!(number(&object(pid), "requests") > 0);
    end(child);
}

#[test]
fn watching_ends_with_its_reader() {
    // As service managers start programs: SIGPIPE is ignored.
    let pumice = env!("CARGO_BIN_EXE_pumice");
    let line = format!("trap '' PIPE; {pumice} stat --watch --interval 0.01 | head -n 1");
    let output = Command::new("sh").args(["-c", &line]).output().expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}
