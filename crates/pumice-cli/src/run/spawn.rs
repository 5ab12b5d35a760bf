//! Starts the program and stands in for it: its signals, its stops, its end are ours.
//!
//! Where nothing is to be done beside it, this process becomes the program ([`exec`]). Else the program is a child
//! in our process group, and this process leads the tree: its counters last as long as it does. The child starts as
//! `posix_spawn` would start it, by a `clone` that shares our memory until it executes. So starting costs the same
//! however large we are. `posix_spawn` itself can neither keep an ignored SIGCHLD ignored nor have the program
//! killed with us.
//!
//! While it runs, every signal that can be is blocked here and taken by `sigtimedwait`: no handler
//! ever runs. A signal of a terminal goes to the whole group, so the program has it already. A signal
//! that a process sends to us is meant for the program, and is passed on.

use std::ffi::{c_int, c_void, CString, OsString};
use std::io;
use std::mem::{zeroed, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};
use std::time::Duration;

use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use serde::Serialize;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(c_int),
}

/// The resources that a program and those of its descendants that were waited for have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time outside the kernel.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// The most memory one process of them had resident, in bytes.
    pub peak_resident_bytes: u64,
}

/// A run of a program, as objects for machines have it. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// Its words, or its name.
    pub program: String,
    /// `null` if a signal ended the program.
    pub exit_status: Option<u8>,
    /// `null` if it exited.
    pub signal: Option<i32>,
    /// The time it took.
    pub wall_s: f64,
    /// The time that the programs used, the helper threads' part included.
    pub user_s: f64,
    /// See [`Ran::user_s`].
    pub system_s: f64,
}

impl Ran {
    /// The figures of a run that took `wall_s` seconds.
    pub fn new(program: String, wall_s: f64, end: End, usage: &Usage) -> Ran {
        let (exit_status, signal) = match end {
            End::Exited(status) => (Some(status), None),
            End::Killed(signal) => (None, Some(signal)),
        };
        let (user_s, system_s) = (usage.user.as_secs_f64(), usage.system.as_secs_f64());
        Ran { program, exit_status, signal, wall_s, user_s, system_s }
    }
}

/// Runs `line` (a program, looked up in `PATH`, and its arguments) in this process's environment
/// and returns when it has ended.
///
/// # Errors
/// As `execvp`: `NotFound`, `PermissionDenied` and others mean that nothing was run.
pub fn run(line: &[OsString]) -> io::Result<(End, Usage)> {
    run_and_look(line, Duration::MAX, &mut |_| Duration::MAX)
}

/// As [`run`]. Calls `look`, with the program's number, at a time after the start, and then each time when it said.
/// The program may have ended by then, but its number is not another's yet.
///
/// # Errors
/// As [`run`].
pub fn run_and_look(
    line: &[OsString],
    first_look: Duration,
    look: &mut dyn FnMut(libc::pid_t) -> Duration,
) -> io::Result<(End, Usage)> {
    let signals = Signals::take_over();
    let child = spawn(line, &signals)?;
    let mut pause = first_look;
    loop {
        match next_change(child)? {
            Change::Ended(end, usage) => return Ok((end, usage)),
            Change::Stopped(signal) => stop_like(signal),
            Change::None => {
                reap_orphans(child);
                match signals.wait_and_pass_on(child, pause) {
                    Waited::ForSignal => {}
                    Waited::InVain => pause = look(child),
                }
            }
        }
    }
}

/// Becomes `line`, as `execvp`. Returns why it could not: nothing has changed then.
pub fn exec(line: &[OsString]) -> io::Error {
    let strings = match strings(line) {
        Ok(strings) => strings,
        Err(error) => return error,
    };
    let argv = pointers(&strings);
    // SAFETY: a list of strings that ends with null; all of them are there for the call.
    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process as the program ended, without a core of its own.
pub fn end_like(signal: c_int) -> ! {
    // SAFETY: plain system calls; nothing runs after them but the process's end.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut only = empty_set();
        libc::sigaddset(&mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, null_mut());
        libc::raise(signal);
        // Only signals that kill get here, so this is not reached; shells would show the same.
        libc::_exit(128 + signal)
    }
}

/// A set of signals.
pub struct SignalSet(libc::sigset_t);

/// Blocks those by which a process is told to end, to be waited for.
pub fn block_endings() -> SignalSet {
    block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
}

/// Blocks these too, and that by which a terminal's process is told to stop: see [`stop_like`].
pub fn block_endings_and_stop() -> SignalSet {
    block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTSTP])
}

/// Blocks those of [`block_endings`] that are not ignored: nohup(1) has SIGHUP be.
pub fn block_heeded_endings() -> SignalSet {
    let is_heeded = |&signal: &c_int| {
        // SAFETY: the result is valid for the call, which changes nothing; zeros are a valid one.
        unsafe {
            let mut now: libc::sigaction = zeroed();
            let known = libc::sigaction(signal, null(), &mut now) == 0;
            !(known && now.sa_sigaction == libc::SIG_IGN)
        }
    };
    let endings = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    let heeded: Vec<_> = endings.into_iter().filter(is_heeded).collect();
    block(&heeded)
}

fn block(signals: &[c_int]) -> SignalSet {
    // SAFETY: plain system calls on sets that live here.
    unsafe {
        let mut set = empty_set();
        for &signal in signals {
            libc::signal(signal, libc::SIG_DFL);
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, null_mut());
        SignalSet(set)
    }
}

/// Waits for one of them: its number.
pub fn wait_for(signals: &SignalSet) -> c_int {
    loop {
        // SAFETY: the set is valid for the call, which may fail if another signal comes.
        let signal = unsafe { libc::sigwaitinfo(&signals.0, null_mut()) };
        if signal > 0 {
            return signal;
        }
    }
}

/// Blocks all signals in the calling thread, and so in those that it starts. Returns what was blocked.
pub fn block_all() -> SignalSet {
    // SAFETY: plain system calls on sets that live here.
    unsafe {
        let (mut all, mut before) = (empty_set(), empty_set());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        SignalSet(before)
    }
}

/// Blocks these and no others in the calling thread.
pub fn unblock(before: &SignalSet) {
    // SAFETY: the set is valid for the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before.0, null_mut()) };
}

/// Signals blocked in this process, and the ones blocked before.
struct Signals {
    /// Those that are waited for.
    waited: libc::sigset_t,
    /// The mask and the disposition that this process changed, for the program to find as they were.
    mask_before: libc::sigset_t,
    child_before: libc::sighandler_t,
}

impl Signals {
    fn take_over() -> Signals {
        // SAFETY: plain system calls on signal sets that live here. Real-time signals below
        // SIGRTMIN are libc's own and SIGKILL and SIGSTOP can't be blocked; libc refuses these.
        unsafe {
            // An ignored SIGCHLD would reap the program before it is waited for.
            let child_before = libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut waited = empty_set();
            libc::sigfillset(&mut waited);
            let mut mask_before = empty_set();
            libc::sigprocmask(libc::SIG_BLOCK, &waited, &mut mask_before);
            Signals { waited, mask_before, child_before }
        }
    }

    /// Waits for a signal, so long at most, and passes it on if it is meant for the program.
    fn wait_and_pass_on(&self, child: libc::pid_t, most: Duration) -> Waited {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let most = libc::timespec {
            tv_sec: most.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: all are valid for the call.
        let signal = unsafe { libc::sigtimedwait(&self.waited, info.as_mut_ptr(), &most) };
        if signal <= 0 || signal == libc::SIGCHLD {
            let is_over =
                signal < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            return if is_over { Waited::InVain } else { Waited::ForSignal };
        }
        // SAFETY: zeroed before and filled by now.
        let info = unsafe { info.assume_init() };
        let sender = if info.si_code == SI_KERNEL { Sender::Kernel } else { Sender::Process };
        // `fg` continues the whole group; the program should not see that twice.
        let has_it = signal == libc::SIGCONT && was_continued(child);
        if !has_it && is_for_child(signal, sender, leads_session()) {
            // SAFETY: the child is not reaped yet, so the number is still its own.
            unsafe { libc::kill(child, signal) };
        }
        Waited::ForSignal
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    ForSignal,
    InVain,
}

/// `si_code` of what the kernel sends by itself, a terminal's signals among it.
const SI_KERNEL: c_int = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Kernel,
    Process,
}

/// Whether the child does not get `signal` anyway. `leads_session` says whether this process does:
/// a terminal that hangs up tells the leader of the session alone.
fn is_for_child(signal: c_int, sender: Sender, leads_session: bool) -> bool {
    match (sender, signal) {
        (Sender::Process, _) => true,
        (Sender::Kernel, libc::SIGHUP | libc::SIGCONT) => leads_session,
        (
            Sender::Kernel,
            libc::SIGINT
            | libc::SIGQUIT
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
            | libc::SIGWINCH,
        ) => false,
        // A timer or a limit that this process inherited in the program's place.
        (Sender::Kernel, _) => true,
    }
}

fn leads_session() -> bool {
    // SAFETY: plain system calls without arguments that matter.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Whether the child was continued since this was last asked.
fn was_continued(child: libc::pid_t) -> bool {
    let options = libc::WCONTINUED | libc::WNOHANG;
    // SAFETY: the result is valid for the call; zeros are a valid siginfo. Without WEXITED nothing
    // is reaped.
    unsafe {
        let mut info: libc::siginfo_t = zeroed();
        libc::waitid(libc::P_PID, child as libc::id_t, &mut info, options) == 0
            && info.si_signo == libc::SIGCHLD
    }
}

enum Change {
    Ended(End, Usage),
    Stopped(c_int),
    None,
}

/// As the first process of a container, reaps children that are not the program: their parents have ended. Elsewhere
/// others in this process may wait for theirs.
fn reap_orphans(program: libc::pid_t) {
    while std::process::id() == 1 {
        // SAFETY: the result is valid for the call; zeros are a valid siginfo.
        let ended = unsafe {
            let mut info: libc::siginfo_t = zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            match libc::waitid(libc::P_ALL, 0, &mut info, options) {
                0 => info.si_pid(),
                _ => 0,
            }
        };
        if ended == 0 || ended == program {
            return;
        }
        // SAFETY: a plain system call. It has ended, and is not the program.
        unsafe { libc::waitpid(ended, null_mut(), libc::WNOHANG) };
    }
}

fn next_change(child: libc::pid_t) -> io::Result<Change> {
    let mut status = 0;
    // SAFETY: both results are valid for the call; zeros are a valid rusage.
    let (changed, usage) = unsafe {
        let mut usage: libc::rusage = zeroed();
        (libc::wait4(child, &mut status, libc::WNOHANG | libc::WUNTRACED, &mut usage), usage)
    };
    match changed {
        0 => Ok(Change::None),
        _ if changed < 0 => Err(io::Error::last_os_error()),
        _ if libc::WIFSTOPPED(status) => Ok(Change::Stopped(libc::WSTOPSIG(status))),
        _ if libc::WIFSIGNALED(status) => {
            Ok(Change::Ended(End::Killed(libc::WTERMSIG(status)), Usage::from(&usage)))
        }
        _ => {
            let end = End::Exited(libc::WEXITSTATUS(status) as u8);
            Ok(Change::Ended(end, Usage::from(&usage)))
        }
    }
}

/// Stops this process too, so that the shell sees its job stopped. Returns when it goes on; the
/// SIGCONT that did it, if a process sent it to us alone, is then passed on like any other.
pub fn stop_like(signal: c_int) {
    // SAFETY: plain system calls. The signal's disposition is the default one.
    unsafe {
        let mut only = empty_set();
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &only, null_mut());
    }
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: a set of zeros is the empty set on Linux.
    unsafe { zeroed() }
}

/// The data that the child needs. It lives in the parent, which waits until the child has executed.
struct Start<'a> {
    argv: &'a [*const libc::c_char],
    signals: &'a Signals,
    parent: libc::pid_t,
    errno: c_int,
}

fn strings(line: &[OsString]) -> io::Result<Vec<CString>> {
    let strings = line.iter().map(|word| CString::new(word.as_bytes()));
    Ok(strings.collect::<Result<_, _>>()?)
}

/// An `argv`, for as long as the strings are there.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|word| word.as_ptr()).chain([null()]).collect()
}

fn spawn(line: &[OsString], signals: &Signals) -> io::Result<libc::pid_t> {
    let strings = strings(line)?;
    let argv = pointers(&strings);

    // execvp keeps a path there, and for a script without `#!` a copy of argv.
    let stack_size = ((64 << 10) + size_of_val(&*argv)).next_multiple_of(4096);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let stack = unsafe { mmap_anonymous(null_mut(), stack_size, protection, MapFlags::PRIVATE)? };
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    let mut start = Start { argv: &argv, signals, parent, errno: 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has a stack of its own, large enough for what `execute` does, and
    // CLONE_VFORK keeps this thread, and so `start`, where it is until the child is done with it.
    let child =
        unsafe { libc::clone(execute, stack.byte_add(stack_size), flags, (&raw mut start).cast()) };
    let cloned = if child < 0 { Err(io::Error::last_os_error()) } else { Ok(child) };
    // SAFETY: the child has left the stack.
    unsafe { munmap(stack, stack_size)? };
    let child = cloned?;
    // SAFETY: the child wrote it, if it did, before this thread went on.
    match unsafe { (&raw const start.errno).read_volatile() } {
        0 => Ok(child),
        errno => {
            // SAFETY: the child is ours and has exited.
            unsafe { libc::waitpid(child, null_mut(), 0) };
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// The child, in its parent's memory: only system calls, and `execvp`, which allocates nothing.
extern "C" fn execute(start: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a Start that outlives this, and waits. Dispositions are the child's
    // own, since CLONE_SIGHAND is not set.
    unsafe {
        let start = &mut *start.cast::<Start<'_>>();
        libc::signal(libc::SIGCHLD, start.signals.child_before);
        // SIGKILL can't be passed on: the program dies with this process.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() == start.parent {
            libc::sigprocmask(libc::SIG_SETMASK, &start.signals.mask_before, null_mut());
            libc::execvp(start.argv[0], start.argv.as_ptr());
            start.errno = *libc::__errno_location();
        }
        libc::_exit(127)
    }
}

impl From<&libc::rusage> for Usage {
    fn from(usage: &libc::rusage) -> Usage {
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        Usage {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            peak_resident_bytes: usage.ru_maxrss as u64 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminals_signals_reach_the_child_by_themselves() {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGWINCH] {
            assert!(!is_for_child(signal, Sender::Kernel, true));
            assert!(is_for_child(signal, Sender::Process, false));
        }
        assert!(is_for_child(libc::SIGHUP, Sender::Kernel, true));
        assert!(!is_for_child(libc::SIGHUP, Sender::Kernel, false));
        assert!(is_for_child(libc::SIGALRM, Sender::Kernel, false));
    }
}
