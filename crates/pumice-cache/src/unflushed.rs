//! How much of a file's writes a device may still have in its own cache, and when that is flushed ahead of a `sync`.
//!
//! A device that writes back, as virtual disks do, says that a write is done when it has the bytes. A flush then takes
//! as long as all of them do, and reads wait meanwhile: here 170 ms after 128 MiB, with no write in flight. Flushed
//! after each 8 MiB, the same bytes take no longer in all, and a read waits for a tenth of that. (So
//! `innodb_fsync_threshold` and RocksDB's `bytes_per_sync`.)
//!
//! Only a file that has been synced after many writes is flushed ahead, and of what is written then no more than twice
//! what was written before that sync: nobody may ever sync it again. A flush is due when so much was written as the
//! last one of many bytes had done in [`TARGET`], or twice as much as before it: a device may have flushed of its own
//! accord, which says nothing of the next time. Where flushes cost nothing, that is soon never. A thread of its own
//! flushes, while others write on: nobody waits for it but a `sync` of that file. It rests as long as a flush took, for
//! a flush may take long however little was written, and a `sync` is to come between.
//!
//! Numbers only, all relaxed: a flush that comes a little early or late does no harm, and `sync` does not ask here.

use std::time::Duration;

use pumice_io::sync::atomic::{AtomicUsize, Ordering};

/// How long a flush is to take.
const TARGET: Duration = Duration::from_millis(20);
/// Bytes that are never flushed ahead: a flush of less says more of the device's latency than of its rate.
pub(super) const LEAST: usize = if cfg!(shuttle) { 8192 } else { 8 << 20 };

/// See the module's top.
#[derive(Debug)]
pub(super) struct Unflushed {
    /// Written, or about to be, since a flush began.
    bytes: AtomicUsize,
    /// Above this a flush is due.
    limit: AtomicUsize,
    /// Flushed ahead since a `sync`, and the most that is.
    ahead: AtomicUsize,
    most_ahead: AtomicUsize,
}

/// The wish for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A `sync` waits for it.
    Sync,
    /// It is due.
    Due,
}

impl Unflushed {
    /// Nothing was written, and nothing is known.
    pub fn new() -> Unflushed {
        let [bytes, ahead, most_ahead] = [0; 3].map(AtomicUsize::new);
        Unflushed { bytes, limit: AtomicUsize::new(usize::MAX), ahead, most_ahead }
    }

    /// Bytes are about to be written.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a flush is due.
    pub fn is_due(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
            && self.ahead.load(Ordering::Relaxed) < self.most_ahead.load(Ordering::Relaxed)
    }

    /// How many times as much was written as makes a flush due.
    pub fn times_due(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) / self.limit.load(Ordering::Relaxed).max(1)
    }

    /// A flush begins: how many bytes it is of. One at a time.
    pub fn begin(&self, why: Why) -> usize {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let all = self.ahead.load(Ordering::Relaxed).saturating_add(bytes);
        match why {
            Why::Due => self.ahead.store(all, Ordering::Relaxed),
            Why::Sync => {
                self.ahead.store(0, Ordering::Relaxed);
                // A sync of little is one of many between two of much.
                if all >= LEAST {
                    self.most_ahead.store(all.saturating_mul(2), Ordering::Relaxed);
                }
            }
        }
        bytes
    }

    /// It took so long.
    pub fn end(&self, bytes: usize, took: Duration) {
        if bytes >= LEAST {
            let limit = self.limit.load(Ordering::Relaxed);
            let known = if limit == usize::MAX { LEAST } else { limit };
            let most = known.saturating_mul(2);
            self.limit.store(limit_after(bytes, took).min(most), Ordering::Relaxed);
        }
    }
}

/// Bytes that may be written until the next flush is due, after one of many bytes.
fn limit_after(bytes: usize, took: Duration) -> usize {
    // Models have no time.
    let took = if cfg!(shuttle) { Duration::MAX } else { took };
    let in_target = bytes as u128 * TARGET.as_nanos() / took.as_nanos().max(1);
    usize::try_from(in_target).unwrap_or(usize::MAX).max(LEAST)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_flushed_ahead_once_a_long_flush_was_seen() {
        let unflushed = Unflushed::new();
        unflushed.add(1 << 30);
        assert!(!unflushed.is_due(), "nobody has synced it");
        assert_eq!(unflushed.begin(Why::Sync), 1 << 30);
        unflushed.end(4096, Duration::from_secs(1));
        unflushed.add(1 << 30);
        assert!(!unflushed.is_due(), "a flush of few bytes says nothing");
        let bytes = unflushed.begin(Why::Sync);
        unflushed.end(bytes, Duration::from_secs(1));
        unflushed.add(2 * LEAST);
        assert!(!unflushed.is_due());
        unflushed.add(2 * LEAST);
        assert!(unflushed.is_due() && unflushed.times_due() == 2);
    }

    #[test]
    fn a_file_that_is_not_synced_again_is_left() {
        let unflushed = Unflushed::new();
        unflushed.add(8 * LEAST);
        unflushed.end(unflushed.begin(Why::Sync), Duration::from_secs(9));
        let flush_while_due = || {
            let mut flushes = 0;
            loop {
                unflushed.add(2 * LEAST + 1);
                if !unflushed.is_due() {
                    return flushes;
                }
                unflushed.end(unflushed.begin(Why::Due), Duration::from_secs(9));
                flushes += 1;
            }
        };
        assert_eq!(flush_while_due(), 8, "twice as much as before the sync");
        // Syncs of little change nothing; one of much does, with all that was flushed ahead of it.
        unflushed.begin(Why::Sync);
        unflushed.begin(Why::Sync);
        assert_eq!(flush_while_due(), 18);
    }

    #[test]
    fn the_limit_doubles_at_most() {
        let unflushed = Unflushed::new();
        unflushed.add(1 << 50);
        for nth in 1..10 {
            unflushed.end(1 << 40, Duration::from_micros(1));
            unflushed.begin(Why::Sync);
            unflushed.add(LEAST << nth);
            assert!(!unflushed.is_due());
            unflushed.add(1);
            assert!(unflushed.is_due());
        }
        unflushed.end(LEAST, Duration::from_secs(1));
        unflushed.begin(Why::Sync);
        unflushed.add(LEAST + 1);
        assert!(unflushed.is_due(), "a slow one counts at once");
    }

    #[test]
    fn the_limit_follows_the_device() {
        assert_eq!(limit_after(128 << 20, Duration::from_millis(160)), 16 << 20);
        assert_eq!(limit_after(128 << 20, Duration::from_secs(9)), LEAST);
        assert_eq!(limit_after(16 << 20, Duration::from_millis(20)), 16 << 20);
        assert!(limit_after(8 << 20, Duration::from_micros(10)) > 8 << 30, "flushes cost nothing");
        assert!(limit_after(8 << 20, Duration::ZERO) > 1 << 40);
    }
}
