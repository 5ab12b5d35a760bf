//! System calls in a thread of another process: by ptrace(2), for a moment.
//!
//! A thread is stopped, makes the calls at an instruction of the vDSO, gets its registers and its signal mask back, and
//! goes on. Nothing is traced in between, so the program can be debugged, and stops and signals are its own.
//!
//! - A call that the stop interrupted goes on: the registers are put back while the kernel handles a stop, as it
//!   handles a signal, so it restarts the call then. Calls that end with `EINTR` instead are not interrupted
//!   ([`pick`]), except where a thread enters one just then.
//! - A thread that waits is stopped rather than one that runs: that one may be at a call just then. A program that is
//!   executed while its thread is traced gets no set-user-ID rights.
//! - A thread in a restartable sequence (rseq(2)) is let go: the kernel would not notice that it was left.
//! - If we are killed meanwhile, the program is killed too (`PTRACE_O_EXITKILL`), rather than go on with our registers.
//! - A thread under seccomp is left alone: it may be killed for a call that it never made.

use std::fs::{self, File, OpenOptions};
use std::mem::zeroed;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use libc::pid_t;

use super::identity::{live_thread, threads};
pub use super::tracee::Tracees;
use super::tracee::{status, Event, Tracee};

/// Code of 64-bit programs.
const USER_CS: u64 = 0x33;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Threads of a process that are looked at.
const MOST_THREADS: usize = 256;

/// A process whose threads can be stopped.
#[derive(Debug)]
pub struct Process {
    pid: pid_t,
    /// The program that this process started: its end is for others to wait for.
    child: pid_t,
    tracees: Rc<Tracees>,
    /// The address of an instruction `syscall`.
    syscall_at: u64,
    memory: File,
}

/// The reason why no thread was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStopped {
    /// None can be stopped now.
    NoThread,
    /// The process executed another program while a thread of it was traced.
    HasExecuted,
}

impl Process {
    /// `None` where its memory can't be read, or has no vDSO.
    pub fn of(pid: pid_t, child: pid_t, tracees: &Rc<Tracees>) -> Option<Process> {
        let shows = live_thread(pid)?;
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{shows}/mem"));
        let memory = memory.ok()?;
        let maps = fs::read_to_string(format!("/proc/{shows}/maps")).ok()?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let mut code = vec![0; usize::try_from(end - start).ok()?.min(1 << 16)];
        memory.read_exact_at(&mut code, start).ok()?;
        let offset = code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?;
        let (syscall_at, tracees) = (start + offset as u64, tracees.clone());
        Some(Process { pid, child, tracees, syscall_at, memory })
    }

    /// Whether its memory is still there: it is not after the process has executed a program.
    pub fn is_there(&self) -> bool {
        self.memory.read_at(&mut [0], self.syscall_at).is_ok_and(|read| read == 1)
    }

    /// Stops a thread.
    ///
    /// # Errors
    /// None could be stopped.
    pub fn stop(&self) -> Result<Stopped<'_>, NotStopped> {
        let picked = pick(self.pid).filter(|_| self.is_there());
        let tracee = picked.and_then(|tid| Tracee::seize(&self.tracees, self.pid, tid, self.child));
        let mut tracee = tracee.ok_or(NotStopped::NoThread)?;
        wait_until_stopped(&mut tracee).ok_or(NotStopped::NoThread)?;
        if !self.is_there() {
            return Err(NotStopped::HasExecuted);
        }
        Stopped::new(self, tracee).ok_or(NotStopped::NoThread)
    }
}

/// A thread to stop: one that waits in a call which goes on after a stop, or one that runs.
fn pick(pid: pid_t) -> Option<pid_t> {
    // futex, nanosleep, clock_nanosleep, poll, wait4, waitid, pause. After a stop, select and its like write the time
    // that is left, and end with `EINTR` where they can't.
    const GO_ON: [&str; 7] = ["202", "35", "230", "7", "61", "247", "34"];
    let mut running = None;
    for tid in threads(pid).take(MOST_THREADS) {
        let call = fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
        let call = call.split_whitespace().next().unwrap_or_default();
        let is_running = call == "running";
        if !is_running && !GO_ON.contains(&call) || is_running && running.is_some() {
            continue;
        }
        // Neither stopped nor at its end.
        let is_alive = status(tid, "State:").is_some_and(|state| state.starts_with(['R', 'S']));
        let is_free = status(tid, "TracerPid:").as_deref() == Some("0");
        if !is_alive || !is_free || !has_no_filter(tid) {
            continue;
        }
        if !is_running {
            return Some(tid);
        }
        running = Some(tid);
    }
    running
}

/// Whether a thread may make any system call.
fn has_no_filter(tid: pid_t) -> bool {
    match status(tid, "Seccomp:") {
        Some(mode) => mode == "0",
        // Without the line, the kernel has no seccomp.
        None => status(tid, "State:").is_some(),
    }
}

/// Waits until a thread that was told to stop has done so.
fn wait_until_stopped(tracee: &mut Tracee<'_>) -> Option<()> {
    loop {
        match tracee.wait() {
            Event::Trap(libc::SIGTRAP) => return Some(()),
            // Stopped as a whole, by a terminal or a signal: it stays so.
            Event::Trap(_) | Event::Gone => return None,
            Event::Signal(signal) => tracee.request(libc::PTRACE_CONT, 0, signal as usize)?,
            Event::Call => tracee.request(libc::PTRACE_CONT, 0, 0)?,
        }
    }
}

/// A thread that is stopped. It goes on when this is dropped.
#[derive(Debug)]
pub struct Stopped<'p> {
    process: &'p Process,
    tracee: Tracee<'p>,
    before: libc::user_regs_struct,
    mask: u64,
    has_called: bool,
    is_gone: bool,
}

impl<'p> Stopped<'p> {
    fn new(process: &'p Process, tracee: Tracee<'p>) -> Option<Stopped<'p>> {
        // SAFETY: registers are plain numbers.
        let before = unsafe { zeroed() };
        let mut stopped =
            Stopped { process, tracee, before, mask: 0, has_called: false, is_gone: true };
        stopped.prepare()?;
        stopped.is_gone = false;
        Some(stopped)
    }

    /// Reads what the thread must get back, and blocks its signals.
    fn prepare(&mut self) -> Option<()> {
        // It may have come under seccomp just before it stopped.
        if !has_no_filter(self.tracee.tid()) {
            return None;
        }
        self.tracee.request(libc::PTRACE_GETREGS, 0, (&raw mut self.before) as usize)?;
        if self.before.cs != USER_CS || self.is_in_sequence() {
            return None;
        }
        let all = u64::MAX;
        self.tracee.request(libc::PTRACE_GETSIGMASK, 8, (&raw mut self.mask) as usize)?;
        self.tracee.request(libc::PTRACE_SETSIGMASK, 8, (&raw const all) as usize)
    }

    /// Whether it is in a restartable sequence.
    fn is_in_sequence(&self) -> bool {
        // SAFETY: these are plain numbers.
        let mut where_: libc::ptrace_rseq_configuration = unsafe { zeroed() };
        let size = size_of_val(&where_);
        let request = self.tracee.request(
            libc::PTRACE_GET_RSEQ_CONFIGURATION,
            size,
            (&raw mut where_) as usize,
        );
        if request.is_none() || where_.rseq_abi_pointer == 0 {
            return false;
        }
        let word = |at: u64| {
            let mut bytes = [0; 8];
            let read = self.process.memory.read_exact_at(&mut bytes, at);
            read.ok().map(|()| u64::from_ne_bytes(bytes))
        };
        // `rseq_cs` of the thread's area; there the beginning and the length.
        let at = match word(where_.rseq_abi_pointer + 8) {
            Some(0) => return false,
            Some(at) => at,
            None => return true,
        };
        match (word(at + 8), word(at + 16)) {
            (Some(start), Some(len)) => self.before.rip.wrapping_sub(start) < len,
            _ => true,
        }
    }

    /// Has the thread make a system call. Returns its result; `None` if the thread is gone.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Option<i64> {
        if self.is_gone {
            return None;
        }
        let mut registers = self.before;
        registers.rip = self.process.syscall_at;
        registers.rax = number as u64;
        // No call that was interrupted is to be restarted now.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] =
            arguments;
        let result = self.run(&mut registers);
        self.is_gone |= result.is_none();
        result
    }

    /// Writes to its memory.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Option<()> {
        self.process.memory.write_all_at(bytes, at).ok()
    }

    /// The number of its process.
    pub fn pid(&self) -> pid_t {
        self.process.pid
    }

    fn run(&mut self, registers: &mut libc::user_regs_struct) -> Option<i64> {
        self.tracee.request(libc::PTRACE_SETREGS, 0, std::ptr::from_mut(registers) as usize)?;
        self.has_called = true;
        // It enters the call, and leaves it.
        for _ in 0..2 {
            let mut pass_on = 0;
            loop {
                self.tracee.request(libc::PTRACE_SYSCALL, 0, pass_on)?;
                match self.tracee.wait() {
                    Event::Call => break,
                    // SIGSTOP can't be blocked. This thread stops with the others when it is let go.
                    Event::Signal(signal) => pass_on = signal as usize,
                    Event::Trap(_) => pass_on = 0,
                    Event::Gone => return None,
                }
            }
        }
        self.tracee.request(libc::PTRACE_GETREGS, 0, std::ptr::from_mut(registers) as usize)?;
        Some(registers.rax as i64)
    }

    /// Gives the thread back what it had, before it is let go.
    fn release(&mut self) -> Option<()> {
        if self.has_called {
            // To a place where the kernel looks for calls to restart.
            self.tracee.request(libc::PTRACE_INTERRUPT, 0, 0)?;
            let mut pass_on = 0;
            loop {
                self.tracee.request(libc::PTRACE_CONT, 0, pass_on)?;
                match self.tracee.wait() {
                    Event::Trap(_) => break,
                    Event::Signal(signal) => pass_on = signal as usize,
                    Event::Call => pass_on = 0,
                    Event::Gone => return None,
                }
            }
            self.tracee.request(libc::PTRACE_SETREGS, 0, (&raw const self.before) as usize)?;
        }
        self.tracee.request(libc::PTRACE_SETSIGMASK, 8, (&raw const self.mask) as usize)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if !self.is_gone {
            self.release();
        }
    }
}
