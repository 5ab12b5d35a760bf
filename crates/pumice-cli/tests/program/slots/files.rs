//! Files of snapshots that change without a trace or do not answer, and what a reload makes of them.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pumice_slots::message::{FileState, Reply, Request, SnapshotRow};
use pumice_slots::refusal::Reason;
use pumice_slots::stat::Counter;
use pumice_slots::{socket, Client, Lease};
use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use rustix::process::{prlimit, Pid, Resource, Rlimit};

use crate::slots::snapshots::{daemon, has, lease, name, noise, place, reason, replace, until};
use crate::slots::{as_user, is_root, Daemon, PATIENCE};
use crate::support::{folder, folder_in, pumice, stderr, Folder};

/// Runs a test whose mounts nobody else sees, and which are gone with its thread and its daemon; as root only.
pub fn with_mounts(test: impl FnOnce() + Send) {
    if !is_root() {
        return;
    }
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: plain system calls. They are about this thread and its children.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS), 0);
                let flags = libc::MS_REC | libc::MS_PRIVATE;
                assert_eq!(libc::mount(null(), c"/".as_ptr(), null(), flags, null()), 0);
            }
            test();
        });
        thread.join().expect("no panic");
    });
}

/// A file system over a folder that never answers, until this is dropped; `None` where there is no FUSE.
fn hung(folder: &Path) -> Option<OwnedFd> {
    let fuse = openat(CWD, "/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let options = format!("fd={},rootmode=40755,user_id=0,group_id=0\0", fuse.as_raw_fd());
    let folder = format!("{}\0", folder.display());
    // SAFETY: the strings end with zeros.
    let failed = unsafe {
        let (folder, options) = (folder.as_ptr().cast(), options.as_ptr().cast());
        libc::mount(c"none".as_ptr(), folder, c"fuse".as_ptr(), 0, options)
    };
    (failed == 0).then_some(fuse)
}

/// A daemon whose configuration changes.
struct Configured {
    daemon: Daemon,
    config: PathBuf,
}

impl Configured {
    fn start(test: &str, place: &Folder, config: &str) -> Configured {
        let path = place.join("pumice.toml");
        fs::write(&path, config).expect("written");
        let arguments = ["--config", path.to_str().expect("UTF-8"), "--pages", "4k"];
        let daemon = Daemon::start(&format!("snap-{test}"), &arguments);
        Configured { daemon, config: path }
    }

    fn reload(&self, config: &str) {
        fs::write(&self.config, config).expect("written");
        self.daemon.signal(libc::SIGHUP);
    }

    /// The row of a snapshot, once it is as it should be.
    fn until(&self, snapshot: &str, is_so: impl Fn(&SnapshotRow) -> bool) -> SnapshotRow {
        let until = Instant::now() + PATIENCE;
        loop {
            let rows = self.daemon.client().snapshots().expect("an answer");
            let mut theirs = rows.iter().filter(|row| row.name == name(snapshot));
            let row = theirs.next().copied();
            assert!(theirs.next().is_none(), "two rows: {rows:?}");
            if let Some(row) = row.filter(|row| is_so(row)) {
                return row;
            }
            assert!(Instant::now() < until, "{rows:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How many slots were populated, ever.
fn populated(daemon: &Daemon) -> u64 {
    daemon.client().stat().expect("an answer")[Counter::Populated as usize]
}

fn table(snapshot: &str, file: &Path, count: u32) -> String {
    let file = file.display();
    format!("[[snapshot]]\nname = \"{snapshot}\"\nfile = \"{file}\"\ncount = {count}\n")
}

/// ext4 with inodes of 128 bytes. A file that is written twice within a second has the same times.
#[test]
fn a_file_whose_times_are_whole_seconds_is_never_old() {
    with_mounts(|| {
        let place = place("seconds");
        let (image, folder) = (place.join("image"), place.join("mounted"));
        File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("made");
        fs::create_dir(&folder).expect("made");
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            let output = command.args(arguments).args([&image]).output();
            output.is_ok_and(|output| output.status.success())
        };
        let options = ["-q", "-F", "-I", "128"];
        let at = folder.to_str().expect("UTF-8");
        if !run("mkfs.ext4", &options) || !run("mount", &["-o", "loop", "--target", at, "--source"])
        {
            eprintln!("skipped: no such file system can be made");
            return;
        }
        let path = folder.join("web.mem");
        fs::write(&path, noise(0, 100_000)).expect("written");
        let daemon = daemon("seconds", &path, 2, &["--pages", "4k"]);
        for round in 1..4 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
            thread::sleep(Duration::from_nanos((1_000_000_000 - now.subsec_nanos()).into()));
            fs::write(&path, noise(2 * round, 100_000)).expect("written");
            let wait = Duration::from_millis(400);
            if let Ok(lease) = daemon.client().lease_snapshot(name("web"), wait) {
                assert!(has(&lease, &noise(2 * round, 100_000)), "{round}: an old one");
            }
            fs::write(&path, noise(2 * round + 1, 100_000)).expect("written");
            assert!(has(&lease(&daemon), &noise(2 * round + 1, 100_000)), "{round}: an old one");
        }
    });
}

/// Neither times nor leases tell of a program that has a file there mapped.
#[test]
fn a_file_on_a_stacked_file_system_is_refused() {
    with_mounts(|| {
        let place = folder_in(Path::new("/dev/shm"), "snap-stacked");
        let [low, up, work, at] = ["low", "up", "work", "at"].map(|name| place.join(name));
        for folder in [&low, &up, &work, &at] {
            fs::create_dir(folder).expect("made");
        }
        fs::write(up.join("web.mem"), noise(1, 50_000)).expect("written");
        let options = [("lowerdir", &low), ("upperdir", &up), ("workdir", &work)];
        let options = options.map(|(name, path)| format!("{name}={}", path.display())).join(",");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "overlay", "-o", &options, "overlay"]).arg(&at).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no overlayfs");
            return;
        }
        let snapshot = format!("web={}:1", at.join("web.mem").display());
        let dir = folder("snap-stacked-dir");
        let dir = dir.to_str().expect("UTF-8");
        let mut serve = pumice(&["serve", "--dir", dir, "--snapshot", &snapshot]);
        let output = serve.output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("give its path on the one below"), "{}", stderr(&output));
        let daemon = daemon("stacked", &up.join("web.mem"), 1, &["--pages", "4k"]);
        assert!(has(&lease(&daemon), &noise(1, 50_000)));
    });
}

/// A file system in memory keeps no time of writes through a mapping.
#[test]
fn a_file_in_memory_that_is_mapped_for_writing_has_no_slots() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&memory, mode).expect("ours");
    let path = memory.path().join("web.mem");
    fs::write(&path, noise(1, 8192)).expect("written");
    let daemon = daemon("mapped", &path, 2, &["--pages", "4k"]);
    until(&daemon, "ready", |row| row.class.ready == 2);
    let file = File::options().read(true).write(true).open(&path).expect("ours");
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which is written to by this thread alone.
    let at = unsafe {
        let at = mmap(std::ptr::null_mut(), 8192, rights, MapFlags::SHARED, &file, 0);
        let at = at.expect("mapped").cast::<u8>();
        at.write(!at.read());
        at
    };
    drop(file);
    let at_once = || reason(daemon.client().lease_snapshot(name("web"), Duration::ZERO));
    assert_eq!(at_once(), Some(Reason::NoneReady));
    until(&daemon, "failing", |row| row.file == FileState::Failing && row.class.ready == 0);
    // SAFETY: nobody uses it any more.
    unsafe { munmap(at.cast(), 8192).expect("it was mapped") };
    assert!(has(&lease(&daemon), &fs::read(&path).expect("readable")));
    until(&daemon, "good", |row| row.file == FileState::Good);
}

/// One that can't be looked at for a while is not one that has changed.
#[test]
fn slots_outlast_a_lack_of_descriptors() {
    let place = place("descriptors");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 8192)).expect("written");
    let daemon = daemon("descriptors", &path, 2, &["--pages", "4k"]);
    until(&daemon, "ready", |row| row.class.ready == 2 && row.file == FileState::Good);
    let connection = socket::connect_to(&daemon.socket(), PATIENCE).expect("connected");
    let pid = Pid::from_raw(daemon.pid() as i32);
    let limit = |limit| prlimit(pid, Resource::Nofile, limit).expect("ours");
    let row = || {
        socket::send(&connection, &Request::Snapshots(0).encode(), None).expect("sent");
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        let Ok(Reply::Snapshots(1, rows)) = Reply::decode(&packet.bytes) else { panic!("a row") };
        rows[0]
    };
    let before = row();
    let old = limit(Rlimit {
        current: Some(3),
        maximum: rustix::process::getrlimit(Resource::Nofile).maximum,
    });
    let patience = Instant::now() + PATIENCE;
    while row().file == FileState::Good {
        assert!(Instant::now() < patience, "it can look");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(row().class, before.class);
    limit(old);
    until(&daemon, "good", |row| row.file == FileState::Good);
    assert!(has(&lease(&daemon), &noise(1, 8192)));
    until(&daemon, "filled again", |row| row.class.ready == 2);
    assert_eq!(populated(&daemon), 3, "none was dropped");
}

/// Each user asks again and again, and another's later request may come first in turn.
#[test]
fn a_request_is_not_refused_beside_ready_slots() {
    if !is_root() {
        return;
    }
    let place = place("turns");
    let path = place.join("web.mem");
    fs::write(&path, noise(1, 4096)).expect("written");
    let users = [54_321, 54_322, 54_323];
    let allow = users.map(|user| format!("user:{user}"));
    let allow: Vec<_> = allow.iter().flat_map(|rule| ["--allow", rule]).collect();
    let daemon = daemon("turns", &path, 100, &[&["--pages", "4k"], &allow[..]].concat());
    until(&daemon, "ready", |row| row.class.ready == 100);
    let client = Client::new(daemon.socket());
    let ask = |user| {
        let leased = |_| client.lease_snapshot(name("web"), Duration::ZERO);
        as_user(user, &[], || (0..30).map(leased).collect::<Result<Vec<Lease>, _>>())
    };
    let held: Vec<_> = thread::scope(|scope| {
        let threads = users.map(|user| scope.spawn(move || ask(user)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for leases in &held {
        assert_eq!(leases.as_ref().map_err(ToString::to_string).map(Vec::len), Ok(30));
    }
}

#[test]
fn quotas_hold_where_a_reload_makes_slots_larger_or_quotas_smaller() {
    const FRIEND: u32 = 54_321;
    if !is_root() {
        return;
    }
    let place = place("quotas");
    let [small, large] = ["small", "large"].map(|file| place.join(file));
    fs::write(&small, noise(1, 64 << 10)).expect("written");
    fs::write(&large, noise(2, 120 << 10)).expect("written");
    let config = |file: &Path, quota: &str| {
        let allow = format!("allow = [\"user:{FRIEND}={quota}\"]\n");
        allow + &table("web", file, 1) + "[[slot]]\nsize = \"64K\"\n"
    };
    let web = Configured::start("quotas", &place, &config(&small, "100K"));
    let daemon = &web.daemon;
    let held = (lease(daemon), daemon.lease(4096));
    let waits = |of_snapshot| {
        let client = Client::new(daemon.socket());
        let request = super::waiting(4096);
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                as_user(FRIEND, &[], || match of_snapshot {
                    Some(snapshot) => reason(client.lease_snapshot(snapshot, PATIENCE)),
                    None => reason(client.lease(&request)),
                })
            });
            let is_waiting = |waiting: u32| waiting == 1;
            match of_snapshot {
                Some(_) => drop(web.until("web", |row| is_waiting(row.class.waiting))),
                None => drop(daemon.until("waited for", |row| is_waiting(row.waiting))),
            }
            match of_snapshot {
                Some(_) => web.reload(&config(&large, "100K")),
                None => web.reload(&config(&large, "50K")),
            }
            thread.join().expect("no panic")
        })
    };
    assert_eq!(waits(Some(name("web"))), Some(Reason::Quota));
    assert_eq!(waits(None), Some(Reason::Quota));
    drop(held);
}

#[test]
fn a_reload_keeps_one_row_and_all_that_can_be_read() {
    let place = place("pages");
    let [file, missing] = ["file", "missing"].map(|file| place.join(file));
    fs::write(&file, noise(1, 50_000)).expect("written");
    let web = Configured::start("pages", &place, &table("web", &file, 2));
    let held = lease(&web.daemon);
    let thp = table("web", &file, 2) + "pages = \"thp\"\n";
    // A file that is missing is its snapshot's trouble alone.
    web.reload(&(thp + &table("other", &missing, 1)));
    web.until("other", |row| row.file == FileState::Failing && row.class.ready == 0);
    let is_thp = |row: &SnapshotRow| row.class.pages == pumice_slots::PageKind::Thp;
    web.until("web", |row| is_thp(row) && row.class.ready == 1 && row.class.leased == 1);
    assert!(has(&held, &noise(1, 50_000)) && has(&lease(&web.daemon), &noise(1, 50_000)));
    replace(&missing, &noise(2, 9_000));
    let other = web.daemon.client().lease_snapshot(name("other"), PATIENCE).expect("a lease");
    assert!(has(&other, &noise(2, 9_000)));
    web.until("other", |row| row.file == FileState::Good);
    drop(held);
    web.until("web", |row| row.class.ready == 2 && row.class.leased == 0);
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_no_reload() {
    with_mounts(|| {
        let place = place("hung");
        fs::create_dir(place.join("hung")).expect("made");
        let Some(fuse) = hung(&place.join("hung")) else {
            eprintln!("skipped: no FUSE");
            return;
        };
        let [good, stuck] = ["good", "hung/file"].map(|file| place.join(file));
        fs::write(&good, noise(1, 50_000)).expect("written");
        let slot = "[[slot]]\nsize = \"64K\"\n";
        let web = Configured::start("hung", &place, slot);
        for count in 2..8 {
            let file = if count % 2 == 0 { &stuck } else { &good };
            web.reload(&(table("web", file, 1) + &table("good", &good, count) + slot));
            web.until("good", |row| row.class.wanted == count && row.class.ready == count);
        }
        web.daemon.lease(4096).end().expect("others are served");
        let tasks = fs::read_dir(format!("/proc/{}/task", web.daemon.pid())).expect("it runs");
        let names = tasks.map(|task| fs::read_to_string(task.expect("one").path().join("comm")));
        let looks = names.filter(|name| matches!(name, Ok(name) if name.trim() == "pumice-look"));
        assert_eq!(looks.count(), 2, "one for each path");
        // It answers, at last.
        web.reload(&(table("web", &stuck, 1) + slot));
        let row = web.until("web", |row| row.file == FileState::Failing);
        assert_eq!(row.class.ready, 0);
        drop(fuse);
        web.reload(&table("web", &good, 1));
        assert!(has(&lease(&web.daemon), &noise(1, 50_000)));
    });
}

/// Nothing is known of the file then.
#[test]
fn a_file_system_that_stops_to_answer_is_told_and_drops_no_slots() {
    with_mounts(|| {
        let place = place("stops");
        let (folder, path) = (place.join("folder"), place.join("folder/web.mem"));
        fs::create_dir(&folder).expect("made");
        fs::write(&path, noise(1, 50_000)).expect("written");
        let daemon = daemon("stops", &path, 2, &["--pages", "4k"]);
        until(&daemon, "ready", |row| row.class.ready == 2 && row.file == FileState::Good);
        let Some(fuse) = hung(&folder) else {
            eprintln!("skipped: no FUSE");
            return;
        };
        let row = until(&daemon, "failing", |row| row.file == FileState::Failing);
        assert_eq!(row.class.ready, 2);
        let at = format!("{}\0", folder.display());
        // SAFETY: the string ends with a zero.
        assert_eq!(unsafe { libc::umount2(at.as_ptr().cast(), libc::MNT_DETACH) }, 0);
        // The look that waits fails, and the next one does not.
        drop(fuse);
        assert!(has(&lease(&daemon), &noise(1, 50_000)));
        until(&daemon, "good", |row| row.file == FileState::Good && row.class.ready == 2);
        assert_eq!(populated(&daemon), 3, "none was dropped");
    });
}
