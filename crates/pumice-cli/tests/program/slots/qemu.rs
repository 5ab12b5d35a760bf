//! Virtual machines on slots: they start, run their firmware, and are shown memory that is zero.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::slots::{Daemon, PATIENCE};

const QEMU: &str = "qemu-system-x86_64";
const MIB: u64 = 1 << 20;

fn has_qemu() -> bool {
    let there = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("skipped: no {QEMU}");
    }
    there
}

/// A machine and its monitor.
struct Machine {
    child: Child,
    monitor: UnixStream,
    lines: BufReader<UnixStream>,
    /// Where its memory is.
    path: String,
}

impl Machine {
    /// Starts one that is paused before its first instruction.
    fn start(daemon: &Daemon, bytes: u64) -> Machine {
        let socket = daemon.folder.join(format!("qmp-{bytes}"));
        let listener = UnixListener::bind(&socket).expect("bound");
        listener.set_nonblocking(true).expect("set");
        // The lease's path is shown before the shell becomes QEMU, and {path} holds as long.
        let script = format!(
            "echo {{path}}; exec {QEMU} -S -nodefaults -display none -accel kvm -accel tcg -m {bytes}B \
             -object {{qemu}},prealloc=on -machine q35,memory-backend=pumice -debugcon file:{} \
             -qmp unix:{}",
            daemon.folder.join(format!("firmware-{bytes}")).display(),
            socket.display()
        );
        let mut child = daemon
            .command(&["lease", &bytes.to_string(), "--wait", "60s"], &["--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("pumice starts");
        let (path, _output) = crate::support::first_line(child.stdout.take());
        let until = Instant::now() + PATIENCE;
        let monitor = loop {
            match listener.accept() {
                Ok((monitor, _)) => break monitor,
                Err(_) => assert!(Instant::now() < until, "no monitor"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        monitor.set_nonblocking(false).expect("set");
        monitor.set_read_timeout(Some(PATIENCE)).expect("set");
        let lines = BufReader::new(monitor.try_clone().expect("a copy"));
        let path = path.trim_end().to_owned();
        let mut machine = Machine { child, monitor, lines, path };
        machine.ask("qmp_capabilities");
        machine
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.monitor, "{{\"execute\":\"{command}\"}}").expect("written");
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("an answer"), 0, "{command}");
            if line.contains("\"return\"") || line.contains("\"error\"") {
                return line;
            }
        }
    }
}

/// Whether a slot is all zero.
fn is_zero(path: &str) -> bool {
    let file = File::open(path).expect("the slot");
    let (mut piece, zeros) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        let read = file.read_at(&mut piece, at).expect("readable");
        if read == 0 {
            return true;
        }
        if piece[..read] != zeros[..read] {
            return false;
        }
        at += read as u64;
    }
}

#[test]
fn machines_of_several_sizes_find_zeros_and_run() {
    if !has_qemu() {
        return;
    }
    let daemon = Daemon::start("qemu", &["--slot", "64M=1", "--slot", "256M=1", "--polite", "off"]);
    // Twice, so that each finds what another has left, were anything left.
    for bytes in [64 * MIB, 256 * MIB, 64 * MIB, 256 * MIB] {
        let socket = daemon.folder.join(format!("qmp-{bytes}"));
        let _ = std::fs::remove_file(&socket);
        let mut machine = Machine::start(&daemon, bytes);
        assert!(is_zero(&machine.path), "{bytes}");
        assert!(!machine.ask("cont").contains("error"));
        let until = Instant::now() + PATIENCE;
        while is_zero(&machine.path) {
            assert!(Instant::now() < until, "the firmware does not run");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(machine.ask("query-status").contains("running"));
        machine.ask("quit");
        assert!(machine.child.wait().expect("ours").success());
    }
}
