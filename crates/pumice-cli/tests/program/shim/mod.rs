//! Helpers that the tests of the shim share: building C programs, running programs with and without
//! the shim, and comparing.

mod calls;
mod core;
mod defects;
mod elf;
mod failures;
mod limits;
mod manners;
mod mmap;
mod programs;
mod ready;
mod semantics;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// The shim that `pumice` embeds.
pub fn shim_file() -> PathBuf {
    PathBuf::from(env!("PUMICE_SHIM_FILE"))
}

/// The library between the shim and an allocator that was asked for.
pub fn small_file() -> PathBuf {
    PathBuf::from(env!("PUMICE_SMALL_FILE"))
}

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Without the shim.
    Plain,
    /// With it, checking that memory said to be zero is, and no mappings: the default of users.
    Verify,
    /// With mappings, and with memory populated ahead.
    Ready,
    /// The same, and everything from one frame on comes from the heap.
    Small,
    /// The same as that, on a machine that seems to have two memory nodes.
    Nodes,
    /// Allocations from one frame on, and no mappings by a flag of its own.
    NoMmap,
}

/// The ways to run C programs of ours, which are quick.
pub const ALL_MODES: [Mode; 4] = [Mode::Verify, Mode::Ready, Mode::Small, Mode::Nodes];

/// Whether tests run their programs in all modes that they know (`ci/fuzz` says so), and not in a few that have most
/// of them.
pub fn are_all_modes_wanted() -> bool {
    std::env::var_os("PUMICE_TEST_MODES").is_some_and(|modes| modes == "all")
}

/// Two modes that have most of what the four have, or all.
pub fn some_modes() -> &'static [Mode] {
    if are_all_modes_wanted() {
        &ALL_MODES
    } else {
        &[Mode::Ready, Mode::Small]
    }
}

/// The one mode in which the shim does most, for programs that take long, or all.
pub fn most_modes() -> &'static [Mode] {
    if are_all_modes_wanted() {
        &ALL_MODES
    } else {
        &[Mode::Small]
    }
}

/// The command that runs a program that way.
pub fn command(mode: Mode, program: impl AsRef<OsStr>) -> Command {
    command_with(mode, &[], program)
}

/// The same, with more flags of `pumice run`.
pub fn command_with(mode: Mode, more: &[&str], program: impl AsRef<OsStr>) -> Command {
    let flags: &[&str] = match mode {
        Mode::Plain => return cleaned(Command::new(program)),
        Mode::Verify => &["--verify"],
        Mode::Ready => &["--verify", "--mmap", "--ready", "64M"],
        Mode::Small | Mode::Nodes => &["--verify", "--threshold", "4K", "--mmap-threshold", "4K"],
        Mode::NoMmap => &["--verify", "--no-mmap", "--threshold", "4K"],
    };
    let mut command = cleaned(Command::new(env!("CARGO_BIN_EXE_pumice")));
    command.arg("run").args(flags).args(more).arg("--").arg(program);
    if mode == Mode::Nodes {
        command.env("PUMICE_FAKE_NODES", "2");
    }
    command
}

/// A command that finds nothing of pumice's in its environment.
fn cleaned(mut command: Command) -> Command {
    let of_pumice = |name: &OsString| name.as_encoded_bytes().starts_with(b"PUMICE");
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_pumice(name)) {
        command.env_remove(name);
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// The command that runs a program with the shim, and without `pumice run` to lead it.
pub fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let mut command = cleaned(Command::new(program));
    command.env("LD_PRELOAD", shim_file()).env("PUMICE_VERIFY", "1");
    command
}

/// Runs to the end, with `input` on standard input.
pub fn run(mut command: Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = input.to_vec();
    // A program that reads nothing closes the pipe, which is its right.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("the child is ours to wait for");
    writer.join().expect("writing does not panic");
    output
}

/// Runs a program plainly and in each of the ways under the shim: status, output and errors must
/// agree. Returns what they were.
pub fn compare(modes: &[Mode], program: &OsStr, arguments: &[&str], input: &[u8]) -> Output {
    let ways: Vec<_> = modes.iter().map(|&mode| (mode, Vec::new())).collect();
    compare_ways(&ways, program, arguments, input)
}

/// The same, each way with more flags of `pumice run`.
pub fn compare_ways(
    ways: &[(Mode, Vec<&str>)],
    program: &OsStr,
    arguments: &[&str],
    input: &[u8],
) -> Output {
    let outcome = |mode, more: &[&str]| {
        let mut command = command_with(mode, more, program);
        command.args(arguments);
        run(command, input)
    };
    let plain = outcome(Mode::Plain, &[]);
    for (mode, more) in ways {
        let shimmed = outcome(*mode, more);
        assert!(
            plain == shimmed,
            "{program:?} {arguments:?}, {mode:?} {more:?}: {}\n--- without the shim\n{}\n--- with it\n{}",
            first_difference(&plain, &shimmed),
            describe(&plain),
            describe(&shimmed),
        );
    }
    plain
}

/// The first lines that are not the same: the outputs themselves may be long.
fn first_difference(plain: &Output, shimmed: &Output) -> String {
    let lines = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (plain, shimmed) = (lines(plain), lines(shimmed));
    let end = "(the end)".to_owned();
    for number in 0..plain.len().max(shimmed.len()) {
        let line = plain.get(number).unwrap_or(&end);
        let other = shimmed.get(number).unwrap_or(&end);
        if line != other {
            return format!("line {}\n- {line}\n+ {other}", number + 1);
        }
    }
    "not in the lines of its output".to_owned()
}

/// As [`compare`], for a program that must also succeed.
pub fn compare_success(
    modes: &[Mode],
    program: impl AsRef<OsStr>,
    arguments: &[&str],
    input: &[u8],
) {
    let plain = compare(modes, program.as_ref(), arguments, input);
    assert!(plain.status.success(), "{}", describe(&plain));
}

/// Tests of one program each: the function that runs it, and each test's arguments for that.
macro_rules! test_programs {
    ($run:ident: $($test:ident: $($argument:expr),+;)+) => {$(
        #[test]
        fn $test() {
            $run($($argument),+);
        }
    )+};
}

pub(crate) use test_programs;

/// An outcome, for people.
pub fn describe(output: &Output) -> String {
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.chars().take(4000).collect::<String>()
    };
    let signal = output.status.signal();
    format!(
        "{} (signal {signal:?})\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Where a test's files go.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("cargo's folder for tests is writable");
    path
}

/// Compiles `c/SOURCE.c` to a program (or library) called `name`, which stands for this source and these flags: once,
/// however many tests want it.
pub fn compile_with(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    type Compiled = Mutex<HashMap<PathBuf, Arc<OnceLock<()>>>>;
    static COMPILED: LazyLock<Compiled> = LazyLock::new(Mutex::default);
    let program = scratch("shim").join(name);
    let mut compiled = COMPILED.lock().expect("nothing panics with it");
    let this = compiled.entry(program.clone()).or_default().clone();
    drop(compiled);
    this.get_or_init(|| build(compiler, source, &program, flags));
    program
}

fn build(compiler: &str, source: &str, program: &Path, flags: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    // Compiled under another name first: another run of the tests may have it.
    let mut unfinished = program.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    // The compiler must not know what malloc does, or it would leave calls out.
    let status = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-g", "-w", "-fno-builtin", "-pthread", "-o"])
        .arg(&unfinished)
        .arg(folder.join(source).with_extension("c"))
        .args(flags)
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(status.success(), "{compiler} {source}");
    std::fs::rename(&unfinished, program).expect("both are in one folder");
}

/// Compiles with the system's compiler. The program of a source in a folder has the folder's name in its own.
pub fn compile(source: &str) -> PathBuf {
    compile_with("cc", source, &source.replace('/', "-"), &[])
}

/// Whether a program is installed; if not, says that the test skips.
pub fn have(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|path| path.join(program).is_file());
    if !found {
        println!("{program} is not installed: skipped");
    }
    found
}
