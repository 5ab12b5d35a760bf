//! Objects that `pumice run` makes for its programs: others can't make, cut off or fill them, and none stays.

use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::served::{end, python_by};
use pumice_heap::stats::{Tree, TreeName};

use crate::support::{counters_of, folder, pumice, run_script, safe_folder, stderr, stdout};

/// The user nobody, that nothing belongs to.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: a plain system call.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: not root");
    }
    is_root
}

/// The file that `LD_PRELOAD` names under `pumice run`.
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
}

/// The report of `pumice run --report=json` on a script by `sh`.
fn report(script: &str) -> Option<Value> {
    let output = pumice(&["run", "--report=json", "--", "sh", "-c", script]).output();
    report_in(&output.expect("pumice starts"))
}

fn report_in(output: &Output) -> Option<Value> {
    if output.status.code() == Some(77) {
        eprintln!("skipped: {}", stderr(output));
        return None;
    }
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    let said = stderr(output);
    let last = said.lines().last().expect("a report");
    Some(serde_json::from_str(last).expect("JSON"))
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {report}"))
}

/// Python's, that asks for 64 MiB and writes to all of it.
const ASKS: &str = r#"python3 -c 'x = bytearray(1 << 26); x[:] = b"1" * len(x)'"#;

#[test]
fn a_full_dev_shm_is_nothing_to_it() {
    if !is_root() {
        return;
    }
    let script = format!(
        "exec 3<{}\n\
         for folder in /dev/shm /tmp; do mount -t tmpfs -o size=4k none $folder || exit 77\n\
         head -c 100k /dev/zero >$folder/full 2>/dev/null; done\n\
         exec /proc/self/fd/3 run --report=json -- {ASKS}",
        env!("CARGO_BIN_EXE_pumice")
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        // The sources may be below `/tmp`.
        .current_dir("/")
        .output();
    let Some(report) = output.ok().and_then(|output| report_in(&output)) else { return };
    assert!(number(&report, "requests") > 0, "{report}");
}

/// Removing the counters takes nothing from programs that count there, nor from programs that come.
#[test]
fn counters_can_not_be_cut_off() {
    let remove = "ipcrm -m $PUMICE_STATS";
    let script = format!(
        "command -v ipcrm >/dev/null && command -v python3 >/dev/null || exit 77\n\
         {remove}\n{ASKS}\n{remove}\n{ASKS}"
    );
    let Some(report) = report(&script) else { return };
    assert!(number(&report, "requests") >= 2, "{report}");
}

/// A tree that somebody else made, and lets everybody use.
#[test]
fn another_users_counters_are_not_used() {
    if !is_root() {
        return;
    }
    let size = pumice_heap::stats::TREE_SIZE;
    let make = move || {
        // SAFETY: plain system calls, the first for this thread alone; the segment is new, of that size, and stays
        // mapped.
        unsafe {
            libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY);
            let id = libc::shmget(libc::IPC_PRIVATE, size, 0o666);
            let at = libc::shmat(id, std::ptr::null(), 0);
            let memory = std::ptr::NonNull::new(at.cast()).expect("mapped");
            (id, Tree::create(memory, TreeName::of_own(), 1 << 40, 0))
        }
    };
    let (id, tree) = std::thread::spawn(make).join().expect("it ends");
    let shim = shim_of(run_script("echo $LD_PRELOAD"));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{ASKS}; true")]).env("LD_PRELOAD", shim);
    let ran = command.env("PUMICE_STATS", id.to_string()).status().expect("sh starts");
    // SAFETY: a plain system call.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    assert!(ran.success());
    assert_eq!(tree.processes(), 0, "a program counts in another user's");
}

/// Has a program start another in the background, which says its number, and end when that writes to a pipe; the one in
/// the background is told the number of `pumice run` and the pipe. When `pumice run` has ended: both numbers, and what
/// ends the one in the background.
fn outlived(kind: Kind, background: &str) -> Option<(u32, u32, Child)> {
    let script = "import os,sys,subprocess\nx = bytearray(1 << 25)\nr, w = os.pipe()\n\
                  leader = os.getppid() if sys.argv[2:] else os.getpid()\n\
                  line = [sys.executable, '-c', sys.argv[1], str(leader), str(w)]\n\
                  subprocess.Popen(line, pass_fds=[w])\nos.close(w)\nos.read(r, 1)\nos._exit(0)";
    let line = ["--pool-max", "1G", "--", "python3", "-c", script, background];
    let (option, last): (&[&str], &[&str]) = match kind {
        Kind::Parent => (&["--report-file", "/dev/null"], &["parent"]),
        Kind::Program => (&[], &[]),
    };
    let mut run = pumice(&[&["run"], option, &line, last].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("pumice starts");
    let (line, _output) = crate::support::first_line(run.stdout.take());
    // SAFETY: a plain system call on a child of this process, which is left to be waited for; zeros are a siginfo.
    let ended = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, run.id(), &mut info, libc::WEXITED | libc::WNOWAIT)
    };
    assert_eq!(ended, 0);
    match line.trim_end().parse() {
        Ok(pid) => Some((run.id(), pid, run)),
        Err(_) => {
            eprintln!("skipped: no python3");
            None
        }
    }
}

/// Whether `pumice run` stays as the program's parent or becomes it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Parent,
    Program,
}

const LIVES: &str = "import os,sys\nx = bytearray(1 << 26); x[:] = b'1' * len(x)\n\
                     if sys.argv[1:]: os.write(int(sys.argv[2]), b'1')\n\
                     print(os.getpid(), flush=True)\nsys.stdin.readline()";

#[test]
fn nothing_stays_behind_those_who_outlive_the_program() {
    for kind in [Kind::Parent, Kind::Program] {
        let Some((run, pid, child)) = outlived(kind, LIVES) else { return };
        stays_until_it_ends(run, pid, child);
    }
}

fn stays_until_it_ends(run: u32, pid: u32, child: Child) {
    assert_eq!(counters_of(run).len(), 1, "it still counts");
    let shown = stdout(&pumice(&["stat", "--json", &pid.to_string()]).output().expect("starts"));
    assert!(shown.contains(&format!("\"run_pid\":{run},")), "{shown}");
    end(child);
    let until = Instant::now() + Duration::from_secs(60);
    while !counters_of(run).is_empty() {
        assert!(Instant::now() < until, "its counters are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    let named = format!(".{run}.");
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(names.all(|name| !(name.starts_with("pumice.") && name.contains(&named))));
}

/// It becomes another program when nobody has the counters any more: they are made anew, if they have a name.
#[test]
fn the_last_process_counts_for_itself() {
    let script = format!(
        "import os,sys,time\nos.write(int(sys.argv[2]), b'1')\n\
         run = '/proc/' + sys.argv[1] + '/stat'\n\
         while open(run).read().rsplit(')')[1][1] != 'Z': time.sleep(0.001)\n\
         os.execvp(sys.executable, [sys.executable, '-c', {LIVES:?}])"
    );
    for (kind, trees) in [(Kind::Parent, 0), (Kind::Program, 1)] {
        let Some((run, pid, child)) = outlived(kind, &script) else { return };
        assert_eq!(counters_of(run).len(), trees, "the first ones are nobody's");
        let mapped = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        assert!(mapped.contains("libpumice-"), "the shim is there: {mapped}");
        end(child);
    }
}

fn has_namespaces() -> bool {
    let arguments = ["--pid", "--fork", "--mount-proc", "true"];
    let has =
        is_root() && Command::new("unshare").args(arguments).status().is_ok_and(|it| it.success());
    if !has {
        eprintln!("skipped: no namespaces of processes to be had");
    }
    has
}

/// Starts Python in namespaces of their own.
const ELSEWHERE: &str = "import subprocess,os\n\
                         line = ['unshare', '-p', '-f', '--mount-proc', 'python3', '-c']\n";

/// A child of `pumice run` has a pool in common with those of other namespaces, since that sees them all.
const KEPT: [&str; 2] = ["--report-file", "/dev/null"];

/// Three programs, each the first process of a namespace of its own: they all have the same number.
#[test]
fn processes_of_the_same_number_share_a_pool() {
    if !has_namespaces() {
        return;
    }
    let inner = "import sys\nx = bytearray(1 << 25)\n\
                 print(1, flush=True)\nsys.stdin.readline()";
    let script = format!(
        "{ELSEWHERE}all = [subprocess.Popen(line + [{inner:?}], stdin=-1, stdout=-1) for i in range(3)]\n\
         for one in all: one.stdout.readline()\n\
         x = bytearray(1 << 22); say(os.getpid()); wait()\n\
         for one in all: one.communicate(b'x')"
    );
    let command = pumice(&["run", KEPT[0], KEPT[1], "--pool-max", "90M", "--", "python3"]);
    let Some((child, _)) = python_by(command, &script) else { return };
    let run = child.id().to_string();
    let shown = stdout(&pumice(&["stat", "--json", &run]).output().expect("pumice starts"));
    let shown = crate::support::objects(&shown);
    let pools: Vec<_> = shown.iter().map(|one| number(one, "pool_bytes")).collect();
    assert_eq!(pools.len(), 4, "{shown:?}");
    let large = pools.iter().filter(|&&bytes| bytes >= 1 << 25).count();
    assert!((1..=2).contains(&large), "as many as fit: {shown:?}");
    let sum: u64 = pools.iter().sum();
    assert_eq!(sum, number(&shown[0], "tree_pool_bytes"), "{shown:?}");
    assert!(sum <= 90 << 20, "{shown:?}");
    for one in &shown {
        let pid = number(one, "pid").to_string();
        let listed = pumice(&["ctl", &pid]).output().expect("pumice starts");
        assert!(stdout(&listed).starts_with(&format!("# {pid} ")), "{}", stderr(&listed));
    }
    end(child);
}

/// The memory of a namespace's processes is given up when they are gone, though none of them is left to say so.
#[test]
fn a_namespace_that_is_gone_gives_up_its_share() {
    if !has_namespaces() {
        return;
    }
    let inner = "import os\nx = bytearray(1 << 25); x[:] = b'1' * len(x)\nos._exit(0)";
    let script = format!(
        "{ELSEWHERE}subprocess.run(line + [{inner:?}])\n\
         x = bytearray(1 << 22); say(os.getpid()); wait()"
    );
    let command = pumice(&["run", KEPT[0], KEPT[1], "--pool-max", "1G", "--", "python3"]);
    let Some((child, pid)) = python_by(command, &script) else { return };
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let shown = pumice(&["stat", "--json", &pid.to_string()]).output().expect("pumice starts");
        let own: Value = serde_json::from_str(&stdout(&shown)).expect("one object");
        if number(&own, "tree_pool_bytes") == number(&own, "pool_bytes") {
            assert!(number(&own, "tree_pool_peak_bytes") >= 1 << 25, "{own}");
            break;
        }
        assert!(Instant::now() < until, "{own}");
        std::thread::sleep(Duration::from_millis(50));
    }
    end(child);
}

/// Where `pumice run` is gone, each namespace has a pool of its own: none of the processes can tell whether those of
/// another one live.
#[test]
fn namespaces_have_pools_of_their_own() {
    if !has_namespaces() {
        return;
    }
    let inner = "import sys\nx = bytearray(1 << 25)\nprint(1, flush=True)\nsys.stdin.readline()";
    let script = format!(
        "{ELSEWHERE}all = [subprocess.Popen(line + [{inner:?}], stdin=-1, stdout=-1) for i in range(3)]\n\
         for one in all: one.stdout.readline()\n\
         x = bytearray(1 << 25); say(os.getpid()); wait()\n\
         for one in all: one.communicate(b'x')"
    );
    let command = pumice(&["run", "--pool-max", "90M", "--", "python3"]);
    let Some((child, run)) = python_by(command, &script) else { return };
    assert_eq!((run, counters_of(run).len()), (child.id(), 4));
    let shown = pumice(&["stat", "--json", &run.to_string()]).output().expect("pumice starts");
    let shown = crate::support::objects(&stdout(&shown));
    assert_eq!(shown.len(), 4, "{shown:?}");
    for one in &shown {
        let pool = number(one, "pool_bytes");
        assert!(pool >= 1 << 25 && pool == number(one, "tree_pool_bytes"), "{one}");
    }
    let listed = stdout(&pumice(&["ctl", &run.to_string()]).output().expect("pumice starts"));
    assert_eq!(listed.matches("# ").count(), 4, "{listed}");
    let page = stdout(&pumice(&["stat", "--prometheus"]).output().expect("pumice starts"));
    let of_run = format!("pumice_tree_processes_total{{run_pid=\"{run}\"");
    let mut lines: Vec<_> = page.lines().filter(|line| line.starts_with(&of_run)).collect();
    lines.dedup();
    assert_eq!(lines.len(), 4, "a counter for each: {page}");
    end(child);
    assert!(counters_of(run).is_empty());
}

/// In a namespace of users, too, where what is under `/proc` of those outside can't be opened.
#[test]
fn a_namespace_of_users_shares_the_counters() {
    let script = format!("unshare -r true 2>/dev/null || exit 77; unshare -r {ASKS}");
    let Some(report) = report(&script) else { return };
    assert!(number(&report, "requests") > 0, "{report}");
}
