//! Lines of the log about classes: each failure once, not every two seconds, and not too many that differ.
//!
//! A snapshot's file that grows all the time fails in another way each time, so lines are counted, too. One class has
//! one entry, whatever sizes it has had.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::pool::Key;

const MINUTE: Duration = Duration::from_secs(60);
/// Lines about one class.
const LINES_A_MINUTE: u32 = 4;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Said(BTreeMap<Key, Lines>);

#[derive(Debug)]
struct Lines {
    /// The last one, since the class's last slot was populated.
    last: String,
    since: Instant,
    count: u32,
}

impl Said {
    /// Whether a line about a class is to be written. It counts as written then.
    pub fn takes(&mut self, key: Key, line: &str, now: Instant) -> bool {
        let fresh = || Lines { last: String::new(), since: now, count: 0 };
        let lines = self.0.entry(key.class()).or_insert_with(fresh);
        if now.saturating_duration_since(lines.since) >= MINUTE {
            (lines.since, lines.count) = (now, 0);
        }
        let is_taken = lines.last != line && lines.count < LINES_A_MINUTE;
        if is_taken {
            lines.count += 1;
            line.clone_into(&mut lines.last);
        }
        is_taken
    }

    /// A slot of the class is populated: the next failure is another.
    pub fn succeeded(&mut self, key: Key) {
        if let Some(lines) = self.0.get_mut(&key.class()) {
            lines.last.clear();
        }
    }

    /// All is to be said again.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use crate::PageKind;

    use super::*;

    #[test]
    fn a_file_of_many_sizes_fills_neither_the_log_nor_the_memory() {
        let (mut said, now) = (Said::default(), Instant::now());
        let web = "web".parse().ok();
        let mut lines = 0;
        for size in 1..1_000u32 {
            let bytes = u64::from(size) << 12;
            let key = Key { snapshot: web, ..Key::new(bytes, PageKind::Small) };
            let at = now + Duration::from_millis(100) * size;
            lines += u32::from(said.takes(key, &format!("it has {size} pages"), at));
            said.succeeded(key);
        }
        assert_eq!((lines, said.0.len()), (2 * LINES_A_MINUTE, 1));
    }

    #[test]
    fn a_failure_is_said_once_until_a_slot_is_populated() {
        let (mut said, now) = (Said::default(), Instant::now());
        let key = Key::new(4096, PageKind::Small);
        assert!(said.takes(key, "no memory", now) && !said.takes(key, "no memory", now));
        assert!(!said.takes(key, "no memory", now + 2 * MINUTE));
        said.succeeded(key);
        assert!(said.takes(key, "no memory", now));
    }
}
