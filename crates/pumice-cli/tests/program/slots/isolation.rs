//! A tenant may keep anything: the next one reads zeros, and the first gets SIGBUS and no byte back.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use pumice_slots::message::{Reply, Request};
use pumice_slots::refusal::Reason;
use pumice_slots::{socket, PageKind};
use rustix::mm::{mmap, MapFlags, ProtFlags};

use crate::slots::{hugetlb_alone, Daemon};

const PATTERN: u8 = 0xa5;

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The guard is asked to.
    Asked,
    /// The guard is dropped, and its connection closed.
    Dropped,
    /// The program under `pumice lease` exits.
    Exit,
    /// It kills itself.
    Killed,
    /// `pumice lease` is killed.
    LeaseKilled,
    /// The daemon is killed and another started, then the program exits.
    Restart,
}

const ENDINGS: [Ending; 6] = [
    Ending::Asked,
    Ending::Dropped,
    Ending::Exit,
    Ending::Killed,
    Ending::LeaseKilled,
    Ending::Restart,
];

/// A shared mapping that is kept.
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize) -> Mapping {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0).expect("mapped")
        };
        Mapping { at: at.cast(), len }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the mapping is ours, and its file as long.
        unsafe { self.at.write_bytes(byte, self.len) };
    }

    /// The signal that a child gets which reads the last byte.
    fn signal(&self) -> Option<i32> {
        // SAFETY: the child makes no call but to end; reading is the test.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &no_core);
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                let byte = self.at.add(self.len - 1).read_volatile();
                libc::_exit(i32::from(byte));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
        }
    }
}

/// The first tenant: writes, keeps a descriptor and a mapping, and ends its lease somehow.
fn first_tenant(
    daemon: &mut Daemon,
    arguments: &[&str],
    bytes: u64,
    ending: Ending,
) -> (File, Mapping) {
    let steal = |file: &File| {
        let kept = File::from(file.as_fd().try_clone_to_owned().expect("a copy"));
        let mapping = Mapping::new(&kept, bytes as usize);
        mapping.fill(PATTERN);
        (kept, mapping)
    };
    if matches!(ending, Ending::Asked | Ending::Dropped) {
        let lease = daemon.lease(bytes);
        let stolen = steal(lease.file());
        if ending == Ending::Asked {
            lease.end().expect("an answer");
        }
        return stolen;
    }
    let script = match ending {
        Ending::Killed => "echo {path}; read line; kill -9 $$",
        _ => "echo {path}; read line",
    };
    let mut holder = daemon
        .command(&["lease", &bytes.to_string(), "--wait", "60s"], &["--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pumice starts");
    let (path, _output) = crate::support::first_line(holder.stdout.take());
    let file = File::options().read(true).write(true).open(path).expect("the slot");
    let stolen = steal(&file);
    match ending {
        Ending::LeaseKilled => holder.kill().expect("ours"),
        Ending::Restart => {
            daemon.restart(arguments);
            daemon.until("taken over", |row| row.leased == 1);
            drop(holder.stdin.take());
        }
        _ => drop(holder.stdin.take()),
    }
    let status = holder.wait().expect("ours");
    if matches!(ending, Ending::Killed | Ending::LeaseKilled) {
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
    stolen
}

fn isolation(pages: PageKind, bytes: u64) {
    let size = format!("{bytes}=1");
    let arguments = ["--slot", &size, "--pages", pages.name()];
    let mut daemon = Daemon::start(&format!("isolation-{pages}"), &arguments);
    for ending in ENDINGS {
        let (kept, mapping) = first_tenant(&mut daemon, &arguments, bytes, ending);
        // It is the only slot, so the next lease comes after the end of the first.
        let next = daemon.lease(bytes);
        assert_eq!(mapping.signal(), Some(libc::SIGBUS), "{pages}, {ending:?}");
        assert_eq!(kept.metadata().expect("a file").len(), 0, "{pages}, {ending:?}");
        assert!(kept.set_len(bytes).is_err(), "{pages}, {ending:?}");
        assert!(kept.write_at(&[PATTERN; 8], 0).is_err(), "{pages}, {ending:?}");
        let content = Mapping::new(next.file(), bytes as usize);
        // SAFETY: the mapping is ours, and nobody writes to it.
        let content = unsafe { std::slice::from_raw_parts(content.at, content.len) };
        let is_zero = |piece: &[u8]| piece == &[0; 4096][..piece.len()];
        assert!(content.chunks(4096).all(is_zero), "{pages}, {ending:?}");
        next.end().expect("an answer");
    }
}

#[test]
fn of_small_pages() {
    isolation(PageKind::Small, 1 << 20);
}

#[test]
fn of_transparent_huge_pages() {
    isolation(PageKind::Thp, 4 << 20);
}

/// A write from memory whose faults nobody answers has the file's lock, and truncating waits for it.
#[test]
fn a_tenant_that_holds_its_file_holds_up_nobody() {
    let daemon = Daemon::start("held", &["--slot", "64K=3", "--pages", "4k"]);
    let lease = daemon.lease(64 << 10);
    let Some(unanswered) = Unanswered::new() else {
        eprintln!("skipped: no userfaultfd for the kernel's own faults");
        return;
    };
    let writes = unanswered.written_to(lease.file());
    let kept = lease.file().try_clone().expect("a copy");
    drop(lease);
    for _ in 0..6 {
        daemon.lease(64 << 10).end().expect("an answer");
    }
    // The fault is answered, and then the file goes as any does.
    drop(unanswered);
    writes.join().expect("no panic");
    let until = std::time::Instant::now() + crate::slots::PATIENCE;
    while kept.metadata().expect("a file").len() > 0 {
        assert!(std::time::Instant::now() < until, "not truncated");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// As while a lease waits: an answer in between would be taken for the end's.
#[test]
fn an_end_under_way_takes_no_other_request() {
    let daemon = Daemon::start("ending", &["--slot", "64K=2", "--pages", "4k"]);
    let lease = daemon.lease(64 << 10);
    let Some(unanswered) = Unanswered::new() else {
        eprintln!("skipped: no userfaultfd for the kernel's own faults");
        return;
    };
    let writes = unanswered.written_to(lease.file());
    for request in [Request::End, Request::Stat] {
        socket::send(lease.connection(), &request.encode(), None).expect("sent");
    }
    let packet = socket::receive(lease.connection()).expect("an answer").expect("not the end");
    let reply = Reply::decode(&packet.bytes).expect("a reply");
    drop(unanswered);
    writes.join().expect("no panic");
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.reason, Reason::OutOfTurn);
    assert!(socket::receive(lease.connection()).expect("the end").is_none());
    daemon.until("ended all the same", |row| row.leased == 0);
}

/// Memory that is missing, and a userfaultfd that nobody reads.
struct Unanswered {
    at: *mut u8,
    len: usize,
    descriptor: std::os::fd::OwnedFd,
}

impl Unanswered {
    fn new() -> Option<Unanswered> {
        const LEN: usize = 1 << 16;
        // SAFETY: plain system calls on structures that live here, as userfaultfd(2) has them: the API's
        // number, and a range to be watched for missing pages.
        unsafe {
            let descriptor = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as libc::c_int;
            if descriptor < 0 {
                return None;
            }
            let descriptor = std::os::fd::OwnedFd::from_raw_fd(descriptor);
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let nothing = std::ptr::null_mut();
            let at =
                rustix::mm::mmap_anonymous(nothing, LEN, protection, MapFlags::PRIVATE).ok()?;
            let mut api = [0xaa_u64, 0, 0];
            let mut range = [at as u64, LEN as u64, 1, 0];
            let watched = libc::ioctl(descriptor.as_raw_fd(), 0xc018_aa3f, api.as_mut_ptr()) == 0
                && libc::ioctl(descriptor.as_raw_fd(), 0xc020_aa00, range.as_mut_ptr()) == 0;
            watched.then_some(Unanswered { at: at.cast(), len: LEN, descriptor })
        }
    }
}

impl Unanswered {
    /// A thread that writes it to the file, and has got stuck.
    fn written_to(&self, file: &File) -> std::thread::JoinHandle<isize> {
        let file = file.try_clone().expect("a copy");
        let (at, len) = (self.at as usize, self.len);
        let writes = std::thread::spawn(move || {
            // SAFETY: the memory is mapped as long as the thread runs; its content is of no interest.
            unsafe { libc::write(file.as_raw_fd(), at as *const libc::c_void, len) }
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        writes
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut range = [self.at as u64, self.len as u64];
        // SAFETY: as above; a thread that waits for a page goes on with one of zeros.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), 0x8010_aa01, range.as_mut_ptr()) };
    }
}

#[test]
fn of_hugetlb_pages() {
    // More than there are slots: a lease's memory may be asked for anew before the old is back in the pool.
    with_hugetlb("2048kB", 4, || isolation(PageKind::Hugetlb2M, 4 << 20));
}

#[test]
fn of_the_largest_hugetlb_pages() {
    with_hugetlb("1048576kB", 2, || isolation(PageKind::Hugetlb1G, 1 << 30));
}

/// With so many pages more in the kernel's pool, if it has them.
pub fn with_hugetlb(size: &str, count: u64, what: fn()) {
    let _alone = hugetlb_alone();
    let pool = format!("/sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages");
    let read = || std::fs::read_to_string(&pool).unwrap_or_default().trim().parse::<u64>();
    let Ok(before) = read() else {
        eprintln!("skipped: no hugetlb pages of {size} in this kernel");
        return;
    };
    if std::fs::write(&pool, (before + count).to_string()).is_err() {
        eprintln!("skipped: only root gets hugetlb pages");
        return;
    }
    if read() == Ok(before + count) {
        what();
    } else {
        eprintln!("skipped: the kernel has no {count} hugetlb pages of {size} to give");
    }
    let _ = std::fs::write(&pool, before.to_string());
}
