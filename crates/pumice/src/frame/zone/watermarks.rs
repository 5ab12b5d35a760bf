//! How far a zone's free memory may sink, and who is called then.

use super::super::gfp::Gfp;

/// Free memory levels, in blocks, as the kernel's watermarks: under `low` background reclaim is
/// woken and works up to `high`; under `min` only those who reclaim get any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Under this, requests reclaim for themselves.
    pub min: usize,
    /// Under this, background reclaim is woken.
    pub low: usize,
    /// At this, it stops.
    pub high: usize,
}

/// How far free memory has sunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// At the high watermark or above.
    None,
    /// Between low and high: background reclaim goes on if it runs.
    High,
    /// Under low: it starts.
    Low,
    /// Under min: requests reclaim for themselves.
    Min,
}

/// What reclaim fills in.
pub trait Reclaim: Sync {
    /// Wakes background reclaim.
    fn wake(&self);
    /// Frees frames for a request, as its flags allow, and says how many.
    fn reclaim(&self, gfp: Gfp, frames: usize) -> usize;
}

impl core::fmt::Debug for dyn Reclaim {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Reclaim")
    }
}
