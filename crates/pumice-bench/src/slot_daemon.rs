//! A `pumice serve` of an experiment's own, and hugetlb pages for as long as it lasts.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pumice_slots::message::ClassRow;
use pumice_slots::{Client, PageKind};

use pumice_command::{Explain, Failure};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const PAGE_BYTES: u64 = 2 << 20;
/// A slot that takes longer is not coming.
const PATIENCE: Duration = Duration::from_secs(300);

/// A daemon with one slot. Dropping it kills it.
#[derive(Debug)]
pub struct SlotDaemon {
    child: Child,
    folder: PathBuf,
}

impl SlotDaemon {
    /// Starts one that populates its only slot at full speed, and waits for that: how many seconds it took.
    pub fn ready(bytes: u64, pages: PageKind) -> Result<(SlotDaemon, ClassRow, f64), Failure> {
        let slot = format!("{bytes}=1");
        let line = ["--slot", &slot, "--pages", pages.name(), "--polite", "off"];
        let daemon = SlotDaemon::start_with(line)?;
        let begun = Instant::now();
        let row = daemon.wait_ready()?;
        Ok((daemon, row, begun.elapsed().as_secs_f64()))
    }

    /// Starts one with these arguments, in a folder of its own. It dies with this process.
    pub fn start_with<S: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<SlotDaemon, Failure> {
        let folder = env::temp_dir().join(format!("pumice-bench-slots.{}", std::process::id()));
        let mut command = Command::new(own_program()?);
        command.arg("serve").args(arguments).arg("--dir").arg(&folder);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = die_with_us(&mut command).spawn().or_fail("can't start pumice serve")?;
        Ok(SlotDaemon { child, folder })
    }

    /// Its process.
    pub fn pid(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("slots.sock")
    }

    /// Waits until the slot is ready, and then until the machine is quiet again.
    pub fn wait_ready(&self) -> Result<ClassRow, Failure> {
        let client = Client::new(self.socket());
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let row = client.classes().ok().and_then(|rows| rows.first().copied());
            if let Some(row) = row.filter(|row| row.ready > 0) {
                thread::sleep(Duration::from_millis(50));
                return Ok(row);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(Failure::system("the slot did not become ready; is there enough free memory?"))
    }
}

impl Drop for SlotDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The program itself, of which experiments start further processes.
pub fn own_program() -> Result<PathBuf, Failure> {
    env::current_exe().or_fail("where pumice lies is not known")
}

/// Has a child killed when this process ends, however that comes.
pub fn die_with_us(command: &mut Command) -> &mut Command {
    let die = || {
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes a system call only.
    unsafe { command.pre_exec(die) }
}

/// Pages of 2 MiB in the kernel's pool, taken back when dropped, and when this process ends without that:
/// a shell in a session of its own waits for the end of its input and takes them back.
#[derive(Debug)]
pub struct HugetlbPool {
    keeper: Child,
}

impl HugetlbPool {
    /// Raises the pool so that `bytes` are free in it. `None` where that is not allowed, or the
    /// kernel has not as many.
    pub fn with_free(bytes: u64) -> Option<HugetlbPool> {
        let (before, free) = (read("nr_hugepages")?, read("free_hugepages")?);
        let lacking = bytes.div_ceil(PAGE_BYTES).saturating_sub(free);
        let file = Path::new(POOL).join("nr_hugepages");
        // The pages that the kernel gave are taken back, not those that were asked for; others may ask meanwhile.
        let script =
            "trap '' INT TERM HUP; echo $(($2 + $3)) > $1; n=$(($(cat $1) - $2)); echo $n; \
             cat > /dev/null; echo $(($(cat $1) - n)) > $1";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&file);
        command.args([before.to_string(), lacking.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let alone = || {
            // SAFETY: a plain system call.
            unsafe { libc::setsid() };
            Ok(())
        };
        // SAFETY: between fork and exec it makes a system call only.
        unsafe { command.pre_exec(alone) };
        let mut keeper = command.spawn().ok()?;
        let mut line = String::new();
        let said = keeper.stdout.take().map(BufReader::new);
        said.map(|mut said| said.read_line(&mut line));
        let pool = HugetlbPool { keeper };
        let added = line.trim().parse::<u64>().ok()?;
        (added >= lacking).then_some(pool)
    }
}

impl Drop for HugetlbPool {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn read(name: &str) -> Option<u64> {
    fs::read_to_string(Path::new(POOL).join(name)).ok()?.trim().parse().ok()
}
