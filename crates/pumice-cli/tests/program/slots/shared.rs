//! A shared snapshot: one memory, sealed, that any number of lessees have.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use pumice_slots::message::FileState;
use pumice_slots::refusal::Reason;
use pumice_slots::stat::Counter;
use pumice_slots::{Client, Lease, Sharing};
use rustix::fs::{fcntl_get_seals, SealFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::slots::snapshots::{daemon, has, lease, name, noise, place, reason, replace, until};
use crate::slots::{as_user, is_root, Daemon, PATIENCE};
use crate::support::{pumice, stderr, stdout};

const MIB: u64 = 1 << 20;

fn counted(daemon: &Daemon, counter: Counter) -> u64 {
    daemon.client().stat().expect("an answer")[counter as usize]
}

fn inode(lease: &Lease) -> u64 {
    lease.file().metadata().expect("a file").ino()
}

/// A private mapping, as a machine has it that is restored from a file.
struct Clone {
    at: *mut u8,
    len: usize,
}

impl Clone {
    fn new(lease: &Lease) -> Clone {
        let (len, protection) = (lease.bytes() as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(null_mut(), len, protection, MapFlags::PRIVATE, lease.file(), 0) };
        Clone { at: at.expect("mapped").cast(), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this value's own, and nobody can change what it has not changed itself.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { munmap(self.at.cast(), self.len) }.expect("ours");
    }
}

/// Holes and odd sizes too, in small pages and in huge ones.
#[test]
fn fifty_have_one_memory_and_write_to_their_own() {
    let place = place("shared");
    let path = place.join("web.mem");
    let file = File::create(&path).expect("made");
    file.set_len(9 * MIB + 5).expect("a size");
    for (seed, at) in [(1, 0), (2, 3 * MIB + 100), (3, 9 * MIB - 5000)] {
        file.write_all_at(&noise(seed, 5005), at).expect("written");
    }
    drop(file);
    let expected = fs::read(&path).expect("readable");
    for pages in ["4k", "thp"] {
        let daemon = daemon("shared", &path, "shared", &["--pages", pages, "--polite", "off"]);
        let leases: Vec<_> = (0..50).map(|_| lease(&daemon)).collect();
        let bytes = (9 * MIB + 5).next_multiple_of(4096);
        for one in &leases {
            assert!(one.is_shared() && one.bytes() == bytes && inode(one) == inode(&leases[0]));
            assert!(one.file().write_at(b"x", 0).is_err() && one.file().set_len(0).is_err());
        }
        assert!(has(&leases[0], &expected));
        let seals = fcntl_get_seals(leases[0].file()).expect("a memfd");
        assert!(seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::SEAL));

        let mut clones: Vec<_> = leases.iter().map(Clone::new).collect();
        for (index, clone) in clones.iter_mut().enumerate() {
            // A twentieth each.
            clone.bytes().chunks_mut(20 * 4096).for_each(|piece| piece[index] = index as u8);
        }
        for (index, clone) in clones.iter_mut().enumerate() {
            let mut own = expected.clone();
            own.resize(bytes as usize, 0);
            own.chunks_mut(20 * 4096).for_each(|piece| piece[index] = index as u8);
            assert!(clone.bytes() == own, "{index}");
        }
        assert!(has(&lease(&daemon), &expected), "nothing of it goes to others");
        assert_eq!(fs::read(&path).expect("readable"), expected);

        let row = until(&daemon, "counted", |row| row.class.leased == 50);
        assert_eq!((row.sharing, row.class.wanted, row.class.ready), (Sharing::Shared, 1, 1));
        let numbers = [Counter::ReadyBytes, Counter::LeasedBytes, Counter::Leased];
        assert_eq!(numbers.map(|counter| counted(&daemon, counter)), [bytes, 0, 50]);
        assert_eq!(counted(&daemon, Counter::Populated), 1);
        drop(clones);
        leases.into_iter().for_each(|lease| lease.end().expect("an answer"));
        let row = until(&daemon, "ended", |row| row.class.leased == 0);
        assert_eq!(row.class.ready, 1, "the daemon keeps it");
        assert_eq!(counted(&daemon, Counter::Populated), 1);
    }
}

#[test]
fn after_a_change_new_lessees_have_the_new_content_and_old_ones_theirs() {
    let place = place("shared-changed");
    let path = place.join("web.mem");
    let bytes = 64 << 10;
    fs::write(&path, noise(0, bytes)).expect("written");
    let daemon = daemon("shared-changed", &path, "shared", &["--pages", "4k"]);
    let mut held = Vec::new();
    for version in 0..4 {
        if version > 0 {
            replace(&path, &noise(version, bytes));
        }
        held.extend([(version, lease(&daemon)), (version, lease(&daemon))]);
        for (version, lease) in &held {
            assert!(has(lease, &noise(*version, bytes)), "{version}");
        }
    }
    // Three old versions, each once, and the one that is ready.
    assert_eq!(counted(&daemon, Counter::LeasedBytes), 3 * bytes as u64);
    assert_eq!(counted(&daemon, Counter::ReadyBytes), bytes as u64);
    fs::remove_file(&path).expect("ours");
    until(&daemon, "failing", |row| row.file == FileState::Failing && row.class.ready == 0);
    let wait = Duration::from_millis(50);
    let refused = reason(daemon.client().lease_snapshot(name("web"), wait));
    assert_eq!(refused, Some(Reason::TimedOut));
    assert_eq!(counted(&daemon, Counter::LeasedBytes), 4 * bytes as u64);
    for (version, lease) in held {
        assert!(has(&lease, &noise(version, bytes)), "{version}");
        lease.end().expect("an answer");
    }
    until(&daemon, "ended", |row| row.class.leased == 0);
    assert_eq!(counted(&daemon, Counter::LeasedBytes), 0);
    replace(&path, &noise(9, bytes));
    assert!(has(&lease(&daemon), &noise(9, bytes)));
}

/// All that wait have it when it is there.
#[test]
fn it_is_filled_once_for_all_that_wait() {
    let place = place("shared-waits");
    let path = place.join("web.mem");
    let content = noise(1, 24 << 20);
    fs::write(&path, &content).expect("written");
    let daemon = daemon("shared-waits", &path, "shared", &["--rate-pages-per-s", "1"]);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let lease = lease(&daemon);
                    assert!(has(&lease, &content));
                    inode(&lease)
                })
            })
            .collect();
        let inodes: Vec<_> = clients.into_iter().map(|it| it.join().expect("no panic")).collect();
        assert!(inodes.iter().all(|&inode| inode == inodes[0]), "{inodes:?}");
    });
    assert_eq!(counted(&daemon, Counter::Populated), 1);
}

#[test]
fn a_quota_counts_it_once() {
    const FRIEND: u32 = 54_331;
    const STRANGER: u32 = 54_332;
    if !is_root() {
        return;
    }
    let place = place("shared-quota");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 64 << 10)).expect("written");
    let allow = format!("user:{FRIEND}=100K");
    let more = ["--pages", "4k", "--slot", "32K=1", "--slot", "64K=1", "--allow", &allow];
    let daemon = daemon("shared-quota", &path, "shared", &more);
    until(&daemon, "ready", |row| row.class.ready == 1);
    let client = Client::new(daemon.socket());
    let ask = || client.lease_snapshot(name("web"), PATIENCE);
    let sized = |bytes| client.lease(&crate::slots::waiting(bytes));
    assert_eq!(as_user(STRANGER, &[], || reason(ask())), Some(Reason::NotAllowed));
    as_user(FRIEND, &[], || {
        let ten: Vec<_> = (0..10).map(|_| ask().expect("a lease")).collect();
        assert!(has(&ten[9], &noise(1, 64 << 10)));
        let small = sized(32 << 10).expect("a lease");
        small.end().expect("an answer");
        assert_eq!(reason(sized(64 << 10)), Some(Reason::Quota));
        drop(ten);
        let large = until_leased(&|| sized(64 << 10));
        assert_eq!(reason(ask()), Some(Reason::Quota));
        large.end().expect("an answer");
    });
    // Each version that it has counts, larger or smaller.
    let old = as_user(FRIEND, &[], || ask().expect("a lease"));
    for bytes in [48 << 10, 64 << 10, 96 << 10] {
        replace(&path, &noise(bytes as u64, bytes));
        assert_eq!(as_user(FRIEND, &[], || reason(ask())), Some(Reason::Quota), "{bytes}");
    }
    assert!(has(&old, &noise(1, 64 << 10)));
    replace(&path, &noise(3, 32 << 10));
    until(&daemon, "seen", |row| row.file_bytes == 32 << 10);
    let new = as_user(FRIEND, &[], || ask().expect("a lease"));
    assert!(has(&new, &noise(3, 32 << 10)));
}

/// Leases that were dropped end a little later.
fn until_leased(ask: &dyn Fn() -> Result<Lease, pumice_slots::Error>) -> Lease {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn it_outlives_the_daemon_with_its_lessees() {
    let place = place("shared-killed");
    let path = place.join("web.mem");
    let content = noise(1, 64 << 10);
    fs::write(&path, &content).expect("written");
    let snapshot = format!("web={}:shared", path.display());
    let arguments = ["--pages", "4k", "--snapshot", &*snapshot];
    let mut daemon = Daemon::start("shared-killed", &arguments);
    let (mut first, second) = (lease(&daemon), lease(&daemon));
    let script = "exec 3< {path}; read line; head -c 65536 <&3 | cksum";
    let child = daemon
        .command(&["lease", "--snapshot", "web"], &["--", "sh", "-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("pumice starts");
    until(&daemon, "leased", |row| row.class.leased == 3);
    daemon.restart(&arguments);
    assert!(first.resume().is_err(), "it is nothing that the next daemon has to give back");
    let third = lease(&daemon);
    assert!(has(&first, &content) && has(&second, &content) && has(&third, &content));
    assert_ne!(inode(&first), inode(&third));
    assert!(second.end().is_err(), "the daemon is gone that gave it");
    drop(third);
    assert!(has(&first, &content));
    // The program goes on.
    let output = child.wait_with_output().expect("ours");
    assert!(output.status.success() && !output.stdout.is_empty());
    let row = until(&daemon, "ended", |row| row.class.leased == 0);
    assert_eq!(row.class.ready, 1);
}

#[test]
fn it_is_listed_configured_and_refused_in_words() {
    let place = place("shared-words");
    let path = place.join("web.mem");
    fs::write(&path, "a snapshot\n".repeat(1000)).expect("written");
    let config = place.join("pumice.toml");
    let table = |count: &str| {
        let path = path.display();
        format!(
            "[[snapshot]]\nname = \"web\"\nfile = \"{path}\"\npages = \"4k\"\ncount = {count}\n"
        )
    };
    fs::write(&config, table("\"shared\"")).expect("written");
    let metrics = format!("unix:{}", place.join("metrics.sock").display());
    let config_path = config.to_str().expect("UTF-8");
    let arguments = ["--config", config_path, "--slot", "64K=1", "--metrics", &metrics];
    let daemon = Daemon::start("shared-words", &arguments);
    until(&daemon, "ready", |row| row.class.ready == 1);
    let script = "head -n 1 {path}; echo x 2> /dev/null > {path} || echo refused";
    let leased = ["lease", "--snapshot", "web", "--wait", "60s"];
    let output = daemon.command(&leased, &["--", "sh", "-c", script]).output();
    assert_eq!(stdout(&output.expect("pumice starts")), "a snapshot\nrefused");
    let output = daemon.command(&leased, &["--", "echo", "{qemu}"]).output();
    let output = output.expect("pumice starts");
    let said = stderr(&output);
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{said}");
    assert!(said.lines().count() == 1 && said.contains("web=FILE:4"), "{said}");

    let held = lease(&daemon);
    let shown = |arguments: &[&str]| {
        stdout(&daemon.command(&["slots"], arguments).output().expect("pumice starts"))
    };
    let list: serde_json::Value = serde_json::from_str(&shown(&["--json"])).expect("JSON");
    let row = &list["snapshots"][0];
    assert_eq!((&row["sharing"], &row["ready"]), (&"shared".into(), &1.into()));
    assert_eq!((&row["leased"], list["leases"].as_array().map(Vec::len)), (&1.into(), Some(1)));
    assert!(shown(&[]).contains("SHARING") && shown(&[]).contains("  shared  "));
    let mut stream =
        std::os::unix::net::UnixStream::connect(place.join("metrics.sock")).expect("connected");
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("sent");
    let page = std::io::read_to_string(stream).expect("a page");
    assert!(page.contains("pumice_slots_snapshot_shared{name=\"web\"} 1\n"), "{page}");

    // A slot each from now on, and then one for all again.
    for (count, sharing) in [("2", Sharing::Alone), ("\"shared\"", Sharing::Shared)] {
        fs::write(&config, table(count)).expect("written");
        daemon.signal(libc::SIGHUP);
        let wanted = if sharing == Sharing::Alone { 2 } else { 1 };
        until(&daemon, "as configured", |row| {
            row.sharing == sharing && row.class.ready == wanted && row.class.leased == 1
        });
        assert_eq!(lease(&daemon).is_shared(), sharing == Sharing::Shared);
    }
    assert!(has(&held, "a snapshot\n".repeat(1000).as_bytes()));
    refused(&path, "--pages=hugetlb-2m", "shared", "can't be shared in hugetlb-2m pages");
    refused(&path, "--pages=4k", "share", "No such file");
}

fn refused(file: &Path, more: &str, count: &str, part: &str) {
    let snapshot = format!("web={}:{count}", file.display());
    let folder = file.with_file_name("run");
    let mut serve = pumice(&["serve", "--snapshot", &snapshot, more, "--dir"]);
    let output = serve.arg(folder).output().expect("pumice starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.contains(part), "{said}");
}

/// A machine writes to pages of its own: the shared memory would be saved without those.
#[test]
fn it_is_not_saved() {
    let place = place("shared-saved");
    let (path, copy) = (place.join("web.mem"), place.join("copy"));
    fs::write(&path, noise(1, 64 << 10)).expect("written");
    let daemon = daemon("shared-saved", &path, "shared", &["--pages", "4k"]);
    let one = lease(&daemon);
    let output = pumice(&["snapshot"]).arg(one.path()).arg(&copy).output().expect("pumice starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("is shared by all"), "{}", stderr(&output));
    assert!(!copy.exists());
}
