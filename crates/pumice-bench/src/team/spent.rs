//! Processor time: of this process, of threads of the kernel, of everybody.

use std::fs::{self, File};
use std::io::Read;

/// The kernel's unit of time in `/proc`.
const TICKS_PER_S: f64 = 100.0;

/// Of this process, in seconds.
pub fn process_cpu_s() -> f64 {
    // All threads, those that have ended too.
    pumice_frames::sys::thread::process_cpu_time_ns() as f64 / 1e9
}

/// Processor time of everybody, interrupts included.
pub fn machine_cpu_s() -> f64 {
    let mut text = String::new();
    let read = File::open("/proc/stat").and_then(|mut file| file.read_to_string(&mut text));
    let line = read.ok().and_then(|_| text.lines().next()).unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    [0, 1, 2, 5, 6].iter().filter_map(|&index| ticks.get(index)).sum::<f64>() / TICKS_PER_S
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
