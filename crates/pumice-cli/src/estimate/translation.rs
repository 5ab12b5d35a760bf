//! How often a program's addresses had to be looked up in page tables, where the processor counts it.

use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult};
use perf_event::{Builder, Counter};

/// Counts, of what this process starts, reads that found no translation ready.
pub struct Misses(Counter);

impl Misses {
    /// Begins, from the `exec` of the started program on.
    ///
    /// # Errors
    /// As `perf_event_open(2)`: most virtual machines have no such counter.
    pub fn begin() -> io::Result<Misses> {
        let event =
            Cache { which: CacheId::DTLB, operation: CacheOp::READ, result: CacheResult::MISS };
        let counter = Builder::new(event)
            .observe_self()
            .any_cpu()
            .inherit(true)
            .enabled(false)
            .enable_on_exec(true)
            .exclude_kernel(true)
            .build()?;
        Ok(Misses(counter))
    }

    /// How many there were, once the started program has ended.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn end(mut self) -> io::Result<u64> {
        self.0.read()
    }
}
