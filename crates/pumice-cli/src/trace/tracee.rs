//! Threads that this process traces by ptrace(2): requests, stops, and the end of each.
//!
//! A traced thread that dies stays a zombie until its tracer has waited for it. Until then its parent is not told, and
//! the other threads of its process can neither end nor execute a program. So every thread that was seized is let go
//! or waited for when its [`Tracee`] is dropped, also where a request failed because it was just killed. A thread that
//! is not at its end yet is left to [`Tracees::reap`]: a main thread that ends before the others can be waited for
//! after them only.
//!
//! The program that this process started is `child`: its end is not for us to take here.

use std::cell::RefCell;
use std::ffi::c_int;
use std::fs;
use std::mem::zeroed;
use std::ptr::null_mut;

use libc::pid_t;

use super::identity;

/// Stops of a thread that is traced by `PTRACE_SEIZE` (`linux/ptrace.h`).
const EVENT_STOP: c_int = 128;
/// Of a stop at a system call.
const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;
/// How often it is looked whether a thread that does not stop is still ours.
const PATIENCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// So often a thread that ends is waited for at once.
const TRIES: usize = 3;

/// A change of a traced thread.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// At a system call.
    Call,
    /// Stopped by us, or with its whole process by this signal.
    Trap(c_int),
    /// About to be told of a signal.
    Signal(c_int),
    /// It runs no more, or is not ours any more.
    Gone,
}

/// The threads that are not let go yet.
#[derive(Debug, Default)]
pub struct Tracees(RefCell<Vec<Thread>>);

impl Tracees {
    /// Lets go or waits for those of which this can be done now.
    pub fn reap(&self) {
        self.0.borrow_mut().retain_mut(|thread| match thread.poll() {
            Poll::Nothing => thread.is_ours(),
            Poll::Stopped(event) => {
                let signal = if let Event::Signal(signal) = event { signal } else { 0 };
                request(libc::PTRACE_DETACH, thread.tid, 0, signal as usize).is_none()
            }
            Poll::Ended => false,
        });
    }

    /// Whether there are any.
    pub fn are_left(&self) -> bool {
        !self.0.borrow().is_empty()
    }

    fn leave(&self, thread: Thread) {
        if thread.tid == thread.child {
            return;
        }
        self.0.borrow_mut().push(thread);
        for _ in 0..TRIES {
            self.reap();
            if !self.are_left() {
                return;
            }
            may_have_changed();
        }
    }
}

/// A thread that is traced. It is let go, or waited for, when this is dropped.
#[derive(Debug)]
pub struct Tracee<'t> {
    thread: Thread,
    tracees: &'t Tracees,
    has_ended: bool,
}

impl Tracee<'_> {
    /// Begins to trace a thread of a process, and tells it to stop. `None` if it can't be traced.
    pub fn seize(tracees: &Tracees, pid: pid_t, tid: pid_t, child: pid_t) -> Option<Tracee<'_>> {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        request(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        let thread = Thread { pid, tid, child };
        let tracee = Tracee { thread, tracees, has_ended: false };
        tracee.request(libc::PTRACE_INTERRUPT, 0, 0)?;
        Some(tracee)
    }

    /// The thread's number.
    pub fn tid(&self) -> pid_t {
        self.thread.tid
    }

    /// A request of ptrace(2). `None` if it fails: the thread was killed, or is not ours to trace any more.
    pub fn request(&self, what: libc::c_uint, address: usize, data: usize) -> Option<()> {
        request(what, self.thread.tid, address, data)
    }

    /// Waits for its next stop.
    pub fn wait(&mut self) -> Event {
        loop {
            match self.thread.poll() {
                Poll::Stopped(event) => return event,
                Poll::Nothing if may_have_changed() || self.thread.may_stop() => {}
                Poll::Nothing => return Event::Gone,
                Poll::Ended => {
                    self.has_ended = true;
                    return Event::Gone;
                }
            }
        }
    }
}

impl Drop for Tracee<'_> {
    fn drop(&mut self) {
        if !self.has_ended && self.request(libc::PTRACE_DETACH, 0, 0).is_none() {
            self.tracees.leave(self.thread);
        }
    }
}

/// A thread of a process.
#[derive(Clone, Copy, Debug)]
struct Thread {
    pid: pid_t,
    tid: pid_t,
    child: pid_t,
}

#[derive(Clone, Copy, Debug)]
enum Poll {
    Nothing,
    Stopped(Event),
    /// It was waited for, or there is nobody to wait for. The program's own end is still there.
    Ended,
}

impl Thread {
    /// Its change, if there is one.
    fn poll(&mut self) -> Poll {
        let options = libc::WEXITED | libc::WSTOPPED | libc::__WALL | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the result is valid for the call, and zeros are a valid one.
        let (waited, info) = unsafe {
            let mut info: libc::siginfo_t = zeroed();
            (libc::waitid(libc::P_PID, self.tid as libc::id_t, &mut info, options), info)
        };
        if waited != 0 {
            // A thread that executes a program gets the number of its process.
            if self.tid != self.pid && is_traced_by_us(self.pid) {
                self.tid = self.pid;
                return self.poll();
            }
            return Poll::Ended;
        }
        match info.si_code {
            0 => Poll::Nothing,
            libc::CLD_TRAPPED | libc::CLD_STOPPED => {
                let mut status = 0;
                // SAFETY: the result is valid for the call.
                unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) };
                let signal = libc::WSTOPSIG(status);
                Poll::Stopped(match status >> 16 {
                    EVENT_STOP => Event::Trap(signal),
                    _ if signal == SYSCALL_STOP => Event::Call,
                    _ => Event::Signal(signal),
                })
            }
            _ => {
                if self.tid != self.child {
                    // SAFETY: without a result. Its parent is told now.
                    unsafe { libc::waitpid(self.tid, null_mut(), libc::__WALL | libc::WNOHANG) };
                }
                Poll::Ended
            }
        }
    }

    /// `false` too when another thread has executed a program: the number is then that of a new thread.
    fn is_ours(&self) -> bool {
        is_traced_by_us(self.tid)
    }

    /// Whether it is ours and not at its end: a main thread that ended before the others can't be waited for.
    fn may_stop(&self) -> bool {
        self.is_ours() && identity::is_live(self.tid)
    }
}

/// Waits until a process of ours has changed: `false` if none did for a while.
fn may_have_changed() -> bool {
    // SAFETY: the set is valid for the calls. The caller has blocked all signals, and asks again what has changed.
    unsafe {
        let mut set = zeroed();
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigtimedwait(&set, null_mut(), &PATIENCE) > 0
    }
}

fn is_traced_by_us(tid: pid_t) -> bool {
    status(tid, "TracerPid:") == Some(std::process::id().to_string())
}

/// A field of `/proc/TID/status`.
pub fn status(tid: pid_t, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let field = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(field.trim().to_owned())
}

fn request(what: libc::c_uint, tid: pid_t, address: usize, data: usize) -> Option<()> {
    // SAFETY: callers pass what the request wants: numbers, or pointers to what is valid for the call. Only the thread
    // is changed, and the callers put it back.
    let done = unsafe { libc::ptrace(what as _, tid, address, data) };
    (done == 0).then_some(())
}
