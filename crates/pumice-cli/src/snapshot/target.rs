//! The file that a slot is copied to. It gets its name in one step when it is whole and on the disk, and has nobody
//! that writes to it then: a daemon that reads the file of that name sees the old content or the new one.
//!
//! Until then it has no name at all (`O_TMPFILE`), so that nothing is left of it however this process ends. On file
//! systems that have no such files (NFS, FAT) it has a name of its own, which is removed after an error, and by a
//! thread that waits for signals. It stays only after SIGKILL.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    fsync, ftruncate, linkat, openat, renameat, statat, unlinkat, AtFlags, FileType, Mode, OFlags,
    CWD,
};
use rustix::io::Errno;

use crate::run::spawn;

/// Nobody else reads the memory of a machine.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that has no name yet, or another.
#[derive(Debug)]
pub struct Target {
    folder: Arc<OwnedFd>,
    name: OsString,
    file: File,
    beside: Option<Beside>,
}

/// A name of its own. It goes when this is dropped.
#[derive(Debug)]
struct Beside {
    folder: Arc<OwnedFd>,
    name: OsString,
}

impl Target {
    /// Makes a file of so many bytes, all of them a hole.
    ///
    /// # Errors
    /// Where the folder is missing or can't be written to, or something that is no file has the name.
    pub fn begin(path: &Path, bytes: u64) -> io::Result<Target> {
        let no_file = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let name = path.file_name().ok_or_else(|| no_file("it names no file"))?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        // A link is replaced, too: another user may have made it.
        if let Ok(there) = statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            let kind = FileType::from_raw_mode(there.st_mode);
            if !matches!(kind, FileType::RegularFile | FileType::Symlink) {
                return Err(no_file("it is no regular file"));
            }
        }
        let target = Target::make(Arc::new(folder), name)?;
        ftruncate(&target.file, bytes)?;
        Ok(target)
    }

    fn make(folder: Arc<OwnedFd>, name: OsString) -> io::Result<Target> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&folder, ".", flags | OFlags::TMPFILE, MODE) {
            Ok(file) => Ok(Target { folder, name, file: file.into(), beside: None }),
            // The answers of kernels and file systems that have none.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Target::make_beside(folder, name)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn make_beside(folder: Arc<OwnedFd>, name: OsString) -> io::Result<Target> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let other = own_name();
        // Before the name is there.
        let signals = spawn::block_heeded_endings();
        let file = openat(&folder, &other, flags, MODE)?;
        let beside = Beside { folder: Arc::clone(&folder), name: other };
        let (ours, gone) = (Arc::clone(&folder), beside.name.clone());
        thread::Builder::new().name("pumice-signals".into()).spawn(move || {
            let signal = spawn::wait_for(&signals);
            // It has the other name by now, or goes.
            let _ = unlinkat(&ours, &gone, AtFlags::empty());
            spawn::end_like(signal)
        })?;
        Ok(Target { folder, name, file: file.into(), beside: Some(beside) })
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// It is whole: it is written to the disk and gets its name.
    ///
    /// # Errors
    /// As fsync(2), linkat(2) and renameat(2); the name has what it had before, except after an error of the folder's
    /// fsync(2).
    pub fn finish(self) -> io::Result<()> {
        let Target { folder, name, file, beside } = self;
        fsync(&file)?;
        match beside {
            None => name_it(&folder, &name, file)?,
            Some(beside) => {
                drop(file);
                renameat(&folder, &beside.name, &folder, &name)?;
            }
        }
        Ok(fsync(&folder)?)
    }
}

/// Gives a file without a name one.
fn name_it(folder: &Arc<OwnedFd>, name: &OsStr, file: File) -> io::Result<()> {
    // Held for reading only: a daemon takes no file that is open for writing.
    let held = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    drop(file);
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let link = |name: &OsStr| linkat(CWD, &path, folder, name, AtFlags::SYMLINK_FOLLOW);
    match link(name) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    // A link replaces nothing. No signal comes between the two steps.
    let before = spawn::block_all();
    let other = own_name();
    let renamed = link(&other).and_then(|()| {
        let beside = Beside { folder: Arc::clone(folder), name: other };
        renameat(folder, &beside.name, folder, name)
    });
    spawn::unblock(&before);
    Ok(renamed?)
}

/// A name that no other process chooses.
fn own_name() -> OsString {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(".pumice-snapshot-{}-{}", std::process::id(), now.as_nanos()).into()
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It is not there any more where it has become the other.
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{symlink, FileExt, MetadataExt};

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .expect("there")
            .map(|entry| entry.expect("there").file_name())
            .collect();
        names.sort();
        names
    }

    type Make = fn(Arc<OwnedFd>, OsString) -> io::Result<Target>;

    fn begun(folder: &Path, make: Make) -> Target {
        let folder = File::open(folder).expect("there");
        let target = make(Arc::new(folder.into()), "file".into()).expect("made");
        ftruncate(&target.file, 8192).expect("a size");
        target
    }

    /// With a name on the way and without; where there was none, a file, or a link.
    #[test]
    fn a_file_is_there_when_it_is_whole() {
        for make in [Target::make as Make, Target::make_beside] {
            let place = tempfile::tempdir().expect("a folder");
            let path = place.path().join("file");
            fs::write(place.path().join("other"), "other").expect("written");
            for round in 0..3 {
                if round == 2 {
                    fs::remove_file(&path).expect("ours");
                    symlink("other", &path).expect("made");
                }
                let before = names(place.path());
                let target = begun(place.path(), make);
                target.file().write_all_at(b"new", 4096).expect("written");
                assert!(target.beside.is_some() || names(place.path()) == before);
                drop(target);
                assert_eq!(names(place.path()), before, "given up, it leaves nothing");

                let target = begun(place.path(), make);
                target.file().write_all_at(b"whole", 4096).expect("written");
                target.finish().expect("named");
                assert_eq!(names(place.path()), ["file", "other"]);
                let status = fs::symlink_metadata(&path).expect("there");
                assert!(status.is_file() && status.mode() & 0o777 == 0o600);
                assert_eq!((status.len(), status.nlink()), (8192, 1));
                assert_eq!(&fs::read(&path).expect("ours")[4096..4101], b"whole");
                assert_eq!(fs::read(place.path().join("other")).expect("ours"), b"other");
            }
        }
    }

    #[test]
    fn other_things_are_not_replaced() {
        let place = tempfile::tempdir().expect("a folder");
        fs::create_dir(place.path().join("folder")).expect("made");
        for name in ["folder", "missing/file", "..", "/dev/null"] {
            assert!(Target::begin(&place.path().join(name), 4096).is_err(), "{name}");
        }
        assert_eq!(names(place.path()), ["folder"]);
    }
}
