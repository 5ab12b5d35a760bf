//! Numbers that the kernel tells under names.

use std::fs;
use std::path::Path;

/// The number behind a name that begins a line of a file, without its unit.
pub fn number(path: impl AsRef<Path>, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([':', ' ']));
    rest?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole() {
        assert!(number("/proc/meminfo", "MemTotal") > Some(0));
        assert!(number("/proc/vmstat", "nr_free_pages") > Some(0));
        assert_eq!(number("/proc/meminfo", "MemTot"), None);
        assert_eq!(number("/proc/no-such-file", "MemTotal"), None);
    }
}
