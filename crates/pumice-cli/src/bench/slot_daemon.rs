//! A `pumice serve` of an experiment's own, and hugetlb pages for as long as it lasts.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pumice::slots::message::ClassRow;
use pumice::slots::{Client, PageKind};

use crate::args::Failure;

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
    /// Starts it.
    pub fn start(bytes: u64, pages: PageKind) -> Result<SlotDaemon, Failure> {
        let own = env::current_exe()
            .map_err(|error| Failure::system(format!("where pumice lies is not known: {error}")))?;
        let folder = env::temp_dir().join(format!("pumice-bench-slots.{}", std::process::id()));
        let child = Command::new(own)
            .args(["serve", "--slot", &format!("{bytes}=1"), "--pages", pages.name()])
            .args(["--polite", "off", "--dir"])
            .arg(&folder)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Failure::system(format!("can't start pumice serve: {error}")))?;
        Ok(SlotDaemon { child, folder })
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

/// Pages of 2 MiB in the kernel's pool, taken back when dropped.
#[derive(Debug)]
pub struct HugetlbPool {
    added: u64,
}

impl HugetlbPool {
    /// Raises the pool so that `bytes` are free in it. `None` where that is not allowed, or the
    /// kernel has not as many.
    pub fn with_free(bytes: u64) -> Option<HugetlbPool> {
        let (before, free) = (read("nr_hugepages")?, read("free_hugepages")?);
        let lacking = bytes.div_ceil(PAGE_BYTES).saturating_sub(free);
        fs::write(Path::new(POOL).join("nr_hugepages"), (before + lacking).to_string()).ok()?;
        let pool = HugetlbPool { added: read("nr_hugepages")?.saturating_sub(before) };
        (pool.added >= lacking).then_some(pool)
    }
}

impl Drop for HugetlbPool {
    fn drop(&mut self) {
        // Others may have asked for pages meanwhile.
        let left = read("nr_hugepages").map(|now| now.saturating_sub(self.added));
        let _ = left.map(|left| fs::write(Path::new(POOL).join("nr_hugepages"), left.to_string()));
    }
}

fn read(name: &str) -> Option<u64> {
    fs::read_to_string(Path::new(POOL).join(name)).ok()?.trim().parse().ok()
}
