//! A worker's requests and answers: a line of JSON each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::names::named;

named! {
    /// Which pages are touched, in what order, and how.
    #[derive(Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum Pattern {
        /// All of the region in order, for the first time.
        #[value(skip)]
        Fill = "fill",
        /// Any page, each as likely.
        RandomWrite = "random-write", RandomRead = "random-read",
        /// Each thread its share in order, and round again.
        SequentialWrite = "sequential-write", SequentialRead = "sequential-read",
        /// Few pages often: Zipf with exponent 0.99.
        ZipfWrite = "zipf-write",
        /// The "google testcase": much memory is in use, a part of it often, and a file is read all the time.
        Google = "google",
        /// Of the device alone: reads, and as many writes as reads.
        #[value(skip)]
        DeviceRead = "device-read",
        #[value(skip)]
        DeviceMixed = "device-mixed",
        /// Read guards on pages that are there: each thread its own, or all the same.
        Hit = "hit", HitShared = "hit-shared",
    }
}

impl Pattern {
    /// Those that a worker runs, but for filling, in the order of the table.
    pub const MEASURED: &'static str =
        "random-write,random-read,sequential-write,sequential-read,zipf-write,google,hit,hit-shared";

    /// Whether it is of guards on pages that are there.
    pub const fn is_hit(self) -> bool {
        matches!(self, Pattern::Hit | Pattern::HitShared)
    }

    /// Whether pages are written.
    pub const fn writes(self) -> bool {
        !matches!(self, Pattern::RandomRead | Pattern::SequentialRead)
    }
}

/// A worker's setup: it is given once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub region_pages: usize,
    pub frames: usize,
    /// Of a worker of ours: where its swap is, how large, and the policy.
    pub swap: String,
    pub swap_bytes: u64,
    pub policy: String,
    /// The file that [`Pattern::Google`] reads.
    pub file: String,
}

/// A request: there are many.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request {
    pub pattern: Pattern,
    pub threads: usize,
    pub seconds: f64,
    pub seed: u64,
}
