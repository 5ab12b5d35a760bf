//! A worker's requests and answers.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use pumice_bench::named;

/// Bytes of a sequence that are read or written at a time.
pub const CHUNK: usize = 1 << 20;

named! {
    /// The operations on a file.
    #[derive(Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum Op {
        /// All of it is written in order, for the first time, and made durable.
        Out = "out",
        /// All of it is read in order, changed, written back, and made durable.
        Rewrite = "rewrite",
        /// All of it is read in order.
        In = "in",
        /// Single pages at random, one at a time for each thread.
        Random = "random",
        /// The same, where each thread says ahead which pages it will want.
        RandomAhead = "random-ahead",
        /// Single pages at random, one at a time for each thread, while another overwrites the file in order.
        RandomBeside = "random-beside",
        /// Pages of a working set that is in memory, before, beside and after a scan of all of the file.
        Scan = "scan",
    }
}

impl Op {
    /// Whether pages are visited in order.
    pub const fn is_sequential(self) -> bool {
        matches!(self, Op::Out | Op::Rewrite | Op::In)
    }
}

/// A worker's setup: it is given once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub file: String,
    pub bytes: u64,
    /// Pages of memory.
    pub frames: usize,
    /// Reads that are on their way at a time, where pages are asked for ahead.
    pub depth: usize,
}

/// A request: there are many.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request {
    pub op: Op,
    pub threads: usize,
    /// For operations that do not end by themselves.
    pub seconds: f64,
    pub seed: u64,
}
