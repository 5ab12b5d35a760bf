//! A snapshot's file: opened safely, and told from what it was before.
//!
//! Clients get the file's content. So only root and the daemon's user may choose the file: the folders on the way are
//! theirs alone, as the socket's are (`serving/folder.rs`), and a link is followed if one of them made it.
//!
//! A [`Version`] says that the content is the same. Each change of a file, and each call that sets its times, sets the
//! time of change (ctime) to that of the clock's last tick. So a file that changed less than some ticks ago may change
//! once more and look the same. [`Version::age`] is for that.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{fstat, openat, readlinkat, statat, statx};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use crate::pages::PageKind;
use crate::serving::folder::{is_ours, split, Folder, Missing};

/// Links on one path, as the kernel has it.
const MOST_LINKS: u32 = 40;

/// Identity, size and times of a file: of two reads with the same, the content is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    device: (u32, u32),
    inode: u64,
    bytes: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Version {
    /// That of an open file. A server of files is asked, not a cache of its answers.
    ///
    /// # Errors
    /// As statx(2).
    pub fn of(file: impl AsFd) -> io::Result<Version> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let status = statx(file, "", flags, StatxFlags::BASIC_STATS)?;
        Ok(Version {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            bytes: status.stx_size,
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
        })
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a slot for it, which is of whole pages; `None` if there is no such number.
    pub fn slot_bytes(&self, pages: PageKind) -> Option<u64> {
        self.bytes.checked_next_multiple_of(pages.granule()).filter(|&bytes| bytes > 0)
    }

    /// How long ago it was changed; `None` if that is to come, as after a change of the clock.
    pub fn age(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.changed.0).ok()?;
        let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, self.changed.1))?;
        SystemTime::now().duration_since(changed).ok()
    }
}

/// Opens a snapshot's file for reading, or says in a line why it is none.
///
/// # Errors
/// The line, which names the file.
pub fn open(path: &Path) -> Result<(OwnedFd, Version), String> {
    let failed = |error: &dyn Display| format!("can't read {}: {error}", path.display());
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let (folder, name) = split(&target).ok_or_else(|| failed(&"it names no file"))?;
        let folder = Folder::open(folder, Missing::Fail, "--snapshot");
        let folder = folder.map_err(|error| failed(&error))?;
        let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let status = status.map_err(|error| failed(&io::Error::from(error)))?;
        let in_folder = fstat(&folder).map_err(|error| failed(&io::Error::from(error)))?;
        let kind = FileType::from_raw_mode(status.st_mode);
        // Where the sticky bit is set others can make files, too.
        let is_open = Mode::from_raw_mode(in_folder.st_mode).intersects(Mode::WGRP | Mode::WOTH);
        if !is_ours(status.st_uid) && (is_open || kind == FileType::Symlink) {
            let user = status.st_uid;
            return Err(failed(&format!(
                "user {user} made it, and others can write in its folder"
            )));
        }
        if kind == FileType::Symlink {
            let link = readlinkat(&folder, name, Vec::new());
            let link = link.map_err(|error| failed(&io::Error::from(error)))?;
            let link = PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes()));
            target = folder.path().join(link);
            continue;
        }
        if kind != FileType::RegularFile {
            return Err(failed(&"it is no regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&folder, name, flags, Mode::empty());
        let file = file.map_err(|error| failed(&io::Error::from(error)))?;
        let is_same = fstat(&file)
            .is_ok_and(|opened| (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino));
        if !is_same {
            // Replaced in this moment, by the daemon's user or root.
            continue;
        }
        let version = Version::of(&file).map_err(|error| failed(&error))?;
        if version.bytes == 0 {
            return Err(failed(&"it is empty"));
        }
        return Ok((file, version));
    }
    Err(failed(&"it is behind too many links"))
}

/// The version that the path names now.
///
/// # Errors
/// As [`open`].
pub fn look(path: &Path) -> Result<Version, String> {
    open(path).map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    #[test]
    fn a_change_is_another_version() {
        let place = tempfile::tempdir().expect("a folder");
        fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("ours");
        let path = place.path().join("file");
        fs::write(&path, "one").expect("written");
        let first = look(&path).expect("a file");
        assert_eq!(first.bytes(), 3);
        assert_eq!(first.slot_bytes(PageKind::Hugetlb2M), Some(2 << 20));
        assert_eq!(look(&path), Ok(first));
        symlink("file", place.path().join("link")).expect("a link");
        assert_eq!(look(&place.path().join("link")), Ok(first));
        // A tick of any clock.
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "two").expect("written");
        let second = look(&path).expect("a file");
        assert_ne!(second, first);
        fs::write(place.path().join("new"), "two").expect("written");
        fs::rename(place.path().join("new"), &path).expect("renamed");
        assert_ne!(look(&path).expect("a file"), second);
    }

    #[test]
    fn other_things_are_refused_in_a_line() {
        let place = tempfile::tempdir().expect("a folder");
        fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("ours");
        fs::write(place.path().join("empty"), "").expect("written");
        symlink("loop", place.path().join("loop")).expect("a link");
        for name in ["missing", "empty", "loop", ".", "empty/x"] {
            let why = look(&place.path().join(name)).expect_err(name);
            assert!(why.starts_with("can't read /") && why.lines().count() == 1, "{why}");
        }
        let open = place.path().join("open");
        fs::create_dir(&open).expect("a folder");
        fs::write(open.join("file"), "x").expect("written");
        assert!(look(&open.join("file")).is_ok());
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("ours");
        let why = look(&open.join("file")).expect_err("others can replace it");
        assert!(why.contains("chmod go-w"), "{why}");
    }
}
