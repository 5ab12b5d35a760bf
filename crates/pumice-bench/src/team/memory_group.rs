//! A control group with little memory, version 1 or 2, removed when it is over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Memory for the program itself beside the region: its stacks, its counts.
const SLACK_BYTES: usize = 8 << 20;
/// A group is busy for a moment after its last process has ended.
const TRIES: usize = 50;

/// How many this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A group.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    limit_file: &'static str,
}

impl MemoryGroup {
    /// Below our own group in version 1, below the root in version 2, where a group with processes has no groups.
    pub fn create() -> io::Result<MemoryGroup> {
        // Relaxed: only that each is another.
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, limit_file) = place(&own, Path::new("/sys/fs/cgroup")).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no control groups that limit memory")
        })?;
        let path = parent.join(format!("pumice-bench-{}-{nth}", std::process::id()));
        fs::create_dir(&path)?;
        let group = MemoryGroup { path, limit_file };
        // Without the controller there is the folder, but no such file.
        fs::metadata(group.path.join(limit_file))?;
        Ok(group)
    }

    /// Lets its processes use so much.
    pub fn limit(&self, bytes: usize) -> io::Result<()> {
        fs::write(self.path.join(self.limit_file), (bytes + SLACK_BYTES).to_string())
    }

    /// Moves a process in. Its memory from before stays counted where it was.
    pub fn enter(&self, pid: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }
}

/// Where a group can be made, and the file with its limit.
fn place(own: &str, root: &Path) -> Option<(PathBuf, &'static str)> {
    let version_1 = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let is_memory = names.split(',').any(|name| name == "memory");
        is_memory.then(|| root.join("memory").join(path.trim_start_matches('/')))
    });
    match version_1 {
        Some(parent) => Some((parent, "memory.limit_in_bytes")),
        None => {
            let on = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
            let has_memory = on.split_whitespace().any(|name| name == "memory");
            has_memory.then(|| (root.to_owned(), "memory.max"))
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        remove_when_idle(&self.path, || fs::remove_dir(&self.path));
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
    fn version_1_is_below_our_own() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n0::/\n";
        let (place, file) = place(own, Path::new("/g")).expect("a place");
        assert_eq!((place.as_path(), file), (Path::new("/g/memory/a/b"), "memory.limit_in_bytes"));
    }

    #[test]
    fn without_a_controller_there_is_none() {
        assert_eq!(place("0::/user\n", Path::new("/no/such/folder")), None);
    }
}
