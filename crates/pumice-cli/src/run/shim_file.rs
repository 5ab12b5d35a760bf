//! The shim, embedded in this program, as a file that the loader can open.
//!
//! It is written once for each version, under a name that holds its hash, into a folder that only
//! this user may write to; a later run checks owner, mode and size and reads nothing. Others may
//! read it, so that what a program starts under another user can load it too. `PUMICE_SHIM`
//! names a file to take instead.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{statvfs, StatVfsMountFlags};
use rustix::process::geteuid;

use crate::args::Failure;

/// Names a shim to take instead of the embedded one.
const ENV_SHIM: &str = "PUMICE_SHIM";

static EMBEDDED: &[u8] = include_bytes!(env!("PUMICE_SHIM_FILE"));
const FILE_NAME: &str = concat!("libpumice-", env!("PUMICE_SHIM_HASH"), ".so");
/// The name where somebody chose the folder.
const INSTALLED_NAME: &str = "libpumice-preload.so";

/// The path of a shim that `LD_PRELOAD` can name: absolute, with no space or colon in it.
pub fn find_or_write() -> Result<PathBuf, Failure> {
    match std::env::var_os(ENV_SHIM) {
        Some(path) if !path.is_empty() => named(Path::new(&path)),
        _ => embedded(),
    }
}

/// Copies the embedded shim into `folder`, under a name that stays the same from version to
/// version, and returns its path. A program that has the former one loaded keeps it.
///
/// # Errors
/// Where the folder can't be named in `LD_PRELOAD` or others may write to it, and where the copy
/// can't be written.
pub fn install(folder: &Path) -> Result<PathBuf, Failure> {
    let shown = folder.display();
    let absolute = std::path::absolute(folder)
        .map_err(|error| Failure::usage(format!("--install-shim {shown}: {error}")))?;
    let path = absolute.join(INSTALLED_NAME);
    if !can_be_preloaded(&path) {
        return Err(Failure::usage(format!(
            "--install-shim {shown} has a space or colon in its path, which LD_PRELOAD can't name"
        )));
    }
    let refused = |error: io::Error| {
        Failure::usage(format!("--install-shim {shown}: no shim can be written there: {error}"))
    };
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755).create(&absolute).map_err(refused)?;
    let mode = fs::metadata(&absolute).map_err(refused)?.mode();
    if mode & 0o002 != 0 {
        return Err(Failure::usage(format!(
            "--install-shim {shown} is writable for everybody, who could replace the shim; \
             take another folder or see chmod o-w"
        )));
    }
    if is_noexec(&absolute) {
        return Err(Failure::usage(format!(
            "--install-shim {shown} is mounted noexec, so no program can load a shim from it"
        )));
    }
    write(&absolute, &path).map_err(refused)?;
    Ok(path)
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
    Ok(absolute)
}

/// Whether a file can be a shim.
pub fn starts_as_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"\x7fELF"
}

fn embedded() -> Result<PathBuf, Failure> {
    let folders = candidate_folders();
    for folder in &folders {
        if let Some(path) = in_folder(folder) {
            return Ok(path);
        }
    }
    let tried = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>();
    Err(Failure::usage(format!(
        "no folder to put the shim in (tried {}); set XDG_RUNTIME_DIR to one that you own, \
         without spaces or noexec, or {ENV_SHIM} to a shim",
        tried.join(", ")
    )))
}

/// Best first: `/tmp` is there for other users and in most sandboxes.
fn candidate_folders() -> Vec<PathBuf> {
    let from = |name: &str, inner: &str| {
        let path = PathBuf::from(std::env::var_os(name)?).join(inner);
        path.is_absolute().then_some(path)
    };
    let mut folders = vec![PathBuf::from(format!("/tmp/pumice-{}", geteuid().as_raw()))];
    folders.extend(from("XDG_RUNTIME_DIR", "pumice"));
    folders.extend(from("XDG_CACHE_HOME", "pumice").or_else(|| from("HOME", ".cache/pumice")));
    folders.extend(from("TMPDIR", "pumice"));
    folders
}

/// The shim in this folder, written if need be; `None` where the folder won't do.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(FILE_NAME);
    if !can_be_preloaded(&path) {
        return None;
    }
    if !is_ours_alone(folder) {
        if folder.exists() {
            return None;
        }
        DirBuilder::new().recursive(true).mode(0o755).create(folder).ok()?;
        // Whatever the umask took: others may look inside.
        fs::set_permissions(folder, Permissions::from_mode(0o755)).ok()?;
        if !is_ours_alone(folder) {
            return None;
        }
    }
    if is_noexec(folder) {
        return None;
    }
    if is_the_shim(&path) || write(folder, &path).is_ok() {
        Some(path)
    } else {
        None
    }
}

/// `LD_PRELOAD` separates by spaces and colons and knows no quoting.
fn can_be_preloaded(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :\n\t".contains(byte))
}

/// Nobody else can have put the file there.
fn is_ours_alone(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0
    })
}

fn is_noexec(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|filesystem| filesystem.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn is_the_shim(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        metadata.is_file()
            && metadata.uid() == geteuid().as_raw()
            && metadata.mode() & 0o022 == 0
            && metadata.len() == EMBEDDED.len() as u64
    })
}

/// Writes beside the name and renames: whoever finds the name finds the whole file.
fn write(folder: &Path, path: &Path) -> io::Result<()> {
    let mut name = OsString::from(FILE_NAME);
    name.push(format!(".{}", std::process::id()));
    let unfinished = folder.join(name);
    let _ = fs::remove_file(&unfinished);
    let written = write_new(&unfinished).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

fn write_new(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    // Whatever the umask took.
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
    file.write_all(EMBEDDED)
}

/// `LD_PRELOAD` with the shim first and what was there behind it.
pub fn preload_list(shim: &Path, before: Option<OsString>) -> OsString {
    let mut list = shim.as_os_str().to_owned();
    if let Some(before) = before {
        let separates = |byte: &u8| b" :".contains(byte);
        let others = before
            .as_bytes()
            .split(separates)
            .filter(|entry| !entry.is_empty() && *entry != shim.as_os_str().as_bytes());
        for entry in others {
            list.push(":");
            list.push(OsStr::from_bytes(entry));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_keeps_what_was_there() {
        let shim = Path::new("/tmp/shim.so");
        let list = |before: Option<&str>| preload_list(shim, before.map(OsString::from));
        assert_eq!(list(None), "/tmp/shim.so");
        assert_eq!(list(Some("")), "/tmp/shim.so");
        assert_eq!(list(Some("a.so b.so:/c.so")), "/tmp/shim.so:a.so:b.so:/c.so");
        assert_eq!(list(Some("/tmp/shim.so:a.so")), "/tmp/shim.so:a.so", "once is enough");
    }

    #[test]
    fn folders_that_others_write_to_will_not_do() {
        let folder = std::env::temp_dir().join(format!("pumice-shim-{}", std::process::id()));
        DirBuilder::new().mode(0o755).create(&folder).expect("a new folder");
        assert!(is_ours_alone(&folder));
        let path = in_folder(&folder);
        if let Some(path) = &path {
            assert!(is_the_shim(path));
            fs::write(path, b"short").expect("writable");
            assert!(!is_the_shim(path));
            assert_eq!(in_folder(&folder).as_ref(), Some(path), "written again");
            assert!(is_the_shim(path));
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("ours");
        assert!(!is_ours_alone(&folder));
        assert_eq!(in_folder(&folder), None);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
        fs::remove_dir_all(&folder).expect("ours");
    }
}
