//! System calls in a thread of another process: by ptrace(2), for a moment.
//!
//! A thread is stopped, makes the calls at an instruction of the vDSO, gets its registers and its signal mask back, and
//! goes on. Nothing is traced in between, so the program can be debugged, and stops and signals are its own.
//!
//! - A call that the stop interrupted goes on: the registers are put back while the kernel handles a stop, as it
//!   handles a signal, so it restarts the call then. Calls that end with `EINTR` instead are not interrupted
//!   ([`pick`]), except where a thread enters one just then.
//! - A thread in a restartable sequence (rseq(2)) is let go: the kernel would not notice that it was left.
//! - If we are killed meanwhile, the program is killed too (`PTRACE_O_EXITKILL`), rather than go on with our registers.
//! - A program with a seccomp filter is left alone: the filter may kill it for a call that it never made.

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::mem::zeroed;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

use libc::pid_t;

/// Stops of a thread that is traced by `PTRACE_SEIZE` (`linux/ptrace.h`).
const EVENT_STOP: c_int = 128;
/// Of a stop at a system call.
const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;
/// Code of 64-bit programs.
const USER_CS: u64 = 0x33;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How often it is looked whether a thread that does not stop is still ours.
const PATIENCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A process whose threads can be stopped.
#[derive(Debug)]
pub struct Process {
    pid: pid_t,
    /// The program that this process started: its end is for others to wait for.
    child: pid_t,
    /// The address of an instruction `syscall`.
    syscall_at: u64,
    memory: File,
}

impl Process {
    /// `None` where its memory can't be read, or has no vDSO.
    pub fn of(pid: pid_t, child: pid_t) -> Option<Process> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.ok()?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let mut code = vec![0; usize::try_from(end - start).ok()?.min(1 << 16)];
        memory.read_exact_at(&mut code, start).ok()?;
        let offset = code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?;
        Some(Process { pid, child, syscall_at: start + offset as u64, memory })
    }

    /// Stops a thread. `None` if none can be stopped now.
    pub fn stop(&self) -> Option<Stopped<'_>> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<i64>().ok()
        };
        if field("Seccomp:") == Some(2) || field("TracerPid:") != Some(0) {
            return None;
        }
        Stopped::seize(self, pick(self.pid)?)
    }
}

/// A thread to stop: one that runs, or that waits in a call which goes on after a stop.
fn pick(pid: pid_t) -> Option<pid_t> {
    // futex, nanosleep, clock_nanosleep, poll, ppoll, select, pselect6, wait4, waitid, pause.
    const GO_ON: [&str; 10] = ["202", "35", "230", "7", "271", "23", "270", "61", "247", "34"];
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut waiting = None;
    for thread in threads.flatten().take(256) {
        let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(call) = fs::read_to_string(thread.path().join("syscall")) else { continue };
        match call.split_whitespace().next() {
            Some("running") if is_alive(tid) => return Some(tid),
            Some(number) if GO_ON.contains(&number) => waiting = waiting.or(Some(tid)),
            _ => {}
        }
    }
    waiting
}

/// Whether a thread runs or waits, and is neither stopped nor at its end.
fn is_alive(tid: pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('R' | 'S'))
}

/// A thread that is stopped. It goes on when this is dropped.
#[derive(Debug)]
pub struct Stopped<'p> {
    process: &'p Process,
    tid: pid_t,
    before: libc::user_regs_struct,
    mask: u64,
    has_called: bool,
    is_gone: bool,
}

impl Stopped<'_> {
    fn seize(process: &Process, tid: pid_t) -> Option<Stopped<'_>> {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        request(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        // SAFETY: registers are plain numbers.
        let before = unsafe { zeroed() };
        let mut stopped =
            Stopped { process, tid, before, mask: 0, has_called: false, is_gone: true };
        request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        loop {
            match wait(process.child, tid) {
                Event::Trap(libc::SIGTRAP) => break,
                // Stopped as a whole, by a terminal or a signal: it stays so.
                Event::Trap(_) => {
                    request(libc::PTRACE_DETACH, tid, 0, 0);
                    return None;
                }
                Event::Signal(signal) => request(libc::PTRACE_CONT, tid, 0, signal as usize)?,
                Event::Call => request(libc::PTRACE_CONT, tid, 0, 0)?,
                Event::Gone => return None,
            }
        }
        if stopped.prepare().is_none() {
            request(libc::PTRACE_DETACH, tid, 0, 0);
            return None;
        }
        stopped.is_gone = false;
        Some(stopped)
    }

    /// Reads what the thread must get back, and blocks its signals.
    fn prepare(&mut self) -> Option<()> {
        request(libc::PTRACE_GETREGS, self.tid, 0, (&raw mut self.before) as usize)?;
        if self.before.cs != USER_CS || self.is_in_sequence() {
            return None;
        }
        let all = u64::MAX;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, (&raw mut self.mask) as usize)?;
        request(libc::PTRACE_SETSIGMASK, self.tid, 8, (&raw const all) as usize)
    }

    /// Whether it is in a restartable sequence.
    fn is_in_sequence(&self) -> bool {
        // SAFETY: these are plain numbers.
        let mut where_: libc::ptrace_rseq_configuration = unsafe { zeroed() };
        let size = size_of_val(&where_);
        let request = request(
            libc::PTRACE_GET_RSEQ_CONFIGURATION,
            self.tid,
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
        request(libc::PTRACE_SETREGS, self.tid, 0, std::ptr::from_mut(registers) as usize)?;
        self.has_called = true;
        // It enters the call, and leaves it.
        for _ in 0..2 {
            let mut pass_on = 0;
            loop {
                request(libc::PTRACE_SYSCALL, self.tid, 0, pass_on)?;
                match wait(self.process.child, self.tid) {
                    Event::Call => break,
                    // SIGSTOP can't be blocked. This thread stops with the others when it is let go.
                    Event::Signal(signal) => pass_on = signal as usize,
                    Event::Trap(_) => pass_on = 0,
                    Event::Gone => return None,
                }
            }
        }
        request(libc::PTRACE_GETREGS, self.tid, 0, std::ptr::from_mut(registers) as usize)?;
        Some(registers.rax as i64)
    }

    /// Gives the thread back what it had, and lets it go.
    fn release(&mut self) -> Option<()> {
        if self.has_called {
            // To a place where the kernel looks for calls to restart.
            request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
            let mut pass_on = 0;
            loop {
                request(libc::PTRACE_CONT, self.tid, 0, pass_on)?;
                match wait(self.process.child, self.tid) {
                    Event::Trap(_) => break,
                    Event::Signal(signal) => pass_on = signal as usize,
                    Event::Call => pass_on = 0,
                    Event::Gone => return None,
                }
            }
            request(libc::PTRACE_SETREGS, self.tid, 0, (&raw const self.before) as usize)?;
        }
        request(libc::PTRACE_SETSIGMASK, self.tid, 8, (&raw const self.mask) as usize)?;
        request(libc::PTRACE_DETACH, self.tid, 0, 0)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if !self.is_gone {
            self.release();
        }
    }
}

enum Event {
    /// At a system call.
    Call,
    /// Stopped by us, or with its whole process by this signal.
    Trap(c_int),
    /// About to be told of a signal.
    Signal(c_int),
    /// No thread of ours any more.
    Gone,
}

/// Waits for a thread's next stop.
fn wait(child: pid_t, tid: pid_t) -> Event {
    loop {
        let options = libc::WEXITED | libc::WSTOPPED | libc::__WALL | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the result is valid for the call, and zeros are a valid one.
        let (waited, info) = unsafe {
            let mut info: libc::siginfo_t = zeroed();
            (libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, options), info)
        };
        if waited != 0 {
            return Event::Gone;
        }
        match info.si_code {
            // Nothing yet.
            0 if may_have_changed() || is_traced_by_us(tid) => {}
            0 => return Event::Gone,
            libc::CLD_TRAPPED | libc::CLD_STOPPED => {
                let mut status = 0;
                // SAFETY: the result is valid for the call.
                unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
                let signal = libc::WSTOPSIG(status);
                return match status >> 16 {
                    EVENT_STOP => Event::Trap(signal),
                    _ if signal == SYSCALL_STOP => Event::Call,
                    _ => Event::Signal(signal),
                };
            }
            _ => {
                if tid != child {
                    // SAFETY: without a result. Its parent is told now.
                    unsafe { libc::waitpid(tid, null_mut(), libc::__WALL | libc::WNOHANG) };
                }
                return Event::Gone;
            }
        }
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

/// `false` too when another thread has executed a program: the number is then that of a new thread.
fn is_traced_by_us(tid: pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.and_then(|tracer| tracer.trim().parse().ok()) == Some(std::process::id())
}

/// A request of ptrace(2). `None` if it fails: the thread is then gone, or not ours to trace.
fn request(request: libc::c_uint, tid: pid_t, address: usize, data: usize) -> Option<()> {
    // SAFETY: callers pass what the request wants: numbers, or pointers to what is valid for the call. Only the thread
    // is changed, and the callers put it back.
    let done = unsafe { libc::ptrace(request as _, tid, address, data) };
    (done == 0).then_some(())
}
