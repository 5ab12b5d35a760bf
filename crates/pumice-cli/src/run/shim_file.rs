//! The shim, embedded in this program, as a file that the loader can open, and the library that stands between it and
//! an installed allocator (`--small`).
//!
//! Each is written once for each version, under a name that holds its hash, into a folder where nobody else can
//! put another file ([`safe_path`]), now or later: programs name it in `LD_PRELOAD` for as long as they run. A later
//! run checks owner, mode and size and reads nothing. Others may read it where they may look into the folders above
//! it, so that programs that are started under another user can load it too. `PUMICE_SHIM` names a file to take
//! instead.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{statvfs, StatVfsMountFlags};
use rustix::process::geteuid;

use pumice_command::safe_path;
use pumice_command::Failure;

/// Names a shim to take instead of the embedded one.
const ENV_SHIM: &str = "PUMICE_SHIM";

/// A library that this program brings.
#[derive(Debug)]
pub struct Library {
    bytes: &'static [u8],
    /// Holds the hash of its bytes.
    file_name: &'static str,
    /// The name where somebody chose the folder.
    installed_name: &'static str,
}

static SHIM: Library = Library {
    bytes: include_bytes!(env!("PUMICE_SHIM_FILE")),
    file_name: concat!("libpumice-", env!("PUMICE_SHIM_HASH"), ".so"),
    installed_name: "libpumice-preload.so",
};

/// Between the shim and an allocator that was asked for.
static SMALL: Library = Library {
    bytes: include_bytes!(env!("PUMICE_SMALL_FILE")),
    file_name: concat!("libpumice-small-", env!("PUMICE_SMALL_HASH"), ".so"),
    installed_name: "libpumice-small.so",
};

/// The libraries that a program preloads: the shim, and behind it the allocator that was asked for, with the library
/// that belongs between.
pub fn find_or_write(small: Option<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    let shim = match std::env::var_os(ENV_SHIM) {
        Some(path) if !path.is_empty() => named(Path::new(&path))?,
        _ => SHIM.embedded()?,
    };
    behind(shim, small, || SMALL.embedded())
}

/// The same, copied into a folder under names that stay the same from version to version.
pub fn install(
    folder: &Path,
    small: Option<PathBuf>,
    loaded_from: LoadedFrom,
) -> Result<Vec<PathBuf>, Failure> {
    let shim = SHIM.install(folder, loaded_from)?;
    behind(shim, small, || SMALL.install(folder, loaded_from))
}

/// The same, where somebody put them.
pub fn beside(shim: &Path, small: Option<PathBuf>) -> Vec<PathBuf> {
    let between = small.map(|small| [shim.with_file_name(SMALL.installed_name), small]);
    iter::once(shim.to_owned()).chain(between.into_iter().flatten()).collect()
}

fn behind(
    shim: PathBuf,
    small: Option<PathBuf>,
    between: impl FnOnce() -> Result<PathBuf, Failure>,
) -> Result<Vec<PathBuf>, Failure> {
    Ok(match small {
        Some(small) => vec![shim, between()?, small],
        None => vec![shim],
    })
}

/// Whether programs of this machine are to load a shim from where it is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedFrom {
    /// They are: nobody else may be able to put another there.
    There,
    /// It is for an image, or a package: where it will be is for others to see to.
    Elsewhere,
}

impl Library {
    /// Copies it into `folder`, under a name that stays the same from version to
    /// version, and returns its path. A program that has the former one loaded keeps it.
    ///
    /// # Errors
    /// Where the folder can't be named in `LD_PRELOAD` or others may put another file there, and where the copy
    /// can't be written.
    fn install(&self, folder: &Path, loaded_from: LoadedFrom) -> Result<PathBuf, Failure> {
        let shown = folder.display();
        let refused = |why: &dyn Display| {
            Failure::usage(format!("--install-shim {shown}: no shim can be written there: {why}"))
        };
        let absolute = std::path::absolute(folder).map_err(|error| refused(&error))?;
        if !can_be_preloaded(&absolute) {
            return Err(Failure::usage(format!(
            "--install-shim {shown} has a space or colon in its path, which LD_PRELOAD can't name"
        )));
        }
        let made = match loaded_from {
        LoadedFrom::There => safe_path::make(&absolute).map_err(|why| match why.is_unknown() {
            true => refused(&why),
            false => Failure::usage(format!(
                "--install-shim {shown}: {why}, so others could replace the shim; take another folder, \
                 see chmod go-w, or --format json if no program is to load it from there"
            )),
        })?,
        LoadedFrom::Elsewhere => {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o755);
            builder.create(&absolute).map_err(|error| refused(&error))?;
            absolute
        }
    };
        let path = made.join(self.installed_name);
        if loaded_from == LoadedFrom::There && is_noexec(&made) {
            return Err(Failure::usage(format!(
                "--install-shim {shown} is mounted noexec, so no program can load a shim from it"
            )));
        }
        self.write(&made, &path).map_err(|error| refused(&error))?;
        Ok(path)
    }
}

/// Whether `LD_PRELOAD` can name it, wherever it is to be.
pub fn is_nameable(path: &Path) -> bool {
    path.is_absolute() && can_be_preloaded(path)
}

fn named(path: &Path) -> Result<PathBuf, Failure> {
    let shown = path.display();
    let what_else = format!("unset {ENV_SHIM} to use the shim inside pumice");
    let absolute = fs::canonicalize(path).map_err(|error| {
        Failure::usage(format!("no shim at {ENV_SHIM}={shown} ({error}); {what_else}"))
    })?;
    if !starts_as_elf(&absolute) {
        let message = format!("{ENV_SHIM}={shown} is no shared library; {what_else}");
        return Err(Failure::usage(message));
    }
    if !can_be_preloaded(&absolute) {
        let message = format!(
            "{ENV_SHIM}={shown} has a space or colon in its path, which LD_PRELOAD can't name; \
             move it or {what_else}"
        );
        return Err(Failure::usage(message));
    }
    if let Err(why) = safe_path::check(&absolute) {
        let message = format!(
            "{ENV_SHIM}={shown} can be replaced by others: {why}; see chmod go-w, move it, or {what_else}"
        );
        return Err(Failure::usage(message));
    }
    Ok(absolute)
}

/// Whether a file can be a shim.
pub fn starts_as_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"\x7fELF"
}

impl Library {
    fn embedded(&self) -> Result<PathBuf, Failure> {
        let mut tried = Vec::new();
        for folder in candidate_folders() {
            match self.in_folder(&folder) {
                Ok(path) => return Ok(path),
                Err(why) => tried.push(why),
            }
        }
        if tried.is_empty() {
            tried.push("HOME is not set".to_owned());
        }
        self.installed().ok_or_else(|| {
        Failure::usage(format!(
            "no folder for the shim where nobody else can put another ({}); set XDG_CACHE_HOME to one that only you \
             can write to, in folders of which the same is true, without spaces or noexec, or {ENV_SHIM} to a shim",
            tried.join(", ")
        ))
    })
    }
}

/// Best first: where other users see it too, then where it stays when the user logs out. A restart may empty it, since
/// it ends all programs that name it.
fn candidate_folders() -> Vec<PathBuf> {
    let from = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?).join("pumice");
        path.is_absolute().then_some(path)
    };
    let mut folders = Vec::new();
    if geteuid().is_root() {
        folders.extend(["/run/pumice", "/var/lib/pumice"].map(PathBuf::from));
    }
    folders.extend(safe_path::user_cache());
    folders.extend(from("XDG_RUNTIME_DIR"));
    folders.extend(from("TMPDIR"));
    folders
}

impl Library {
    /// It in this folder, written if need be, or why the folder won't do.
    fn in_folder(&self, folder: &Path) -> Result<PathBuf, String> {
        let shown = folder.display();
        let folder = safe_path::make(folder).map_err(|why| why.to_string())?;
        let path = folder.join(self.file_name);
        if !can_be_preloaded(&path) {
            return Err(format!("{shown} has a space or colon in it"));
        }
        if is_noexec(&folder) {
            return Err(format!("{shown} is mounted noexec"));
        }
        if !self.is_at(&path) {
            self.write(&folder, &path).map_err(|error| format!("{shown}: {error}"))?;
        }
        Ok(path)
    }

    /// The file that was installed with this program, if it is this program's.
    fn installed(&self) -> Option<PathBuf> {
        let program = std::env::current_exe().ok()?;
        let beside = program.parent()?.parent()?.join("lib/pumice").join(self.installed_name);
        let path = safe_path::check(&beside).ok()?;
        let is_same = || fs::read(&path).is_ok_and(|bytes| bytes == self.bytes);
        (can_be_preloaded(&path) && is_same()).then_some(path)
    }

    fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|metadata| {
            metadata.is_file()
                && metadata.uid() == geteuid().as_raw()
                && metadata.mode() & 0o022 == 0
                && metadata.len() == self.bytes.len() as u64
        })
    }

    /// Writes beside the name and renames: a file of that name is always whole.
    fn write(&self, folder: &Path, path: &Path) -> io::Result<()> {
        let mut name = OsString::from(self.file_name);
        name.push(format!(".{}", std::process::id()));
        let unfinished = folder.join(name);
        let _ = fs::remove_file(&unfinished);
        let written = self.write_new(&unfinished).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        // The umask may have taken rights.
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
        file.write_all(self.bytes)
    }
}

/// `LD_PRELOAD` separates by spaces and colons and knows no quoting.
fn can_be_preloaded(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :\n\t".contains(byte))
}

fn is_noexec(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|filesystem| filesystem.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Whether a byte of `LD_PRELOAD` is between two entries.
fn separates(byte: &u8) -> bool {
    b" :".contains(byte)
}

/// `LD_PRELOAD` with these libraries first and what was there behind them. `LD_PRELOAD` can name them.
pub fn preload_list(first: &[PathBuf], before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let others = before.as_bytes().split(separates).filter(|entry| !entry.is_empty());
    let first: Vec<&[u8]> = first.iter().map(|path| path.as_os_str().as_bytes()).collect();
    let others = others.filter(|entry| !first.contains(entry));
    let all: Vec<&[u8]> = first.iter().copied().chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn the_list_keeps_what_was_there() {
        let (shim, small) = (PathBuf::from("/tmp/shim.so"), PathBuf::from("/lib/small.so"));
        let list =
            |before: Option<&str>| preload_list(slice::from_ref(&shim), before.map(OsString::from));
        assert_eq!(list(None), "/tmp/shim.so");
        assert_eq!(list(Some("")), "/tmp/shim.so");
        assert_eq!(list(Some("a.so b.so:/c.so")), "/tmp/shim.so:a.so:b.so:/c.so");
        assert_eq!(list(Some("/tmp/shim.so:a.so")), "/tmp/shim.so:a.so", "once is enough");
        let both = preload_list(&[shim, small], Some("a.so:/lib/small.so:a.so".into()));
        assert_eq!(both, "/tmp/shim.so:/lib/small.so:a.so:a.so");
    }

    #[test]
    fn what_is_not_the_shim_is_written_again() {
        let built = std::env::current_exe().expect("a path");
        let folder =
            built.parent().expect("a folder").join(format!("pumice-shim-{}", std::process::id()));
        if let Err(why) = safe_path::make(&folder) {
            eprintln!("skipped: {why}");
            return;
        }
        let paths = [&SHIM, &SMALL].map(|shim| {
            let path = shim.in_folder(&folder).expect("a folder of ours");
            assert!(shim.is_at(&path));
            fs::write(&path, b"short").expect("writable");
            assert!(!shim.is_at(&path));
            assert_eq!(shim.in_folder(&folder), Ok(path.clone()), "written again");
            assert!(shim.is_at(&path));
            path
        });
        assert_ne!(paths[0], paths[1]);
        fs::remove_dir_all(&folder).expect("ours");
    }
}
