//! Files that are written whole.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::Failure;

/// Writes a file whole: a reader sees the old one or the new one.
///
/// # Errors
/// Where it can't be written, which is said with its path.
pub fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let failure =
        |error: io::Error| Failure::usage(format!("can't write {}: {error}", path.display()));
    // A pipe or a device has nothing to keep, and a link should stay one.
    let is_plain = fs::symlink_metadata(path).map_or(true, |data| data.is_file());
    if !is_plain {
        return fs::write(path, text).map_err(failure);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let done = match fs::write(&beside, text) {
        // A file may be written where none may be made.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => fs::write(path, text),
        made => made.and_then(|()| fs::rename(&beside, path)),
    };
    done.inspect_err(|_| drop(fs::remove_file(&beside))).map_err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_need_be_writable() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("made");
        let path = folder.path().join("results");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).expect("ours");
        // Root makes a file beside it all the same.
        write_whole(&path, "new").expect("written");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("ours");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new");
    }
}
