//! What `pumice run` makes for its programs can't be made by others, cut off or filled up, and nothing of it stays.

mod support;

use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{folder, run_script, safe_folder, stderr, stdout};

/// Nobody, to whom nothing belongs.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: a plain system call.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: not root");
    }
    is_root
}

/// What `LD_PRELOAD` names under `pumice run`.
fn shim_of(mut command: Command) -> PathBuf {
    let output = command.output().expect("pumice starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let named = stdout(&output);
    PathBuf::from(named.split(':').next().expect("a path"))
}

/// A cleaner removes the shim's folder, and somebody else makes it again: he can't.
#[test]
fn nobody_else_can_make_the_shims_folder_again() {
    let shim = shim_of(run_script("echo $LD_PRELOAD"));
    for above in shim.ancestors().skip(1) {
        let metadata = fs::symlink_metadata(above).expect("a folder");
        assert!(metadata.is_dir() && metadata.mode() & 0o022 == 0, "{}", above.display());
    }
    if !is_root() {
        return;
    }
    for above in shim.ancestors().skip(1) {
        let mut attack = Command::new("mkdir");
        attack.arg(above.join("pumice-attack")).uid(NOBODY).gid(NOBODY);
        let attacked = attack.output().expect("mkdir is installed");
        assert!(!attacked.status.success(), "{}", above.display());
    }
}

/// As it was: the folder was there before the shim, by somebody who put a link, or a file of his own there.
#[test]
fn a_folder_that_others_made_is_not_used() {
    if !is_root() {
        return;
    }
    let folder = folder("planted");
    chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may");
    for name in ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "HOME"] {
        let mut command = run_script("echo $LD_PRELOAD");
        let shim = shim_of_in(&mut command, name, &folder);
        assert!(!shim.starts_with(&folder), "{}", shim.display());
    }
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0, "nothing was put there");
    fs::remove_dir_all(&folder).expect("ours");
}

fn shim_of_in(command: &mut Command, name: &str, folder: &Path) -> PathBuf {
    let output = command.env(name, folder).output().expect("pumice starts");
    PathBuf::from(stdout(&output))
}

/// A user other than root, with a home of his own.
fn user_in(home: &Path) -> Command {
    let mut command = run_script("echo $LD_PRELOAD");
    for name in ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"] {
        command.env_remove(name);
    }
    command.env("HOME", home).uid(NOBODY).gid(NOBODY);
    command
}

#[test]
fn users_have_it_in_their_homes_or_are_told_what_to_type() {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_pumice")).expect("there");
    let is_open = |above: &Path| fs::metadata(above).is_ok_and(|it| it.mode() & 0o005 == 0o005);
    if !is_root() || !program.ancestors().all(is_open) {
        return;
    }
    if let Some(home) = safe_folder("home") {
        chown(&home, Some(NOBODY), Some(NOBODY)).expect("root may");
        let shim = shim_of(user_in(&home));
        assert!(shim.starts_with(home.join(".cache/pumice")), "{}", shim.display());
        assert_eq!(fs::metadata(&shim).expect("there").uid(), NOBODY);
        fs::remove_dir_all(&home).expect("ours");
    }
    let home = folder("sticky-home");
    if fs::metadata(home.parent().expect("a folder")).is_ok_and(|it| it.mode() & 0o002 != 0) {
        chown(&home, Some(NOBODY), Some(NOBODY)).expect("root may");
        let output = user_in(&home).output().expect("pumice starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.lines().count() == 1 && said.contains("set XDG_CACHE_HOME"), "{said}");
        assert!(output.stdout.is_empty(), "nothing was run");
    }
    fs::remove_dir_all(&home).expect("ours");
}
