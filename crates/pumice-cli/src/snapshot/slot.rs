//! The slot that is copied: found among the files of a process, or named by a path. A path may be of any other file in
//! memory, too: the shared memory of a machine that is on no slot.

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pumice_command::Failure;
use pumice_slots::refusal::size;
use pumice_slots::SlotFile;
use rustix::fs::{fcntl_get_seals, fstat, fstatfs, openat, FileType, Mode, OFlags, SealFlags, CWD};

/// tmpfs, of which memfds are, and hugetlbfs: the numbers in statfs(2).
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x9584_58f6];
/// The most files that an error lists.
const MOST_LISTED: usize = 8;

/// An open slot.
#[derive(Debug)]
pub struct Slot {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Device and number.
    inode: (u64, u64),
}

impl Slot {
    /// Opens the slot of a process, by its number, or the one at a path.
    ///
    /// # Errors
    /// Where there is none, or several: the line says which.
    pub fn open(place: &Path) -> Result<Slot, Failure> {
        let text = place.as_os_str().as_bytes();
        if !text.is_empty() && text.iter().all(u8::is_ascii_digit) {
            return find(&place.display().to_string());
        }
        let no_slot = |why: &dyn Display| {
            Failure::system(format!("can't read a slot at {}: {why}", place.display()))
        };
        let slot = open_file(place).map_err(|error| no_slot(&error))?.ok_or_else(|| {
            no_slot(&"it is no file in memory; /proc/PID/fd/N is one, and so is {path} of 'pumice lease'")
        })?;
        slot.unless_shared()
    }

    /// Refuses a shared snapshot's memory: a machine has written to private pages.
    fn unless_shared(self) -> Result<Slot, Failure> {
        let is_sealed =
            fcntl_get_seals(&self.file).is_ok_and(|seals| seals.contains(SealFlags::WRITE));
        match is_sealed {
            false => Ok(self),
            true => Err(Failure::system(format!(
                "the memory at {self} is shared by all that lease it, and what a machine wrote is not in it"
            ))),
        }
    }

    /// Its file, for reading.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it still has its size: not if its lease has ended.
    pub fn is_whole(&self) -> bool {
        fstat(&self.file).is_ok_and(|status| status.st_size as u64 == self.bytes)
    }
}

impl Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// The one slot that a process has open, however often.
fn find(pid: &str) -> Result<Slot, Failure> {
    let no_look = |error: io::Error| {
        Failure::system(match error.kind() {
            io::ErrorKind::NotFound => format!("no process {pid}"),
            io::ErrorKind::PermissionDenied => {
                format!("this user may not see the files of process {pid}; root may")
            }
            _ => format!("can't look at the files of process {pid}: {error}"),
        })
    };
    let files = fs::read_dir(format!("/proc/{pid}/fd")).map_err(no_look)?;
    let (mut slots, mut others) = (Vec::<Slot>::new(), Vec::new());
    for path in files.flatten().map(|entry| entry.path()) {
        let Ok(link) = fs::read_link(&path) else { continue };
        if !link.as_os_str().as_bytes().starts_with(b"/memfd:") {
            continue;
        }
        let slot = match open_file(&path) {
            Ok(Some(slot)) => slot,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(no_look(error));
            }
            // It may have been closed since, or be empty.
            Ok(None) | Err(_) => continue,
        };
        match SlotFile::is_one(&slot.file) {
            true if slots.iter().any(|other| other.inode == slot.inode) => {}
            true => slots.push(slot),
            false => others.push(slot),
        }
    }
    match (slots.pop(), slots.len()) {
        (Some(slot), 0) => slot.unless_shared(),
        (Some(last), _) => {
            slots.push(last);
            let listed = list(&mut slots);
            Err(Failure::system(format!("process {pid} has several slots; name one: {listed}")))
        }
        (None, _) if others.is_empty() => Err(Failure::system(format!(
            "process {pid} has no slot open; 'pumice slots' lists leases and their processes"
        ))),
        (None, _) => {
            let listed = list(&mut others);
            Err(Failure::system(format!(
                "process {pid} has no slot open, but other memory, which can be named: {listed}"
            )))
        }
    }
}

/// Paths and sizes, by number.
fn list(files: &mut [Slot]) -> String {
    files.sort_by_key(|slot| (slot.path.as_os_str().len(), slot.path.clone()));
    let shown = files.iter().take(MOST_LISTED);
    let mut shown: Vec<_> = shown.map(|slot| format!("{slot} ({})", size(slot.bytes))).collect();
    if files.len() > MOST_LISTED {
        shown.push(format!("and {} more", files.len() - MOST_LISTED));
    }
    shown.join(", ")
}

/// Opens a file for reading; `None` if it is not in memory.
fn open_file(path: &Path) -> io::Result<Option<Slot>> {
    // Looked at before it is opened for reading: a FIFO would wait for a writer, and opening a device may do anything.
    let seen = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let status = fstat(&seen)?;
    let is_in_memory = IN_MEMORY.contains(&(fstatfs(&seen)?.f_type as u32));
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || !is_in_memory {
        return Ok(None);
    }
    if status.st_size <= 0 {
        return Err(io::Error::other("it is empty; a slot is when its lease has ended"));
    }
    let file = File::open(format!("/proc/self/fd/{}", seen.as_raw_fd()))?;
    Ok(Some(Slot {
        file,
        path: path.to_owned(),
        bytes: status.st_size as u64,
        inode: (status.st_dev, status.st_ino),
    }))
}
