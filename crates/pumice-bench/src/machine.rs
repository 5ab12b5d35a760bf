//! The machine of the measurements, its kernel, and the versions of programs in use.

use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use pumice_command::memory;

/// Programs whose versions matter, and how each is asked.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("cc", &["cc", "--version"]),
    ("make", &["make", "--version"]),
    ("qemu", &["qemu-system-x86_64", "--version"]),
    ("python3", &["python3", "--version"]),
    ("numpy", &["python3", "-c", "import numpy; print(numpy.__version__)"]),
    ("scikit-learn", &["python3", "-c", "import sklearn; print(sklearn.__version__)"]),
    ("sqlite", &["python3", "-c", "import sqlite3; print(sqlite3.sqlite_version)"]),
    ("zstd", &["zstd", "--version"]),
];

/// A machine. Nothing in here names its owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    /// Name and release.
    pub kernel: String,
    /// The setting in force of transparent huge pages.
    pub huge_pages: String,
    /// Its host, where it is virtual.
    pub hypervisor: Option<String>,
    pub libc: String,
    /// Of programs that experiments use; those that are not there are left out.
    pub versions: Vec<(String, String)>,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let of_cpuinfo = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let system = rustix::system::uname();
        let part = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let hypervisor = cpuinfo.contains(" hypervisor").then(|| {
            let vendor = read("/sys/class/dmi/id/sys_vendor");
            if vendor.trim().is_empty() {
                "yes".to_owned()
            } else {
                vendor.trim().to_owned()
            }
        });
        Machine {
            processor: of_cpuinfo("model name").unwrap_or_else(|| part(system.machine())),
            processors: pumice_frames::sys::cpu::count(),
            memory_bytes: memory::available_bytes(),
            kernel: format!("{} {}", part(system.sysname()), part(system.release())),
            huge_pages: huge_pages
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'))
                .map_or_else(|| "none".to_owned(), |(chosen, _)| chosen.to_owned()),
            hypervisor,
            libc: libc_version(),
            versions: PROGRAMS.iter().filter_map(|(name, line)| version(name, line)).collect(),
        }
    }

    /// The differences between two that make figures differ.
    pub fn differences(&self, other: &Machine) -> Vec<String> {
        let mut differences = Vec::new();
        let mut differ = |what: &str, one: &dyn std::fmt::Display, two: &dyn std::fmt::Display| {
            let (one, two) = (one.to_string(), two.to_string());
            if one != two {
                differences.push(format!("{what}: {one}, then {two}"));
            }
        };
        differ("processor", &self.processor, &other.processor);
        differ("processors", &self.processors, &other.processors);
        let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
        differ("memory", &gib(self.memory_bytes), &gib(other.memory_bytes));
        differ("kernel", &self.kernel, &other.kernel);
        differ("huge pages", &self.huge_pages, &other.huge_pages);
        differ("C library", &self.libc, &other.libc);
        for (name, version) in &self.versions {
            let there = other.versions.iter().find(|(other, _)| other == name);
            differ(name, version, &there.map_or("none", |(_, version)| version));
        }
        differences
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn libc_version() -> String {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it returns a constant string.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        format!("glibc {}", version.to_string_lossy())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        "not glibc".to_owned()
    }
}

/// The first word with a digit in a program's output about its version.
fn version(name: &str, line: &[&str]) -> Option<(String, String)> {
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_version = |word: &&str| {
        let word = word.trim_start_matches('v');
        word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.')
    };
    let first = said.lines().next()?.split_whitespace().find(is_version)?;
    Some((name.to_owned(), first.trim_end_matches([',', ')']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_like_itself() {
        let here = Machine::here();
        assert!(here.processors > 0 && here.memory_bytes > 0);
        assert!(here.kernel.starts_with("Linux "), "{here:?}");
        assert!(here.differences(&here.clone()).is_empty());
        let other = Machine { processors: here.processors + 1, ..here.clone() };
        assert_eq!(here.differences(&other).len(), 1);
    }
}
