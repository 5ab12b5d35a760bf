//! The identity of a process's memory, and the thread that shows it.
//!
//! A main thread that has ended while others go on is a zombie, and the files of `/proc/PID` are empty. The memory of
//! such a process is that of `/proc/TID`, of a thread that lives.

use std::fs;

use libc::pid_t;

/// A process's memory from one `exec` to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    started: u64,
    stack: u64,
    arguments: u64,
}

impl Identity {
    /// `None` if the process is gone or a zombie.
    pub fn of(pid: pid_t) -> Option<Identity> {
        let process = Stat::of(pid)?;
        let shows = if process.is_live() { process.clone() } else { Stat::of(live_thread(pid)?)? };
        // proc_pid_stat(5) numbers the fields.
        Some(Identity {
            started: process.field(22)?,
            stack: shows.field(28)?,
            arguments: shows.field(48)?,
        })
    }

    /// Whether it is the same process, whatever it executes.
    pub fn is_same_process(self, other: Identity) -> bool {
        self.started == other.started
    }

    /// Whether it may be a process that the other one made by `fork`, which has executed nothing since.
    pub fn is_copy_of(self, other: Identity) -> bool {
        (self.stack, self.arguments) == (other.stack, other.arguments)
    }
}

/// The thread whose files in `/proc` show the memory of a process: the main thread, or another where that has ended.
pub fn live_thread(pid: pid_t) -> Option<pid_t> {
    if is_live(pid) {
        return Some(pid);
    }
    threads(pid).find(|&tid| is_live(tid))
}

/// Whether a thread is not at its end.
pub fn is_live(tid: pid_t) -> bool {
    Stat::of(tid).is_some_and(|stat| stat.is_live())
}

/// The threads of a process.
pub fn threads(pid: pid_t) -> impl Iterator<Item = pid_t> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok())
}

/// The fields of `/proc/TID/stat` from the third, the state, on.
#[derive(Clone, Debug)]
struct Stat(String);

impl Stat {
    fn of(tid: pid_t) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
        stat.rsplit_once(')').map(|(_, fields)| Stat(fields.to_owned()))
    }

    fn state(&self) -> &str {
        self.0.split_whitespace().next().unwrap_or("X")
    }

    fn is_live(&self) -> bool {
        !matches!(self.state(), "Z" | "X")
    }

    fn field(&self, nth: usize) -> Option<u64> {
        self.0.split_whitespace().nth(nth - 3)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_an_identity() {
        let pid = std::process::id() as pid_t;
        let own = Identity::of(pid).expect("it runs");
        assert!(own.is_same_process(own) && own.is_copy_of(own) && own.started > 0);
        assert_eq!(Identity::of(pid_t::MAX), None);
        assert_eq!(live_thread(pid), Some(pid));
        assert!(threads(pid).any(|tid| tid == pid));
    }
}
