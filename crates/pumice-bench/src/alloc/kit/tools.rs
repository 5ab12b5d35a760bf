//! Programs of the machine: whether they are there, and what they make for the loads.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::alloc::loads::DATABASE_SCRIPT;

const GO_SOURCE: &str = include_str!("../loads/cgo.go");
const JAVA_SOURCES: [(&str, &str); 2] = [
    ("LargeArrays.java", include_str!("../loads/LargeArrays.java")),
    ("Objects.java", include_str!("../loads/Objects.java")),
];

/// The interpreter itself: `python3` may be a script that looks for it.
pub fn find_python() -> Option<OsString> {
    let printing = "import sys; print(sys.executable, end='')";
    let output = quiet("python3").args(["-c", printing]).output().ok()?;
    (output.status.success() && !output.stdout.is_empty())
        .then(|| OsString::from_vec(output.stdout))
}

/// Whether the interpreter has a module.
pub fn has_module(python: &OsStr, module: &str) -> bool {
    let looking = "import sys; from importlib.util import find_spec\n\
                   sys.exit(find_spec(sys.argv[1]) is None)";
    let status = quiet(python).args(["-c", looking, module]).status();
    status.is_ok_and(|status| status.success())
}

/// Whether a program is in a folder of `PATH`, or where Debian has PostgreSQL's.
pub fn is_installed(program: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).any(|path| path.join(program).is_file());
    found || postgres_folders().any(|folder| folder.join(program).is_file())
}

fn postgres_folders() -> impl Iterator<Item = PathBuf> {
    let versions = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten();
    versions.flatten().map(|version| version.path().join("bin"))
}

/// Compiles the Go program: its path.
pub fn go_program(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("cgo");
    if !program.exists() {
        let source = program.with_extension("go");
        fs::write(&source, GO_SOURCE).map_err(|error| cant_write(&source, &error))?;
        let mut command = quiet("go");
        command.args(["build", "-o"]).args([&program, &source]);
        // Its caches go with the folder, and it asks no network.
        command.env("HOME", folder).env("GOCACHE", folder.join("go-cache"));
        command.env("GOPATH", folder.join("go-path")).env("GOENV", "off");
        command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "1");
        finish("go", command.current_dir(folder))?;
    }
    Ok(program)
}

/// Compiles the Java classes: their folder.
pub fn java_classes(folder: &Path) -> Result<PathBuf, String> {
    let classes = folder.join("classes");
    if !classes.exists() {
        let mut command = quiet("javac");
        command.args(["-J-XX:-UsePerfData", "-d"]).arg(&classes).current_dir(folder);
        for (name, source) in JAVA_SOURCES {
            let path = folder.join(name);
            fs::write(&path, source).map_err(|error| cant_write(&path, &error))?;
            command.arg(path);
        }
        finish("javac", &mut command)?;
    }
    Ok(classes)
}

/// Makes the database: its folder, which is nobody's where this process is root.
pub fn database(folder: &Path) -> Result<PathBuf, String> {
    let data = folder.join("postgres");
    if !data.exists() {
        let make = || -> io::Result<()> {
            fs::create_dir(&data)?;
            if rustix::process::geteuid().is_root() {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
                chown(&data, Some(NOBODY), None)?;
            }
            Ok(())
        };
        make().map_err(|error| cant_write(&data, &error))?;
        let mut command = quiet("sh");
        command.args(["-c", DATABASE_SCRIPT, "sh"]).args([folder, &data]).current_dir(folder);
        command.env("LC_ALL", "C");
        let made = finish("initdb or pgbench", &mut command);
        if made.is_err() {
            let _ = fs::remove_dir_all(&data);
        }
        made?;
    }
    Ok(data)
}

/// The user of that name, on every Linux.
const NOBODY: u32 = 65534;

fn cant_write(path: &Path, error: &io::Error) -> String {
    format!("can't write {}: {error}", path.display())
}

/// Runs a command to its end. `Err` has its last words.
fn finish(name: &str, command: &mut Command) -> Result<(), String> {
    let output = command.stderr(Stdio::piped()).stdout(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} can't be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let last: String = last.escape_debug().take(160).collect();
    Err(format!("{name} fails: {last}"))
}

/// A command that neither reads nor complains.
fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_says_its_last_words() {
        let mut command = quiet("sh");
        let failed = finish("make", command.args(["-c", "echo one >&2; echo two >&2; exit 1"]));
        assert_eq!(failed, Err("make fails: two".to_owned()));
        assert!(finish("x", &mut quiet("/no/such/program")).is_err());
        assert_eq!(finish("true", &mut quiet("true")), Ok(()));
    }

    #[test]
    fn programs_are_found() {
        assert!(is_installed("sh") && !is_installed("no-such-program"));
    }
}
