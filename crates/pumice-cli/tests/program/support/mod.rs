//! The program under test, free of what the caller's environment says about pumice.

pub mod served;

use pumice_frames::sys::segment::{self, View};
use pumice_heap::stats::{is_tree_len, Tree, TREE_SIZE};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// `pumice` with these arguments.
pub fn pumice(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pumice"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("PUMICE") || name_text == "LD_PRELOAD" {
            command.env_remove(&name);
        }
    }
    command.args(arguments);
    heed_signals(&mut command);
    command
}

/// Resets signals: programs that a shell starts in the background ignore them, and so would their children.
fn heed_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: a plain system call.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(reset) };
}

/// `pumice run -- sh -c SCRIPT`.
pub fn run_script(script: &str) -> Command {
    pumice(&["run", "--", "sh", "-c", script])
}

/// The text that it wrote to stdout, without the last newline.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The text that it wrote to stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects of a file of JSON lines.
pub fn rows(file: &Path) -> Vec<Value> {
    objects(&std::fs::read_to_string(file).expect("rows"))
}

/// The objects of JSON lines.
pub fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// The first line that a program says, and the rest.
pub fn first_line<R: Read>(said: Option<R>) -> (String, BufReader<R>) {
    let (mut line, mut said) = (String::new(), BufReader::new(said.expect("piped")));
    said.read_line(&mut line).expect("a line");
    (line.trim_end().to_owned(), said)
}

/// A folder that goes with this.
pub struct Folder(TempDir);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.as_os_str()
    }
}

/// A new folder of this test's, in which nobody else can write whatever the umask.
pub fn folder(name: &str) -> Folder {
    folder_in(&std::env::temp_dir(), name)
}

/// The same in another place.
pub fn folder_in(place: &Path, name: &str) -> Folder {
    let mut builder = tempfile::Builder::new();
    let builder = builder.permissions(Permissions::from_mode(0o755));
    let made = builder.prefix(&format!("pumice-{name}-")).tempdir_in(place);
    Folder(made.expect("a folder for temporary files"))
}

/// The same where nobody but this user and root can put another file, which `/tmp` is not; `None` where the sources
/// are built at no such place.
pub fn safe_folder(name: &str) -> Option<Folder> {
    let folder = folder_in(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
    let open = folder.ancestors().find(|above| {
        let metadata = std::fs::metadata(above).expect("a folder");
        // SAFETY: a plain system call.
        metadata.mode() & 0o022 != 0 || ![0, unsafe { libc::geteuid() }].contains(&metadata.uid())
    });
    match open {
        None => Some(folder),
        Some(open) => {
            eprintln!("skipped: others can write to {}", open.display());
            None
        }
    }
}

/// The shared memory of counters of the programs that a process leads: a `pumice run`, or what it became.
pub fn counters_of(pid: u32) -> Vec<u32> {
    #[repr(align(4096))]
    struct Copied([u8; TREE_SIZE]);
    let is_led = |id: u32| {
        let mut copied = Box::new(Copied([0; TREE_SIZE]));
        let view = View::open(id).ok()?;
        view.copy(0..TREE_SIZE, &mut copied.0).ok()?;
        // SAFETY: as long as a tree, and there for as long as the reference is.
        let tree = unsafe { Tree::open(std::ptr::NonNull::from(&mut copied.0).cast()) }?;
        Some(tree.name().leader.pid == pid)
    };
    let all = segment::all().into_iter().flatten();
    let trees = all.filter(|(_, status)| is_tree_len(status.len));
    trees.map(|(id, _)| id).filter(|&id| is_led(id) == Some(true)).collect()
}
