//! One run of one program: time, processor time, memory, faults.
//!
//! The program starts by a plain `fork`. After `vfork`, or as `posix_spawn` does it, the kernel
//! would say of the child that its peak was at least this process's own; after `fork`, at least
//! this process's anonymous memory, which is less than any program has.
//!
//! It leads a process group of its own, which is killed when the program has ended: nothing of one
//! run is there in the next. A signal that would end this process ends the program first, so that
//! the folder of inputs can be removed; that the program takes too long is told by a signal too.

use std::ffi::c_int;
use std::fs::{self, File};
use std::io;
use std::mem::zeroed;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use super::allocator::Preload;
use super::kit::Ready;
use super::loads::Clock;
use crate::cpu::CpuTime;
use crate::interrupts::Interrupts;

/// A program that runs longer than this never ends, or is no load to measure.
const PATIENCE_S: u32 = 120;

/// The cost of a run: of the program and all its descendants that it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// From start to end, or what the load says of its own work ([`Clock::Own`]).
    pub wall_s: f64,
    /// Processor time, in the program and in the kernel.
    pub cpu_s: f64,
    /// The part of it in the kernel.
    pub system_s: f64,
    /// The most memory that one of the processes had resident.
    pub peak_kib: f64,
    /// Page faults that needed no I/O.
    pub minor_faults: f64,
    /// Page faults that did.
    pub major_faults: f64,
}

/// Why there is nothing measured.
#[derive(Debug)]
pub enum NoRun {
    /// Somebody wants the experiment to end.
    Interrupted,
    /// The program's words or end instead.
    Failed(String),
}

/// Runs a program to its end, in `folder`.
pub fn run(
    preload: &Preload,
    load: &Ready,
    folder: &Path,
    interrupts: &Interrupts,
) -> Result<Spent, NoRun> {
    let failed = |error: io::Error| NoRun::Failed(error.to_string());
    let [complaints, answer] = ["stderr", "stdout"].map(|name| folder.join(name));
    let mut command = preload.command(&load.line);
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(match load.clock {
            Clock::Whole => Stdio::null(),
            Clock::Own => File::create(&answer).map_err(failed)?.into(),
        })
        .stderr(File::create(&complaints).map_err(failed)?);
    let (status, mut spent) = run_command(command, interrupts)?;
    let said = fs::read(&complaints).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    // The loader only says so, and the program would be measured without.
    if let Some(line) = said.lines().find(|line| line.contains("cannot be preloaded")) {
        return Err(NoRun::Failed(line.to_owned()));
    }
    if !status.success() {
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        let last: String = last.escape_debug().take(160).collect();
        return Err(NoRun::Failed(format!("{status}: {last}")));
    }
    if load.clock == Clock::Own {
        let answer = fs::read_to_string(&answer).map_err(failed)?;
        spent.wall_s = own_time(&answer)?;
    }
    Ok(spent)
}

/// The seconds that a load with a clock of its own prints last.
fn own_time(answer: &str) -> Result<f64, NoRun> {
    let time = answer.split_whitespace().last().and_then(|word| word.parse::<f64>().ok());
    time.filter(|time_s| time_s.is_finite() && *time_s > 0.0)
        .ok_or_else(|| NoRun::Failed("it printed no time".to_owned()))
}

fn run_command(
    mut command: Command,
    interrupts: &Interrupts,
) -> Result<(ExitStatus, Spent), NoRun> {
    if interrupts.came().is_some() {
        return Err(NoRun::Interrupted);
    }
    // SAFETY: a plain system call, in the child before it executes.
    unsafe {
        command.pre_exec(|| match libc::setpgid(0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let started = Instant::now();
    let child = command.spawn().map_err(|error| NoRun::Failed(error.to_string()))?;
    let pid = child.id() as libc::pid_t;
    // SAFETY: plain system calls with results that are valid for them; zeros are a valid siginfo
    // and rusage. The child is not reaped before wait4, so the number of its group is its own.
    let (status, usage, wall_s) = unsafe {
        libc::alarm(PATIENCE_S);
        let mut info: libc::siginfo_t = zeroed();
        while libc::waitid(libc::P_PID, child.id(), &mut info, libc::WEXITED | libc::WNOWAIT) != 0 {
            let signal = match interrupts.came() {
                None => 0,
                Some(libc::SIGALRM) => libc::SIGKILL,
                Some(_) => libc::SIGTERM,
            };
            libc::kill(-pid, signal);
        }
        let wall_s = started.elapsed().as_secs_f64();
        libc::alarm(0);
        libc::kill(-pid, libc::SIGKILL);
        let (mut status, mut usage): (c_int, libc::rusage) = (0, zeroed());
        libc::wait4(pid, &mut status, 0, &mut usage);
        (ExitStatus::from_raw(status), usage, wall_s)
    };
    match interrupts.came() {
        None => Ok((status, Spent::new(wall_s, &usage))),
        Some(libc::SIGALRM) => {
            interrupts.forget();
            Err(NoRun::Failed(format!("it did not end within {PATIENCE_S} s")))
        }
        Some(_) => Err(NoRun::Interrupted),
    }
}

impl Spent {
    fn new(wall_s: f64, usage: &libc::rusage) -> Spent {
        let cpu = CpuTime::of(usage);
        Spent {
            wall_s,
            cpu_s: cpu.total_s(),
            system_s: cpu.system_s,
            peak_kib: usage.ru_maxrss as f64,
            minor_faults: usage.ru_minflt as f64,
            major_faults: usage.ru_majflt as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::allocator::Allocator;
    use super::*;

    fn run_script(script: &str) -> Result<Spent, NoRun> {
        run_timed(script, Clock::Whole)
    }

    fn run_timed(script: &str, clock: Clock) -> Result<Spent, NoRun> {
        let preload = Allocator::Glibc.find().expect("it is there").expect("it is there");
        let line = ["sh", "-c", script].map(OsString::from).to_vec();
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        run(&preload, &Ready { line, clock }, folder.path(), &Interrupts::none())
    }

    #[test]
    fn a_whole_tree_counts() {
        let spent = run_script("head -c 30000000 /dev/zero | tail -c 20000000").expect("it runs");
        assert!(spent.peak_kib > 19_000.0, "{spent:?}");
        assert!(spent.minor_faults > 100.0 && spent.wall_s > 0.0 && spent.cpu_s > 0.0);
    }

    #[test]
    fn a_load_may_have_a_clock_of_its_own() {
        let spent = run_timed("echo of five: 0.125", Clock::Own).expect("it runs");
        assert_eq!(spent.wall_s, 0.125);
        for script in ["true", "echo 3 apples", "echo -1", "echo nan"] {
            let Err(NoRun::Failed(why)) = run_timed(script, Clock::Own) else {
                panic!("{script} says no time");
            };
            assert_eq!(why, "it printed no time");
        }
    }

    #[test]
    fn what_fails_says_why() {
        let Err(NoRun::Failed(why)) = run_script("echo first >&2; echo last >&2; exit 3") else {
            panic!("it does not fail");
        };
        assert!(why.contains("status: 3") && why.ends_with("last"), "{why}");
    }
}
