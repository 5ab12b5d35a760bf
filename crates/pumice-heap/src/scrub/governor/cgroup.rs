//! Where the process's CPU quota is written down: cgroup v2's `cpu.max`, or v1's `cpu` controller.
//!
//! `/proc/self/cgroup` names the group within each hierarchy, `/proc/self/mountinfo` says where
//! hierarchies are mounted, and which part of them (in a container, often only its own group).
//! Quotas hold for all groups below, so every ancestor in sight is looked at.

use core::ffi::CStr;
use rustix::fd::OwnedFd;

use super::procfs::number;
use super::sensors::Quota;
use pumice_frames::sys::lines::Lines;
use pumice_frames::sys::{file, thread};

/// A hierarchy of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    /// cgroup v2.
    Unified,
    /// cgroup v1's `cpu`.
    Cpu,
    /// cgroup v1's `cpuacct`, often the same as `cpu`.
    Cpuacct,
}

/// Open files of a group that has a quota.
#[derive(Debug)]
pub(super) struct Group {
    controller: Controller,
    /// Thousandths of one processor.
    limit: u64,
    /// `cpu.stat`
    stat: OwnedFd,
    /// `cpuacct.usage`, in v1 and where it counts the same group.
    usage: Option<OwnedFd>,
    /// `cgroup.procs`
    members: Option<OwnedFd>,
}

impl Group {
    /// The group's use of processors, and how often it was throttled. `None` if the group is gone.
    pub(super) fn read(&self) -> Option<Quota> {
        let mut buffer = [0; 1024];
        let stat = file::read_at(&self.stat, &mut buffer).ok()?;
        let throttled = field(stat, b"nr_throttled ")?;
        let used_ns = match self.controller {
            Controller::Unified => field(stat, b"usage_usec ")?.checked_mul(1000)?,
            _ => self.used_v1_ns(),
        };
        Some(Quota { limit: self.limit, used_ns, throttled })
    }

    fn used_v1_ns(&self) -> u64 {
        let mut buffer = [0; 32];
        let usage = self.usage.as_ref().and_then(|usage| file::read_at(usage, &mut buffer).ok());
        if let Some(used_ns) = usage.and_then(number) {
            return used_ns;
        }
        let members = self.members.as_ref();
        let members = members.and_then(|members| file::read_at(members, &mut buffer).ok());
        if members.is_some_and(|pids| pids.iter().filter(|&&byte| byte == b'\n').count() == 1) {
            return thread::process_cpu_time_ns();
        }
        // Nobody counts the other processes' use: as if they used up the quota.
        thread::now_ns().saturating_mul(self.limit.div_ceil(1000))
    }
}

/// Opens the groups with a quota that the process is in, innermost first, into empty places.
pub(super) fn find_quotas(controller: Controller, found: &mut [Option<Group>]) {
    let Some(mut directory) = Directory::of_process(controller) else { return };
    let accounting = match controller {
        Controller::Cpu => Directory::of_process(Controller::Cpuacct),
        _ => None,
    };
    // v1's two controllers may have different groups; the path below the mount tells.
    let accounting = accounting.filter(|other| other.group() == directory.group());
    for place in found.iter_mut().filter(|place| place.is_none()) {
        loop {
            *place = open_group(controller, &mut directory, accounting.as_ref());
            if !directory.ascend() {
                return;
            }
            if place.is_some() {
                break;
            }
        }
    }
}

/// Opens the CPU pressure of the process's own group, where cgroup v2 has it.
pub(super) fn open_pressure() -> Option<OwnedFd> {
    let mut directory = Directory::of_process(Controller::Unified)?;
    directory.with(b"cpu.pressure", |path| file::open_read(path).ok())
}

fn open_group(
    controller: Controller,
    directory: &mut Directory,
    accounting: Option<&Directory>,
) -> Option<Group> {
    let limit = match controller {
        Controller::Unified => {
            // "max 100000" or "50000 100000"
            let mut buffer = [0; 64];
            let max = directory.with(b"cpu.max", |path| file::read(path, &mut buffer).ok())?;
            let mut fields = max.split(|&byte| byte == b' ');
            thousandths(number(fields.next()?)?, number(fields.next()?)?)?
        }
        _ => {
            // "-1" or "50000"; "100000"
            let quota = directory.read_number(b"cpu.cfs_quota_us")?;
            thousandths(quota, directory.read_number(b"cpu.cfs_period_us")?)?
        }
    };
    let stat = directory.with(b"cpu.stat", |path| file::open_read(path).ok())?;
    let usage = accounting.and_then(|accounting| {
        let mut same = accounting.at_depth_of(directory)?;
        same.with(b"cpuacct.usage", |path| file::open_read(path).ok())
    });
    let members = directory.with(b"cgroup.procs", |path| file::open_read(path).ok());
    Some(Group { controller, limit, stat, usage, members })
}

fn thousandths(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}

/// The number after `name` at a line's start.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name)).and_then(number)
}

/// A group's directory, from its hierarchy's mount point down.
#[derive(Clone, Debug)]
struct Directory {
    path: [u8; Directory::MAX],
    len: usize,
    /// Bytes of the mount point; the process's group follows.
    mount_len: usize,
}

impl Directory {
    const MAX: usize = 1024;

    fn of_process(controller: Controller) -> Option<Directory> {
        let mut buffer = [0; Directory::MAX];
        let mut groups = Lines::open(c"/proc/self/cgroup", &mut buffer).ok()?;
        let mut group = [0; Directory::MAX];
        let mut group_len = None;
        while let Some(line) = groups.next_line() {
            if let Some(path) = group_of(line, controller) {
                group.get_mut(..path.len())?.copy_from_slice(path);
                group_len = Some(path.len());
                break;
            }
        }
        let group = group.get(..group_len?)?;
        let mut mounts = Lines::open(c"/proc/self/mountinfo", &mut buffer).ok()?;
        while let Some(line) = mounts.next_line() {
            if let Some((root, point)) = mount_of(line, controller) {
                return Directory::new(point, below(group, root)?);
            }
        }
        None
    }

    fn new(mount: &[u8], group: &[u8]) -> Option<Directory> {
        let mut directory = Directory { path: [0; Directory::MAX], len: 0, mount_len: mount.len() };
        directory.push(mount)?;
        directory.push(group)?;
        Some(directory)
    }

    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len.checked_add(bytes.len())?;
        self.path.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }

    /// The path of the group within the mount.
    fn group(&self) -> &[u8] {
        self.path.get(self.mount_len..self.len).unwrap_or_default()
    }

    /// Goes to the group above; `false` at the top.
    fn ascend(&mut self) -> bool {
        match self.group().iter().rposition(|&byte| byte == b'/') {
            Some(slash) => {
                self.len = self.mount_len + slash;
                true
            }
            None => false,
        }
    }

    /// This hierarchy's directory of the group that `other` stands at.
    fn at_depth_of(&self, other: &Directory) -> Option<Directory> {
        let mut same = self.clone();
        same.len = self.mount_len.checked_add(other.group().len())?;
        (same.len <= self.len).then_some(same)
    }

    /// Calls with the path of a file in the directory.
    fn with<T>(&mut self, name: &[u8], call: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
        let len = self.len;
        let pushed = self.push(b"/").and_then(|()| self.push(name)).and_then(|()| self.push(b"\0"));
        let path = self.path.get(..self.len).unwrap_or_default();
        let result = match (pushed, CStr::from_bytes_with_nul(path)) {
            (Some(()), Ok(path)) => call(path),
            _ => None,
        };
        self.len = len;
        result
    }

    fn read_number(&mut self, name: &[u8]) -> Option<u64> {
        let mut buffer = [0; 32];
        self.with(name, |path| number(file::read(path, &mut buffer).ok()?))
    }
}

/// The group in a line of `/proc/self/cgroup` (`3:cpu,cpuacct:/path`, `0::/path`), if the line is
/// the controller's. The top group is the empty path.
fn group_of(line: &[u8], controller: Controller) -> Option<&[u8]> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
    let ours = match controller {
        Controller::Unified => number == b"0" && names.is_empty(),
        Controller::Cpu => has(names, b"cpu"),
        Controller::Cpuacct => has(names, b"cpuacct"),
    };
    ours.then_some(if path == b"/" { &[] } else { path })
}

/// Root and mount point in a line of `/proc/self/mountinfo`, if the line is the controller's:
/// `31 23 0:28 ROOT POINT OPTIONS ... - TYPE SOURCE SUPER-OPTIONS` (proc_pid_mountinfo(5)).
fn mount_of(line: &[u8], controller: Controller) -> Option<(&[u8], &[u8])> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    let mut after = fields.skip_while(|&field| field != b"-").skip(1);
    let (kind, options) = (after.next()?, after.nth(1)?);
    let ours = match controller {
        Controller::Unified => kind == b"cgroup2",
        Controller::Cpu => kind == b"cgroup" && has(options, b"cpu"),
        Controller::Cpuacct => kind == b"cgroup" && has(options, b"cpuacct"),
    };
    ours.then_some((root, point))
}

/// `group` as seen below a mount of `root`; `None` if it lies outside.
fn below<'g>(group: &'g [u8], root: &[u8]) -> Option<&'g [u8]> {
    if root == b"/" {
        return Some(group);
    }
    let rest = group.strip_prefix(root)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn has(list: &[u8], name: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|entry| entry == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_versions() {
        use Controller::{Cpu, Cpuacct, Unified};
        assert_eq!(group_of(b"0::/user.slice", Unified), Some(&b"/user.slice"[..]));
        assert_eq!(group_of(b"0::/", Unified), Some(&b""[..]));
        assert_eq!(group_of(b"3:cpu,cpuacct:/a:b", Cpu), Some(&b"/a:b"[..]));
        assert_eq!(group_of(b"3:cpu,cpuacct:/a", Cpuacct), Some(&b"/a"[..]));
        assert_eq!(group_of(b"2:cpuset:/a", Cpu), None);
        assert_eq!(group_of(b"garbage", Cpu), None);
    }

    #[test]
    fn mounts_are_found_in_both_versions() {
        let v2 = b"29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_of(v2, Controller::Unified), Some((&b"/"[..], &b"/sys/fs/cgroup"[..])));
        let v1 = b"32 31 0:29 /docker/1 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct";
        let expected = Some((&b"/docker/1"[..], &b"/sys/fs/cgroup/cpu"[..]));
        assert_eq!(mount_of(v1, Controller::Cpu), expected);
        assert_eq!(mount_of(v1, Controller::Unified), None);
        assert_eq!(mount_of(b"1 2 3", Controller::Cpu), None);
    }

    #[test]
    fn a_container_sees_its_own_part() {
        assert_eq!(below(b"/docker/1/x", b"/docker/1"), Some(&b"/x"[..]));
        assert_eq!(below(b"/docker/1", b"/docker/1"), Some(&b""[..]));
        assert_eq!(below(b"/docker/12", b"/docker/1"), None);
        assert_eq!(below(b"/a", b"/"), Some(&b"/a"[..]));
    }

    #[test]
    fn the_way_up_ends_at_the_mount() {
        let mut directory = Directory::new(b"/sys/fs/cgroup", b"/a/b").expect("it fits");
        let seen = directory.with(b"cpu.max", |path| Some(path.to_owned())).expect("it fits");
        assert_eq!(seen.to_bytes(), b"/sys/fs/cgroup/a/b/cpu.max");
        assert!(directory.ascend());
        assert_eq!(directory.group(), b"/a");
        assert!(directory.ascend());
        assert_eq!(directory.group(), b"");
        assert!(!directory.ascend());
    }

    #[test]
    fn a_path_too_long_is_no_group() {
        assert!(Directory::new(&[b'a'; 2000], b"").is_none());
    }

    #[test]
    fn fields_are_found_by_name() {
        let stat = b"usage_usec 12\nnr_periods 3\nnr_throttled 4\n";
        assert_eq!(field(stat, b"nr_throttled "), Some(4));
        assert_eq!(field(stat, b"burst_time "), None);
        assert_eq!(thousandths(50_000, 100_000), Some(500));
        assert_eq!(thousandths(1, 0), None);
    }
}
