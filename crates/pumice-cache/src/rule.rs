//! The write-ahead rule: which part of the log must be durable before a page is written.

use pumice_paging::space::region::Page;

/// A log's rule for pages: a page may be written when the log is durable up to the page's position, or further.
/// It is asked before each write, by the thread that writes: in the background, for eviction, or for `sync`.
///
/// None of it may wait for the cache: no guard, no `sync`. If any of it panics, the log has failed.
pub trait WriteAhead: Send + Sync {
    /// The log position that must be durable before a page of the file is written, from the page's content, which
    /// nobody changes meanwhile.
    fn position(&self, page: usize, bytes: &Page) -> u64;

    /// Up to where the log is durable.
    fn durable(&self) -> u64;

    /// Pages wait for the log to be durable up to here. Wakes the log's writer, and does not wait for it.
    fn wanted(&self, position: u64);

    /// Whether the log has failed, or ended: records that are not durable by now never are. Pages that wait for it stay
    /// in memory, and `sync` does not wait for them, but says so.
    fn has_failed(&self) -> bool {
        false
    }
}
