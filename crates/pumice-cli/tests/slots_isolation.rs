//! Whatever a tenant keeps, the next one reads zeros, and the first gets SIGBUS and no byte back.

mod slots;
mod support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use pumice::slots::PageKind;
use rustix::mm::{mmap, MapFlags, ProtFlags};

use slots::Daemon;

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
    let mut path = String::new();
    let mut output = std::io::BufReader::new(holder.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut output, &mut path).expect("a line");
    let file = File::options().read(true).write(true).open(path.trim_end()).expect("the slot");
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
        assert!(content.iter().all(|&byte| byte == 0), "{pages}, {ending:?}");
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

/// Two pages: a lease's memory may be asked for anew before the old is back in the pool.
#[test]
fn of_hugetlb_pages() {
    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let before = std::fs::read_to_string(POOL).unwrap_or_default();
    let Ok(before) = before.trim().parse::<u64>() else {
        eprintln!("skipped: no hugetlb pages in this kernel");
        return;
    };
    if std::fs::write(POOL, (before + 4).to_string()).is_err() {
        eprintln!("skipped: only root gets hugetlb pages");
        return;
    }
    let now = std::fs::read_to_string(POOL).unwrap_or_default();
    if now.trim().parse() == Ok(before + 4) {
        isolation(PageKind::Hugetlb2M, 4 << 20);
    } else {
        eprintln!("skipped: the kernel has no hugetlb pages to give");
    }
    let _ = std::fs::write(POOL, before.to_string());
}
