//! The file of a tree's counters and settings: made, found again, swept away.
//!
//! It lies in `/dev/shm`, named `pumice.UID.PID.NUMBER` after the `pumice run` that made it, and
//! only its user may open it. Its maker holds a lock on it for as long as it lives. It goes when
//! the maker ends, or, where some process of the tree outlives that (a daemon), at the next
//! `pumice run` after the last of them is gone: [`sweep`].

use std::ffi::{CString, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{null_mut, NonNull};

use pumice::stats::{Slot, Tree, FOLDS, TREE_SIZE};
use pumice::sys::{file, thread};
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::mm::{mmap, MapFlags, ProtFlags};

/// Where the file may lie, best first.
const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];

/// A file that changes each time is shown as it is.
const MOST_READINGS: usize = 4;

/// A tree's file, held by the `pumice run` that made it.
#[derive(Debug)]
pub struct StatsFile {
    /// Where it lies, for `PUMICE_STATS`.
    pub path: PathBuf,
    /// What is in it.
    pub tree: &'static Tree,
    /// Keeps the lock that tells [`sweep`] to leave the file alone.
    _locked: File,
}

impl StatsFile {
    /// Makes the file. `pool_max` and `ready` are in bytes.
    pub fn create(pool_max: u64, ready: u64) -> io::Result<StatsFile> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for folder in FOLDERS {
            result = create_in(Path::new(folder), pool_max, ready);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Removes the file, unless a process of the tree still counts there.
    pub fn close(self) {
        if live_slots(self.tree).next().is_none() {
            // Whoever removed it before us did our work.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn create_in(folder: &Path, pool_max: u64, ready: u64) -> io::Result<StatsFile> {
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("pumice.{uid}.{}.{:x}", std::process::id(), thread::now_ns());
    let path = folder.join(name);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    let made = flock(&file, FlockOperation::NonBlockingLockShared)
        .map_err(io::Error::from)
        .and_then(|()| file.set_len(TREE_SIZE as u64))
        .and_then(|()| map(&file));
    match made {
        Ok(memory) => {
            // SAFETY: a new file's bytes are zeros, and the mapping is never undone.
            let tree = unsafe { Tree::create(memory, pool_max, ready) };
            Ok(StatsFile { path, tree, _locked: file })
        }
        Err(error) => {
            let _ = fs::remove_file(&path);
            Err(error)
        }
    }
}

fn map(file: &File) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(null_mut(), TREE_SIZE, protection, MapFlags::SHARED, file, 0)? };
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Slots of processes that exist.
pub fn live_slots(tree: &Tree) -> impl Iterator<Item = &Slot> {
    tree.slots().iter().filter(|slot| slot.pid() != 0 && thread::process_exists(slot.pid()))
}

/// The name of the program that counts in a slot. It is whatever the program wrote.
pub fn program_name(slot: &Slot) -> String {
    let name = slot.name();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Removes files of this user whose maker and whose processes are all gone.
pub fn sweep() {
    let uid = rustix::process::geteuid().as_raw();
    for (path, maker) in files() {
        if maker.uid != uid || thread::process_exists(maker.pid) {
            continue;
        }
        // The lock tells what the process number can't: the maker may live in another
        // namespace of process numbers.
        let Ok(file) = OpenOptions::new().read(true).custom_flags(no_follow()).open(&path) else {
            continue;
        };
        let unlocked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // A copy: whoever made the file, under whatever name, may cut it short.
        let is_over = |file: &Snapshot| live_slots(file.tree()).next().is_none();
        if unlocked && Snapshot::read(&path).as_ref().is_none_or(is_over) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Which `pumice run` made a file, by the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    /// The user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
}

/// All files there are, of all users.
pub fn files() -> impl Iterator<Item = (PathBuf, Maker)> {
    // In all of them: one that can be read is not yet one in which a file could be made.
    let entries = FOLDERS.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    entries.flatten().filter_map(|entry| {
        let maker = maker_of(entry.file_name().to_str()?)?;
        Some((entry.path(), maker))
    })
}

fn maker_of(name: &str) -> Option<Maker> {
    let mut parts = name.strip_prefix("pumice.")?.split('.');
    let maker = Maker { uid: parts.next()?.parse().ok()?, pid: parts.next()?.parse().ok()? };
    (parts.next().is_some() && parts.next().is_none()).then_some(maker)
}

/// The tree in a file, if it is one of this version. Never unmapped.
pub fn open(path: &Path) -> Option<&'static Tree> {
    let path = CString::new(OsString::from(path).into_vec()).ok()?;
    let memory = file::map_shared(&path, TREE_SIZE).ok()??;
    // SAFETY: mapped, as long as the file was, and never unmapped.
    unsafe { Tree::open(memory) }
}

/// A copy of a tree's file.
///
/// What is mapped may be cut short by whoever owns the file, which kills the reader; a copy can't.
#[derive(Debug)]
pub struct Snapshot(Box<Page>);

/// As a [`Tree`] lies in a file's mapping.
#[derive(Debug)]
#[repr(align(4096))]
struct Page([u8; TREE_SIZE]);

impl Snapshot {
    /// `None` if it is no tree of this version, or another user's.
    pub fn read(path: &Path) -> Option<Snapshot> {
        let file = OpenOptions::new().read(true).custom_flags(no_follow()).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() != TREE_SIZE as u64 {
            return None;
        }
        let mut snapshot = Snapshot(Box::new(Page([0; TREE_SIZE])));
        // While a slot goes to another process, its counters are nowhere. That takes a microsecond, unless who
        // does it is killed.
        for _ in 0..MOST_READINGS {
            file.read_exact_at(&mut snapshot.0 .0, 0).ok()?;
            // SAFETY: the bytes are there for as long as the reference is looked at.
            let tree = unsafe { Tree::open(NonNull::from(&mut snapshot.0 .0).cast()) }?;
            let mut later = [0; FOLDS.end - FOLDS.start];
            file.read_exact_at(&mut later, FOLDS.start as u64).ok()?;
            if tree.is_settled() && snapshot.0 .0[FOLDS] == later {
                break;
            }
        }
        Some(snapshot)
    }

    /// What is in it.
    pub fn tree(&self) -> &Tree {
        let at = NonNull::from(&self.0 .0).cast();
        // SAFETY: the bytes are aligned, and there for as long as this value is.
        unsafe { Tree::open(at) }.expect("looked at when it was read")
    }
}

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The user.
    pub uid: u32,
    /// The program's name, which after an `exec` is another than what a slot says. It may hold anything.
    pub name: String,
}

impl Running {
    /// `None` of one that has ended, waited for or not.
    pub fn find(pid: u32) -> Option<Running> {
        let folder = format!("/proc/{pid}");
        let uid = fs::metadata(&folder).ok()?.uid();
        let stat = fs::read(folder + "/stat").ok()?;
        let (name, state) = name_and_state(&stat)?;
        let name = String::from_utf8_lossy(name).into_owned();
        (!matches!(state, b'Z' | b'X')).then_some(Running { uid, name })
    }
}

/// Of `/proc/PID/stat`: between the first parenthesis and the last there may be anything.
fn name_and_state(stat: &[u8]) -> Option<(&[u8], u8)> {
    let first = stat.iter().position(|&byte| byte == b'(')? + 1;
    let last = stat.iter().rposition(|&byte| byte == b')')?;
    Some((stat.get(first..last)?, *stat.get(last + 2)?))
}

/// The user whose file it is.
pub fn owner(path: &Path) -> Option<u32> {
    fs::symlink_metadata(path).ok().map(|metadata| metadata.uid())
}

fn no_follow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32
}

#[cfg(test)]
mod tests {
    use pumice::stats::Event;

    use super::*;

    #[test]
    fn names_tell_the_maker() {
        assert_eq!(maker_of("pumice.1000.42.af"), Some(Maker { uid: 1000, pid: 42 }));
        for none in
            ["pumice", "pumice.1", "pumice.1.2", "pumice.1.2.3.4", "pumice.x.2.3", "a.1.2.3"]
        {
            assert_eq!(maker_of(none), None, "{none:?}");
        }
    }

    #[test]
    fn names_may_hold_anything() {
        assert_eq!(name_and_state(b"7 (a b) S 1"), Some((&b"a b"[..], b'S')));
        assert_eq!(name_and_state(b"7 (a) R (\xff) Z 1"), Some((&b"a) R (\xff"[..], b'Z')));
        for bad in [&b""[..], b"7 a S", b"7 )(", b"7 (a)"] {
            assert_eq!(name_and_state(bad), None, "{bad:?}");
        }
        let own = Running::find(std::process::id()).expect("it runs");
        assert!(!own.name.is_empty());
    }

    #[test]
    fn totals_never_go_back_while_slots_change_hands() {
        let made = StatsFile::create(1 << 30, 0).expect("a folder for it");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let relaxed = std::sync::atomic::Ordering::Relaxed;
                while !stop.load(relaxed) {
                    // No process has such a number, so each takes the slot of one before.
                    made.tree.attach(u32::MAX - 1).expect("a slot").add(Event::Requests, 1 << 20);
                    // Faster than any program: but what changes at each reading is shown as it is.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let (mut most, mut went_back) = (0, None);
            for _ in 0..5000 {
                let now = Snapshot::read(&made.path).expect("a tree").tree().total(Event::Requests);
                went_back = went_back.or((now < most).then_some((most, now)));
                most = most.max(now);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(went_back, None);
        });
        fs::remove_file(&made.path).expect("ours");
    }

    #[test]
    fn a_file_is_found_and_goes() {
        let made = StatsFile::create(1 << 30, 0).expect("a folder for it");
        let path = made.path.clone();
        let here = std::process::id();
        assert!(files().any(|(found, maker)| found == path && maker.pid == here));
        assert_eq!(open(&path).expect("a tree").pool_max(), 1 << 30);
        sweep();
        assert!(path.exists(), "its maker lives");
        made.close();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_with_processes_stays() {
        let made = StatsFile::create(0, 0).expect("a folder for it");
        let path = made.path.clone();
        made.tree.attach(std::process::id()).expect("a slot");
        made.close();
        assert!(path.exists());
        fs::remove_file(&path).expect("still there");
    }
}
