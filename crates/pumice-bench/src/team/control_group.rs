//! Control groups, version 1 or 2, each removed when it is over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Memory for the program itself beside the region: its stacks, its counts.
const SLACK_BYTES: usize = 8 << 20;
/// Period of a quota, in microseconds: the kernel's default.
const PERIOD_US: u32 = 100_000;
/// A group is busy for a moment after its last process has ended.
const TRIES: usize = 50;

/// How many this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A group. Needs root.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    /// Where its processes go at the end: the group this process came from.
    home: PathBuf,
}

impl ControlGroup {
    /// One in which a process may use so much memory: below our own group in version 1, below the root in version 2,
    /// where a group with processes has no groups.
    pub fn with_memory(pid: u32, bytes: usize) -> io::Result<ControlGroup> {
        let group = ControlGroup::create("memory", |place| match place.version {
            Version::One => &place.home,
            Version::Two => &place.top,
        })?;
        let version_1 = group.path.join("memory.limit_in_bytes");
        let file = if version_1.exists() { version_1 } else { group.path.join("memory.max") };
        // Without the controller there is the folder, but no such file, and none can be made.
        fs::write(file, (bytes + SLACK_BYTES).to_string())?;
        group.enter(pid)?;
        Ok(group)
    }

    /// One that is scheduled as a whole, below the root of its hierarchy.
    pub fn of_processors() -> io::Result<ControlGroup> {
        let group = ControlGroup::create("cpu", |place| &place.top)?;
        // This process may have to go back there.
        fs::metadata(group.home.join("cgroup.procs"))?;
        Ok(group)
    }

    fn create(controller: &str, parent: impl Fn(&Place) -> &PathBuf) -> io::Result<ControlGroup> {
        // Relaxed: only that each is another.
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let place = Place::find(&own, controller, Path::new("/sys/fs/cgroup"));
        let missing = || format!("no {controller} controller");
        let place = place.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing()))?;
        let path = parent(&place).join(format!("pumice-bench-{}-{nth}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(ControlGroup { path, home: place.home })
    }

    /// Lets the group use one processor's time.
    pub fn set_quota_of_one(&self) -> io::Result<()> {
        if self.path.join("cpu.max").exists() {
            return fs::write(self.path.join("cpu.max"), format!("{PERIOD_US} {PERIOD_US}"));
        }
        fs::write(self.path.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(self.path.join("cpu.cfs_quota_us"), PERIOD_US.to_string())
    }

    /// Moves a process in, with all its threads. Its memory from before stays counted where it was.
    pub fn enter(&self, pid: u32) -> io::Result<()> {
        move_to(&self.path, pid)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            // One that has ended meanwhile needs no moving.
            let _ = move_to(&self.home, pid);
        }
        remove_when_idle(&self.path, || fs::remove_dir(&self.path));
    }
}

fn move_to(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A hierarchy with a controller: its root, and our own group there.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    version: Version,
    top: PathBuf,
    home: PathBuf,
}

impl Place {
    fn find(own: &str, controller: &str, root: &Path) -> Option<Place> {
        let group_of = |wanted: &str| {
            own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (names, path) = (fields.next()?, fields.next()?);
                let is_it = names.split(',').any(|name| name == wanted);
                is_it.then(|| path.trim_start_matches('/'))
            })
        };
        if let Some(group) = group_of(controller) {
            let top = root.join(controller);
            return Some(Place { version: Version::One, home: top.join(group), top });
        }
        let on = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        on.split_whitespace().find(|name| *name == controller)?;
        Some(Place { version: Version::Two, home: root.join(group_of("")?), top: root.to_owned() })
    }
}

/// Removes something that may be busy for a moment; says so where it is left behind.
pub fn remove_when_idle(path: &Path, remove: impl Fn() -> io::Result<()>) {
    let mut removed = remove();
    for _ in 1..TRIES {
        match &removed {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_millis(20));
                removed = remove();
            }
            _ => break,
        }
    }
    if let Err(error) = removed {
        eprintln!("{} is left behind: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_has_a_hierarchy_for_each_controller() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n0::/\n";
        let place = Place::find(own, "memory", Path::new("/g")).expect("a place");
        let (top, home) = (PathBuf::from("/g/memory"), PathBuf::from("/g/memory/a/b"));
        assert_eq!(place, Place { version: Version::One, top, home });
    }

    #[test]
    fn without_a_controller_there_is_none() {
        assert_eq!(Place::find("0::/user\n", "memory", Path::new("/no/such/folder")), None);
    }
}
