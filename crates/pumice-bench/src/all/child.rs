//! One experiment as a child process: a crash of one must not lose the others.
//!
//! It leads a process group of its own, which is killed when it has ended, and has a folder for all that
//! it keeps for a while. A signal or the end of its time ends it; its results until then are in its file of rows.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, waitid, Pid, PidfdFlags, WaitId, WaitIdOptions};

use crate::interrupts::Interrupts;
use crate::registry::Row;
use crate::slot_daemon::{die_with_us, own_program};
use crate::team::folder::Folder;
use pumice_command::{Explain, Failure};

/// How often somebody looks how far it is.
const LOOK_MS: i64 = 500;
/// The time that a child has to end after it is asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Lines of notes that are kept, and letters of each.
const NOTES: usize = 200;
const NOTE_CHARS: usize = 400;

/// The outcome of an experiment.
#[derive(Debug)]
pub struct Ran {
    pub end: End,
    pub rows: Vec<Row>,
    /// Its output, without its tables' numbers where these are rows.
    pub notes: Vec<String>,
    pub seconds: f64,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Well,
    /// By itself, and this is why.
    Refused(String),
    /// Not by itself.
    Crashed(String),
    /// A signal came.
    Interrupted,
    /// Its time was over.
    TimeUp,
}

/// Runs `pumice bench` with these words. `look` is called twice a second.
pub fn run(
    words: &[&str],
    folder: &Folder,
    interrupts: &Interrupts,
    until: Instant,
    mut look: impl FnMut(),
) -> Result<Ran, Failure> {
    let own = own_program()?;
    let [rows, said, complained] =
        ["rows.jsonl", "stdout", "stderr"].map(|name| folder.path().join(name));
    let mut command = Command::new(own);
    command.arg("bench").args(words).arg("--json").arg(&rows);
    command.env("TMPDIR", folder.path()).stdin(Stdio::null());
    command.stdout(File::create(&said).or_fail("no experiment starts")?);
    command.stderr(File::create(&complained).or_fail("no experiment starts")?);
    command.process_group(0);
    let _ = fs::remove_file(&rows);
    let started = Instant::now();
    let child = die_with_us(&mut command).spawn().or_fail("no experiment starts")?;
    let (status, stopped) =
        wait(child, interrupts, until, &mut look).or_fail("no experiment starts")?;
    let complaints = lines(&complained);
    let end = match stopped {
        Some(end) => end,
        None => end_of(status, &complaints),
    };
    let mut notes = lines(&said);
    notes.extend(complaints);
    notes.truncate(NOTES);
    Ok(Ran { end, rows: read_rows(&rows), notes, seconds: started.elapsed().as_secs_f64() })
}

/// Waits until it has ended, or ends it and says why.
fn wait(
    mut child: Child,
    interrupts: &Interrupts,
    until: Instant,
    look: &mut impl FnMut(),
) -> io::Result<(ExitStatus, Option<End>)> {
    let pid = Pid::from_child(&child);
    let group = -(child.id() as libc::pid_t);
    // Without one (an old kernel, too many files) it is looked at now and then.
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok();
    let mut stopped = None;
    let mut killed_at = None;
    while !has_ended(pid) {
        if stopped.is_none() {
            stopped = match Instant::now() >= until {
                _ if interrupts.came().is_some() => Some(End::Interrupted),
                true => Some(End::TimeUp),
                false => None,
            };
            if stopped.is_some() {
                // SAFETY: a plain system call; the child is not reaped, so its group is its own.
                unsafe { libc::kill(group, libc::SIGINT) };
                killed_at = Some(Instant::now() + GRACE);
            }
        }
        if killed_at.is_some_and(|at| Instant::now() >= at) {
            // SAFETY: as above.
            unsafe { libc::kill(group, libc::SIGKILL) };
        }
        let pause = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        match &descriptor {
            // That a signal ends it early is meant.
            Some(it) => drop(poll(&mut [PollFd::new(it, PollFlags::IN)], Some(&pause))),
            None => drop(poll(&mut [], Some(&pause))),
        }
        look();
    }
    // SAFETY: as above. Nothing of one experiment is there in the next.
    unsafe { libc::kill(group, libc::SIGKILL) };
    Ok((child.wait()?, stopped))
}

fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

fn end_of(status: ExitStatus, complaints: &[String]) -> End {
    if status.success() {
        return End::Well;
    }
    let last = complaints.iter().rfind(|line| !line.trim().is_empty());
    match (status.code(), last) {
        (Some(_), Some(line)) if line.starts_with("pumice: ") => {
            End::Refused(line.trim_start_matches("pumice: ").to_owned())
        }
        (_, Some(line)) => End::Crashed(format!("{status}: {line}")),
        (_, None) => End::Crashed(status.to_string()),
    }
}

/// The lines of a file that are worth keeping.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = |line: &str| line.trim_end().chars().take(NOTE_CHARS).collect::<String>();
    text.lines().map(line).filter(|line| !line.is_empty()).take(NOTES).collect()
}

/// The rows so far. The last line may have been cut.
fn read_rows(path: &Path) -> Vec<Row> {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn how_it_ended_is_told() {
        let complaints = ["note".to_owned(), "pumice: no qemu; try apt".to_owned()];
        assert_eq!(end_of(ExitStatus::from_raw(0), &complaints), End::Well);
        let refused = End::Refused("no qemu; try apt".to_owned());
        assert_eq!(end_of(ExitStatus::from_raw(2 << 8), &complaints), refused);
        let crashed = end_of(ExitStatus::from_raw(libc::SIGABRT), &complaints[..1]);
        assert!(matches!(crashed, End::Crashed(why) if why.contains("note")));
    }

    #[test]
    fn rows_before_a_cut_are_read() {
        let path = tempfile::NamedTempFile::new().expect("made").into_temp_path();
        // Within a letter of two bytes.
        fs::write(&path, b"{\"a\":1}\n{\"a\":2}\n{\"a\":\"\xc2").expect("written");
        assert_eq!(read_rows(&path).len(), 2);
        fs::remove_file(&path).expect("ours");
        assert!(read_rows(&path).is_empty());
    }
}
