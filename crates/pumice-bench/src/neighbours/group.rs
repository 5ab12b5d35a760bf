//! A control group for a case, version 1 or 2, removed when the case is over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Period of the quota, in microseconds: the kernel's default.
const PERIOD_US: u32 = 100_000;

/// A group below the root of its hierarchy.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    /// Where its processes go at the end: the group this process came from.
    home: PathBuf,
}

impl Group {
    /// Needs root, and a `cpu` controller.
    pub fn create() -> io::Result<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let (root, home) = hierarchy(&groups)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cpu controller"))?;
        let path = root.join(format!("pumice-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Group { path, home })
    }

    /// Lets the group use one processor's time.
    pub fn set_quota_of_one(&mut self) -> io::Result<()> {
        if self.path.join("cpu.max").exists() {
            return fs::write(self.path.join("cpu.max"), format!("{PERIOD_US} {PERIOD_US}"));
        }
        fs::write(self.path.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(self.path.join("cpu.cfs_quota_us"), PERIOD_US.to_string())
    }

    /// Moves a process in, with all its threads.
    pub fn enter(&self, pid: u32) -> io::Result<()> {
        move_to(&self.path, pid)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            // One that has ended meanwhile needs no moving.
            let _ = move_to(&self.home, pid);
        }
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("{} is left behind: {error}", self.path.display());
        }
    }
}

fn move_to(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// The mount point of the hierarchy with the `cpu` controller, and this process's group there.
fn hierarchy(groups: &str) -> Option<(PathBuf, PathBuf)> {
    let group_of = |wanted: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            let path = fields.next()?;
            let ours = names.split(',').any(|name| name == wanted);
            ours.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let (root, group) = match group_of("cpu") {
        Some(group) => (PathBuf::from("/sys/fs/cgroup/cpu"), group),
        None => (PathBuf::from("/sys/fs/cgroup"), group_of("")?),
    };
    let home = root.join(group);
    home.join("cgroup.procs").exists().then_some((root, home))
}
