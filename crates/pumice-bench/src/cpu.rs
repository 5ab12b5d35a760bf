//! The processor time of the calling thread, and the processors that it may run on.

use std::fmt;

use pumice_frames::sys::thread;

use crate::names::named;

/// Processor time of a thread, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// In the program.
    pub user_s: f64,
    /// In the kernel on its behalf.
    pub system_s: f64,
}

impl CpuTime {
    /// As the kernel says it.
    pub fn of(usage: &libc::rusage) -> CpuTime {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        CpuTime { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }
    }

    /// Both.
    pub fn total_s(self) -> f64 {
        self.user_s + self.system_s
    }
}

impl std::ops::AddAssign for CpuTime {
    fn add_assign(&mut self, other: CpuTime) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
    }
}

/// A running measurement of the calling thread.
#[derive(Debug)]
pub struct CpuClock {
    total_ns: u64,
    system_s: f64,
}

impl CpuClock {
    /// Starts to count.
    pub fn start() -> CpuClock {
        let system_s = system_time_s();
        CpuClock { total_ns: thread::cpu_time_ns(), system_s }
    }

    /// The processor time spent since. The sum is exact; how it divides, the kernel only samples.
    pub fn elapsed(&self) -> CpuTime {
        let total_s = (thread::cpu_time_ns() - self.total_ns) as f64 / 1e9;
        let system_s = (system_time_s() - self.system_s).clamp(0.0, total_s);
        CpuTime { user_s: total_s - system_s, system_s }
    }
}

fn system_time_s() -> f64 {
    usage_of(libc::RUSAGE_THREAD).system_s
}

/// Processor time so far of the calling thread, of this process, or of its children that were waited for.
pub fn usage_of(who: libc::c_int) -> CpuTime {
    // SAFETY: rusage is integers only, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage writes one rusage.
    unsafe { libc::getrusage(who, &mut usage) };
    CpuTime::of(&usage)
}

named! {
    /// The part of the machine that two processors share.
    pub enum Shares {
        /// No cache: evictions by one do not concern the other.
        Nothing = "nothing",
        /// The last-level cache.
        Cache = "cache",
        /// The core: they take turns at its units.
        Core = "core",
    }
}

/// Two processors that this process may use, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// One of them.
    pub one: usize,
    /// The other.
    pub other: usize,
    /// The part that they share.
    pub shares: Shares,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.shares {
            Shares::Cache => "of different cores, with one last-level cache",
            Shares::Nothing => "with no cache in common: only bandwidth is lost beside each other",
            Shares::Core => {
                "threads of one core, as there is no second core: the slow-down is that of sharing it"
            }
        };
        write!(f, "processors {} and {}, {how}", self.one, self.other)
    }
}

/// The pair for a neighbour and the thread that disturbs it: of different cores and with one last-level cache, if
/// there are such.
/// `None` with one processor.
pub fn pair() -> Option<Pair> {
    let read = |cpu: usize, file: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/{file}")).ok()
    };
    best_pair(&allowed(), read)
}

/// As [`pair`]; of `/sys/devices/system/cpu` a file is read.
fn best_pair(allowed: &[usize], read: impl Fn(usize, &str) -> Option<String>) -> Option<Pair> {
    let &one = allowed.first()?;
    let has =
        |file: &str, other: usize| read(one, file).is_some_and(|list| is_in_list(&list, other));
    // The last of them is the last-level cache's. Where none is shown all have one.
    let caches = (0..8).map(|index| format!("cache/index{index}/shared_cpu_list"));
    let last = caches.filter(|file| read(one, file).is_some()).last();
    let shares = |other: usize| {
        if has("topology/thread_siblings_list", other) {
            Shares::Core
        } else if last.as_ref().is_none_or(|file| has(file, other)) {
            Shares::Cache
        } else {
            Shares::Nothing
        }
    };
    let pairs = || allowed[1..].iter().map(|&other| Pair { one, other, shares: shares(other) });
    let sharing = |shares: Shares| pairs().find(|pair| pair.shares == shares);
    sharing(Shares::Cache).or_else(|| sharing(Shares::Nothing)).or_else(|| sharing(Shares::Core))
}

/// Whether a list such as `0-3,8` has a number.
fn is_in_list(list: &str, number: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.parse().ok().zip(last.parse().ok());
        range.is_some_and(|(first, last): (usize, usize)| (first..=last).contains(&number))
    })
}

/// The processors that this process may use.
fn allowed() -> Vec<usize> {
    use rustix::thread::{sched_getaffinity, CpuSet};
    let allowed = sched_getaffinity(None);
    let is_allowed = |&cpu: &usize| allowed.as_ref().is_ok_and(|allowed| allowed.is_set(cpu));
    (0..CpuSet::MAX_CPU).filter(is_allowed).collect()
}

/// Keeps the calling thread on the `index`th processor that the process may use. Without success
/// it stays where the kernel puts it.
pub fn pin(index: usize) {
    if let Some(&cpu) = allowed().get(index) {
        pin_to(cpu);
    }
}

/// As [`pin`], by the kernel's number.
pub fn pin_to(cpu: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores of two threads each: 0 and 4 are of one core, 0 to 1 and 4 to 5 of one socket.
    fn machine(cpu: usize, file: &str) -> Option<String> {
        let socket =
            [["0-1,4-5\n", "0,4\n", "1,5\n"], ["2-3,6-7\n", "2,6\n", "3,7\n"]][cpu % 4 / 2];
        match file {
            "topology/thread_siblings_list" => Some(socket[1 + cpu % 2].to_owned()),
            "cache/index0/shared_cpu_list" => Some(socket[1 + cpu % 2].to_owned()),
            "cache/index3/shared_cpu_list" => Some(socket[0].to_owned()),
            _ => None,
        }
    }

    #[test]
    fn a_neighbour_is_of_another_core_and_the_same_cache() {
        let of =
            |allowed: &[usize]| best_pair(allowed, machine).map(|pair| (pair.other, pair.shares));
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6, 7]), Some((1, Shares::Cache)));
        assert_eq!(of(&[0, 2, 4, 5]), Some((5, Shares::Cache)));
        assert_eq!(of(&[0, 4, 6]), Some((6, Shares::Nothing)));
        assert_eq!(of(&[0, 4]), Some((4, Shares::Core)));
        assert_eq!(of(&[3]), None);
        assert_eq!(of(&[]), None);
        let untold = best_pair(&[0, 1], |_, _| None).expect("two");
        assert_eq!((untold.other, untold.shares), (1, Shares::Cache));
        let shown = Pair { one: 0, other: 4, shares: Shares::Core }.to_string();
        assert!(shown.contains("processors 0 and 4, threads of one core"), "{shown}");
    }

    #[test]
    fn lists_are_read() {
        for (list, number, is_in) in [("0-3,8\n", 2, true), ("0-3,8", 8, true), ("0-3,8", 4, false)]
        {
            assert_eq!(is_in_list(list, number), is_in, "{list} {number}");
        }
        assert!(!is_in_list("", 0) && !is_in_list("x-y,-", 0));
    }
}
