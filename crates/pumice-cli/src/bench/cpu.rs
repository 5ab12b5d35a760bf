//! What the calling thread spent, and where it may run.

use pumice::sys::thread;

/// Processor time of a thread, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// In the program.
    pub user_s: f64,
    /// In the kernel on its behalf.
    pub system_s: f64,
}

impl CpuTime {
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

    /// What was spent since. The sum is exact; how it divides, the kernel only samples.
    pub fn elapsed(&self) -> CpuTime {
        let total_s = (thread::cpu_time_ns() - self.total_ns) as f64 / 1e9;
        let system_s = (system_time_s() - self.system_s).clamp(0.0, total_s);
        CpuTime { user_s: total_s - system_s, system_s }
    }
}

fn system_time_s() -> f64 {
    // SAFETY: rusage is integers only, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage writes one rusage.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_stime.tv_sec as f64 + usage.ru_stime.tv_usec as f64 / 1e6
}

/// Keeps the calling thread on the `index`th processor that the process may use. Without success
/// it stays where the kernel puts it.
pub fn pin(index: usize) {
    use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let Some(cpu) = processors.nth(index) else { return };
    let mut one = CpuSet::new();
    one.set(cpu);
    let _ = sched_setaffinity(None, &one);
}
