//! Paths at which nobody else can put another file.
//!
//! Files that root loads, or any user, must not come from a path that others can make. It is not enough that a file or
//! its folder is ours: a user that may write to a folder above it can replace it at once. In a sticky folder such as
//! `/tmp` that user can do so when a cleaner or a restart has removed ours, while programs still name it. So every
//! folder from the root down must belong to root or to us, and no other may write to it. Each is opened in the one
//! before, never through a link. So the one that was looked at is the one that is used, and from then on nobody else
//! can change it.

use std::env;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{fchmod, mkdirat, openat, Mode, OFlags, CWD};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Why a path will not do.
#[derive(Debug)]
pub struct Exposed {
    at: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Error(io::Error),
    IsOf(u32),
    WritableFor(&'static str),
}

impl Exposed {
    /// Whether a look-up failed, so that nothing is known of the path's safety.
    pub fn is_unknown(&self) -> bool {
        matches!(self.why, Why::Error(_))
    }
}

impl fmt::Display for Exposed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.display();
        match &self.why {
            Why::Error(error) => write!(out, "{at}: {error}"),
            Why::IsOf(user) => write!(out, "{at} belongs to user {user}"),
            Why::WritableFor(others) => write!(out, "{at} is writable for {others}"),
        }
    }
}

/// The path without links, if nobody else can put another file there. It must exist.
pub fn check(path: &Path) -> Result<PathBuf, Exposed> {
    let real = path.canonicalize().map_err(|error| exposed(path, error))?;
    walk(&real, IfMissing::Fail)?;
    Ok(real)
}

/// pumice's folder in the user's cache: `$XDG_CACHE_HOME/pumice`, or `~/.cache/pumice`. It need not be there, nor safe.
pub fn user_cache() -> Option<PathBuf> {
    // A relative path there is to be ignored (XDG Base Directory Specification).
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("pumice"))
}

/// Makes a folder, with those above it that are missing, open for others to look into; the path of it without links.
pub fn make(folder: &Path) -> Result<PathBuf, Exposed> {
    let real = real_or_to_be(folder)?;
    walk(&real, IfMissing::Make)?;
    Ok(real)
}

/// As [`Path::canonicalize`], of what there is.
fn real_or_to_be(folder: &Path) -> Result<PathBuf, Exposed> {
    let absolute = std::path::absolute(folder).map_err(|error| exposed(folder, error))?;
    for above in absolute.ancestors() {
        match above.canonicalize() {
            Ok(real) => {
                let rest = absolute.strip_prefix(above).expect("it is above");
                // A folder that does not exist has no parent to go up to.
                let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
                return match is_plain {
                    true => Ok(real.join(rest)),
                    false => Err(exposed(folder, io::ErrorKind::NotFound.into())),
                };
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(exposed(above, error)),
        }
    }
    Err(exposed(folder, io::ErrorKind::NotFound.into()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Fail,
    Make,
}

/// Looks at all that is on the way to an absolute path without links, and at its end.
fn walk(real: &Path, if_missing: IfMissing) -> Result<(), Exposed> {
    let mut at = PathBuf::from("/");
    let root = openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let mut folder = root.map(File::from).map_err(|errno| exposed(&at, errno.into()))?;
    let trusted = trusted_owners(&folder).map_err(|error| exposed(&at, error))?;
    check_one(&folder, &trusted, &at)?;
    for part in real.components() {
        let Component::Normal(name) = part else { continue };
        at.push(name);
        folder = step(&folder, name, if_missing).map_err(|error| exposed(&at, error))?;
        check_one(&folder, &trusted, &at)?;
    }
    Ok(())
}

/// We, root, and the owner of the root folder: in a namespace of users, root may have no number there.
fn trusted_owners(root: &File) -> io::Result<[u32; 3]> {
    Ok([geteuid().as_raw(), 0, root.metadata()?.uid()])
}

fn step(folder: &File, name: &OsStr, if_missing: IfMissing) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let open =
        |flags| openat(folder, &*name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    match open(OFlags::PATH) {
        Err(Errno::NOENT) if if_missing == IfMissing::Make => {}
        opened => return Ok(opened?.into()),
    }
    let mode = Mode::from_raw_mode(0o755);
    match mkdirat(folder, &*name, mode) {
        // Another start of ours was faster; if it is another's, it is looked at all the same.
        Err(Errno::EXIST) => Ok(open(OFlags::PATH)?.into()),
        made => {
            made?;
            let made = open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            // Set whatever the umask is: others may look inside.
            fchmod(&made, mode)?;
            Ok(made.into())
        }
    }
}

fn check_one(file: &File, trusted: &[u32], at: &Path) -> Result<(), Exposed> {
    let metadata = file.metadata().map_err(|error| exposed(at, error))?;
    let fail = |why| Err(Exposed { at: at.to_owned(), why });
    if !trusted.contains(&metadata.uid()) {
        return fail(Why::IsOf(metadata.uid()));
    }
    match metadata.mode() {
        mode if mode & 0o002 != 0 => fail(Why::WritableFor("everybody")),
        mode if mode & 0o020 != 0 => fail(Why::WritableFor("its group")),
        _ => Ok(()),
    }
}

fn exposed(at: &Path, error: io::Error) -> Exposed {
    Exposed { at: at.to_owned(), why: Why::Error(error) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    /// A folder of this test's at such a path, if the sources are built at one.
    pub(crate) fn folder(name: &str) -> Option<PathBuf> {
        let built = env::current_exe().ok()?;
        let path = built.parent()?.join(format!("pumice-{name}-{}", std::process::id()));
        match make(&path) {
            Ok(path) => Some(path),
            Err(why) => {
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    #[test]
    fn what_others_can_write_above_it_will_not_do() {
        let Some(folder) = folder("safe-path") else { return };
        let inner = folder.join("a/b/c");
        assert_eq!(make(&inner).expect("ours"), inner);
        assert_eq!(check(&inner).expect("ours"), inner);
        let above = folder.join("a");
        for (mode, others) in [(0o757, "everybody"), (0o1777, "everybody"), (0o775, "its group")] {
            fs::set_permissions(&above, Permissions::from_mode(mode)).expect("ours");
            for refused in [check(&inner), make(&inner), make(&inner.join("d"))] {
                let why = refused.expect_err("others can write there").to_string();
                assert!(why.contains(others) && why.contains("/a is"), "{why}");
            }
        }
        assert!(!inner.join("d").exists(), "nothing is made where others can write");
        fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn a_link_counts_for_what_it_leads_to() {
        let Some(folder) = folder("safe-link") else { return };
        let [open, closed] = ["open", "closed"].map(|name| make(&folder.join(name)).expect("ours"));
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("ours");
        symlink(&open, folder.join("to-open")).expect("linked");
        symlink(&closed, folder.join("to-closed")).expect("linked");
        symlink("nowhere", folder.join("to-nowhere")).expect("linked");
        assert!(make(&folder.join("to-open/x")).is_err());
        assert_eq!(make(&folder.join("to-closed/x")).expect("ours"), closed.join("x"));
        assert!(make(&folder.join("to-nowhere/x")).is_err());
        assert!(make(&folder.join("none/../x")).is_err());
        fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn a_sticky_folder_is_not_enough() {
        let folder = env::temp_dir();
        if fs::metadata(&folder).is_ok_and(|it| it.mode() & 0o002 == 0) {
            eprintln!("skipped: {} is not for everybody", folder.display());
            return;
        }
        let inner = folder.join(format!("pumice-sticky-{}", std::process::id()));
        assert!(make(&inner).is_err());
        assert!(!inner.exists());
    }

    #[test]
    fn another_users_folder_will_not_do() {
        let Some(folder) = folder("safe-owner") else { return };
        if std::os::unix::fs::chown(&folder, Some(12345), None).is_ok() {
            let why = make(&folder.join("x")).expect_err("another's").to_string();
            assert!(why.contains("user 12345"), "{why}");
        } else {
            eprintln!("skipped: not root");
        }
        fs::remove_dir_all(&folder).expect("ours");
    }
}
