//! The available memory: the machine's, or the control group's where that is less.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::system::sysinfo;

/// Bytes of memory that a program started here can have at most.
pub fn available_bytes() -> u64 {
    let info = sysinfo();
    let physical = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit).max(1));
    control_group_limit().map_or(physical, |limit| limit.min(physical))
}

/// Bytes that could be had now without taking any from programs; `None` if the system does not say.
pub fn free_bytes() -> Option<u64> {
    let machine = machine_free_bytes()?;
    Some(control_group_room().map_or(machine, |room| room.min(machine)))
}

/// The same without limits of control groups, which hugetlb pages are not charged to.
pub fn machine_free_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

/// The room that the control groups on the way to the root leave; their caches are not counted as free.
fn control_group_room() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least = None;
    for (root, group, file) in groups.lines().filter_map(group_files) {
        let usage_file = match file {
            "memory.max" => "memory.current",
            _ => "memory.usage_in_bytes",
        };
        for group in group.ancestors() {
            let limit = limit_in(root, group, file);
            if let Some((limit, usage)) = limit.zip(limit_in(root, group, usage_file)) {
                let room = limit.saturating_sub(usage);
                least = Some(least.map_or(room, |least: u64| least.min(room)));
            }
        }
    }
    least
}

/// The lowest limit on the way from this process's control group to the root, of either version.
fn control_group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(group_files)
        .filter_map(|(root, group, file)| {
            let lowest = group.ancestors().filter_map(|group| limit_in(root, group, file)).min();
            lowest.or_else(|| limit_in(root, Path::new("/"), file))
        })
        .min()
}

/// Where a line of `/proc/self/cgroup` (`NUMBER:CONTROLLERS:PATH`) says that the memory limit is:
/// the hierarchy's mount point, the group, the file's name.
fn group_files(line: &str) -> Option<(&'static str, PathBuf, &'static str)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, group) = rest.split_once(':')?;
    if controllers.is_empty() {
        Some(("/sys/fs/cgroup", group.into(), "memory.max"))
    } else if controllers.split(',').any(|controller| controller == "memory") {
        Some(("/sys/fs/cgroup/memory", group.into(), "memory.limit_in_bytes"))
    } else {
        None
    }
}

fn limit_in(root: &str, group: &Path, file: &str) -> Option<u64> {
    let group = group.strip_prefix("/").unwrap_or(group);
    // `max` is no number, so no limit.
    fs::read_to_string(Path::new(root).join(group).join(file)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_known() {
        let v1 = group_files("9:cpu,memory:/user/1").expect("a memory controller");
        assert_eq!(v1.1, Path::new("/user/1"));
        assert_eq!(v1.2, "memory.limit_in_bytes");
        assert_eq!(group_files("0::/user.slice").expect("version 2").2, "memory.max");
        for none in ["", "1", "1:cpuset:/", "5:memoryish:/"] {
            assert_eq!(group_files(none), None, "{none:?}");
        }
    }

    #[test]
    fn there_is_memory() {
        assert!(available_bytes() > 1 << 20);
    }
}
