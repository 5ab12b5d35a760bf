//! Virtual machines on slots: they start, run their firmware, and are shown memory that is zero.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::slots::snapshots::place;
use crate::slots::{Daemon, PATIENCE};
use crate::support::{pumice, stderr};

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
        let firmware = daemon.folder.join(format!("firmware-{bytes}"));
        let prealloc = format!("-S -accel kvm -accel tcg -debugcon file:{}", firmware.display());
        let size = bytes.to_string();
        Machine::launch(daemon, &size, &[&size], bytes, "{qemu},prealloc=on", &prealloc)
    }

    /// Starts one by a lease, with this object and more arguments.
    fn launch(
        daemon: &Daemon,
        name: &str,
        lease: &[&str],
        bytes: u64,
        object: &str,
        more: &str,
    ) -> Machine {
        let socket = daemon.folder.join(format!("qmp-{name}"));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("bound");
        listener.set_nonblocking(true).expect("set");
        // The lease's path is shown before the shell becomes QEMU, and {path} holds as long.
        let script = format!(
            "echo {{path}}; exec {QEMU} -nodefaults -display none -m {bytes}B \
             -object {object} -machine q35,memory-backend=pumice {more} -qmp unix:{}",
            socket.display()
        );
        let lease = [&["lease"], lease, &["--wait", "60s"]].concat();
        let mut child = daemon
            .command(&lease, &["--", "sh", "-c", &script])
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

    /// Has only the devices' state go to the stream, or come from there: the memory is shared.
    fn leave_memory(&mut self) {
        let capability = "{\"capability\":\"x-ignore-shared\",\"state\":true}";
        let answer = self.tell(&format!(
            "{{\"execute\":\"migrate-set-capabilities\",\"arguments\":{{\"capabilities\":[{capability}]}}}}"
        ));
        assert!(!answer.contains("error"), "{answer}");
    }

    /// Has its state go somewhere, or come from there.
    fn move_by(&mut self, command: &str, uri: &str) {
        let arguments = format!("{{\"uri\":\"{uri}\"}}");
        let answer = self.tell(&format!("{{\"execute\":\"{command}\",\"arguments\":{arguments}}}"));
        assert!(!answer.contains("error"), "{answer}");
    }

    /// Waits until it answers so.
    fn until(&mut self, command: &str, part: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(command);
            if answer.contains(part) {
                return;
            }
            assert!(!answer.contains("failed") && Instant::now() < until, "{command}: {answer}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(&format!("{{\"execute\":\"{command}\"}}"))
    }

    /// A command as JSON; its answer.
    fn tell(&mut self, command: &str) -> String {
        writeln!(self.monitor, "{command}").expect("written");
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("an answer"), 0, "{command}");
            if line.contains("\"return\"") || line.contains("\"error\"") {
                return line;
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

/// A boot sector: in each page from 2 to 8 MiB it writes the page's address, changed by [`MARK`], and then counts.
///
/// ```text
///         cli                             pm:     mov     $16, %ax
///         xor     %ax, %ax                        mov     %ax, %ds
///         mov     %ax, %ds                        mov     $0x200000, %edi
///         in      $0x92, %al              fill:   mov     %edi, %eax
///         or      $2, %al                         xor     $MARK, %eax
///         out     %al, $0x92                      mov     %eax, 8(%edi)
///         lgdt    table                           add     $0x1000, %edi
///         mov     %cr0, %eax                      cmp     $0x800000, %edi
///         or      $1, %al                         jb      fill
///         mov     %eax, %cr0              count:  incl    0x200000
///         ljmp    $8, $pm                         jmp     count
/// ```
const SECTOR: &[u8] = &[
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xe4, 0x92, 0x0c, 0x02, 0xe6, 0x92, 0x0f, 0x01, 0x16, 0x60, 0x7c,
    0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, 0xea, 0x1d, 0x7c, 0x08, 0x00, 0x66, 0xb8, 0x10,
    0x00, 0x8e, 0xd8, 0xbf, 0x00, 0x00, 0x20, 0x00, 0x89, 0xf8, 0x35, 0x5a, 0x5a, 0x5a, 0x5a, 0x89,
    0x47, 0x08, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x81, 0xff, 0x00, 0x00, 0x80, 0x00, 0x72, 0xe8,
    0xff, 0x05, 0x00, 0x00, 0x20, 0x00, 0xeb, 0xf8, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x92, 0xcf, 0x00,
    0x17, 0x00, 0x48, 0x7c, 0x00, 0x00,
];
const MARK: u32 = 0x5a5a_5a5a;
/// Where it counts, and the pages that it writes.
const COUNT_AT: u64 = 2 * MIB;
const PAGES: std::ops::Range<u64> = 2 * MIB / 4096..8 * MIB / 4096;

fn count(path: &str) -> u32 {
    let mut count = [0; 4];
    let file = File::open(path).expect("the slot");
    file.read_exact_at(&mut count, COUNT_AT).expect("readable");
    u32::from_le_bytes(count)
}

/// It boots on a slot, counts, and is saved; four go on from there at once, each by itself.
#[test]
fn a_machine_is_saved_and_four_go_on_where_it_was() {
    if !has_qemu() {
        return;
    }
    const BYTES: u64 = 64 * MIB;
    let daemon = Daemon::start("qemu-saved", &["--slot", "64M=1", "--polite", "off"]);
    let place = place("qemu-saved");
    let [disk, state, memory] = ["disk", "web.state", "web.mem"].map(|name| place.join(name));
    let mut sector = SECTOR.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(4 << 20, 0);
    fs::write(&disk, sector).expect("written");
    // The same machine in both places. In software, which takes no longer on hosts whose own hardware is emulated.
    let same = format!("-accel tcg -drive file={},format=raw,if=ide,snapshot=on", disk.display());
    let mut machine = Machine::launch(&daemon, "first", &["64M"], BYTES, "{qemu}", &same);
    let until = Instant::now() + PATIENCE;
    while count(&machine.path) < 1000 {
        assert!(Instant::now() < until, "it does not count");
        std::thread::sleep(Duration::from_millis(20));
    }
    machine.ask("stop");
    machine.leave_memory();
    machine.move_by("migrate", &format!("exec:cat > {}", state.display()));
    machine.until("query-migrate", "\"completed\"");
    let expected = fs::read(&machine.path).expect("the slot");
    let pid = machine.child.id().to_string();
    let saved = pumice(&["snapshot", &pid]).arg(&memory).output().expect("pumice starts");
    assert!(saved.status.success(), "{}", stderr(&saved));
    let counted = count(&machine.path);
    machine.ask("quit");
    assert!(machine.child.wait().expect("ours").success());
    assert!(fs::metadata(&state).expect("there").len() < 8 * MIB, "memory is in the stream");
    assert!(fs::read(&memory).expect("there") == expected);
    let size = fs::metadata(&memory).expect("there");
    assert!(size.len() == BYTES && size.blocks() * 512 < 32 * MIB, "{} blocks", size.blocks());

    let snapshot = format!("web={}:4", memory.display());
    let restored = Daemon::start("qemu-restored", &["--snapshot", &snapshot, "--polite", "off"]);
    let go_on = format!("{same} -S -incoming defer");
    let mut four: Vec<_> = ["1", "2", "3", "4"]
        .map(|name| {
            let lease = ["--snapshot", "web"];
            Machine::launch(&restored, name, &lease, BYTES, "{qemu}", &go_on)
        })
        .into_iter()
        .collect();
    for machine in &mut four {
        machine.leave_memory();
        machine.move_by("migrate-incoming", &format!("exec:cat {}", state.display()));
    }
    for machine in &mut four {
        machine.until("query-status", "\"paused\"");
        assert_eq!(count(&machine.path), counted);
        let content = fs::read(&machine.path).expect("the slot");
        for (page, (now, then)) in content.chunks(4096).zip(expected.chunks(4096)).enumerate() {
            assert!(now == then, "page {page}");
        }
    }
    // The last goes on first, and the others stay as they are.
    while let Some(mut machine) = four.pop() {
        assert!(!machine.ask("cont").contains("error"));
        let until = Instant::now() + PATIENCE;
        while count(&machine.path) == counted {
            assert!(Instant::now() < until, "it does not go on");
            std::thread::sleep(Duration::from_millis(10));
        }
        machine.ask("stop");
        assert!(count(&machine.path) > counted, "it begins anew");
        let content = fs::read(&machine.path).expect("the slot");
        for page in PAGES {
            let at = page as usize * 4096 + 8;
            let mark = u32::from_le_bytes(content[at..at + 4].try_into().expect("four bytes"));
            assert_eq!(mark, (page as u32 * 4096) ^ MARK, "page {page}");
        }
        assert!(four.iter().all(|other| count(&other.path) == counted));
    }
}
