//! The sensors of a Linux system: files under `/proc` and in the process's cgroups.
//!
//! They are opened once by the thread that reads them, in its own table of descriptors, and read from the start each
//! time (1 to 6 µs each). Nothing here trusts the text it reads: a number that can't be parsed is a sensor that is
//! missing.

use rustix::fd::OwnedFd;
use rustix::thread::CpuSet;

use super::cgroup::{self, Controller, Group};
use super::sensors::{Quota, Sensors, Waits, LEVELS};
use crate::scrub::helper::Descriptors;
use pumice_frames::sys::{cpu, file, thread};

/// A group's use and limits change with the process's group; they are found again this often.
const REFRESH_NS: u64 = 1_000_000_000;

/// See the module's text.
#[derive(Debug)]
pub(in crate::scrub) struct Procfs {
    descriptors: Descriptors,
    refreshed_ns: u64,
    processors: u32,
    /// `/proc/loadavg`, whose fourth field starts with the number of runnable threads.
    loadavg: Option<OwnedFd>,
    /// `/proc/stat`, only where the thread may not run on every processor.
    stat: Option<OwnedFd>,
    affinity: Option<CpuSet>,
    own_schedstat: Option<OwnedFd>,
    first_schedstat: Option<OwnedFd>,
    pressure: Option<OwnedFd>,
    quotas: [Option<Group>; LEVELS],
}

impl Procfs {
    /// Opens the files that can be opened; nothing without descriptors of its own.
    pub(in crate::scrub) fn new(descriptors: Descriptors) -> Procfs {
        let mut sensors = Procfs {
            descriptors,
            refreshed_ns: 0,
            processors: 1,
            loadavg: None,
            stat: None,
            affinity: None,
            own_schedstat: None,
            first_schedstat: None,
            pressure: None,
            quotas: [const { None }; LEVELS],
        };
        sensors.open();
        sensors
    }

    fn open(&mut self) {
        self.refreshed_ns = thread::now_ns();
        self.processors = cpu::count() as u32;
        if self.descriptors == Descriptors::Shared {
            return;
        }
        let open = |path| file::open_read(path).ok();
        self.loadavg = open(c"/proc/loadavg");
        self.own_schedstat = open(c"/proc/thread-self/schedstat");
        self.first_schedstat = open(c"/proc/self/schedstat");
        self.affinity = rustix::thread::sched_getaffinity(None).ok();
        let ours = self.processors;
        self.processors = online_processors().unwrap_or(ours);
        self.stat = if ours >= self.processors { None } else { open(c"/proc/stat") };
        self.pressure = cgroup::open_pressure().or_else(|| open(c"/proc/pressure/cpu"));
        self.quotas = [const { None }; LEVELS];
        cgroup::find_quotas(Controller::Unified, &mut self.quotas);
        cgroup::find_quotas(Controller::Cpu, &mut self.quotas);
    }
}

impl Sensors for Procfs {
    fn now_ns(&mut self) -> u64 {
        thread::now_ns()
    }

    fn cpu_time_ns(&mut self) -> u64 {
        thread::cpu_time_ns()
    }

    fn program_ns(&mut self) -> u64 {
        thread::process_cpu_time_ns().saturating_sub(thread::cpu_time_ns())
    }

    fn processors(&self) -> u32 {
        self.processors
    }

    fn others_runnable(&mut self) -> Option<u32> {
        let mut buffer = [0; 64];
        let text = read(self.loadavg.as_ref(), &mut buffer)?;
        let counts = text.split(|&byte| byte == b' ').nth(3)?;
        // Containers that show a made-up /proc say 0, though the reader itself runs.
        let running = number(counts)?.checked_sub(1)?;
        Some(running as u32)
    }

    fn load_hundredths(&mut self) -> u64 {
        const SCALE: u64 = 1 << 16;
        rustix::system::sysinfo().loads[0] as u64 * 100 / SCALE
    }

    fn idle_ns(&mut self) -> Option<u64> {
        // One line a processor, about 60 bytes; those beyond the buffer are not counted, which
        // errs towards rest.
        let mut buffer = [0; 8192];
        let text = read(self.stat.as_ref(), &mut buffer)?;
        let mut ticks = 0;
        for line in text.split(|&byte| byte == b'\n') {
            // cpu0 user nice system idle ...
            let mut fields = line.split(|&byte| byte == b' ');
            let Some(name) = fields.next().and_then(|name| name.strip_prefix(b"cpu")) else {
                break;
            };
            let Some(index) = number(name) else { continue };
            if self.affinity.is_some_and(|set| has_processor(&set, index)) {
                ticks += fields.nth(3).and_then(number).unwrap_or(0);
            }
        }
        const USER_HZ: u64 = 100;
        Some(ticks * (1_000_000_000 / USER_HZ))
    }

    fn waits(&mut self) -> Waits {
        Waits {
            own_ns: run_delay_ns(self.own_schedstat.as_ref()).unwrap_or(0),
            group_ns: run_delay_ns(self.first_schedstat.as_ref()),
            pressure_ns: pressure_ns(self.pressure.as_ref()),
        }
    }

    fn quota(&mut self, level: usize) -> Option<Quota> {
        self.quotas.iter().flatten().filter_map(Group::read).nth(level)
    }

    fn refresh(&mut self) {
        if thread::now_ns().saturating_sub(self.refreshed_ns) >= REFRESH_NS {
            self.open();
        }
    }
}

fn has_processor(set: &CpuSet, index: u64) -> bool {
    index < CpuSet::MAX_CPU as u64 && set.is_set(index as usize)
}

/// How many processors a list such as `0-3,8` names.
fn online_processors() -> Option<u32> {
    let mut buffer = [0; 1024];
    let list = file::read(c"/sys/devices/system/cpu/online", &mut buffer).ok()?;
    count_list(list)
}

fn count_list(list: &[u8]) -> Option<u32> {
    let mut count = 0u64;
    for range in list.split(|&byte| byte == b',') {
        let mut ends = range.splitn(2, |&byte| byte == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        count += last.checked_sub(first)? + 1;
    }
    u32::try_from(count).ok()
}

/// The second number of a `schedstat` file: time spent on a run queue.
fn run_delay_ns(file: Option<&OwnedFd>) -> Option<u64> {
    let mut buffer = [0; 64];
    let text = read(file, &mut buffer)?;
    number(text.split(|&byte| byte == b' ').nth(1)?)
}

/// `total=` of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, in microseconds there.
fn pressure_ns(file: Option<&OwnedFd>) -> Option<u64> {
    let mut buffer = [0; 128];
    let text = read(file, &mut buffer)?;
    let line = text.split(|&byte| byte == b'\n').next()?;
    let total = line.split(|&byte| byte == b' ').find_map(|field| field.strip_prefix(b"total="))?;
    number(total)?.checked_mul(1000)
}

fn read<'b>(file: Option<&OwnedFd>, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    file::read_at(file?, buffer).ok()
}

/// The decimal number that `text` begins with.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    text.iter()
        .take(digits)
        .try_fold(0u64, |value, byte| value.checked_mul(10)?.checked_add(u64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_digits_do() {
        assert_eq!(number(b"12/345"), Some(12));
        assert_eq!(number(b"max 100000"), None);
        assert_eq!(number(b""), None);
        assert_eq!(number(b"99999999999999999999"), None);
    }

    #[test]
    fn processors_are_counted_in_ranges() {
        assert_eq!(count_list(b"0-1\n"), Some(2));
        assert_eq!(count_list(b"0,4-7,9\n"), Some(6));
        assert_eq!(count_list(b"5-2"), None);
        assert_eq!(count_list(b""), None);
    }

    #[test]
    fn this_system_has_sensors_that_make_sense() {
        let mut sensors = Procfs::new(Descriptors::Own);
        assert!(sensors.processors() >= 1);
        if let Some(others) = sensors.others_runnable() {
            assert!(others < 100_000);
        }
        let before = sensors.waits();
        let after = sensors.waits();
        assert!(after.own_ns >= before.own_ns);
        assert!(after.pressure_ns >= before.pressure_ns);
        assert!(sensors.load_hundredths() < 100_000_000);
    }

    #[test]
    fn idle_time_is_read_for_the_processors_we_may_use() {
        let mut sensors = Procfs::new(Descriptors::Own);
        sensors.stat = file::open_read(c"/proc/stat").ok();
        if sensors.stat.is_none() {
            println!("skipped: no /proc/stat");
            return;
        }
        let all = sensors.idle_ns().expect("processors are listed");
        sensors.affinity = None;
        assert_eq!(sensors.idle_ns(), Some(0));
        assert!(all > 0);
    }

    #[test]
    fn without_descriptors_of_its_own_it_opens_nothing() {
        let mut sensors = Procfs::new(Descriptors::Shared);
        assert_eq!(sensors.others_runnable(), None);
        assert_eq!(sensors.quota(0), None);
    }
}
