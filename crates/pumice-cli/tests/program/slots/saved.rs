//! `pumice snapshot`: a slot's memory in a file, of which slots are made again.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::slots::files::with_mounts;
use crate::slots::isolation::with_hugetlb;
use crate::slots::snapshots::{daemon as serving, has, lease, noise, place};
use crate::slots::Daemon;
use crate::support::{first_line, pumice, stderr, stdout};

const MIB: u64 = 1 << 20;

/// A program under `pumice lease`, which has a slot open and waits.
struct Lessee {
    child: Child,
    slot: PathBuf,
}

impl Lessee {
    fn start(daemon: &Daemon, size: &str) -> Lessee {
        let script = "echo {path}; read line || exit 0";
        let lease = ["lease", size, "--wait", "60s"];
        let mut child = daemon
            .command(&lease, &["--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("pumice starts");
        let (path, _output) = first_line(child.stdout.take());
        Lessee { child, slot: path.into() }
    }

    /// By a mapping: files of hugetlb pages have no write(2).
    fn write(&self, bytes: &[u8], at: u64) {
        let file = File::options().read(true).write(true).open(&self.slot).expect("the slot");
        let len = file.metadata().expect("a file").len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        assert!(at as usize + bytes.len() <= len);
        // SAFETY: a new mapping at an address of the kernel's choice, in which this is written and which then goes.
        unsafe {
            let mapped = mmap(null_mut(), len, protection, MapFlags::SHARED, &file, 0);
            let mapped = mapped.expect("mapped");
            mapped.cast::<u8>().add(at as usize).copy_from(bytes.as_ptr(), bytes.len());
            munmap(mapped, len).expect("ours");
        }
    }

    fn content(&self) -> Vec<u8> {
        fs::read(&self.slot).expect("the slot")
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("ours").success());
    }
}

impl Drop for Lessee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that has these files open and waits.
struct Opener(Child);

impl Opener {
    fn start(files: &[&Path]) -> Opener {
        let files: Vec<_> = files.iter().map(|file| File::open(file).expect("there")).collect();
        let numbers: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let keep = move || {
            for &number in &numbers {
                // SAFETY: a plain system call on a descriptor that the parent holds until the program has started.
                unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
            }
            Ok(())
        };
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec it makes system calls only.
        unsafe { command.pre_exec(keep) };
        let mut child = command.spawn().expect("sh");
        let _ = first_line(child.stdout.take());
        Opener(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn save(slot: &str, file: &Path) -> Output {
    let mut command = pumice(&["snapshot", "--json", slot]);
    command.arg(file).stdin(Stdio::null()).output().expect("pumice starts")
}

/// The line that it fails with.
fn refused(slot: &str, file: &Path) -> String {
    let output = save(slot, file);
    let said = stderr(&output);
    assert!(!output.status.success() && output.stdout.is_empty(), "{slot}: {said}");
    assert!(said.starts_with("pumice: ") && said.lines().count() == 1, "{slot}: {said}");
    said
}

/// The path of a file that this process has open.
fn own(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("there");
    entries.map(|entry| entry.expect("there").file_name().to_string_lossy().into()).collect()
}

/// A slot is written to by its lessee and saved, and four others have all of it.
fn round(pages: &str, size: u64) {
    let typed = size.to_string();
    let slots = format!("{size}=1");
    let daemon = Daemon::start("saved", &["--slot", &slots, "--pages", pages, "--polite", "off"]);
    let place = place("saved");
    let path = place.join("web.mem");
    let lessee = Lessee::start(&daemon, &typed);
    // At both ends, across a large page's edge, a page alone, and one byte.
    for (seed, at, bytes) in [
        (1, 0, 5000),
        (2, 2 * MIB - 10_000, 20_000),
        (3, 3 * MIB, 4096),
        (4, size - 70_001, 70_001),
    ] {
        lessee.write(&noise(seed, bytes), at);
    }
    lessee.write(b"x", size / 2 + 4095);
    let expected = lessee.content();
    for slot in [lessee.pid(), lessee.slot.display().to_string()] {
        let output = save(&slot, &path);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(output.stderr.is_empty());
        let said: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!((&said["bytes"], &said["file"]), (&size.into(), &path.to_str().into()));
        let data_bytes = said["data_bytes"].as_u64().expect("a number");
        assert!((99_098..600_000).contains(&data_bytes), "{data_bytes}");
        assert!(fs::read(&path).expect("ours") == expected);
        let status = fs::metadata(&path).expect("there");
        assert_eq!((status.len(), status.mode() & 0o777), (size, 0o600));
        assert!(status.blocks() * 512 < MIB, "{} blocks", status.blocks());
        assert_eq!(names(&place), ["web.mem"]);
    }
    assert!(lessee.content() == expected, "it is only read");
    lessee.end();

    let restored = serving("restored", &path, 4, &["--pages", "thp", "--polite", "off"]);
    let four = [(); 4].map(|()| lease(&restored));
    for (index, one) in four.iter().enumerate() {
        assert!(has(one, &expected), "{index}");
        one.file().write_all_at(&[0xaa; 4096], 0).expect("its own");
    }
}

#[test]
fn a_slot_of_small_pages_is_saved_and_four_are_restored() {
    round("4k", 16 * MIB);
}

#[test]
fn a_slot_of_huge_pages_is_saved_and_four_are_restored() {
    round("thp", 17 * MIB);
}

#[test]
fn a_slot_of_hugetlb_pages_is_saved_and_four_are_restored() {
    with_hugetlb("2048kB", 4, || round("hugetlb-2m", 8 * MIB));
}

/// The daemon has the new content, and never a half of each.
#[test]
fn a_snapshot_that_is_taken_again_replaces_the_old_one_at_once() {
    let daemon = Daemon::start("saved-again", &["--slot", "8M=1", "--pages", "4k"]);
    let lessee = Lessee::start(&daemon, "8M");
    let place = place("saved-again");
    let path = place.join("web.mem");
    let fill = |byte: u8| lessee.write(&vec![byte; 8 << 20], 0);
    fill(1);
    assert!(save(&lessee.pid(), &path).status.success());
    let restored = serving("saved-again", &path, 1, &["--pages", "4k", "--polite", "off"]);
    for version in 2..8u8 {
        fill(version);
        thread::scope(|scope| {
            let saved = scope.spawn(|| save(&lessee.pid(), &path));
            while !saved.is_finished() {
                let content = fs::read(&path).expect("there at all times");
                assert!([version - 1, version].contains(&content[0]), "{}", content[0]);
                assert!(content.len() == 8 << 20 && content.iter().all(|&it| it == content[0]));
            }
            assert!(saved.join().expect("no panic").status.success());
        });
        assert!(has(&lease(&restored), &vec![version; 8 << 20]));
    }
    assert_eq!(names(&place), ["web.mem"]);
}

#[test]
fn a_process_is_asked_for_its_slot() {
    let slots = ["--slot", "64K=3", "--pages", "4k"];
    let daemon = Daemon::start("saved-which", &slots);
    let place = place("saved-which");
    let path = place.join("web.mem");
    let (one, two) = (Lessee::start(&daemon, "64K"), Lessee::start(&daemon, "64K"));
    one.write(b"one", 0);
    two.write(b"two", 0);
    let memory = tempfile::tempfile_in("/dev/shm").expect("a file");
    memory.set_len(4096).expect("a size");
    for (files, part, count) in [
        (vec![], "has no slot open; 'pumice slots'", 0),
        (vec![Path::new("/dev/null"), Path::new("/")], "has no slot open", 0),
        (vec![&*one.slot, &*two.slot], "several slots; name one: /proc/", 2),
    ] {
        let said = refused(&Opener::start(&files).pid(), &path);
        assert!(said.contains(part), "{said}");
        assert_eq!(said.matches("(64K)").count(), count, "{said}");
    }
    // The same twice.
    let opener = Opener::start(&[&one.slot, &one.slot]);
    assert!(save(&opener.pid(), &path).status.success());
    assert_eq!(&fs::read(&path).expect("ours")[..4], b"one\0");
    // Another program's shared memory, by its path.
    assert!(save(&own(&memory), &path).status.success());
    assert_eq!(fs::metadata(&path).expect("there").len(), 4096);
}

#[test]
fn errors_are_a_line_and_leave_nothing() {
    let daemon = Daemon::start("saved-bad", &["--slot", "64K=1", "--pages", "4k"]);
    let lessee = Lessee::start(&daemon, "64K");
    let (pid, ended) = (lessee.pid(), lessee.slot.display().to_string());
    let place = place("saved-bad");
    let path = place.join("web.mem");
    let fifo = place.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a FIFO");
    let fifo = fifo.to_str().expect("UTF-8");
    for (slot, part) in [
        ("4000000", "no process 4000000"),
        ("99999999999999999999", "no process"),
        ("/no/such", "No such file"),
        ("/dev/null", "no file in memory"),
        ("/dev/zero", "no file in memory"),
        ("/dev/shm", "no file in memory"),
        ("/etc/passwd", "no file in memory"),
        (fifo, "no file in memory"),
    ] {
        let said = refused(slot, &path);
        assert!(said.contains(part), "{said}");
    }
    for (file, part) in [
        ("missing/web.mem", "No such file"),
        ("..", "names no file"),
        ("fifo", "no regular file"),
        ("fifo/web.mem", "Not a directory"),
    ] {
        let said = refused(&pid, &place.join(file));
        assert!(said.contains(part) && said.contains("can't write"), "{said}");
    }
    assert_eq!(names(&place), ["fifo"]);
    let kept = File::open(&ended).expect("the slot");
    lessee.end();
    let said = refused(&own(&kept), &path);
    assert!(said.contains("lease has ended"), "{said}");
}

#[test]
fn a_full_disk_is_a_line_and_leaves_the_old_file() {
    with_mounts(|| {
        let daemon = Daemon::start("saved-full", &["--slot", "8M=1", "--pages", "4k"]);
        let lessee = Lessee::start(&daemon, "8M");
        let place = place("saved-full");
        let folder = std::ffi::CString::new(place.to_str().expect("UTF-8")).expect("no zeros");
        // SAFETY: the strings end with zeros.
        let failed = unsafe {
            let kind = c"tmpfs".as_ptr();
            libc::mount(kind, folder.as_ptr(), kind, 0, c"size=1M,mode=755".as_ptr().cast())
        };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
        let path = place.join("web.mem");
        assert!(save(&lessee.pid(), &path).status.success(), "zeros take no room");
        lessee.write(&noise(1, 2 << 20), 0);
        let said = refused(&lessee.pid(), &path);
        assert!(said.contains("No space left") && said.contains("web.mem"), "{said}");
        assert_eq!(names(&place), ["web.mem"]);
        assert!(fs::read(&path).expect("ours").iter().all(|&byte| byte == 0));
    });
}

/// Whenever it is killed, there is the whole file or none.
#[test]
fn a_signal_leaves_the_whole_file_or_none() {
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGKILL];
    killed("saved-killed", &signals, |_| ());
}

/// The same where each file has a name: SIGKILL can't be waited for.
#[test]
fn a_signal_leaves_nothing_on_file_systems_without_nameless_files() {
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    killed("saved-named", &signals, deny_nameless_files);
}

fn killed(test: &str, signals: &[libc::c_int], prepare: fn(&mut Command)) {
    let daemon = Daemon::start(test, &["--slot", "64M=1", "--pages", "thp"]);
    let lessee = Lessee::start(&daemon, "64M");
    lessee.write(&noise(1, 64 << 20), 0);
    let expected = lessee.content();
    let place = place(test);
    let path = place.join("web.mem");
    for (round, &signal) in signals.iter().cycle().take(15).enumerate() {
        let mut command = pumice(&["snapshot", &lessee.pid()]);
        command.arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        prepare(&mut command);
        let mut child = command.spawn().expect("pumice starts");
        thread::sleep(Duration::from_millis(3 * round as u64));
        // SAFETY: a plain system call; the child is not reaped yet.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let status = child.wait().expect("ours");
        assert!(status.success() || status.signal() == Some(signal), "{status}");
        match &names(&place)[..] {
            [] => assert!(!status.success()),
            [name] if name == "web.mem" => assert!(fs::read(&path).expect("ours") == expected),
            others => panic!("{others:?}"),
        }
        let _ = fs::remove_file(&path);
    }
    // To its end, over a file that is there.
    fs::write(&path, "old").expect("written");
    let mut command = pumice(&["snapshot", &lessee.pid()]);
    command.arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
    prepare(&mut command);
    assert!(command.status().expect("pumice starts").success());
    assert!(names(&place) == ["web.mem"] && fs::read(&path).expect("ours") == expected);
}

/// Has the program get the kernel's answer of file systems that have no files without a name.
fn deny_nameless_files(command: &mut Command) {
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let nameless = (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    // The number of the call and the low half of its third argument, as seccomp(2) has them.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_openat as u32, 0, 3),
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 32, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, nameless, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let deny = move || {
        let filter = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: plain system calls on a filter that lives here.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) != 0
        };
        match failed {
            true => Err(std::io::Error::last_os_error()),
            false => Ok(()),
        }
    };
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(deny) };
}

/// The slot is truncated while it is read: nothing is made of a half.
#[test]
fn a_lease_that_ends_meanwhile_makes_no_file() {
    let daemon = Daemon::start("saved-ended", &["--slot", "64M=1", "--pages", "thp"]);
    let place = place("saved-ended");
    let path = place.join("web.mem");
    for round in 0..6 {
        let lessee = Lessee::start(&daemon, "64M");
        lessee.write(&noise(round, 64 << 20), 0);
        let expected = lessee.content();
        let slot = lessee.slot.display().to_string();
        let output = thread::scope(|scope| {
            let saved = scope.spawn(|| save(&slot, &path));
            thread::sleep(Duration::from_millis(6 * round));
            lessee.end();
            saved.join().expect("no panic")
        });
        let said = stderr(&output);
        if output.status.success() {
            assert!(fs::read(&path).expect("ours") == expected);
            fs::remove_file(&path).expect("ours");
            continue;
        }
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(names(&place).is_empty(), "{said}");
    }
}
