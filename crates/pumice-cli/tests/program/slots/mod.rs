//! A daemon of a test's own, in a folder of its own.

mod daemon;
mod files;
mod isolation;
mod neighbours;
mod protocol;
mod qemu;
mod saved;
mod shared;
mod snapshots;
mod strangers;
mod tickets;
mod users;

use std::io::{BufRead, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pumice_slots::message::ClassRow;
use pumice_slots::{Client, Lease, LeaseRequest};
use rustix::net::sockopt;

use crate::support::{first_line, folder, pumice, Folder};

/// How long anything may take that should be done at once, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `pumice serve`. Dropping it kills it.
pub struct Daemon {
    pub folder: Folder,
    child: Child,
}

impl Daemon {
    /// Starts one with these arguments, in a new folder.
    pub fn start(name: &str, arguments: &[&str]) -> Daemon {
        let folder = folder(&format!("slots-{name}"));
        let child = Daemon::spawn(&folder, arguments);
        Daemon { folder, child }
    }

    /// Kills it as a crash would, and starts another in the same folder.
    pub fn restart(&mut self, arguments: &[&str]) {
        self.kill();
        self.child = Daemon::spawn(&self.folder, arguments);
    }

    /// `kill -9`
    pub fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain system call; the child is not reaped yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Its status, once it has ended.
    pub fn status(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("ours") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn spawn(folder: &std::path::Path, arguments: &[&str]) -> Child {
        let mut command = pumice(&["serve", "--dir"]);
        command.arg(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("pumice starts");
        let (line, said) = first_line(child.stderr.take());
        assert!(line.starts_with("pumice: listening"), "{line}");
        // Its other lines are for people who look at a failed test.
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).for_each(|l| eprintln!("{l}"))
        });
        child
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("slots.sock")
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// A lease, waiting as long as needs be.
    pub fn lease(&self, bytes: u64) -> Lease {
        self.client().lease(&waiting(bytes)).expect("a lease")
    }

    /// `pumice COMMAND --socket ...`
    pub fn command(&self, command: &[&str], rest: &[&str]) -> Command {
        let mut pumice = pumice(command);
        pumice.arg("--socket").arg(self.socket()).args(rest);
        pumice
    }

    /// Waits until the first class is as it should be.
    pub fn until(&self, what: &str, is_so: impl Fn(&ClassRow) -> bool) -> ClassRow {
        let until = Instant::now() + PATIENCE;
        loop {
            let row = self.client().classes().expect("an answer")[0];
            if is_so(&row) {
                return row;
            }
            assert!(Instant::now() < until, "not {what}: {row:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request that waits.
pub fn waiting(bytes: u64) -> LeaseRequest {
    LeaseRequest { wait_ms: PATIENCE.as_millis() as u32, ..LeaseRequest::new(bytes) }
}

/// Runs `what` as another user: the system call alone changes the calling thread's only.
pub fn as_user<R: Send>(uid: u32, groups: &[u32], what: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: plain system calls on the calling thread.
            unsafe {
                let count = groups.len();
                assert_eq!(libc::syscall(libc::SYS_setgroups, count, groups.as_ptr()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            }
            what()
        });
        thread.join().expect("no panic")
    })
}

/// Whether other users can be acted as.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can act as other users");
    }
    is_root
}

/// Held by a test that changes the kernel's pools of hugetlb pages, which are all tests' together.
pub fn hugetlb_alone() -> MutexGuard<'static, ()> {
    static POOLS: Mutex<()> = Mutex::new(());
    // A test that failed has poisoned it.
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket whose last close waits longer than any client, unless somebody sees to it; and its other end.
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let full = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (other_end, _) = listener.accept().expect("connected");
    full.set_nonblocking(true).expect("set");
    while (&full).write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&full, Some(10 * PATIENCE)).expect("set");
    (full, other_end)
}
