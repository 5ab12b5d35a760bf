//! Slots that have a file's content: every byte of it, of one moment, and of the moment of the request at the earliest.

use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::fs::{symlink, FileExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pumice_slots::message::{FileState, Reply, Request, SnapshotRow};
use pumice_slots::refusal::Reason;
use pumice_slots::{socket, Client, Error, Lease, LeaseRequest, SnapshotName};
use rustix::fs::statfs;

use crate::slots::{as_user, is_root, Daemon, PATIENCE};
use crate::support::{folder, folder_in, pumice, stderr, stdout, Folder};

const MIB: u64 = 1 << 20;

pub fn name(text: &str) -> SnapshotName {
    text.parse().expect("a name")
}

/// A daemon with a snapshot `web`, and other arguments.
pub fn daemon(test: &str, file: &Path, count: impl Display, more: &[&str]) -> Daemon {
    let snapshot = format!("web={}:{count}", file.display());
    Daemon::start(&format!("snap-{test}"), &[&["--snapshot", &snapshot], more].concat())
}

/// A folder for files of snapshots: not on overlayfs, where they are refused, and where `/tmp` is in containers.
pub fn place(test: &str) -> Folder {
    let name = format!("snap-file-{test}");
    let folder = folder(&name);
    match statfs(&*folder).expect("there").f_type as u32 {
        0x794c_7630 => folder_in(Path::new("/dev/shm"), &name),
        _ => folder,
    }
}

/// Leases `web`, waiting as long as needs be.
pub fn lease(daemon: &Daemon) -> Lease {
    daemon.client().lease_snapshot(name("web"), PATIENCE).expect("a lease")
}

pub fn content(lease: &Lease) -> Vec<u8> {
    let mut content = vec![0xee; lease.bytes() as usize];
    lease.file().read_exact_at(&mut content, 0).expect("readable");
    content
}

/// Whether a slot has the file's bytes, and then zeros.
pub fn has(lease: &Lease, expected: &[u8]) -> bool {
    let content = content(lease);
    let (own, rest) = content.split_at(expected.len());
    own == expected && rest.iter().all(|&byte| byte == 0)
}

pub fn reason(outcome: Result<Lease, Error>) -> Option<Reason> {
    match outcome {
        Ok(_) => None,
        Err(Error::Refused(refusal)) => Some(refusal.reason),
        Err(other) => panic!("{other}"),
    }
}

/// Waits until the snapshot is as it should be.
pub fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&SnapshotRow) -> bool) -> SnapshotRow {
    let until = Instant::now() + PATIENCE;
    loop {
        let row = daemon.client().snapshots().expect("an answer")[0];
        if is_so(&row) {
            return row;
        }
        assert!(Instant::now() < until, "not {what}: {row:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Another file takes the path.
pub fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).expect("written");
    fs::rename(&new, path).expect("renamed");
}

/// Sizes with and without a rest, and holes at the start, in the middle and at the end; on a disk and in memory.
#[test]
fn every_byte_is_the_files() {
    let disk = place("bytes");
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    let memory = memory.as_ref().map(tempfile::TempDir::path);
    for folder in [Some(&*disk), memory].into_iter().flatten() {
        for bytes in [1, 4096, 5 * MIB + 4097, 6 * MIB, 40 * MIB - 1] {
            let path = folder.join("web.mem");
            let file = File::create(&path).expect("made");
            file.set_len(bytes).expect("a size");
            for (seed, at) in [(1, 8192), (2, MIB + 5), (3, 3 * MIB), (4, 33 * MIB), (5, bytes - 1)]
            {
                let data = noise(seed, (bytes.saturating_sub(at)).min(700_001) as usize);
                file.write_all_at(&data, at).expect("written");
            }
            drop(file);
            let expected = fs::read(&path).expect("readable");
            for pages in ["4k", "thp"] {
                let daemon = daemon("bytes", &path, 2, &["--pages", pages]);
                for _ in 0..3 {
                    let lease = lease(&daemon);
                    assert_eq!(lease.bytes(), bytes.next_multiple_of(4096));
                    assert!(has(&lease, &expected), "{bytes}, {pages}, {}", path.display());
                    lease.end().expect("an answer");
                }
            }
        }
    }
}

#[test]
fn a_slot_is_its_lessees_alone_and_ends_as_others_do() {
    let place = place("private");
    let (path, expected) = (place.join("web.mem"), noise(1, 300_000));
    fs::write(&path, &expected).expect("written");
    let daemon = daemon("private", &path, 2, &["--pages", "4k"]);
    let (first, second) = (lease(&daemon), lease(&daemon));
    first.file().write_all_at(&[0xaa; 300_000], 0).expect("its own");
    assert!(has(&second, &expected));
    assert_eq!(fs::read(&path).expect("readable"), expected);
    let kept = first.file().try_clone().expect("a copy");
    assert!(kept.set_len(1 << 20).is_err(), "it is sealed");
    first.end().expect("an answer");
    assert_eq!(kept.metadata().expect("a file").len(), 0);
    assert!(kept.set_len(4096).is_err(), "it is sealed");
    let third = lease(&daemon);
    assert!(has(&third, &expected) && has(&second, &expected));
}

#[test]
fn a_change_is_seen_by_the_next_lease() {
    let place = place("changed");
    let path = place.join("web.mem");
    fs::write(&path, noise(0, 200_000)).expect("written");
    let daemon = daemon("changed", &path, 2, &["--pages", "4k"]);
    let other = place.join("other");
    fs::write(&other, noise(50, 200_000)).expect("written");
    let changes: [(&str, &dyn Fn()); 6] = [
        ("replaced", &|| replace(&path, &noise(1, 200_000))),
        ("larger", &|| replace(&path, &noise(2, 2_500_000))),
        ("written over", &|| {
            let file = File::options().write(true).open(&path).expect("ours");
            file.write_all_at(b"changed", 199_990).expect("written");
        }),
        ("appended to", &|| {
            let file = File::options().write(true).open(&path).expect("ours");
            file.write_all_at(b"more", 2_500_000).expect("written");
        }),
        ("cut", &|| {
            File::options().write(true).open(&path).expect("ours").set_len(5_000).expect("cut");
        }),
        ("a link", &|| {
            fs::remove_file(&path).expect("ours");
            symlink("other", &path).expect("made");
        }),
    ];
    for (what, change) in changes {
        until(&daemon, "ready", |row| row.class.ready == 2);
        change();
        let expected = fs::read(&path).expect("readable");
        // One that does not wait gets no slot, rather than an old one.
        match daemon.client().lease_snapshot(name("web"), Duration::ZERO) {
            Ok(lease) => assert!(has(&lease, &expected), "{what}"),
            Err(Error::Refused(refusal)) => assert_eq!(refusal.reason, Reason::NoneReady, "{what}"),
            Err(other) => panic!("{other}"),
        }
        let lease = lease(&daemon);
        assert!(has(&lease, &expected), "{what}");
        assert_eq!(lease.bytes(), (expected.len() as u64).next_multiple_of(4096), "{what}");
    }
    // Nobody has asked since: slots are filled anew ahead of need.
    let row = until(&daemon, "filled anew", |row| row.class.ready == 2);
    assert_eq!(row.file_bytes, 200_000);
}

/// Every version has one byte all over, and is written in pieces: a slot with two of them would be a mix.
#[test]
fn a_file_that_is_written_all_the_time_is_never_a_mix() {
    never_a_mix("mix", "2");
}

#[test]
fn nor_is_a_shared_slot() {
    never_a_mix("shared-mix", "shared");
}

fn never_a_mix(test: &str, count: &str) {
    let place = place(test);
    let path = place.join("web.mem");
    const PIECE: usize = 256 << 10;
    fs::write(&path, vec![1; 16 * PIECE]).expect("written");
    let daemon = daemon(test, &path, count, &["--pages", "4k", "--polite", "off"]);
    let last = std::sync::atomic::AtomicU8::new(1);
    let order = std::sync::atomic::Ordering::SeqCst;
    let mut slots = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 2..40u8 {
                let file = File::options().write(true).open(&path).expect("ours");
                let pieces = 16 + usize::from(version) / 3;
                for piece in 0..pieces {
                    let bytes = vec![version; PIECE];
                    file.write_all_at(&bytes, (piece * PIECE) as u64).expect("written");
                    thread::sleep(Duration::from_millis(2));
                }
                drop(file);
                last.store(version, order);
                // Sometimes long enough for a slot, sometimes not.
                thread::sleep(Duration::from_millis(u64::from(version % 5) * 40));
            }
        });
        while !writer.is_finished() {
            let at_least = last.load(order);
            let wait = Duration::from_millis(100);
            match daemon.client().lease_snapshot(name("web"), wait) {
                Ok(lease) => {
                    let content = content(&lease);
                    assert!(content[0] >= at_least, "{} is older than {at_least}", content[0]);
                    assert!(content.iter().all(|&byte| byte == content[0]), "a mix");
                    slots += 1;
                }
                Err(Error::Refused(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        writer.join().expect("no panic");
    });
    let lease = lease(&daemon);
    assert!(has(&lease, &vec![39; (16 + 13) * PIECE]), "after {slots} slots");
}

#[test]
fn a_file_that_goes_takes_its_slots_with_it_and_nothing_else() {
    let place = place("gone");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 100_000)).expect("written");
    let daemon = daemon("gone", &path, 2, &["--slot", "64K=1", "--pages", "4k"]);
    let held = lease(&daemon);
    until(&daemon, "ready", |row| row.class.ready == 1);
    let at_once = || reason(daemon.client().lease_snapshot(name("web"), Duration::ZERO));
    let cases: [(&str, &dyn Fn()); 3] = [
        ("missing", &|| fs::remove_file(&path).expect("ours")),
        ("empty", &|| fs::write(&path, "").expect("written")),
        ("a folder", &|| {
            fs::remove_file(&path).expect("ours");
            fs::create_dir(&path).expect("made");
        }),
    ];
    for (what, change) in cases {
        change();
        until(&daemon, "seen to fail", |row| row.file == FileState::Failing);
        assert_eq!(at_once(), Some(Reason::NoneReady), "{what}");
        daemon.lease(64 << 10).end().expect("others are served");
    }
    assert!(has(&held, &noise(1, 100_000)), "a lease stays as it is");
    drop(held);
    fs::remove_dir(&path).expect("ours");
    fs::write(&path, noise(2, 90_000)).expect("written");
    assert!(has(&lease(&daemon), &noise(2, 90_000)));
    until(&daemon, "good", |row| row.file == FileState::Good);
}

/// Files of the kernel's that have a size, and fail to be read or have less.
#[test]
fn a_file_that_can_not_be_read_holds_up_nobody() {
    let failing = ["/sys/class/net/lo/speed", "/sys/class/net/lo/mtu"];
    for file in failing.map(Path::new) {
        if fs::metadata(file).map_or(0, |status| status.len()) != 4096 {
            eprintln!("skipped: no {}", file.display());
            continue;
        }
        let daemon = daemon("broken", file, 1, &["--slot", "64K=1", "--pages", "4k"]);
        until(&daemon, "failing", |row| row.file == FileState::Failing);
        let wait = Duration::from_millis(100);
        let refused = reason(daemon.client().lease_snapshot(name("web"), wait));
        assert_eq!(refused, Some(Reason::TimedOut));
        daemon.lease(64 << 10).end().expect("others are served");
        assert_eq!(until(&daemon, "there", |_| true).class.ready, 0);
    }
}

#[test]
fn what_is_no_snapshot_is_refused_in_a_line() {
    let place = place("bad");
    fs::write(place.join("empty"), "").expect("written");
    fs::write(place.join("good"), "x").expect("written");
    let fifo = place.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a FIFO");
    let open = place.join("open");
    fs::create_dir(&open).expect("made");
    fs::write(open.join("file"), "x").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&open, mode).expect("ours");
    let at = |name: &str| place.join(name).display().to_string();
    let good = format!("web={}:1", at("good"));
    for (arguments, part) in [
        (vec![format!("web={}:1", at("missing"))], "No such file"),
        (vec![format!("web={}:1", place.display())], "no regular file"),
        (vec![format!("web={}", at("fifo"))], "no regular file"),
        (vec![format!("web={}:4", at("empty"))], "empty"),
        (vec![format!("web={}:4", at("open/file"))], "chmod go-w"),
        (vec![format!("web={}:0", at("good"))], "1 to 65536"),
        (vec![format!("web={}:", at("good"))], "1 to 65536"),
        (vec!["web=".into()], "web=/var/lib/vm/web.mem:4"),
        (vec!["web".into()], "web=/var/lib/vm/web.mem:4"),
        (vec!["=x".into()], "1 to 32 letters"),
        (vec!["a/b=x".into()], "1 to 32 letters"),
        (vec![good.clone(), good.clone()], "two snapshots"),
    ] {
        let mut serve = pumice(&["serve", "--dir"]);
        serve.arg(place.join("run"));
        for argument in &arguments {
            serve.args(["--snapshot", argument]);
        }
        let output = serve.output().expect("pumice starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{arguments:?}: {said}");
    }
}

/// Only the configuration names files.
#[test]
fn a_stranger_names_no_path() {
    let place = place("strangers");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 64 << 10)).expect("written");
    let daemon = daemon("strangers", &path, 1, &["--pages", "4k"]);
    let refused = reason(daemon.client().lease_snapshot(name("other"), PATIENCE));
    assert_eq!(refused, Some(Reason::NoSuchSnapshot));
    // Nor is a snapshot a slot for those who ask for memory.
    until(&daemon, "ready", |row| row.class.ready == 1);
    let refused = reason(daemon.client().lease(&LeaseRequest::new(4096)));
    assert_eq!(refused, Some(Reason::TooLarge));

    let good = Request::LeaseSnapshot(name("web"), 0).encode();
    let mut cases = vec![good[..good.len() - 1].to_vec(), [&good[..], b"x"].concat()];
    for text in ["", "/etc/passwd", "../web", "w b", "web\0", &"x".repeat(33), &"x".repeat(255)] {
        // Header and wait as they were, and another name.
        let mut bytes = good[..good.len() - 4].to_vec();
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
        cases.push(bytes);
    }
    for bytes in cases {
        let connection = socket::connect_to(&daemon.socket(), PATIENCE).expect("connected");
        socket::send(&connection, &bytes, None).expect("sent");
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        assert!(packet.descriptors.is_empty());
        let Ok(Reply::Refused(refusal)) = Reply::decode(&packet.bytes) else { panic!("{bytes:?}") };
        assert_eq!(refusal.reason, Reason::Malformed);
        assert!(socket::receive(&connection).expect("the end").is_none());
    }
    assert!(has(&lease(&daemon), &noise(1, 64 << 10)));
}

#[test]
fn the_users_that_may_lease_are_those_of_other_slots() {
    const FRIEND: u32 = 54_321;
    const STRANGER: u32 = 54_322;
    if !is_root() {
        return;
    }
    let place = place("users");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 64 << 10)).expect("written");
    // Only root may read the file; its content goes to those that may lease.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, mode).expect("ours");
    let allow = format!("user:{FRIEND}=100K");
    let daemon = daemon("users", &path, 3, &["--pages", "4k", "--allow", &allow]);
    let client = Client::new(daemon.socket());
    let ask = || client.lease_snapshot(name("web"), PATIENCE);
    assert_eq!(as_user(STRANGER, &[], || reason(ask())), Some(Reason::NotAllowed));
    as_user(FRIEND, &[], || {
        let first = ask().expect("a lease");
        assert!(has(&first, &noise(1, 64 << 10)));
        assert_eq!(reason(ask()), Some(Reason::Quota));
    });
    // The quota holds also where the slots have become larger while a client waited.
    let held = [lease(&daemon), lease(&daemon), lease(&daemon)];
    let waits = thread::spawn({
        let client = Client::new(daemon.socket());
        move || as_user(FRIEND, &[], || reason(client.lease_snapshot(name("web"), PATIENCE)))
    });
    until(&daemon, "waited for", |row| row.class.waiting == 1);
    replace(&path, &noise(2, 120 << 10));
    assert_eq!(waits.join().expect("no panic"), Some(Reason::Quota));
    drop(held);
}

#[test]
fn leases_outlive_the_daemon_and_are_counted_by_the_next() {
    let place = place("resumed");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 64 << 10)).expect("written");
    let snapshot = format!("web={}:2", path.display());
    let arguments = ["--slot", "64K=1", "--pages", "4k", "--snapshot", &*snapshot];
    let mut daemon = Daemon::start("snap-resumed", &arguments);
    let mut lease = lease(&daemon);
    daemon.restart(&arguments);
    lease.resume().expect("taken over");
    let row = until(&daemon, "counted", |row| row.class.leased == 1 && row.class.ready == 1);
    assert_eq!((row.name, row.class.wanted), (name("web"), 2));
    daemon.until("apart from slots of that size", |row| row.ready == 1 && row.leased == 0);
    lease.end().expect("an answer");
    until(&daemon, "ended", |row| row.class.leased == 0 && row.class.ready == 2);
}

#[test]
fn a_program_runs_on_a_snapshot_and_lists_show_it() {
    let place = place("program");
    let path = place.join("web.mem");
    fs::write(&path, "a snapshot\n".repeat(1000)).expect("written");
    let metrics = format!("unix:{}", place.join("metrics.sock").display());
    let more = ["--slot", "64K=1", "--pages", "4k", "--metrics", &metrics];
    let daemon = daemon("program", &path, 4, &more);
    let run = |arguments: &[&str]| {
        let leased = ["lease", "--snapshot", "web", "--wait", "60s"];
        daemon.command(&leased, arguments).output().expect("pumice starts")
    };
    let script = "head -n 2 {path}; wc -c < {path}; head -c 3 <&{fd}; echo; echo {qemu}; exit 7";
    let output = run(&["--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let said = stdout(&output);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..4], ["a snapshot", "a snapshot", "12288", "a s"], "{said}");
    assert!(lines[4].starts_with("memory-backend-file,id=pumice,size=12288,mem-path=/proc/"));

    until(&daemon, "ready", |row| row.class.ready == 4);
    let shown = |arguments: &[&str]| {
        stdout(&daemon.command(&["slots"], arguments).output().expect("pumice starts"))
    };
    let table = shown(&[]);
    assert!(table.contains("SNAPSHOT") && table.contains("web  "), "{table}");
    let list: serde_json::Value = serde_json::from_str(&shown(&["--json"])).expect("JSON");
    assert_eq!(list["classes"].as_array().map(Vec::len), Some(1), "as clients before it see");
    assert_eq!(list["snapshots"][0]["name"], "web");
    assert_eq!(list["snapshots"][0]["file_bytes"], 11_000);
    assert_eq!(
        (&list["snapshots"][0]["ready"], &list["snapshots"][0]["file"]),
        (&4.into(), &"good".into())
    );
    let mut stream =
        std::os::unix::net::UnixStream::connect(place.join("metrics.sock")).expect("connected");
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("sent");
    let page = std::io::read_to_string(stream).expect("a page");
    assert!(page.contains("pumice_slots_snapshot{name=\"web\",state=\"ready\"} 4\n"), "{page}");
    for (arguments, part) in [
        (&["8G", "--snapshot", "web", "--", "true", "{fd}"][..], "--snapshot"),
        (&["--snapshot", "a/b", "--", "true", "{fd}"], "letters"),
        (&["--snapshot", "other", "--", "true", "{fd}"], "no snapshot of that name"),
    ] {
        let output = daemon.command(&["lease"], arguments).output().expect("pumice starts");
        let said = stderr(&output);
        assert!(!output.status.success() && said.lines().count() == 1, "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn snapshots_come_and_go_with_the_configuration() {
    let place = place("reload");
    for (file, seed) in [("one", 1), ("two", 2)] {
        fs::write(place.join(file), noise(seed, 70_000)).expect("written");
    }
    let config = place.join("pumice.toml");
    let table = |file: &str| {
        let path = place.join(file).display().to_string();
        format!("[[snapshot]]\nname = \"web\"\nfile = \"{path}\"\npages = \"4k\"\ncount = 2\n")
    };
    fs::write(&config, table("one")).expect("written");
    let arguments = ["--config", config.to_str().expect("UTF-8"), "--slot", "64K=1"];
    let daemon = Daemon::start("snap-reload", &arguments);
    assert!(has(&lease(&daemon), &noise(1, 70_000)));
    fs::write(&config, table("two")).expect("written");
    daemon.signal(libc::SIGHUP);
    let until_two = Instant::now() + PATIENCE;
    while !has(&lease(&daemon), &noise(2, 70_000)) {
        assert!(Instant::now() < until_two, "the other file's content");
    }
    fs::write(&config, "").expect("written");
    daemon.signal(libc::SIGHUP);
    let until_none = Instant::now() + PATIENCE;
    while !daemon.client().snapshots().expect("an answer").is_empty() {
        assert!(Instant::now() < until_none, "it is configured no more");
        thread::sleep(Duration::from_millis(10));
    }
    let refused = reason(daemon.client().lease_snapshot(name("web"), Duration::ZERO));
    assert_eq!(refused, Some(Reason::NoSuchSnapshot));
}
