//! The daemon's life: one in each folder, killed and started anew, told to read its file and to end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use pumice_slots::refusal::Reason;
use pumice_slots::stat::Counter;
use pumice_slots::{Error, LeaseRequest};

use crate::slots::{hugetlb_alone, waiting, Daemon, PATIENCE};
use crate::support::{folder, pumice, stderr, stdout};

const SMALL: u64 = 64 << 10;
const TWO: [&str; 4] = ["--slot", "64K=2", "--pages", "4k"];

fn is_there(daemon: &Daemon, counter: Counter) -> u64 {
    daemon.client().stat().expect("an answer")[counter as usize]
}

#[test]
fn a_second_daemon_in_the_folder_refuses() {
    let daemon = Daemon::start("second", &TWO);
    let mut second = pumice(&["serve", "--slot", "64K=1", "--dir"]);
    let output = second.arg(&daemon.folder).output().expect("pumice starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&daemon.pid().to_string()) && said.contains("--dir"), "{said}");

    // Nor does one in another folder take the socket away.
    let other = folder("slots-second-other");
    let mut third = pumice(&["serve", "--slot", "64K=1", "--dir"]);
    let output = third.arg(&other).arg("--socket").arg(daemon.socket()).output();
    let said = stderr(&output.expect("pumice starts"));
    assert!(said.contains("--socket"), "{said}");
    daemon.lease(SMALL).end().expect("an answer");
}

#[test]
fn a_killed_daemon_leaves_leases_and_the_next_takes_them_over() {
    let mut daemon = Daemon::start("restart", &TWO);
    let mut lease = daemon.lease(SMALL);
    daemon.until("ready", |row| row.ready == 1 && row.leased == 1);
    daemon.restart(&TWO);
    // The lessee has noticed nothing, and its slot is as it was.
    assert_eq!(lease.file().metadata().expect("a file").len(), SMALL);
    daemon.until("back", |row| row.ready == 2 && row.leased == 0);
    lease.resume().expect("taken over");
    daemon.until("counted", |row| row.ready == 1 && row.leased == 1);
    assert_eq!(is_there(&daemon, Counter::Resumed), 1);
    let kept = lease.file().try_clone().expect("a copy");
    lease.end().expect("an answer");
    assert_eq!(kept.metadata().expect("a file").len(), 0);
    daemon.until("back", |row| row.ready == 2 && row.leased == 0);
}

/// Nobody else would do it.
#[test]
fn without_a_daemon_the_client_ends_its_slot() {
    let mut daemon = Daemon::start("alone", &TWO);
    let (dropped, ended) = (daemon.lease(SMALL), daemon.lease(SMALL));
    daemon.kill();
    let copy = |lease: &pumice_slots::Lease| lease.file().try_clone().expect("a copy");
    let kept = [copy(&dropped), copy(&ended)];
    drop(dropped);
    assert!(ended.end().is_err());
    for file in kept {
        assert_eq!(file.metadata().expect("a file").len(), 0);
    }
}

/// Its connection must not be closed: the daemon would take that for the end of what it reads then.
#[test]
fn a_daemon_that_answers_late_takes_over_all_the_same() {
    let mut daemon = Daemon::start("late", &TWO);
    let mut lease = daemon.lease(SMALL);
    daemon.restart(&TWO);
    daemon.signal(libc::SIGSTOP);
    assert!(matches!(lease.resume(), Err(Error::NoAnswer)));
    daemon.signal(libc::SIGCONT);
    lease.resume().expect("taken over");
    daemon.until("counted", |row| row.leased == 1 && row.ready == 1);
    assert_eq!(lease.file().metadata().expect("a file").len(), SMALL);
}

/// Descriptors, memory and files stay what they were.
#[test]
fn many_leases_leak_nothing() {
    let daemon = Daemon::start("leaks", &TWO);
    // But for what it reads the machine's load from, which it opens when it needs it.
    let is_sensor = |path: &Path| path.starts_with("/proc") || path.starts_with("/sys");
    let count = || {
        let folder = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs");
        let targets = folder.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|path| !is_sensor(path)).count()
    };
    let resident_kib = || {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("ours");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let cycle = |index: u32| {
        let lease = daemon.lease(SMALL);
        if index % 2 == 0 {
            lease.end().expect("an answer");
        }
    };
    (0..200).for_each(cycle);
    daemon.until("ready", |row| row.ready == 2);
    let (descriptors, memory_kib) = (count(), resident_kib());
    (0..1000).for_each(cycle);
    daemon.until("ready", |row| row.ready == 2);
    // The connection that asked last may not be closed there yet.
    let until = Instant::now() + PATIENCE;
    while count() > descriptors {
        assert!(Instant::now() < until, "{} descriptors, not {descriptors}", count());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(resident_kib() <= memory_kib + 512, "{} KiB, not {memory_kib}", resident_kib());
    let files: Vec<_> = fs::read_dir(&daemon.folder).expect("ours").flatten().collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(is_there(&daemon, Counter::Granted), is_there(&daemon, Counter::Ended));
}

#[test]
fn sighup_reads_the_file_again() {
    let folder = folder("slots-reload");
    let file = folder.join("pumice.toml");
    fs::write(&file, "pages = \"4k\"\n[[slot]]\nsize = \"64K\"\ncount = 2\n").expect("ours");
    let path = file.to_str().expect("UTF-8");
    let daemon = Daemon::start("reload", &["--config", path]);
    daemon.until("ready", |row| row.ready == 2);
    fs::write(
        &file,
        "pages = \"4k\"\n[populate]\ndelay_ms = 1\n[[slot]]\nsize = \"64K\"\n[[slot]]\nsize = \"128K\"\n",
    )
    .expect("ours");
    daemon.signal(libc::SIGHUP);
    daemon.until("reloaded", |row| row.wanted == 1 && row.ready == 1);
    assert_eq!(daemon.client().settings().expect("an answer")[1], 1);
    assert_eq!(daemon.client().lease(&waiting(128 << 10)).expect("a lease").bytes(), 128 << 10);
    fs::write(&file, "slot = 7").expect("ours");
    daemon.signal(libc::SIGHUP);
    assert_eq!(daemon.lease(SMALL).bytes(), SMALL, "a bad file changes nothing");
}

#[test]
fn sigterm_waits_for_leases_but_not_for_long() {
    let mut daemon = Daemon::start("drain", &[&TWO[..], &["--drain", "60s"]].concat());
    let lease = daemon.lease(SMALL);
    daemon.signal(libc::SIGTERM);
    let until = Instant::now() + PATIENCE;
    loop {
        match daemon.client().lease(&LeaseRequest::new(SMALL)) {
            Err(Error::Refused(refusal)) if refusal.reason == Reason::Draining => break,
            _ => assert!(Instant::now() < until, "it goes on granting"),
        }
    }
    lease.end().expect("an answer");
    assert_eq!(daemon.status(), Some(0));
    assert!(!daemon.socket().exists());

    let mut daemon = Daemon::start("drain-left", &[&TWO[..], &["--drain", "0"]].concat());
    let lease = daemon.lease(SMALL);
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.status(), Some(0));
    assert_eq!(lease.file().metadata().expect("a file").len(), SMALL, "it stays with its holder");
}

#[test]
fn systemd_is_told() {
    let folder = folder("slots-notify");
    let manager = UnixDatagram::bind(folder.join("notify")).expect("bound");
    manager.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut command = pumice(&["serve", "--slot", "64K=1", "--pages", "4k", "--dir"]);
    command.arg(&folder).env("NOTIFY_SOCKET", folder.join("notify")).stderr(Stdio::null());
    let mut daemon = command.spawn().expect("pumice starts");
    let heard = |expected: &str| {
        let mut buffer = [0; 256];
        loop {
            let length = manager.recv(&mut buffer).expect("a message");
            if String::from_utf8_lossy(&buffer[..length]).contains(expected) {
                return;
            }
        }
    };
    heard("READY=1");
    heard("STATUS=1 of 1 slots ready");
    // SAFETY: a plain system call; the child is not reaped yet.
    unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) };
    heard("STOPPING=1");
    assert!(daemon.wait().expect("ours").success());
}

#[test]
fn systemd_may_hand_over_the_socket() {
    use rustix::net::{bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags};
    let folder = folder("slots-activation");
    let path = folder.join("given.sock");
    let seqpacket = rustix::net::SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, seqpacket, SocketFlags::empty(), None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
    listen(&socket, 8).expect("listening");
    // A shell, since the process must know its number before it starts; the number of its socket is 3.
    let script = format!(
        "LISTEN_PID=$$ LISTEN_FDS=1 exec {} serve --slot 64K=1 --pages 4k --dir {} 3<&0 0</dev/null",
        env!("CARGO_BIN_EXE_pumice"),
        folder.display()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).stdin(socket).stderr(Stdio::null()).process_group(0);
    let mut daemon = command.spawn().expect("sh starts");
    let client = pumice_slots::Client::new(&path);
    client.lease(&waiting(SMALL)).expect("a lease").end().expect("an answer");
    // SAFETY: a plain system call; the child is not reaped yet.
    unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) };
    assert!(daemon.wait().expect("ours").success());
    assert!(path.exists(), "the socket is systemd's");
}

#[test]
fn metrics_are_served() {
    let place = folder("slots-metrics");
    let address = format!("unix:{}", place.join("metrics.sock").display());
    let daemon = Daemon::start("metrics", &[&TWO[..], &["--metrics", &address]].concat());
    daemon.lease(SMALL).end().expect("an answer");
    let mut page = String::new();
    let mut stream = UnixStream::connect(place.join("metrics.sock")).expect("connected");
    // One that says nothing holds up nobody for long.
    let _mute = UnixStream::connect(place.join("metrics.sock")).expect("connected");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    stream.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.contains("\npumice_slots_granted_total 1\n"), "{page}");
    let is_socket = |name: &str| {
        let status = fs::symlink_metadata(place.join(name)).expect("there");
        status.file_type().is_socket()
    };
    assert!(is_socket("metrics.sock"));
    drop(daemon);

    let daemon = Daemon::start("metrics-tcp", &[&TWO[..], &["--metrics", "127.0.0.1:0"]].concat());
    // Which port it is nobody says, so only that the daemon serves is tested here.
    assert!(TcpStream::connect("127.0.0.1:1").is_err());
    daemon.lease(SMALL).end().expect("an answer");
}

#[test]
fn slots_lists_counts_and_changes() {
    let daemon = Daemon::start("list", &TWO);
    let lease = daemon.lease(SMALL);
    let run = |arguments: &[&str]| {
        let output = daemon.command(&["slots"], arguments).output().expect("pumice starts");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let table = run(&[]);
    assert!(table.contains("64K") && table.contains("LEASE"), "{table}");
    let list: serde_json::Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    assert_eq!(list["classes"][0]["bytes"], SMALL);
    assert_eq!(list["leases"][0]["pid"], std::process::id());
    assert!(run(&["--stat"]).contains("granted_total"));
    assert_eq!(run(&["--set", "delay_ms=3", "--set", "load=1.5"]), "");
    let stat: serde_json::Value = serde_json::from_str(&run(&["--stat", "--json"])).expect("JSON");
    assert_eq!(stat["granted_total"], 1);
    assert_eq!(stat["settings"]["delay_ms"], "3");
    assert_eq!(stat["settings"]["load"], "1.50");
    assert_eq!(stat["waits"].as_array().map(Vec::len), Some(12));
    drop(lease);
}

#[test]
fn lease_runs_a_program_and_ends_as_it_does() {
    let daemon = Daemon::start("lease", &TWO);
    let run = |arguments: &[&str]| {
        let leased = ["lease", "64K", "--wait", "60s"];
        daemon.command(&leased, arguments).output().expect("pumice starts")
    };
    let script = "wc -c < {path}; stat -Lc %s /proc/self/fd/{fd}; echo {qemu}; exit 7";
    let output = run(&["--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7));
    let said = stdout(&output);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(&lines[..2], ["65536", "65536"], "{said}");
    assert!(lines[2].starts_with("memory-backend-file,id=pumice,size=65536,mem-path=/proc/"));

    let empty = run(&["--charge", "lessee", "--", "sh", "-c", "stat -Lc %b {path}"]);
    assert_eq!(stdout(&empty), "128", "its own process has populated it");

    let missing = run(&["--", "no-such-program", "{fd}"]);
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    daemon.until("given back", |row| row.leased == 0);
}

#[test]
fn a_script_has_its_lease_until_it_ends_it() {
    let daemon = Daemon::start("print", &TWO);
    let script = format!(
        "eval \"$({} lease 64K --wait 60s --socket {} --print &)\"; \
         wc -c < $PUMICE_SLOT_PATH; echo $PUMICE_SLOT_BYTES $PUMICE_SLOT_PAGES; \
         read line; kill $PUMICE_SLOT_PID",
        env!("CARGO_BIN_EXE_pumice"),
        daemon.socket().display()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = command.spawn().expect("sh starts");
    let mut lines = BufReader::new(shell.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("UTF-8");
    assert_eq!((next(), next()), ("65536".to_owned(), "65536 4k".to_owned()));
    daemon.until("leased", |row| row.leased == 1);
    drop(shell.stdin.take());
    assert!(shell.wait().expect("ours").success());
    daemon.until("given back", |row| row.leased == 0);
}

#[test]
fn hugetlb_pages_are_asked_for_if_told_so_and_given_back() {
    let _alone = hugetlb_alone();
    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let read = |name: &str| {
        let text = fs::read_to_string(Path::new(POOL).join(name)).unwrap_or_default();
        text.trim().parse::<u64>().ok()
    };
    if !rustix::process::geteuid().is_root() || read("free_hugepages") != Some(0) {
        eprintln!("skipped: needs root, and a machine without free hugetlb pages");
        return;
    }
    let before = read("nr_hugepages");
    let slot = ["--slot", "4M=1", "--pages", "hugetlb-2m", "--drain", "0"];
    let daemon = Daemon::start("hugetlb", &slot);
    while is_there(&daemon, Counter::PopulateFailures) == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(read("nr_hugepages"), before, "nobody allowed that");
    drop(daemon);

    let mut daemon = Daemon::start("grow", &[&slot[..], &["--grow-hugetlb"]].concat());
    if is_there(&daemon, Counter::PopulateFailures) > 0 {
        eprintln!("skipped: the kernel has no hugetlb pages to give");
        return;
    }
    daemon.lease(4 << 20).end().expect("an answer");
    assert!(read("nr_hugepages") > before);
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.status(), Some(0));
    assert_eq!(read("nr_hugepages"), before);
}

/// A burst, and then nothing for minutes.
#[test]
fn limits_hold_population_up_and_a_waiting_client_does_not_wait_for_them() {
    let slow = ["--rate-pages-per-s", "1", "--batch-pages", "16"];
    let daemon =
        Daemon::start("limits", &[&["--slot", "4M=1", "--pages", "4k"], &slow[..]].concat());
    thread::sleep(Duration::from_millis(300));
    assert_eq!(is_there(&daemon, Counter::Ready), 0);
    let lease = daemon.lease(4 << 20);
    assert_eq!(lease.bytes(), 4 << 20);
}
