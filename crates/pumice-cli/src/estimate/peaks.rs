//! The most memory that processes had: looked up now and then while they run.
//!
//! `getrusage` says it of one process of a tree only, with files and all. Here it is each one's anonymous
//! memory, as `/proc/PID/statm` has it, which takes no lock of the process's. A peak between two looks is
//! not seen, so these are lower limits.

use std::collections::HashMap;
use std::fs;

use super::spaces::Spaces;

/// Processes that are looked at each time.
const MOST_PROCESSES: usize = 64;

/// The memory that processes were seen to have.
#[derive(Debug, Default)]
pub struct Peaks(HashMap<u32, Seen>);

/// Bytes of anonymous memory.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    first: Option<u64>,
    most: u64,
    is_gone: bool,
}

impl Peaks {
    /// A process is there.
    pub fn note(&mut self, pid: u32) {
        self.0.entry(pid).or_default().is_gone = false;
    }

    /// Looks at all that are there.
    pub fn look(&mut self) {
        let alive = self.0.iter_mut().filter(|(_, seen)| !seen.is_gone);
        for (pid, seen) in alive.take(MOST_PROCESSES) {
            let statm = fs::read_to_string(format!("/proc/{pid}/statm"));
            match statm.ok().as_deref().and_then(anonymous_bytes) {
                Some(bytes) => seen.add(bytes),
                None => seen.is_gone = true,
            }
        }
    }

    /// Bytes that were touched for the first time, at least, in memory that may be served: the peak of each process,
    /// less the memory that it shared with the process that forked it, and less memory of other kinds.
    pub fn first_bytes(&self, spaces: &Spaces) -> u64 {
        let of = |(&pid, seen): (&u32, &Seen)| {
            let shared = if spaces.is_copy(pid) { seen.first.unwrap_or(0) } else { 0 };
            seen.most.saturating_sub(shared).saturating_sub(spaces.other_bytes(pid))
        };
        self.0.iter().map(of).sum()
    }
}

impl Seen {
    fn add(&mut self, bytes: u64) {
        self.first.get_or_insert(bytes);
        self.most = self.most.max(bytes);
    }
}

/// Of a line of `/proc/PID/statm`: the resident memory, less that of files and shared memory. `None` of a process that
/// has ended.
fn anonymous_bytes(statm: &str) -> Option<u64> {
    let mut pages = statm.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let (_, resident, shared) = (pages.next()??, pages.next()??, pages.next()??);
    (resident > 0).then(|| resident.saturating_sub(shared).saturating_mul(page_bytes()))
}

fn page_bytes() -> u64 {
    // SAFETY: a plain library call.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::super::spaces::{Area, What};
    use super::*;

    #[test]
    fn a_line_is_read() {
        let page = page_bytes();
        assert_eq!(anonymous_bytes("900 300 100 1 0 200 0\n"), Some(200 * page));
        assert_eq!(anonymous_bytes("900 300 400 1 0 200 0\n"), Some(0));
        for bad in ["", "0 0 0 0 0 0 0", "x 1 2", "1 2"] {
            assert_eq!(anonymous_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_seen_and_one_that_is_gone_is_not() {
        let mut peaks = Peaks::default();
        let own = std::process::id();
        for pid in [own, u32::MAX] {
            peaks.note(pid);
        }
        peaks.look();
        assert!(peaks.0[&own].most > 0 && !peaks.0[&own].is_gone);
        assert!(peaks.0[&u32::MAX].is_gone);
    }

    #[test]
    fn what_was_shared_or_of_another_kind_does_not_count() {
        let mut peaks = Peaks::default();
        let seen = |first, most| Seen { first: Some(first), most, is_gone: true };
        peaks.0.insert(1, seen(0, 1 << 20));
        peaks.0.insert(2, seen(1 << 20, 3 << 20));
        let mut spaces = Spaces::default();
        assert_eq!(peaks.first_bytes(&spaces), 4 << 20);
        spaces.note(&What::Fork { pid: 2, parent: 1 });
        assert_eq!(peaks.first_bytes(&spaces), 3 << 20);
        spaces.note(&What::Map { pid: 1, at: 0, len: 1 << 20, area: Area::Stack });
        spaces.note(&What::Fault { pid: 1, tid: 1, at: 0, page_bytes: 4096, weight: 100 });
        assert_eq!(peaks.first_bytes(&spaces), (3 << 20) - 409_600);
        spaces.note(&What::Exec { pid: 2 });
        assert_eq!(peaks.first_bytes(&spaces), (4 << 20) - 409_600);
    }
}
