//! Programs in Python that are served and wait until they are told to end.

use std::process::{Child, Command, Stdio};

use super::{first_line, pumice};

/// A program that has been served and waits; its process id. `None` without python3.
pub fn served() -> Option<(Child, u32)> {
    python("import os; x = bytearray(1 << 26); x[:] = b'1' * len(x); say(os.getpid()); wait()")
}

/// A script under `pumice run`, which says a number and waits until its input is closed.
pub fn python(script: &str) -> Option<(Child, u32)> {
    python_by(pumice(&["run", "--", "python3"]), script)
}

/// The same, started by this command.
pub fn python_by(mut command: Command, script: &str) -> Option<(Child, u32)> {
    let tools = "import sys\ndef say(n): print(n, flush=True)\ndef wait(): sys.stdin.readline()\n";
    let mut child = command
        .args(["-c", &format!("{tools}{script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("pumice starts");
    match first_line(child.stdout.take()).0.parse() {
        Ok(pid) => Some((child, pid)),
        Err(_) => {
            eprintln!("skipped: no python3");
            child.wait().expect("waited");
            None
        }
    }
}

/// Tells it to end.
pub fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("waited");
}
