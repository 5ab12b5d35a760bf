//! A folder that only this user and root can write in, opened without following links of other users.
//!
//! The path is walked from the root, each step by the descriptor of the one before, so that nobody can replace a
//! checked part. Every folder on the way must belong to root or to this user, and others may write in it only where the
//! sticky bit keeps them from replacing files of others (`/tmp`). A link is followed if root or this user made it.
//!
//! The owner of `/` counts as root: in a user namespace that may be a user without a name there.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::peer::is_open_to_others;
use rustix::fs::{fstat, mkdirat, openat, readlinkat, FileType, Mode, OFlags, Stat, CWD};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::ServeError;

/// Links on one path, as the kernel has it.
const MOST_LINKS: u32 = 40;
const FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The treatment of folders that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// They are made.
    Make,
    /// It is an error.
    Fail,
}

/// See the module's text.
#[derive(Debug)]
pub struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder that only this user and root can write in. `option` is what the path was given with.
    pub fn open(path: &Path, missing: Missing, option: &str) -> Result<Folder, ServeError> {
        let walked = Walk::new(missing).and_then(|walk| walk.to(path));
        let remedy = |problem| format!("{problem}; or name another place with {option}");
        let descriptor = walked.map_err(|error| error.map(remedy))?;
        Ok(Folder { descriptor, path: path.to_owned() })
    }

    /// Opens any folder, also one that others can write in.
    pub fn open_any(path: &Path, option: &str) -> Result<Folder, ServeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty());
        let descriptor = opened.map_err(|error| {
            let path = path.display();
            ServeError::usage(format!(
                "can't open {path}: {error}; name another place with {option}"
            ))
        })?;
        Ok(Folder { descriptor, path: path.to_owned() })
    }

    /// The path that it was opened by, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to a file of this folder that is this folder's whatever is renamed meanwhile.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())).join(name)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Why a file is not taken for its owner's in a folder that [others write in](is_written_by_others): where
/// `fs.protected_hardlinks` is 0, they can give a file of root's a name there.
pub const OTHER_NAMES: &str = "has other names, and others can write in its folder";

/// Whether others can make files in a folder, also where the sticky bit keeps them from replacing any.
pub fn is_written_by_others(folder: &Stat) -> bool {
    Mode::from_raw_mode(folder.st_mode).intersects(Mode::WGRP | Mode::WOTH)
}

/// Whether this owner is root or this user.
pub fn is_ours(owner: u32) -> bool {
    [0, geteuid().as_raw()].contains(&owner)
}

/// The folder that a file's path names, and the file's name.
pub fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let folder = path.parent()?;
    let here = Path::new(".");
    Some((if folder.as_os_str().is_empty() { here } else { folder }, path.file_name()?))
}

fn failed(what: &str, path: impl Display, error: Errno) -> ServeError {
    ServeError::of(&error.into(), format!("can't {what} {path}: {error}"))
}

/// A path as far as it has been walked.
struct Walk {
    missing: Missing,
    at: OwnedFd,
    shown: PathBuf,
    /// The owner of `/`.
    root: u32,
    links: u32,
}

/// The rest of a path, its next step last.
type Steps = Vec<OsString>;

impl Walk {
    fn new(missing: Missing) -> Result<Walk, ServeError> {
        let flags = FLAGS | OFlags::DIRECTORY;
        let failed = |error: Errno| failed("open", "/", error);
        let at = openat(CWD, "/", flags, Mode::empty()).map_err(failed)?;
        let root = fstat(&at).map_err(failed)?.st_uid;
        Ok(Walk { missing, at, shown: "/".into(), root, links: 0 })
    }

    fn to(mut self, path: &Path) -> Result<OwnedFd, ServeError> {
        let mut left = Steps::new();
        self.push(path, &mut left)?;
        if !path.is_absolute() {
            let here = env::current_dir();
            let unknown =
                |error| ServeError::of(&error, format!("can't tell where {path:?} is: {error}"));
            let here = here.map_err(unknown)?;
            self.push(&here, &mut left)?;
        }
        while let Some(name) = left.pop() {
            self.step(&name, &mut left)?;
        }
        Ok(self.at)
    }

    /// Puts a path before what is left.
    fn push(&mut self, path: &Path, left: &mut Steps) -> Result<(), ServeError> {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => left.push(name.to_owned()),
                Component::ParentDir => left.push("..".into()),
                Component::CurDir | Component::Prefix(_) => {}
                Component::RootDir => {
                    let root = Walk::new(self.missing)?;
                    (self.at, self.shown) = (root.at, root.shown);
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, name: &OsStr, left: &mut Steps) -> Result<(), ServeError> {
        let shown = if name == ".." {
            self.shown.parent().unwrap_or(&self.shown).to_owned()
        } else {
            self.shown.join(name)
        };
        let path = shown.display();
        let open = |flags| openat(&self.at, name, FLAGS | flags, Mode::empty());
        let mut opened = open(OFlags::DIRECTORY);
        if matches!(opened, Err(Errno::NOENT)) && self.missing == Missing::Make {
            match mkdirat(&self.at, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => opened = open(OFlags::DIRECTORY),
                Err(error) => return Err(failed("make the folder", &path, error)),
            }
        }
        let failed = |error: Errno| failed("open the folder", &path, error);
        match opened {
            Ok(folder) => {
                self.check(&fstat(&folder).map_err(failed)?, &shown)?;
                (self.at, self.shown) = (folder, shown);
                Ok(())
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let link = open(OFlags::empty()).map_err(failed)?;
                let status = fstat(&link).map_err(failed)?;
                if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
                    return Err(ServeError::usage(format!("{path} is no folder")));
                }
                self.links += 1;
                if self.links > MOST_LINKS {
                    return Err(failed(Errno::LOOP));
                }
                if !self.is_trusted(&status) {
                    let user = status.st_uid;
                    return Err(ServeError::usage(format!(
                        "{path} is a link of user {user}'s; remove it"
                    )));
                }
                if status.st_nlink > 1 && is_written_by_others(&fstat(&self.at).map_err(failed)?) {
                    return Err(ServeError::usage(format!("{path} {OTHER_NAMES}; remove it")));
                }
                let target = readlinkat(&link, "", Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                self.push(&target, left)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn is_trusted(&self, status: &Stat) -> bool {
        is_ours(status.st_uid) || status.st_uid == self.root
    }

    fn check(&self, status: &Stat, shown: &Path) -> Result<(), ServeError> {
        let path = shown.display();
        if !self.is_trusted(status) {
            let (user, own) = (status.st_uid, geteuid().as_raw());
            return Err(ServeError::usage(format!(
                "{path} belongs to user {user}, which could replace what is there; try 'chown {own} {path}'"
            )));
        }
        if is_open_to_others(status) {
            return Err(ServeError::usage(format!(
                "other users can write in {path} and replace what is there; try 'chmod go-w {path}'"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};

    use super::*;
    use tempfile::TempDir;

    /// A folder, which goes with the first of the two, and its path.
    fn place() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
        let path = folder.path().canonicalize().expect("there");
        (folder, path)
    }

    fn inode(folder: &Folder) -> u64 {
        fstat(folder).expect("open").st_ino
    }

    fn refused(path: &Path) -> String {
        let refused = Folder::open(path, Missing::Fail, "--dir");
        refused.map(|folder| folder.path).expect_err("refused").to_string()
    }

    #[test]
    fn a_folder_is_found_by_any_path_to_it() {
        let (_folder, place) = place();
        let wanted = place.join("a/b");
        assert!(Folder::open(&wanted, Missing::Fail, "--dir").is_err());
        let made = Folder::open(&wanted, Missing::Make, "--dir").expect("made");
        assert_eq!(inode(&made), fs::metadata(&wanted).expect("there").ino());
        symlink("a", place.join("near")).expect("a link");
        symlink(&place, place.join("far")).expect("a link");
        for path in ["a/b", "near/b", "near/../a/./b", "far/near/b", "far/far/far/a/b/../b"] {
            let folder = Folder::open(&place.join(path), Missing::Fail, "--dir").expect("found");
            assert_eq!(inode(&folder), inode(&made), "{path}");
        }
        symlink("loop", place.join("loop")).expect("a link");
        assert!(refused(&place.join("loop")).contains("can't open"));
        fs::write(place.join("file"), "").expect("ours");
        assert!(refused(&place.join("file")).contains("is no folder"));
    }

    #[test]
    fn a_folder_that_others_can_write_in_is_refused() {
        let (_folder, place) = place();
        let inner = place.join("inner");
        fs::create_dir(&inner).expect("a folder");
        for mode in [0o777, 0o775, 0o757] {
            for folder in [&inner, &place] {
                fs::set_permissions(folder, Permissions::from_mode(mode)).expect("ours");
                let why = refused(&inner);
                let told = format!("chmod go-w {}", folder.display());
                assert!(why.contains(&told) && why.contains("--dir"), "{why}");
                assert_eq!(why.lines().count(), 1, "{why}");
                fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
            }
        }
        symlink("inner", inner.join("link")).expect("a link");
        fs::hard_link(inner.join("link"), place.join("link")).expect("another name");
        assert!(Folder::open(&place.join("link"), Missing::Fail, "--dir").is_ok());
        fs::set_permissions(&place, Permissions::from_mode(0o1777)).expect("ours");
        assert!(Folder::open(&inner, Missing::Fail, "--dir").is_ok(), "as /tmp is");
        let why = refused(&place.join("link"));
        assert!(why.contains(OTHER_NAMES), "others could have put it there: {why}");
    }

    #[test]
    fn what_another_user_made_is_not_followed() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make what is another user's");
            return;
        }
        const OTHER: Option<u32> = Some(54_321);
        let (_folder, place) = place();
        fs::create_dir(place.join("real")).expect("a folder");
        symlink("real", place.join("link")).expect("a link");
        assert!(Folder::open(&place.join("link"), Missing::Fail, "--dir").is_ok());
        std::os::unix::fs::lchown(place.join("link"), OTHER, OTHER).expect("root may");
        let why = refused(&place.join("link"));
        assert!(why.contains("is a link of user 54321's"), "{why}");
        std::os::unix::fs::lchown(place.join("real"), OTHER, OTHER).expect("root may");
        let why = refused(&place.join("real"));
        assert!(why.contains("belongs to user 54321") && why.contains("chown 0"), "{why}");
    }
}
