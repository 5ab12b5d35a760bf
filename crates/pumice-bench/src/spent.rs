//! Processor time: of this process, of threads of the kernel, of everybody.

use std::fs;

/// The kernel's unit of time in `/proc`.
const TICKS_PER_S: f64 = 100.0;

/// Of this process, in seconds.
pub fn process_cpu_s() -> f64 {
    // All threads, those that have ended too.
    pumice_frames::sys::thread::process_cpu_time_ns() as f64 / 1e9
}

/// Processor time of everybody, interrupts included.
pub fn machine_cpu_s() -> f64 {
    let [user, nice, system, _, _, interrupts, soft, _] = machine_ticks();
    (user + nice + system + interrupts + soft) / TICKS_PER_S
}

/// Of the machine so far: user, nice, system, idle, waiting, interrupts, soft ones, and what the host took. Figures
/// that can't be read count as nothing.
pub fn machine_ticks() -> [f64; 8] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let mut ticks = line.split_whitespace().skip(1).map(|tick| tick.parse().unwrap_or(0.0));
    std::array::from_fn(|_| ticks.next().unwrap_or(0.0))
}

/// Processor time of the kernel's threads whose names begin so.
pub fn kernel_threads_cpu_s(name: &str) -> f64 {
    let mut ticks = 0.0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // 'pid (name) state ...': the 14th and 15th fields are ticks in user and kernel.
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let is_one = head.split_once('(').is_some_and(|(_, comm)| comm.starts_with(name));
        if is_one {
            let field = |index: usize| rest.split_whitespace().nth(index)?.parse::<f64>().ok();
            ticks += field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0);
        }
    }
    ticks / TICKS_PER_S
}
